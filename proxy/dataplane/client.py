"""One logged-in application connection: its messages become units, its units find a server.

Owns the client's side of everything: input, the session state that follows it, its names, its pins.
A unit goes parse -> classify -> route -> take -> (bring settings in line) -> send, and waits in
`_parked` wherever one of these needs something; meanwhile nothing behind it is read. The fast path at
the top of `data_received` is the same thing without the waits.

Called by asyncio (bytes in), by `server` (answers) and by `pools` (a server was granted, or refused).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

from ..errors import CannotFollow, NoNode, ProtocolViolation, Terminated, TridentError
from ..routing.bind import UNREADABLE, readable
from ..routing.router import Hold
from ..session import rules
from ..session.prepared import ClientStatements, Compiler, Statement
from ..session.state import State
from ..sql.model import Class, Classification, Effect
from ..topology.snapshot import Snapshot
from ..wire import build, frontend
from ..wire.codes import FAILED, IDLE
from ..wire.frontend import BATCH_LIMIT, Op
from ..wire.scan import B_NAMED, B_PLAIN, B_SYNC, scan_batch
from .server import Owed, Server

if TYPE_CHECKING:
    from .authenticate import LoggedIn
    from .pools import ServerPool
    from .worker import ClientSettings, Worker

MAX_PIPELINE = 1_000
"""Units of one client in flight; more wait in its socket."""
MAX_INPUT = 256 * 1024
"""Bytes held for a client that waits; reading pauses beyond."""
MAX_HELD_MESSAGE = 16 * 1024 * 1024
"""Most messages pass through as they come. A statement's text is kept, to be parsed again elsewhere, and so
is what comes behind an open batch; those have a bound of their own."""

_STRENGTH = {Class.READ: 0, Class.ANALYTIC: 1, Class.SESSION: 2, Class.WRITE: 3}

_NOT_SETTINGS = frozenset(
    (
        "in_hot_standby",
        "is_superuser",
        "server_version",
        "server_encoding",
        "integer_datetimes",
        "session_authorization",
    )
)
"""Reported parameters that no SET of the client's made."""

_DDL = frozenset(("ddl", "select_into"))
"""Reasons of classifications that may change what names mean, but for these kinds."""
_NO_DDL = frozenset(("analyze", "comment", "grant", "revoke", "truncate", "vacuum", "cluster", "reindex"))
_DDL_WORDS = re.compile(rb"\b(create|alter|drop|into)\b", re.IGNORECASE)
"""In a string of several statements, or a DO block."""
MAX_COMMAND = 1024
"""Bytes of a text that are looked at for a database's name."""
_NAMES = Effect.DISCARD | Effect.PREPARE
_UNSEEN = Effect.UNKNOWN_CODE | Effect.SET_ANY

_QUERY = 0
_PLAIN = B_SYNC | B_PLAIN
_NAMED = B_SYNC | B_NAMED
"""Forms of a usual unit: a Query, a batch of the unnamed statement, a batch that binds a named one."""

_EMPTY = Classification(Class.READ, "empty", kind="empty", statements=0)
_TOO_LONG = Classification(Class.WRITE, "too_long", effects=Effect.UNKNOWN_CODE)
_CALL = Classification(Class.WRITE, "function_call", effects=Effect.UNKNOWN_CODE, kind="call")


class Kind(Enum):
    """What a unit is made of."""

    WELCOME = "welcome"
    QUERY = "query"
    BATCH = "batch"
    CALL = "call"


class Unit:
    """A unit on its way that could not go the fast way.

    Attributes:
        raw: the message, for QUERY and CALL (of a streamed one: its beginning).
        ops: the messages of a BATCH.
        synced: whether a BATCH ends with Sync.
        cls, classified: the strongest class, and each text's classification.
        effects, settings, resets: joined over the texts.
        named: whether a BATCH names statements, so that names in flight must be settled first.
        unseen: whether code runs that can't be seen (a user's function, DO, CALL).
        untracked: whether it sets a setting whose name can't be told (set_config($1, ...)).
        mark: boot_ns of the last write to the database that had ended when the unit arrived.
        since: when it began to wait, in seconds of the clock; 0 while it has not.
    """

    __slots__ = (
        "bound_text",
        "classified",
        "cls",
        "effects",
        "kind",
        "mark",
        "named",
        "ops",
        "raw",
        "resets",
        "retried",
        "settings",
        "since",
        "synced",
        "unseen",
        "untracked",
    )

    def __init__(self, kind: Kind, raw: bytes = b"") -> None:
        self.kind = kind
        self.raw = raw
        self.ops: list[Op] = []
        self.bound_text: tuple[bytes, bytes] | None = None
        """The text and types of a statement prepared before, where the unit binds one."""
        self.synced = True
        self.cls = Class.READ
        self.classified: list[Classification] = []
        self.effects = Effect.NONE
        self.settings: set[str] = set()
        self.resets = False
        self.named = False
        self.retried = False
        self.unseen = False
        self.untracked = False
        self.mark = 0
        self.since = 0.0

    def join(self, classification: Classification, trusted: bool = False) -> None:
        """Take one more text into account. `trusted`: unseen code that has left nothing behind so far."""
        self.classified.append(classification)
        if _STRENGTH[classification.cls] > _STRENGTH[self.cls]:
            self.cls = classification.cls
        if classification.plain:
            return
        effects = classification.effects
        if Effect.UNKNOWN_CODE in effects:
            self.unseen = True
        elif Effect.SET_ANY in effects and classification.kind not in ("reset", "discard"):
            self.untracked = True
        if self.unseen and trusted and not effects & ~_UNSEEN:
            return
        self.effects |= effects
        self.settings |= classification.settings
        self.resets = self.resets or classification.resets

    @property
    def may_be_ddl(self) -> bool:
        """Whether what names mean may be another after it."""
        for c in self.classified:
            if c.reason in _DDL and c.kind not in _NO_DDL:
                return True
            if (c.statements > 1 or c.kind == "do") and any(_DDL_WORDS.search(text) for text in self._texts()):
                return True
        return False

    def _texts(self) -> list[bytes]:
        return [self.raw] if self.kind is not Kind.BATCH else [op.sql for op in self.ops]

    @property
    def copies_in(self) -> bool:
        """Whether a COPY FROM in it is about to run."""
        runs = self.kind is not Kind.BATCH or any(op.kind == frontend.EXECUTE for op in self.ops)
        return runs and any(c.kind == "copy" and c.cls is Class.WRITE for c in self.classified)

    @property
    def is_discard_all(self) -> bool:
        """Whether it is DISCARD ALL and nothing else."""
        if len(self.classified) != 1 or self.classified[0].statements != 1:
            return False
        return self.classified[0].kind == "discard" and Effect.DISCARD in self.effects

    @property
    def reads_sequence(self) -> bool:
        """Whether it asks for the session's own last value of a sequence, and nothing in it made one."""
        if len(self.classified) != 1 or self.classified[0].statements != 1:
            return False
        return Effect.SEQUENCE in self.effects and not self.discards

    @property
    def discards(self) -> bool:
        """Whether a DISCARD is part of it."""
        return any(c.kind == "discard" for c in self.classified)

    def single_text(self) -> tuple[bytes, bytes] | None:
        """Text and raw parameter types where the unit is one statement, run once."""
        if len(self.classified) != 1 or self.classified[0].statements != 1:
            return None
        if self.kind is Kind.QUERY:
            return self.raw[5:-1], b"\0\0"
        for op in self.ops:
            if op.kind == frontend.PARSE:
                return op.sql, op.oids
        return self.bound_text


class Client:
    """See the module. An asyncio.Protocol by its methods only: without that base mypyc can compile it."""

    def __init__(
        self, worker: Worker, transport: asyncio.Transport, login: LoggedIn, settings: ClientSettings, number: int
    ) -> None:
        self.worker = worker
        self.transport = transport
        self.login = login
        self.number = number
        self.settings = settings
        self.names = ClientStatements()
        self.startup: dict[str, str] = dict(login.params)
        self.startup_state = worker.states.intern(self.startup)
        self.state: State = self.startup_state
        self.pins: set[str] = {rules.PIN_SESSION} if settings.mode == "session" else set()
        self.shown: dict[str, str] = {}
        self.server: Server | None = None
        self.last_server: Server | None = None
        self.pid = 0
        self.key = b""
        self.connected_at = worker.clock.wall()
        self._quiet = 0.0
        self._quiet_mark = -1
        self.units = 0
        self.closed = False
        self.ready = False
        self.waiting_in: ServerPool | None = None

        self._input = b""
        self._gate = True
        """Something keeps the fast path away: input left over, a unit parked, a batch begun ..."""
        self._parts: list[bytes] = []
        self._need = 0
        self._stream = 0
        self._batch: list[Op] = []
        self._batch_size = 0
        self._batch_failed = False
        self._open: Owed | None = None
        self._compiler: Compiler | None = None
        self._parked: Unit | None = None
        self._busy = False
        """A question of our own is under way on the linked server; nothing else may be sent."""
        self._barrier = False
        self._parsing = 0
        self._skipping = False
        self._copy_in = False
        self._copy_ended = False
        """CopyDone or CopyFail went out since the unit in flight began."""
        self._awaiting_copy = False
        """Whether the server will go into copy-in is about to be known; until then a Sync can't be read."""
        self._resync = False
        self._flushed = False
        self._touched = Effect.NONE
        self._touched_names: set[str] = set()
        self._unseen: list[Classification] = []
        self._untracked = False
        self._doomed: ProtocolViolation | None = None
        """The client broke the protocol; it ends when what is in flight has been answered."""
        self._uses_sequences = False
        """It has asked for its own last value of a sequence: what it writes from now on ties it to its server."""
        self._readable = True
        self._meant = ""
        self._meant_in: State | None = None
        self._meant_at = 0
        """`_meaning` as of a state and a version of the schema."""
        self._ddl = False
        """DDL ran in the open transaction."""
        self._home: ServerPool | None = None
        self._home_snapshot: Snapshot | None = None
        """For which snapshot `_home` is the pool on the primary."""
        self._out_paused = False
        self._in_paused = False
        self._server_full = False
        self._reads = Owed(self, plain=True)
        self._writes = Owed(self, wrote=True, plain=True)
        self._named_reads = Owed(self, extended=True, plain=True)
        self._named_writes = Owed(self, wrote=True, extended=True, plain=True)
        self._greeted: dict[str, str] = {}
        """Reported parameters that the client's startup asked for, as they were first shown."""
        self._named_raw = b""
        """The last batch sent by `_send_named_batch`."""
        self._named_unit: Unit | None = None
        """The batch in flight that may be run again if its plan turns out to be stale."""
        self._stale_names: list[bytes] = []
        self._held_back = b""
        """A Query that came behind an open batch."""
        self._out: list[bytes] = []
        self._early = b""
        """A usual unit that waits for a server as it came: no Unit is made of it unless need be."""
        self._early_form = 0
        self._early_class = _EMPTY
        self._stream_sink = False

    # ------------------------------------------------------------------ login

    def welcome(self) -> None:
        """Start the session: find a server whose settings agree, tell the client, be ready."""
        unit = Unit(Kind.WELCOME)
        unit.cls = Class.SESSION
        pool = self.worker.known_pool(self)
        known = pool.welcomes.get(self.state) if pool is not None else None
        if pool is not None and known is not None:
            self._greet(known, pool.likely_server())
            return
        self._begin(unit)

    def _greet(self, parameters: Mapping[str, str], server: Server | None) -> None:
        """Tell the client its parameters and key. Its process id is that of the server that it is likely
        to get first and most often, so that what drivers compare it with (pg_backend_pid(),
        notifications) agrees wherever it can."""
        self.last_server = server
        self.worker.give_key(self, server.pid if server is not None else 0)
        self.shown = dict(parameters)
        asked = {name.lower() for name in self.startup}
        self._greeted = {name: value for name, value in parameters.items() if name.lower() in asked}
        self._reread()
        out = [build.AUTHENTICATION_OK]
        out.extend(build.parameter_status(name, value) for name, value in self.shown.items())
        out.append(build.backend_key(self.pid, self.key))
        out.append(build.ready(IDLE))
        self.write(b"".join(out))
        self.ready = True
        self._resume()

    # ------------------------------------------------------------------ input

    def data_received(self, data: bytes) -> None:
        if not self._gate:
            kind = data[0]
            if kind == 0x51:
                whole = int.from_bytes(data[1:5], "big") == len(data) - 1 and data[-1] == 0
                if whole and self._at_once(_QUERY, data, self.worker.classify(data[5:-1])):
                    return
            elif kind == 0x50 or kind == 0x42:
                form = scan_batch(data)
                if form == _PLAIN:
                    if self._at_once(form, data, self.worker.classify(data[6 : data.find(b"\0", 6)])):
                        return
                elif form == _NAMED:
                    statement = self.names.named.get(data[6 : data.find(b"\0", 6)])
                    if statement is not None and self._at_once(form, data, statement.classification):
                        return
        self._slow(data)

    def _at_once(self, form: int, data: bytes, classification: Classification) -> bool:
        """Send a usual unit as it came, or let it wait for a server as it is (`_early`). False when it
        needs more than that; the general way then takes it."""
        if not classification.plain or not self._readable or classification.reason in _DDL:
            return False
        server = self.server
        if server is not None:
            if server.owed or self._busy:
                return False
            return self._pass(server, form, data, classification)
        worker = self.worker
        if self.settings.split:
            route = worker.route_plain(self, classification)
            if route is None:
                return False
            pool = worker.pools.pool(route.node, self)
        else:
            if self._home_snapshot is not worker.snapshot:
                self._home = worker.primary_pool(self)
                self._home_snapshot = worker.snapshot
            if self._home is None:
                return False
            pool = self._home
        server = pool.state.take(self.last_server)
        if server is None:
            if not pool.join(self):
                return False
            self.waiting_in = pool
            self._early = data
            self._early_form = form
            self._early_class = classification
            self._gate = True
            return True
        if not self._fits(server):
            pool.give(server)
            return False
        self._tie(server)
        return self._pass(server, form, data, classification)

    def _fits(self, server: Server) -> bool:
        """Whether a server's settings are this client's already."""
        return server.state is self.state and (server.unseen_by is None or server.unseen_by is self)

    def _tie(self, server: Server) -> None:
        """Link a server that the pool gave."""
        self.server = server
        server.owner = self
        if self._out_paused:
            server.pause()

    def _pass(self, server: Server, form: int, data: bytes, classification: Classification) -> bool:
        """Put a usual unit on a linked server. False when a named statement is not there."""
        names = self.names
        if form == _NAMED:
            end = data.find(b"\0", 6)
            statement = names.named[data[6:end]]
            if statement not in server.statements.named:
                return False
            name = statement.server_name
            length = int.from_bytes(data[1:5], "big") + len(name) - (end - 6)
            owed = self._named_writes if classification.cls is Class.WRITE else self._named_reads
            self._named_raw = data
            data = b"".join((b"B", length.to_bytes(4, "big"), b"\0", name, data[end:]))
        else:
            owed = self._writes if classification.cls is Class.WRITE else self._reads
            if form == _QUERY:
                server.statements.unnamed = names.unnamed = None
            else:
                end = data.find(b"\0", 6)
                oids = data[end + 1 : 1 + int.from_bytes(data[1:5], "big")]
                statement = self.worker.statements.intern(data[6:end], oids, self._meaning(), classification)
                server.statements.unnamed = names.unnamed = statement
        owed.started = owed.failed = False
        server.owed.append(owed)
        server.transport.write(data)
        server.pool.counters.queries += 1
        return True

    def _slow(self, data: bytes) -> None:
        """The general way: message by message."""
        self._gate = True
        if self._need:
            self._parts.append(data)
            self._need -= len(data)
            if self._need > 0:
                return
            data = b"".join(self._parts)
            self._parts.clear()
            self._need = 0
            self._input = data
        elif self._input:
            self._input += data
        else:
            self._input = data
        self._pump()

    def _blocked(self) -> bool:
        return bool(
            self._early
            or self._doomed is not None
            or self._parked is not None
            or self._busy
            or self._barrier
            or self._held_back
            or self.closed
            or not self.ready
        )

    def _pump(self) -> None:
        """Handle what has come, until there is no whole message left or something has to be awaited."""
        buf = self._input
        pos = 0
        n = len(buf)
        try:
            while pos < n and not self._blocked():
                if self._stream:
                    take = min(self._stream, n - pos)
                    self._stream -= take
                    self._pass_on(buf[pos : pos + take])
                    pos += take
                    if not self._stream:
                        self._stream_ended()
                    continue
                if n - pos < 5:
                    break
                kind = buf[pos]
                length = int.from_bytes(buf[pos + 1 : pos + 5], "big")
                frontend.check_header(kind, length)
                end = pos + 1 + length
                if end > n:
                    if length > BATCH_LIMIT and self._begin_stream(kind, buf[pos:n], end - n):
                        pos = n
                        break
                    if length > BATCH_LIMIT and kind != frontend.BIND:
                        self._need = end - n  # a Bind waits for its names only, then it is streamed
                    break
                raw = buf[pos:end] if pos or end < n else buf
                if kind in frontend.COPY and self._batch:
                    # A batch whose COPY wants data is sent without its Sync.
                    self._submit(synced=False)
                    continue
                pos = end
                self._message(kind, raw)
        except ProtocolViolation as error:
            self._input = b""
            if self.server is not None and self.server.owed and self._open is None:
                self._doomed = error  # what is in flight is answered first
                self._steer()
            else:
                self.fail(error)
            return
        self._input = buf[pos:] if pos < n else b""
        if self._need:
            self._parts = [self._input]
            self._input = b""
        self._flush_open()
        self._settle_gate()

    def _settle_gate(self) -> None:
        self._gate = bool(
            self._input
            or self._need
            or self._stream
            or self._batch
            or self._open is not None
            or self._skipping
            or self._copy_in
            or self._resync
            or self._blocked()
        )
        self._steer()

    def _steer(self) -> None:
        """Read on, or not: the server's socket may be full, or too much wait here already."""
        pause = self._server_full or len(self._input) > MAX_INPUT or self._doomed is not None
        if pause != self._in_paused and not self.closed:
            self._in_paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _resume(self) -> None:
        """Go on with what was parked, then with the input."""
        if self.closed or self._busy or self._barrier:
            return
        unit = self._parked
        if unit is not None:
            if self.waiting_in is not None:
                return
            self._parked = None
            self._begin(unit)
        if self._parked is None:
            self._go_on()

    def _go_on(self) -> None:
        if self._held_back and self._open is not None and not self._batch_failed:
            self._settle_batch(self._held_back)
        if self._input:
            self._pump()
        else:
            self._settle_gate()

    def _message(self, kind: int, raw: bytes) -> None:
        if kind == frontend.TERMINATE:
            self._leave()
            return
        if self._skipping or self._batch_failed:
            self._skip(kind, raw)
            return
        if kind in frontend.COPY:
            # Outside of a copy PostgreSQL throws these away.
            if self.server is not None and self.server.owed:
                self._flush_open()
                self.server.transport.write(raw)
                if kind != frontend.COPY_DATA:
                    self._copy_in = False
                    self._copy_ended = True
            return
        if self._copy_in:
            self._in_copy(kind, raw)
            return
        if kind in frontend.EXTENDED:
            self._extended(raw)
        elif kind == frontend.SYNC:
            if self._resync and self.server is not None:
                # The Sync before was eaten by copy-in; this one ends that batch.
                self._resync = False
                self.server.transport.write(raw)
            elif self._open is not None:
                self._close_open()
            elif self._batch or self.server is not None:
                self._submit(synced=True)
            else:
                self.write(build.ready(IDLE))  # nothing to synchronise with
        elif kind == frontend.FLUSH:
            if self._open is not None and self.server is not None:
                self._flush_open()
                self.server.transport.write(raw)
            elif self._batch:
                self._flushed = True
                self._submit(synced=False)
        elif kind == frontend.QUERY:
            self._query(raw)
        else:
            if self._batch or self._open is not None:
                self._settle_batch(raw)
                return
            unit = Unit(Kind.CALL, raw)
            unit.join(_CALL)
            self._begin(unit)

    def _skip(self, kind: int, raw: bytes) -> None:
        """After an error in a batch everything up to Sync is thrown away (manual, 55.2.3)."""
        if kind != frontend.SYNC:
            return
        if self._skipping:
            self._skipping = False
            self.write(build.ready(self.server.status if self.server is not None else IDLE))
        elif self._open is not None and self.server is not None:
            self._close_open()

    def _in_copy(self, kind: int, raw: bytes) -> None:
        """In copy-in the server ignores Sync and Flush; all else ends in its error (manual, 55.2.6)."""
        assert self.server is not None
        self.server.transport.write(raw)
        if kind not in (frontend.SYNC, frontend.FLUSH):
            self._copy_in = False

    # ------------------------------------------------------------------ units out of messages

    def _classify(self, sql: bytes) -> Classification:
        if not self._readable:
            return UNREADABLE
        return self.worker.classify(sql)

    def _join(self, unit: Unit, classification: Classification) -> None:
        unseen = not classification.plain and Effect.UNKNOWN_CODE in classification.effects
        unit.join(classification, unseen and self.worker.trust.holds((self.settings.dbname, classification)))

    def _query(self, raw: bytes) -> None:
        if self._batch or self._open is not None:
            self._settle_batch(raw)
            return
        unit = Unit(Kind.QUERY, raw)
        classification = self._classify(raw[5:-1])
        self._join(unit, classification)
        if classification.reason == "ddl" and b"database" in raw[:MAX_COMMAND].lower():
            self.worker.pools.leave_databases(raw[:MAX_COMMAND])
        self._begin(unit)

    def _settle_batch(self, raw: bytes) -> None:
        """A Query or function call while a batch is open: whether the server will run it depends on
        the batch's outcome, so that is brought out by a Flush and awaited."""
        self._held_back = raw
        if self._batch:
            self._submit(synced=False)
        head, server = self._open, self.server
        if head is None or server is None:
            return
        self._flush_open()
        if head.steps is not None and head.at >= len(head.steps) and server.owed[0] is head:
            self.batch_settled(head)
        else:
            server.transport.write(build.FLUSH)

    def batch_settled(self, owed: Owed) -> None:
        """All of an open batch has been answered without an error. A Query held back runs now, in
        the batch's implicit transaction, and its ReadyForQuery ends both."""
        server = self.server
        if not self._held_back or owed is not self._open or server is None:
            return
        raw, self._held_back = self._held_back, b""
        if raw[0] == frontend.QUERY:
            self._join_open(self._classify(raw[5:-1]))
        else:
            self._join_open(_CALL)
        self._open = None
        self._compiler = None
        owed.complete = True
        owed.extended = False
        owed.steps = None
        self._barrier = bool(self._touched)
        server.transport.write(raw)

    def _extended(self, raw: bytes) -> None:
        try:
            op = frontend.read_op(raw)
            if op.name and not op.name.isascii() and self.shown.get("client_encoding", "UTF8") == "UTF8":
                op.name.decode()
        except (ProtocolViolation, UnicodeDecodeError):
            # The server refuses it in its own words, at its place.
            op = Op(0, raw)
        self._read_statement(op)
        if self._open is not None:
            self._stream_op(op)
            return
        self._batch.append(op)
        self._batch_size += len(raw)
        if self._batch_size > BATCH_LIMIT:
            self._submit(synced=False)

    def _read_statement(self, op: Op) -> None:
        """Give a Parse its Statement."""
        if op.kind == frontend.PARSE:
            classification = self._classify(op.sql)
            op.statement = self.worker.statements.intern(op.sql, op.oids, self._meaning(), classification)

    def _reread(self) -> None:
        """Parameters that decide how texts are read have changed."""
        self._readable = readable(self.shown)
        self._meant_in = None

    def _meaning(self) -> str:
        """What besides text and types decides what a Parse would find now: a Statement is shared only by
        those for whom that is equal. DDL, another search_path or role, a temporary table: a new one."""
        if self._touched:
            return f"{self.number}/{self.units}"  # settings are in motion: shared with nobody
        schema = self.worker.schema_version(self.settings.dbname)
        if self._meant_in is not self.state or self._meant_at != schema:
            self._meant_in = self.state
            self._meant_at = schema
            values = self.state.values
            self._meant = "/".join(
                (
                    self.settings.dbname,
                    str(schema),
                    self.shown.get("client_encoding", ""),
                    self.shown.get("standard_conforming_strings", ""),
                    values.get("search_path", ""),
                    values.get("role", "") or self.settings.user,
                    values.get("session_authorization", ""),
                    str(self.number) if rules.PIN_TEMP in self.pins else "",
                )
            )
        return self._meant

    def _submit(self, synced: bool) -> None:
        """The batch so far becomes a unit."""
        unit = Unit(Kind.BATCH)
        unit.ops = self._batch
        unit.synced = synced
        self._batch = []
        self._batch_size = 0
        self._judge(unit)
        if not synced:
            # More may follow that writes: the primary can serve whatever that is.
            unit.cls = Class.WRITE
        self._begin(unit)

    def _judge(self, unit: Unit) -> None:
        """Class and effects of a batch from the texts that it uses."""
        texts: dict[bytes, Statement | None] = {}
        executes = 0
        for op in unit.ops:
            if op.kind == frontend.PARSE:
                statement = op.statement
                assert isinstance(statement, Statement)
                texts[op.name] = statement
                unit.named = unit.named or bool(op.name)
                self._join(unit, statement.classification)
            elif op.kind == frontend.BIND or (op.kind == frontend.DESCRIBE and op.target == 0x53):
                if op.name not in texts:
                    unit.named = True
                    known = self.names.named.get(op.name) if op.name else self.names.unnamed
                    self._join(unit, known.classification if known is not None else _EMPTY)
                    if known is not None:
                        unit.bound_text = known.sql, known.oids
            elif op.kind == frontend.CLOSE:
                unit.named = True
                if op.name in self.names.sql:
                    unit.effects |= Effect.PREPARE
            elif op.kind == frontend.EXECUTE:
                executes += 1
            elif op.kind == 0:
                unit.cls = Class.WRITE
        if executes > 1 and unit.cls is Class.ANALYTIC:
            unit.cls = Class.READ

    # ------------------------------------------------------------------ a unit's way

    def _begin(self, unit: Unit) -> None:
        """Send a unit if it can be sent, else park it."""
        server = self.server
        if server is None:
            self._route(unit)
            return
        if server.owed:
            held = (
                (unit.named and self._parsing > 0)
                or len(server.owed) > MAX_PIPELINE
                or (not server.pool.is_primary() and unit.cls is not Class.READ and server.status == IDLE)
            )
            if held:
                self._park(unit)
                return
        self._transmit(server, unit)

    def _park(self, unit: Unit) -> None:
        self._parked = unit
        self._gate = True

    def _route(self, unit: Unit) -> None:
        worker = self.worker
        if not unit.mark:
            unit.mark = worker.written_ns(self)
        try:
            route = worker.route_unit(self, unit)
        except NoNode as error:
            self._hold(unit, error)
            return
        if route is None:
            self._park(unit)
            return
        if isinstance(route, Hold):
            self._hold(unit, NoNode(f"this statement waited too long ({route.reason})"))
            return
        pool = worker.pools.pool(route.node, self)
        server = pool.take(self, self.last_server)
        if server is None:
            if not unit.since:
                unit.since = worker.clock.now()
            if pool.join(self):
                self.waiting_in = pool
                self._park(unit)
            else:
                self._refuse(unit, pool.full_error())
            return
        self._link(server, unit)

    def _hold(self, unit: Unit, error: TridentError) -> None:
        if not unit.since:
            unit.since = self.worker.clock.now()
        if self.worker.hold(self, unit.since, error):
            self._park(unit)
        else:
            self._refuse(unit, error)

    def released_from_hold(self) -> None:
        """Something changed: try again."""
        self._thaw()
        self._resume()

    def refused(self, error: TridentError) -> None:
        """The wait is over without a server."""
        self._thaw()
        unit = self._parked
        self._parked = None
        self.waiting_in = None
        if unit is None:
            return
        self._refuse(unit, error)
        self._resume()

    def _thaw(self) -> None:
        """What waits as it came becomes a parked unit like any other."""
        data = self._early
        if not data:
            return
        self._early = b""
        if self._early_form == _QUERY:
            unit = Unit(Kind.QUERY, data)
            unit.join(self._early_class)
        else:
            unit = Unit(Kind.BATCH)
            unit.ops = _split(data)
            for op in unit.ops:
                self._read_statement(op)
            self._judge(unit)
        self._parked = unit

    def server_granted(self, server: Server) -> None:
        """The pool has a server for what waits."""
        self.waiting_in = None
        data = self._early
        if data and self._fits(server):
            self._tie(server)
            if self._pass(server, self._early_form, data, self._early_class):
                self._early = b""
                if self._input:
                    self._go_on()
                else:
                    self._settle_gate()
                return
        self._thaw()
        unit = self._parked
        self._parked = None
        if unit is None or self.closed:
            self.server = server.owner = None
            server.pool.give(server)
            return
        self._link(server, unit)
        self._resume()

    def _link(self, server: Server, unit: Unit) -> None:
        self.server = server
        server.owner = self
        unit.since = 0.0
        if self._out_paused:
            server.pause()
        if unit.reads_sequence and (server.last_writer is not self or not server.pool.is_primary()):
            self._release(server)
            self._uses_sequences = True
            self._refuse(
                unit,
                CannotFollow(
                    "currval() and lastval() need the server session that ran nextval(), "
                    "which has gone to another client",
                    hint="Use INSERT ... RETURNING, one transaction, or pool mode session.",
                    sqlstate="55000",
                ),
            )
            return
        if not self._fits(server):
            self._sync(server, unit)
            return
        self._transmit(server, unit)

    def _sync(self, server: Server, unit: Unit) -> None:
        """Bring the server's settings in line with the client's, and only then send the unit: it must
        never run with another client's role, path or settings."""
        before = server.state.values
        sql = rules.sync_sql(before, self.state.values)
        if server.unseen_by is not None and server.unseen_by is not self:
            # Another client's unseen code may have left anything: it is not looked at each time.
            sql = rules.clean_sql(self.state.values)
        server.unseen_by = None
        if not sql:
            server.state = self.state
            self._transmit(server, unit)
            return
        self.worker.counters.syncs += 1
        self._parked = unit
        self._busy = True
        self._gate = True
        server.ask(sql, self._synced)

    def _synced(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        if server.owner is not self:
            return
        self._busy = False
        unit = self._parked
        self._parked = None
        if error is not None:
            self.server = None
            server.owner = None
            server.pool.close(server, "settings of a client could not be applied")
            if unit is not None:
                failure = TridentError(
                    error.get("M", "settings could not be applied"),
                    sqlstate=error.get("C", "XX000"),
                    hint=error.get("H", ""),
                )
                if unit.kind is not Kind.WELCOME:
                    failure.detail = "A setting of this session could not be applied on the server that it was to use."
                self._refuse(unit, failure)
            self._resume()
            return
        server.state = self.state
        if unit is not None:
            self._transmit(server, unit)
        self._resume()

    def _transmit(self, server: Server, unit: Unit) -> None:
        if unit.kind is Kind.WELCOME:
            parameters = server.pool.shown_parameters(server)
            server.pool.welcomes_add(self.state, parameters)
            self._release(server)
            self._greet(parameters, server)
            return
        server.pool.counters.queries += 1
        if Effect.SEQUENCE in unit.effects:
            self._uses_sequences = not unit.discards
            if unit.discards:
                self.pins.discard(rules.PIN_SEQUENCE)
            elif server.pool.is_primary():
                self.pins.add(rules.PIN_SEQUENCE)
        if unit.unseen:
            server.unseen_by = self
        if unit.untracked and rules.PIN_SESSION not in self.pins:
            self._untracked = True
        if unit.effects:
            self._touched |= unit.effects
            self._touched_names |= unit.settings
            if Effect.UNKNOWN_CODE in unit.effects:
                self._unseen.extend(c for c in unit.classified if Effect.UNKNOWN_CODE in c.effects)
            self._barrier = unit.synced  # what follows in the same batch follows at once
        wrote = unit.cls is Class.WRITE or unit.unseen
        if unit.copies_in:
            self._awaiting_copy = self._barrier = True
        if unit.kind is Kind.BATCH:
            self._transmit_batch(server, unit, wrote)
            return
        owed = Owed(self, wrote=wrote)
        owed.ddl = unit.may_be_ddl
        owed.classified = [unit]
        raw = unit.raw
        if unit.kind is Kind.QUERY:
            server.statements.unnamed = self.names.unnamed = None
            if unit.effects & _NAMES or unit.classified[0].kind == "execute":
                raw = self._rename_in_query(server, unit, owed)
        server.send(raw, owed)
        if self._stream:
            self._barrier = False

    def _rename_in_query(self, server: Server, unit: Unit, owed: Owed) -> bytes:
        """SQL DEALLOCATE and EXECUTE of a name that the client made by Parse: the server knows it by
        another one."""
        classification = unit.classified[0]
        owed.names = (b"", None)
        if not classification.name or classification.name_span is None:
            return unit.raw
        name = classification.name.encode("utf-8", "surrogateescape")
        statement = self.names.named.get(name)
        if statement is None:
            return unit.raw
        if classification.kind == "prepare":
            # PostgreSQL refuses a second use of the name, so it is put there to be found.
            server.tell(build.parse(name, b""))
            owed.squatters = [name]
            return unit.raw
        if statement not in server.statements.named:
            self.worker.counters.reparses += 1
            server.tell(statement.parse(statement.server_name))
            server.statements.named[statement] = None
        owed.names = (name, statement)
        text = unit.raw[5:-1].decode("utf-8", "surrogateescape")
        start, end = classification.name_span
        renamed = text[:start] + rules.identifier(statement.server_name.decode()) + text[end:]
        return build.query(renamed.encode("utf-8", "surrogateescape"))

    def _transmit_batch(self, server: Server, unit: Unit, wrote: bool) -> None:
        quiet = not server.owed and server.status != FAILED
        self.names.schema = self.worker.schema_version(self.settings.dbname)
        compiler = Compiler(self.names, server.statements, quiet)
        owed = Owed(self, wrote=wrote, extended=True)
        owed.ddl = unit.may_be_ddl
        owed.classified = [unit]
        owed.steps = []
        out: list[bytes] = []
        for op in unit.ops:
            self._compile(compiler, op, out, owed)
        if unit.synced:
            out.append(build.SYNC)
            self._note_compiled(server, compiler, owed)
        else:
            owed.complete = False
            self._open = owed
            self._compiler = compiler
            if self._flushed:
                out.append(build.FLUSH)
                self._flushed = False
        if unit.synced and server.status == IDLE and quiet and not unit.retried:
            self._named_unit = unit
        else:
            self._named_unit = None
        if unit.named:
            self._parsing += 1
        server.owed.append(owed)
        server.transport.write(b"".join(out))
        if not unit.synced and len(server.owed) == 1:
            server.made(owed)

    def _compile(self, compiler: Compiler, op: Op, out: list[bytes], owed: Owed) -> None:
        assert owed.steps is not None
        if op.kind == 0:
            out.append(op.raw)
            return
        if op.kind == frontend.PARSE:
            statement = op.statement
            assert isinstance(statement, Statement)
            classification = statement.classification
            if classification.kind in ("deallocate", "execute") and classification.name:
                op.statement = self._renamed_statement(compiler, statement)
        data, pending = compiler.add(op)
        if data:
            out.append(data)
        owed.steps.extend(pending)

    def _renamed_statement(self, compiler: Compiler, statement: Statement) -> Statement:
        classification = statement.classification
        target = compiler.lookup(classification.name.encode("utf-8", "surrogateescape"))
        if target is None or classification.name_span is None:
            return statement
        text = statement.sql.decode("utf-8", "surrogateescape")
        start, end = classification.name_span
        renamed = text[:start] + rules.identifier(target.server_name.decode()) + text[end:]
        return Statement(
            renamed.encode("utf-8", "surrogateescape"), statement.oids, statement.server_name + b"_r", classification
        )

    def _note_compiled(self, server: Server, compiler: Compiler, owed: Owed) -> None:
        if compiler.squatters:
            owed.squatters = compiler.squatters
        for statement in compiler.used:
            if statement in server.statements.named:
                server.statements.named.move_to_end(statement)

    def _stream_op(self, op: Op) -> None:
        """A message of a batch that has been sent in part."""
        server, owed, compiler = self.server, self._open, self._compiler
        assert server is not None and owed is not None and compiler is not None
        statement = op.statement
        if isinstance(statement, Statement):
            self._join_open(statement.classification)
        elif op.kind == frontend.BIND and (known := compiler.lookup(op.name)) is not None:
            self._join_open(known.classification)
        out: list[bytes] = []
        compiler.quiet = False
        self._compile(compiler, op, out, owed)
        self._out.extend(out)

    def _join_open(self, classification: Classification) -> None:
        if classification.plain:
            return
        self._touched |= classification.effects
        self._touched_names |= classification.settings
        if Effect.UNKNOWN_CODE in classification.effects:
            self._unseen.append(classification)
            if self.server is not None:
                self.server.unseen_by = self
        if self._open is not None:
            unit = self._open.classified[0]
            assert isinstance(unit, Unit)
            unit.effects |= classification.effects
            unit.settings |= classification.settings
            unit.resets = unit.resets or classification.resets

    def _flush_open(self) -> None:
        """Write what was compiled of an open batch; one write a chunk."""
        if self._out and self.server is not None:
            self.server.transport.write(b"".join(self._out))
        self._out.clear()

    def _close_open(self) -> None:
        """The Sync of an open batch."""
        server, owed, compiler = self.server, self._open, self._compiler
        assert server is not None and owed is not None
        self._flush_open()
        if compiler is not None:
            self._note_compiled(server, compiler, owed)
        owed.complete = True
        self._open = None
        self._compiler = None
        self._batch_failed = False
        unit = owed.classified[0]
        if isinstance(unit, Unit) and unit.effects:
            self._barrier = True
        server.transport.write(build.SYNC)

    # ------------------------------------------------------------------ long messages

    def _begin_stream(self, kind: int, part: bytes, rest: int) -> bool:
        """A message too long to be held: route it by its kind and pass it on as it comes.

        Returns False when it has to be held after all (a text that must be kept to be parsed again).
        """
        if self._skipping or self._batch_failed:
            self._stream = rest
            self._stream_sink = False
            return True
        if kind == frontend.COPY_DATA:
            self._stream_sink = self.server is not None and bool(self.server.owed)
            self._stream = rest
            if self._stream_sink and self.server is not None:
                self.server.transport.write(part)
            return True
        if kind == frontend.QUERY and not self._batch and self._open is None:
            unit = Unit(Kind.QUERY, part)
            unit.join(_TOO_LONG)
            self._stream = rest
            self._stream_sink = True
            self._begin(unit)
            return True
        if kind == frontend.BIND:
            return self._stream_bind(part, rest)
        if len(part) + rest > MAX_HELD_MESSAGE:
            raise ProtocolViolation(f"a message of this kind may not exceed {MAX_HELD_MESSAGE} bytes", sqlstate="54000")
        return False

    def _stream_bind(self, part: bytes, rest: int) -> bool:
        """Only the names at the head of a Bind matter; the parameters pass through."""
        first = part.find(b"\0", 5)
        second = part.find(b"\0", first + 1) if first >= 0 else -1
        if second < 0:
            if len(part) > BATCH_LIMIT:
                raise ProtocolViolation("the names in a Bind message are too long", sqlstate="54000")
            return False
        op = Op(frontend.BIND, part)
        op.portal, op.name, op.rest = part[5:first], part[first + 1 : second], second + 1
        if self._open is None:
            self._batch.append(op)
            self._submit(synced=False)
        else:
            self._stream_op(op)
            self._flush_open()
        self._stream = rest
        self._stream_sink = True
        return True

    def _pass_on(self, data: bytes) -> None:
        if self._stream_sink and self.server is not None:
            self.server.transport.write(data)

    def _stream_ended(self) -> None:
        self._stream_sink = False

    # ------------------------------------------------------------------ answers

    def write(self, data: bytes) -> None:
        """Bytes to the application."""
        if not self.closed:
            self.transport.write(data)

    def parameter_changed(self, server: Server, owed: Owed | None, name: str, value: str) -> str | None:
        """A ParameterStatus came with an answer: the session's own doing, seen or unseen.

        Returns the value to be shown, or None to show nothing. A reset on the server goes back to the
        server's login, but the client's own startup setting is put in its place right behind.
        """
        unit = owed.classified[0] if owed is not None and owed.classified else None
        if isinstance(unit, Unit) and unit.resets and name in self._greeted and value == server.at_login.get(name):
            value = self._greeted[name]
            if self.shown.get(name) == value:
                return None
        self.shown[name] = value
        if name in ("client_encoding", "standard_conforming_strings"):
            self._reread()
        if name == "session_authorization" or name == "is_superuser":
            self._touched |= Effect.ROLE
        elif name not in _NOT_SETTINGS:
            self._touched |= Effect.SET
            self._touched_names.add(name.lower())
        return value

    def copy_in_began(self, owed: Owed) -> None:
        """The server wants copy data. A Sync that went out with the batch is lost on it."""
        if self._copy_ended:
            return  # its data had been sent ahead
        self._copy_in = True
        self._resync = owed.extended and owed.complete
        self._gate = True
        if self._awaiting_copy:
            self._awaiting_copy = False
            self._barrier = False
            self.worker.loop.call_soon(self._resume)

    def unit_failed(self, server: Server, owed: Owed, fields: dict[str, str], first: bool) -> bool:
        """An ErrorResponse is on its way to the client; whether it is to be passed on."""
        self._copy_in = False
        if owed is self._open:
            self._batch_failed = True
            if self._barrier or self._held_back:
                self._awaiting_copy = self._barrier = False
                self.worker.loop.call_soon(self._resume)
            self._held_back = b""
            self._out.clear()
        if owed is self._reads or owed is self._writes:
            if first:
                server.statements.unnamed = self.names.unnamed = None
            return True
        if owed is self._named_reads or owed is self._named_writes:
            self._named_unit = Unit(Kind.BATCH, self._named_raw)
        if fields.get("C") == "0A000" and fields.get("R") == "RevalidateCachedQuery":
            return self._stale(server, owed, first)
        return True

    def _stale(self, server: Server, owed: Owed, first: bool) -> bool:
        """ "cached plan must not change result type": the shared statement is older than the table.

        The client may not have asked for a result of the old shape at all, so the statement is parsed
        anew and the unit run again, but only where nothing has run yet and the client can't have kept
        an old description. Otherwise the error stands, as it would without a proxy.
        """
        unit = self._named_unit
        used = [s for s in server.statements.named if s in self._used_by(unit)] if unit is not None else []
        for statement in used:
            del server.statements.named[statement]
        self._stale_names = [s.server_name for s in used]
        self._gate = True  # `unit_done` has something to do
        if unit is None or not first or not used or len(server.owed) != 1 or unit.retried or server.status != IDLE:
            return True
        if any(op.name in self.names.described for op in unit.ops if op.name):
            return True
        unit.retried = True
        owed.retry = self._run_again
        return False

    def _used_by(self, unit: Unit | None) -> set[Statement]:
        if unit is None:
            return set()
        if not unit.ops and unit.raw:
            unit.ops = _split(unit.raw)
            self._judge(unit)
        used = set()
        for op in unit.ops:
            if isinstance(op.statement, Statement):
                used.add(op.statement)
            elif op.kind in (frontend.BIND, frontend.DESCRIBE) and (known := self.names.named.get(op.name)):
                used.add(known)
        return used

    def _run_again(self) -> None:
        unit, server = self._named_unit, self.server
        if unit is None or server is None:
            return
        self.worker.counters.reparses += 1
        if self._stale_names:
            server.tell(b"".join(build.close(b"S", name) for name in self._stale_names))
            self._stale_names = []
        self._named_unit = None
        for op in unit.ops:
            if op.kind == frontend.PARSE:
                self.names.named.pop(op.name, None)  # it is parsed once more
        self._transmit(server, unit)

    def unit_done(self, server: Server, owed: Owed, status: int) -> None:
        """ReadyForQuery came."""
        self.units += 1
        if owed.wrote and self._uses_sequences:
            self.pins.add(rules.PIN_SEQUENCE)
        if owed.ddl or self._ddl:
            self.worker.schema_changed(self.settings.dbname)
            self._ddl = status != IDLE
        if owed.plain and not self._gate and status == IDLE and not self._touched and not server.owed and not self.pins:
            # Nothing unusual is going on: the server is free.
            if owed.wrote:
                server.last_writer = self
                self.worker.wrote(self)
            self._release(server)
            return
        if self._doomed is not None and not server.owed:
            self.fail(self._doomed)
            return
        if owed.steps is not None:
            unit = owed.classified[0] if owed.classified else None
            if isinstance(unit, Unit) and unit.named and self._parsing:
                self._parsing -= 1
        self._copy_in = False
        self._copy_ended = False
        self._awaiting_copy = False
        self._resync = False
        if owed.retry is not None:
            retry, owed.retry = owed.retry, None
            retry()
            return
        if owed.squatters:
            server.tell(b"".join(build.close(b"S", name) for name in owed.squatters))
        elif self._stale_names:
            server.tell(b"".join(build.close(b"S", name) for name in self._stale_names))
            self._stale_names = []
        if owed.wrote:
            server.last_writer = self
            self.worker.wrote(self)
        if self._touched:
            self._after_effects(server, owed, status)
            if self._busy:
                return
        self._barrier = False
        if status == IDLE:
            if not server.owed and self._open is None and not self.pins and not self._touched:
                self._release(server)
        elif self.settings.mode == "statement":
            self.fail(
                Terminated(
                    "transaction blocks are not allowed in statement pooling mode",
                    sqlstate="08P01",
                    hint="Use pool mode transaction.",
                )
            )
            return
        if self._parked is not None or self._input or self._held_back:
            self._resume()
        elif self._gate:
            self._settle_gate()

    # ------------------------------------------------------------------ session state

    def _after_effects(self, server: Server, owed: Owed, status: int) -> None:
        """A unit that may have changed the session has ended: put back what the client's startup asked
        for, and once the session is idle look at what it has become."""
        unit = owed.classified[0] if owed.classified else None
        if isinstance(unit, Unit) and unit.effects:
            if not owed.failed and unit.is_discard_all:
                self._discarded(server)
                return
            if unit.resets and not owed.failed and status != FAILED and self.startup:
                names = self.startup if Effect.SET_ANY in unit.effects else unit.settings & self.startup.keys()
                values = {name: self.startup[name] for name in names}
                if values:
                    self._touched_names |= values.keys()
                    self._busy = True
                    self._gate = True
                    server.ask(rules.set_sql(values), self._put_back)
                    return
        if status == IDLE and not server.owed and self._open is None:
            self._audit(server)

    def _put_back(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        if server.owner is not self:
            return
        self._busy = False
        if server.status == IDLE and not server.owed:
            self._audit(server)
        self._continue(server)

    def _discarded(self, server: Server) -> None:
        """DISCARD ALL succeeded: the session is as after login, which for this client is its startup."""
        server.state = self.worker.states.empty
        server.unseen_by = None
        self.state = self.startup_state
        self.pins &= {rules.PIN_SESSION}
        self._touched = Effect.NONE
        self._touched_names.clear()
        self._unseen.clear()
        if self.pins and self.startup:
            self._busy = True
            self._gate = True
            server.ask(rules.sync_sql({}, self.state.values), self._reapplied)

    def _reapplied(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        if server.owner is not self:
            return
        self._busy = False
        server.state = self.state
        self._continue(server)

    def _audit(self, server: Server) -> None:
        """Ask the server what has become of the session."""
        if rules.PIN_SESSION in self.pins:
            self._touched = Effect.NONE
            self._touched_names.clear()
            return
        effects = rules.audited(self._touched)
        names = self._touched_names
        if Effect.SET_ANY in effects:
            names = names.union(name for name in self.state.values if "." in name)
        sql = rules.audit_sql(effects, names, server.pool.user)
        if Effect.LOAD in effects:
            self.pins.add(rules.PIN_LOAD)
        if self._untracked:
            # A custom setting may be among them, and those can't be listed.
            self._untracked = False
            self.pins.add(rules.PIN_UNKNOWN)
        if not sql:
            self._touched = Effect.NONE
            self._touched_names.clear()
            return
        self.worker.counters.audits += 1
        self._busy = True
        self._gate = True
        server.ask(sql, self._audited)

    def _audited(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        if server.owner is not self:
            return
        self._busy = False
        effects = rules.audited(self._touched)
        self._touched = Effect.NONE
        self._touched_names.clear()
        if error is not None:
            # What the session is can't be told: the client keeps this server, nobody else gets it.
            self.pins.add(rules.PIN_UNKNOWN)
            self._unseen.clear()
            self._continue(server)
            return
        answer = rules.read_audit((_texts(row) for row in rows), effects, self.state.values, self.pins)
        state = self.worker.states.intern(answer.values)
        clean = state is self.state and answer.pins == self.pins
        for classification in self._unseen:
            self.worker.trust.note((self.settings.dbname, classification), clean)
        self._unseen.clear()
        if answer.pins and not self.pins:
            self.worker.counters.pins += 1
        self.state = server.state = state
        self.pins = answer.pins
        self._meant_in = None
        if Effect.PREPARE in effects:
            self.names.sql = {name.encode("utf-8", "surrogateescape") for name in answer.prepared}
        self._continue(server)

    def _continue(self, server: Server) -> None:
        """After a question of our own: as after a unit."""
        if self._busy:
            return
        self._barrier = False
        if server.status == IDLE and not server.owed and self._open is None and not self.pins and not self._touched:
            self._release(server)
        self._resume()

    def _release(self, server: Server) -> None:
        """The server goes back to its pool; the client is linked to nothing."""
        self.server = None
        self.last_server = server
        self._parsing = 0
        if self._server_full:
            self._server_full = False
            self._steer()
        server.owner = None
        if self._out_paused:
            server.resume()
        if len(server.statements.named) > server.statements.limit:
            surplus = server.statements.surplus(set())
            for statement in surplus:
                del server.statements.named[statement]
            server.tell(b"".join(build.close(b"S", s.server_name) for s in surplus))
            return
        server.pool.give(server)

    # ------------------------------------------------------------------ for upkeep

    @property
    def idle(self) -> bool:
        """Between transactions: it can be ended without losing any work."""
        return self.server is None and self._parked is None and not self._batch and not self._early

    @property
    def wants_read(self) -> bool:
        """Whether what is parked may be served by a replica."""
        self._thaw()
        return self._parked is not None and self._parked.cls in (Class.READ, Class.ANALYTIC)

    def quiet_since(self, now: float) -> float | None:
        """When it was first seen with nothing under way; None while something is. Seen once a second,
        so that no unit has to note the time."""
        server = self.server
        if self._early or self._parked is not None or self._busy or (server is not None and server.owed):
            self._quiet = 0.0
            self._quiet_mark = -1
            return None
        mark = self.units
        if not self._quiet or mark != self._quiet_mark:
            self._quiet = now
            self._quiet_mark = mark
        return self._quiet

    # ------------------------------------------------------------------ ends

    def _refuse(self, unit: Unit, error: TridentError) -> None:
        """Answer a unit with an error of our own, and leave the connection as PostgreSQL would."""
        self.worker.counters.rejected += 1
        if unit.kind is Kind.WELCOME:
            error.severity = "FATAL"
            self.fail(error)
            return
        if self._stream:
            self._stream_sink = False
        self.write(build.error_response(error, "ERROR"))
        if unit.kind is Kind.BATCH and not unit.synced:
            self._skipping = True
        else:
            self.write(build.ready(self.server.status if self.server is not None else IDLE))

    def cancel(self) -> None:
        """A CancelRequest with this client's key arrived."""
        self._thaw()
        unit = self._parked
        if unit is not None and not self._busy and self.server is None and unit.kind is not Kind.WELCOME:
            if self.waiting_in is not None:
                self.waiting_in.leave(self)
            self.worker.unhold(self)
            self.refused(TridentError("canceling statement due to user request", sqlstate="57014"))
        elif self.server is not None and self.server.owed and self.server.owed[0].sink is self:
            self.server.pool.cancel(self.server)

    def fail(self, error: TridentError) -> None:
        """End this client with a FATAL."""
        if self.closed:
            return
        if isinstance(error, ProtocolViolation):
            self.worker.counters.protocol_errors += 1
        self.worker.client_event(self, "client_failed", sqlstate=error.sqlstate, message=error.message)
        if self.server is None or not self.server.mid_message:
            self.transport.write(build.error_response(error, "FATAL"))
        self._leave()

    def server_lost(self, server: Server, fatal: bool) -> None:
        """The linked server is gone. As with PostgreSQL itself, so is the session."""
        self.server = None
        self._busy = False
        if self._parked is not None and self._parked.kind is not Kind.WELCOME and not self._started(server):
            # Nothing of the parked unit was sent: it goes elsewhere.
            unit = self._parked
            self._parked = None
            if not self.pins and server.status == IDLE and not fatal:
                self._begin(unit)
                return
        if not fatal and not self.closed and not server.mid_message:
            wrote = any(owed.wrote for owed in server.owed)
            self.transport.write(
                build.error_response(
                    Terminated(
                        f"the connection to node {server.pool.node} was lost"
                        + (" while a statement was running; its outcome is unknown" if wrote else ""),
                        sqlstate="08007" if wrote else "08006",
                        hint="Connect again; the proxy stays in service.",
                    )
                )
            )
        self._leave()

    @staticmethod
    def _started(server: Server) -> bool:
        return any(owed.sink is not None for owed in server.owed)

    def server_paused(self, paused: bool) -> None:
        """The server's socket is full (or no longer)."""
        self._server_full = paused
        self._steer()

    def pause_writing(self) -> None:
        self._out_paused = True
        if self.server is not None:
            self.server.pause()

    def resume_writing(self) -> None:
        self._out_paused = False
        if self.server is not None:
            self.server.resume()

    def eof_received(self) -> bool:
        # At once, not when the transport has closed: a waiter that left must not be given a server.
        self._leave(abrupt=True)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave(abrupt=True)

    def _leave(self, abrupt: bool = False) -> None:
        """The client is gone, or is to be."""
        if self.closed:
            return
        self.closed = True
        self._gate = True
        if self.waiting_in is not None:
            self.waiting_in.leave(self)
            self.waiting_in = None
        self.worker.client_gone(self)
        server = self.server
        self.server = None
        if server is not None and not server.closed:
            server.pool.abandon(
                server,
                self,
                dirty=bool(self.pins or self._touched),
                ruined=bool(self.pins & {rules.PIN_UNKNOWN, rules.PIN_LOAD}) or self._untracked,
                open_batch=self._open is not None or self._resync,
                copy_in=self._copy_in,
                torn=self._stream > 0,
                cancel=abrupt,
            )
        self._parked = None
        self._input = b""
        self._parts.clear()
        self._batch.clear()
        self.transport.close()


def _texts(row: list[bytes | None]) -> tuple[str, str, str | None]:
    if len(row) < 3:
        raise ProtocolViolation("a node's answer to a question of the proxy has another shape")
    kind, name, value = (None if v is None else v.decode("utf-8", "replace") for v in row[:3])
    return kind or "", name or "", value


def _split(data: bytes) -> list[Op]:
    """The extended messages of a batch, without its Sync."""
    ops = []
    pos = 0
    while pos < len(data):
        end = pos + 1 + int.from_bytes(data[pos + 1 : pos + 5], "big")
        if data[pos] in frontend.EXTENDED:
            ops.append(frontend.read_op(data[pos:end]))
        pos = end
    return ops
