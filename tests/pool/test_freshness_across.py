"""Consistency over several workers: what a read is sure to see at each level, with copies that stand still."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from proxy.routing.consistency import MOVE_WAIT

from ..conftest import base_settings, wait_until_serving
from ..support.fleet import Fleet
from ..support.proxy import Proxy, merged
from ..support.rawpg import B, E, P, Q, S, Wire, show
from .conftest import Serve, Service, eventually

ROUTING = {"read_split": True, "catalogue_interval": 0.5}
"""Tables are made by the way here."""
SETTINGS = {"workers": 2, "routing": ROUTING, "lag": {"replica_out": 60, "replica_in": 30}}
"""Copies that stand still stay in use here."""
MARK = "/* seen */ SELECT count(*) FROM written"


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(SETTINGS)


def one_of_each_worker(service: Service, **params: str) -> tuple[Wire, Wire]:
    first = service.client(pool=20, **params)
    home = service.shown(first)["worker"]
    for _ in range(8):
        second = service.client(pool=20, **params)
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


LEVELS = {
    "key": {"pgtrident__consistency_key": "user:42"},
    "key in options": {"options": "-c pgtrident.consistency_key=user:42"},
    "global": {"pgtrident__consistency": "global"},
}


def seen(marker: str) -> str:
    return MARK.replace("seen", marker)


def on_copies(service: Service, client: Wire, marker: str, table: str = "written") -> bool:
    """Whether copies answer this client when it reads that table, in the end: a new one has to be in the catalogue."""
    numbers = iter(range(10_000))

    def on_copy() -> bool:
        mark = f"/* {marker} {next(numbers)} */"
        client.query(f"SELECT count(*) FROM {table} {mark}")
        return bool(service.reached(mark) - {"primary"})

    return eventually(on_copy, 10)


@pytest.fixture
def written(service: Service, fleet: Fleet) -> Service:
    service.admin.run("CREATE TABLE written(a int)")
    service.admin.run(
        "CREATE FUNCTION writes(a int) RETURNS int LANGUAGE sql AS 'INSERT INTO written VALUES (a) RETURNING a'"
    )
    fleet.caught_up()
    return service


@pytest.mark.parametrize("level, how", [*((level, "insert") for level in LEVELS), *(("key", how) for how in WRITES)])
def test_a_read_in_another_worker_sees_the_write(written: Service, fleet: Fleet, level: str, how: str) -> None:
    writer, reader = one_of_each_worker(written, **LEVELS[level])
    # The copies are in use, and would answer.
    assert on_copies(written, reader, "before")
    with fleet.paused():
        for number in range(1, 6):
            for statement in WRITES[how]:
                writer.query(statement.replace("%d", str(number)))
            assert reader.value(MARK) == str(number)
            assert writer.value(MARK) == str(number)
    # Once they have caught up they serve again.
    fleet.caught_up()
    assert on_copies(written, reader, "after")
    assert reader.value(MARK) == "5"


def test_another_session_and_another_key_may_read_what_was(written: Service, fleet: Fleet) -> None:
    """Or a copy that stands still would keep everybody on the primary: without a level that asks for more, this is
    what tells that the copies really answer."""
    writer, reader = one_of_each_worker(written, pgtrident__consistency_key="user:42")
    others = [written.client(pool=20), written.client(pool=20, pgtrident__consistency_key="user:43")]
    assert all(on_copies(written, client, f"before {n}") for n, client in enumerate((reader, *others)))
    with fleet.paused():
        writer.query("INSERT INTO written VALUES (1)")
        assert [client.value(MARK) for client in others] == ["0", "0"]
        assert reader.value(MARK) == "1"
        # The same level for a session that asks for it later; and less for one that asks for less.
        others[0].query("SET pgtrident.consistency = 'global'")
        assert others[0].value(MARK) == "1"
        others[0].query("RESET pgtrident.consistency")
        writer.query("SET pgtrident.consistency TO strong")
        assert writer.value(seen("strong")) == "1"
        assert written.reached(seen("strong")) == {"primary"}
        writer.query("SET pgtrident.consistency = 'eventual'")
        assert writer.value(MARK) == "0"
        writer.query("RESET ALL")
        assert writer.value(MARK) == "1"


def test_a_session_never_goes_back(written: Service, fleet: Fleet) -> None:
    """What it has read on one copy is not unread on another, nor what it has read on the primary on a copy."""
    client = written.client(pool=20)
    assert on_copies(written, client, "before")
    first, second = fleet.replicas
    second.query("SELECT pg_wal_replay_pause()")
    try:
        written.admin.run("INSERT INTO written VALUES (1)")
        fleet.primary.query("SELECT 1")
        assert eventually(lambda: first.query("SELECT count(*) FROM written", dbname=written.database) == [(1,)])
        last = 0
        for _ in range(60):
            now = int(client.value(MARK) or 0)
            assert now >= last
            last = now
        assert eventually(lambda: client.value(MARK) == "1")
        assert {client.value(MARK) for _ in range(60)} == {"1"}
    finally:
        second.query("SELECT pg_wal_replay_resume()")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("extended", [False, True])
def test_a_read_behind_another_sees_what_came_before_it(
    written: Service, fleet: Fleet, level: str, extended: bool
) -> None:
    """A write that ends while the first of two reads is under way on a copy."""
    writer, reader = one_of_each_worker(written, **LEVELS[level])
    assert on_copies(written, reader, "before")
    # It is under way until it is read.
    reader.send(Q("/* large */ SELECT repeat('x', 1000000) FROM generate_series(1, 50)"))
    assert reader.until("D")[-1].kind == "D"
    assert written.reached("/* large */") - {"primary"}
    with fleet.paused():
        writer.query("INSERT INTO written VALUES (1)")
        read = "SELECT a FROM written"
        reader.send(*(P("", read), B(), E(), S) if extended else (Q(read),))
        reader.until()
        assert "D[1]" in show(reader.until())


def test_a_wait_in_vain_is_not_repeated(written: Service, fleet: Fleet) -> None:
    """What it has seen on the primary no copy will hold soon: its reads don't wait for that one by one."""
    client = written.client(pool=20)
    assert on_copies(written, client, "before")
    with fleet.paused():
        written.admin.run("INSERT INTO written VALUES (1)")
        client.query("SET work_mem = '5MB'")  # there
        began = time.monotonic()
        for _ in range(40):
            assert client.value(MARK) == "1"
        assert time.monotonic() - began < 40 * MOVE_WAIT / 2


def test_a_token_is_handed_on(written: Service, fleet: Fleet) -> None:
    writer, reader = one_of_each_worker(written)
    assert on_copies(written, reader, "before")
    with fleet.paused():
        writer.query("INSERT INTO written VALUES (1)")
        token = writer.value("SHOW pgtrident.token")
        assert token
        assert reader.value(MARK) == "0"
        reader.query(f"SET pgtrident.token = '{token}'")
        assert reader.value(MARK) == "1"
        # Also by the extended protocol, and where it is only read.
        assert reader.value("SELECT current_setting('pgtrident.consistency')") == "session"
        assert reader.ask(P("", "SHOW pgtrident.consistency"), B(), E(), S) == "1 2 D[session] C[SHOW] ZI"
        # One of another timeline: all that is committed by now.
        other = written.client(pool=20)
        other.query("SET pgtrident.token = '77:0/0'")
        assert other.value(MARK) == "1"


def test_what_one_session_asks_for_is_not_shown_to_another(written: Service) -> None:
    first, second = written.client(pool=1), written.client(pool=1)
    first.query("SET pgtrident.consistency_key = 'secret'")
    assert first.value("SHOW pgtrident.consistency_key") == "secret"
    assert second.value("SHOW pgtrident.consistency_key") == ""
    assert first.value("SHOW pgtrident.consistency_key") == "secret"


def test_a_copy_beyond_its_lag_limit_is_out(serve: Serve, fleet: Fleet) -> None:
    service = serve({"routing": {"read_split": True, "consistency": "eventual"}}, own=True)
    _, second = fleet.replicas
    client = service.client(pool=20)
    mark = "/* lag */ SELECT count(*) FROM item"
    assert eventually(lambda: client.query(mark) and service.reached(mark) >= {"replica1", "replica2"}, 10)
    second.query("SELECT pg_wal_replay_pause()")
    try:
        service.admin.run("CREATE TABLE more(a int)")
        assert service.proxy.wait_for("copy_out")["node"] == "replica2"
        row = next(row for row in service.console("SHOW NODES") if row["name"] == "replica2")
        assert int(row["lag_bytes"] or 0) > 0
        before = second.query("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", service.database)
        for _ in range(50):
            client.query(mark)
        assert second.query("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", service.database) == before
    finally:
        second.query("SELECT pg_wal_replay_resume()")
    assert service.proxy.wait_for("copy_in", node="replica2", weight=10)


def test_a_worker_that_dies_takes_no_write_along(serve: Serve, fleet: Fleet) -> None:
    """What was written under a key is remembered on the board."""
    service = serve({"workers": 2, "routing": ROUTING}, own=True)
    service.admin.run("CREATE TABLE written(a int)")
    fleet.caught_up()
    writer, reader = one_of_each_worker(service, pgtrident__consistency_key="k")
    assert on_copies(service, reader, "before")
    index = int(service.shown(writer)["worker"] or 0)
    with fleet.paused():
        writer.query("INSERT INTO written VALUES (1)")
        os.kill(int(service.proxy.wait_for("worker_started", worker=index)["pid"]), signal.SIGKILL)
        assert writer.until("EOF")[-1].kind == "EOF"
        for _ in range(4):
            assert reader.value(MARK) == "1"
            assert service.client(pool=20, pgtrident__consistency_key="k").value(MARK) == "1"


def test_a_read_waits_for_a_copy_as_long_as_it_may(serve: Serve, fleet: Fleet) -> None:
    """`causal_wait`: it is answered by a copy that catches up meanwhile, and else by the primary."""
    service = serve({"routing": {**ROUTING, "causal_wait": 20}, "lag": {"replica_out": 60, "replica_in": 30}}, own=True)
    client = service.client(pool=20)
    assert on_copies(service, client, "before", "item")
    with fleet.paused():
        client.query("INSERT INTO trail(item_id) VALUES (1)")
        client.send(Q("SELECT count(*) > 0 FROM trail -- waits"))
        assert eventually(lambda: service.shown(client)["state"] != "active")
        assert not service.reached("-- waits")
    assert [reply.values for reply in client.until() if reply.kind == "D"] == [[b"t"]]
    assert service.reached("-- waits") - {"primary"}


def process_of(service: Service, module: str) -> int:
    """The first process of the proxy that runs this module."""
    pids = service.proxy.processes()
    return next(pid for pid in pids if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.mark.full
@pytest.mark.parametrize("pooled", [True, False])
def test_a_replica_that_goes_back_while_the_controller_is_stuck(tmp_path: Path, pooled: bool) -> None:
    """Restarted after a crash, it goes on before where it was; workers see that for themselves."""
    with Fleet() as fleet:
        pool = {"idle_timeout": 600 if pooled else 1}
        settings = merged(
            base_settings(fleet), {**SETTINGS, "workers": 1, "pool": pool, "nodes": {"replica2": {"port": 1}}}
        )
        with Proxy(settings, tmp_path) as proxy:
            service = Service(proxy, fleet.take_database(), fleet)
            wait_until_serving(proxy)
            replica = fleet.replicas[0]
            replica.query("CHECKPOINT")  # from here it goes on
            service.admin.run("CREATE TABLE written(a int)", "INSERT INTO written VALUES (1)")
            fleet.caught_up()
            clients = [service.client(pool=20) for _ in range(4)]
            assert all(on_copies(service, client, f"before {n}") for n, client in enumerate(clients))
            assert [client.value(MARK) for client in clients] == ["1"] * 4
            controller = process_of(service, "run_controller")
            os.kill(controller, signal.SIGSTOP)
            try:
                used = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'pool20'"
                assert pooled or eventually(lambda: replica.query(used) == [(0,)], 10)
                replica.configure({"recovery_min_apply_delay": "1h"})
                replica.kill()
                replica.start()
                assert replica.query("SELECT to_regclass('written')", dbname=service.database) == [(None,)]
                for _ in range(20):
                    assert [client.value(MARK) for client in clients] == ["1"] * 4
            finally:
                os.kill(controller, signal.SIGCONT)
