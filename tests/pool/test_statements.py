"""Prepared statements over several servers: made present where they are needed, bounded, renewed after DDL."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, C, D, E, P, Q, S, Wire, show
from .conftest import Serve, Service, backend, eventually

OK = "2 D[{}] C[SELECT 1] ZI"


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve()


class Other:
    """Takes the server that was given back last, so that the next client gets another one."""

    def __init__(self, service: Service, pool: int = 2) -> None:
        self.wire = service.client(pool=pool)

    def __enter__(self) -> Wire:
        self.wire.run("BEGIN")
        return self.wire

    def __exit__(self, *_: object) -> None:
        self.wire.run("COMMIT")


def held(service: Service, user: str) -> int:
    """The most named statements that any server of a user's pool holds, as the server itself tells; asked by a
    function, since the proxy gives a client that asks openly a server with its own statements alone."""
    service.admin.run(
        "CREATE OR REPLACE FUNCTION held() RETURNS bigint LANGUAGE sql AS "
        "'SELECT count(*) FROM pg_catalog.pg_prepared_statements'"
    )
    asker = service.client(user=user)
    found = []
    for _ in service.servers(user):
        asker.run("BEGIN")
        found.append(int(asker.value("SELECT held()") or 0))
        asker.run("COMMIT")
    return max(found)


@pytest.mark.parametrize("name", ["s", ""])
def test_prepared_on_one_server_run_on_another(service: Service, name: str) -> None:
    one = service.client(pool=2)
    here = backend(one)
    assert one.ask(P(name, "SELECT pg_backend_pid(), $1::text"), S) == "1 ZI"
    with Other(service) as other:
        assert backend(other) == here
        replies = one.send(B("", name, ["x"]), E(), S).until()
        assert [r.kind for r in replies] == ["2", "D", "C", "Z"]
        assert replies[1].values[0] != str(here).encode()
        assert one.ask(D("S", name), S) == "t[25] T[pg_backend_pid,text] ZI"
    for _ in range(2):
        replies = one.send(B("", name, ["y"]), E(), S).until()
        assert replies[1].values[1] == b"y"


def test_the_latest_unnamed_statement_is_the_one_that_moves(service: Service) -> None:
    """Of usual batches, which go on as they came: by text, and by what the text means."""
    one = service.client(pool=2)
    service.admin.run("CREATE TABLE moving AS SELECT 1 AS x")

    def moved() -> str:
        with Other(service):
            return one.ask(B(), E(), S)

    def batch(sql: str) -> str:
        return one.ask(P("", sql), B(), E(), S)

    for number in (1, 2):
        assert batch(f"SELECT {number}") == "1 " + OK.format(number)
    assert moved() == OK.format(2)
    assert batch("SELECT x FROM moving") == "1 " + OK.format(1)
    assert one.ask(P("", "SELECT x FROM moving"), D("S", ""), S) == "1 t[] T[x] ZI"
    service.client(pool=1).run("ALTER TABLE moving ALTER x TYPE text USING 'one'")
    assert batch("SELECT x FROM moving") == "1 " + OK.format("one")
    assert moved() == OK.format("one")


def test_anothers_unnamed_statement_is_never_run(service: Service) -> None:
    """Two clients with unnamed statements of their own, in turns over both servers and the same one."""
    one, two = service.client(pool=2), service.client(pool=2)
    assert one.ask(P("", "SELECT 'one'"), S) == "1 ZI"
    assert two.ask(P("", "SELECT 'two'"), S) == "1 ZI"
    for _ in range(3):
        with Other(service):
            assert one.ask(B(), E(), S) == OK.format("one")
            assert two.ask(B(), E(), S) == OK.format("two")
        assert two.ask(B(), D("P"), E(), S) == "2 T[?column?] D[two] C[SELECT 1] ZI"
        assert one.ask(D("S"), B(), E(), S) == "t[] T[?column?] 2 D[one] C[SELECT 1] ZI"


def test_text_shared_by_many_clients_is_parsed_once_a_server(service: Service) -> None:
    clients = [service.client(pool=1) for _ in range(10)]
    for number, client in enumerate(clients):
        assert client.ask(P(f"mine{number}", "SELECT 'shared', $1::int"), S) == "1 ZI"
    for number, client in enumerate(clients):
        assert client.ask(B("", f"mine{number}", [str(number)]), E(), S) == OK.format(f"shared,{number}")
    assert held(service, "pool1") == 1


TEMPORARY = [
    "CREATE TEMP TABLE x(a int)",
    "CREATE TEMP TABLE x AS SELECT 1 AS a",
    "SELECT 1 AS a INTO TEMP x",
    "CREATE TEMP TABLE x(a int); INSERT INTO x VALUES (1); INSERT INTO x VALUES (2)",
    "CREATE TEMP VIEW x AS SELECT 1 AS a",
]


@pytest.mark.parametrize("ddl", [*TEMPORARY, "CREATE TABLE y(a int)"])
def test_temporary_tables_of_others_change_nothing(service: Service, ddl: str) -> None:
    one, two, other = service.client(pool=1), service.client(pool=1), service.client(pool=2)
    assert one.ask(P("s", "SELECT 'shared'"), S) == "1 ZI"
    other.run(ddl)
    if "TEMP" in ddl:
        other.run("DROP VIEW pg_temp.x" if "VIEW" in ddl else "DROP TABLE pg_temp.x")
    assert two.ask(P("s", "SELECT 'shared'"), S) == "1 ZI"
    assert held(service, "pool1") == (1 if "TEMP" in ddl else 2)


def test_same_text_other_meaning(service: Service) -> None:
    """Parameter types and the reading of strings are part of what is shared."""
    one, two = service.client(pool=1), service.client(pool=1)
    two.run("SET standard_conforming_strings = off")
    text = r"SELECT 'a\\b'"
    assert one.ask(P("s", text), B("", "s"), E(), S) == "1 " + OK.format(r"a\\b")
    replies = two.ask(P("s", text), B("", "s"), E(), S)
    assert replies.replace("N[WARNING 22P06] ", "") == "1 " + OK.format(r"a\b")
    assert one.ask(B("", "s"), E(), S) == OK.format(r"a\\b")


LIMIT = {"pool": {"max_prepared_statements": 3}}


def test_least_recently_used_goes_first(serve: Serve) -> None:
    service = serve(LIMIT)
    one = service.client(pool=1)
    for number in range(10):
        assert one.ask(P(f"s{number}", f"SELECT {number}"), S) == "1 ZI"
    assert held(service, "pool1") == 3
    # All of them work, and those in use stay.
    for number in range(10):
        assert one.ask(B("", f"s{number}"), E(), S) == OK.format(number)
        assert one.ask(B("", "s0"), E(), S) == OK.format(0)
    assert held(service, "pool1") == 3


def test_more_statements_in_one_batch_than_a_server_may_keep(serve: Serve) -> None:
    service = serve(LIMIT)
    one, two = service.client(pool=1), service.client(pool=1)
    numbers = range(8)
    replies = one.ask(*(m for n in numbers for m in (P(f"s{n}", f"SELECT {n}"), B("", f"s{n}"), E())), S)
    assert replies == " ".join(f"1 2 D[{n}] C[SELECT 1]" for n in numbers) + " ZI"
    assert two.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
    replies = one.ask(*(m for n in numbers for m in (B("", f"s{n}"), E())), S)
    assert replies == " ".join(f"2 D[{n}] C[SELECT 1]" for n in numbers) + " ZI"
    # In a transaction, where nothing is given back in between.
    one.run("BEGIN")
    for n in numbers:
        assert one.ask(B("", f"s{n}"), E(), S) == f"2 D[{n}] C[SELECT 1] ZT"
    one.run("COMMIT")
    assert held(service, "pool1") <= 3


def test_closed_statements_do_not_pile_up(serve: Serve) -> None:
    """A client that parses, runs and closes over and over (as drivers without a cache do)."""
    service = serve(LIMIT)
    one = service.client(pool=1)
    for number in range(20):
        name = f"q{number}"
        assert (
            one.ask(P(name, f"SELECT {number}"), B("", name), E(), C("S", name), S)
            == f"1 {OK.format(number)[:-3]} 3 ZI"
        )
    assert held(service, "pool1") <= 3


@pytest.mark.parametrize("failing", ["first", "last"])
def test_a_batch_that_fails_keeps_what_was_parsed(service: Service, failing: str) -> None:
    one = service.client(pool=2)
    assert one.ask(P("good", "SELECT 1"), P("bad", "SELECT 1 / $1::int"), S) == "1 1 ZI"
    with Other(service):
        # Both are made present in front of their Binds, on a server that has neither.
        if failing == "first":
            assert one.ask(B("", "bad", ["0"]), E(), B("", "good"), E(), S) == "E[22012] ZI"
        else:
            assert one.ask(B("", "good"), E(), B("", "bad", ["0"]), E(), S) == "2 D[1] C[SELECT 1] E[22012] ZI"
        assert one.ask(B("", "good"), E(), S) == OK.format(1)
        assert one.ask(B("", "bad", ["1"]), E(), S) == OK.format(1)


def test_parse_in_a_rolled_back_transaction_on_another_server(service: Service) -> None:
    """Names are not transactional, neither the client's nor the server's."""
    one = service.client(pool=2)
    one.run("BEGIN")
    assert one.ask(P("s", "SELECT 8"), S) == "1 ZT"
    assert one.query("SELECT 1/0") == "E[22012] ZE"
    assert one.ask(B("", "s"), E(), S) == "E[25P02] ZE"
    one.run("ROLLBACK")
    with Other(service):
        assert one.ask(B("", "s"), E(), S) == OK.format(8)
    assert one.ask(B("", "s"), E(), S) == OK.format(8)


# ---- plans that DDL made stale


def shape(service: Service) -> Wire:
    client = service.client(pool=1)
    client.run("CREATE TABLE shape(a int)", "INSERT INTO shape VALUES (1)")
    return client


def test_stale_plan_of_an_undescribed_statement(service: Service) -> None:
    """The client was never told a shape, so it need not know that the statement was shared: it is parsed anew."""
    one = shape(service)
    assert one.ask(P("s", "SELECT * FROM shape"), B("", "s"), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
    one.run("ALTER TABLE shape ADD b int DEFAULT 2")
    assert one.ask(B("", "s"), E(), S) == "2 D[1,2] C[SELECT 1] ZI"
    assert one.ask(B("", "s"), E(), S) == "2 D[1,2] C[SELECT 1] ZI"


def test_stale_plan_of_a_described_statement(service: Service) -> None:
    """Who was told the old shape gets PostgreSQL's own error, once; after a new Parse all is well."""
    one = shape(service)
    assert one.ask(P("s", "SELECT * FROM shape"), D("S", "s"), S) == "1 t[] T[a] ZI"
    one.run("ALTER TABLE shape ADD b int DEFAULT 2")
    assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"
    assert "cached plan" in one.log[-2].fields["M"]
    assert one.ask(C("S", "s"), P("s", "SELECT * FROM shape"), D("S", "s"), S) == "3 1 t[] T[a,b] ZI"
    assert one.ask(B("", "s"), E(), S) == "2 D[1,2] C[SELECT 1] ZI"


def test_stale_plan_that_another_client_left(service: Service) -> None:
    """A client that prepares after the DDL must not meet the plan of one that prepared before it."""
    one, two = shape(service), service.client(pool=1)
    assert one.ask(P("s", "SELECT * FROM shape"), B("", "s"), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
    one.run("ALTER TABLE shape ADD b int DEFAULT 2")
    assert two.ask(P("s", "SELECT * FROM shape"), D("S", "s"), S) == "1 t[] T[a,b] ZI"
    assert two.ask(B("", "s"), E(), S) == "2 D[1,2] C[SELECT 1] ZI"
    assert two.ask(P("", "SELECT * FROM shape"), D("S"), B(), E(), S) == "1 t[] T[a,b] 2 D[1,2] C[SELECT 1] ZI"


def test_stale_plan_in_one_batch_with_its_parse(service: Service) -> None:
    one, two = shape(service), service.client(pool=1)
    assert one.ask(P("s", "SELECT * FROM shape"), B("", "s"), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
    one.run("ALTER TABLE shape ADD b int DEFAULT 2")
    replies = two.ask(P("t", "SELECT * FROM shape"), B("", "t"), D("P"), E(), S)
    assert replies == "1 2 T[a,b] D[1,2] C[SELECT 1] ZI"


def test_stale_plan_in_a_transaction(service: Service) -> None:
    """The transaction has failed by then: the error stands. Afterwards the statement works."""
    one = shape(service)
    assert one.ask(P("s", "SELECT * FROM shape"), B("", "s"), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
    one.run("ALTER TABLE shape ADD b int DEFAULT 2", "BEGIN")
    assert one.ask(B("", "s"), E(), S) == "E[0A000] ZE"
    one.run("ROLLBACK")
    assert one.ask(B("", "s"), E(), S) == "2 D[1,2] C[SELECT 1] ZI"


def test_stale_plan_behind_work_that_was_done(service: Service) -> None:
    """Nothing is run twice: where an Execute of the batch has succeeded the error stands."""
    one = shape(service)
    assert one.ask(P("s", "SELECT * FROM shape"), P("i", "INSERT INTO trail(item_id) VALUES (1)"), S) == "1 1 ZI"
    assert one.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZI"
    one.run("ALTER TABLE shape ADD b int DEFAULT 2")
    assert one.ask(B("", "i"), E(), B("", "s"), E(), S) == "2 C[INSERT 0 1] E[0A000] ZI"
    assert one.value("SELECT count(*) FROM trail") == "0"
    assert one.ask(B("", "i"), E(), B("", "s"), E(), S) == "2 C[INSERT 0 1] 2 D[1,2] C[SELECT 1] ZI"
    assert one.value("SELECT count(*) FROM trail") == "1"


def test_stale_plan_in_a_pipeline(service: Service) -> None:
    """Batches behind each other: answers stay in order, whatever becomes of the stale one."""
    one = shape(service)
    assert one.ask(P("s", "SELECT * FROM shape"), B("", "s"), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
    one.run("ALTER TABLE shape ADD b int DEFAULT 2")
    batch = (B("", "s"), E(), S)
    replies = show(one.send(*batch, Q("SELECT 7"), *batch).until(times=3))
    good, stale, seven = "2 D[1,2] C[SELECT 1] ZI", "E[0A000] ZI", "T[?column?] D[7] C[SELECT 1] ZI"
    assert replies in {f"{first} {seven} {second}" for first in (good, stale) for second in (good, stale)}
    assert one.ask(*batch) == good


def test_stale_many_times(service: Service) -> None:
    """The error and its ReadyForQuery may come in one piece or two: the client sees neither."""
    one, two = service.client(pool=1), service.client(pool=1)
    one.run("CREATE TABLE shape(a int)")
    assert one.ask(P("s", "SELECT * FROM shape"), S) == "1 ZI"
    for number in range(20):
        two.run("DROP TABLE shape", f"CREATE TABLE shape(a{number} int)")
        assert one.ask(B("", "s"), E(), S) == "2 C[SELECT 0] ZI"


def test_ddl_that_the_proxy_has_not_seen(service: Service) -> None:
    """A new Parse must not be answered with the statement that has just been found to be stale."""
    one = shape(service)
    assert one.ask(P("s", "SELECT * FROM shape"), D("S", "s"), S) == "1 t[] T[a] ZI"
    service.admin.run("ALTER TABLE shape ADD b int DEFAULT 2")
    assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"
    assert one.ask(C("S", "s"), P("s", "SELECT * FROM shape"), D("S", "s"), S) == "3 1 t[] T[a,b] ZI"
    assert one.ask(B("", "s"), E(), S) == "2 D[1,2] C[SELECT 1] ZI"


def test_only_what_was_stale_is_run_again(service: Service) -> None:
    """The error of a Query is not taken for that of the batch before it."""
    one = shape(service)
    one.run("PREPARE q AS SELECT * FROM shape")
    assert one.ask(P("s", "SELECT 7"), B("", "s"), E(), S) == "1 2 D[7] C[SELECT 1] ZI"
    service.admin.run("ALTER TABLE shape ADD b int DEFAULT 2")
    assert one.query("EXECUTE q") == "E[0A000] ZI"


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("how", ["leaves", "cancels"])
def test_client_that_goes_while_its_statement_is_parsed_elsewhere(service: Service, how: str, moved: bool) -> None:
    """What it has left on the server is not in the way of others that share the text."""
    shape(service)
    one, two, third = (service.client(pool=2) for _ in range(3))
    assert one.ask(P("s", "SELECT * FROM shape"), D("S", "s"), S) == "1 t[] T[a] ZI"
    assert third.ask(P("t", "SELECT * FROM shape"), S) == "1 ZI"
    if moved:
        two.run("CREATE TABLE unrelated()")
    with Other(service):
        service.admin.run("BEGIN", "LOCK TABLE shape")
        one.send(B("", "s"), E(), S)
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'shape'::regclass"
        assert eventually(lambda: service.admin.rows(waiting))
        if how == "leaves":
            one.close()
        else:
            one.cancel()
            assert show(one.until()) == "E[57014] ZI"
        service.admin.run("COMMIT")
        assert third.ask(B("", "t"), E(), S) == "2 D[1] C[SELECT 1] ZI"


def test_unnamed_statement_of_a_client_that_went(service: Service) -> None:
    """Nobody has read that it was parsed; still it is not run for the next one."""
    shape(service)
    one, two = service.client(pool=1), service.client(pool=1)
    assert one.ask(P("", "SELECT 'mine'"), D("S"), S) == "1 t[] T[?column?] ZI"
    service.admin.run("BEGIN", "LOCK TABLE shape")
    two.send(P("", "SELECT 'theirs'"), P("s", "SELECT * FROM shape"), S)
    waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'shape'::regclass"
    assert eventually(lambda: service.admin.rows(waiting))
    two.close()
    service.admin.run("COMMIT")
    assert one.ask(B(), E(), S) == OK.format("mine")


# ---- SQL that acts on names


def test_deallocate_all_on_another_server(service: Service) -> None:
    """All of a client's names are gone, on whichever server it says so; nobody else's are."""
    one, two = service.client(pool=2), service.client(pool=2)
    for client, number in ((one, 1), (two, 2)):
        assert client.ask(P("s", f"SELECT {number}"), S) == "1 ZI"
    with Other(service):
        assert one.query("DEALLOCATE ALL") == "C[DEALLOCATE ALL] ZI"
    assert one.ask(B("", "s"), E(), S) == "E[26000] ZI"
    for _ in range(2):
        assert two.ask(B("", "s"), E(), S) == OK.format(2)
    assert one.ask(P("s", "SELECT 3"), B("", "s"), E(), S) == "1 " + OK.format(3)


@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_the_unnamed_statement_is_not_deallocated(service: Service, sql: str) -> None:
    """It has no name that these could drop; PostgreSQL itself says so."""
    direct = Wire(("127.0.0.1", service.fleet.primary.port))
    direct.login({"user": "pool1", "database": service.database})
    for client in (direct, service.client(pool=1)):
        assert client.ask(P("", sql), B(), E(), S) == f"1 2 C[{sql}] ZI"
        assert client.ask(B(), E(), S) == f"2 C[{sql}] ZI"


@pytest.mark.parametrize("sql", ["DEALLOCATE s", "DEALLOCATE PREPARE s"])
def test_deallocate_of_a_name_that_this_server_does_not_know(service: Service, sql: str) -> None:
    one = service.client(pool=2)
    assert one.ask(P("s", "SELECT 1"), S) == "1 ZI"
    with Other(service):
        assert one.query(sql) == "C[DEALLOCATE] ZI"
    assert one.ask(B("", "s"), E(), S) == "E[26000] ZI"
    assert one.query(sql) == "E[26000] ZI"


def test_execute_of_a_name_that_this_server_does_not_know(service: Service) -> None:
    one = service.client(pool=2)
    assert one.ask(P("s", "SELECT $1::int + 1"), S) == "1 ZI"
    with Other(service):
        assert one.query("EXECUTE s(4)") == "T[?column?] D[5] C[SELECT 1] ZI"
        assert one.ask(P("", "EXECUTE s(5)"), B(), E(), S) == "1 2 D[6] C[SELECT 1] ZI"


USES = [
    ("EXECUTE s(4)", "5", "SELECT 1"),
    ('/* EXECUTE x */ EXECUTE "s" (4)', "5", "SELECT 1"),
    ("EXPLAIN EXECUTE s(4)", "Result  (cost=0.00..0.01 rows=1 width=4)", "EXPLAIN"),
    ("EXPLAIN (COSTS off) EXECUTE s(4)", "Result", "EXPLAIN"),
    ("EXPLAIN VERBOSE EXECUTE s(4)", None, "EXPLAIN"),
    ("CREATE TABLE made AS EXECUTE s(4)", "", "SELECT 1"),
    ("CREATE TABLE IF NOT EXISTS execute (execute) AS EXECUTE s(4) WITH NO DATA", "", "SELECT 0"),
    ("EXPLAIN (COSTS off) CREATE TABLE execute AS EXECUTE s(4)", "Result", "EXPLAIN"),
    ("DEALLOCATE s", "", "DEALLOCATE"),
]


@pytest.mark.parametrize("form", ["simple", "unnamed", "named"])
@pytest.mark.parametrize("sql, row, tag", USES)
def test_name_inside_a_text(service: Service, sql: str, row: str | None, tag: str, form: str) -> None:
    """On servers that know neither the statement nor the text that runs it."""
    one = service.client(pool=2)
    assert one.ask(P("s", "SELECT $1::int + 1"), S) == "1 ZI"
    if form == "named":
        assert one.ask(P("x", sql), S) == "1 ZI"
    with Other(service):
        if form == "simple":
            replies = one.query(sql)
        elif form == "named":
            replies = one.ask(B("", "x"), E(), S)
        else:
            replies = one.ask(P("", sql), B(), E(), S)
        assert replies.endswith(f"C[{tag}] ZI"), replies
        assert row is None or f"D[{row}]" * bool(row) in replies
        if tag == "DEALLOCATE":
            assert one.ask(B("", "s", ["1"]), E(), S) == "E[26000] ZI"
            assert one.ask(P("s", "SELECT 3"), B("", "s"), E(), S) == "1 " + OK.format(3)
        else:
            assert one.ask(B("", "s", ["1"]), E(), S) == OK.format(2)


def test_name_inside_a_text_is_looked_up_when_it_runs(service: Service) -> None:
    one, two = service.client(pool=1), service.client(pool=1)
    for client, number in ((one, 1), (two, 2)):
        assert client.ask(P("s", f"SELECT {number}"), P("x", "EXECUTE s"), S) == "1 1 ZI"
    for _ in range(2):
        assert one.ask(B("", "x"), E(), S) == OK.format(1)
        assert two.ask(B("", "x"), E(), S) == OK.format(2)
    assert one.ask(C("S", "s"), P("s", "SELECT 3"), B("", "x"), E(), S) == "3 1 " + OK.format(3)
    assert one.query("EXECUTE s") == "T[?column?] D[3] C[SELECT 1] ZI"
    assert one.ask(C("S", "s"), B("", "x"), E(), S) == "3 2 E[26000] ZI"


def test_what_a_name_inside_a_text_stood_for_is_gone(service: Service) -> None:
    one, two = service.client(pool=1), service.client(pool=1)
    assert one.ask(P("s", "SELECT 1"), P("x", "EXECUTE s"), B("", "x"), E(), C("S", "s"), S).endswith("3 ZI")
    two.run("CREATE TABLE unrelated()")
    assert one.ask(B("", "x"), E(), S) == "2 E[26000] ZI"


def test_ddl_that_is_not_yet_committed(service: Service) -> None:
    """Its shape is nobody else's, also where the statement comes behind it in a pipeline."""
    one, two = service.client(pool=3), service.client(pool=3)
    one.run("CREATE TABLE shape(a int)", "INSERT INTO shape VALUES (1)")
    sql = "SELECT * FROM shape"
    assert two.ask(P("s", sql), D("S", "s"), S) == "1 t[] T[a] ZI"
    one.run("BEGIN")
    alter = P("", "ALTER TABLE shape ADD b int DEFAULT 2"), B(), E(), S
    replies = show(one.send(*alter, P("t", sql), D("S", "t"), B("", "t"), E(), S).until(times=2))
    assert replies == "1 2 C[ALTER TABLE] ZT 1 t[] T[a,b] 2 D[1,2] C[SELECT 1] ZT"
    one.run("ROLLBACK")
    with Other(service, 3):
        assert two.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZI"
        assert one.ask(B("", "t"), E(), S) == "E[0A000] ZI"
    assert two.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZI"


def test_deallocate_and_a_new_parse_in_one_batch(service: Service) -> None:
    one = service.client(pool=2)
    assert one.ask(P("s", "SELECT 1"), S) == "1 ZI"
    with Other(service):
        again = P("", "DEALLOCATE s"), B(), E(), P("s", "SELECT 1"), B("", "s"), E()
        assert one.ask(*again, S) == "1 2 C[DEALLOCATE] 1 " + OK.format(1)
        assert one.ask(B("", "s"), E(), S) == OK.format(1)
        assert one.ask(*again, S) == "1 2 C[DEALLOCATE] 1 " + OK.format(1)


def test_names_of_other_clients_can_not_be_guessed(service: Service) -> None:
    """What a server holds for one client is out of reach for another, under any name it may learn."""
    one, two = service.client(pool=1), service.client(pool=1)
    assert one.ask(P("secret", "SELECT 'of one'"), S) == "1 ZI"
    assert two.ask(B("", "secret"), E(), S) == "E[26000] ZI"
    assert two.query("EXECUTE secret") == "E[26000] ZI"
    assert two.query("DEALLOCATE secret") == "E[26000] ZI"
    assert one.ask(B("", "secret"), E(), S) == OK.format("of one")


def test_a_name_that_is_taken_ties_nobody_to_a_replica(serve: Serve) -> None:
    """What a refused Parse left behind there is dropped, and the client goes on."""
    service = serve({"routing": {"read_split": True}})
    client = service.client(pool=20)
    count, write = "SELECT count(*) FROM item", "INSERT INTO trail(item_id) VALUES (7)"
    assert eventually(lambda: client.query(f"{count} -- ready") and service.reached("-- ready") - {"primary"}, 10)
    assert client.ask(P("s", count), S) == "1 ZI"
    assert client.ask(P("s", count), S) == "E[42P05] ZI"
    assert client.query(write) == "C[INSERT 0 1] ZI"
    assert client.ask(P("s", count), S, Q(write), times=2) == "E[42P05] ZI C[INSERT 0 1] ZI"


def test_a_parse_that_a_failed_transaction_refuses(service: Service) -> None:
    """The server had the statement, and has it no more: others get it parsed anew."""
    client = service.client(pool=1)
    sql = "SELECT count(*) FROM item"
    assert client.ask(P("s", sql), B("", "s"), E(), S) == OK.format(20).replace("2 ", "1 2 ", 1)
    client.run("BEGIN")
    assert client.query("VACUUM") == "E[25001] ZE"
    assert client.ask(P("other", sql), S) == "E[25P02] ZE"
    assert client.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert client.ask(B("", "s"), E(), S) == OK.format(20)
    assert service.client(pool=1).ask(P("s", sql), B("", "s"), E(), S) == "1 " + OK.format(20)
