"""Transactions whose BEGIN is held back: reads on replicas, the rest as on PostgreSQL itself."""

from __future__ import annotations

import urllib.request

import pytest

from ..support.rawpg import B, E, P, Q, S, Wire
from .conftest import Serve, Service, eventually

COUNT = "SELECT count(*) FROM item"
ROUTING = {"read_split": True, "transactions": "optimistic", "catalogue_interval": 0.5}


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve({"routing": ROUTING})


@pytest.fixture
def client(service: Service) -> Wire:
    client = service.client(pool=20)
    ready = f"/* ready */ {COUNT}"
    assert eventually(lambda: client.query(ready) and service.reached(ready) - {"primary"}, 10)
    return client


def marked(service: Service, client: Wire, sql: str, mark: str) -> set[str]:
    """Which nodes ran it."""
    client.query(f"{sql} -- {mark}")
    return service.reached(f"-- {mark}")


def test_reads_in_a_transaction_are_on_replicas(service: Service, client: Wire) -> None:
    numbers = iter(range(1000))

    def on_replicas() -> bool:
        # Where replicas are behind for a moment it begins on the primary.
        number = next(numbers)
        assert client.ask(Q("BEGIN")) == "C[BEGIN] ZT"
        for _ in range(3):
            assert client.ask(Q(f"{COUNT} -- one {number}.")) == "T[count] D[20] C[SELECT 1] ZT"
            assert client.ask(P("", f"{COUNT} -- two {number}."), B(), E(), S) == "1 2 D[20] C[SELECT 1] ZT"
        assert client.ask(Q("COMMIT")) == "C[COMMIT] ZI"
        return service.reached(f"-- one {number}.") | service.reached(f"-- two {number}.") <= {"replica1", "replica2"}

    assert eventually(on_replicas, 20)
    assert client.ask(Q("START TRANSACTION")) == "C[START TRANSACTION] ZT"
    assert client.ask(Q("ROLLBACK")) == "C[ROLLBACK] ZI"


WRITES = {
    "insert": ("INSERT INTO trail(item_id) VALUES (1)",),
    "lock": ("SELECT * FROM item WHERE id = 1 FOR SHARE",),
    "cursor": ("DECLARE c CURSOR FOR SELECT id FROM item ORDER BY id", "FETCH 2 FROM c"),
    "savepoint": ("SAVEPOINT a", "ROLLBACK TO a"),
    "set local": ("SET LOCAL work_mem = '1MB'", "SHOW work_mem"),
    "time": ("SELECT now() = transaction_timestamp()",),
    "word": ("SELECT 'now'::timestamptz = now()",),
    "date": ("SELECT current_date = now()::date",),
    "temp": ("CREATE TEMP TABLE mine(a int) ON COMMIT DROP", "INSERT INTO mine VALUES (1)", "SELECT * FROM mine"),
    "again": ("BEGIN", "SELECT 1"),
    "level": ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SHOW transaction_isolation"),
    "several": ("SELECT 1; SELECT 2",),
}


@pytest.mark.parametrize("end", ["COMMIT"])
@pytest.mark.parametrize("read_first", [False, True])
@pytest.mark.parametrize("what", WRITES)
def test_what_is_no_plain_read_begins_on_the_primary(
    service: Service, client: Wire, what: str, read_first: bool, end: str
) -> None:
    """The answers are those of the primary itself, asked the same."""
    direct = service.admin
    statements = [
        "BEGIN",
        *([COUNT] if read_first and what != "level" else []),
        *WRITES[what],
        f"{COUNT} -- {what}",
        end,
    ]
    for statement in statements:
        assert client.ask(Q(statement)) == direct.ask(Q(statement)), statement
    assert service.reached(f"-- {what}") <= {"primary"}


def test_what_has_been_written_is_read(service: Service, client: Wire) -> None:
    before = int(client.value("SELECT count(*) FROM trail") or 0)
    client.query("BEGIN")
    client.query("INSERT INTO trail(item_id) VALUES (1)")
    assert client.value("SELECT count(*) FROM trail") == str(before + 1)
    client.query("COMMIT")
    client.query("BEGIN")
    assert client.value("SELECT count(*) FROM trail") == str(before + 1)
    client.query("ROLLBACK")


@pytest.mark.parametrize("form", ["query", "batch"])
def test_an_error_aborts_it(client: Wire, form: str) -> None:
    def ask(sql: str) -> str:
        return client.ask(Q(sql)) if form == "query" else client.ask(P("", sql), B(), E(), S)

    for end, tag in (("COMMIT", "ROLLBACK"), ("ROLLBACK", "ROLLBACK")):
        assert client.ask(Q("BEGIN")) == "C[BEGIN] ZT"
        assert ask("SELECT 1/0 FROM item").endswith("E[22012] ZE")
        assert ask(COUNT) == "E[25P02] ZE"
        assert ask("INSERT INTO trail(item_id) VALUES (1)") == "E[25P02] ZE"
        assert ask(end).endswith(f"C[{tag}] ZI")
        assert client.value(COUNT) == "20"


def test_a_refusal_by_a_standby_moves_it(service: Service, client: Wire) -> None:
    """What was taken for a read is run where it belongs, in the transaction."""
    service.admin.run("CREATE TABLE late(a int)")
    service.fleet.caught_up()
    assert eventually(
        lambda: client.query("/* late */ SELECT * FROM late") and service.reached("/* late */") - {"primary"}, 10
    )
    client.query("BEGIN")
    assert client.value(COUNT) == "20"
    service.admin.run("ALTER TABLE late SET UNLOGGED")
    service.fleet.caught_up()
    assert client.ask(Q("SELECT count(*) FROM late")) == "T[count] D[0] C[SELECT 1] ZT"
    assert client.ask(Q("INSERT INTO late VALUES (1)")) == "C[INSERT 0 1] ZT"
    assert client.ask(Q("COMMIT")) == "C[COMMIT] ZI"
    assert client.value("SELECT count(*) FROM late") == "1"


def test_pipelined(client: Wire) -> None:
    sent = (Q("BEGIN"), Q(COUNT), Q(COUNT), Q("INSERT INTO trail(item_id) VALUES (7)"), Q(COUNT), Q("COMMIT"), Q(COUNT))
    read = "T[count] D[20] C[SELECT 1]"
    want = f"C[BEGIN] ZT {read} ZT {read} ZT C[INSERT 0 1] ZT {read} ZT C[COMMIT] ZI {read} ZI"
    assert client.ask(*sent, times=len(sent)) == want


def test_no_value_from_before_the_begin(service: Service, client: Wire) -> None:
    """Replicas that stand still serve nothing in a transaction that began later."""
    with service.fleet.paused():
        service.admin.run("UPDATE item SET qty = 77 WHERE id = 1")
        client.query("BEGIN")
        assert client.value("SELECT qty FROM item WHERE id = 1") == "77"
        client.query("ROLLBACK")


def test_idle_time_runs_from_the_begin(serve: Serve) -> None:
    service = serve({"routing": ROUTING, "pool": {"idle_in_transaction_timeout": 1}}, own=True)
    client = service.client(pool=20)
    ready = f"/* ready */ {COUNT}"
    assert eventually(lambda: client.query(ready) and service.reached(ready) - {"primary"}, 10)
    assert client.ask(Q("BEGIN")) == "C[BEGIN] ZT"
    assert [reply.kind for reply in client.until("EOF")] == ["E", "EOF"]


READ_ONLY = {
    "begin": ("BEGIN READ ONLY", COUNT, "COMMIT"),
    "writes": ("BEGIN READ ONLY", "INSERT INTO trail(item_id) VALUES (1)", "ROLLBACK"),
    "turns": ("BEGIN READ ONLY", "SET TRANSACTION READ WRITE", "INSERT INTO trail(item_id) VALUES (1)", "ROLLBACK"),
    "turns late": ("BEGIN READ ONLY", COUNT, "SET TRANSACTION READ WRITE", "ROLLBACK"),
    "repeatable": ("START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", COUNT, "COMMIT"),
    "serializable": ("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE", COUNT, "COMMIT"),
    "ids": ("BEGIN READ ONLY", "SELECT pg_notify('c', 'x')", "SELECT txid_current() > 0", "COMMIT"),
    "lock": ("BEGIN READ ONLY", COUNT, "SELECT * FROM item FOR UPDATE", "ROLLBACK"),
}


@pytest.mark.parametrize("what", READ_ONLY)
def test_read_only_transactions(serve: Serve, what: str) -> None:
    service = serve({"routing": {"read_split": True}})
    client = service.client(pool=20)
    ready = f"/* ready */ {COUNT}"
    assert eventually(lambda: client.query(ready) and service.reached(ready) - {"primary"}, 10)
    turned = what == "turns late"
    for statement in READ_ONLY[what]:
        got, want = client.ask(Q(statement)), service.admin.ask(Q(statement))
        if turned and statement.startswith("SET"):
            # There its first statement was a read already; here nothing has begun yet.
            assert want == "E[25001] ZE"
            assert got in (want, "C[SET] ZT")
        elif not turned:
            assert got == want, statement
    if what == "begin":
        numbers = iter(range(1000))

        def held() -> bool:
            client.query("BEGIN READ ONLY")
            nodes = marked(service, client, COUNT, f"held {next(numbers)}.")
            client.query("COMMIT")
            return nodes <= {"replica1", "replica2"}

        assert eventually(held, 20)
        client.query("BEGIN")
        assert marked(service, client, COUNT, "not held") == {"primary"}
        client.query("COMMIT")


def test_they_are_counted(service: Service, client: Wire) -> None:
    client.query("BEGIN")
    client.query("COMMIT")
    url = f"http://127.0.0.1:{service.proxy.admin_port}/metrics"

    def counted() -> bool:
        page = urllib.request.urlopen(url, timeout=10).read().decode()
        lines = [line for line in page.splitlines() if line.startswith("pgtrident_begins_held_total")]
        return float(lines[0].split()[-1]) >= 1

    assert eventually(counted)


VIEWS = (
    "CREATE VIEW clock AS SELECT now() AS t",
    "CREATE FUNCTION today_() RETURNS date LANGUAGE sql STABLE AS 'SELECT current_date'",
    "CREATE VIEW plain AS SELECT id FROM item",
)


@pytest.mark.parametrize(
    "sql, primary", [("SELECT t FROM clock", True), ("SELECT today_()", True), ("SELECT max(id) FROM plain", False)]
)
def test_time_that_is_told_by_a_view_or_function(service: Service, client: Wire, sql: str, primary: bool) -> None:
    for view in VIEWS:
        service.admin.run(view)
    service.fleet.caught_up()
    known = "/* known */ SELECT today_(), * FROM clock, plain"
    assert eventually(lambda: client.query(known) and service.reached("/* known */") - {"primary"}, 10)
    client.query("BEGIN")
    assert (marked(service, client, sql, "told") == {"primary"}) is primary
    client.query("COMMIT")


def told(client: Wire, service: Service, mark: str) -> tuple[str, set[str]]:
    """A value as the settings bytea_output and extra_float_digits would have it shown, and where it was read."""
    sql = f"SELECT decode('610a', 'hex'), sum(0.1::float8) FROM item WHERE id < 4 -- {mark}"
    seen = client.query(sql).removeprefix("T[decode,sum] D[").partition("]")[0]
    return seen, service.reached(f"-- {mark}")


USUAL = r"\x610a,0.30000000000000004"


def test_settings_of_a_transaction_hold_on_replicas(service: Service, client: Wire) -> None:
    where: set[str] = set()
    for number in range(50):
        client.query("BEGIN")
        assert client.query("SET LOCAL bytea_output TO escape") == "C[SET] ZT"
        assert client.query("SET LOCAL extra_float_digits = 0") == "C[SET] ZT"
        seen, where = told(client, service, f"local {number}.")
        assert seen == r"a\012,0.3"
        assert client.query("COMMIT") == "C[COMMIT] ZI"
        assert told(client, service, f"after {number}.")[0] == USUAL
        if where - {"primary"}:
            break
    assert where - {"primary"}
    # Nobody else has any of it.
    other = service.client(pool=20)
    assert {told(other, service, f"other {number}.")[0] for number in range(10)} == {USUAL}


@pytest.mark.parametrize("read", [False, True])
def test_they_go_along_to_the_primary(service: Service, client: Wire, read: bool) -> None:
    client.query("BEGIN")
    client.query("SET LOCAL extra_float_digits = 0")
    if read:
        told(client, service, "before")
    client.query("SET LOCAL bytea_output = escape")
    assert client.query("INSERT INTO trail(item_id) VALUES (1)") == "C[INSERT 0 1] ZT"
    assert told(client, service, "within") == (r"a\012,0.3", {"primary"})
    client.query("SAVEPOINT s")
    client.query("SET LOCAL bytea_output = hex")
    client.query("ROLLBACK TO s")
    assert told(client, service, "back")[0] == r"a\012,0.3"
    client.query("ROLLBACK")
    assert told(client, service, "after")[0] == USUAL


@pytest.mark.parametrize(
    "statements",
    [
        ("SET LOCAL statement_timeout = 'soon'", COUNT, "COMMIT"),
        ("SET LOCAL work_mem = '1TB'", "COMMIT"),
        ("SET LOCAL nonsense = 1", "ROLLBACK"),
        (
            "SET LOCAL app.a = 'x'",
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "SHOW transaction_isolation",
            "COMMIT",
        ),
        ("SET LOCAL app.a = 'x'", "SELECT 1/0 FROM item", COUNT, "SHOW app.a", "ROLLBACK"),
        ("SET LOCAL app.a = 'x'", "SHOW app.a", "RESET app.a", "SHOW app.a", "COMMIT", "SHOW app.a"),
        ("SET LOCAL TimeZone = 'Asia/Tokyo'", "SELECT timestamptz '2026-01-01 00:00Z' FROM item LIMIT 1", "COMMIT"),
        ("SET LOCAL search_path = tenant_b", "SELECT x FROM w", "COMMIT"),
        ("SET LOCAL ROLE pg_monitor", "SELECT current_user", "COMMIT"),
        ("SET LOCAL application_name = 'mine'", "SHOW application_name", "COMMIT"),
        ("SET LOCAL statement_timeout = DEFAULT", "SHOW statement_timeout", "COMMIT"),
        (
            "SET LOCAL lock_timeout TO 0",
            "SET lock_timeout = '3s'",
            "SHOW lock_timeout",
            "ROLLBACK",
            "SHOW lock_timeout",
        ),
    ],
    ids=lambda statements: statements[0],
)
def test_they_are_what_the_primary_makes_of_them(service: Service, client: Wire, statements: tuple[str, ...]) -> None:
    direct = service.admin
    for statement in ("BEGIN", *statements):
        assert client.ask(Q(statement)) == direct.ask(Q(statement)), statement
