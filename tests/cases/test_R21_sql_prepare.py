"""R21: PREPARE, EXECUTE and DEALLOCATE as SQL: a name space for each client, shared with the protocol's names."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, E, P, Q, S
from ..support.target import Target


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


def test_pg_prepared_statements_shows_ones_own_names(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    assert one.ask(P("mine", "SELECT 1"), S) == "1 ZI"
    assert two.ask(P("theirs", "SELECT 2"), S) == "1 ZI"
    target.compare = False
    assert one.query("EXECUTE theirs") == "E[26000] ZI"
    assert one.query("EXECUTE mine") == "T[?column?] D[1] C[SELECT 1] ZI"


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
