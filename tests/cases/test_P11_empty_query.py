"""P11: empty statements are statements: EmptyQueryResponse, with the true transaction status."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, D, E, P, Q, S
from ..support.target import Target

EMPTY = ["", ";", " ; ;", "-- x", "/* x */", "\n\t "]


@pytest.mark.parametrize("sql", EMPTY)
def test_simple(target: Target, sql: str) -> None:
    one = target.client()
    assert one.query(sql) == "I ZI"
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert one.query(sql) == "I ZT"
    assert one.query("COMMIT") == "C[COMMIT] ZI"


@pytest.mark.parametrize("sql", EMPTY)
def test_extended(target: Target, sql: str) -> None:
    one = target.client()
    assert one.ask(P("", sql), B(), D("P"), E(), S) == "1 2 n I ZI"
    assert one.ask(P("e", sql), D("S", "e"), S) == "1 t[] n ZI"
    assert one.ask(B("", "e"), E(), S) == "2 I ZI"


def test_in_a_failed_transaction(target: Target) -> None:
    one = target.client()
    one.run("BEGIN", "SAVEPOINT a")
    assert one.query("SELECT 1/0") == "E[22012] ZE"
    assert one.query(";") == "I ZE"
    assert one.query("ROLLBACK TO a") == "C[ROLLBACK] ZT"
    assert one.query("SELECT 1/0") == "E[22012] ZE"
    assert one.ask(P("", ""), B(), D("P"), E(), S) == "1 E[25P02] ZE"
    assert one.query("") == "I ZE"
    assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert one.query("") == "I ZI"


def test_many_in_one_write(target: Target) -> None:
    one = target.client()
    assert one.ask(Q(""), Q("SELECT 1"), Q(";"), P("", ""), B(), E(), S, times=4) == (
        "I ZI T[?column?] D[1] C[SELECT 1] ZI I ZI 1 2 I ZI"
    )
    assert one.query(";;SELECT 1;;SELECT 2;") == ("T[?column?] D[1] C[SELECT 1] T[?column?] D[2] C[SELECT 1] ZI")


def test_drops_the_unnamed_statement(target: Target) -> None:
    one = target.client()
    assert one.ask(P("", "SELECT 1"), S) == "1 ZI"
    assert one.query("") == "I ZI"
    assert one.ask(B(), E(), S) == "E[26000] ZI"


def test_as_a_liveness_probe_while_the_pool_is_full(target: Target) -> None:
    """It may be answered by the proxy itself or wait for a server; it must not fail or upset anything."""
    two, one = target.client(pool=1), target.client(pool=1)
    assert two.query("BEGIN") == "C[BEGIN] ZT"
    one.send(Q(";"))
    assert two.query("COMMIT") == "C[COMMIT] ZI"
    assert one.ask() == "I ZI"
    assert one.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
