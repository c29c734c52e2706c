"""Session and statement pooling: when a server goes back, and in what state."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, E, P, Q, S, X, show
from .conftest import Serve, Service, backend, eventually

ONE = "T[?column?] D[1] C[SELECT 1] ZI"
MODES = {
    "users": {
        "pool1": {"pool_mode": "session"},
        "pool2": {"pool_mode": "session"},
        "pool3": {"pool_mode": "statement"},
    }
}


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(MODES)


def test_modes_as_the_console_shows_them(service: Service) -> None:
    for size in (1, 3, 5):
        service.client(pool=size).run("SELECT 1")
    shown = {row["user"]: row["pool_mode"] for row in service.console("SHOW POOLS")}
    assert (shown["pool1"], shown["pool3"], shown["pool5"]) == ("session", "statement", "transaction")


def test_a_session_keeps_its_server(service: Service) -> None:
    one, two = service.client(pool=2), service.client(pool=2)
    pids = [backend(one), backend(two)]
    assert pids[0] != pids[1]
    for _ in range(3):
        assert [backend(one), backend(two)] == pids
    one.run("SET work_mem = '7MB'", "CREATE TEMP TABLE t(a int)", "SELECT pg_advisory_lock(7)", "PREPARE p AS SELECT 5")
    one.run("SELECT nextval('ticket')")
    assert one.value("SHOW work_mem") == "7MB"
    assert one.value("EXECUTE p") == "5"
    assert one.value("SELECT currval('ticket')") == "1"
    assert one.ask(P("n", "SELECT 6"), B("", "n"), E(), S) == "1 2 D[6] C[SELECT 1] ZI"
    assert one.value("SELECT count(*) FROM t") == "0"
    assert two.value("SHOW work_mem") == "4MB"


def test_a_session_that_leaves_makes_room(service: Service) -> None:
    """The next one waits until then, and meets none of what was left."""
    one = service.client(pool=1, work_mem="6MB")
    one.run("SET work_mem = '7MB'", "CREATE TEMP TABLE item(a int)", "SELECT pg_advisory_lock(7)", "LISTEN jobs")
    one.run("PREPARE p AS SELECT 5", "SET app.tenant = 'a'", "BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT 1")
    one.run("COMMIT", "BEGIN", "INSERT INTO trail(item_id) VALUES (1)")
    two = service.client(pool=1)
    two.send(Q("SELECT 1"))
    assert two.silence(0.3)
    one.close()
    assert show(two.until()) == ONE
    assert two.value("SHOW work_mem") == "4MB"
    assert two.value("SELECT count(*) FROM item") == "20"
    assert two.value("SELECT current_setting('app.tenant', true)") in (None, "")
    assert two.query("EXECUTE p") == "E[26000] ZI"
    assert two.query("FETCH 1 FROM c") == "E[34000] ZI"
    assert two.value("SELECT count(*) FROM pg_listening_channels()") == "0"
    assert two.value("SELECT count(*) FROM trail") == "0"
    assert service.admin.value("SELECT pg_try_advisory_lock(7)") == "t"
    service.admin.run("SELECT pg_advisory_unlock(7)")


@pytest.mark.parametrize("how", ["close", "reset", "terminate"])
def test_a_session_that_leaves_in_the_middle(service: Service, how: str) -> None:
    one = service.client(pool=1)
    one.run("SET work_mem = '7MB'", "BEGIN")
    one.send(Q("SELECT pg_sleep(20)"))
    assert eventually(
        lambda: (
            service.admin.value(
                f"SELECT state FROM pg_stat_activity WHERE datname = '{service.database}' AND usename = 'pool1'"
            )
            == "active"
        )
    )
    match how:
        case "close":
            one.close()
        case "reset":
            one.reset()
        case _:
            one.send(X)
            one.close()
    two = service.client(pool=1)
    assert two.query("SHOW work_mem", timeout=8) == "T[work_mem] D[4MB] C[SHOW] ZI"


def test_a_statement_at_a_time(service: Service) -> None:
    """In statement mode no transaction block is allowed; a single statement, or a string of several, is."""
    one = service.client(pool=3)
    assert one.query("INSERT INTO trail(item_id) VALUES (1)") == "C[INSERT 0 1] ZI"
    assert one.query("INSERT INTO trail(item_id) VALUES (2); SELECT 1").endswith("D[1] C[SELECT 1] ZI")
    assert one.ask(P("s", "SELECT $1::int"), B("", "s", ["4"]), E(), S) == "1 2 D[4] C[SELECT 1] ZI"
    assert one.query("SELECT 1/0") == "E[22012] ZI"
    # A server is free between two statements.
    others = [service.client(pool=3) for _ in range(6)]
    for other in others:
        assert other.query("SELECT 1") == ONE


@pytest.mark.parametrize("begin", ["BEGIN", "START TRANSACTION READ ONLY", "BEGIN; INSERT INTO trail VALUES (1)"])
def test_no_transactions_in_statement_mode(service: Service, begin: str) -> None:
    one = service.client(pool=3)
    replies = one.send(Q(begin)).until("EOF")
    assert "E[FATAL" in show(replies), show(replies)
    assert replies[-1].kind == "EOF"
    two = service.client(pool=3)
    assert two.value("SELECT count(*) FROM trail") == "0"
    for _ in range(5):
        assert service.client(pool=3).query("SELECT 1") == ONE
