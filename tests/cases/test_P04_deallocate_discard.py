"""P04: DEALLOCATE and DISCARD as SQL act on the client's own names, when the server says so."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, D, E, P, Q, S
from ..support.target import Target


@pytest.mark.parametrize("how", ["simple", "extended"])
@pytest.mark.parametrize("sql, tag", [("DEALLOCATE ALL", "DEALLOCATE ALL"), ("DISCARD ALL", "DISCARD ALL")])
def test_all_means_the_clients_own(target: Target, sql: str, tag: str, how: str) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    assert one.ask(P("s1", "SELECT 1"), S) == "1 ZI"
    assert two.ask(P("q1", "SELECT 2"), S) == "1 ZI"
    if how == "simple":
        assert one.query(sql) == f"C[{tag}] ZI"
    else:
        assert one.ask(P("", sql), B(), E(), S) == f"1 2 C[{tag}] ZI"
    assert two.ask(B("", "q1"), E(), S) == "2 D[2] C[SELECT 1] ZI"
    assert one.ask(B("", "s1"), E(), S) == "E[26000] ZI"
    assert one.ask(P("s1", "SELECT 9"), B("", "s1"), E(), S) == "1 2 D[9] C[SELECT 1] ZI"
    assert two.ask(B("", "q1"), E(), S) == "2 D[2] C[SELECT 1] ZI"


@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "deallocate prepare all", "DISCARD ALL"])
def test_parsed_behind_it_in_one_batch_stays(target: Target, sql: str) -> None:
    one = target.client(pool=1)
    assert one.ask(P("n0", "SELECT 0"), S) == "1 ZI"
    tag = sql.upper().replace(" PREPARE", "")
    assert one.ask(P("", sql), B(), E(), P("n1", "SELECT 3"), S) == f"1 2 C[{tag}] 1 ZI"
    assert one.ask(B("", "n1"), E(), S) == "2 D[3] C[SELECT 1] ZI"
    assert one.ask(B("", "n0"), E(), S) == "E[26000] ZI"


def test_one_name(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    for client, number in ((one, 7), (two, 8)):
        assert client.ask(P("d1", f"SELECT {number}"), S) == "1 ZI"
    assert one.query("DEALLOCATE d1") == "C[DEALLOCATE] ZI"
    assert one.ask(D("S", "d1"), S) == "E[26000] ZI"
    assert two.ask(B("", "d1"), E(), S) == "2 D[8] C[SELECT 1] ZI"
    assert one.query("DEALLOCATE d1") == "E[26000] ZI"
    assert one.ask(P("d1", "SELECT 9"), B("", "d1"), E(), S) == "1 2 D[9] C[SELECT 1] ZI"


@pytest.mark.parametrize(
    "name, sql",
    [("Mixed", 'DEALLOCATE "Mixed"'), ("folded", "deallocate PREPARE FOLDED"), ('q"q', 'DEALLOCATE "q""q"')],
)
def test_names_as_sql_spells_them(target: Target, name: str, sql: str) -> None:
    one = target.client(pool=1)
    assert one.ask(P(name, "SELECT 1"), S) == "1 ZI"
    assert one.query(sql) == "C[DEALLOCATE] ZI"
    assert one.ask(B("", name), E(), S) == "E[26000] ZI"


def test_unknown_name(target: Target) -> None:
    one = target.client(pool=1)
    assert one.query("DEALLOCATE nope") == "E[26000] ZI"
    assert one.ask(P("", "DEALLOCATE nope"), B(), E(), S) == "1 2 E[26000] ZI"
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert one.query("DEALLOCATE nope") == "E[26000] ZE"
    assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"


def test_not_transactional(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("d1", "SELECT 7"), S) == "1 ZI"
    assert one.ask(P("d2", "SELECT 8"), S) == "1 ZI"
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert one.query("DEALLOCATE d1") == "C[DEALLOCATE] ZT"
    assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert one.ask(B("", "d1"), E(), S) == "E[26000] ZI"
    assert one.ask(B("", "d2"), E(), S) == "2 D[8] C[SELECT 1] ZI"


def test_refused_discard_takes_nothing(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("k", "SELECT 7"), S) == "1 ZI"
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert one.query("DISCARD ALL") == "E[25001] ZE"
    assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert one.ask(B("", "k"), E(), S) == "2 D[7] C[SELECT 1] ZI"
    # Not the first of a batch; the reply to the first statement comes, then the refusal.
    assert one.ask(P("", "SELECT 1"), B(), E(), P("", "DISCARD ALL"), B(), E(), S) == (
        "1 2 D[1] C[SELECT 1] 1 2 E[25001] ZI"
    )
    assert one.ask(B("", "k"), E(), S) == "2 D[7] C[SELECT 1] ZI"
    assert one.query("SELECT 1; DISCARD ALL") == "T[?column?] D[1] C[SELECT 1] E[25001] ZI"
    assert one.ask(B("", "k"), E(), S) == "2 D[7] C[SELECT 1] ZI"


def test_failed_transaction_refuses_deallocate(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("k", "SELECT 7"), S) == "1 ZI"
    assert one.ask(Q("BEGIN"), Q("SELECT 1/0"), times=2) == "C[BEGIN] ZT E[22012] ZE"
    assert one.query("DEALLOCATE ALL") == "E[25P02] ZE"
    assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert one.ask(B("", "k"), E(), S) == "2 D[7] C[SELECT 1] ZI"


def test_deallocate_in_a_string_that_fails(target: Target) -> None:
    """The first part did its work, since names are not transactional."""
    one = target.client(pool=1)
    assert one.ask(P("k", "SELECT 7"), S) == "1 ZI"
    assert one.query("DEALLOCATE ALL; SELECT 1/0") == "C[DEALLOCATE ALL] E[22012] ZI"
    assert one.ask(B("", "k"), E(), S) == "E[26000] ZI"
    assert one.ask(P("k", "SELECT 7"), S) == "1 ZI"
    assert one.query("SELECT 1/0; DEALLOCATE ALL") == "E[22012] ZI"
    assert one.ask(B("", "k"), E(), S) == "2 D[7] C[SELECT 1] ZI"


def test_discard_all_ends_the_rest_of_the_session(target: Target) -> None:
    one = target.client(pool=1, work_mem="5MB", application_name="case")
    one.run("SET work_mem = '7MB'", "CREATE TEMP TABLE t(a int)", "LISTEN jobs", "SELECT pg_advisory_lock(41)")
    one.run("BEGIN", "DECLARE c CURSOR WITH HOLD FOR SELECT generate_series(1, 3)", "COMMIT")
    assert one.query("FETCH 1 FROM c") == "T[generate_series] D[1] C[FETCH 1] ZI"
    assert one.query("DISCARD ALL") == "C[DISCARD ALL] ZI"
    assert one.value("SHOW work_mem") == "5MB"
    assert one.value("SHOW application_name") == "case"
    assert one.query("SELECT * FROM t") == "E[42P01] ZI"
    assert one.query("FETCH 1 FROM c") == "E[34000] ZI"
    assert one.query("SELECT * FROM pg_listening_channels()") == "T[pg_listening_channels] C[SELECT 0] ZI"
    admin = target.admin()
    assert admin.value("SELECT pg_try_advisory_lock(41)") == "t"
    # Nothing binds the client any longer: the only server is free for another one.
    assert target.client(pool=1).query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("what", ["PLANS", "SEQUENCES", "TEMP"])
def test_other_discards_leave_the_names(target: Target, what: str) -> None:
    one = target.client(pool=1)
    assert one.ask(P("k", "SELECT 7"), S) == "1 ZI"
    assert one.query(f"DISCARD {what}") == f"C[DISCARD {what}] ZI"
    assert one.ask(B("", "k"), E(), S) == "2 D[7] C[SELECT 1] ZI"


def test_sql_prepare_shares_the_name_space(target: Target) -> None:
    one = target.client(pool=1)
    assert one.query("PREPARE sp AS SELECT 8") == "C[PREPARE] ZI"
    assert one.ask(P("sp", "SELECT 9"), S) == "E[42P05] ZI"
    assert one.ask(B("", "sp"), E(), S) == "2 D[8] C[SELECT 1] ZI"
    assert one.ask(P("x", "SELECT $1::int + 1"), S) == "1 ZI"
    assert one.query("EXECUTE x(4)") == "T[?column?] D[5] C[SELECT 1] ZI"
    assert one.query("PREPARE x AS SELECT 1") == "E[42P05] ZI"
    assert one.query("DEALLOCATE ALL") == "C[DEALLOCATE ALL] ZI"
    assert one.query("EXECUTE x(4)") == "E[26000] ZI"
    assert one.query("EXECUTE sp") == "E[26000] ZI"
