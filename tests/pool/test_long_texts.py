"""Texts too long to be looked at twice on the event loop: what they are is settled later, and delays nobody."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

from ..support.rawpg import Wire
from .conftest import Serve, Service, eventually

_NUMBERS = itertools.count()


def count() -> str:
    """An analytic text that no other is like."""
    return f"SELECT count(*) AS c{next(_NUMBERS)} FROM item WHERE id NOT IN ({', '.join(['123456'] * 400)})"


def class_of(client: Wire, sql: str) -> str:
    return {str(item): value or "" for item, value in client.rows(f"EXPLAIN (ROUTE) {sql}")}["class"]


def becomes_analytic(client: Wire) -> bool:
    """Whether one that has just come does, soon."""
    sql = count()
    return eventually(lambda: class_of(client, sql) == "analytic (aggregate)", 3)


def witnesses(service: Service) -> list[int]:
    found = []
    for pid in service.proxy.processes():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except FileNotFoundError:
            continue
        if b"run_witness" in command:
            found.append(pid)
    return found


def test_a_long_text_is_analytic_once_both_have_said_so(serve: Serve) -> None:
    service = serve({"routing": {"read_split": True}}, own=True)
    client = service.client(pool=5)
    assert eventually(lambda: class_of(client, "SELECT id FROM item") == "read (select)", 10)
    assert witnesses(service) == [], "there is no process as long as nobody needs it"
    sql = count()
    assert class_of(client, sql) == "read (select)"
    assert client.value(sql) == client.value("SELECT count(*) FROM item"), "it is answered meanwhile"
    assert eventually(lambda: class_of(client, sql) == "analytic (aggregate)", 30)
    assert class_of(client, sql.replace("123456", "1", 1)) == "analytic (aggregate)"
    assert client.value(sql) == client.value("SELECT count(*) FROM item")

    (witness,) = witnesses(service)
    opened = [os.readlink(link) for link in Path(f"/proc/{witness}/fd").iterdir()]
    assert not [name for name in opened if "TCP" in name] and len(opened) == 3, "it has none of the worker's sockets"

    os.kill(witness, signal.SIGKILL)
    assert eventually(lambda: becomes_analytic(client), 60)
    (another,) = witnesses(service)
    assert another != witness

    assert service.proxy.stop() == 0
    assert eventually(lambda: not Path(f"/proc/{another}").exists(), 10)
