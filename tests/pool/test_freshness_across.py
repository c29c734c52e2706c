"""Read your writes over several workers: what one worker's client wrote, another's client reads."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from ..support.fleet import Fleet
from ..support.rawpg import Wire
from .conftest import Serve, Service, eventually

ROUTING = {"read_split": True, "catalogue_interval": 0.5}
"""Tables are made by the way here."""
SETTINGS = {"workers": 2, "routing": ROUTING}
MARK = "/* seen */ SELECT count(*) FROM written"


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(SETTINGS)


@contextlib.contextmanager
def paused(fleet: Fleet) -> Iterator[None]:
    """No replica replays anything."""
    for replica in fleet.replicas:
        replica.query("SELECT pg_wal_replay_pause()")
    try:
        yield
    finally:
        for replica in fleet.replicas:
            replica.query("SELECT pg_wal_replay_resume()")


def one_of_each_worker(service: Service) -> tuple[Wire, Wire]:
    first = service.client(pool=20)
    home = service.shown(first)["worker"]
    for _ in range(8):
        second = service.client(pool=20)
        if service.shown(second)["worker"] != home:
            return first, second
    raise AssertionError("all clients went to one worker")


WRITES = {
    "insert": ("INSERT INTO written VALUES (%d)",),
    "returning": ("INSERT INTO written VALUES (%d) RETURNING repeat('x', 300000)",),
    "transaction": ("BEGIN", "INSERT INTO written VALUES (%d)", "COMMIT"),
    "one query": ("BEGIN; INSERT INTO written VALUES (%d); COMMIT",),
    "function": ("SELECT writes(%d)",),
    "do": ("DO $$BEGIN INSERT INTO written VALUES (%d); END$$",),
    "chain": ("BEGIN", "INSERT INTO written VALUES (%d)", "COMMIT AND CHAIN", "ROLLBACK"),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_read_in_another_worker_sees_the_write(service: Service, fleet: Fleet, how: str) -> None:
    writer, reader = one_of_each_worker(service)
    service.admin.run("CREATE TABLE written(a int)")
    service.admin.run(
        "CREATE FUNCTION writes(a int) RETURNS int LANGUAGE sql AS 'INSERT INTO written VALUES (a) RETURNING a'"
    )
    fleet.caught_up()
    # The copies are in use, and would answer.
    assert eventually(lambda: reader.value(MARK) and not service.reached(MARK) <= {"primary"}, 10)
    with paused(fleet):
        for number in range(1, 6):
            for statement in WRITES[how]:
                writer.query(statement.replace("%d", str(number)))
            assert reader.value(MARK) == str(number)
            assert writer.value(MARK) == str(number)
    # Once they have caught up they serve again.
    fleet.caught_up()
    again = MARK.replace("seen", "again")
    assert eventually(lambda: reader.value(again) == "5" and not service.reached(again) <= {"primary"}, 10)


def test_a_worker_that_dies_takes_no_write_along(serve: Serve, fleet: Fleet) -> None:
    """The one that comes after it does not take a copy for fresh because it knows of no write."""

    service = serve({"workers": 1, "routing": ROUTING}, own=True)
    service.admin.run("CREATE TABLE written(a int)")
    fleet.caught_up()
    writer = service.client(pool=20)
    assert eventually(lambda: writer.value(MARK) and not service.reached(MARK) <= {"primary"}, 10)
    with paused(fleet):
        writer.query("INSERT INTO written VALUES (1)")
        os.kill(int(service.proxy.wait_for("worker_started")["pid"]), signal.SIGKILL)
        assert writer.until("EOF")[-1].kind == "EOF"
        for _ in range(4):
            assert service.client(pool=20).value(MARK) == "1"
