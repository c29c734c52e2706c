"""EXPLAIN (ROUTE) against real nodes: what it says is what happens, and no node hears of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..support.rawpg import Q, Wire
from .conftest import Serve, Service, eventually

COUNT = "SELECT count(*) FROM item"


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve({"routing": {"read_split": True}})


def explain(client: Wire, sql: str) -> dict[str, str]:
    """The last value of each item."""
    return {str(item): value or "" for item, value in client.rows(f"EXPLAIN (ROUTE) {sql}")}


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (COUNT, "read"),
        ("INSERT INTO trail(item_id) VALUES (1)", "write"),
        ("SELECT * FROM scratch", "session"),
        ("/* pgtrident: node=replica2 */ " + COUNT, "hint"),
        ("/* pgtrident: route=primary */ " + COUNT, "hint"),
    ],
)
def test_what_it_says_is_what_happens(service: Service, sql: str, reason: str) -> None:
    client = service.client(pool=20)
    assert eventually(lambda: explain(client, COUNT)["reason"] == "read", 10)
    said = explain(client, sql)
    assert said["reason"] == reason
    client.query(f"{sql} -- {reason} {len(sql)}")
    reached = service.reached(f"{reason} {len(sql)}")
    assert reached == {said["node"]} or (reason == "read" and reached <= {"replica1", "replica2"})


def test_no_node_hears_of_it(service: Service) -> None:
    client = service.client(pool=5)
    before = service.servers("pool5")
    for sql in (COUNT, "INSERT INTO trail(item_id) VALUES (1) -- unheard"):
        explain(client, sql)
    assert service.servers("pool5") == before and not service.reached("unheard")
    assert client.value("SELECT count(*) FROM trail") == "0"


def test_in_transactions(service: Service) -> None:
    client = service.client(pool=20)
    client.run("BEGIN", "INSERT INTO trail(item_id) VALUES (1)")
    said = explain(client, COUNT)
    assert (said["node"], said["reason"], said["transaction"]) == ("primary", "transaction", "open on primary")
    assert client.ask(Q("SELECT 1/0")) == "E[22012] ZE"
    assert client.ask(Q(f"EXPLAIN (ROUTE) {COUNT}")) == "E[25P02] ZE"
    client.run("ROLLBACK", "CREATE TEMP TABLE mine(a int)")
    assert (explain(client, COUNT)["reason"], explain(client, COUNT)["pins"]) == ("pinned", "temp")


def test_session_pooling(serve: Serve) -> None:
    service = serve({"pool": {"mode": "session"}})
    client = service.client(pool=20)
    assert explain(client, COUNT)["reason"] in ("read_split_off", "pinned")
    client.query("SELECT 1")
    said = explain(client, COUNT)
    assert (said["node"], said["reason"]) == ("primary", "pinned")
    assert said["catalogue"] == "not needed: the session keeps its server"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "proxy", *arguments], capture_output=True, text=True, check=False)


def test_the_command(service: Service) -> None:
    url = f"postgresql://pool20@127.0.0.1:{service.proxy.port}/{service.database}"
    done = command("explain", "--dsn", url, "DELETE FROM trail")
    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (said["node"], said["reason"], said["tables"]) == ("primary", "write", "trail")
    config, port = str(service.proxy.config_file), f"listen.port={service.proxy.port}"
    done = command("explain", "-c", config, "--set", port, "-U", "pool20", "-d", service.database, "LISTEN x")
    assert done.returncode == 0 and "session (listen)" in done.stdout
    node = f"postgresql://pool20@127.0.0.1:{service.fleet.primary.port}/postgres"
    refused = command("explain", "--dsn", node, "SELECT 1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert 'unrecognized EXPLAIN option "route"' in refused.stderr
