"""What ties a client to its server, for how long, and why the console says so."""

from __future__ import annotations

import itertools
import re
from functools import partial

import pytest

from ..support.rawpg import B, E, H, P, Q, S, Wire, show
from .conftest import Serve, Service, backend, eventually

ONE = "T[?column?] D[1] C[SELECT 1] ZI"


MORE = partial(pytest.param, marks=pytest.mark.full)
"""Another way to the same end, tried in the long run only."""


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve()


HOLD = "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT generate_series(1, 3); COMMIT"

TIES = [
    ("CREATE TEMP TABLE t(a int)", "temp", "DROP TABLE t"),
    ("CREATE TEMP VIEW v AS SELECT 1", "temp", "DROP VIEW v"),
    ("CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1", "temp", "DISCARD ALL"),
    ("SELECT 1 AS a INTO TEMP t", "temp", "DISCARD TEMP"),
    ("LISTEN jobs", "listen", "UNLISTEN jobs"),
    ("LISTEN a; LISTEN b", "listen", "UNLISTEN *"),
    (HOLD, "hold", "CLOSE c"),
    (HOLD, "hold", "CLOSE ALL"),
    ("PREPARE p AS SELECT 1", "prepare", "DEALLOCATE p"),
    ("PREPARE p AS SELECT 1; PREPARE q AS SELECT 2", "prepare", "DEALLOCATE ALL"),
    ("SELECT pg_advisory_lock(1)", "advisory", "SELECT pg_advisory_unlock(1)"),
    ("SELECT pg_try_advisory_lock(1, 2)", "advisory", "SELECT pg_advisory_unlock_all()"),
    ("SELECT pg_advisory_lock_shared(1)", "advisory", "DISCARD ALL"),
]


@pytest.mark.parametrize("tie, reason, undo", TIES)
@pytest.mark.parametrize("how", ["simple", MORE("extended"), MORE("transaction"), "behind the back"])
def test_tied_until_undone(service: Service, tie: str, reason: str, undo: str, how: str) -> None:
    """Also where a DO block does it, of which the text need not be understood."""
    one, two = service.client(pool=1), service.client(pool=1)
    match how:
        case "simple":
            one.run(tie)
        case "transaction" if tie is not HOLD:
            one.run("BEGIN", *tie.split(";"), "COMMIT")
        case "behind the back" if "PREPARE" not in tie and "INTO" not in tie and tie is not HOLD:
            do = "; ".join(f"EXECUTE '{part}'" for part in tie.split(";"))
            one.run(f"DO $$ BEGIN {do}; END $$")
        case _:
            for part in tie.split(";"):
                assert "E[" not in one.ask(P("", part), B(), E(), S)
    assert eventually(lambda: service.pin(one) == reason)
    two.send(Q("SELECT 1"))
    assert two.silence(0.15)
    assert one.query("SELECT 1") == ONE
    if how == "extended":
        assert "E[" not in one.ask(P("", undo), B(), E(), S)
    else:
        one.run(undo)
    assert show(two.until()) == ONE
    assert eventually(lambda: service.pin(one) is None)
    assert one.query("SELECT 1") == ONE


def test_several_reasons_at_once(service: Service) -> None:
    one, two = service.client(pool=1), service.client(pool=1)
    one.run("CREATE TEMP TABLE t(a int)", "LISTEN jobs", "SELECT pg_advisory_lock(1)")
    assert eventually(lambda: service.pin(one) == "advisory, listen, temp")
    one.run("UNLISTEN *")
    assert eventually(lambda: service.pin(one) == "advisory, temp")
    one.run("DROP TABLE t", "SELECT pg_advisory_unlock(1)")
    assert eventually(lambda: service.pin(one) is None)
    assert two.query("SELECT 1") == ONE


@pytest.mark.parametrize(
    "harmless",
    [
        "CREATE TABLE real(a int)",
        "BEGIN; CREATE TEMP TABLE t(a int) ON COMMIT DROP; COMMIT",
        "BEGIN; CREATE TEMP TABLE t(a int); ROLLBACK",
        "BEGIN; LISTEN jobs; ROLLBACK",
        "BEGIN; DECLARE c CURSOR FOR SELECT 1; COMMIT",
        "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; ROLLBACK",
        "SELECT pg_advisory_xact_lock(1)",
        "PREPARE p AS SELECT 1; DEALLOCATE p",
        "DO $$ BEGIN PERFORM 1; END $$",
        "NOTIFY jobs, 'x'",
        "SET LOCAL work_mem = '7MB'",
        "SELECT 1 AS note -- LISTEN, CREATE TEMP TABLE",
    ],
)
def test_not_tied(service: Service, harmless: str) -> None:
    one, two = service.client(pool=1), service.client(pool=1)
    one.run(harmless)
    assert two.query("SELECT 1") == ONE
    assert eventually(lambda: service.pin(one) is None)


def test_failed_attempts_tie_nobody(service: Service) -> None:
    one, two = service.client(pool=1), service.client(pool=1)
    one.run("CREATE TABLE real(a int)")
    for sql, code in (
        ("CREATE TEMP TABLE t(a nonsense)", "42704"),
        ("CREATE TEMP TABLE t(a int); SELECT 1/0", "22012"),
        ("PREPARE p AS SELECT nonsense", "42703"),
        ("LISTEN jobs; SELECT 1/0", "22012"),
    ):
        assert f"E[{code}] ZI" in one.query(sql)
        assert two.query("SELECT 1") == ONE
        assert eventually(lambda: service.pin(one) is None)
    # A lock outlives the failure of its transaction.
    assert one.query("SELECT pg_advisory_lock(5); SELECT 1/0").endswith("E[22012] ZI")
    assert eventually(lambda: service.pin(one) == "advisory")
    one.run("SELECT pg_advisory_unlock(5)")
    assert two.query("SELECT 1") == ONE


def test_a_tied_client_leaves(service: Service) -> None:
    """All it had is gone before the next one comes."""
    one = service.client(pool=1)
    one.run("CREATE TEMP TABLE item(a int)", "LISTEN jobs", "SELECT pg_advisory_lock(1)", "PREPARE p AS SELECT 1")
    one.run(HOLD, "SET work_mem = '7MB'")
    one.close()
    two = service.client(pool=1)
    assert two.rows("SELECT count(*), current_setting('work_mem') FROM item") == [["20", "4MB"]]
    assert two.value("SELECT count(*) FROM pg_listening_channels()") == "0"
    assert two.value("SELECT count(*) FROM pg_cursors") == "0"
    assert two.value("SELECT count(*) FROM pg_prepared_statements") == "0"
    assert service.admin.value("SELECT pg_try_advisory_lock(1)") == "t"
    service.admin.run("SELECT pg_advisory_unlock(1)")


# ---- code that can't be seen


_numbers = itertools.count(1)


def function(service: Service, body: str, arguments: str = "") -> str:
    """A function of a name that no other test has used, so that nothing is known of it."""
    name = f"hidden{next(_numbers)}"
    service.admin.run(
        f"CREATE FUNCTION {name}({arguments}) RETURNS int LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN 1; END $$"
    )
    return name


LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
BEHIND = {
    "setting": ("PERFORM set_config('work_mem', '7MB', false)", "SHOW work_mem", "4MB", "7MB"),
    "custom": (
        "PERFORM set_config('app.tenant', 'a', false)",
        "SELECT coalesce(current_setting('app.tenant', true), '')",
        "",
        "a",
    ),
    "path": ("PERFORM set_config('search_path', 'tenant_a', false)", "SHOW search_path", '"$user", public', "tenant_a"),
    "role": ("PERFORM set_config('role', 'pg_monitor', false)", "SELECT current_user", "pool2", "pg_monitor"),
    "temp": ("CREATE TEMP TABLE item(a int)", "SELECT count(*) FROM item", "20", "0"),
    "listen": ("LISTEN jobs", "SELECT count(*) FROM pg_listening_channels()", "0", "1"),
    "advisory": ("PERFORM pg_advisory_lock(1)", LOCKS, "0", "1"),
    "time-out": ("PERFORM set_config('statement_timeout', '777', false)", "SHOW statement_timeout", "0", "777ms"),
}


class Caller:
    """A client that calls one function, always by the same text, which really does something or does not."""

    def __init__(self, service: Service, what: str, protocol: str) -> None:
        body, *_ = BEHIND[what]
        self.client = service.client(pool=2)
        self._protocol = protocol
        self._name = function(service, f"IF really THEN {body}; END IF", "really bool")
        self._admin = service.admin
        if protocol == "simple":
            self._admin.run(
                f"CREATE TABLE flag_{self._name}(really bool)", f"INSERT INTO flag_{self._name} VALUES (false)"
            )
        if protocol == "named":
            assert self.client.ask(P("call", f"SELECT {self._name}($1)"), S) == "1 ZI"

    def call(self, really: bool) -> None:
        match self._protocol:
            case "simple":
                self._admin.run(f"UPDATE flag_{self._name} SET really = {really}")
                self.client.send(Q(f"SELECT {self._name}(really) FROM flag_{self._name}"))
            case "extended":
                self.client.send(P("", f"SELECT {self._name}($1)"), B("", "", [str(really)]), E(), S)
            case _:
                self.client.send(B("", "call", [str(really)]), E(), S)
        assert [str(r) for r in self.client.until() if r.kind in "DE"] == ["D[1]"]


@pytest.mark.parametrize("what", BEHIND)
@pytest.mark.parametrize("runs_before", [0, 5], ids=["at once", "harmless before"])
@pytest.mark.parametrize("protocol", [MORE("simple"), MORE("extended"), "named"])
def test_functions_that_change_the_session(service: Service, what: str, runs_before: int, protocol: str) -> None:
    """Whatever a function does to the session, nobody else sees any of it, however harmless it was before."""
    _, look, clean, _ = BEHIND[what]
    caller, others = Caller(service, what, protocol), [service.client(pool=2) for _ in range(2)]
    for _ in range(runs_before):
        caller.call(False)
    caller.call(True)
    for _ in range(2):
        for other in others:
            assert other.value(look) == clean
    caller.client.close()
    for other in others:
        other.run("BEGIN")
        assert other.value(look) == clean


@pytest.mark.parametrize("what", BEHIND)
@pytest.mark.parametrize("protocol", [MORE("simple"), MORE("named"), "extended"])
def test_own_state_from_functions(service: Service, what: str, protocol: str) -> None:
    """The client itself has what its function did, whoever used its server in between."""
    _, look, clean, changed = BEHIND[what]
    caller, others = Caller(service, what, protocol), [service.client(pool=2) for _ in range(2)]
    caller.call(True)
    for _ in range(3):
        for other in others:
            other.run("BEGIN")
            assert other.value(look) == clean
            if what in ("temp", "listen", "advisory"):
                other.run("COMMIT")
        for other in others:
            other.query("COMMIT")
        assert caller.client.value(look) == changed


def test_functions_are_known_by_database(service: Service) -> None:
    """The same text calls another function in another database; that one was harmless says nothing of it."""
    name = function(service, "PERFORM count(*) FROM item")
    elsewhere = Wire(("127.0.0.1", service.fleet.primary.port))
    elsewhere.login({"user": "postgres", "database": "postgres"})
    elsewhere.run(
        f"CREATE FUNCTION {name}() RETURNS int LANGUAGE plpgsql AS "
        "$$ BEGIN CREATE TEMP TABLE left_behind(a int); RETURN 1; END $$"
    )
    try:
        here = service.client(pool=1)
        for _ in range(6):
            here.run(f"SELECT {name}()")
        there, other = (service.client(pool=1, database="postgres") for _ in range(2))
        there.run(f"SELECT {name}()")
        other.send(Q("SELECT count(*) FROM left_behind"))
        assert eventually(lambda: service.pin(there) == "temp")
        there.close()
        assert show(other.until()) == "E[42P01] ZI"
    finally:
        elsewhere.run(f"DROP FUNCTION {name}()")


def test_harmless_functions_tie_nobody(service: Service) -> None:
    name = function(service, "PERFORM count(*) FROM item")
    one, two = service.client(pool=1), service.client(pool=1)
    for _ in range(6):
        assert one.value(f"SELECT {name}()") == "1"
        assert two.query("SELECT 1") == ONE
        assert eventually(lambda: service.pin(one) is None)


# ---- code that is not even named


SETS = "CREATE FUNCTION sets() RETURNS int LANGUAGE plpgsql AS $$ BEGIN {}; RETURN 1; END $$"
FIRES = (
    "CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM sets(); RETURN NEW; END $$;"
    "CREATE TRIGGER fires BEFORE INSERT ON logged FOR EACH ROW EXECUTE FUNCTION fires()"
)
LOGGED = "CREATE TABLE logged(item_id int); GRANT ALL ON logged TO PUBLIC"
INSERT = "INSERT INTO logged(item_id) VALUES (1)"
UNNAMED = {
    "view": ("CREATE VIEW quiet AS SELECT sets() AS x", "SELECT x FROM quiet"),
    "trigger": (FIRES, INSERT),
    "trigger of a view's table": (
        f"{FIRES}; CREATE VIEW above AS SELECT item_id FROM logged",
        "INSERT INTO above VALUES (1)",
    ),
    "default": ("ALTER TABLE logged ADD b int DEFAULT 0, ALTER b SET DEFAULT sets()", INSERT),
    "rule": ("CREATE RULE r AS ON INSERT TO logged DO ALSO SELECT sets()", INSERT),
    "cascade": (
        "CREATE TABLE owner(id int PRIMARY KEY); CREATE TABLE owned(id int REFERENCES owner ON DELETE CASCADE);"
        "INSERT INTO owner SELECT generate_series(1, 1000); INSERT INTO owned SELECT generate_series(1, 1000);"
        f"{FIRES.replace('INSERT ON logged', 'DELETE ON owned').replace('RETURN NEW', 'RETURN OLD')}",
        "DELETE FROM owner WHERE id = (SELECT min(id) FROM owner)",
    ),
}


_NAMES = re.compile(r"\b(logged|quiet|above|owner|owned|sets|fires)\b")


def anew(*texts: str) -> tuple[str, ...]:
    """The same about objects that no other test has used: a catalogue that was read before says nothing of them."""
    number = next(_numbers)
    return tuple(_NAMES.sub(rf"\g<1>{number}", text) for text in texts)


@pytest.fixture
def looking(serve: Serve) -> Service:
    """A proxy that looks often what others have changed."""
    return serve({"routing": {"catalogue_interval": 0.2}})


def run_as(client: Wire, sql: str, protocol: str) -> None:
    """Once, in one of the forms that have a way of their own."""
    match protocol:
        case "simple":
            client.send(Q(sql))
        case "extended":
            client.send(P("", sql), B(), E(), S)
        case "named":
            client.send(P("s", sql), S).until()
            client.send(B("", "s"), E(), S)
        case "open":
            client.send(P("", "SELECT 1"), B(), E(), H, P("", sql), B(), E(), S)
        case _:
            client.run("BEGIN", sql)
            client.send(Q("COMMIT"))
    assert "E" not in {reply.kind for reply in client.until()}


def stays_with_its_client(service: Service, sql: str, protocol: str, look: str, clean: str) -> bool:
    """Whether nobody else sees what one client's statement has set. Whatever it was, it is undone."""
    one, two = service.client(pool=1), service.client(pool=1)
    run_as(one, sql, protocol)
    two.send(Q(look))
    tied = two.silence(0.1)
    if tied:
        one.close()
    seen = [str(r) for r in two.until() if r.kind == "D"]
    for client in (two,) if tied else (one, two):
        client.run("DISCARD ALL")
        client.close()
    return seen == [f"D[{clean}]"]


@pytest.mark.parametrize("what", UNNAMED)
@pytest.mark.parametrize("protocol", ["simple", "named", "open", MORE("extended"), MORE("transaction")])
def test_code_without_a_name(looking: Service, what: str, protocol: str) -> None:
    """Not even a plain SELECT or INSERT of a table is what it seems: the catalogue tells, once it has been read."""
    body, look, clean, _ = BEHIND["setting"]
    objects, sql = UNNAMED[what]
    created, sql = anew(f"{SETS.format(body)}; {LOGGED}; {objects}", sql)
    looking.admin.run(created)
    assert eventually(lambda: stays_with_its_client(looking, sql, protocol, look, clean), 10)
    for _ in range(6):
        assert stays_with_its_client(looking, sql, protocol, look, clean)


@pytest.mark.parametrize("what", [name for name in BEHIND if name != "setting"])
def test_whatever_a_trigger_does(looking: Service, what: str) -> None:
    body, look, clean, _ = BEHIND[what]
    clean = clean.replace("pool2", "pool1")
    created, sql = anew(f"{SETS.format(body)}; {LOGGED}; {FIRES}", INSERT)
    looking.admin.run(created)
    assert eventually(lambda: stays_with_its_client(looking, sql, "simple", look, clean), 10)
    assert stays_with_its_client(looking, sql, "simple", look, clean)


# ---- what comes while nobody asks


def test_notifications_reach_the_right_client(service: Service) -> None:
    listeners = [service.client(pool=5) for _ in range(3)]
    for number, listener in enumerate(listeners):
        listener.run(f"LISTEN ch{number}")
    sender = service.client(pool=5)
    for number in (2, 0, 1):
        sender.run(f"NOTIFY ch{number}, 'for {number}'")
    for number, listener in enumerate(listeners):
        assert show([listener.read(5)]) == f"A[ch{number},for {number}]"
        assert listener.silence(0.1)
    assert sender.silence(0.1)
    # The server of one that has gone listens to nothing any longer, and its next client hears nothing.
    listeners[0].close()
    fresh = [service.client(pool=5) for _ in range(3)]
    for client in fresh:
        client.run("BEGIN")
        assert client.value("SELECT count(*) FROM pg_listening_channels()") == "0"
        client.run("COMMIT")
    sender.run("NOTIFY ch0, 'nobody'")
    assert all(client.silence(0.1) for client in (*fresh, *listeners[1:]))


def test_notification_while_a_statement_runs(service: Service) -> None:
    one, two = service.client(pool=2), service.client(pool=2)
    one.run("LISTEN jobs")
    one.send(Q("SELECT pg_sleep(0.3)"))
    two.run("NOTIFY jobs, 'now'")
    assert show(one.until()) in (
        "T[pg_sleep] D[] C[SELECT 1] A[jobs,now] ZI",
        "A[jobs,now] T[pg_sleep] D[] C[SELECT 1] ZI",
    )


@pytest.mark.parametrize("level", ["NOTICE", "WARNING", "INFO"])
def test_notices_go_to_who_caused_them(service: Service, level: str) -> None:
    one, two = service.client(pool=1), service.client(pool=1)
    two.send(Q("SELECT 1"))
    replies = one.query(f"DO $$ BEGIN RAISE {level} 'for one'; END $$")
    assert replies.startswith(f"N[{level} ")
    assert replies.endswith("C[DO] ZI")
    assert show(two.until()) == ONE


def test_servers_ended_while_idle(service: Service) -> None:
    """A free one takes nobody with it; a client that is tied to one gets its FATAL at once; others go on."""
    free, tied, in_transaction = (service.client(pool=3) for _ in range(3))
    tied.run("LISTEN jobs")
    in_transaction.run("BEGIN")
    free_pid, tied_pid, open_pid = (backend(client) for client in (free, tied, in_transaction))
    assert len({free_pid, tied_pid, open_pid}) == 3
    service.admin.run(f"SELECT pg_terminate_backend({free_pid}, 5000)")
    assert free.query("SELECT 1") == ONE
    service.admin.run(f"SELECT pg_terminate_backend({tied_pid}, 5000)")
    assert show(tied.until("EOF")) == "E[FATAL 57P01] EOF"
    service.admin.run(f"SELECT pg_terminate_backend({open_pid}, 5000)")
    assert show(in_transaction.until("EOF")) == "E[FATAL 57P01] EOF"
    clients = [service.client(pool=3) for _ in range(3)]
    for client in clients:
        client.run("BEGIN")
    assert not {free_pid, tied_pid, open_pid} & {backend(client) for client in clients}
    assert eventually(lambda: len(service.servers("pool3")) == 3)


def test_a_role_set_in_silence(service: Service) -> None:
    """Between two roles without rights nothing is reported to the client, so nothing may hang on a report."""
    user, role = f"plain_{service.database}", f"other_{service.database}"
    service.admin.run(f"CREATE ROLE {user} LOGIN", f"CREATE ROLE {role}", f"GRANT {role} TO {user}")
    name = function(service, f"IF really THEN PERFORM set_config('role', '{role}', false); END IF", "really bool")
    try:
        one, others = service.client(user=user), [service.client(user=user) for _ in range(2)]
        for really in (False, False, False, False, True):
            assert one.ask(P("", f"SELECT {name}($1)"), B("", "", [str(really)]), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
        for other in others:
            assert other.value("SELECT current_user") == user
        one.close()
        for other in others:
            other.run("BEGIN")
            assert other.value("SELECT current_user") == user
    finally:
        Wire.close_all()
        service.forget_connections()
        service.admin.run(f"DROP OWNED BY {user}, {role}", f"DROP ROLE {user}", f"DROP ROLE {role}")
