"""Settings follow their client over several servers, and what clients are told is always the primary's view."""

from __future__ import annotations

import itertools

import pytest

from ..support.fleet import Fleet
from ..support.rawpg import B, E, P, Q, S, Wire, show
from .conftest import Serve, Service, backend, eventually

ONE = "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve()


def on_every_server(service: Service, client: Wire, size: int = 3) -> set[int]:
    """Run something on each server of a pool in turn, by taking the others away; the servers seen."""
    others = [service.client(pool=size) for _ in range(size - 1)]
    seen = set()
    for other in others:
        seen.add(backend(client))
        other.run("BEGIN")
    seen.add(backend(client))
    for other in others:
        other.run("COMMIT")
    return seen


def test_follow_over_all_servers_of_the_pool(service: Service) -> None:
    one = service.client(pool=3)
    one.run("SET work_mem = '7MB'", "SET search_path = tenant_b, public", "SET app.tenant = 'b'")
    one.run("SET TimeZone = 'Asia/Tokyo'", "SET DateStyle = 'German'")
    others = [service.client(pool=3) for _ in range(2)]
    want = [["7MB", "tenant_b, public", "b", "Asia/Tokyo", "German, DMY"]]
    ask = "SELECT current_setting('work_mem'), current_setting('search_path'), current_setting('app.tenant'), "
    ask += "current_setting('timezone'), current_setting('datestyle')"
    pids = set()
    for other in (*others, None):
        assert one.rows(ask) == want
        assert one.value("SELECT x FROM w") == "2"
        assert one.ask(P("", "SELECT x FROM w"), B(), E(), S) == "1 2 D[2] C[SELECT 1] ZI"
        pids.add(backend(one))
        if other is not None:
            other.run("BEGIN")
            assert other.value("SHOW work_mem") == "4MB"
            assert other.query("SELECT x FROM w") == "E[42P01] ZE"
    assert len(pids) == 3


def test_reset_over_all_servers_of_the_pool(service: Service) -> None:
    one = service.client(pool=3)
    one.run("SET work_mem = '7MB'", "SET app.tenant = 'b'", "SET ROLE pg_monitor")
    assert len(on_every_server(service, one)) == 3
    one.run("RESET ALL")
    one.run("RESET ROLE")
    others = [service.client(pool=3) for _ in range(2)]
    for other in (*others, None):
        assert one.rows("SELECT current_setting('work_mem'), current_user") == [["4MB", "pool3"]]
        assert one.value("SELECT current_setting('app.tenant', true)") in (None, "")
        if other is not None:
            other.run("BEGIN")


def test_startup_settings_are_kept_apart(service: Service) -> None:
    """As startup parameters and in `options`: each client has its own, RESET goes back to them."""
    one = service.client(pool=1, work_mem="5MB", application_name="one", options="-c search_path=tenant_a")
    two = service.client(pool=1, options="-c work_mem=6MB -c app.tenant=two", TimeZone="Asia/Tokyo")
    three = service.client(pool=1)
    for _ in range(2):
        assert one.rows("SELECT current_setting('work_mem'), current_setting('application_name')") == [["5MB", "one"]]
        assert one.value("SELECT x FROM w") == "1"
        assert two.rows("SELECT current_setting('work_mem'), current_setting('app.tenant')") == [["6MB", "two"]]
        assert two.value("SHOW timezone") == "Asia/Tokyo"
        assert three.value("SHOW work_mem") == "4MB"
        assert three.value("SHOW application_name") == ""
    one.run("SET work_mem = '9MB'", "RESET work_mem")
    two.run("SET work_mem = '9MB'", "RESET ALL")
    assert three.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "5MB"
    assert two.rows("SELECT current_setting('work_mem'), current_setting('timezone')") == [["6MB", "Asia/Tokyo"]]


@pytest.mark.parametrize(
    "params, code",
    [({"work_mem": "banana"}, "22023"), ({"nonsense": "1"}, "42704"), ({"options": "-c work_mem=banana"}, "22023")],
)
def test_wrong_startup_settings(service: Service, params: dict[str, str], code: str) -> None:
    """The login fails with PostgreSQL's own answer, and the server is none the worse."""
    assert service.client(pool=1).query("SELECT 1") == ONE
    for _ in range(3):
        replies = service.open().login({"user": "pool1", "database": service.database, **params})
        assert replies.endswith(f"E[FATAL {code}] EOF")
    assert service.client(pool=1).query("SELECT 1") == ONE


def test_a_setting_that_can_not_be_applied_elsewhere(service: Service) -> None:
    """The role that a client has taken on is dropped: a clear error, and never the work under another role."""
    service.admin.run("CREATE ROLE passing")
    one = service.client(pool=2)
    one.run("SET ROLE passing")
    home = backend(one)
    other = service.client(pool=2)
    other.run("BEGIN")
    assert backend(other) == home
    service.admin.run("DROP ROLE passing")
    replies = one.query("SELECT current_user")
    assert replies.startswith("E["), replies
    assert "passing" not in replies
    other.run("COMMIT")
    assert other.query("SELECT 1") == ONE


def test_set_and_use_in_one_write(service: Service) -> None:
    """What comes behind a SET in the same write runs under it, whatever else is on the server."""
    one, two = service.client(pool=1), service.client(pool=1)
    for _ in range(3):
        one.send(Q("SET search_path = tenant_a"), Q("SELECT x FROM w"), P("", "SELECT x FROM w"), B(), E(), S)
        two.send(Q("SET search_path = tenant_b"), P("", "SELECT x FROM w"), B(), E(), S, Q("SELECT x FROM w"))
        assert show(one.until(times=3)) == "C[SET] ZI T[x] D[1] C[SELECT 1] ZI 1 2 D[1] C[SELECT 1] ZI"
        assert show(two.until(times=3)) == "C[SET] ZI 1 2 D[2] C[SELECT 1] ZI T[x] D[2] C[SELECT 1] ZI"


@pytest.mark.parametrize("form", ["SET LOCAL work_mem = '7MB'", "SELECT set_config('work_mem', '7MB', true)"])
def test_local_settings_and_savepoints(service: Service, form: str) -> None:
    one, two = service.client(pool=1), service.client(pool=1)
    one.run("SET work_mem = '5MB'", "BEGIN", "SAVEPOINT a", form)
    assert one.value("SHOW work_mem") == "7MB"
    one.run("ROLLBACK TO a")
    assert one.value("SHOW work_mem") == "5MB"
    one.run("SET work_mem = '6MB'", form, "COMMIT")
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "6MB"


def test_two_phase_commit_and_settings(service: Service) -> None:
    """PREPARE TRANSACTION ends the transaction for the session; a SET in it is kept as by COMMIT."""
    one, two = service.client(pool=1), service.client(pool=1)
    name = f"two_phase_{service.database}"
    one.run("BEGIN", "INSERT INTO trail(item_id) VALUES (1)", "SET work_mem = '7MB'", f"PREPARE TRANSACTION '{name}'")
    assert two.value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "7MB"
    two.run(f"COMMIT PREPARED '{name}'")
    assert one.value("SELECT count(*) FROM trail") == "1"


@pytest.mark.parametrize("failing", ["SELECT 1/0", "SELEC", "COMMIT; SELECT 1/0"])
def test_settings_behind_errors(service: Service, failing: str) -> None:
    """After any error the state is what the server says it is, for both clients."""
    one, two = service.client(pool=1), service.client(pool=1)
    one.run("SET work_mem = '5MB'")
    for sql in (f"SET work_mem = '6MB'; {failing}", f"BEGIN; SET work_mem = '7MB'; {failing}"):
        direct = Wire(("127.0.0.1", service.fleet.primary.port))
        direct.login({"user": "pool1", "database": service.database})
        direct.run("SET work_mem = '5MB'")
        assert one.query(sql) == direct.query(sql)
        for client in (one, direct):
            if client.log[-1].body == b"E":
                client.run("ROLLBACK")
        assert two.value("SHOW work_mem") == "4MB"
        assert one.value("SHOW work_mem") == direct.value("SHOW work_mem")
        one.run("SET work_mem = '5MB'")


# ---- what the client is told


SPLIT = {"routing": {"read_split": True}}


def on_a_replica(service: Service, client: Wire, sql: str) -> bool:
    """Run a statement, and say whether it was a replica that answered."""
    marker = f"/* {next(_markers)} */"
    client.run(f"{sql} {marker}")
    return bool(service.reached(marker) - {"primary"})


_markers = itertools.count(1_000_000)


def test_told_the_primarys_view_whoever_answers(serve: Serve) -> None:
    """Reads on replicas: the client never hears that it is on a standby."""
    service = serve(SPLIT)
    one = service.client(pool=2)
    view = {name: one.status[name] for name in ("in_hot_standby", "default_transaction_read_only", "server_version")}
    assert view["in_hot_standby"] == view["default_transaction_read_only"] == "off"
    assert eventually(lambda: on_a_replica(service, one, "SELECT 1"))
    one.run("SET TimeZone = 'Asia/Tokyo'")
    ask = "SELECT '2020-01-01 00:00Z'::timestamptz::text"
    assert eventually(lambda: on_a_replica(service, one, ask))
    assert one.value(ask) == "2020-01-01 09:00:00+09"
    told = [str(r) for r in one.log if r.kind == "S" and "TimeZone" not in str(r)]
    assert {name: one.status[name] for name in view} == view
    assert not any("in_hot_standby=on" in line for line in told)


def test_settings_follow_to_replicas(serve: Serve) -> None:
    service = serve(SPLIT)
    one, two = service.client(pool=1), service.client(pool=1)
    one.run("SET search_path = tenant_a", "SET TimeZone = 'Asia/Tokyo'")
    two.run("SET search_path = tenant_b", "SET TimeZone = 'UTC'")
    ask = "SELECT x, '2020-01-01 00:00Z'::timestamptz::text FROM w"
    seen: set[tuple[int, str]] = set()

    def both() -> bool:
        for number, (client, row) in enumerate(
            ((one, ["1", "2020-01-01 09:00:00+09"]), (two, ["2", "2020-01-01 00:00:00+00"]))
        ):
            marker = f"/* {next(_markers)} */"
            assert client.rows(f"{ask} {marker}") == [row]
            assert client.ask(P("", ask), B(), E(), S) == f"1 2 D[{','.join(row)}] C[SELECT 1] ZI"
            client.run(f"{ask} {marker}")
            seen.update((number, node) for node in service.reached(marker))
        return {node for _, node in seen} >= {"replica1", "replica2"} and {client for client, _ in seen} == {0, 1}

    assert eventually(both, 10), seen


@pytest.mark.parametrize("encoding", ["SJIS", "BIG5", "GBK", "UHC", "GB18030", "JOHAB"])
def test_unsafe_encodings_are_not_read(serve: Serve, encoding: str) -> None:
    """A byte of a character may look like a quote or backslash there: everything goes to the primary."""
    service = serve(SPLIT)
    one = service.client(pool=2, client_encoding=encoding)
    for _ in range(5):
        assert not on_a_replica(service, one, "SELECT 1")
    one.run("SET client_encoding = 'UTF8'")
    assert eventually(lambda: on_a_replica(service, one, "SELECT 1"))
    one.run(f"SET client_encoding = '{encoding}'")
    for _ in range(5):
        assert not on_a_replica(service, one, "SELECT 1")


def test_backslashes_in_strings_are_not_read(serve: Serve) -> None:
    """With standard_conforming_strings off a text means something else than it seems to."""
    service = serve(SPLIT)
    one = service.client(pool=2, standard_conforming_strings="off", escape_string_warning="off")
    assert not on_a_replica(service, one, "SELECT 1")
    # By the usual reading a lone SELECT of one string.
    assert one.query(r"SELECT 'a\\'; INSERT INTO trail(item_id) VALUES (1) --'") == (
        "T[?column?] D[a\\] C[SELECT 1] C[INSERT 0 1] ZI"
    )
    one.run(r"SELECT 'a\\'; SET work_mem = '7MB' --'")
    assert service.client(pool=2).value("SHOW work_mem") == "4MB"
    assert one.value("SHOW work_mem") == "7MB"


def test_exported_snapshots(serve: Serve) -> None:
    """SET TRANSACTION SNAPSHOT works where the exporter is: transactions are on the primary."""
    service = serve(SPLIT)
    one, two = service.client(pool=2), service.client(pool=2)
    one.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    snapshot = one.value("SELECT pg_export_snapshot()")
    two.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", f"SET TRANSACTION SNAPSHOT '{snapshot}'")
    service.admin.run("INSERT INTO trail(item_id) VALUES (1)")
    for client in (one, two):
        assert client.value("SELECT count(*) FROM trail") == "0"
        client.run("COMMIT")


def test_two_phase_commit_over_split_reads(serve: Serve) -> None:
    service = serve(SPLIT)
    one, two = service.client(pool=2), service.client(pool=2)
    name = f"split_{service.database}"
    one.run("BEGIN", "INSERT INTO trail(item_id) VALUES (1)", f"PREPARE TRANSACTION '{name}'")
    assert two.query(f"COMMIT PREPARED '{name}'") == "C[COMMIT PREPARED] ZI"
    assert two.value("SELECT count(*) FROM trail") == "1"


def test_units_for_several_nodes_in_one_write(serve: Serve) -> None:
    """Reads go to a replica, writes to the primary; answers come in the order of the questions."""
    service = serve(SPLIT)
    one = service.client(pool=2)
    read, write = "SELECT count(*) FROM item", "INSERT INTO trail(item_id) VALUES (1)"
    for _ in range(5):
        one.send(*(Q(sql) for sql in (read, read, write, read, write)), P("", read), B(), E(), S, Q(write))
        assert show(one.until(times=7)) == " ".join(
            {
                "r": "T[count] D[20] C[SELECT 1] ZI",
                "w": "C[INSERT 0 1] ZI",
                "x": "1 2 D[20] C[SELECT 1] ZI",
            }[step]
            for step in "rrwrwxw"
        )
    assert one.value("SELECT count(*) FROM trail") == "15"


def test_a_reload_that_changes_a_reported_setting(service: Service, fleet: Fleet) -> None:
    """PostgreSQL tells a session of it with its next statement, or when its own value is taken back."""
    one, two = service.client(pool=1), service.client(pool=1)
    two.run("SET IntervalStyle = 'iso_8601'")
    assert one.status["IntervalStyle"] == "postgres"
    fleet.primary.query("ALTER SYSTEM SET IntervalStyle = 'sql_standard'")
    try:
        fleet.primary.reload()
        assert eventually(lambda: one.value("SHOW IntervalStyle") == "sql_standard")
        assert two.value("SHOW IntervalStyle") == "iso_8601"
        assert one.query("SELECT 1").endswith("ZI")
        assert one.status["IntervalStyle"] == "sql_standard"
        assert two.status["IntervalStyle"] == "iso_8601"
        assert service.client(pool=1).status["IntervalStyle"] == "sql_standard"
    finally:
        fleet.primary.query("ALTER SYSTEM RESET IntervalStyle")
        fleet.primary.reload()
