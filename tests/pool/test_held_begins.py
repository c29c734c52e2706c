"""Transactions whose BEGIN is held back, in all the ways in which the protocol lets one go wrong: beside each proxied
session one of the primary itself does the same on a database that began alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from ..support.rawpg import COPY_DONE, SILENCE, B, C, D, E, H, P, Q, S, Wire, X, copy_data, copy_fail, function_call
from .conftest import Serve, Service, eventually

COUNT = "SELECT count(*) FROM item"
WRITE = "INSERT INTO trail(item_id) VALUES (7)"
ROUTING = {"read_split": True, "transactions": "optimistic", "catalogue_interval": 0.5}


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve({"routing": ROUTING})


def on_replicas(service: Service, **params: str) -> Wire:
    """A client whose reads go to replicas."""
    client = service.client(pool=20, **params)
    ready = f"/* ready */ {COUNT}"
    assert eventually(lambda: client.query(ready) and service.reached(ready) - {"primary"}, 10)
    return client


@pytest.fixture
def twin(service: Service) -> Iterator[str]:
    """Another database with the same content."""
    name = service.fleet.take_database()
    yield name
    service.fleet.give_back_database(name)


def of_primary(service: Service, database: str) -> Wire:
    """A client of the primary itself."""
    client = Wire(("127.0.0.1", service.fleet.primary.port))
    client.login({"user": "pool20", "database": database})
    return client


def batch(sql: str) -> tuple[bytes, ...]:
    return P("", sql), B(), E(), S


IDS = "SELECT id FROM item ORDER BY id"
FAIL = (Q("SELECT 1/0 FROM item"),)

Steps = list[tuple[bytes, ...]]

WITHIN: dict[str, Steps] = {
    # A portal lives until its transaction ends.
    "portal": [(P("", IDS), B("p"), E("p", 3), S), (E("p", 3), S), (Q(WRITE),), (E("p"), S), (E("p"), S)],
    "unnamed portal": [(P("", IDS), B(), E("", 3), S), (E("", 3), S), (E(), S)],
    "bound": [(P("s", IDS), S), (B("p", "s"), S), (D("P", "p"), S), (E("p", 2), S), (C("P", "p"), S), (E("p"), S)],
    "bound unnamed": [(P("", IDS), B(), S), (E("", 2), S)],
    "described": [(P("", IDS), B(), D("P"), S), (E("", 2), S)],
    # Statements.
    "named": [
        (P("p", "SELECT qty FROM item WHERE id = $1", [23]), D("S", "p"), S),
        (B("", "p", ["3"]), E(), S),
        (Q(WRITE),),
        (B("", "p", ["4"]), E(), S),
    ],
    "unnamed": [
        (P("", COUNT), S),
        (B(), E(), S),
        (P("w", WRITE), B("", "w"), E(), S),
        (B(), E(), S),
        (Q(COUNT),),
        (B(), E(), S),
    ],
    "write prepared": [(P("w", WRITE), S), (Q(COUNT),), (B("", "w"), E(), S), (B("", "w"), E(), S)],
    "closed": [(P("s", COUNT), S), (C("S", "s"), S), (B("", "s"), E(), S)],
    "no such": [(B("", "nothing"), E(), S), (Q(COUNT),)],
    "no such portal": [(E("nothing"), S), (Q(COUNT),)],
    "taken": [(P("s", COUNT), S), (P("s", COUNT), S), (Q(WRITE),)],
    "sql names": [(Q("PREPARE q AS SELECT 7"),), (Q("EXECUTE q"),), (Q(COUNT),)],
    "executed by SQL": [(P("s", COUNT), S), (Q("EXECUTE s"),), (Q("DEALLOCATE s"),), (Q(COUNT),)],
    # Batches.
    "sync": [(S,), (S, S)],
    "flush": [(H, S), (P("", COUNT), B(), H, E(), S)],
    "parse only": [(P("", COUNT), S), (P("", WRITE), S), (P("", "selec"), S)],
    "describe": [(P("", COUNT), D("S"), S), (P("", WRITE), D("S"), S)],
    "several": [(P("", COUNT), B(), E(), P("", WRITE), B(), E(), S), (Q(COUNT),)],
    "fails between": [(P("", COUNT), B(), E(), P("", "SELECT 1/0"), B(), E(), P("", WRITE), B(), E(), S), (Q(COUNT),)],
    "reads": [(P("", COUNT), B(), E(), B(), E(), S)],
    "query behind a batch": [(P("", COUNT), B(), E(), Q(WRITE), S), (Q(COUNT),)],
    "pipeline": [(*batch(COUNT), *batch(WRITE), *batch(COUNT), *batch("SELECT 1/0"), *batch(COUNT), Q("SELECT 1"), S)],
    "pipelined reads": [(*batch(COUNT), Q(COUNT), *batch("SELECT 1"), *batch("SELECT 1/0 FROM item"), *batch(COUNT))],
    "call": [(function_call(177, b"2", b"3"),), (Q(COUNT),)],
    "empty": [(Q(""),), batch(""), (Q(" -- nothing"),)],
    "copy out": [(Q("COPY item TO STDOUT"),), (Q("COPY (SELECT 1) TO STDOUT"),), batch("COPY item TO STDOUT")],
    "copy in": [(Q("COPY trail FROM STDIN"), copy_data(b"900\t1\n"), COPY_DONE), (Q("SELECT count(*) FROM trail"),)],
    "copy fails": [(Q("COPY trail FROM STDIN"), copy_fail("no")), (Q(COUNT),)],
    # The transaction's own.
    "begin": [(Q("BEGIN"),), (Q(COUNT),)],
    "begin by batch": [batch("BEGIN"), batch(COUNT)],
    "savepoint": [(Q("SAVEPOINT a"),), (Q(COUNT),), FAIL, (Q("ROLLBACK TO a"),), (Q(COUNT),)],
    "level": [(Q("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"),), (Q("SHOW transaction_isolation"),)],
    "read only": [(Q("SET TRANSACTION READ ONLY"),), (Q(WRITE),)],
    "shown": [
        (Q("SHOW transaction_read_only"),),
        (Q("SHOW default_transaction_read_only"),),
        (Q("SHOW in_hot_standby"),),
        (Q("SELECT pg_is_in_recovery()"),),
        (Q("SELECT current_setting('transaction_read_only'), current_setting('transaction_isolation')"),),
    ],
    "two phases": [(Q(WRITE),), (Q("PREPARE TRANSACTION 'held'"),), (Q("ROLLBACK PREPARED 'held'"),)],
    "two phases, empty": [(Q("PREPARE TRANSACTION 'held'"),), (Q("ROLLBACK PREPARED 'held'"),)],
    "commit prepared": [(Q("COMMIT PREPARED 'nothing'"),), (Q(COUNT),)],
    "cursor": [(Q(f"DECLARE c CURSOR FOR {IDS}"),), (Q("FETCH 2 FROM c"),), (Q("CLOSE c"),)],
    "snapshot": [(Q("SELECT length(pg_export_snapshot()) > 0"),), (Q("SET TRANSACTION SNAPSHOT 'x'"),)],
    "advisory": [(Q("SELECT pg_advisory_xact_lock(9)"),), (Q("SELECT count(*) FROM pg_locks WHERE objid = 9"),)],
    # The session's.
    "set": [(Q("SET work_mem = '1MB'"),), (Q("SHOW work_mem"),), (Q(COUNT),)],
    "path": [(Q("SET search_path = tenant_b"),), (Q("SELECT x FROM w"),)],
    "local path": [(Q("SET LOCAL search_path = tenant_b"),), (Q("SELECT x FROM w"),)],
    "local form": [(Q("SET LOCAL bytea_output = escape"),), (Q("SELECT decode('610a', 'hex') FROM item LIMIT 1"),)],
    "local digits": [(Q("SET LOCAL extra_float_digits = 0"),), (Q("SELECT sum(0.1::float8) FROM item WHERE id < 4"),)],
    "local own": [(Q("SET LOCAL app.own = 'x'"),), (Q("SHOW app.own"),)],
    "local wrong": [(Q("SET LOCAL work_mem = 'much'"),)],
    "role": [(Q("SET ROLE pool1"),), (Q("SELECT current_user, count(*) FROM item"),)],
    "reset": [(Q("RESET ALL"),), (Q(COUNT),)],
    "discard": [(Q("DISCARD ALL"),), (Q(COUNT),)],
    "discard plans": [(Q("DISCARD PLANS"),), (Q(COUNT),)],
    "vacuum": [(Q("VACUUM item"),), (Q(COUNT),)],
    "ddl": [(Q("CREATE TABLE made(a int)"),), (Q("SELECT count(*) FROM made"),)],
    "temp": [(Q("CREATE TEMP TABLE item AS SELECT 1 AS id"),), (Q(COUNT),)],
    "own settings": [(Q("SET pgtrident.consistency = 'eventual'"),), (Q(COUNT),)],
    "hints": [
        (Q(f"/* pgtrident: route=primary */ {COUNT}"),),
        (Q(f"/* pgtrident: route=replica */ {WRITE}"),),
        (Q(f"/* pgtrident: node=replica1 */ {COUNT}"),),
        (Q("SELECT count(*) FROM trail"),),
    ],
    "hint first": [(Q(f"/* pgtrident: route=replica */ {COUNT}"),), (Q(f"/* pgtrident: node=replica2 */ {WRITE}"),)],
    "columnar hint": [(Q(f"/* pgtrident: route=columnar */ {COUNT}"),), (Q(WRITE),)],
    # Nothing but its end takes a failed one further.
    "failed": [FAIL, (Q(COUNT),), (Q(WRITE),), (S,)],
    "failed, empty": [FAIL, (Q(""),), batch(""), (Q(";"),)],
    "failed, syntax": [FAIL, (Q("selec"),), (P("", "selec"), S)],
    "failed, savepoint": [FAIL, (Q("SAVEPOINT a"),), (Q("ROLLBACK TO a"),), (Q("RELEASE a"),)],
    "failed, chain": [FAIL, (Q("COMMIT AND CHAIN"),), (Q(COUNT),)],
    "failed, rolled back and chained": [FAIL, (Q("ROLLBACK AND CHAIN"),), (Q(WRITE),)],
    "failed, two phases": [FAIL, (Q("PREPARE TRANSACTION 'held'"),)],
    "failed, several": [FAIL, (Q("ROLLBACK; SELECT 1"),)],
    "failed, several in vain": [FAIL, (Q("SELECT 1; ROLLBACK"),)],
    "failed, begin": [FAIL, (Q("BEGIN"),), (Q("START TRANSACTION"),)],
    "failed, parse": [FAIL, (P("", COUNT), S), (P("s", "ROLLBACK"), S), (B("", "s"), E(), S), (Q(COUNT),)],
    "failed, known": [(P("s", COUNT), S), FAIL, (B("", "s"), E(), S), (D("S", "s"), S), (C("S", "s"), S)],
    "failed, unknown": [FAIL, (B("", "nothing"), E(), S), (D("S", "nothing"), S), (E("nothing"), S)],
    "failed, set": [FAIL, (Q("SET work_mem = '1MB'"),), (Q("SHOW work_mem"),)],
    "failed, copy": [FAIL, (Q("COPY trail FROM STDIN"),)],
    "failed, call": [FAIL, (function_call(177, b"2", b"3"),)],
    "failed, flush": [FAIL, (P("", COUNT), H, B(), E(), S), (Q(COUNT),)],
    "failed in a batch": [batch("SELECT 1/0 FROM item"), batch(COUNT), batch("ROLLBACK"), batch(COUNT)],
}

BEGINS = {
    "": (Q("BEGIN"),),
    "noted": (Q("BEGIN -- for a request"),),
    "by batch": batch("BEGIN"),
    "with a read": (P("", "BEGIN"), B(), E("", 1), *batch(COUNT)),
    "named": (P("b", "START TRANSACTION READ WRITE"), B("", "b"), D("P"), E(), S),
    "with a parameter": (P("", "BEGIN"), B("", "", ["1"]), E(), S),
}
ENDS: dict[str, Steps] = {
    "commit": [(Q("COMMIT"),)],
    "rollback": [(Q("ROLLBACK"),)],
    "end": [(Q("END TRANSACTION;"),)],
    "abort": [(Q("/* no */ ABORT"),)],
    "batch": [batch("COMMIT")],
    "named": [(P("c", "ROLLBACK"), B("", "c"), E(), S), (B("", "c"), D("P"), E(), S), (B(), E(), S)],
    "with a read": [(P("", "COMMIT"), B(), E(), *batch(COUNT))],
    "chain": [(Q("COMMIT AND CHAIN"),), (Q(COUNT),), (Q("ROLLBACK AND NO CHAIN"),)],
}
AFTER = [(Q("SHOW work_mem"),), (Q(COUNT),), (Q("SELECT count(*) FROM trail"),), (Q("COMMIT"),), (Q(WRITE),)]


def answers(client: Wire, steps: Steps) -> list[str]:
    """What each step is told; the client goes then."""
    told = []
    for step in steps:
        times = sum(message[:1] in (b"Q", b"S", b"F") for message in step)
        told.append(client.ask(*step, times=times))
        if told[-1].endswith(SILENCE):
            break
    client.send(X).until("EOF")
    client.socket.close()
    return told


def difference(steps: Steps, got: list[str], want: list[str]) -> str:
    """The first answer that is not PostgreSQL's; "" if there is none."""
    alike = itertools.zip_longest(steps, got, want)
    return next((f"{step}: {g} instead of {w}" for step, g, w in alike if g != w or g is None), "")


FORMS = [
    ("", False, "commit"),
    ("noted", True, "chain"),
    ("by batch", True, "batch"),
    ("with a read", False, "named"),
]
ALL_FORMS = itertools.product(BEGINS, (False, True), ENDS)


@pytest.mark.parametrize(
    "begin, read_first, end",
    [*FORMS, *(pytest.param(*form, marks=pytest.mark.full) for form in ALL_FORMS if form not in FORMS)],
)
def test_all_is_as_on_the_primary(service: Service, twin: str, begin: str, read_first: bool, end: str) -> None:
    """Each with connections of its own, on two databases that become other ones alike."""
    on_replicas(service)
    for what, within in WITHIN.items():
        reads = [(Q(COUNT),)] if read_first else []
        steps = [BEGINS[begin], *reads, *within, *ENDS[end], *AFTER]
        got = answers(service.client(pool=20), steps)
        assert not difference(steps, got, answers(of_primary(service, twin), steps)), what


_ALONE = ("query behind a batch", "failed, copy", "unnamed portal", "bound unnamed", "described")
MIXED = [what for what in WITHIN if "two phases" not in what and what not in _ALONE]
"""Others can't follow just anything: a prepared transaction outlives its connection, a Query that is skipped is not
answered, copy data may be waited for, and an unnamed portal of before that is run in a failed transaction makes
PostgreSQL 15 crash."""


def random_steps(rng: random.Random) -> Steps:
    """Some transactions of one connection, each of parts of some cases."""
    steps: Steps = []
    for _ in range(rng.randint(1, 4)):
        steps.append(BEGINS[rng.choice(["", "", "noted", "by batch"])])
        for _ in range(rng.randint(0, 4)):
            steps += [(Q(COUNT),)] * (rng.random() < 0.5) + WITHIN[rng.choice(MIXED)]
        steps += ENDS[rng.choice(list(ENDS))]
    return steps


def compare_random(service: Service, twin: str, seeds: range) -> None:
    on_replicas(service)
    for seed in seeds:
        steps = random_steps(random.Random(seed))
        got = answers(service.client(pool=20), steps)
        assert not difference(steps, got, answers(of_primary(service, twin), steps)), seed


def test_any_order_is_as_on_the_primary(service: Service, twin: str) -> None:
    compare_random(service, twin, range(40))


@pytest.mark.full
@pytest.mark.parametrize("start", range(1_000, 11_000, 1_000))
def test_many_orders_are_as_on_the_primary(service: Service, twin: str, start: int) -> None:
    compare_random(service, twin, range(start, start + 1_000))


def test_a_renewed_plan_fails_nothing(service: Service) -> None:
    """A statement whose plan is out of date is parsed anew where it runs by itself: nothing has failed."""
    client = on_replicas(service)
    assert client.ask(P("s", "SELECT * FROM item WHERE id = 1"), S) == "1 ZI"
    run = B("", "s"), D("P"), E(), S
    both = {"replica1", "replica2"}
    assert eventually(lambda: client.ask(*run) and service.reached("SELECT * FROM item") == both)
    service.admin.run("ALTER TABLE item ADD COLUMN more int")
    service.fleet.caught_up()
    client.query("BEGIN")
    assert client.ask(*run) == "2 T[id,label,qty,more] D[1,item1,1,null] C[SELECT 1] ZT"
    assert client.query(WRITE) == "C[INSERT 0 1] ZT"
    assert client.query("COMMIT") == "C[COMMIT] ZI"


def test_rows_that_look_like_the_end(service: Service) -> None:
    """Wherever a chunk of a long answer ends, only its end has the transaction's status."""
    ready = "5a0000000549"
    rows = "generate_series(0, 5) AS n, (SELECT FROM item LIMIT 1) AS one"
    sql = f"SELECT decode(repeat('00', n) || repeat('{ready}', 200000), 'hex') FROM {rows} ORDER BY n"
    client = on_replicas(service)
    client.query("BEGIN")
    replies = client.send(P("", sql), B(formats=[1]), E(), S).until()
    got = [reply.values[0] for reply in replies if reply.kind == "D"]
    assert got == [bytes(n) + bytes.fromhex(ready) * 200_000 for n in range(6)]
    assert str(replies[-1]) == "ZT"
    client.query("COMMIT")


@pytest.mark.parametrize("level", ["eventual", "session", "global"])
def test_nothing_goes_back(serve: Serve, level: str) -> None:
    """One replica stands still after the transaction has begun: what was read on the other one is read again."""
    service = serve({"routing": {**ROUTING, "consistency": level}})
    client = on_replicas(service)
    total = "SELECT sum(qty) FROM item"
    for replica in service.fleet.replicas:
        client.query("BEGIN")
        first = int(client.value(total) or 0)
        with service.fleet.paused(replica):
            service.admin.run("UPDATE item SET qty = qty + 1 WHERE id = 1")
            seen = [int(client.value(total) or 0) for _ in range(30)]
        assert seen == sorted(seen), (first, seen)
        client.query("COMMIT")


@pytest.mark.parametrize(
    "rule, holds",
    [({"table": ["trail"], "route": "primary"}, True), ({"priority": "low"}, True), ({"consistency": "strong"}, False)],
)
def test_beside_rules(serve: Serve, rule: dict[str, object], holds: bool) -> None:
    """A rule that has nothing against it lets a transaction read on replicas."""
    service = serve({"routing": ROUTING, "rules": {"one": rule}})
    client = service.client(pool=20)
    if holds:
        client = on_replicas(service)
    client.query("BEGIN")
    client.query(f"{COUNT} -- ruled")
    assert (service.reached("-- ruled") != {"primary"}) is holds
    client.query("SELECT count(*) FROM trail -- named")
    assert (service.reached("-- named") == {"primary"}) is (rule.get("priority") is None)
    assert client.query("COMMIT") == "C[COMMIT] ZI"


@pytest.mark.parametrize(
    "setting, name, held",
    [
        ("primary", "web", True),
        ("primary", "batch", False),
        ("optimistic", "jobs", False),
        ("optimistic", "web", True),
    ],
)
def test_an_application_has_transactions_of_its_own(serve: Serve, setting: str, name: str, held: bool) -> None:
    rules = {
        "web": {"application_name": "web", "transactions": "optimistic"},
        "jobs": {"application_name": "jobs", "transactions": "primary"},
    }
    service = serve({"routing": {**ROUTING, "transactions": setting}, "rules": rules})
    client = on_replicas(service, application_name=name)
    numbers = iter(range(10_000))

    def on_replica() -> bool:
        mark = f"-- application {next(numbers)}."
        client.query("BEGIN")
        client.query(f"{COUNT} {mark}")
        reached = service.reached(mark)
        assert client.query("COMMIT") == "C[COMMIT] ZI"
        return reached != {"primary"}

    assert eventually(on_replica, 10) if held else not any(on_replica() for _ in range(5))


@pytest.mark.parametrize("begin, end", [("by batch", "batch"), ("with a read", "named"), ("named", "batch")])
def test_drivers_that_send_it_in_a_batch_read_on_replicas(service: Service, begin: str, end: str) -> None:
    """As pgjdbc does: BEGIN comes ahead of the first statement, and both end by one Sync."""
    client = on_replicas(service)
    numbers = iter(range(10_000))

    def on_replica() -> bool:
        mark = f"-- batch {next(numbers)}."
        if begin == "named":
            client.ask(C("S", "b"), S)
        assert "C[" in client.ask(*BEGINS[begin])
        client.ask(*batch(f"{COUNT} {mark}"))
        reached = service.reached(mark)
        client.ask(C("S", "c"), S)
        assert client.ask(*ENDS[end][0]).endswith("ZI")
        return reached != {"primary"}

    assert eventually(on_replica, 10)


def test_no_rule_takes_its_beginning_to_a_replica(serve: Serve) -> None:
    """What a rule would have on a replica belongs to the transaction that begins with it."""
    rule = {"pattern": ["moved"], "route": "replica", "move_writes": True}
    service = serve({"routing": ROUTING, "rules": {"moves": rule}})
    client = on_replicas(service)
    client.query("BEGIN")
    assert client.query("SELECT id FROM item WHERE id = 1 FOR UPDATE -- moved") == "T[id] D[1] C[SELECT 1] ZT"
    assert client.query(WRITE) == "C[INSERT 0 1] ZT"
    assert client.query("COMMIT") == "C[COMMIT] ZI"


SESSIONS = {
    "startup": ({"options": "-c default_transaction_isolation=serializable"}, ""),
    "set": ({}, "SET default_transaction_isolation = 'repeatable read'"),
    "characteristics": ({}, "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"),
    "set_config": ({}, "SELECT set_config('default_transaction_isolation', 'serializable', false)"),
}


@pytest.mark.parametrize("how", SESSIONS)
def test_a_session_of_another_level_is_not_moved(service: Service, how: str) -> None:
    params, before = SESSIONS[how]
    on_replicas(service)
    client = service.client(pool=20, **params)
    if before:
        client.query(before)
    client.query("BEGIN")
    client.query(f"{COUNT} -- level")
    assert service.reached("-- level") == {"primary"}
    client.query("COMMIT")


def test_a_session_that_only_reads(service: Service) -> None:
    client = on_replicas(service)
    client.query("SET default_transaction_read_only = on")
    client.query("BEGIN")
    assert client.query(COUNT) == "T[count] D[20] C[SELECT 1] ZT"
    assert client.query(WRITE) == "E[25006] ZE"
    assert client.query("ROLLBACK") == "C[ROLLBACK] ZI"
