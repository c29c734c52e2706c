"""Prepared statements: what the Compiler writes, and that clients who share servers see what each would alone.

The last part runs random batches of several clients over several servers against a model of PostgreSQL's
rules for names, through the real queue of owed replies, and compares with the same batches on a session
of the client's own.
"""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proxy.dataplane.server
from proxy.dataplane.server import Owed, Server
from proxy.metrics.counters import PoolCounters
from proxy.session.prepared import ClientStatements, Compiler, Pending, ServerStatements, Statement, Statements, Step
from proxy.session.state import States
from proxy.sql.classify import classify
from proxy.sql.model import Class, Classification
from proxy.testing import FakeClock
from proxy.wire import build, frontend
from proxy.wire.frontend import Op, read_op

from ..support.rawpg import B, C, D, E, P

# ---- the Compiler, message by message


class Setup:
    """One client on one server."""

    def __init__(self, limit: int = 10) -> None:
        self.statements = Statements(b"_p")
        self.names = ClientStatements()
        self.server = ServerStatements(limit)

    def statement(self, sql: str) -> Statement:
        return self.statements.intern(sql.encode(), b"\0\0", "", classify(sql.encode()))

    def op(self, raw: bytes) -> Op:
        op = read_op(raw)
        if op.kind == frontend.PARSE:
            op.statement = self.statements.intern(op.sql, op.oids, "", classify(op.sql))
        return op

    def compile(self, *messages: bytes, quiet: bool = True) -> tuple[list[bytes], list[Pending]]:
        """What is written, cut into messages, and the steps."""
        compiler = Compiler(self.names, self.server, self.statements, "", "apart", quiet)
        out: list[bytes] = []
        steps: list[Pending] = []
        for raw in messages:
            data, pending = compiler.add(self.op(raw))
            out += _messages(data)
            steps += pending
        return out, steps

    def steps(self, *messages: bytes, quiet: bool = True) -> list[Step]:
        return [pending.step for pending in self.compile(*messages, quiet=quiet)[1]]


def _messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = 1 + int.from_bytes(data[1:5], "big")
        found.append(data[:end])
        data = data[end:]
    return found


def test_one_statement_for_one_text() -> None:
    setup = Setup()
    one = setup.statement("SELECT 1")
    assert setup.statement("SELECT 1") is one
    classification = one.classification
    others = [
        setup.statements.intern(b"SELECT 2", b"\0\0", "", classification),
        setup.statements.intern(b"SELECT 1", b"\0\1\0\0\0\x17", "", classification),
        setup.statements.intern(b"SELECT 1", b"\0\0", "LATIN1/on", classification),
        setup.statements.intern(b"SELECT 1", b"\0\0", "UTF8/off", classification),
    ]
    assert len({one, *others}) == 5
    assert len({s.server_name for s in (one, *others)}) == 5


def test_statements_that_nobody_uses_are_forgotten() -> None:
    setup = Setup()
    kept = setup.statement("SELECT 1")
    setup.statement("SELECT 2")
    gc.collect()
    assert len(setup.statements) == 1
    assert kept.sql == b"SELECT 1"


def test_parse_that_the_server_lacks() -> None:
    setup = Setup()
    out, steps = setup.compile(P("s", "SELECT 1"))
    statement = setup.statement("SELECT 1")
    assert out == [statement.parse(statement.server_name)]
    assert (steps[0].step, steps[0].client_name, steps[0].statement) == (Step.PARSE, b"s", statement)
    # A name exists from ParseComplete on: nothing has been noted yet.
    assert not setup.names.named
    assert not setup.server.named


def test_parse_that_the_server_has_is_made_up() -> None:
    setup = Setup()
    kept = setup.statement("SELECT 1")
    setup.server.named[kept] = None
    out, steps = setup.compile(P("s", "SELECT 1"))
    assert (out, steps[0].step) == ([], Step.PARSE_MADE)


def test_parse_that_the_server_has_but_may_refuse() -> None:
    """In a failed transaction a Parse fails, so it has to be sent; under the same name, which is freed before."""
    setup = Setup()
    kept = setup.statement("SELECT 1")
    setup.server.named[kept] = None
    out, _ = setup.compile(P("s", "SELECT 1"), quiet=False)
    assert out == [build.close(b"S", kept.server_name), kept.parse(kept.server_name)]
    assert setup.steps(P("s", "SELECT 1"), quiet=False) == [Step.CLOSE_HIDDEN, Step.PARSE]


def test_second_use_of_a_name() -> None:
    """PostgreSQL itself says what is wrong with it."""
    setup = Setup()
    setup.names.named[b"s"] = setup.statement("SELECT 1")
    out, steps = setup.compile(P("s", "SELECT 2"))
    assert [m[:1] + m[5:7] for m in out] == [b"Ps\0", b"Ps\0"]
    assert [p.step for p in steps] == [Step.PARSE_HIDDEN, Step.PARSE]
    # Also within a batch, and not when it was closed there before.
    assert setup.steps(P("t", "SELECT 1"), P("t", "SELECT 2"))[1:] == [Step.PARSE_HIDDEN, Step.PARSE]
    assert setup.steps(C("S", "s"), P("s", "SELECT 2")) == [Step.CLOSE_MADE, Step.PARSE]


def test_bind_of_a_statement_that_the_server_lacks() -> None:
    """Its Parse goes in front, at its own place in the batch, once."""
    setup = Setup()
    kept = setup.names.named[b"s"] = setup.statement("SELECT 1")
    out, steps = setup.compile(P("", "SELECT 2"), B(), B("p", "s", ["x"]), D("S", "s"))
    assert [m[:1] for m in out] == [b"P", b"B", b"P", b"B", b"D"]
    assert out[2] == kept.parse(kept.server_name)
    assert out[3] == B("p", kept.server_name.decode(), ["x"])
    assert out[4] == D("S", kept.server_name.decode())
    hidden = [Step.PARSE, Step.BIND, Step.PARSE_HIDDEN, Step.BIND, Step.DESCRIBE]
    assert [p.step for p in steps] == hidden
    setup.server.named[kept] = None
    assert setup.steps(B("", "s"), D("S", "s")) == [Step.BIND, Step.DESCRIBE]


def test_unnamed_statement_of_another() -> None:
    setup = Setup()
    mine, theirs = setup.statement("SELECT 'mine'"), setup.statement("SELECT 'theirs'")
    setup.server.unnamed = theirs
    # The client has none: the other's is taken away first.
    assert setup.compile(B())[0] == [build.close(b"S", b""), B()]
    setup.names.unnamed = mine
    assert setup.compile(B())[0] == [mine.parse(b""), B()]
    assert setup.steps(D("S")) == [Step.PARSE_HIDDEN, Step.DESCRIBE]
    setup.server.unnamed = mine
    assert setup.compile(B())[0] == [B()]
    # One parsed in the batch itself is there.
    setup.server.unnamed = theirs
    assert setup.steps(P("", "SELECT 1"), B(), E()) == [Step.PARSE, Step.BIND, Step.EXECUTE]


def test_unknown_names_are_for_the_server_to_refuse() -> None:
    setup = Setup()
    for message in (B("", "nope"), D("S", "nope"), D("P", "nope"), E("nope")):
        assert setup.compile(message)[0] == [message]


def test_close() -> None:
    """The server keeps the statement for others; the client's name goes when the answer does."""
    setup = Setup()
    kept = setup.names.named[b"s"] = setup.statement("SELECT 1")
    setup.server.named[kept] = None
    out, steps = setup.compile(C("S", "s"))
    assert (out, steps[0].step) == ([], Step.CLOSE_MADE)
    assert b"s" in setup.names.named
    # Not quiet: the close of something that can't exist, so that the answer comes in its turn.
    out, steps = setup.compile(C("S", "s"), quiet=False)
    assert steps[0].step is Step.CLOSE
    assert kept.server_name not in out[0]
    assert setup.compile(C("S"), C("P", "p"), C("S", "unknown"))[0] == [C("S"), C("P", "p"), C("S", "unknown")]


@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_names_behind_a_statement_that_drops_them(sql: str) -> None:
    setup = Setup()
    kept = setup.names.named[b"s"] = setup.statement("SELECT 1")
    setup.server.named[kept] = None
    out, _ = setup.compile(P("", sql), B(), E(), B("", "s"))
    assert out[-1] == B("", "s")
    out, _ = setup.compile(P("", sql), B(), E(), P("s", "SELECT 1"), B("", "s"))
    assert out[-2:] == [kept.parse(kept.server_name), B("", kept.server_name.decode())]
    # Only when it was executed.
    assert setup.steps(P("", sql), B(), B("", "s")) == [Step.PARSE, Step.BIND, Step.BIND]


def test_surplus() -> None:
    setup = Setup(limit=2)
    kept = [setup.statement(f"SELECT {n}") for n in range(4)]
    for statement in kept:
        setup.server.named[statement] = None
    setup.server.named.move_to_end(kept[0])
    assert setup.server.surplus(set()) == [kept[1], kept[2]]
    assert setup.server.surplus({kept[1]}) == [kept[2], kept[3]]
    setup.server.clear()
    assert setup.server.surplus(set()) == []


# ---- against a model of PostgreSQL


@dataclass
class Session:
    """What a session of PostgreSQL does with names (manual, 55.2.3): bytes in, replies out."""

    named: dict[bytes, bytes] = field(default_factory=dict)
    unnamed: bytes | None = None
    portals: dict[bytes, bytes] = field(default_factory=dict)
    skipping: bool = False

    def feed(self, data: bytes) -> bytes:
        return b"".join(self._one(raw) for raw in _messages(data))

    def _one(self, raw: bytes) -> bytes:
        if raw[:1] == b"S":
            self.skipping = False
            self.portals.clear()
            return build.ready(73)
        if raw[:1] == b"Q":
            self.unnamed = None
            return build.command_complete("SELECT 0") + build.ready(73)
        if self.skipping:
            return b""
        answer = self._extended(read_op(raw))
        self.skipping = answer[:1] == b"E"
        return answer

    def _extended(self, op: Op) -> bytes:
        match op.kind:
            case frontend.PARSE:
                if not op.name:
                    self.unnamed = None
                if op.sql.startswith(b"SELEC "):
                    return _error("42601")
                if op.name in self.named:
                    return _error("42P05")
                if op.name:
                    self.named[op.name] = op.sql
                else:
                    self.unnamed = op.sql
                return build.PARSE_COMPLETE
            case frontend.BIND:
                sql = self._text(op.name)
                if sql is None:
                    return _error("26000")
                self.portals[op.portal] = sql
                return build.message(b"2")
            case frontend.DESCRIBE if op.target == 0x53:
                sql = self._text(op.name)
                return _error("26000") if sql is None else build.message(b"t", b"\0\0") + _columns(sql)
            case frontend.DESCRIBE:
                sql = self.portals.get(op.portal)
                return _error("34000") if sql is None else _columns(sql)
            case frontend.EXECUTE:
                return self._execute(self.portals.get(op.portal))
            case _:
                if op.target == 0x53 and op.name:
                    self.named.pop(op.name, None)
                elif op.target == 0x53:
                    self.unnamed = None
                else:
                    self.portals.pop(op.portal, None)
                return build.CLOSE_COMPLETE

    def _text(self, name: bytes) -> bytes | None:
        return self.named.get(name) if name else self.unnamed

    def _execute(self, sql: bytes | None) -> bytes:
        if sql is None:
            return _error("34000")
        if b"/0" in sql:
            return _error("22012")
        if sql == b"DEALLOCATE ALL":
            self.named.clear()
            return build.command_complete("DEALLOCATE ALL")
        return build.data_row([sql]) + build.command_complete("SELECT 1")


def _columns(sql: bytes) -> bytes:
    return build.NO_DATA if sql.startswith(b"DEALLOCATE") else build.row_description([("x", 25)])


def _error(code: str) -> bytes:
    return build.error_fields({"S": "ERROR", "V": "ERROR", "C": code, "M": ""})


class Wiring:
    """Stands for the pool and the transport of a server: keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.out_of_step_with = ""
        self.pools = self.worker = self
        self.clock = FakeClock()
        self.counters = PoolCounters()

    def write(self, data: bytes) -> None:
        self.written += data

    def error_seen(self, server: Server, fields: dict[str, str]) -> None: ...

    def settled(self, server: Server) -> None: ...

    def out_of_step(self, server: Server, message: str) -> None:
        self.out_of_step_with = message

    def take(self) -> bytes:
        data, self.written = self.written, b""
        return data


class Application:
    """A client of the proxy: its names, and what it was sent."""

    def __init__(self) -> None:
        self.names = ClientStatements()
        self.received = b""
        self.squatters: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.received += data

    def unit_done(self, server: Server, owed: Owed, status: int) -> None:
        if owed.squatters:
            server.tell(b"".join(build.close(b"S", name) for name in owed.squatters))

    def unit_failed(self, server: Server, owed: Owed, fields: dict[str, str], first: bool) -> bool:
        return True

    def batch_settled(self, owed: Owed) -> None: ...

    def told(self, server: Server) -> None: ...


class Shared:
    """Two servers behind the proxy's bookkeeping, with models of PostgreSQL behind them."""

    def __init__(self, limit: int) -> None:
        self.statements = Statements(b"_p")
        self.servers = []
        for _ in range(2):
            wiring: Any = Wiring()
            server = Server(wiring, States().empty, limit)
            server.transport = wiring
            self.servers.append((server, wiring, Session()))

    def run(self, client: Application, place: int, batch: list[bytes], *, quiet: bool, cut: int) -> bytes:
        """One batch on one server; what the client gets. `cut` is the size of the pieces that replies come in."""
        server, wiring, session = self.servers[place]
        client.received = b""
        sink: Any = client
        server.owner = sink
        if batch[0][:1] == b"Q":
            server.statements.unnamed = client.names.unnamed = None
            server.send(batch[0], Owed(sink))
        else:
            compiler = Compiler(client.names, server.statements, self.statements, "", "apart", quiet)
            owed = Owed(sink, extended=True)
            owed.steps = []
            out = []
            for raw in batch:
                op = read_op(raw)
                if op.kind == frontend.PARSE:
                    op.statement = self.statements.intern(op.sql, op.oids, "", classify(op.sql))
                data, pending = compiler.add(op)
                out.append(data)
                owed.steps += pending
            owed.squatters = compiler.squatters
            server.send(b"".join(out) + build.SYNC, owed)
        answers: deque[bytes] = deque()
        while wiring.written or answers:
            if wiring.written:
                reply = session.feed(wiring.take())
                answers.extend(reply[at : at + cut] for at in range(0, len(reply), cut))
            else:
                server.data_received(answers.popleft())
        assert not wiring.out_of_step_with
        assert not server.owed
        surplus = server.statements.surplus(set())
        for statement in surplus:
            del server.statements.named[statement]
            session.feed(build.close(b"S", statement.server_name))
        server.owner = None
        return client.received

    def check(self) -> None:
        """The proxy's picture of each server is the truth."""
        for server, _, session in self.servers:
            held = {s.server_name: s.sql for s in server.statements.named}
            assert held == session.named
            assert len(held) <= server.statements.limit
            unnamed = server.statements.unnamed
            assert session.unnamed == (unnamed.sql if unnamed is not None else None)


NAMES = st.sampled_from(["", "a", "b"])
PORTALS = st.sampled_from(["", "p"])
TEXTS = st.sampled_from(["SELECT 1", "SELECT 2", "SELECT 1/0", "SELEC 1", "DEALLOCATE ALL"])
PIECES = st.one_of(
    st.builds(lambda name, sql: [P(name, sql)], NAMES, TEXTS),
    st.builds(lambda portal, name: [B(portal, name), D("P", portal), E(portal)], PORTALS, NAMES),
    st.builds(lambda name, sql: [P(name, sql), B("", name), E()], NAMES, TEXTS),
    st.builds(lambda name: [D("S", name)], NAMES),
    st.builds(lambda portal: [E(portal)], PORTALS),
    st.builds(lambda kind, name: [C(kind, name)], st.sampled_from("SP"), NAMES),
)
"""What drivers send, and odd remains of it."""
BATCHES = st.lists(PIECES, max_size=3).map(lambda pieces: [*chain(*pieces)] or [build.query("SELECT 9")])
TURNS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), BATCHES, st.booleans(), st.sampled_from([1, 7, 10_000])),
    min_size=10,
    max_size=25,
)


@pytest.mark.skipif(
    not (proxy.dataplane.server.__file__ or "").endswith(".py"),
    reason="what stands for clients and pools here is not compiled",
)
@settings(max_examples=400, deadline=None)
@given(turns=TURNS, limit=st.sampled_from([1, 2, 100]))
def test_each_client_sees_what_it_would_see_alone(
    turns: list[tuple[int, int, list[bytes], bool, int]], limit: int
) -> None:
    shared = Shared(limit)
    clients = [Application() for _ in range(2)]
    alone = [Session() for _ in range(2)]
    for who, place, batch, quiet, cut in turns:
        sync = b"" if batch[0][:1] == b"Q" else build.SYNC
        got = shared.run(clients[who], place, batch, quiet=quiet, cut=cut)
        want = alone[who].feed(b"".join(batch) + sync)
        assert _messages(got) == _messages(want)
        shared.check()
        own = clients[who].names
        assert {name: s.sql for name, s in own.named.items()} == alone[who].named
        assert alone[who].unnamed == (own.unnamed.sql if own.unnamed is not None else None)


def test_what_is_learned_of_a_text_later_holds_for_its_statements() -> None:
    statements = Statements(b"_p")
    first, later, other = (Classification(cls, "x") for cls in (Class.READ, Class.ANALYTIC, Class.READ))
    texts = [statements.intern(b"a", oids, "", first) for oids in (b"", b"1")]
    apart = statements.intern(b"b", b"", "", other)
    statements.reclassify(first, later)
    assert [statement.classification for statement in (*texts, apart)] == [later, later, other]
