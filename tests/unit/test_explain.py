"""EXPLAIN (ROUTE): what is taken for it, what it says, and that it changes nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.schema import Config
from proxy.dataplane.authenticate import LoggedIn
from proxy.dataplane.client import Client
from proxy.dataplane.server import Server
from proxy.dataplane.worker import Worker
from proxy.ipc.messages import Fresh, KnownCatalogue, Message, Setup
from proxy.routing.balance import METHODS, Balancer
from proxy.routing.consistency import FREE_FALLBACKS, Fallbacks, Token
from proxy.routing.explain import REASONS, missing
from proxy.sql.catalogue import Catalogue
from proxy.sql.classify import Classifier
from proxy.sql.lexical import route_explained
from proxy.testing import FakeClock, FakeTransport
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import Address, Copy, Freshness, NodeView, Snapshot
from proxy.wire import build, parse


@pytest.mark.parametrize(
    ("sql", "statement"),
    [
        ("EXPLAIN (ROUTE) SELECT 1", " SELECT 1"),
        (" explain(route)DELETE FROM t;", " DELETE FROM t;"),
        ("/* pgtrident: route=primary */ Explain ( Route )\nSELECT 1", "/* pgtrident: route=primary */ \nSELECT 1"),
        ("-- x\nEXPLAIN (ROUTE) SELECT 1", "-- x\n SELECT 1"),
        ("EXPLAIN (ROUTE)", ""),
        ("EXPLAIN SELECT 1", None),
        ("EXPLAIN (ROUTE, ANALYZE) SELECT 1", None),
        ("SELECT 'EXPLAIN (ROUTE) x'", None),
        ("/* /* */ EXPLAIN (ROUTE) */ DELETE FROM t", None),
        ("/* EXPLAIN (ROUTE) */ DELETE FROM t", None),
        ("-- EXPLAIN (ROUTE) SELECT 1\nDELETE FROM t", None),
        ("xEXPLAIN (ROUTE) SELECT 1", None),
        ("SELECT 1; EXPLAIN (ROUTE) SELECT 1", None),
    ],
)
def test_what_is_taken_for_it(sql: str, statement: str | None) -> None:
    assert route_explained(sql.encode()) == (statement.encode() if statement is not None else None)
    found = Classifier(100, 10_000).classify(sql.encode())
    assert (found.reason == "explain_route") is (statement is not None)
    assert statement is None or not found.quick


@pytest.mark.parametrize("text", [b"/*" * 4000, b"/**/" * 2000, b" " * 9000, b"--\n" * 3000, b"/*" + b"*" * 8000])
def test_a_text_that_looks_like_it_for_long(text: bytes) -> None:
    """If its look grew with the square of the text, this would not end."""
    for _ in range(100):
        assert route_explained(text) is None


moments = st.integers(0, 4)


@given(
    st.builds(Token, moments, moments, st.sampled_from(["", "a", "b"]), moments),
    st.none() | st.lists(st.tuples(moments, st.sampled_from([0, 1, 2])), max_size=2),
    st.builds(Copy, fresh_ns=moments, since_ns=moments, lsn=moments),
)
def test_something_is_missing_exactly_where_a_copy_may_not_serve(
    token: Token, others: list[tuple[int, int]] | None, copy: Copy
) -> None:
    token.others = others
    assert bool(missing(token, "a", 1, copy, 10)) is not token.held_by("a", 1, copy)


@pytest.mark.parametrize("method", METHODS)
def test_a_choice_that_was_only_tried_takes_no_turn(method: str) -> None:
    weights = {"a": 100, "b": 40}

    def choices(trying: bool) -> list[str]:
        balancer = Balancer(method)
        chosen = []
        for _ in range(12):
            turn = balancer.turn
            tried = balancer.choose(["a", "b"], weights, {}, len)
            if trying:
                balancer.turn = turn
                assert balancer.choose(["a", "b"], weights, {}, len) == tried
            chosen.append(tried)
        return chosen

    assert choices(True) == choices(False)


def test_a_fallback_that_was_only_tried_is_not_counted() -> None:
    fallbacks = Fallbacks()
    for _ in range(FREE_FALLBACKS):
        assert fallbacks.allows(True, 10, 5.0, dry=True)
        assert fallbacks.allows(True, 10, 5.0)
    assert not fallbacks.allows(True, 10, 5.0, dry=True)
    assert fallbacks.allows(False, 10, 5.0, dry=True) and fallbacks.allows(True, 10, 6.0, dry=True)
    assert not fallbacks.allows(True, 10, 5.5)


# --- a client of a worker with a primary and two replicas --------------------------------------------------------


class Fixture:
    """One client; its servers are never dialled."""

    def __init__(self, clock: FakeClock | None = None, **more: Any) -> None:
        nodes = {name: {"host": "127.0.0.1"} for name in ("p", "r1", "r2")}
        settings = {"nodes": nodes, "routing": {"read_split": True}, **more}
        views = {
            name: NodeView(
                name=name, host=name, port=1, role=role, health=Health.ACTIVE, addresses=(Address("::1", 1),)
            )
            for name, role in (("p", Role.PRIMARY), ("r1", Role.REPLICA), ("r2", Role.REPLICA))
        }
        self.snapshot = Snapshot(version=1, epoch=1, nodes=views, primary="p", replicas=("r1", "r2"))
        setup = Setup(
            config=msgspec.convert(settings, Config),
            snapshot=self.snapshot,
            instance=1,
            workers=1,
            board="",
            console="",
            datagrams=[],
        )
        self.clock = clock or FakeClock()
        self.sent: list[Message] = []
        self.worker = Worker(setup, 0, self.clock, random.Random(1), self.sent.append)
        login = LoggedIn(
            user="u",
            database="d",
            params={},
            replication="",
            minor=0,
            credentials=None,
            peer="",
            tls=False,
            authenticated_by="trust",
        )
        self.transport = FakeTransport()
        self.client = Client(
            self.worker, cast(asyncio.Transport, self.transport), login, self.worker.settings_for("d", "u"), 1
        )
        self.client.ready = True
        self.client.settle_gate()
        self.fresh(r1=0, r2=0)
        catalogue = Catalogue(version="v1", relations={"t": {"public": ""}})
        self.worker.handle(KnownCatalogue("d", self.clock.boot_ns() + 1, catalogue))
        self.sent.clear()

    def fresh(self, **ages: int) -> None:
        """Copies hold all up to so many ms ago, and are in service."""
        now = self.clock.boot_ns()
        copies = {
            name: Copy(fresh_ns=now - age * 1_000_000, lsn=1, lag_ms=age, weight=100) for name, age in ages.items()
        }
        self.worker.handle(Fresh(Freshness(epoch=1, timeline=1, sampled_ns=now, sampled_lsn=9, copies=copies)))

    def link(self, status: str) -> Server:
        """Give the client a server on the primary."""
        pool = self.worker.pools.pool("p", self.client)
        server = Server(pool, self.worker.states.empty, 10)
        server.transport = cast(asyncio.Transport, FakeTransport())
        pool.state.taken[server] = None
        server.status = ord(status)
        self.client.server, server.owner = server, self.client
        return server

    def reply(self, data: bytes) -> list[tuple[str, bytes]]:
        """(kind, body) of what comes of it."""
        before = len(self.transport.written)
        self.client.data_received(data)
        answer, found = bytes(self.transport.written[before:]), []
        while answer:
            end = 1 + int.from_bytes(answer[1:5], "big")
            found.append((chr(answer[0]), answer[5:end]))
            answer = answer[end:]
        return found

    def explain(self, sql: str) -> list[tuple[str, str]]:
        replies = self.reply(build.query(sql if "EXPLAIN" in sql else f"EXPLAIN (ROUTE) {sql}"))
        assert [kind for kind, _ in replies if kind != "D"] == ["T", "C", "Z"], replies
        rows = [parse.data_row(body) for kind, body in replies if kind == "D"]
        return [((row[0] or b"").decode(), (row[1] or b"").decode()) for row in rows]

    def one(self, sql: str, *items: str) -> list[str]:
        found = dict(self.explain(sql))
        return [found.get(item, "") for item in items]


@pytest.fixture
async def fixture() -> Fixture:
    return Fixture()


@pytest.mark.parametrize(
    ("sql", "node", "reason", "cls"),
    [
        ("SELECT * FROM t", "r1 r2", "read", "read (select)"),
        ("INSERT INTO t VALUES (1)", "p", "write", "write (insert)"),
        ("SELECT * FROM unknown", "p", "write", "write (unknown_relation)"),
        ("LISTEN x", "p", "session", "session (listen)"),
        ("nonsense", "p", "write", "write (syntax)"),
        ("SELECT 1; SELECT 2", "p", "write", "write (several_statements)"),
        ("/* pgtrident: route=primary */ SELECT * FROM t", "p", "hint", "read (select)"),
        ("/* pgtrident: node=r2 */ EXPLAIN (ROUTE) SELECT * FROM t", "r2", "hint", "read (select)"),
        ("/* pgtrident: consistency=strong */ SELECT * FROM t", "p", "strong", "read (select)"),
        ("SELECT * FROM t /*pgtrident_node='r1'*/", "r1", "hint", "read (select)"),
    ],
)
async def test_where_a_statement_goes(fixture: Fixture, sql: str, node: str, reason: str, cls: str) -> None:
    found = fixture.one(sql, "node", "reason", "class", "wait")
    assert found[0] in node.split() and found[1:] == [reason, cls, "none"]


async def test_items(fixture: Fixture) -> None:
    assert [(item, value) for item, value in fixture.explain("SELECT * FROM t WHERE a = 5") if item != "node"] == [
        ("reason", "read"),
        ("because", REASONS["read"]),
        ("wait", "none"),
        ("class", "read (select)"),
        ("kind", "select"),
        ("shape", "28550ea0fc43bed7"),
        ("tables", "t"),
        ("catalogue", "known (version v1)"),
        ("consistency", "session (default)"),
        ("has to see", "nothing yet"),
        ("candidate", "p: primary, active, load 0: may serve it"),
        ("candidate", "r1: replica, active, lag 0 ms, 0 bytes, weight 100, load 0: may serve it"),
        ("candidate", "r2: replica, active, lag 0 ms, 0 bytes, weight 100, load 0: may serve it"),
    ]


async def test_what_a_copy_lacks_and_what_is_waited_for(fixture: Fixture) -> None:
    fixture.client.token.wrote_ns = fixture.clock.boot_ns() - 5_000_000
    fixture.fresh(r1=20, r2=30)
    found = fixture.explain("SELECT * FROM t")
    assert ("reason", "after_write") in found and ("has to see", "all that was written up to 5 ms ago") in found
    lacking = [value.split(": ")[-1] for item, value in found if item == "candidate"]
    assert lacking == ["may serve it", *["not known to hold what was written 5 ms ago"] * 2]
    waiting = fixture.explain("/* pgtrident: consistency=global */ SELECT * FROM t")
    assert ("wait", "up to 100 ms for a copy to hold what it has to see") in waiting
    assert ("reason", "after_write") in waiting


async def test_catalogue_that_is_not_believed(fixture: Fixture) -> None:
    fixture.clock.advance(1)
    fixture.worker.catalogues.changed("d")
    fixture.sent.clear()
    found = dict(fixture.explain("SELECT * FROM t"))
    assert (found["node"], found["class"]) == ("p", "write (catalogue_unread)")
    assert found["catalogue"].startswith("not believed")
    assert fixture.sent == []


async def test_rules_and_settings() -> None:
    rules = {
        "tried": {"shadow": True, "table": ["t"], "route": "primary"},
        "closed": {"table": ["audit"], "reject": "closed"},
        "slow": {"table": ["t"], "timeout": 3.0, "node": "r1"},
    }
    fixture = Fixture(rules=rules)
    found = fixture.explain("SELECT * FROM t")
    assert {("rule", "slow"), ("shadow rule", "tried: would differ"), ("timeout", "3 s"), ("place", "r1, by rule")} <= {
        *found
    }
    assert dict(found)["node"] == "r1"
    rejected = dict(fixture.explain("DELETE FROM audit"))
    assert (rejected["node"], rejected["reason"], rejected["error"]) == ("none", "rejected", "closed")
    fixture.client.wish({"pgtrident.node": "r2"})
    found = fixture.explain("/* pgtrident: colour=red */ INSERT INTO t VALUES (1)")
    assert ("setting", "node=r2") in found and dict(found)["ignored"].startswith("colour")
    assert fixture.worker.counters.rules == {} and fixture.worker.counters.hints_ignored == 0


async def test_inside_a_transaction_and_for_a_pinned_session(fixture: Fixture) -> None:
    server = fixture.link("T")
    assert fixture.reply(build.query("EXPLAIN (ROUTE) SELECT 1"))[-1] == ("Z", b"T")
    assert fixture.one("SELECT * FROM t", "node", "reason", "transaction") == ["p", "transaction", "open on p"]
    server.status = ord("I")
    fixture.client.pins = frozenset(("temp",))
    assert fixture.one("SELECT * FROM t", "node", "reason", "pins") == ["p", "pinned", "temp"]
    server.status = ord("E")
    kinds = fixture.reply(build.query("EXPLAIN (ROUTE) SELECT 1"))
    assert [kind for kind, _ in kinds] == ["E", "Z"] and b"25P02" in kinds[0][1] and kinds[1][1] == b"E"


async def test_answers_under_way_come_first(fixture: Fixture) -> None:
    server = fixture.link("T")
    assert fixture.reply(build.query("SELECT 1") + build.query("EXPLAIN (ROUTE) SELECT 1")) == []
    assert not fixture.reply(build.query("SELECT 2"))
    server.data_received(build.message(b"C", b"SELECT 1\0") + build.message(b"Z", b"T"))
    await asyncio.sleep(0)
    kinds = bytes(fixture.transport.written)
    assert kinds.index(b"SELECT 1\0") < kinds.index(b"EXPLAIN\0")
    assert bytes(cast(FakeTransport, server.transport).written).endswith(build.query("SELECT 2"))


@pytest.mark.parametrize("sql", ["EXPLAIN (ROUTE)", "EXPLAIN (ROUTE) ;"])
async def test_nothing_to_explain(fixture: Fixture, sql: str) -> None:
    replies = fixture.reply(build.query(sql))
    assert [kind for kind, _ in replies] == ["E", "Z"] and b"42601" in replies[0][1]


async def test_extended_protocol_is_refused(fixture: Fixture) -> None:
    batch = build.parse(b"", b"EXPLAIN (ROUTE) SELECT 1") + build.bind(b"", b"") + build.execute() + build.SYNC
    replies = fixture.reply(batch)
    assert [kind for kind, _ in replies] == ["E", "Z"] and b"0A000" in replies[0][1]
    assert fixture.one("SELECT * FROM t", "reason") == ["read"]


async def test_no_node(fixture: Fixture) -> None:
    fixture.worker._publish(msgspec.structs.replace(fixture.snapshot, version=2, primary="", replicas=()))
    found = dict(fixture.explain("INSERT INTO t VALUES (1)"))
    assert (found["node"], found["reason"]) == ("none", "unavailable")
    assert found["error"] == "no primary is in service" and "and then the error" in found["wait"]


@pytest.mark.parametrize("ages", [(0, 10), (0, 0), (900, 900)], ids=str)
async def test_nothing_is_changed(ages: tuple[int, int]) -> None:
    fixture = Fixture(routing={"read_split": True, "fallback_share": 50})
    client, worker = fixture.client, fixture.worker
    client.token.wrote_ns = fixture.clock.boot_ns() - 500_000_000
    client.token.seen_ns, client.token.seen_node = fixture.clock.boot_ns() - 1_000_000, "r1"
    fixture.fresh(r1=ages[0], r2=ages[1])
    token = client.token

    def state() -> list[Any]:
        return [
            (token.wrote_ns, token.seen_ns, token.seen_node, token.lsn),
            client.roaming.spread_ns,
            client.units,
            worker._balancer.turn,
            worker.routes._fallbacks._reads,
            {**worker.counters.as_dict()},
            worker.consistency._needed_ns,
            list(worker.pools.all),
            fixture.sent,
        ]

    before = [*state()]
    for sql in (
        "SELECT * FROM t",
        "INSERT INTO t VALUES (1)",
        "SHOW pgtrident.token",
        "/* pgtrident: after='1:0/99' */ SELECT * FROM t",
        "/* pgtrident: after='2:0/99' consistency=global */ SELECT * FROM t",
        "/* pgtrident: colour=red */ SELECT * FROM t",
        "CREATE TABLE x(a int)",
    ):
        fixture.explain(sql)
        assert state() == before, sql
    assert client.token is token
