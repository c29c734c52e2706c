"""Roles and tenants: nobody ever works under another client's identity, or sees another tenant's rows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ..support.rawpg import B, E, P, Q, S, Wire, show
from .conftest import Serve, Service

TENANTS = ("ann", "bob", "cid")


@pytest.fixture
def service(serve: Serve) -> Iterator[Service]:
    """A table of which each tenant sees its own rows, by role and by setting."""
    service = serve()
    admin = service.admin
    roles = {tenant: f"{tenant}_{service.database}" for tenant in TENANTS}
    admin.run(
        "CREATE TABLE doc(owner name DEFAULT current_user, tenant text, body text)",
        "CREATE TABLE note(tenant text, body text)",
        *(f"CREATE ROLE {role}" for role in roles.values()),
        *(f"INSERT INTO doc VALUES ('{role}', '{tenant}', '{tenant}')" for tenant, role in roles.items()),
        *(f"INSERT INTO note VALUES ('{tenant}', '{tenant}')" for tenant in TENANTS),
        "GRANT ALL ON doc, note TO PUBLIC",
        "ALTER TABLE doc ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON doc USING (owner = current_user)",
        "ALTER TABLE note ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON note USING (tenant = current_setting('app.tenant', true))",
    )
    yield service
    Wire.close_all()
    service.forget_connections()
    for role in roles.values():
        service.admin.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def told(replies: str) -> str:
    """Without the reports of changed parameters, such as is_superuser behind SET ROLE."""
    return " ".join(word for word in replies.split(" ") if not word.startswith("S["))


def become(service: Service, client: Wire, tenant: str, how: str) -> None:
    role = f"{tenant}_{service.database}"
    match how:
        case "extended":
            for sql in (f"SET ROLE {role}", f"SET app.tenant = '{tenant}'"):
                assert told(client.ask(P("", sql), B(), E(), S)) == "1 2 C[SET] ZI"
        case "authorization":
            client.run(f"SET SESSION AUTHORIZATION {role}", f"SET app.tenant = '{tenant}'")
        case "set_config":
            client.run(f"SELECT set_config('role', '{role}', false), set_config('app.tenant', '{tenant}', false)")
        case "parameters":
            sql = "SELECT set_config($1, $2, false), set_config($3, $4, false)"
            replies = client.ask(P("", sql), B("", "", ["role", role, "app.tenant", tenant]), E(), S)
            assert told(replies).endswith("C[SELECT 1] ZI")
        case "transaction":
            client.run("BEGIN", f"SET ROLE {role}", f"SET app.tenant = '{tenant}'", "COMMIT")
        case _:
            client.run(f"SET ROLE {role}", f"SET app.tenant = '{tenant}'")


HOW = ("simple", "extended", "authorization", "set_config", "parameters", "transaction")


@pytest.mark.parametrize("how", HOW)
def test_another_tenants_rows_never_show(service: Service, how: str) -> None:
    """Three tenants on one pool, by both protocols, with statements that all of them share."""
    size = 5 if how == "parameters" else 1
    clients = {tenant: service.client(pool=size) for tenant in TENANTS}
    for tenant, client in clients.items():
        become(service, client, tenant, how)
        assert client.ask(P("docs", "SELECT body FROM doc"), P("notes", "SELECT body FROM note"), S) == "1 1 ZI"
    randomness = random.Random(7)
    for _ in range(10):
        for tenant in randomness.sample(TENANTS, 3):
            client = clients[tenant]
            for table in ("doc", "note"):
                assert client.query(f"SELECT body FROM {table}") == f"T[body] D[{tenant}] C[SELECT 1] ZI"
                assert client.ask(B("", f"{table}s"), E(), S) == f"2 D[{tenant}] C[SELECT 1] ZI"
                replies = client.ask(P("", f"SELECT body FROM {table}"), B(), E(), S)
                assert replies == f"1 2 D[{tenant}] C[SELECT 1] ZI"


@pytest.mark.parametrize("how", ["simple", "authorization"])
def test_at_the_same_time(service: Service, how: str) -> None:
    """All ask at once, on two servers: who waits gets the server with its own identity."""
    clients = [(tenant, service.client(pool=2)) for tenant in TENANTS * 4]
    for tenant, client in clients:
        become(service, client, tenant, how)
    for _ in range(10):
        for _, client in clients:
            client.send(Q("SELECT body FROM doc"), P("", "SELECT body FROM note"), B(), E(), S)
        for tenant, client in clients:
            replies = show(client.until(times=2))
            assert replies == f"T[body] D[{tenant}] C[SELECT 1] ZI 1 2 D[{tenant}] C[SELECT 1] ZI"


def test_a_client_without_a_tenant_sees_no_tenants_rows(service: Service) -> None:
    """One that took on no role behind one that did; and its own rights are back."""
    ann, nobody = service.client(pool=1), service.client(pool=1)
    role = f"bob_{service.database}"
    for _ in range(3):
        become(service, ann, "ann", "simple")
        assert nobody.value("SELECT current_user") == "pool1"
        assert nobody.value("SELECT count(*) FROM doc") == "3"
        replies = nobody.ask(P("", f"SET ROLE {role}"), B(), E(), P("", "SELECT body FROM note"), B(), E(), S)
        assert told(replies) == "1 2 C[SET] 1 2 C[SELECT 0] ZI"
        nobody.run("RESET ROLE")
        assert ann.value("SELECT body FROM note") == "ann"


@pytest.mark.parametrize("how", ["simple", "authorization", "set_config"])
def test_roles_under_errors_and_rollbacks(service: Service, how: str) -> None:
    one, two = service.client(pool=1), service.client(pool=1)
    become(service, one, "ann", how)
    become(service, two, "bob", how)
    for failing in ("SELECT 1/0", "SELEC", "INSERT INTO item VALUES (1)"):
        for client, tenant in ((one, "ann"), (two, "bob")):
            assert client.query(failing).startswith("E[")
            assert client.value("SELECT body FROM doc") == tenant
    # A change of role that is rolled back.
    role = f"cid_{service.database}"
    for client, tenant in ((one, "ann"), (two, "bob")):
        client.run("BEGIN", f"SET LOCAL app.tenant = '{'cid'}'", "SAVEPOINT a")
        client.query(f"SET ROLE {role}")
        client.run("ROLLBACK")
        assert client.value("SELECT body FROM doc") == tenant
        assert client.value("SELECT body FROM note") == tenant


def test_tenants_in_local_settings(service: Service) -> None:
    """The way of many frameworks: SET LOCAL in each transaction, nothing outside."""
    clients = [(tenant, service.client(pool=1)) for tenant in TENANTS]
    for _ in range(3):
        for tenant, client in clients:
            client.run("BEGIN", f"SET LOCAL ROLE {tenant}_{service.database}", f"SET LOCAL app.tenant = '{tenant}'")
            assert client.value("SELECT body FROM doc") == tenant
            assert client.value("SELECT body FROM note") == tenant
            client.run("COMMIT")
            assert client.value("SELECT current_user") == "pool1"
            assert client.value("SELECT coalesce(current_setting('app.tenant', true), '')") == ""


def test_reset_between_two_users_of_a_connection(service: Service) -> None:
    """What a client-side pool sends when a connection changes hands: nothing of the tenant stays."""
    one, two = service.client(pool=2), service.client(pool=2)
    for reset in ("RESET ALL; RESET ROLE", "DISCARD ALL"):
        become(service, one, "ann", "simple")
        assert one.value("SELECT body FROM note") == "ann"
        for sql in reset.split("; "):
            one.run(sql)
        for other in (two, None):
            if other is not None:
                other.run("BEGIN")
            assert one.value("SELECT current_user") == "pool2"
            assert one.value("SELECT coalesce(current_setting('app.tenant', true), '')") == ""
        two.run("COMMIT")


def test_a_role_set_by_a_function(service: Service) -> None:
    """A login function, as many applications have: it belongs to its client, whoever calls it how often."""
    service.admin.run(
        "CREATE FUNCTION enter(t text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN "
        f"PERFORM set_config('role', t || '_{service.database}', false), set_config('app.tenant', t, false); "
        "RETURN t; END $$",
    )
    clients = {tenant: service.client(pool=3) for tenant in TENANTS}
    for _ in range(3):
        for tenant, client in clients.items():
            client.run("RESET ROLE")
            replies = client.ask(P("", "SELECT enter($1)"), B("", "", [tenant]), E(), S)
            assert told(replies) == f"1 2 D[{tenant}] C[SELECT 1] ZI"
        for tenant, client in clients.items():
            assert client.value("SELECT body FROM doc") == tenant
            assert client.value("SELECT body FROM note") == tenant
