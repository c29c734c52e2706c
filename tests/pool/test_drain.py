"""Nodes are drained, taken out of the configuration and connected to anew under load: nobody gets an error who isn't
still there when the time is up."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.demo.postgres import Cluster, Server

from ..conftest import base_settings, wait_until_serving
from ..support.fleet import Fleet
from ..support.proxy import Proxy, merged
from ..support.rawpg import Q, Wire, show
from .conftest import CONSOLE_USER, Serve, Service, backend, eventually
from .test_services import Prober

READ = "SELECT count(*) FROM item /* seen {} */"
PINNED = "SELECT keep_lock() -- pinned"
SETTINGS: dict[str, Any] = {
    "workers": 2,
    "health": {"interval": 30.0},
    "pool": {"min_pool_size": 1},
    "lag": {"replica_out": 60.0, "replica_in": 30.0},
    "routing": {"read_split": True, "consistency": "eventual"},
    "rules": {"pinned": {"pattern": ["pinned"], "route": "replica", "node": "replica1", "move_writes": True}},
}
ENDED = {"S": "FATAL", "C": "57P01", "M": "terminating connection due to administrator command"}


@pytest.fixture
def service(serve: Serve) -> Service:
    service = serve(SETTINGS, own=True)
    assert eventually(lambda: all(row["weight"] == "100" for row in nodes(service)[1:]), 10)
    return service


def nodes(service: Service) -> list[dict[str, str | None]]:
    return service.console("SHOW NODES")


def node(service: Service, name: str = "replica1") -> dict[str, str | None]:
    return next((row for row in nodes(service) if row["name"] == name), {})


def servers(service: Service, name: str = "replica1") -> int:
    """What the node itself tells of the proxy's servers there."""
    (server,) = [s for s in (service.fleet.primary, *service.fleet.replicas) if s.name == name]
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND usename LIKE 'pool%%'"
    return int(server.ask(sql, service.database)[0][0])


def on_replica1(service: Service) -> Wire:
    """A client whose reads have gone to that node, where its server is idle now."""
    client = service.client(pool=20)
    hinted = f"/* pgtrident: node=replica1 */ {READ.format('hinted')}"
    assert eventually(lambda: client.query(hinted) and "replica1" in service.reached("seen hinted"), 10)
    return client


@contextlib.contextmanager
def blocked_on_replica1(service: Service) -> Iterator[tuple[Wire, Callable[[], None]]]:
    """A client whose read waits on that node until it is let go."""
    client = on_replica1(service)
    service.admin.run("BEGIN", "LOCK TABLE trail")
    # Somebody's commit takes the lock to the replicas.
    service.fleet.primary.query("UPDATE item SET qty = 1 WHERE id = 1", dbname=service.database)
    service.fleet.caught_up()
    client.send(Q("/* pgtrident: node=replica1 */ SELECT count(*) FROM trail -- blocked"))
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, 'blocked') > 0"
    assert eventually(lambda: service.fleet.replicas[0].ask(waits))
    try:
        yield client, lambda: service.admin.run("COMMIT")
    finally:
        service.admin.query("COMMIT")


@contextlib.contextmanager
def pinned_on_replica1(service: Service) -> Iterator[Wire]:
    """A session that has a lock on that node."""
    service.admin.run(
        "CREATE FUNCTION keep_lock() RETURNS int LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_lock(7); RETURN pg_backend_pid(); END'"
    )
    service.fleet.caught_up()
    client = on_replica1(service)

    def is_there() -> bool:
        client.query(PINNED)
        assert eventually(lambda: service.pin(client) == "advisory")
        if service.shown(client)["node"] == "replica1":
            return True
        client.run("SELECT pg_advisory_unlock_all()")
        return False

    assert eventually(is_there, 10)
    yield client


def goes_to(client: Wire) -> str:
    """Where reads go that want replica1; one of them is read."""
    read = "/* pgtrident: node=replica1 */ SELECT count(*) FROM item"
    (said,) = re.findall(r"D\[node,(\w+)\]", client.query(f"EXPLAIN (ROUTE) {read}"))
    assert client.query(read) == "T[count] D[20] C[SELECT 1] ZI"
    return str(said)


def end_of(client: Wire) -> dict[str, str]:
    """Why the proxy has ended a session, which is told before the connection ends."""
    *_, error, end = client.until("EOF")
    assert end.kind == "EOF"
    return {key: error.fields[key] for key in ENDED}


def test_drained_under_load(service: Service) -> None:
    """Reads go elsewhere, what is at work there and what is pinned there ends by itself; then the node is empty, and
    stays so until it is called back."""
    readers = [Prober(str(number), service.client(pool=20), READ, 0.0) for number in range(4)]
    with (
        pinned_on_replica1(service) as pinned,
        blocked_on_replica1(service) as (blocked, let_go),
        contextlib.ExitStack() as stack,
    ):
        idle = on_replica1(service)
        for reader in readers:
            stack.enter_context(reader)
        assert all(reader.answered(10) for reader in readers)
        (said,) = service.console("DRAIN NODE replica1 1h")
        assert (said["node"], said["drain"]) == ("replica1", "draining") and said["until"]
        assert all(reader.answered(10) for reader in readers)
        assert eventually(lambda: servers(service) == 2), "what is at work, and what is pinned"
        row = node(service)
        assert (row["drain"], row["health"], row["serving"]) == ("draining", "active", "no")
        assert row["cause"] == "draining (by command); pass"
        assert goes_to(idle) != "replica1"
        explained = idle.query("EXPLAIN (ROUTE) SELECT count(*) FROM item")
        assert "weight 0" not in explained and "draining, takes no new work" in explained
        let_go()
        assert show(blocked.until()) == "T[count] D[0] C[SELECT 1] ZI"
        assert eventually(lambda: servers(service) == 1)
        assert pinned.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
        assert node(service)["drain"] == "draining"
        pinned.run("SELECT pg_advisory_unlock_all()")
        assert eventually(lambda: servers(service) == 0)
        assert eventually(lambda: node(service)["drain"] == "drained")
        assert all(reader.answered(10) for reader in readers)
        assert servers(service) == 0
        (back,) = service.console("UNDRAIN NODE replica1")
        assert back == {"node": "replica1", "health": "suspect"}
        assert eventually(lambda: node(service)["serving"] == "yes")
        assert eventually(lambda: servers(service) > 0, 10)
    assert [reader.errors() for reader in readers] == [[]] * 4
    told = [row for row in service.console("SHOW HISTORY") if row["kind"] in ("drain", "command")]
    assert [(row["node"], row["before"], row["after"], row["who"]) for row in told] == [
        ("replica1", "", "draining", ""),
        ("", "", "DRAIN NODE replica1 1h", CONSOLE_USER),
        ("replica1", "draining", "drained", ""),
        ("replica1", "drained", "", ""),
        ("", "", "UNDRAIN NODE replica1", CONSOLE_USER),
    ]


def test_what_takes_too_long_is_ended(service: Service) -> None:
    with pinned_on_replica1(service) as pinned, blocked_on_replica1(service) as (blocked, _):
        service.console("DRAIN NODE replica1 1h")
        assert eventually(lambda: servers(service) == 2)
        service.console("DRAIN NODE replica1 300ms")  # on second thoughts
        assert end_of(blocked) == end_of(pinned) == ENDED
        # The node has been told as well: there the statement waits for its lock no longer.
        assert eventually(lambda: servers(service) == 0)
        assert eventually(lambda: node(service)["drain"] == "drained")


def test_the_only_writer_is_not_drained(service: Service) -> None:
    console = service.client(user=CONSOLE_USER, database="pgtrident")
    for command, sqlstate in (
        ("DRAIN NODE primary", "55000"),
        ("UNDRAIN NODE replica1", "55000"),
        ("DRAIN NODE replica3", "42704"),
    ):
        (error,) = [reply for reply in console.send(Q(command)).until() if reply.kind == "E"]
        assert error.fields["C"] == sqlstate
    assert [row["drain"] for row in nodes(service)] == [""] * 3


def test_taken_out_of_the_configuration(service: Service) -> None:
    """As drained; then nothing is left of it."""
    proxy = service.proxy
    reader = Prober("reader", service.client(pool=20), READ, 0.0)
    begun, idle = on_replica1(service), on_replica1(service)
    with (
        pinned_on_replica1(service) as pinned,
        blocked_on_replica1(service) as (blocked, let_go),
        reader,
    ):
        begun.query("BEGIN READ ONLY")
        assert begun.query("SELECT count(*) FROM item") == "T[count] D[20] C[SELECT 1] ZT"
        settings = merged(base_settings(service.fleet), SETTINGS)
        settings = merged(settings, {"admin": {"users": [CONSOLE_USER]}, "users": {CONSOLE_USER: {}}})
        del settings["nodes"]["replica1"], settings["rules"]
        seen = len(proxy.lines)
        proxy.write_config(settings)
        proxy.reload()
        proxy.wait_for("reloaded", after=seen)
        assert eventually(lambda: servers(service) == 2)
        assert goes_to(idle) != "replica1"
        row = node(service)
        assert (row["drain"], row["serving"]) == ("draining", "no")
        assert begun.query("SELECT count(*) FROM item") == "T[count] D[20] C[SELECT 1] ZT"
        assert begun.query("COMMIT") == "C[COMMIT] ZI"
        blocked.cancel()  # it still knows where to send that
        assert show(blocked.until()).endswith("E[57014] ZI")
        let_go()
        assert eventually(lambda: servers(service) == 1)
        assert pinned.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
        pinned.run("SELECT pg_advisory_unlock_all()")
        assert eventually(lambda: servers(service) == 0)
        assert eventually(lambda: not node(service))
        assert reader.answered(10)
    assert reader.errors() == []
    assert [client.value("SELECT 1") for client in (pinned, blocked, begun, idle)] == ["1"] * 4


def test_connected_anew(service: Service) -> None:
    """Idle servers at once, others when they are given back; and the node is looked at before it gets new work."""
    with pinned_on_replica1(service) as pinned:
        client = on_replica1(service)
        (server,) = [s for s in service.fleet.replicas if s.name == "replica1"]
        sql = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND usename LIKE 'pool%%'"

        def pids() -> set[int]:
            return {row[0] for row in server.ask(sql, service.database)}

        kept, before = backend(pinned), pids()
        assert kept in before
        told = len(service.console("SHOW HISTORY"))
        service.console("RECONNECT NODE replica1")
        assert eventually(lambda: pids() & before == {kept})
        assert eventually(lambda: node(service)["serving"] == "yes")
        moved = [row for row in service.console("SHOW HISTORY")[told:] if row["kind"] == "health"]
        assert [(row["before"], row["after"], row["cause"], row["seen"]) for row in moved] == [
            ("active", "suspect", "reconnect", ""),
            ("suspect", "active", "pass", "database pass"),
        ]
        assert backend(pinned) == kept
        pinned.run("SELECT pg_advisory_unlock_all()")
        assert eventually(lambda: kept not in pids())
        assert eventually(lambda: goes_to(client) == "replica1")
        assert not pids() & before
    writer = service.client(pool=1)
    writer.run("CREATE TABLE made(x int)")
    (before_there,) = service.servers("pool1")
    (said,) = service.console("RECONNECT NODE primary")
    assert said == {"node": "primary", "health": "active"}
    assert node(service, "primary")["serving"] == "yes"
    assert writer.query("INSERT INTO made VALUES (1)") == "C[INSERT 0 1] ZI"
    assert eventually(lambda: before_there not in service.servers("pool1"))
    assert writer.query("INSERT INTO made VALUES (1)") == "C[INSERT 0 1] ZI"


@pytest.fixture(scope="module")
def writers() -> Iterator[dict[str, Server]]:
    with Cluster() as cluster:
        found = {name: cluster.create(name) for name in ("w1", "w2")}
        for server in found.values():
            server.query("CREATE ROLE pool20 SUPERUSER LOGIN")
            server.query("CREATE TABLE made(x int)")
        yield found


def test_one_of_several_writers(writers: dict[str, Server], tmp_path: Path) -> None:
    """A transaction there goes on; writes that begin later, and those of its client, go to the other one."""
    settings = merged(
        {**SETTINGS, "rules": {}, "workers": 1},
        {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"port": 0, "users": [CONSOLE_USER]},
            "auth": {"hba": ["host all all 127.0.0.1/32 trust"]},
            "server": {"tls": "disable"},
            "health": {"user": "postgres"},
            "nodes": {name: {"host": "127.0.0.1", "port": w.port, "role": "primary"} for name, w in writers.items()},
            "databases": {"*": {}},
            "users": {"pool20": {"pool_size": 20}, CONSOLE_USER: {}},
            "group": {"multi_writer": True},
        },
    )

    def made() -> list[int]:
        return [server.query("SELECT count(*) FROM made")[0][0] for server in writers.values()]

    insert, inserted = "INSERT INTO made VALUES (1)", "C[INSERT 0 1] Z"
    with Proxy(settings, tmp_path) as proxy:
        wait_until_serving(proxy)
        service = Service(proxy, "postgres", cast(Fleet, None))
        assert eventually(lambda: [row["serving"] for row in nodes(service)] == ["yes"] * 2)
        client, long, other = (service.client(pool=20) for _ in range(3))
        for one in (client, long):
            one.run("BEGIN")
            assert one.query(insert) == f"{inserted}T"
        port = client.value("SELECT current_setting('port')")
        first, second = sorted(writers, key=lambda name: str(writers[name].port) != port)
        service.console(f"DRAIN NODE {first}")
        assert eventually(lambda: f"D[node,{second}]" in other.query(f"EXPLAIN (ROUTE) {insert}"))
        assert other.query(insert) == f"{inserted}I"
        assert client.query(insert) == f"{inserted}T"
        assert client.query("COMMIT") == "C[COMMIT] ZI"
        assert client.query(insert) == f"{inserted}I"
        assert made() == [2, 2]
        console = service.client(user=CONSOLE_USER, database="pgtrident")
        assert console.query(f"DRAIN NODE {second}").endswith("E[55000] ZI")
        service.console(f"DRAIN NODE {first} 0")
        assert end_of(long) == ENDED
        assert eventually(lambda: node(service, first)["drain"] == "drained")
        service.console(f"UNDRAIN NODE {first}")
        assert eventually(lambda: node(service, first)["serving"] == "yes")
        assert made() == [2, 2]
