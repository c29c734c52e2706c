"""Hints, settings and rules: where statements go by them, and who has the last word."""

from __future__ import annotations

import urllib.request

import pytest

from ..support.rawpg import B, E, P, Q, S, Wire
from .conftest import Serve, Service, eventually

COUNT = "SELECT count(*) FROM item"
RULES = {
    "closed": {"table": ["trail"], "user": "pool3", "reject": "the trail is closed"},
    "pinned": {"application_name": "report*", "node": "replica2"},
    "final": {"application_name": "final", "route": "primary", "final": True},
    "slow": {"pattern": "pg_sleep", "timeout": "300ms"},
    "tried": {"shadow": True, "table": "item", "route": "primary"},
}


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve({"routing": {"read_split": True}, "rules": RULES})


def on_copies(service: Service, client: Wire, marker: str = "") -> None:
    """Return when copies answer this client."""
    ready = f"/* {marker} ready */ {COUNT}"
    assert eventually(lambda: client.query(ready) and service.reached(ready) - {"primary"}, 10)


def where(service: Service, client: Wire, sql: str, marker: str) -> set[str]:
    """Which nodes answer this statement when it is run often."""
    on_copies(service, client, marker)
    for _ in range(4):
        client.query(sql)
    return service.reached(sql)


HINTS = {
    "/* pgtrident: route=primary */ {}": {"primary"},
    "{} /*pgtrident_route='primary'*/": {"primary"},
    "/* pgtrident: node=replica2 */ {}": {"replica2"},
    "/* pgtrident: consistency=strong */ {}": {"primary"},
    "/* pgtrident: route=replica node=replica1 */ {}": {"replica1"},
}


@pytest.mark.parametrize("form", ["query", "unnamed", "named"])
@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_decides(service: Service, hint: str, form: str) -> None:
    client = service.client(pool=20)
    on_copies(service, client)
    marker = f"{form} {HINTS[hint]} {len(hint)}"
    sql = hint.format(f"SELECT '{marker.replace(chr(39), '')}', count(*) FROM item")
    if form == "named":
        assert client.ask(P("n", sql), S) == "1 ZI"
    sent = {"query": (Q(sql),), "unnamed": (P("", sql), B(), E(), S), "named": (B("", "n"), E(), S)}[form]
    for _ in range(4):
        assert ",20]" in client.ask(*sent)
    assert service.reached(sql) - HINTS[hint] <= ({"primary"} if form == "named" else set())


def test_a_hint_moves_no_write(service: Service) -> None:
    client = service.client(pool=20)
    assert client.ask(Q("/* pgtrident: route=replica */ INSERT INTO trail(item_id) VALUES (1)")).startswith(
        "C[INSERT 0 1]"
    )


def test_the_server_gets_the_text_as_it_was(service: Service) -> None:
    client = service.client(pool=20)
    sql = "/* pgtrident: route=primary key='a b' */ SELECT current_query()"
    assert client.value(sql) == sql


def test_a_setting_decides_and_is_reset(service: Service) -> None:
    client = service.client(pool=20)
    client.query("SET pgtrident.route = 'primary'")
    for _ in range(4):
        client.query(f"{COUNT} -- set")
    assert service.reached("-- set") == {"primary"}
    client.query("RESET pgtrident.route")
    assert where(service, client, f"{COUNT} -- reset", "reset") <= {"replica1", "replica2"}


def test_a_rule_for_an_application(service: Service) -> None:
    client = service.client(pool=20, application_name="report of the day")
    assert where(service, client, f"{COUNT} -- ruled", "ruled") == {"replica2"}
    # A hint has the word before a rule.
    for _ in range(4):
        client.query(f"/* pgtrident: node=replica1 */ {COUNT} -- hinted")
    assert service.reached("-- hinted") == {"replica1"}
    # And the application may call itself something else.
    client.query("SET application_name = 'final'")
    for _ in range(4):
        client.query(f"/* pgtrident: node=replica1 */ {COUNT} -- final")
    assert service.reached("-- final") == {"primary"}


def test_a_rule_rejects(service: Service) -> None:
    client = service.client(pool=3)
    assert client.ask(Q("SELECT count(*) FROM trail")) == "E[42501] ZI"
    assert client.ask(P("", "DELETE FROM trail"), B(), E(), S) == "E[42501] ZI"
    assert client.value(COUNT) == "20"


@pytest.mark.parametrize("sql", ["SELECT pg_sleep(20)", "/* pgtrident: timeout=200ms */ SELECT pg_sleep(20)"])
def test_a_time_is_up(service: Service, sql: str) -> None:
    client = service.client(pool=20)
    assert client.ask(Q(sql)).endswith("E[57014] ZI")
    assert client.value("SELECT 1") == "1"


def test_what_is_ignored_is_told_once_and_counted(service: Service) -> None:
    client = service.client(pool=20)
    sql = f"/* pgtrident: colour=red */ {COUNT}"
    client.query("SET pgtrident.debug = 'on'")
    assert [reply.kind for reply in client.send(Q(sql)).until()].count("N") == 1
    assert [reply.kind for reply in client.send(Q(sql)).until()].count("N") == 0
    url = f"http://127.0.0.1:{service.proxy.admin_port}/metrics"

    def counted() -> bool:
        page = urllib.request.urlopen(url, timeout=10).read().decode()
        return any(
            line.startswith("pgtrident_hints_ignored_total") and float(line.split()[-1]) >= 2
            for line in page.splitlines()
        )

    assert eventually(counted)


def test_shadow_rules_are_only_counted(service: Service) -> None:
    client = service.client(pool=20)
    assert where(service, client, f"{COUNT} -- shadow", "shadow") <= {"replica1", "replica2"}

    def row() -> dict[str, str | None]:
        return next(row for row in service.console("SHOW RULES") if row["name"] == "tried")

    assert eventually(lambda: int(row()["differs"] or 0) >= 4)
    assert (row()["shadow"], row()["held"]) == ("yes", "0")


def test_stale_data_where_a_rule_says_so(serve: Serve) -> None:
    rules = {"old": {"table": "item", "stale": True}}
    service = serve(
        {"routing": {"read_split": True}, "lag": {"replica_out": 0, "replica_in": 0}, "rules": rules}, own=True
    )
    assert service.proxy.wait_for("worker_started")
    client = service.client(pool=20)
    for replica in service.fleet.replicas:
        replica.query("SELECT pg_wal_replay_pause()")
    try:
        service.admin.run("CREATE TABLE more(a int)")
        assert service.proxy.wait_for("copy_out")
        sql = f"{COUNT} -- stale"
        assert eventually(lambda: client.query(sql) and service.reached(sql) - {"primary"}, 10)
    finally:
        for replica in service.fleet.replicas:
            replica.query("SELECT pg_wal_replay_resume()")
