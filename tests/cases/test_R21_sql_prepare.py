"""R21: PREPARE, EXECUTE and DEALLOCATE as SQL: a name space for each client, shared with the protocol's names."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, C, E, P, Q, S
from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness


def test_class_of_the_inner_statement(target: Target) -> None:
    one = target.client(pool=2)
    assert one.query("PREPARE w(int) AS INSERT INTO trail(item_id) VALUES ($1)") == "C[PREPARE] ZI"
    assert one.query("EXECUTE w(1)") == "C[INSERT 0 1] ZI"
    assert one.query("PREPARE r AS SELECT count(*) FROM item") == "C[PREPARE] ZI"
    assert one.query("EXECUTE r") == "T[count] D[20] C[SELECT 1] ZI"
    assert one.query("CREATE TABLE e2 AS EXECUTE r") == "C[SELECT 1] ZI"
    assert one.query("EXPLAIN (COSTS off) EXECUTE r").startswith("T[QUERY PLAN]")
    assert one.value("SELECT count(*) FROM trail") == "1"


def test_names_are_per_client(target: Target) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    one.run("PREPARE r AS SELECT count(*) FROM item")
    two.run("PREPARE r AS SELECT 'other'")
    for _ in range(3):
        assert two.query("EXECUTE r") == "T[?column?] D[other] C[SELECT 1] ZI"
        assert one.query("EXECUTE r") == "T[count] D[20] C[SELECT 1] ZI"
    three = target.client(pool=3)
    assert three.query("EXECUTE r") == "E[26000] ZI"
    assert two.query("DEALLOCATE r") == "C[DEALLOCATE] ZI"
    assert two.query("EXECUTE r") == "E[26000] ZI"
    assert one.query("EXECUTE r") == "T[count] D[20] C[SELECT 1] ZI"


def test_not_transactional(target: Target) -> None:
    one = target.client(pool=2)
    one.run("BEGIN", "PREPARE keep AS SELECT 42", "ROLLBACK")
    assert one.query("EXECUTE keep") == "T[?column?] D[42] C[SELECT 1] ZI"
    one.run("BEGIN", "DEALLOCATE keep", "ROLLBACK")
    assert one.query("EXECUTE keep") == "E[26000] ZI"


def test_shared_with_the_protocols_names(target: Target) -> None:
    one = target.client(pool=2)
    assert one.ask(P("x", "SELECT $1::int + 1"), S) == "1 ZI"
    assert one.query("EXECUTE x(4)") == "T[?column?] D[5] C[SELECT 1] ZI"
    assert one.query('EXECUTE "x"(5)') == "T[?column?] D[6] C[SELECT 1] ZI"
    assert one.ask(P("", "EXECUTE x(6)"), B(), E(), S) == "1 2 D[7] C[SELECT 1] ZI"
    one.run("PREPARE sp AS SELECT 8")
    assert one.ask(B("", "sp"), E(), S) == "2 D[8] C[SELECT 1] ZI"
    assert one.ask(P("sp", "SELECT 9"), S) == "E[42P05] ZI"


LIST = "SELECT name, statement, from_sql FROM pg_prepared_statements ORDER BY name"
LISTED = "T[name,statement,from_sql] "


def test_pg_prepared_statements_shows_ones_own(target: Target) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert two.ask(P("theirs", "SELECT 2"), B("", "theirs"), E(), S) == "1 2 D[2] C[SELECT 1] ZI"
    assert one.query(LIST) == LISTED + "C[SELECT 0] ZI"
    assert one.ask(P("mine", "SELECT 1"), S) == "1 ZI"
    assert one.query("EXECUTE theirs") == "E[26000] ZI"
    mine = "D[mine,SELECT 1,f] "
    assert one.query(LIST) == LISTED + mine + "C[SELECT 1] ZI"
    assert one.ask(P("mine", "SELECT 3"), S) == "E[42P05] ZI"
    one.run("PREPARE plain AS SELECT 4")
    assert one.query(LIST) == LISTED + mine + "D[plain,PREPARE plain AS SELECT 4,t] C[SELECT 2] ZI"
    assert one.query("EXECUTE mine") == "T[?column?] D[1] C[SELECT 1] ZI"
    assert one.ask(C("S", "mine"), S) == "3 ZI"
    assert one.ask(P("list", LIST), B("", "list"), E(), S) == (
        f"1 2 D[list,{LIST},f] D[plain,PREPARE plain AS SELECT 4,t] C[SELECT 2] ZI"
    )
    one.run("DEALLOCATE plain", "DEALLOCATE list", "PREPARE theirs AS SELECT 5")
    assert one.query(LIST) == LISTED + "D[theirs,PREPARE theirs AS SELECT 5,t] C[SELECT 1] ZI"
    one.run("DISCARD ALL")
    assert one.query(LIST) == LISTED + "C[SELECT 0] ZI"
    assert two.ask(B("", "theirs"), E(), S) == "2 D[2] C[SELECT 1] ZI"


def test_what_was_prepared_before_is_listed(target: Target) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    for client, number in ((one, 1), (two, 2)):
        # The same name for two texts, and two names for the same text.
        assert client.ask(P("a", f"SELECT {number}"), P("b", "SELECT $1::int"), P("c", "SELECT $1::int"), S) == (
            "1 1 1 ZI"
        )
    both = "D[b,SELECT $1::int,f] D[c,SELECT $1::int,f] "
    one.run("BEGIN")
    assert one.query(LIST) == LISTED + "D[a,SELECT 1,f] " + both + "C[SELECT 3] ZT"
    assert two.query(LIST) == LISTED + "D[a,SELECT 2,f] " + both + "C[SELECT 3] ZI"
    assert one.query("SELECT 1/0; " + LIST) == "E[22012] ZE"
    one.run("ROLLBACK")
    assert one.ask(B("", "a"), E(), S) == "2 D[1] C[SELECT 1] ZI"
    assert one.ask(C("S", "b"), P("b", "SELECT 7"), B("", "b"), E(), S) == "3 1 2 D[7] C[SELECT 1] ZI"
    assert one.query("EXECUTE c(8)") == "T[int4] D[8] C[SELECT 1] ZI"


def test_listing_right_behind_a_parse(target: Target) -> None:
    """What is on its way when the list is asked for is on it."""
    one = target.client(pool=2)
    assert one.ask(P("x", "SELECT 1"), S, Q(LIST), times=2) == f"1 ZI {LISTED}D[x,SELECT 1,f] C[SELECT 1] ZI"


def test_a_pipeline_that_lists_and_prepares(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=2)
    count = "SELECT count(*) FROM pg_prepared_statements"
    assert two.ask(P("x", "SELECT 1"), S) == "1 ZI"
    steps = (P("", count), B(), E())
    assert one.ask(*steps, P("x", "SELECT 2"), *steps, S, *steps, S, times=2) == (
        "1 2 D[0] C[SELECT 1] 1 1 2 D[1] C[SELECT 1] ZI 1 2 D[1] C[SELECT 1] ZI"
    )


@pytest.mark.parametrize("sql", ["EXECUTE nope", "EXECUTE nope(1)", "DEALLOCATE nope"])
def test_unknown(target: Target, sql: str) -> None:
    one = target.client(pool=2)
    assert one.query(sql) == "E[26000] ZI"
    assert one.ask(Q("BEGIN"), Q(sql), Q("ROLLBACK"), times=3) == "C[BEGIN] ZT E[26000] ZE C[ROLLBACK] ZI"


def test_in_strings_of_several_statements(target: Target) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert one.query("PREPARE a AS SELECT 1; EXECUTE a; PREPARE b AS SELECT 2; EXECUTE b") == (
        "C[PREPARE] T[?column?] D[1] C[SELECT 1] C[PREPARE] T[?column?] D[2] C[SELECT 1] ZI"
    )
    assert two.query("EXECUTE a") == "E[26000] ZI"
    assert one.query("EXECUTE b; DEALLOCATE a; EXECUTE a") == ("T[?column?] D[2] C[SELECT 1] C[DEALLOCATE] E[26000] ZI")
    assert one.query("EXECUTE b") == "T[?column?] D[2] C[SELECT 1] ZI"
    assert one.query("PREPARE c AS SELECT 3; SELECT 1/0") == "C[PREPARE] E[22012] ZI"
    assert one.query("EXECUTE c") == "T[?column?] D[3] C[SELECT 1] ZI"


@ON_POSTGRES_AND_SPLIT
def test_no_replica_is_asked_to_write(target: Target, witness: Witness) -> None:
    """A standby would take the PREPARE, and refuse the EXECUTE."""
    one = target.client(pool=2)
    one.run("PREPARE w(int) AS INSERT INTO trail(item_id) VALUES ($1)", "PREPARE r AS SELECT count(*) FROM item")
    for number, form in enumerate(FORMS):
        assert witness.on_primary(one, "EXECUTE w(1)", form).endswith("C[INSERT 0 1] ZI")
        assert witness.on_primary(one, f"CREATE TABLE e{number} AS EXECUTE r", form).endswith("C[SELECT 1] ZI")
        assert "D[20]" in witness.on_one(one, "EXECUTE r", form)
    assert one.value("SELECT count(*) FROM trail") == "2"
