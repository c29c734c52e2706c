"""P06: after an error in an extended batch the server reads on to the next Sync and answers nothing,
a simple Query included."""

from __future__ import annotations

import pytest

from ..support.rawpg import COPY_DONE, B, C, D, E, H, P, Q, S, copy_data, copy_fail
from ..support.target import Target

ALIVE = "T[?column?] D[5] C[SELECT 1] ZI"


def test_query_behind_a_failed_parse(target: Target) -> None:
    one = target.client()
    assert one.ask(P("", "SELEC"), Q("SELECT 77"), S) == "E[42601] ZI"
    assert one.silence()
    assert one.query("SELECT 5", timeout=1) == ALIVE


def test_query_behind_a_failed_bind_and_a_late_sync(target: Target) -> None:
    one = target.client()
    one.send(B("", "nope"), E(), Q("RELEASE SAVEPOINT x"))
    assert one.ask(until="E") == "E[26000]"
    assert one.silence()
    assert one.ask(S) == "ZI"
    assert one.query("SELECT 5", timeout=1) == ALIVE


def test_two_batches_in_one_write(target: Target) -> None:
    one = target.client()
    first = (P("", "SELECT 1/0"), B(), E(), P("", "SELECT 2"), B(), E(), S)
    assert one.ask(*first, P("", "SELECT 3"), B(), E(), S, times=2) == "1 E[22012] ZI 1 2 D[3] C[SELECT 1] ZI"
    assert one.query("SELECT 5", timeout=1) == ALIVE


@pytest.mark.parametrize(
    "skipped",
    [
        pytest.param((P("x", "SELECT 1"),), id="parse"),
        pytest.param((B(), E()), id="bind"),
        pytest.param((D("S", "nope"), D("P", "nope")), id="describe"),
        pytest.param((C("S", "nope"), C("P")), id="close"),
        pytest.param((H,), id="flush"),
        pytest.param((Q("SELECT 1"), Q("INSERT INTO trail(item_id) VALUES (77)")), id="queries"),
        pytest.param((Q("BEGIN"),), id="begin"),
        pytest.param((copy_data(b"1\n"), COPY_DONE, copy_fail("no")), id="copy"),
        pytest.param((Q("SET work_mem = '9MB'"),), id="set"),
        pytest.param((Q("DEALLOCATE ALL"),), id="deallocate"),
        pytest.param((Q("LISTEN skipped"),), id="listen"),
    ],
)
@pytest.mark.parametrize("failing", [P("", "SELEC"), B("", "nope"), D("S", "nope"), E("nope")])
def test_whatever_is_skipped_does_nothing(target: Target, failing: bytes, skipped: tuple[bytes, ...]) -> None:
    one = target.client()
    assert one.ask(P("kept", "SELECT 5"), S) == "1 ZI"
    replies = one.send(failing, *skipped, S).until()
    assert [r.kind for r in replies] == ["E", "Z"]
    assert replies[-1].body == b"I"
    assert one.query("SELECT 5", timeout=1) == ALIVE
    assert one.ask(B("", "kept"), E(), S) == "2 D[5] C[SELECT 1] ZI"
    assert one.value("SHOW work_mem") == "4MB"
    assert one.value("SELECT count(*) FROM trail") == "0"
    assert one.query("SELECT * FROM pg_listening_channels()") == "T[pg_listening_channels] C[SELECT 0] ZI"


def test_error_in_a_transaction(target: Target) -> None:
    one = target.client()
    assert one.ask(Q("BEGIN"), P("", "SELEC"), Q("COMMIT"), S, times=2) == "C[BEGIN] ZT E[42601] ZE"
    assert one.query("COMMIT") == "C[ROLLBACK] ZI"
    assert one.query("SELECT 5", timeout=1) == ALIVE


def test_query_inside_a_good_batch_ends_it(target: Target) -> None:
    """A Query in front of the Sync is answered at its place, and with its own ReadyForQuery."""
    one = target.client()
    assert one.ask(P("", "SELECT 1"), B(), E(), Q("SELECT 2"), S, times=2) == (
        "1 2 D[1] C[SELECT 1] T[?column?] D[2] C[SELECT 1] ZI ZI"
    )
    assert one.query("SELECT 5", timeout=1) == ALIVE


def test_many_batches_each_failing(target: Target) -> None:
    one = target.client()
    good, bad = (P("", "SELECT 1"), B(), E(), S), (P("", "SELEC"), B(), E(), S)
    for number in range(20):
        one.send(*(bad if number % 3 == 1 else good))
    for number in range(20):
        assert one.ask() == ("E[42601] ZI" if number % 3 == 1 else "1 2 D[1] C[SELECT 1] ZI")
    assert one.query("SELECT 5", timeout=1) == ALIVE


def test_rows_before_the_error_arrive(target: Target) -> None:
    one = target.client()
    batch = (P("", "SELECT 10 / (3 - n) FROM generate_series(1, 5) n"), B(), E(), S)
    assert one.ask(*batch) == "1 2 D[5] D[10] E[22012] ZI"
    assert one.query("SELECT 10 / (3 - n) FROM generate_series(1, 5) n") == "T[?column?] D[5] D[10] E[22012] ZI"
