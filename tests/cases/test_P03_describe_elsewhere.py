"""P03: a Describe on its own, on a server that has not seen the Parse."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, D, E, P, S
from ..support.target import Target

SELECT = "SELECT id, label FROM item WHERE id = $1"


def test_describe_on_another_server(target: Target) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert one.ask(P("m1", SELECT), S) == "1 ZI"
    # Takes the server that has the statement.
    assert two.query("BEGIN") == "C[BEGIN] ZT"
    assert two.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZT"
    assert one.ask(D("S", "m1"), S) == "t[23] T[id,label] ZI"
    assert one.ask(B("", "m1", ["3"]), D("P"), E(), S) == "2 T[id,label] D[3,item3] C[SELECT 1] ZI"
    assert two.query("COMMIT") == "C[COMMIT] ZI"


def test_no_data(target: Target) -> None:
    one = target.client(pool=2)
    assert one.ask(P("i1", "INSERT INTO trail(item_id) VALUES ($1)"), D("S", "i1"), S) == "1 t[23] n ZI"
    assert one.ask(D("S", "i1"), S) == "t[23] n ZI"
    assert one.ask(P("i2", "INSERT INTO trail(item_id) VALUES ($1) RETURNING id"), D("S", "i2"), S) == (
        "1 t[23] T[id] ZI"
    )


def test_unknown_name(target: Target) -> None:
    one = target.client(pool=2)
    assert one.ask(D("S", "nope"), S) == "E[26000] ZI"
    assert one.ask(D("P", "nope"), S) == "E[34000] ZI"
    assert one.ask(B("", "nope"), E(), S) == "E[26000] ZI"
    assert one.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


def test_several_in_one_batch(target: Target) -> None:
    """Every hidden Parse stands at its own place."""
    one, two = target.client(pool=2), target.client(pool=2)
    for name in ("a", "b", "c"):
        assert one.ask(P(name, f"SELECT '{name}', $1::int"), S) == "1 ZI"
    assert two.query("BEGIN") == "C[BEGIN] ZT"
    assert one.ask(D("S", "a"), B("", "b", ["1"]), E(), D("S", "nope"), D("S", "c"), S) == (
        "t[23] T[?column?,int4] 2 D[b,1] C[SELECT 1] E[26000] ZI"
    )
    assert one.ask(B("p", "c", ["2"]), D("P", "p"), E("p"), D("S", "b"), S) == (
        "2 T[?column?,int4] D[c,2] C[SELECT 1] t[23] T[?column?,int4] ZI"
    )
    assert two.query("COMMIT") == "C[COMMIT] ZI"


@pytest.mark.parametrize("use", ["describe", "bind"])
def test_hidden_parse_fails(target: Target, use: str) -> None:
    """The table went away: one error, in place of the reply to the client's message. A server that has the
    statement describes its parameters first."""
    target.compare = False
    one, two = target.client(pool=2), target.client(pool=2)
    assert one.query("CREATE TABLE fleeting(a int)") == "C[CREATE TABLE] ZI"
    assert one.ask(P("f", "SELECT a FROM fleeting"), S) == "1 ZI"
    assert two.query("BEGIN") == "C[BEGIN] ZT"
    assert one.query("DROP TABLE fleeting") == "C[DROP TABLE] ZI"
    batch = (D("S", "f"), S) if use == "describe" else (B("", "f"), E(), S)
    assert one.ask(*batch).removeprefix("t[] ") == "E[42P01] ZI"
    # The name is still there: once the table is back the statement works.
    assert one.query("CREATE TABLE fleeting(a int)") == "C[CREATE TABLE] ZI"
    assert one.ask(B("", "f"), D("P"), E(), S) == "2 T[a] C[SELECT 0] ZI"
    assert two.query("COMMIT") == "C[COMMIT] ZI"


def test_describe_inside_a_transaction(target: Target) -> None:
    one = target.client(pool=2)
    assert one.ask(P("m1", SELECT), S) == "1 ZI"
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert one.ask(D("S", "m1"), S) == "t[23] T[id,label] ZT"
    assert one.ask(D("S", "nope"), S) == "E[26000] ZE"
    assert one.ask(D("S", "m1"), S) == "E[25P02] ZE"
    assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert one.ask(D("S", "m1"), S) == "t[23] T[id,label] ZI"


def test_result_type_changes(target: Target) -> None:
    """After DDL the plan's type is another: PostgreSQL's own error, never a wrong description."""
    one = target.client(pool=1)
    assert one.query("CREATE TABLE shape(a int)") == "C[CREATE TABLE] ZI"
    assert one.ask(P("w", "SELECT * FROM shape"), D("S", "w"), S) == "1 t[] T[a] ZI"
    assert one.query("ALTER TABLE shape ADD b int") == "C[ALTER TABLE] ZI"
    target.compare = False
    if target.pooled:
        # A shared statement may be prepared anew, so that the client sees no fault at all.
        assert one.ask(B("", "w"), E(), S) in ("2 C[SELECT 0] ZI", "E[0A000] ZI")
    else:
        assert one.ask(B("", "w"), E(), S) == "E[0A000] ZI"
    assert one.ask(P("w2", "SELECT * FROM shape"), D("S", "w2"), S) == "1 t[] T[a,b] ZI"
