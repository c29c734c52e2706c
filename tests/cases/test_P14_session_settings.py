"""P14: SET in transaction mode belongs to the client: not lost, not leaked, and undone with its transaction."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, E, P, Q, S, Wire
from ..support.target import Target


@pytest.fixture
def one(target: Target) -> Wire:
    return target.client(pool=1)


@pytest.fixture
def two(target: Target) -> Wire:
    """Another client on the same, only server."""
    return target.client(pool=1)


@pytest.mark.parametrize(
    "statements",
    [
        ("SET work_mem = '7MB'",),
        ("set session work_mem to '7MB'",),
        ("SELECT set_config('work_mem', '7MB', false)",),
        ("SET work_mem = '1MB'", "SET work_mem = '7MB'"),
        ("/* SET work_mem = '9MB' */ SET /* a */ work_mem -- b\n = '7MB'",),
        ("SET work_mem = '7168kB'",),
    ],
)
@pytest.mark.parametrize("how", ["simple", "one string", "extended", "in a transaction"])
def test_stays_with_the_client(one: Wire, two: Wire, statements: tuple[str, ...], how: str) -> None:
    match how:
        case "simple":
            one.run(*statements)
        case "one string":
            one.run("; ".join(statements))
        case "in a transaction":
            one.run("BEGIN", *statements, "COMMIT")
        case "extended":
            replies = one.send(*(m for sql in statements for m in (P("", sql), B(), E())), S).until()
            assert not any(r.kind == "E" for r in replies)
    for _ in range(2):
        assert two.value("SHOW work_mem") == "4MB"
        assert one.value("SHOW work_mem") == "7MB"
    assert one.ask(P("", "SHOW work_mem"), B(), E(), S) == "1 2 D[7MB] C[SHOW] ZI"
    one.run("RESET work_mem")
    assert one.value("SHOW work_mem") == "4MB"


@pytest.mark.parametrize(
    "sql",
    [
        "DO $$ BEGIN PERFORM set_config('work_mem', '7MB', false); END $$",
        "UPDATE pg_settings SET setting = '7168' WHERE name = 'work_mem'",
        "SELECT set_config(name, '7MB', false) FROM pg_settings WHERE name = 'work_mem'",
        "SELECT hidden()",
    ],
)
def test_set_where_the_text_does_not_show_it(target: Target, sql: str) -> None:
    """The client may have the server to itself then; nobody else may get it with the setting."""
    admin = target.admin()
    body = "BEGIN PERFORM set_config('work_mem', '7MB', false); RETURN 1; END"
    admin.run(f"CREATE FUNCTION hidden() RETURNS int LANGUAGE plpgsql AS $$ {body} $$")
    one, others = target.client(pool=2), [target.client(pool=2) for _ in range(3)]
    one.run(sql)
    for other in others:
        assert other.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "7MB"
    one.close()
    for other in others:
        other.run("BEGIN")
        assert other.value("SHOW work_mem") == "4MB"
        if other is not others[0]:
            other.run("COMMIT")


def test_timeouts(one: Wire, two: Wire) -> None:
    assert one.query("SET statement_timeout = 5000") == "C[SET] ZI"
    assert two.value("SHOW statement_timeout") == "0"
    assert one.value("SHOW statement_timeout") == "5s"
    one.run("SET statement_timeout = 50")
    assert one.query("SELECT pg_sleep(5)") == "T[pg_sleep] E[57014] ZI"
    assert two.query("SELECT pg_sleep(0.2)") == "T[pg_sleep] D[] C[SELECT 1] ZI"


def test_rolled_back(one: Wire, two: Wire) -> None:
    one.run("BEGIN", "SET work_mem = '7MB'", "ROLLBACK")
    assert one.value("SHOW work_mem") == "4MB"
    one.run("SET work_mem = '6MB'", "BEGIN", "SET work_mem = '7MB'")
    assert one.query("SELECT 1/0") == "E[22012] ZE"
    assert one.query("COMMIT") == "C[ROLLBACK] ZI"
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "6MB"


def test_committed(one: Wire, two: Wire) -> None:
    one.run("BEGIN", "SET work_mem = '7MB'", "COMMIT")
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "7MB"
    one.run("BEGIN", "RESET work_mem", "ROLLBACK")
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "7MB"


def test_savepoints(one: Wire, two: Wire) -> None:
    one.run("BEGIN", "SET work_mem = '6MB'", "SAVEPOINT a", "SET work_mem = '7MB'", "ROLLBACK TO a")
    assert one.value("SHOW work_mem") == "6MB"
    one.run("SAVEPOINT b", "SET work_mem = '8MB'", "RELEASE b", "COMMIT")
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "8MB"
    one.run("BEGIN", "SAVEPOINT a", "SET work_mem = '9MB'")
    assert one.query("nonsense") == "E[42601] ZE"
    one.run("ROLLBACK TO SAVEPOINT a", "COMMIT")
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "8MB"


def test_and_chain(one: Wire, two: Wire) -> None:
    one.run("BEGIN", "SET work_mem = '6MB'", "COMMIT AND CHAIN", "SET work_mem = '7MB'", "ROLLBACK AND CHAIN")
    assert one.value("SHOW work_mem") == "6MB"
    one.run("ROLLBACK")
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "6MB"


def test_custom_settings(target: Target, one: Wire, two: Wire) -> None:
    target.compare = False
    one.run("BEGIN", "SELECT 1", "SET app.x = 'v'", "COMMIT")
    assert two.value("SELECT current_setting('app.x', true)") in (None, "")
    assert one.value("SELECT current_setting('app.x', true)") == "v"
    one.run("SELECT set_config('app.y', 'it''s \\ here', false)")
    assert two.value("SELECT current_setting('app.y', true)") in (None, "")
    assert one.value("SHOW app.y") == "it's \\ here"


def test_local(one: Wire, two: Wire) -> None:
    one.run("BEGIN", "SET LOCAL work_mem = '7MB'")
    assert one.value("SHOW work_mem") == "7MB"
    one.run("COMMIT")
    assert one.value("SHOW work_mem") == "4MB"
    assert one.query("SET LOCAL work_mem = '7MB'") == "N[WARNING 25P01] C[SET] ZI"
    assert one.value("SHOW work_mem") == "4MB"
    one.run("SET work_mem = '6MB'", "BEGIN", "SELECT set_config('work_mem', '7MB', true)", "COMMIT")
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "6MB"


def test_unknown_arguments_of_set_config(one: Wire, two: Wire) -> None:
    """Name and value come as parameters: what was set is not to be seen in the text."""
    batch = (P("", "SELECT set_config($1, $2, false)"), B("", "", ["app.tenant", "77"]), E(), S)
    assert one.ask(*batch) == "1 2 D[77] C[SELECT 1] ZI"
    assert one.value("SHOW app.tenant") == "77"
    # The client may keep the server for itself, then; what must not be is that another one sees it.
    two.send(Q("SELECT current_setting('app.tenant', true)"))
    one.close()
    replies = two.until()
    assert replies[1].kind == "D"
    assert replies[1].values[0] in (None, b"")


def test_parameter_status_in_one_write(one: Wire, two: Wire) -> None:
    replies = one.ask(Q("SET TimeZone = 'Asia/Tokyo'"), P("", "SELECT 1"), B(), E(), S, times=2)
    assert replies == "C[SET] S[TimeZone=Asia/Tokyo] ZI 1 2 D[1] C[SELECT 1] ZI"
    assert two.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
    assert one.query("SELECT 2") == "T[?column?] D[2] C[SELECT 1] ZI"
    assert one.value("SELECT '2020-01-01 00:00Z'::timestamptz::text") == "2020-01-01 09:00:00+09"
    assert two.value("SELECT ('2020-01-01 00:00Z'::timestamptz)::text") != "2020-01-01 09:00:00+09"


def test_parameter_status_at_rollback(one: Wire) -> None:
    zone = one.status["TimeZone"]
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert one.query("SET TimeZone = 'Asia/Tokyo'") == "C[SET] S[TimeZone=Asia/Tokyo] ZT"
    assert one.query("ROLLBACK") == f"C[ROLLBACK] S[TimeZone={zone}] ZI"


@pytest.mark.parametrize(
    "name, value",
    [
        ("application_name", "my app"),
        ("DateStyle", "German, DMY"),
        ("IntervalStyle", "iso_8601"),
        ("client_encoding", "LATIN1"),
        ("TimeZone", "Asia/Tokyo"),
        ("standard_conforming_strings", "off"),
        ("default_transaction_read_only", "on"),
    ],
)
def test_reported_settings(one: Wire, two: Wire, name: str, value: str) -> None:
    before = two.status[name]
    assert one.query(f"SET {name} = '{value}'") == f"C[SET] S[{name}={value}] ZI"
    assert two.value(f"SHOW {name}") == before
    assert one.value(f"SHOW {name}") == value
    assert two.value(f"SHOW {name}") == before
    assert two.status[name] == before
    assert one.query(f"RESET {name}") == f"C[RESET] S[{name}={before}] ZI"
    assert one.value(f"SHOW {name}") == before


def test_special_forms(one: Wire, two: Wire) -> None:
    one.run("SET TIME ZONE 'Asia/Tokyo'", "SET NAMES 'LATIN1'", "SET SCHEMA 'tenant_a'", "SET SEED TO 0.5")
    assert two.value("SHOW timezone") == two.status["TimeZone"]
    assert two.value("SHOW client_encoding") == "UTF8"
    assert two.value("SHOW search_path") == '"$user", public'
    assert one.value("SHOW timezone") == "Asia/Tokyo"
    assert one.value("SHOW client_encoding") == "LATIN1"
    assert one.value("SELECT x FROM w") == "1"
    one.run("SET TIME ZONE INTERVAL '-08:00' HOUR TO MINUTE", 'SET search_path = tenant_b, "$user", public')
    assert two.value("SHOW timezone") == two.status["TimeZone"]
    assert one.value("SHOW timezone") == "<-08>+08"
    assert one.value("SHOW search_path") == 'tenant_b, "$user", public'
    one.run("SET TIME ZONE LOCAL")
    assert one.value("SHOW timezone") == two.value("SHOW timezone")


def test_session_characteristics(one: Wire, two: Wire) -> None:
    assert one.query("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY") == (
        "C[SET] S[default_transaction_read_only=on] ZI"
    )
    assert two.query("INSERT INTO trail(item_id) VALUES (1)") == "C[INSERT 0 1] ZI"
    assert two.value("SHOW transaction_isolation") == "read committed"
    assert one.query("INSERT INTO trail(item_id) VALUES (1)") == "E[25006] ZI"
    assert one.value("SHOW transaction_isolation") == "serializable"
    one.run("BEGIN")
    assert one.value("SHOW transaction_isolation") == "serializable"
    one.run("ROLLBACK")


def test_set_transaction_is_over_with_it(one: Wire, two: Wire) -> None:
    one.run("BEGIN", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET TRANSACTION READ ONLY")
    assert one.value("SHOW transaction_isolation") == "serializable"
    one.run("COMMIT")
    for client in (one, two):
        assert client.value("SHOW transaction_isolation") == "read committed"
        assert client.value("SHOW transaction_read_only") == "off"


@pytest.mark.parametrize("sql", ["SET ROLE somebody", "SET SESSION AUTHORIZATION somebody", "SET LOCAL ROLE somebody"])
def test_roles(target: Target, one: Wire, two: Wire, sql: str) -> None:
    admin = target.admin()
    admin.run("DROP ROLE IF EXISTS somebody", "CREATE ROLE somebody", "GRANT SELECT ON item TO somebody")
    try:
        if "LOCAL" in sql:
            one.run("BEGIN", sql)
        else:
            one.run(sql)
        if "LOCAL" not in sql:
            assert two.value("SELECT current_user") == "pool1"
            assert two.value("SELECT session_user") == "pool1"
        assert one.value("SELECT current_user") == "somebody"
        # The failure ends SET LOCAL, which is reported.
        refused = "E[42501] S[is_superuser=on] ZE" if "LOCAL" in sql else "E[42501] ZI"
        assert one.query("INSERT INTO trail(item_id) VALUES (1)") == refused
        one.run("ROLLBACK" if "LOCAL" in sql else "RESET SESSION AUTHORIZATION")
        one.run("RESET ROLE")
        assert one.value("SELECT current_user") == "pool1"
        assert two.query("INSERT INTO trail(item_id) VALUES (1)") == "C[INSERT 0 1] ZI"
    finally:
        for client in (one, two):
            client.close()
        admin.run("DROP OWNED BY somebody", "DROP ROLE somebody")


def test_role_rolled_back(target: Target, one: Wire, two: Wire) -> None:
    admin = target.admin()
    admin.run("DROP ROLE IF EXISTS somebody", "CREATE ROLE somebody")
    try:
        one.run("BEGIN", "SET ROLE somebody", "ROLLBACK")
        assert one.value("SELECT current_user") == "pool1"
        one.run("BEGIN", "SET ROLE somebody", "COMMIT")
        assert two.value("SELECT current_user") == "pool1"
        assert one.value("SELECT current_user") == "somebody"
        one.run("SET ROLE NONE")
        assert one.value("SELECT current_user") == "pool1"
        assert two.value("SELECT current_user") == "pool1"
    finally:
        one.close()
        two.close()
        admin.run("DROP ROLE somebody")


def test_shared_statement_under_two_search_paths(one: Wire, two: Wire) -> None:
    one.run("SET search_path = tenant_a")
    two.run("SET search_path = tenant_b")
    assert one.ask(P("sw", "SELECT x FROM w"), B("", "sw"), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
    assert two.ask(P("sw", "SELECT x FROM w"), B("", "sw"), E(), S) == "1 2 D[2] C[SELECT 1] ZI"
    assert one.ask(B("", "sw"), E(), S) == "2 D[1] C[SELECT 1] ZI"
    one.run("SET search_path = tenant_b")
    assert one.ask(B("", "sw"), E(), S) == "2 D[2] C[SELECT 1] ZI"
    two.run("SET search_path = tenant_a")
    assert two.ask(B("", "sw"), E(), S) == "2 D[1] C[SELECT 1] ZI"
    assert one.ask(B("", "sw"), E(), S) == "2 D[2] C[SELECT 1] ZI"


def test_failed_set_changes_nothing(one: Wire, two: Wire) -> None:
    one.run("SET work_mem = '6MB'")
    assert one.query("SET work_mem = 'banana'") == "E[22023] ZI"
    assert one.query("SET nonsense = 1") == "E[42704] ZI"
    assert one.query("SET work_mem = '7MB'; SELECT 1/0") == "C[SET] E[22012] ZI"
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "6MB"
    # One batch is one transaction: the SET in it is undone as well.
    batch = (P("", "SET work_mem = '8MB'"), B(), E(), P("", "SELECT 1/0"), B(), E(), S)
    assert one.ask(*batch) == "1 2 C[SET] 1 E[22012] ZI"
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "6MB"


def test_a_batch_that_fails_behind_carried_state(one: Wire, two: Wire) -> None:
    """The client's settings come to the server together with a batch that fails: the next one still has them."""
    one.run("SET search_path = tenant_a", "SET work_mem = '6MB'")
    for _ in range(3):
        assert two.value("SHOW work_mem") == "4MB"
        assert one.ask(P("", "SELECT x / 0 FROM w"), B(), E(), S) == "1 2 E[22012] ZI"
        assert one.ask(P("", "SELECT x FROM w"), B(), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
        assert two.query("SELECT x FROM w") == "E[42P01] ZI"
        assert one.query("SELEC") == "E[42601] ZI"
        assert one.query("SELECT x FROM w") == "T[x] D[1] C[SELECT 1] ZI"


def test_alternating_many_times(target: Target) -> None:
    clients = [target.client(pool=2) for _ in range(5)]
    for number, client in enumerate(clients):
        client.run(f"SET work_mem = '{number + 5}MB'", f"SET app.me = '{number}'")
    for _ in range(4):
        for client in clients:
            client.send(Q("SELECT current_setting('work_mem'), current_setting('app.me')"))
        for number, client in enumerate(clients):
            assert client.ask() == f"T[current_setting,current_setting] D[{number + 5}MB,{number}] C[SELECT 1] ZI"


def test_function_with_its_own_set_clause(one: Wire, two: Wire) -> None:
    one.run("CREATE FUNCTION f() RETURNS text LANGUAGE sql SET work_mem = '9MB' RETURN current_setting('work_mem')")
    assert one.value("SELECT f()") == "9MB"
    for client in (one, two):
        assert client.value("SHOW work_mem") == "4MB"
