"""Reads whose names hide something: what the database's catalogue says of them decides, and never an old one."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import pytest

from ..support.fleet import Fleet
from ..support.rawpg import B, E, H, P, Q, S, Wire, X
from .conftest import Serve, Service, eventually

SPLIT: dict[str, Any] = {"routing": {"read_split": True, "catalogue_interval": 0.2}}
TWO = {"workers": 2, **SPLIT}
NEVER = 3600
"""Seconds; DDL that passes by the proxy is not noticed."""

HARMLESS = {
    "function": "SELECT item_label(2)",
    "view": "SELECT id FROM plain_view WHERE id = 2",
    "operator": "SELECT 1 <+> 2",
}
HIDDEN = {
    "view": "SELECT n FROM ticket_view",
    "function": "SELECT add_trail_mislabelled(1)",
    "operator": "SELECT 1 <*> 2",
    "unlogged": "SELECT count(*) FROM scratch",
    "joined": "SELECT i.id FROM item i JOIN scratch s ON s.a = i.id",
    "sequence": "SELECT last_value FROM ticket",
}
OBJECTS = """
CREATE VIEW plain_view AS SELECT id FROM item;
CREATE FUNCTION plus(a int, b int) RETURNS int LANGUAGE sql AS 'SELECT a + b';
CREATE OPERATOR <+> (LEFTARG = int, RIGHTARG = int, FUNCTION = plus);
CREATE FUNCTION count_both(i int, j int) RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT nextval('ticket') $$;
CREATE OPERATOR <*> (LEFTARG = int, RIGHTARG = int, FUNCTION = count_both);
"""


def on_copies(service: Service, client: Wire, sql: str) -> bool:
    """Whether a read is answered by a replica, sooner or later."""
    client.query(f"/* {sql} */ {sql}")
    return bool(service.reached(f"/* {sql} */") - {"primary"})


@pytest.fixture
def service(serve: Serve, fleet: Fleet) -> Service:
    service = serve(SPLIT)
    service.admin.run(OBJECTS)
    fleet.caught_up()
    return service


@pytest.mark.parametrize("what", HARMLESS)
def test_what_only_reads_goes_to_a_copy(service: Service, what: str) -> None:
    client = service.client(pool=20)
    assert eventually(lambda: on_copies(service, client, HARMLESS[what]), 10)


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("what", HIDDEN)
def test_what_hides_more_goes_to_the_primary(service: Service, what: str, extended: bool) -> None:
    client = service.client(pool=20)
    assert eventually(lambda: on_copies(service, client, HARMLESS["view"]), 10)
    for _ in range(4):
        sql = f"/* hidden */ {HIDDEN[what]}"
        replies = client.send(*(P("", sql), B(), E(), S) if extended else (Q(sql),)).until()
        assert {reply.kind for reply in replies if reply.kind in "DE"} == {"D"}
        assert service.reached("/* hidden */") <= {"primary"}


CHANGES = {
    "new view": ("CREATE VIEW late AS SELECT nextval('ticket') AS n", "SELECT n FROM late"),
    "other function": (
        "CREATE OR REPLACE FUNCTION plus(a int, b int) RETURNS int LANGUAGE sql AS $$ SELECT nextval('ticket')::int $$",
        "SELECT 1 <+> 2",
    ),
    "other view": (
        "CREATE OR REPLACE VIEW plain_view AS SELECT id + add_trail(1) * 0 AS id FROM item",
        "SELECT id FROM plain_view WHERE id = 2",
    ),
    "unlogged": ("ALTER TABLE item SET UNLOGGED", "SELECT count(*) FROM item"),
    "policy": (
        "ALTER TABLE item ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
        " CREATE POLICY p ON item USING (count_both(id, 1) > 0)",
        "SELECT count(*) FROM item",
    ),
}


@pytest.mark.parametrize("settings", [SPLIT, TWO], ids=["one worker", "two workers"])
@pytest.mark.parametrize("within", ["alone", "transaction"])
@pytest.mark.parametrize("what", CHANGES)
def test_after_ddl_no_old_catalogue_is_believed(
    serve: Serve, fleet: Fleet, settings: dict[str, Any], within: str, what: str
) -> None:
    service = serve(settings)
    service.admin.run(OBJECTS)
    fleet.caught_up()
    writer, readers = service.client(pool=20), [service.client(pool=20) for _ in range(3)]
    ddl, read = CHANGES[what]
    for reader in readers:
        assert eventually(
            lambda reader=reader: on_copies(service, reader, "SELECT id FROM plain_view WHERE id = 2"), 10
        )
    for statement in ("BEGIN", ddl, "COMMIT") if within == "transaction" else (ddl,):
        writer.query(statement)
    for _ in range(5):
        for reader in readers:
            assert reader.value(f"/* after */ {read}") is not None
            assert service.reached("/* after */") <= {"primary"}
    if what != "unlogged":
        # It has been read again, and the rest goes to copies as before.
        assert eventually(lambda: on_copies(service, readers[0], "SELECT count(*) FROM trail"), 10)


@pytest.mark.parametrize("extended", [False, True])
def test_after_ddl_code_is_watched_again(serve: Serve, fleet: Fleet, extended: bool) -> None:
    """A function was known to be harmless, so nobody looked what it left behind; now it is another one."""
    service = serve({"routing": {"read_split": True, "catalogue_interval": NEVER}}, own=True)
    service.admin.run(OBJECTS)
    fleet.caught_up()
    client, other = service.client(pool=1), service.client(pool=1)
    assert eventually(lambda: on_copies(service, client, "SELECT plus(1, 2)"), 10)
    sql = "INSERT INTO trail(item_id) VALUES (plus(1, 2))"
    for _ in range(3):
        client.query(sql)
    client.query(
        "CREATE OR REPLACE FUNCTION plus(a int, b int) RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM set_config('work_mem', '7MB', false); RETURN a + b; END $$"
    )
    client.send(*(P("", sql), B(), E(), S) if extended else (Q(sql),)).until()
    assert other.value("SHOW work_mem") == "4MB"
    assert client.value("SHOW work_mem") == "7MB"


def test_ddl_that_passes_by_is_seen_at_the_next_look(service: Service) -> None:
    client = service.client(pool=20)
    assert eventually(lambda: on_copies(service, client, "SELECT id FROM plain_view WHERE id = 2"), 10)
    # Nothing that a standby would refuse, so nothing else than the catalogue can tell.
    service.admin.run("CREATE OR REPLACE VIEW plain_view AS SELECT id + pg_is_in_recovery()::int * 100 AS id FROM item")

    tries = itertools.count()

    def moved() -> bool:
        mark = f"/* moved {next(tries)} */"
        client.query(f"{mark} SELECT id FROM plain_view WHERE id = 2")
        return service.reached(mark) <= {"primary"}

    assert eventually(moved, 10)
    assert client.value("SELECT id FROM plain_view WHERE id = 2") == "2"


MOVED = "CREATE OR REPLACE VIEW plain_view AS SELECT id + pg_is_in_recovery()::int * 100 AS id FROM item"
"""What a standby doesn't refuse, and answers otherwise."""


@pytest.mark.parametrize(
    "sent",
    [
        (Q(MOVED), X),
        (P("", MOVED), B(), E(), S, X),
        (Q("COMMIT"), X),
        (Q("COMMIT PREPARED 'moved'"),),
    ],
)
def test_ddl_counts_whoever_hears_of_its_end(serve: Serve, fleet: Fleet, sent: tuple[bytes, ...]) -> None:
    service = serve({"routing": {"read_split": True, "catalogue_interval": NEVER}}, own=True)
    service.admin.run(OBJECTS)
    fleet.caught_up()
    service.admin.run(
        "CREATE TABLE slow (a int)",
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER slowly AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION slowly()",
    )
    leaver, reader = service.client(pool=20), service.client(pool=20)
    assert eventually(lambda: on_copies(service, reader, "SELECT id FROM plain_view WHERE id = 2"), 10)
    if sent[0] == Q("COMMIT"):
        # Which takes a while, so that nobody is there when it ends.
        leaver.query(f"BEGIN; {MOVED}; INSERT INTO slow VALUES (1)")
    elif sent[0] == Q("COMMIT PREPARED 'moved'"):
        leaver.query(f"BEGIN; {MOVED}; PREPARE TRANSACTION 'moved'")
        assert eventually(lambda: on_copies(service, reader, "SELECT count(*) FROM trail"), 10)
    leaver.send(*sent)
    if sent[-1] == X:
        leaver.close()
    else:
        leaver.until()
    moved = "SELECT pg_get_viewdef('plain_view') LIKE '%recovery%'"
    assert eventually(lambda: service.admin.value(moved) == "t", 10)
    fleet.caught_up()
    for _ in range(20):
        assert reader.value("SELECT id FROM plain_view WHERE id = 2") == "2"


def test_databases_that_do_not_exist_take_no_place(serve: Serve, fleet: Fleet) -> None:
    service = serve(SPLIT, own=True)
    service.admin.run(OBJECTS)
    fleet.caught_up()
    for number in range(70):
        client = service.open()
        client.login({"user": "pool20", "database": f"nowhere{number}"})
        assert client.log[-1].kind != "Z"
        client.close()
    reader = service.client(pool=20)
    assert eventually(lambda: on_copies(service, reader, HARMLESS["view"]), 10)


def test_a_worker_that_comes_later_is_told(serve: Serve, fleet: Fleet) -> None:
    service = serve({"routing": {"read_split": True, "catalogue_interval": NEVER}}, own=True)
    service.admin.run(OBJECTS)
    fleet.caught_up()
    before = service.client(pool=20)
    assert eventually(lambda: on_copies(service, before, HARMLESS["view"]), 10)
    os.kill(int(service.proxy.wait_for("worker_started")["pid"]), signal.SIGKILL)
    client = service.client(pool=20)
    assert eventually(lambda: on_copies(service, client, HARMLESS["function"]), 10)


def test_a_database_that_cannot_be_read_keeps_its_reads_on_the_primary(serve: Serve, fleet: Fleet) -> None:
    fleet.primary.query("DROP ROLE IF EXISTS watcher; CREATE ROLE watcher LOGIN")
    fleet.caught_up()
    service = serve({**SPLIT, "health": {"user": "watcher"}}, own=True)
    service.admin.run(f"REVOKE CONNECT ON DATABASE {service.database} FROM PUBLIC")
    fleet.caught_up()
    client = service.client(pool=20)
    for _ in range(4):
        assert client.value("/* kept */ SELECT count(*) FROM item") == "20"
        assert service.reached("/* kept */") <= {"primary"}
    assert service.proxy.wait_for("catalogue_unreadable")["database"] == service.database
    service.admin.run(f"GRANT CONNECT ON DATABASE {service.database} TO PUBLIC")
    assert eventually(lambda: on_copies(service, client, "SELECT count(*) FROM item"), 10)


def test_without_the_controller_what_changed_stays_on_the_primary(serve: Serve, fleet: Fleet) -> None:
    service = serve({"routing": {"read_split": True, "catalogue_interval": NEVER}}, own=True)
    service.admin.run(OBJECTS)
    fleet.caught_up()
    client = service.client(pool=20)
    assert eventually(lambda: on_copies(service, client, "SELECT id FROM plain_view WHERE id = 2"), 10)
    os.kill(int(service.proxy.wait_for("child_started", child="controller")["pid"]), signal.SIGKILL)
    client.query("CREATE VIEW late AS SELECT nextval('ticket') AS n")
    for _ in range(5):
        assert client.value("/* late */ SELECT n FROM late") is not None
        assert service.reached("/* late */") <= {"primary"}
    # The one that comes after it reads the catalogue anew.
    assert eventually(lambda: on_copies(service, client, "SELECT id FROM plain_view WHERE id = 2"), 20)


# ---- clients whose reads are not split


SETTER = "PERFORM set_config('work_mem', '7MB', false)"
WATCHED = f"""
CREATE TABLE logged (a int); CREATE TABLE other (a int); GRANT ALL ON logged, other TO PUBLIC;
CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {SETTER}; RETURN NEW; END $$;
CREATE TRIGGER t BEFORE INSERT ON logged FOR EACH ROW EXECUTE FUNCTION fires();
CREATE FUNCTION tidies() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TRIGGER t BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION tidies();
"""
REPLACED = (
    f"CREATE OR REPLACE FUNCTION tidies() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {SETTER}; RETURN NEW; END $$"
)
OTHER = "INSERT INTO other VALUES (1)"


def leaks(service: Service, *sent: bytes) -> bool:
    """Whether another client sees what one client's messages have set."""
    one, two = service.client(pool=1), service.client(pool=1)
    replies = one.send(*sent).until()
    for _ in range(sum(message[:1] == b"Q" for message in sent) - 1):
        replies += one.until()
    assert "E" not in {reply.kind for reply in replies}
    seen = two.value("SHOW work_mem")
    for client in (one, two):
        client.run("DISCARD ALL")
        client.close()
    return seen != "4MB"


@pytest.fixture
def unsplit(serve: Serve) -> Service:
    """A proxy that splits no reads and has read the catalogue once."""
    service = serve({"routing": {"catalogue_interval": NEVER}}, own=True)
    service.admin.run(WATCHED)
    assert eventually(lambda: not leaks(service, Q("INSERT INTO logged VALUES (1)")), 10)
    assert not leaks(service, Q(OTHER))
    return service


IN_ONE_GO = {
    "after": (Q(REPLACED), Q(OTHER)),
    "one string": (Q(f"{REPLACED}; {OTHER}"),),
    "transaction": (Q("BEGIN"), Q(REPLACED), Q(OTHER), Q("COMMIT")),
    "batch": (P("", REPLACED), B(), E(), P("", OTHER), B(), E(), S),
    "open batch": (P("", REPLACED), B(), E(), H, P("", OTHER), B(), E(), S),
    "open batch and Query": (P("", REPLACED), B(), E(), H, Q(OTHER)),
}


@pytest.mark.parametrize("how", IN_ONE_GO)
def test_behind_ddl_the_session_is_looked_at(unsplit: Service, how: str) -> None:
    assert not leaks(unsplit, *IN_ONE_GO[how])


@pytest.mark.parametrize("extended", [False, True])
def test_ddl_of_others_counts_at_once(unsplit: Service, extended: bool) -> None:
    client = unsplit.client(pool=20)
    client.run(REPLACED)
    assert not leaks(unsplit, *((P("", OTHER), B(), E(), S) if extended else (Q(OTHER),)))
