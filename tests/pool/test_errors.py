"""After any error a server is in step and clean, or closed; and one pool's trouble is its own."""

from __future__ import annotations

import pytest

from ..support.rawpg import COPY_DONE, B, C, D, E, H, P, Q, S, Wire, copy_data, copy_fail, function_call, show
from .conftest import Serve, Service, backend, eventually

ONE = "T[?column?] D[1] C[SELECT 1] ZI"
COPY_IN = "COPY item FROM STDIN"


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve()


ERRORS = {
    "syntax": (Q("SELEC"),),
    "run time": (Q("SELECT 1/0"),),
    "in the rows": (Q("SELECT 1/(5 - n) FROM generate_series(1, 9) n"),),
    "several": (Q("SELECT 1; SELECT 1/0; SELECT 2"),),
    "parse": (P("", "SELEC"), B(), E(), S),
    "bind": (P("", "SELECT $1::int"), B("", "", ["x"]), D("P"), E(), S),
    "execute": (P("", "SELECT 1/$1::int"), B("", "", ["0"]), D("P"), E(), S),
    "unknown name": (B("", "nope"), E(), S),
    "unknown portal": (E("nope"), S),
    "close and fail": (C("S", "nope"), P("x", "SELEC"), C("P", "nope"), S),
    "flushes": (P("", "SELECT 1/$1::int"), H, B("", "", ["0"]), H, E(), H, S),
    "rows then error": (P("", "SELECT 1/(5 - n) FROM generate_series(1, 9) n"), B(), E("", 3), E("", 3), E(), S),
    "function call": (function_call(99999999),),
    "copy in": (Q(COPY_IN), copy_data(b"not a number\n"), COPY_DONE),
    "copy in given up": (Q(COPY_IN), copy_data(b"100\ta\t1\n"), copy_fail("enough")),
    "copy out": (Q("COPY (SELECT 1/(5 - n) FROM generate_series(1, 9) n) TO STDOUT"),),
    "transaction": (Q("BEGIN"), Q("SELECT 1/0"), Q("SELECT 1"), Q("ROLLBACK")),
    "set": (Q("SET work_mem = 'banana'"),),
    "constraint at commit": (
        Q("CREATE TABLE c(a int UNIQUE DEFERRABLE INITIALLY DEFERRED)"),
        Q("BEGIN"),
        Q("INSERT INTO c VALUES (1), (1)"),
        Q("COMMIT"),
    ),
    "conflict": (Q("INSERT INTO item VALUES (1)"),),
    "time-out": (Q("BEGIN"), Q("SET LOCAL statement_timeout = 20"), Q("SELECT pg_sleep(5)"), Q("ROLLBACK")),
}
READY = {name: sum(message[:1] in (b"Q", b"S", b"F") for message in messages) for name, messages in ERRORS.items()}


@pytest.mark.parametrize("what", ERRORS)
def test_in_step_after_errors(service: Service, what: str) -> None:
    """The same server goes on, its answers belong to their questions, and nothing is left in it."""
    one, two = service.client(pool=1), service.client(pool=1)
    pid = backend(one)
    replies = one.send(*ERRORS[what]).until(times=READY[what])
    assert replies[-1].body == b"I", show(replies)
    assert any(r.kind == "E" for r in replies)
    for number in range(3):
        assert two.query(f"SELECT {number}") == f"T[?column?] D[{number}] C[SELECT 1] ZI"
        assert one.ask(P("", "SELECT 'x'"), B(), E(), S) == "1 2 D[x] C[SELECT 1] ZI"
    assert backend(one) == backend(two) == pid
    assert two.value("SHOW work_mem") == "4MB"
    assert two.value("SELECT count(*) FROM item") == "20"


@pytest.mark.parametrize("what", ERRORS)
def test_errors_with_others_waiting(service: Service, what: str) -> None:
    """Each waiter gets its own answer, whatever the one before it met."""
    one, others = service.client(pool=1), [service.client(pool=1) for _ in range(5)]
    one.send(*ERRORS[what])
    for number, other in enumerate(others):
        other.send(Q(f"SELECT {number}"), P("", f"SELECT 1{number}"), B(), E(), S)
    assert one.until(times=READY[what])[-1].body == b"I"
    for number, other in enumerate(others):
        want = f"T[?column?] D[{number}] C[SELECT 1] ZI 1 2 D[1{number}] C[SELECT 1] ZI"
        assert show(other.until(times=2)) == want


@pytest.mark.parametrize("what", sorted(ERRORS))
def test_gone_before_the_error(service: Service, what: str) -> None:
    """The client has left when its error comes: the next one meets nothing of it."""
    two = service.client(pool=1)
    for how in ("close", "reset"):
        one = service.client(pool=1)
        one.send(*ERRORS[what])
        getattr(one, how)()
        assert two.query("SELECT 1") == ONE
        assert two.query("BEGIN") == "C[BEGIN] ZT"
        assert two.value("SELECT count(*) FROM item WHERE id >= 100") == "0"
        assert two.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert len(service.servers("pool1")) == 1


def test_errors_name_no_values(service: Service) -> None:
    """What clients sent as parameters, and other clients' data, is in no line of the log."""
    one = service.client(pool=1)
    secret = "hush8441"
    one.ask(P("", "SELECT $1::int"), B("", "", [secret]), E(), S)
    one.query(f"SELECT '{secret}'::int")
    one.ask(P("", "SELECT $1::text"), B("", "", [secret]), E(), S)
    one.run(f"SET app.password = '{secret}'")
    service.client(pool=1).query("SELECT 1")
    one.send(b"\0\0\0\0\0" + secret.encode())
    assert one.until("EOF")[-1].kind == "EOF"
    assert eventually(lambda: any("client_failed" in line for line in service.proxy.lines))
    assert not [line for line in service.proxy.lines if secret in line]


# ---- one pool's trouble


def health(service: Service) -> dict[str | None, str | None]:
    rows = service.console("SHOW NODES")
    return {row["name"]: row["health"] for row in rows}


def test_login_failure_is_that_pools_own(service: Service) -> None:
    """The node refuses one user: its clients get the node's words at once; the node stays in service."""
    before = health(service)
    for _ in range(5):
        refused = service.open()
        assert refused.login({"user": "absent_role", "database": service.database}).endswith("E[FATAL 28000] EOF")
        assert 'role "absent_role" does not exist' in refused.log[-2].fields["M"]
        assert service.open().login({"user": "pool1", "database": "absent"}).endswith("E[FATAL 3D000] EOF")
    assert service.client(pool=1).query("SELECT 1") == ONE
    assert health(service) == before
    assert set(before.values()) == {"active"}


def test_a_login_failure_while_the_pool_is_in_use(service: Service) -> None:
    """The role loses its right to log in: open servers go on, who needs a new one is told the node's words."""
    user = f"fading_{service.database}"
    service.admin.run(f"CREATE ROLE {user} LOGIN")
    try:
        one, two = service.client(user=user), service.client(user=user)
        one.run("BEGIN")
        service.admin.run(f"ALTER ROLE {user} NOLOGIN")
        assert two.query("SELECT 1") == "E[28000] ZI"
        assert one.query("COMMIT") == "C[COMMIT] ZI"
        assert service.client(pool=2).query("SELECT 1") == ONE
        assert set(health(service).values()) == {"active"}
        service.admin.run(f"ALTER ROLE {user} LOGIN")
        assert eventually(lambda: two.query("SELECT 1") == ONE)
    finally:
        Wire.close_all()
        service.forget_connections()
        service.admin.run(f"DROP ROLE {user}")


def test_a_node_that_is_full(service: Service) -> None:
    """A role's own limit on the node: clients wait for the servers there are, and are all served."""
    user = f"narrow_{service.database}"
    service.admin.run(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT 2")
    try:
        clients = [service.client(user=user) for _ in range(10)]
        for client in clients:
            client.send(Q("SELECT 1 FROM pg_sleep(0.05)"))
        for client in clients:
            assert show(client.until()) == ONE
        assert len(service.servers(user)) <= 2
        assert set(health(service).values()) == {"active"}
    finally:
        Wire.close_all()
        service.forget_connections()
        service.admin.run(f"DROP ROLE {user}")


# ---- what changes for a role or database on the node


@pytest.mark.parametrize("of", ["ROLE {user}", "DATABASE {database}", "ROLE {user} IN DATABASE {database}"])
def test_altered_defaults_reach_the_pool(service: Service, of: str) -> None:
    """ALTER ROLE ... SET holds for new logins, so for new clients: their servers must be new ones too."""
    user = f"altered_{service.database}"
    service.admin.run(f"CREATE ROLE {user} LOGIN")
    try:
        old = service.client(user=user)
        assert old.value("SHOW work_mem") == "4MB"
        service.admin.run(f"ALTER {of.format(user=user, database=service.database)} SET work_mem = '7MB'")
        assert eventually(lambda: service.client(user=user).value("SHOW work_mem") == "7MB", 8)
    finally:
        Wire.close_all()
        service.forget_connections()
        service.admin.run(f"ALTER DATABASE {service.database} RESET ALL", f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def test_a_dropped_role_has_no_servers(service: Service) -> None:
    """Nobody works on under a role that the node does not know any more."""
    user = f"dropped_{service.database}"
    seen = len(service.proxy.lines)
    service.admin.run(f"CREATE ROLE {user} LOGIN")
    service.proxy.wait_for("logins_changed", 20, after=seen, node="primary")
    one = service.client(user=user)
    assert one.query("SELECT 1") == ONE
    service.admin.run(f"DROP ROLE {user}")
    login = {"user": user, "database": service.database}
    assert eventually(lambda: service.open().login(login).endswith("E[FATAL 28000] EOF"), 8)
    assert one.query("SELECT 1") != ONE
