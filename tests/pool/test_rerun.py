"""A read that a standby refuses, because what it uses has changed unseen, is answered by the primary."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from ..support.fleet import Fleet
from ..support.rawpg import B, D, E, P, Q, S, Wire, show
from .conftest import Serve, Service, eventually

BLIND: dict[str, Any] = {"routing": {"read_split": True, "catalogue_interval": 3600}}
"""What passes by the proxy isn't noticed."""
OBJECTS = """
CREATE VIEW plain_view AS SELECT id FROM item;
CREATE FUNCTION answer(i int) RETURNS int LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN i; END $$;
"""
UNSEEN = """
ALTER TABLE item SET UNLOGGED;
CREATE OR REPLACE VIEW plain_view AS SELECT nextval('ticket')::int AS id;
"""
REFUSED = {"unlogged": ("SELECT count(*) FROM item", "20"), "writes": ("SELECT id FROM plain_view", None)}


def raising(state: str, where: str = "true") -> str:
    """`answer`, replaced so that it fails with this SQLSTATE where a condition holds."""
    return f"""CREATE OR REPLACE FUNCTION answer(i int) RETURNS int LANGUAGE plpgsql STABLE AS
 $$ BEGIN IF {where} THEN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END IF; RETURN i; END $$"""


ON_STANDBY = "pg_is_in_recovery()"


@pytest.fixture
def service(serve: Serve, fleet: Fleet, database: str) -> Service:
    fleet.primary.query(OBJECTS, dbname=database)
    fleet.caught_up()
    return serve(BLIND, own=True)


def reader(service: Service) -> Wire:
    """A client whose reads go to copies."""
    client = service.client(pool=20)
    mark = "/* ready */ SELECT count(*) FROM trail"
    assert eventually(lambda: client.query(mark) and service.reached("/* ready */") - {"primary"}, 10)
    return client


def unseen(service: Service, sql: str) -> None:
    """A change that does not pass through the proxy."""
    service.admin.run(sql)
    service.fleet.caught_up()


def simple(client: Wire, sql: str) -> str:
    return client.query(sql)


def unnamed(client: Wire, sql: str) -> str:
    return client.ask(P("", sql), B(), E(), S)


def described(client: Wire, sql: str) -> str:
    return client.ask(P("", sql), B(), D("P"), E(), S)


def named(client: Wire, sql: str) -> str:
    return client.ask(P("n", sql), B("", "n"), E(), S)


FORMS: dict[str, Callable[[Wire, str], str]] = {
    "simple": simple,
    "unnamed": unnamed,
    "described": described,
    "named": named,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_standby_refuses_the_primary_answers(service: Service, what: str, form: str) -> None:
    client = reader(service)
    unseen(service, UNSEEN)
    sql, expected = REFUSED[what]
    for _ in range(3):
        replies = FORMS[form](client, sql)
        assert "E[" not in replies, replies
        assert replies.endswith("C[SELECT 1] ZI")
        if form == "named":
            assert client.ask(B("", "n"), E(), S).endswith("C[SELECT 1] ZI")
            client.query("DEALLOCATE n")
    if expected is not None:
        assert client.value(sql) == expected
    # Only the first was tried on a copy: its shape is remembered, whatever the constants.
    assert service.proxy.wait_for("shape_learned")["database"] == service.database


def test_a_statement_prepared_before(service: Service) -> None:
    client = reader(service)
    assert client.ask(P("n", "SELECT count(*) FROM item"), S) == "1 ZI"
    assert client.ask(B("", "n"), E(), S) == "2 D[20] C[SELECT 1] ZI"
    unseen(service, UNSEEN)
    for _ in range(3):
        assert client.ask(B("", "n"), E(), S) == "2 D[20] C[SELECT 1] ZI"


def test_a_shape_is_remembered_for_all_its_texts_and_clients(service: Service) -> None:
    client = reader(service)
    other = reader(service)
    unseen(service, UNSEEN)
    assert client.value("SELECT count(*) FROM item WHERE label <> 'a'") == "20"
    assert service.proxy.wait_for("shape_learned")
    for number in range(5):
        assert other.value(f"SELECT count(*) FROM item WHERE label <> 'b{number}'") == "20"
    # One more of another shape ends the count: what workers report comes once a second.
    assert other.value("SELECT max(qty) FROM item WHERE label <> 'a'") == "20"
    assert eventually(lambda: reruns(service) >= 2)
    assert reruns(service) == 2


def reruns(service: Service) -> int:
    url = f"http://127.0.0.1:{service.proxy.admin_port}/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return sum(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith("pgtrident_reruns_total"))


@pytest.mark.parametrize("form", FORMS)
def test_what_the_primary_refuses_too_is_told_once_and_not_learned(service: Service, form: str) -> None:
    client = reader(service)
    unseen(service, raising("0A000"))
    sql = "SELECT answer(1)"
    for _ in range(2):
        replies = FORMS[form](client, sql)
        assert replies.count("E[0A000]") == 1, replies
        assert replies.endswith("ZI")
        client.query("DEALLOCATE ALL")
    unseen(service, raising("0A000", "false"))
    assert FORMS[form](client, f"/* there */ {sql}").endswith("C[SELECT 1] ZI")
    assert service.reached("/* there */") - {"primary"}


def test_a_conflict_with_replay_is_answered_and_not_learned(service: Service) -> None:
    client = reader(service)
    unseen(service, raising("40001", ON_STANDBY))
    for _ in range(3):
        assert client.value("SELECT answer(7)") == "7"
    unseen(service, raising("40001", "false"))
    assert client.value("/* there */ SELECT answer(7)") == "7"
    assert service.reached("/* there */") - {"primary"}


def test_an_answer_that_has_begun_is_not_given_twice(service: Service) -> None:
    client = reader(service)
    unseen(service, raising("0A000", f"i = 3000 AND {ON_STANDBY}"))
    replies = client.send(Q("SELECT answer(n), repeat('x', 1000) FROM generate_series(1, 4000) n")).until()
    assert [reply.kind for reply in replies].count("E") == 1
    assert 0 < [reply.kind for reply in replies].count("D") < 3000
    assert replies[-1].kind == "Z"


def test_reads_that_follow_at_once_keep_their_order(service: Service) -> None:
    client = reader(service)
    unseen(service, raising("0A000", f"i = 1 AND {ON_STANDBY}"))
    answers = client.ask(
        *(message for n in (0, 1, 2) for message in (P("", f"SELECT answer({n})"), B(), E(), S)), times=3
    )
    # Three units were on their way before the second failed: to run it elsewhere would change their order.
    assert [part for part in answers.split() if part[0] in "DE"] == ["D[0]", "E[0A000]", "D[2]"]


def test_a_write_is_never_run_again(service: Service) -> None:
    client = reader(service)
    service.admin.run(
        "CREATE FUNCTION writes() RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO trail(item_id) VALUES (7); RAISE EXCEPTION 'no' USING ERRCODE = '0A000'; END $$"
    )
    assert client.query("SELECT writes()").endswith("E[0A000] ZI")
    assert reruns(service) == 0


def test_shapes_are_kept_listed_and_forgotten(service: Service) -> None:
    client = reader(service)
    unseen(service, UNSEEN)
    sql = "SELECT count(*) FROM item WHERE label <> 'secret'"
    assert client.value(sql) == "20"
    assert eventually(lambda: service.console("SHOW SHAPES"))
    (row,) = service.console("SHOW SHAPES")
    assert (row["database"], row["sqlstate"]) == (service.database, "0A000")
    assert row["text"] == "SELECT count(*) FROM item WHERE label <> $1"
    for child in ("controller", "worker 0"):
        seen = len(service.proxy.lines)
        os.kill(int(service.proxy.wait_for("child_started", child=child)["pid"]), signal.SIGKILL)
        service.proxy.wait_for("child_started", after=seen, child=child)
    Wire.close_all()
    service.forget_connections()
    client = reader(service)
    assert service.console("SHOW SHAPES") == [row]
    assert client.value(sql) == "20"
    unseen(service, "ALTER TABLE item SET LOGGED")
    client.query("CREATE TABLE bump (a int)")  # the catalogue is read again, and would let it go

    def others_go() -> bool:
        client.query("/* other */ SELECT max(qty) FROM item")
        return bool(service.reached("/* other */") - {"primary"})

    assert eventually(others_go, 10)
    assert client.value(f"/* kept */ {sql}") == "20"
    assert service.reached("/* kept */") <= {"primary"}
    assert service.console(f"FORGET SHAPE '{row['shape']}'") == [{"forgotten": "1"}]
    assert service.console("SHOW SHAPES") == []

    def tried_again() -> bool:
        assert client.value(f"/* again */ {sql}") == "20"
        return bool(service.reached("/* again */") - {"primary"})

    assert eventually(tried_again)


def test_what_one_worker_learned_all_know(serve: Serve, fleet: Fleet, database: str) -> None:
    fleet.primary.query(OBJECTS, dbname=database)
    fleet.caught_up()
    service = serve({"workers": 2, **BLIND}, own=True)
    clients = [reader(service) for _ in range(8)]  # so many that neither worker has them all
    assert len({service.shown(client)["worker"] for client in clients}) == 2
    unseen(service, UNSEEN)
    assert clients[0].value("SELECT count(*) FROM item") == "20"
    assert service.proxy.wait_for("shape_learned")
    assert eventually(lambda: reruns(service) == 1)
    for client in clients:
        # The news is on its way to the other worker when it is written down.
        assert eventually(lambda client=client: not_tried(service, client))


def not_tried(service: Service, client: Wire) -> bool:
    before = reruns(service)
    assert client.value("/* shared */ SELECT count(*) FROM item") == "20"
    return reruns(service) == before


def test_a_stale_plan_is_no_refusal(service: Service) -> None:
    """It is parsed anew where it ran, or refused as by PostgreSQL; nothing is learned of it."""
    client = reader(service)
    assert client.ask(P("n", "SELECT * FROM trail LIMIT 1"), S) == "1 ZI"
    assert client.ask(B("", "n"), E(), S) == "2 C[SELECT 0] ZI"
    unseen(service, "ALTER TABLE trail ADD COLUMN more int")
    # Nothing was described, so that nobody is told rows of another shape than he knows.
    for _ in range(3):
        assert client.ask(B("", "n"), E(), S) == "2 C[SELECT 0] ZI"
    assert service.console("SHOW SHAPES") == []


def test_a_serializable_session_says_nothing_of_its_statements(service: Service) -> None:
    client, other = reader(service), reader(service)
    client.query("SET default_transaction_isolation = 'serializable'")
    for _ in range(3):
        assert client.value("SELECT count(*) FROM item") == "20"
    assert eventually(lambda: reruns(service) >= 1)
    assert service.console("SHOW SHAPES") == []
    other.query("/* free */ SELECT count(*) FROM item")
    assert service.reached("/* free */") - {"primary"}


def test_a_conflict_that_ends_the_session_on_a_standby(service: Service, fleet: Fleet) -> None:
    """Within a subtransaction a conflict with replay ends the server's session (FATAL 40001), and nothing follows."""
    client = reader(service)
    unseen(
        service,
        "CREATE OR REPLACE FUNCTION answer(i int) RETURNS int LANGUAGE plpgsql STABLE AS $$ BEGIN"
        " PERFORM count(*) FROM item; BEGIN"
        " IF to_regclass('moved') IS NULL THEN PERFORM pg_sleep(20); END IF;"
        " EXCEPTION WHEN division_by_zero THEN END; RETURN i; END $$",
    )
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event = 'PgSleep'"
    for replica in fleet.replicas:
        replica.query("ALTER SYSTEM SET max_standby_streaming_delay = 0")
        replica.query("SELECT pg_reload_conf()")
    try:
        client.send(Q("SELECT answer(1)"))
        assert eventually(lambda: any(r.query(sleeping, service.database)[0][0] for r in fleet.replicas))
        service.admin.run("BEGIN; CREATE TABLE moved (); ALTER TABLE item ADD COLUMN more int; COMMIT")
        answer = show(client.until())
    finally:
        for replica in fleet.replicas:
            replica.query("ALTER SYSTEM RESET max_standby_streaming_delay")
            replica.query("SELECT pg_reload_conf()")
    assert answer == "T[answer] D[1] C[SELECT 1] ZI"
