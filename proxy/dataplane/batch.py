"""The extended batches of one client: gathered, written for a server, passed on while they grow.

Owns the messages of a batch until its Sync, and what it holds back meanwhile. `session.prepared` decides how
names are written; routing and sending are the client's. Called by `client` (messages in) and by `server`
through it (answers).

A batch becomes a unit at its Sync, at a Flush, at a COPY or when it grows too long. In the latter cases it
stays *open*: what follows until Sync streams to the same server.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..errors import ProtocolViolation
from ..session import rules
from ..session.prepared import NEEDED, Compiler, Pending, Statement, Step
from ..sql.model import Class, Classification, Effect
from ..wire import build, frontend
from ..wire.codes import FAILED, IDLE
from ..wire.frontend import BATCH_LIMIT, Op
from .server import Owed, Server
from .unit import CALL, EMPTY, Kind, Unit, is_ddl, moves

if TYPE_CHECKING:
    from .client import Client


class Batches:
    """Of one client: at most one batch is gathered or open."""

    __slots__ = (
        "_client",
        "_compiler",
        "_ended",
        "_flushed",
        "_moving",
        "_out",
        "_size",
        "failed",
        "held_back",
        "open",
        "ops",
        "rest",
    )

    def __init__(self, client: Client) -> None:
        self._client = client
        self.ops: list[Op] = []
        """Gathered and not yet sent."""
        self._size = 0
        self.open: Owed | None = None
        """Sent in part: its Sync is still to come."""
        self.failed = False
        """The open one has failed: what follows until Sync is thrown away."""
        self.held_back = b""
        """A Query or function call that came behind an open batch."""
        self._compiler: Compiler | None = None
        self._out: list[bytes] = []
        self._flushed = False
        self.rest: list[Op] = []
        """What waits for the answer to the compiler's question; nothing behind it is read."""
        self._ended = False
        """The Sync of the open one has come: it is sent when `rest` has been."""
        self._moving = False
        """Something in this batch may change what a Parse behind it finds."""

    @property
    def begun(self) -> bool:
        """Whether a Sync is still to come."""
        return bool(self.ops) or self.open is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer before anything more is read."""
        return bool(self.held_back or self.rest)

    # ---- messages in

    def add(self, raw: bytes) -> None:
        """A Parse, Bind, Describe, Execute or Close."""
        client = self._client
        try:
            op = frontend.read_op(raw)
            if op.name and not op.name.isascii() and client.shown.get("client_encoding", "UTF8") == "UTF8":
                op.name.decode()
        except (ProtocolViolation, UnicodeDecodeError):
            # The server refuses it in its own words, at its place.
            op = Op(0, raw)
        if not self.begun:
            self._moving = False
        op.moved = self._moving
        client.read_statement(op)
        known = op.statement if op.kind == frontend.PARSE else client.names.named.get(op.name)
        if isinstance(known, Statement) and not self._moving:
            self._moving = moves(known.classification, known.sql)
        if self.open is not None:
            self._stream(op)
            return
        self.ops.append(op)
        self._size += len(raw)
        if self._size > BATCH_LIMIT:
            self.submit(synced=False)

    def add_streamed(self, op: Op) -> None:
        """A Bind whose parameters are passed on as they come."""
        if self.open is None:
            self.ops.append(op)
            self.submit(synced=False)
        else:
            self._stream(op)
            self.write_out()

    def flush(self) -> None:
        """A Flush: what came before it is to be answered now."""
        server = self._client.server
        if self.open is not None and server is not None:
            self.write_out()
            server.transport.write(build.FLUSH)
        elif self.ops:
            self._flushed = True
            self.submit(synced=False)

    def submit(self, synced: bool) -> None:
        """The batch so far becomes a unit."""
        unit = Unit(Kind.BATCH)
        unit.ops = self.ops
        unit.synced = synced
        self.ops = []
        self._size = 0
        self.judge(unit)
        if not synced:
            # More may follow that writes: the primary can serve whatever that is.
            unit.cls = Class.WRITE
        self._client.begin(unit)

    def judge(self, unit: Unit) -> None:
        """Class and effects of a batch from the texts that it uses."""
        client = self._client
        names = client.names
        texts: set[bytes] = set()
        executes = 0
        for op in unit.ops:
            if op.kind == frontend.PARSE:
                statement = op.statement
                assert isinstance(statement, Statement)
                texts.add(op.name)
                unit.named = unit.named or bool(op.name)
                client.join(unit, statement.classification, statement.sql, statement.split)
            elif op.kind == frontend.BIND or (op.kind == frontend.DESCRIBE and op.target == 0x53):
                if op.name not in texts:
                    unit.named = True
                    known = names.named.get(op.name) if op.name else names.unnamed
                    if known is None:
                        client.join(unit, EMPTY, b"")
                    else:
                        known = known.origin or known
                        client.join(unit, known.classification, known.sql, known.split)
                        unit.bound_text = known.sql, known.oids
            elif op.kind == frontend.CLOSE:
                unit.named = True
                if op.name in names.sql:
                    unit.effects |= Effect.PREPARE
            elif op.kind == frontend.EXECUTE:
                executes += 1
            elif op.kind == 0:
                unit.cls = Class.WRITE
        if executes > 1 and unit.cls is Class.ANALYTIC:
            unit.cls = Class.READ

    def drop(self) -> None:
        """The client has gone."""
        self.ops.clear()
        self.rest = []

    # ---- out

    def send(self, server: Server, unit: Unit, wrote: bool) -> None:
        """Write a unit for a linked server. One without Sync stays open."""
        client = self._client
        quiet = _is_quiet(server)
        compiler = self._compiler_for(server)
        owed = Owed(client, wrote=wrote, extended=True)
        client.obey(owed, unit)
        owed.ddl = unit.may_be_ddl or client.ddl_open
        owed.unit = unit
        if any(op.kind == frontend.EXECUTE for op in unit.ops):
            owed.found = unit.single
        owed.steps = []
        owed.complete = False
        self.open = owed
        self._compiler = compiler
        self._ended = unit.synced
        self._write(compiler, unit.ops, owed)
        if not self.rest:
            self._written(server, compiler, owed)
        client.rerun.unit = unit if owed.complete and server.status == IDLE and quiet and not unit.retried else None
        if unit.named:
            client.parsing += 1
        server.owe(owed)
        self.write_out()
        if not owed.complete and len(server.owed) == 1:
            server.made(owed)

    def _compiler_for(self, server: Server) -> Compiler:
        client = self._client
        statements = client.worker.statements
        quiet = _is_quiet(server)
        translate = None
        if client.worker.is_columnar(server.pool.node):
            translate = partial(client.worker.capabilities.translated, client, server.pool.node)
        return Compiler(client.names, server.statements, statements, client.meaning(), client.apart(), quiet, translate)

    def query(self, server: Server, unit: Unit, owed: Owed) -> bytes:
        """The message to send for a Query that runs a statement made by Parse. b"" where that has to be put on
        the server first: the Query is held back meanwhile."""
        compiler = self._compiler_for(server)
        op = Op(NEEDED, b"")
        op.name = unit.classified[0].name.encode("utf-8", "surrogateescape")
        statement = compiler.needed(op.name)
        if statement is None or compiler.is_there(statement):
            return _renamed(compiler, unit)
        owed.extended = True
        owed.steps = []
        owed.complete = False
        self.held_back = unit.raw
        self.open = owed
        self._compiler = compiler
        self._ended = True
        self._write(compiler, [op], owed)
        if not self.rest:
            self._written(server, compiler, owed)
        server.owe(owed)
        self.write_out()
        return b""

    def _write(self, compiler: Compiler, ops: list[Op], owed: Owed) -> None:
        """Write messages as the server is to get them, as far as nothing has to be asked first."""
        assert owed.steps is not None
        self.rest = []
        for at, op in enumerate(ops):
            question = compiler.question(op)
            if question is not None:
                self._out += (question[0], build.FLUSH)
                owed.steps.extend(question[1])
                self.rest = ops[at:]
                return
            _compile(compiler, op, self._out, owed)

    def _written(self, server: Server, compiler: Compiler, owed: Owed) -> None:
        """All that has come of the open batch is written: its end, or its Flush, is next."""
        if self.held_back:
            self._out.append(build.FLUSH)
        elif self._ended:
            self._out.append(build.SYNC)
            _note_compiled(server, compiler, owed)
            owed.complete = True
            self._end()
        elif self._flushed:
            self._out.append(build.FLUSH)
            self._flushed = False

    def _stream(self, op: Op) -> None:
        """One more message of an open batch goes to its server."""
        owed, compiler = self.open, self._compiler
        assert owed is not None and compiler is not None
        statement = op.statement
        known = statement if isinstance(statement, Statement) else None
        if op.kind == frontend.BIND:
            known = compiler.lookup(op.name)
        if known is not None:
            self._join(self._client.bound(known.classification, behind_ddl=owed.ddl))
            owed.ddl = owed.ddl or is_ddl(known.classification, known.sql)
        compiler.quiet = False
        compiler.context = self._client.meaning()
        self._write(compiler, [op], owed)

    def _join(self, classification: Classification) -> None:
        """One more text is part of the open batch."""
        if classification.plain:
            return
        client = self._client
        client.audit.note(classification.effects, classification.settings)
        if Effect.UNKNOWN_CODE in classification.effects:
            client.audit.note_unseen(classification)
            if client.server is not None:
                client.server.unseen_by = client
        if self.open is not None:
            unit = self.open.unit
            assert unit is not None
            unit.effects |= classification.effects
            unit.settings |= classification.settings
            unit.resets = unit.resets or classification.resets

    def write_out(self) -> None:
        """Write what was compiled of an open batch; one write a chunk."""
        server = self._client.server
        if self._out and server is not None:
            server.transport.write(b"".join(self._out))
        self._out.clear()

    def close(self) -> None:
        """The Sync of an open batch."""
        client = self._client
        server, owed, compiler = client.server, self.open, self._compiler
        assert server is not None and owed is not None and compiler is not None
        self._ended = True
        self._written(server, compiler, owed)
        self.failed = False
        if owed.unit is not None and owed.unit.effects:
            client.barrier = True
        self.write_out()

    def _end(self) -> None:
        self.open = None
        self._compiler = None
        self._ended = False

    # ---- an open batch's end by other means

    def hold_back(self, raw: bytes) -> None:
        """A Query or function call while a batch is begun: whether the server will run it depends on the
        batch's outcome, so that is brought out by a Flush and awaited."""
        self.held_back = raw
        if self.ops:
            self.submit(synced=False)
        head, server = self.open, self._client.server
        if head is None or server is None:
            return
        self.write_out()
        if head.steps is not None and head.at >= len(head.steps) and server.owed.head is head:
            self.settled(head)
        else:
            server.transport.write(build.FLUSH)

    def settled(self, owed: Owed) -> None:
        """All of an open batch has been answered without an error. What was held back runs now, in
        the batch's implicit transaction, and its ReadyForQuery ends both."""
        client = self._client
        server = client.server
        if owed is not self.open or server is None:
            return
        if self.rest:
            self._go_on(server, owed)
        if not self.held_back or owed.steps is None or owed.at < len(owed.steps):
            return
        raw, self.held_back = self.held_back, b""
        if self._ended and self._compiler is not None and owed.unit is not None:
            raw = _renamed(self._compiler, owed.unit)
        found = client.classify(frontend.query_text(raw)) if raw[0] == frontend.QUERY else CALL
        self._join(client.bound(found, behind_ddl=owed.ddl))
        self._end()
        owed.complete = True
        owed.extended = False
        owed.steps = None
        client.barrier = bool(client.audit.touched)
        server.transport.write(raw)

    def _go_on(self, server: Server, owed: Owed) -> None:
        """The compiler's question is answered."""
        compiler = self._compiler
        assert compiler is not None
        compiler.quiet = False
        compiler.context = self._client.meaning()
        self._write(compiler, self.rest, owed)
        if not self.rest:
            self._written(server, compiler, owed)
        self.write_out()

    def fail(self) -> None:
        """The open batch has failed: nothing more of it is sent but its Sync."""
        self.failed = True
        self.held_back = b""
        self.rest = []
        self._out.clear()
        if self._ended:
            self.close()


def _is_quiet(server: Server) -> bool:
    """Whether nothing is in flight there, in a transaction that has not failed."""
    return not server.owed and server.status != FAILED


def _compile(compiler: Compiler, op: Op, out: list[bytes], owed: Owed) -> None:
    assert owed.steps is not None
    if op.kind == 0:
        out.append(op.raw)
        owed.steps.append(Pending(Step.REFUSED))
        return
    data, pending = compiler.add(op)
    if data:
        out.append(data)
    owed.steps.extend(pending)


def _renamed(compiler: Compiler, unit: Unit) -> bytes:
    """A Query with the name of a statement in it as the server knows it."""
    classification = unit.classified[0]
    statement = compiler.needed(classification.name.encode("utf-8", "surrogateescape"))
    if statement is None or classification.name_span is None:
        return unit.raw
    return build.query(rules.renamed(frontend.query_text(unit.raw), classification.name_span, statement.server_name))


def _note_compiled(server: Server, compiler: Compiler, owed: Owed) -> None:
    server.pool.counters.prepared_hits += compiler.hits
    server.pool.counters.prepared_misses += compiler.misses
    if compiler.squatters:
        owed.squatters = compiler.squatters
    for statement in compiler.used:
        if statement in server.statements.named:
            server.statements.named.move_to_end(statement)
