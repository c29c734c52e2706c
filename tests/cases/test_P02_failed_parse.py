"""P02: a statement's name exists from ParseComplete on, and not before."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, C, D, E, P, Q, S
from ..support.target import Target


def test_refused_parse_leaves_no_name(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("r1", "SELEC"), S) == "E[42601] ZI"
    assert one.ask(C("S", "r1"), S) == "3 ZI"
    assert one.ask(P("r1", "SELECT 5"), B("", "r1"), E(), S) == "1 2 D[5] C[SELECT 1] ZI"


def test_retry_without_close_is_no_duplicate(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("r1", "SELEC"), S) == "E[42601] ZI"
    assert one.ask(P("r1", "SELECT 5"), S) == "1 ZI"
    assert one.ask(B("", "r1"), E(), S) == "2 D[5] C[SELECT 1] ZI"


def test_parse_in_a_failed_transaction(target: Target) -> None:
    one = target.client(pool=1)
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert one.query("SELECT 1/0") == "E[22012] ZE"
    assert one.ask(P("z1", "SELECT 1"), S) == "E[25P02] ZE"
    assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert one.ask(B("", "z1"), E(), S) == "E[26000] ZI"
    assert one.ask(P("z1", "SELECT 1"), S) == "1 ZI"


def test_failed_second_parse_leaves_the_first(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("a1", "SELECT 11"), S) == "1 ZI"
    assert one.ask(P("a1", "SELEC"), S) == "E[42601] ZI"
    assert one.ask(B("", "a1"), E(), S) == "2 D[11] C[SELECT 1] ZI"


@pytest.mark.parametrize("wrong, code", [("SELEC", "42601"), ("SELECT * FROM nowhere", "42P01")])
def test_failed_unnamed_parse_drops_the_unnamed(target: Target, wrong: str, code: str) -> None:
    one = target.client(pool=1)
    assert one.ask(P("", "SELECT 1"), S) == "1 ZI"
    assert one.ask(P("", wrong), S) == f"E[{code}] ZI"
    assert one.ask(B(), E(), S) == "E[26000] ZI"
    assert one.ask(D("S"), S) == "E[26000] ZI"


def test_pipeline_with_a_failure_inside(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("g1", "SELECT 21"), P("b1", "SELEC"), P("n1", "SELECT 3"), S) == "1 E[42601] ZI"
    assert one.ask(B("", "g1"), E(), S) == "2 D[21] C[SELECT 1] ZI"
    assert one.ask(B("", "b1"), E(), S) == "E[26000] ZI"
    assert one.ask(B("", "n1"), E(), S) == "E[26000] ZI"
    assert one.ask(P("n1", "SELECT 3"), B("", "n1"), E(), S) == "1 2 D[3] C[SELECT 1] ZI"


def test_close_skipped_behind_a_failure(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("k", "SELECT 1"), S) == "1 ZI"
    assert one.ask(P("", "SELEC"), C("S", "k"), S) == "E[42601] ZI"
    assert one.ask(B("", "k"), E(), S) == "2 D[1] C[SELECT 1] ZI"
    assert one.ask(P("k", "SELECT 2"), S) == "E[42P05] ZI"


def test_close_then_parse_in_one_batch(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("k", "SELECT 1"), S) == "1 ZI"
    assert one.ask(C("S", "k"), P("k", "SELECT 2"), B("", "k"), E(), S) == "3 1 2 D[2] C[SELECT 1] ZI"
    # The close took effect, though the batch failed later.
    assert one.ask(C("S", "k"), P("", "SELEC"), S) == "3 E[42601] ZI"
    assert one.ask(B("", "k"), E(), S) == "E[26000] ZI"


def test_statements_survive_a_rollback(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(Q("BEGIN"), P("kept", "SELECT 7"), S, Q("ROLLBACK"), times=3) == "C[BEGIN] ZT 1 ZT C[ROLLBACK] ZI"
    assert one.ask(B("", "kept"), E(), S) == "2 D[7] C[SELECT 1] ZI"


def test_batch_that_fails_after_parse_keeps_the_name(target: Target) -> None:
    one = target.client(pool=1)
    # The planner meets the division, so that it is the Bind that fails.
    assert one.ask(P("f", "SELECT 1/$1::int"), B("", "f", ["0"]), E(), S) == "1 E[22012] ZI"
    assert one.ask(B("", "f", ["1"]), E(), S) == "2 D[1] C[SELECT 1] ZI"


def test_close_of_unknown_names_succeeds(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(C("S", "never_there"), C("P", "never_there"), S) == "3 3 ZI"
    assert one.ask(C("S"), C("P"), S) == "3 3 ZI"


def test_close_of_the_unnamed(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("", "SELECT 1"), S) == "1 ZI"
    assert one.ask(C("S"), S) == "3 ZI"
    assert one.ask(B(), E(), S) == "E[26000] ZI"
