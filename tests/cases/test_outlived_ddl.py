"""Prepared statements that outlive DDL, on servers that have not seen their Parse.

PostgreSQL holds a statement to the result and the parameters that it had when it was parsed: it goes on where
they are still the same, and refuses it where they are not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ..support.rawpg import B, C, D, E, H, P, Q, S, Wire, show
from ..support.target import Target

SELECT = "SELECT * FROM shape"
STALE = "cached plan must not change result type"


def shape(target: Target) -> tuple[Wire, Wire]:
    """A client for statements and one for DDL, and a table."""
    one, other = target.client(), target.client()
    assert other.query("CREATE TABLE shape(a int)") == "C[CREATE TABLE] ZI"
    assert other.query("INSERT INTO shape VALUES (1)") == "C[INSERT 0 1] ZI"
    return one, other


@contextmanager
def elsewhere(other: Wire) -> Iterator[None]:
    """The server given back last, which has the statements of the test, is taken meanwhile."""
    assert other.query("BEGIN") == "C[BEGIN] ZT"
    yield
    assert other.query("COMMIT") == "C[COMMIT] ZI"


def test_ddl_that_changes_nothing_for_it(target: Target) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    for number in range(3):
        assert other.query(f"CREATE TABLE unrelated{number}(a int)") == "C[CREATE TABLE] ZI"
        with elsewhere(other):
            for _ in range(2):
                assert one.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZI"
        assert other.query("ALTER TABLE shape SET (fillfactor = 50)") == "C[ALTER TABLE] ZI"
        with elsewhere(other):
            assert one.ask(D("S", "s"), B("p", "s"), D("P", "p"), E("p"), S) == "t[] T[a] 2 T[a] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("name, told", [("s", "statement"), ("s", "portal"), ("", "statement")])
def test_other_columns(target: Target, name: str, told: str) -> None:
    one, other = shape(target)
    if told == "statement":
        assert one.ask(P(name, SELECT), D("S", name), S) == "1 t[] T[a] ZI"
    else:
        assert one.ask(P(name, SELECT), B("", name), D("P"), S) == "1 2 T[a] ZI"
    assert other.query("ALTER TABLE shape ADD b int DEFAULT 2") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        for _ in range(2):
            assert one.ask(B("", name), E(), S) == "E[0A000] ZI"
            assert one.log[-2].fields["M"] == STALE
        assert one.ask(D("S", name), S).removeprefix("t[] ") == "E[0A000] ZI"
        assert one.ask(C("S", name), P(name, SELECT), D("S", name), S) == "3 1 t[] T[a,b] ZI"
        assert one.ask(B("", name), E(), S) == "2 D[1,2] C[SELECT 1] ZI"


def test_the_old_columns_are_back(target: Target) -> None:
    """What was refused is not refused for ever."""
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    assert other.query("ALTER TABLE shape ADD b int") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"
    assert other.query("ALTER TABLE shape DROP b") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        assert one.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("type_", ["bigint", "numeric(10,2)"])
def test_other_type(target: Target, type_: str) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    assert other.query(f"ALTER TABLE shape ALTER a TYPE {type_}") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"


def test_other_modifier(target: Target) -> None:
    one, other = target.client(), target.client()
    assert other.query("CREATE TABLE shape(a numeric(5,1))") == "C[CREATE TABLE] ZI"
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    assert other.query("ALTER TABLE shape ALTER a TYPE numeric(5,2)") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"


def test_described_by_another_client(target: Target) -> None:
    """One client's name is never another shape than what it was told, whoever put the text on the server."""
    one, other = shape(target)
    third = target.client()
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    assert third.ask(P("t", SELECT), S) == "1 ZI"
    assert other.query("ALTER TABLE shape ADD b int DEFAULT 2") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        assert third.ask(B("", "t"), E(), S) == "E[0A000] ZI"
        assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"
        assert third.ask(B("", "t"), E(), S) == "E[0A000] ZI"


def test_inside_a_transaction(target: Target) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), P("i", "SELECT id FROM item"), D("S", "i"), S) == (
        "1 t[] T[a] 1 t[] T[id] ZI"
    )
    assert other.query("ALTER TABLE shape ADD b int") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        assert one.query("BEGIN") == "C[BEGIN] ZT"
        assert one.ask(B("", "i"), E("", 1), S) == "2 D[1] s ZT"
        assert one.ask(B("", "s"), E(), S) == "E[0A000] ZE"
        assert one.ask(B("", "s"), E(), S) == "E[25P02] ZE"
        assert one.ask(B("", "i"), E(), S) == "E[25P02] ZE"
        assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
        assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"


def test_ddl_of_its_own_transaction(target: Target) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    with elsewhere(other):
        assert one.query("BEGIN") == "C[BEGIN] ZT"
        assert one.query("CREATE TABLE unrelated()") == "C[CREATE TABLE] ZT"
        assert one.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZT"
        assert one.query("ALTER TABLE shape ADD b int") == "C[ALTER TABLE] ZT"
        assert one.ask(B("", "s"), E(), S) == "E[0A000] ZE"
        assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
        assert one.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZI"


def test_behind_other_work(target: Target) -> None:
    """What stands before it in the batch is answered, and rolled back with it."""
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    assert other.query("ALTER TABLE shape ADD b int") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        insert = P("", "INSERT INTO trail(item_id) VALUES (1)"), B(), E()
        assert one.ask(*insert, B("", "s"), E(), *insert, S) == "1 2 C[INSERT 0 1] E[0A000] ZI"
        assert one.query("SELECT count(*) FROM trail") == "T[count] D[0] C[SELECT 1] ZI"


def test_several_in_one_batch(target: Target) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), P("t", "SELECT a, $1 FROM shape"), D("S", "t"), S) == (
        "1 t[] T[a] 1 t[25] T[a,?column?] ZI"
    )
    assert other.query("CREATE TABLE unrelated()") == "C[CREATE TABLE] ZI"
    with elsewhere(other):
        assert one.ask(
            B("", "s"), E(), P("new", "SELECT 3"), B("", "t", ["x"]), E(), B("", "new"), E(), C("S", "new"), S
        ) == ("2 D[1] C[SELECT 1] 1 2 D[1,x] C[SELECT 1] 2 D[3] C[SELECT 1] 3 ZI")


@pytest.mark.parametrize("inside", [False, True])
def test_table_is_gone(target: Target, inside: bool) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    assert other.query("DROP TABLE shape") == "C[DROP TABLE] ZI"
    with elsewhere(other):
        if inside:
            assert one.query("BEGIN") == "C[BEGIN] ZT"
        first = P("", "SELECT 5"), B(), E()
        assert one.ask(*first, B("", "s"), E(), S) == f"1 2 D[5] C[SELECT 1] E[42P01] Z{'E' if inside else 'I'}"
        if inside:
            assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert other.query("CREATE TABLE shape(a int)") == "C[CREATE TABLE] ZI"
    with elsewhere(other):
        assert one.ask(B("", "s"), E(), S) == "2 C[SELECT 0] ZI"


@pytest.mark.parametrize("changed", [False, True])
def test_batch_sent_in_parts(target: Target, changed: bool) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    ddl = "ALTER TABLE shape ADD b int" if changed else "CREATE TABLE unrelated()"
    assert other.query(ddl).startswith("C[")
    with elsewhere(other):
        assert show(one.send(P("", "SELECT 5"), B(), E(), H).until("C")) == "1 2 D[5] C[SELECT 1]"
        if changed:
            assert one.ask(B("", "s"), E(), D("S", "s"), S) == "E[0A000] ZI"
        else:
            assert show(one.send(B("", "s"), D("P"), E(), H).until("C")) == "2 T[a] D[1] C[SELECT 1]"
            assert one.ask(D("S", "s"), S) == "t[] T[a] ZI"
        assert show(one.send(B("", "s"), E(), H).until("E" if changed else "C")) == (
            "E[0A000]" if changed else "2 D[1] C[SELECT 1]"
        )
        assert one.ask(P("", "SELECT 6"), B(), E(), S) == ("ZI" if changed else "1 2 D[6] C[SELECT 1] ZI")


@pytest.mark.parametrize("changed", [False, True])
def test_in_a_pipeline(target: Target, changed: bool) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    ddl = "ALTER TABLE shape ADD b int" if changed else "CREATE TABLE unrelated()"
    assert other.query(ddl).startswith("C[")
    good = "2 D[1] C[SELECT 1] ZI"
    with elsewhere(other):
        batch = (B("", "s"), E(), S)
        replies = show(
            one.send(Q("SELECT 7"), *batch, P("", "SELECT 8"), B(), E(), S, *batch, Q("SELECT 9")).until(times=5)
        )
        mine = "E[0A000] ZI" if changed else good
        seven, nine = (f"T[?column?] D[{n}] C[SELECT 1] ZI" for n in (7, 9))
        assert replies == f"{seven} {mine} 1 2 D[8] C[SELECT 1] ZI {mine} {nine}"


@pytest.mark.parametrize("changed", [False, True])
def test_with_a_long_parameter(target: Target, changed: bool) -> None:
    """The Bind is passed on as it comes: not before its statement is known to fit."""
    one, other = shape(target)
    assert one.ask(P("s", "SELECT *, length($1) FROM shape"), D("S", "s"), S) == "1 t[25] T[a,length] ZI"
    ddl = "ALTER TABLE shape ADD b int" if changed else "CREATE TABLE unrelated()"
    assert other.query(ddl).startswith("C[")
    with elsewhere(other):
        expected = "E[0A000] ZI" if changed else "2 D[1,300000] C[SELECT 1] ZI"
        assert one.ask(B("", "s", ["x" * 300_000]), E(), S) == expected
        assert one.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("told", [False, True])
def test_parameters_keep_their_types(target: Target, told: bool) -> None:
    """A client that was told int4 sends four bytes, whatever a Parse would infer by now."""
    one, other = shape(target)
    types = () if told else (23,)
    assert one.ask(P("s", "INSERT INTO shape VALUES ($1)", types), D("S", "s"), S) == "1 t[23] n ZI"
    assert other.query("ALTER TABLE shape ALTER a TYPE text") == "C[ALTER TABLE] ZI"
    with elsewhere(other):
        assert one.ask(B("", "s", [struct.pack("!i", 5)], param_formats=[1]), E(), S) == "2 C[INSERT 0 1] ZI"
        assert one.ask(D("S", "s"), S) == "t[23] n ZI"
    assert other.query("SELECT a FROM shape") == "T[a] D[1] D[5] C[SELECT 2] ZI"


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("ddl", ["CREATE TABLE unrelated()", "ALTER TABLE shape ADD b int", "DROP TABLE shape"])
def test_run_by_sql(target: Target, ddl: str, inside: bool) -> None:
    one, other = shape(target)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == "1 t[] T[a] ZI"
    assert other.query(ddl).startswith("C[")
    good, refused = {
        "CREATE": ("T[a] D[1] C[SELECT 1]", ""),
        "ALTER": ("", "E[0A000]"),
        "DROP": ("", "E[42P01]"),
    }[ddl.split()[0]]
    with elsewhere(other):
        for _ in range(2):
            if inside:
                assert one.query("BEGIN") == "C[BEGIN] ZT"
            status = ("E" if refused else "T") if inside else "I"
            assert one.query("EXECUTE s") == f"{good or refused} Z{status}"
            if inside:
                assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
        assert show(one.send(Q("SELECT 7"), Q("EXECUTE s"), Q("SELECT 8")).until(times=3)) == (
            f"T[?column?] D[7] C[SELECT 1] ZI {good or refused} ZI T[?column?] D[8] C[SELECT 1] ZI"
        )
        assert one.query("DEALLOCATE s") == "C[DEALLOCATE] ZI"
        assert one.ask(B("", "s"), E(), S) == "E[26000] ZI"
