"""P07: no server becomes free in time: one error at the client's place in the protocol, and one
ReadyForQuery when PostgreSQL would send it."""

from __future__ import annotations

import time

import pytest

from ..support.rawpg import B, C, D, E, H, P, Q, S, Wire
from ..support.target import THROUGH_PROXY, Target

TIMEOUT = 0.6
ON_PRIMARY = "SELECT 1 FOR UPDATE"
"""No replica answers it, however fresh."""
WITH_TIMEOUT = pytest.mark.settings({"pool": {"checkout_timeout": TIMEOUT}})


def holder(target: Target) -> Wire:
    """A client in a transaction on the only server."""
    two = target.client(pool=1)
    assert two.query("BEGIN") == "C[BEGIN] ZT"
    return two


def checked(error: str) -> str:
    """The codes that fit: 53xxx for want of a connection, 57xxx for a time-out."""
    assert error.startswith(("E[53", "E[57")), error
    return error


@WITH_TIMEOUT
@THROUGH_PROXY
def test_extended_batch_in_pieces(target: Target) -> None:
    one = target.client(pool=1)
    two = holder(target)
    one.send(P("", ON_PRIMARY))
    time.sleep(TIMEOUT * 1.5)
    one.send(B(), D("P"), E())
    time.sleep(TIMEOUT * 1.5)
    # The error may come when the time is over or at the Sync; nothing else may.
    replies = one.send(S).until()
    assert [r.kind for r in replies] == ["E", "Z"]
    checked(str(replies[0]))
    assert "server" in replies[0].fields["M"] or "connection" in replies[0].fields["M"]
    assert replies[1].body == b"I"
    assert one.silence()
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert one.ask(P("", "SELECT 8"), B(), E(), S) == "1 2 D[8] C[SELECT 1] ZI"


@WITH_TIMEOUT
@THROUGH_PROXY
def test_error_without_sync_waits_for_it(target: Target) -> None:
    """After a Flush the server is wanted at once; the ReadyForQuery still waits for the Sync."""
    one = target.client(pool=1)
    two = holder(target)
    one.send(P("", ON_PRIMARY), B(), D("P"), E(), H)
    checked(one.ask(until="E", timeout=TIMEOUT * 5))
    assert one.silence()
    one.send(P("", "SELECT 2"), B(), E(), Q("SELECT 3"), H)
    assert one.silence()
    assert one.ask(S) == "ZI"
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert one.ask(P("", "SELECT 8"), B(), E(), S) == "1 2 D[8] C[SELECT 1] ZI"


@WITH_TIMEOUT
@THROUGH_PROXY
@pytest.mark.parametrize("sql", ["SELECT count(*) FROM trail FOR UPDATE", "BEGIN", "SET work_mem = '9MB'; SELECT 1"])
def test_simple_query(target: Target, sql: str) -> None:
    one = target.client(pool=1)
    two = holder(target)
    start = time.monotonic()
    replies = one.send(Q(sql)).until()
    assert [r.kind for r in replies] == ["E", "Z"]
    checked(str(replies[0]))
    assert replies[1].body == b"I"
    assert TIMEOUT * 0.8 < time.monotonic() - start < TIMEOUT * 5
    assert one.silence()
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert one.query("SELECT 8") == "T[?column?] D[8] C[SELECT 1] ZI"
    assert one.value("SHOW work_mem") == "4MB"


@WITH_TIMEOUT
@THROUGH_PROXY
def test_pipelined_batches(target: Target) -> None:
    """Each batch gets its own error; the ones that come after the server is free run."""
    one = target.client(pool=1)
    two = holder(target)
    batch = P("", "INSERT INTO trail(item_id) VALUES (1) RETURNING 8"), B(), E(), S
    one.send(*batch, *batch)
    for _ in range(2):
        replies = one.until(timeout=TIMEOUT * 5)
        assert [r.kind for r in replies] == ["E", "Z"]
        checked(str(replies[0]))
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert one.ask(*batch) == "1 2 D[8] C[INSERT 0 1] ZI"
    assert one.value("SELECT count(*) FROM trail") == "1"


@WITH_TIMEOUT
@THROUGH_PROXY
def test_names_in_a_batch_that_got_no_server(target: Target) -> None:
    """Nothing of it happened: its Parse made no name, its Close took none."""
    one = target.client(pool=1)
    assert one.ask(P("kept", "SELECT 7"), S) == "1 ZI"
    two = holder(target)
    replies = one.send(P("lost", ON_PRIMARY), C("S", "kept"), B("", "lost"), E(), S).until(timeout=TIMEOUT * 5)
    assert [r.kind for r in replies] == ["E", "Z"]
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert one.ask(B("", "kept"), E(), S) == "2 D[7] C[SELECT 1] ZI"
    assert one.ask(B("", "lost"), E(), S) == "E[26000] ZI"
    assert one.ask(P("lost", "SELECT 2"), S) == "1 ZI"


@WITH_TIMEOUT
@THROUGH_PROXY
def test_server_that_comes_in_time(target: Target) -> None:
    one = target.client(pool=1)
    two = holder(target)
    one.send(P("", "SELECT 8"), B(), E(), S)
    time.sleep(TIMEOUT / 3)
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert one.ask() == "1 2 D[8] C[SELECT 1] ZI"


@pytest.mark.settings({"pool": {"max_waiting": 1, "checkout_timeout": 5.0}})
@THROUGH_PROXY
def test_full_queue_refuses_at_once(target: Target) -> None:
    one, three = target.client(pool=1), target.client(pool=1)
    two = holder(target)
    one.send(Q("INSERT INTO trail(item_id) VALUES (1)"))
    assert one.silence()
    start = time.monotonic()
    replies = three.send(Q("INSERT INTO trail(item_id) VALUES (2)")).until()
    assert time.monotonic() - start < 1
    assert [r.kind for r in replies] == ["E", "Z"]
    checked(str(replies[0]))
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert one.ask() == "C[INSERT 0 1] ZI"
    assert three.query("SELECT count(*) FROM trail FOR UPDATE").startswith("E[0A000]")
    assert three.value("SELECT count(*) FROM trail") == "1"


@WITH_TIMEOUT
@THROUGH_PROXY
def test_waiter_that_left(target: Target) -> None:
    """A waiting client that goes away never takes the server, and its statement never runs."""
    one, three = target.client(pool=1), target.client(pool=1)
    two = holder(target)
    one.send(Q("INSERT INTO trail(item_id) VALUES (99)"))
    one.close()
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert three.value("SELECT count(*) FROM trail WHERE item_id = 99") == "0"
