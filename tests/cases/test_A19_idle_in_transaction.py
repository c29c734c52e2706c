"""A19: clients that sit in open transactions; the server or the proxy ends them, and who gets what error."""

from __future__ import annotations

import time

import pytest

from ..support.rawpg import B, E, P, Q, S, Wire, show
from ..support.target import THROUGH_PROXY, Target

ONE = "T[?column?] D[1] C[SELECT 1] ZI"


def sitters(target: Target, state: str, options: str = "") -> list[Wire]:
    """Two clients that hold both servers of the pool."""
    clients = [target.client(pool=2, options=options) for _ in range(2)]
    for number, client in enumerate(clients):
        client.run("BEGIN", f"INSERT INTO trail(item_id) VALUES ({number})")
        if state == "failed":
            assert client.query("SELECT 1/0") == "E[22012] ZE"
    return clients


@pytest.mark.parametrize("state", ["open", "failed"])
def test_ended_by_the_server(target: Target, state: str) -> None:
    target.compare = False
    one, two = sitters(target, state, options="-c idle_in_transaction_session_timeout=1s")
    three = target.client(pool=2)
    start = time.monotonic()
    assert three.query("SELECT 1") == ONE
    assert time.monotonic() - start < 5
    admin = target.admin()
    while admin.value("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'") != "0":
        assert time.monotonic() - start < 5
    # The silent clients were told, or are at their next statement.
    assert show(one.send(Q("SELECT 1")).until("EOF")) == "E[FATAL 25P03] EOF"
    assert show(two.send(P("", "SELECT 1"), B(), E(), S).until("EOF")) == "E[FATAL 25P03] EOF"
    # Their work is gone, and nothing of them ran outside their transaction.
    assert three.value("SELECT count(*) FROM trail") == "0"
    for _ in range(3):
        assert target.client(pool=2).query("SELECT 1") == ONE


@pytest.mark.settings({"pool": {"idle_in_transaction_timeout": 0.8}})
@pytest.mark.parametrize("state", ["open", "failed"])
@THROUGH_PROXY
def test_ended_by_the_proxy(target: Target, state: str) -> None:
    target.compare = False
    one, two = sitters(target, state)
    three = target.client(pool=2)
    start = time.monotonic()
    assert three.query("SELECT 1") == ONE
    assert time.monotonic() - start < 5
    for client in (one, two):
        replies = client.until("EOF")
        assert show(replies) == "E[FATAL 25P03] EOF"
    assert three.value("SELECT count(*) FROM trail") == "0"
    # A client at work is left alone, and so is an idle one without a transaction.
    busy = target.client(pool=2)
    busy.run("BEGIN")
    assert busy.query("SELECT pg_sleep(1.5)") == "T[pg_sleep] D[] C[SELECT 1] ZT"
    busy.run("COMMIT")
    assert busy.silence(1.5)
    assert busy.query("SELECT 1") == ONE


@THROUGH_PROXY
@pytest.mark.settings({"pool": {"checkout_timeout": 0.6}})
def test_others_wait_within_their_limit(target: Target) -> None:
    target.compare = False
    one, two = sitters(target, "open")
    three = target.client(pool=2)
    start = time.monotonic()
    assert three.query("INSERT INTO trail(item_id) VALUES (9)").startswith(("E[53", "E[57"))
    assert 0.4 < time.monotonic() - start < 3
    one.run("COMMIT")
    assert three.query("INSERT INTO trail(item_id) VALUES (9)") == "C[INSERT 0 1] ZI"
    two.run("ROLLBACK")


def test_terminated_by_an_administrator(target: Target) -> None:
    """FATAL comes while the client is silent in its transaction: it is its own, and the connection is over."""
    target.compare = False
    one, other = target.client(pool=2), target.client(pool=2)
    one.run("BEGIN", "INSERT INTO trail(item_id) VALUES (1)")
    pid = one.value("SELECT pg_backend_pid()")
    assert target.admin().value(f"SELECT pg_terminate_backend({pid}, 5000)") == "t"
    assert show(one.until("EOF")) == "E[FATAL 57P01] EOF"
    assert other.value("SELECT count(*) FROM trail") == "0"


@THROUGH_PROXY
def test_terminated_while_idle_outside_a_transaction(target: Target) -> None:
    """The server is nobody's then: the client is not hurt."""
    target.compare = False
    one = target.client(pool=1)
    for _ in range(3):
        pid = one.value("SELECT pg_backend_pid()")
        assert target.admin().value(f"SELECT pg_terminate_backend({pid}, 5000)") == "t"
        assert one.silence(0.2)
        assert one.query("SELECT 1") == ONE


def test_terminated_while_running(target: Target) -> None:
    target.compare = False
    one, other = target.client(pool=2), target.client(pool=2)
    pid = one.value("SELECT pg_backend_pid()")
    one.send(Q("SELECT pg_backend_pid(), pg_sleep(20)"))
    assert one.silence(0.3)
    admin = target.admin()
    running = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(20)' AND pid <> pg_backend_pid()"
    assert pid is not None
    assert admin.value(f"SELECT pg_terminate_backend(({running}), 5000)") == "t"
    replies = one.until("EOF", timeout=2)
    assert "E[FATAL 57P01]" in show(replies)
    assert other.query("SELECT 1") == ONE
