"""One logged-in application connection: its messages become units, its units find a server.

Owns the client's side of everything: input, the session state that follows it, its names, its pins.
A unit goes parse -> classify -> route -> take -> (bring settings in line) -> send, and waits in
`_parked` wherever one of these needs something; meanwhile nothing behind it is read. The fast path at
the top of `data_received` is the same thing without the waits.

Called by asyncio (bytes in), by `server` (answers) and by `pools` (a server was granted, or refused).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import CannotFollow, Moved, NoNode, ProtocolViolation, Rejected, Terminated, TridentError
from ..routing.bind import UNREADABLE, Binding, readable
from ..routing.consistency import LEVELS, OWN_LEVELS, Token, read_token
from ..routing.decide import Roaming
from ..routing.router import Hold
from ..session import rules
from ..session.prepared import ClientStatements, Statement, take_names
from ..session.state import State
from ..session.wishes import CONSISTENCY, KEY, NONE, TOKEN, divide, later, shown_sql
from ..sql.hints import MARK, Hints, Split, of_settings
from ..sql.lexical import route_explained
from ..sql.model import Class, Classification, Effect, is_parsed_by
from ..topology.snapshot import Snapshot
from ..wire import build, frontend
from ..wire.codes import FAILED, IDLE
from ..wire.frontend import BATCH_LIMIT, Op
from ..wire.scan import B_NAMED, B_PLAIN, B_SYNC, bound_name, is_query, scan_batch
from . import begins, explain
from .audit import Audit
from .batch import Batches
from .rerun import CANCELLED, REFUSALS, Rerun
from .server import NODE_VIEW, Owed, Server, Sink
from .unit import CALL, EMPTY, TOO_LONG, Kind, Unit, split_batch
from .virtual import Virtual
from .waiter import Waiter

if TYPE_CHECKING:
    from .authenticate import LoggedIn
    from .pools import ServerPool
    from .services import Tie
    from .worker import ClientSettings, Worker

MAX_PIPELINE = 1_000
"""Units of one client in flight; more wait in its socket."""
MAX_INPUT = 256 * 1024
"""Bytes held for a client that waits; reading pauses beyond."""
MAX_HELD_MESSAGE = 16 * 1024 * 1024
"""Most messages pass through as they come. A statement's text is kept, to be parsed again elsewhere, and so
is what comes behind an open batch; those have a bound of their own."""


_NO_PARTS: list[bytes] = []
"""Shared by all clients that gather no long message; never changed."""

MAX_COMMAND = 1024
"""Bytes of a text that are looked at for a database's name."""
_NAMES = Effect.DISCARD | Effect.PREPARE

_OWN_MEANING = frozenset((rules.PIN_TEMP, rules.PIN_SESSION))
"""With these its session has tables, or settings, that `Client.state` does not tell of."""

_QUERY = 0
_PLAIN = B_SYNC | B_PLAIN
_NAMED = B_SYNC | B_NAMED
"""Forms of a usual unit: a Query, a batch of the unnamed statement, a batch that binds a named one."""


MAX_TOLD = 100
"""Ignored hints that a client is told of."""
_TOO_LONG = {"fallback_share": "no replica can serve this read, and too many read on the primary already"}
"""What is said of a unit whose wait was in vain, by the reason of its hold."""

_READY = build.ready(IDLE)

_GONE = asyncio.Transport()
"""Stands for a connection that is closed; never called."""


class Client(Sink, Waiter):
    """See the module. An asyncio.Protocol by its methods only: without that base mypyc can compile it."""

    def __init__(
        self, worker: Worker, transport: asyncio.Transport, login: LoggedIn, settings: ClientSettings, number: int
    ) -> None:
        self.worker = worker
        self._classifier = worker.classifier
        self.transport = transport
        settings_given, self.startup_wishes = divide(login.params)
        self.startup_state = worker.states.intern(settings_given)
        self.startup = self.startup_state.values
        self.login = replace(login, params=self.startup, credentials=None)  # many clients share one
        self.number = number
        self.settings = settings
        self.tie: Tie | None = None
        """How it keeps to nodes; None if it goes by the router's rules."""
        self.binding = (
            worker.catalogues.binding(settings.dbname, settings.split) if settings.mode != "session" else None
        )
        """None where what names mean decides nothing: all goes to one server, that nobody else gets as it is."""
        self.token = Token(worker.consistency.begun_with(settings.dbname, settings.user))
        """What its reads have to see, at `session`."""
        self.roaming = Roaming()
        self.level = settings.consistency
        self.analytic_level = settings.analytic_consistency
        self.seen = worker.seen.group(login.database, login.user, self.level, self.analytic_level)
        """Where what it sends is counted by shape."""
        self.key_slot = -1
        """The board's slot of its consistency key."""
        self.wishes: Mapping[str, str] = NONE
        """Its `pgtrident.*` settings ..."""
        self.asked: Hints | None = None
        """... and what they ask for."""
        self._ignored: set[str] = set()
        self.policies = worker.policies.of_client(login.database, login.user, login.params.get("application_name", ""))
        self.unruled = self.policies.plain
        """No rule can hold for it, and its settings say nothing but what its reads have to see."""
        self.names = ClientStatements()
        self.state: State = self.startup_state
        self.pins: frozenset[str] = rules.SESSION_PINS if settings.mode == "session" else rules.NO_PINS
        self.shown: Mapping[str, str] = {}
        """Parameters as they were last reported. Shared by those whose are equal since their greeting."""
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

        self._received = 0
        """Bytes that no pool has been credited with yet."""
        self._input = b""
        self._gate = True
        """Something keeps the fast path away: input left over, a unit parked, a batch begun ..."""
        self._parts = _NO_PARTS
        self._need = 0
        self._stream = 0
        self._batches: Batches | None = None
        self._parked: Unit | None = None
        self.busy = False
        """A question of our own is under way on the linked server; nothing else may be sent."""
        self.barrier = False
        """What the unit in flight does to the session has to be known first; data for its copies may be sent."""
        self.parsing = 0
        self._skipping = False
        self._copy_in = False
        self._copies_ahead = 0
        """Ends of copies (CopyDone, CopyFail) that went out before the server had asked for their data."""
        self._awaiting_copy = False
        """Whether the server will go into copy-in is about to be known; until then a Sync can't be read."""
        self._resync = False
        self.audit = Audit(self)
        self._doomed: ProtocolViolation | None = None
        """The client broke the protocol; it ends when what is in flight has been answered."""
        self._uses_sequences = False
        """It has asked for its own last value of a sequence: what it writes from now on ties it to its server."""
        self._readable = True
        self._meant = ""
        self._meant_in: State | None = None
        self._meant_at = 0
        """`meaning` as of a state and a version of the schema."""
        self._own = 0
        """How often what names mean has changed for this session alone, as far as it keeps its server."""
        self.ddl_open = False
        """DDL ran in the open transaction."""
        self._home: ServerPool | None = None
        self._home_snapshot: Snapshot | None = None
        """For which snapshot `_home` is the pool on the primary."""
        self._out_paused = False
        self._in_paused = False
        self._server_full = False
        self._usual: Owed | None = None
        """What `_pass` owes: one at a time, so it is made once and used again."""
        self._greeted: Mapping[str, str] = {}
        """Reported parameters as they were first shown."""
        self.rerun = Rerun(self)
        self._early = b""
        """A usual unit that waits for a server as it came: no Unit is made of it unless need be."""
        self._early_form = 0
        self._early_class = EMPTY
        self._stream_sink = False
        self.virtual: Virtual | None = None
        """Its open transaction, while that has not begun anywhere."""
        if self.startup_wishes:
            self.wish(self.startup_wishes)

    @property
    def batches(self) -> Batches:
        """Made when first needed: of many idle clients few have sent a batch."""
        if self._batches is None:
            self._batches = Batches(self)
        return self._batches

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
        self.begin(unit)

    def _greet(self, parameters: Mapping[str, str], server: Server | None) -> None:
        """Tell the client its parameters and key. Its process id is that of the server that it is likely
        to get first and most often, so that pg_backend_pid() agrees with it wherever it can, unless another
        client was told that one: drivers tell their own notifications by it."""
        self.last_server = server
        self.worker.give_key(self, server.pid if server is not None else 0)
        self.shown = self._greeted = parameters
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
                if (
                    is_query(data)
                    and MARK not in data
                    and self._at_once(_QUERY, data, self._classifier.classify(data[5:-1]))
                ):
                    return
            elif kind == 0x50 or kind == 0x42:
                form = scan_batch(data)
                if form == _PLAIN and MARK not in data:
                    last = self.names.unnamed
                    if last is not None and data.startswith(last.unnamed):
                        classification = last.classification  # the same text again
                    else:
                        classification = self._classifier.classify(data[6 : data.find(b"\0", 6)])
                    if self._at_once(form, data, classification):
                        return
                elif form == _NAMED:
                    statement = self.names.named.get(bound_name(data))
                    if (
                        statement is not None
                        and statement.split is None
                        and self._at_once(form, data, statement.classification)
                    ):
                        return
        self._slow(data)

    def _at_once(self, form: int, data: bytes, classification: Classification) -> bool:
        """Send a usual unit as it came, or let it wait for a server as it is (`_early`). False when it
        needs more than that; the general way then takes it."""
        if self.binding is not None:
            classification = self._bound(self.binding, classification)
        if not classification.quick or not self._readable or not self.unruled:
            return False
        if classification.starts_transaction and self.settings.transactions != "primary":
            return False
        server = self.server
        if server is not None:
            if server.owed or self.busy:
                return False
            return self._pass(server, form, data, classification)
        worker = self.worker
        if self.settings.split or self.tie is not None:
            route = worker.routes.plain(self, classification)
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
        if self.settings.split:
            self.rerun.raw = data
        if form == _NAMED:
            own = bound_name(data)
            statement = names.named[own]
            if statement not in server.statements.named:
                return False
            name = statement.server_name
            length = int.from_bytes(data[1:5], "big") + len(name) - len(own)
            self.rerun.raw = data
            data = b"".join((b"B", length.to_bytes(4, "big"), b"\0", name, data[6 + len(own) :]))
        else:
            if form == _QUERY:
                server.statements.unnamed = names.unnamed = None
            else:
                context = self.meaning()
                last = names.unnamed
                if last is None or last.context != context or not data.startswith(last.unnamed):
                    parse = data[: 1 + int.from_bytes(data[1:5], "big")]
                    end = parse.find(b"\0", 6)
                    # What the text is for all databases, not what it is in this one.
                    alone = self._classifier.classify(parse[6:end])
                    last = self.worker.statements.intern(parse[6:end], parse[end + 1 :], context, alone)
                    last.unnamed = parse
                    names.unnamed = last
                server.statements.unnamed = last
        owed = self._usual
        if owed is None:
            owed = self._usual = Owed(self, plain=True)
        owed.extended = form == _NAMED
        owed.wrote = classification.writes
        owed.found = classification
        owed.key = self.key_slot
        owed.ddl = self.ddl_open
        owed.started = owed.failed = False
        server.owe(owed)
        server.transport.write(data)
        counters = server.pool.counters
        counters.queries += 1
        counters.bytes_received += len(data)
        if form == _NAMED:
            counters.prepared_hits += 1
        self.worker.count(classification.cls)
        try:
            self.seen.counts[classification] += 1
        except KeyError:
            self.seen.note(classification)
        return True

    def _slow(self, data: bytes) -> None:
        """The general way: message by message."""
        self._gate = True
        self._received += len(data)
        if self._need:
            self._parts.append(data)
            self._need -= len(data)
            if self._need > 0:
                return
            data = b"".join(self._parts)
            self._parts = _NO_PARTS
            self._need = 0
            self._input = data
        elif self._input:
            self._input += data
        else:
            self._input = data
        self._pump()

    def shut_gate(self) -> None:
        """Keep the fast path away until what is under way is settled."""
        self._gate = True

    def shut_in(self) -> None:
        """Take nothing more of the client's until `send_elsewhere`."""
        self.busy = self._gate = True

    def send_elsewhere(self, unit: Unit) -> None:
        """Leave this server, and send the unit to another one."""
        self.busy = False
        server = self.server
        if server is not None:
            self._release(server)
        self.begin(unit)

    @property
    def waits_behind(self) -> bool:
        """Whether more of the client's waits behind the unit in flight."""
        return self._parked is not None or (self._batches is not None and self._batches.begun)

    def _blocked(self) -> bool:
        return bool(
            self._early
            or self._doomed is not None
            or self._parked is not None
            or self.busy
            or self._barred()
            or (self._batches is not None and self._batches.waits)
            or self.closed
            or not self.ready
        )

    def _barred(self) -> bool:
        return self.barrier and not self._copy_in

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
                if kind in frontend.COPY and self.batches.ops:
                    # A batch whose COPY wants data is sent without its Sync.
                    self.batches.submit(synced=False)
                    continue
                pos = end
                self._message(kind, raw)
        except ProtocolViolation as error:
            self._input = b""
            if self._is_owed():
                self._doomed = error  # what is in flight is answered first
                self._steer()
            else:
                self.fail(error)
            return
        self._input = buf[pos:] if pos < n else b""
        if self._need:
            self._parts = [self._input]
            self._input = b""
        if self._batches is not None:
            self._batches.write_out()
        self.settle_gate()

    def _is_owed(self) -> bool:
        """Whether an answer is under way to this client that waits for nothing more from it."""
        server = self.server
        if server is None or self._copy_in or (self._batches is not None and self._batches.open is not None):
            return False
        return any(owed.sink is self for owed in server.owed)

    def settle_gate(self) -> None:
        self._gate = bool(
            self._input
            or self._need
            or self._stream
            or (self._batches is not None and self._batches.begun)
            or self._skipping
            or self._copy_in
            or self._resync
            or self.virtual is not None
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
                self.worker.counters.pauses += 1
            else:
                self.transport.resume_reading()

    def _resume(self) -> None:
        """Go on with what was parked, then with the input."""
        if self.closed or self.busy or self._barred():
            return
        unit = self._parked
        if unit is not None:
            if self.waiting_in is not None:
                return
            self._parked = None
            self.begin(unit)
        if self._parked is None:
            self._go_on()

    def _go_on(self) -> None:
        batches = self._batches
        if batches is not None and batches.held_back and batches.open is not None and not batches.failed:
            batches.hold_back(batches.held_back)
        if self._input:
            self._pump()
        else:
            self.settle_gate()

    def _message(self, kind: int, raw: bytes) -> None:
        if kind == frontend.TERMINATE:
            self._leave()
            return
        if self._skipping or self.batches.failed:
            self._skip(kind, raw)
            return
        if kind in frontend.COPY:
            # Outside of a copy PostgreSQL throws these away.
            if self.server is not None and self.server.owed:
                self.batches.write_out()
                self.server.transport.write(raw)
                if kind != frontend.COPY_DATA:
                    self._copies_ahead += not self._copy_in
                    self._copy_in = False
            return
        if self._copy_in:
            self._in_copy(kind, raw)
            return
        if kind in frontend.EXTENDED:
            self.batches.add(raw)
        elif kind == frontend.SYNC:
            if self._resync and self.server is not None:
                # The Sync before was eaten by copy-in; this one ends that batch.
                self._resync = False
                self.barrier = bool(self.audit.touched)
                self.server.transport.write(raw)
            elif self.batches.open is not None:
                self.batches.close()
            elif self.batches.ops or self.server is not None:
                self.batches.submit(synced=True)
            else:
                self.write(build.ready(IDLE))  # nothing to synchronise with
        elif kind == frontend.FLUSH:
            self.batches.flush()
        elif kind == frontend.QUERY:
            self._query(raw)
        else:
            if self.batches.begun:
                self.batches.hold_back(raw)
                return
            unit = Unit(Kind.CALL, raw)
            unit.join(CALL)
            self.begin(unit)

    def _skip(self, kind: int, raw: bytes) -> None:
        """After an error in a batch everything up to Sync is thrown away (manual, 55.2.3)."""
        if kind != frontend.SYNC:
            return
        if self._skipping:
            self._skipping = False
            self.write(build.ready(self.server.status if self.server is not None else IDLE))
        elif self.batches.open is not None and self.server is not None:
            self.batches.close()

    def _in_copy(self, kind: int, raw: bytes) -> None:
        """In copy-in the server ignores Sync and Flush; all else ends in its error (manual, 55.2.6)."""
        assert self.server is not None
        self.server.transport.write(raw)
        if kind not in (frontend.SYNC, frontend.FLUSH):
            self._copy_in = False

    # ------------------------------------------------------------------ units out of messages

    def classify(self, sql: bytes) -> Classification:
        if not self._readable:
            return UNREADABLE
        return self._classifier.classify(sql)

    def _bound(self, binding: Binding, classification: Classification) -> Classification:
        """What a statement is in this database. The catalogue is not believed after DDL, be it this client's own that
        is not committed yet. (Whether a read may leave the primary is asked once more when it is routed.)"""
        if binding.split and (classification.uses is not None or classification.cls is Class.READ):
            self.worker.catalogues.believed(binding)
        return binding.unsure(classification) if self.ddl_open else binding.of(classification)

    def bound(self, classification: Classification, *, behind_ddl: bool = False) -> Classification:
        """The same for what takes the general way; `behind_ddl`: in one batch with it."""
        binding = self.binding
        if binding is None:
            return classification
        if behind_ddl:
            return binding.unsure(classification)
        if not binding.split and classification.uses is not None:
            self.worker.catalogues.believed(binding)
        return self._bound(binding, classification)

    def join(self, unit: Unit, classification: Classification, text: bytes, split: Split | None = None) -> None:
        """One more text of a unit; `split` if it has a hint."""
        classification = self.bound(classification)
        unseen = not classification.plain and Effect.UNKNOWN_CODE in classification.effects
        unit.join(classification, unseen and self.worker.trust.holds((self.settings.dbname, classification)))
        if split is None and self.unruled:
            return
        hints = None
        if split is not None:
            text, hints = split.body, split.hints
            if hints.after:
                self._take_token(hints.after)
        decision = self.policies.decide(text if self._readable else b"", classification, hints, self.asked)
        if decision.noted or (hints is not None and hints.ignored):
            self.worker.note_decision(self, decision, hints)
        policy = decision.policy
        unit.policy = policy if unit.policy is None else self.policies.owner.join(unit.policy, policy)

    def join_text(self, unit: Unit, text: bytes) -> None:
        """The text of a Query."""
        split = self._split(text)
        classification = self.classify(split.body if split is not None else text)
        if split is not None and classification.name:
            classification = self.classify(text)  # its name is looked for in the text itself
        self.join(unit, classification, text, split)

    def _split(self, text: bytes) -> Split | None:
        """The text without its hint; None if it has none."""
        return self.worker.splitter.split(text) if MARK in text and self._readable else None

    def _query(self, raw: bytes) -> None:
        if self.batches.begun:
            self.batches.hold_back(raw)
            return
        unit = Unit(Kind.QUERY, raw)
        text = frontend.query_text(raw)
        if route_explained(text) is not None:
            unit.explains = True
            self.begin(unit)
            return
        self.join_text(unit, text)
        classification = unit.classified[0]
        unit.named = bool(classification.name)
        if classification.starts_transaction and begins.hold_query(self, unit):
            return
        if classification.reason == "ddl" and b"database" in raw[:MAX_COMMAND].lower():
            self.worker.pools.leave_databases(raw[:MAX_COMMAND])
        self.begin(unit)

    def read_statement(self, op: Op) -> None:
        """Give a Parse its Statement."""
        if op.kind == frontend.PARSE:
            split = self._split(op.sql)
            classification = self.classify(split.body if split is not None else op.sql)
            if classification.name:
                classification = self.classify(op.sql)
            context = self.apart() if op.moved else self.meaning()
            op.statement = self.worker.statements.intern(op.sql, op.oids, context, classification, split)

    def _reread(self) -> None:
        """Parameters that decide how texts are read have changed."""
        self._readable = readable(self.shown)
        self._meant_in = None

    def forget_meaning(self) -> None:
        """What names mean may have changed (settings, temporary tables)."""
        self._meant_in = None
        self._own += 1

    def meaning(self) -> str:
        """What besides text and types decides what a Parse would find now: a Statement is shared only by
        those for whom that is equal. DDL, another search_path or time zone, a temporary table: a new one."""
        if self.audit.touched:
            return self.apart()
        schema = self.worker.catalogues.version(self.settings.dbname)
        if self._meant_in is not self.state or self._meant_at != schema:
            self._mean(schema)
        return self._meant

    def apart(self) -> str:
        """The meaning of what is parsed while settings are in motion: shared with nobody."""
        return f"{self.number}/{self.units}"

    def is_current(self, statement: Statement) -> bool:
        """Whether nothing is known to have changed since a statement was parsed or described."""
        self._mean(self.worker.catalogues.version(self.settings.dbname))
        return statement.context == self._meant

    def _mean(self, schema: int) -> None:
        self._meant_in = self.state
        self._meant_at = schema
        values = self.state.values
        self._meant = "\0".join(
            (
                self.settings.dbname,
                str(schema),
                self.shown.get("client_encoding", ""),
                self.shown.get("standard_conforming_strings", ""),
                self.settings.user,
                f"{self.number}.{self._own}" if self._own and self.pins & _OWN_MEANING else "",
                *sorted(f"{name}={value}" for name, value in values.items() if is_parsed_by(name.lower())),
            )
        )

    # ------------------------------------------------------------------ a unit's way

    def begin(self, unit: Unit) -> None:
        """Send a unit if it can be sent, else park it."""
        if unit.explains:
            self._explain(unit)
            return
        if unit.policy is not None and unit.policy.reject:
            if self.server is not None and self.server.owed:
                self.park(unit)  # its error comes behind what is under way
                return
            self.refuse(unit, Rejected(unit.policy.reject, hint="A rule of the proxy's configuration says so."))
            return
        if unit.kind is Kind.BATCH and unit.synced and self.virtual is None and begins.hold_batch(self, unit):
            return
        server = self.server
        if self.virtual is not None and not begins.may_go_on(self, self.virtual, unit):
            return
        if server is None:
            self.route(unit)
            return
        if server.owed:
            held = (
                (unit.named and self.parsing > 0)
                or Effect.OWN_NAMES in unit.effects
                or unit.reads_wishes
                or (server.retired and server.status == IDLE and not self._in_batch)  # it goes when it has answered
                or len(server.owed) > MAX_PIPELINE
                or (not server.pool.is_primary() and server.status == IDLE and not self._may_follow(unit))
            )
            if held:
                self.park(unit)
                return
        self.transmit(server, unit)

    @property
    def _in_batch(self) -> bool:
        """Whether a batch waits for its Sync."""
        return self._batches is not None and self._batches.open is not None

    def _may_follow(self, unit: Unit) -> bool:
        """Whether a unit may go behind another one on a copy. What others have written since that one was routed
        counts at some levels: then each is routed by itself."""
        return unit.cls is Class.READ and self.level in OWN_LEVELS

    def _explain(self, unit: Unit) -> None:
        """Say where a statement would go, behind all answers that are under way."""
        if self.server is not None and self.server.owed:
            self.park(unit)
            return
        try:
            self.write(explain.answer(self, unit))
        except TridentError as error:
            self.refuse(unit, error)

    def park(self, unit: Unit) -> None:
        self._parked = unit
        self._gate = True

    def route(self, unit: Unit) -> None:
        worker = self.worker
        try:
            route = worker.routes.of(self, unit)
        except NoNode as error:
            self._hold(unit, error)
            return
        except Moved as error:
            self.refuse(unit, error)
            return
        if route is None:
            self.park(unit)
            return
        if isinstance(route, Hold):
            self._hold(unit, None if route.seconds else NoNode(_TOO_LONG[route.reason]), route.seconds)
            return
        pool = worker.pools.pool(route.node, self)
        if self.virtual is not None:
            if pool.is_primary():
                unit = unit.instead_of or unit
                unit.begins = True
                self.state = self.virtual.state
            elif unit.instead_of is not None:
                self.virtual.locals.append(frontend.query_text(unit.instead_of.raw).decode())
            elif any(found.statements for found in unit.classified):
                self.virtual.has_read = True
        server = pool.take(self.last_server)
        if server is None:
            if not unit.since:
                unit.since = worker.clock.now()
            if pool.join(self):
                self.waiting_in = pool
                self.park(unit)
            else:
                self.refuse(unit, pool.full_error())
            return
        self._link(server, unit)

    def _hold(self, unit: Unit, error: TridentError | None, seconds: float = 0.0) -> None:
        if not unit.since:
            unit.since = self.worker.clock.now()
        if self.worker.hold(self, unit.since, error, seconds):
            self.park(unit)
        elif error is not None:
            self.refuse(unit, error)
        else:
            unit.waited = True
            self.route(unit)

    def waited(self) -> None:
        """The wait for a better node is over."""
        if self._parked is not None:
            self._parked.waited = True
        self.released_from_hold()

    def released_from_hold(self) -> None:
        """Something changed: try again."""
        self._thaw()
        self._resume()

    def has_alternative(self, node: str) -> bool:
        return self.worker.has_alternative(self, node)

    def leave_for_another(self) -> None:
        """The wait is over: the unit is routed again."""
        self.waiting_in = None
        self.released_from_hold()

    def refused(self, error: TridentError) -> None:
        """The wait is over without a server."""
        self._thaw()
        unit = self._parked
        self._parked = None
        self.waiting_in = None
        if unit is None:
            return
        self.refuse(unit, error)
        self._resume()

    def _thaw(self) -> None:
        """What waits as it came becomes a parked unit like any other."""
        data = self._early
        if not data:
            return
        self._early = b""
        self._received += len(data)
        if self._early_form == _QUERY:
            unit = Unit(Kind.QUERY, data)
            unit.join(self._early_class)
        else:
            unit = Unit(Kind.BATCH)
            unit.ops = split_batch(data)
            for op in unit.ops:
                self.read_statement(op)
            self.batches.judge(unit)
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
                    self.settle_gate()
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
            self.refuse(
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
        self.transmit(server, unit)

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
            self.transmit(server, unit)
            return
        self.worker.counters.syncs += 1
        self._parked = unit
        self.ask(server, sql, self._synced)

    def _synced(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        if not self.answered(server):
            return
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
                self.refuse(unit, failure)
            self._resume()
            return
        server.state = self.state
        if server.pool.is_primary():
            # What the server went back to may be another default than the client was told.
            for name, value in server.reported.items():
                if name not in NODE_VIEW and self._hears(name, value):
                    server.pool.welcomes.clear()
        if unit is not None:
            self.transmit(server, unit)
        self._resume()

    # ---- transactions whose BEGIN is held back: see `begins`

    def _begin_now(self, server: Server, unit: Unit) -> None:
        """Send the BEGIN that was held back, and the unit behind it."""
        virtual = self.virtual
        unit.begins = False
        if virtual is None:
            self.transmit(server, unit)
            return
        self._parked = unit
        self.ask(server, virtual.sql(), self._begun)

    def _begun(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        if not self.answered(server):
            return
        unit = self._parked
        self._parked = None
        if server.status == IDLE:
            # It couldn't begin, though the client was told that it had: it has failed, and its end is still to come.
            error = error or {}
            if unit is not None:
                self.refuse(unit, TridentError(error.get("M", "BEGIN failed"), sqlstate=error.get("C", "XX000")))
            self.proceed(server)
            return
        self.virtual = None
        if unit is not None:
            self.transmit(server, unit)
        self._resume()

    def _wishes_told(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        """The server knows what its client has set of the proxy's own settings."""
        if not self.answered(server):
            return
        unit = self._parked
        self._parked = None
        if unit is not None:
            self.transmit(server, unit)
        self._resume()

    def transmit(self, server: Server, unit: Unit) -> None:
        if unit.kind is Kind.WELCOME:
            parameters = server.pool.shown_parameters(server)
            server.pool.welcomes_add(self.state, parameters)
            self._release(server)
            self._greet(parameters, server.pool.likely_server())
            return
        if unit.begins:
            self._begin_now(server, unit)
            return
        if unit.reads_wishes and server.status != FAILED:
            unit.reads_wishes = False
            self._parked = unit
            token = self.worker.consistency.token_text(self.token, unit.mark or self.worker.clock.boot_ns())
            self.ask(server, shown_sql(self.wishes, self.level, token), self._wishes_told)
            return
        server.pool.counters.queries += 1
        self.worker.count(unit.cls)
        if not unit.retried:
            self._note_seen(unit)
        if Effect.OWN_NAMES in unit.effects and not self.names.own and server.status != FAILED:
            self.pins |= {rules.PIN_NAMES}
            for message in take_names(self.names, server.statements, self.meaning() if server.status != IDLE else None):
                server.tell(message)
        if Effect.SEQUENCE in unit.effects:
            self._uses_sequences = not unit.discards
            if unit.discards:
                self.pins -= {rules.PIN_SEQUENCE}
            elif server.pool.is_primary():
                self.pins |= {rules.PIN_SEQUENCE}
        if unit.may_be_ddl:
            unit.effects |= Effect.LOCAL  # until it is committed, names mean that to nobody else
            if len(unit.classified) > 1 and any(c.uses is not None for c in unit.classified):
                unit.effects |= Effect.UNKNOWN_CODE  # what comes behind it was bound before
                unit.unseen = True
        if unit.unseen:
            server.unseen_by = self
        if unit.untracked and rules.PIN_SESSION not in self.pins:
            self.audit.untracked = True
        if unit.effects:
            self.audit.note(unit.effects, unit.settings)
            for classification in unit.classified:
                if Effect.UNKNOWN_CODE in unit.effects & classification.effects:
                    self.audit.note_unseen(classification)
            self.barrier = unit.synced  # what follows in the same batch follows at once
        wrote = unit.cls is Class.WRITE or unit.unseen
        if unit.copies_in:
            self._awaiting_copy = self.barrier = True
        if unit.kind is Kind.BATCH:
            self.batches.send(server, unit, wrote)
            return
        owed = Owed(self, wrote=wrote)
        self.obey(owed, unit)
        owed.ddl = unit.may_be_ddl or self.ddl_open
        owed.unit = unit
        owed.found = unit.single
        raw = unit.raw
        if unit.kind is Kind.QUERY:
            server.statements.unnamed = self.names.unnamed = None
            if unit.cls is Class.READ or unit.cls is Class.ANALYTIC:
                raw = self._translated(server, unit)
            if unit.effects & _NAMES or unit.classified[0].name:
                raw = self._rename_in_query(server, unit, owed)
                if not raw:
                    return
        server.send(raw, owed)
        if self._stream:
            self.barrier = False

    def _translated(self, server: Server, unit: Unit) -> bytes:
        """A Query as its server gets it."""
        worker, node = self.worker, server.pool.node
        if not worker.is_columnar(node):
            return unit.raw
        sql = frontend.query_text(unit.raw)
        form = worker.capabilities.form(self, node, sql, b"\0\0")
        return unit.raw if form is None or form.sql == sql else build.query(form.sql)

    def _note_seen(self, unit: Unit) -> None:
        """Count the texts of a unit by shape."""
        seen = self.seen
        if unit.policy is not None and (level := unit.policy.consistency):
            seen = self.worker.seen.group(self.login.database, self.login.user, level, level)
        for classification in unit.classified:
            seen.note(classification)

    def obey(self, owed: Owed, unit: Unit) -> None:
        """What a unit's policy says of its answer."""
        policy = unit.policy
        owed.key = self.key_slot
        if policy is not None:
            if policy.key:
                owed.key = self.worker.consistency.key_slot(self, policy.key)
            if policy.timeout and self.server is not None:
                self.worker.loop.call_later(policy.timeout, self.server.pool.expire, self.server, owed)

    def tell_ignored(self, ignored: tuple[str, ...]) -> None:
        """What hints and settings ask for in vain: told once, to those who want to know."""
        server = self.server
        if self.asked is None or not self.asked.debug or (server is not None and server.owed):
            return
        for text in ignored:
            if text not in self._ignored and len(self._ignored) < MAX_TOLD:
                self._ignored.add(text)
                self.write(build.notice(f"pgtrident ignored {text}"))

    def _rename_in_query(self, server: Server, unit: Unit, owed: Owed) -> bytes:
        """SQL DEALLOCATE and EXECUTE of a name that the client made by Parse: the server knows it by
        another one. b"" where the Query has to wait."""
        classification = unit.classified[0]
        owed.names = (b"", None)
        if not classification.name or classification.name_span is None:
            return unit.raw
        name = classification.name.encode("utf-8", "surrogateescape")
        statement = self.names.named.get(name)
        if statement is None:
            return unit.raw
        if self.names.own:
            owed.names = (name, statement)
            return unit.raw  # there it has that very name
        if classification.kind == "prepare":
            # PostgreSQL refuses a second use of the name, so it is put there to be found.
            server.tell(build.parse(name, b""))
            owed.squatters = [name]
            return unit.raw
        if classification.kind != "deallocate":
            return self.batches.query(server, unit, owed)
        if statement not in server.statements.named:
            # There is nothing to drop but a name.
            server.tell(build.parse(statement.server_name, b""))
            owed.squatters = [statement.server_name]
        owed.names = (name, statement)
        return build.query(
            rules.renamed(frontend.query_text(unit.raw), classification.name_span, statement.server_name)
        )

    # ------------------------------------------------------------------ long messages

    def _begin_stream(self, kind: int, part: bytes, rest: int) -> bool:
        """A message too long to be held: route it by its kind and pass it on as it comes.

        Returns False when it has to be held after all (a text that must be kept to be parsed again).
        """
        if self._skipping or self.batches.failed:
            self._stream = rest
            self._stream_sink = False
            return True
        if kind == frontend.COPY_DATA:
            self._stream_sink = self.server is not None and bool(self.server.owed)
            self._stream = rest
            if self._stream_sink and self.server is not None:
                self.server.transport.write(part)
            return True
        if kind == frontend.QUERY and not self.batches.begun:
            unit = Unit(Kind.QUERY, part)
            unit.join(TOO_LONG)
            self._stream = rest
            self._stream_sink = True
            self.begin(unit)
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
        self.batches.add_streamed(op)
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
        if self.closed:
            return
        virtual = self.virtual
        if virtual is not None and data.endswith(_READY) and (self.server is None or self.server.walker.status):
            data = data[:-1] + (b"E" if virtual.failed else b"T")
        self.transport.write(data)

    def parameter_changed(self, server: Server, owed: Owed | None, name: str, value: str) -> str | None:
        """A ParameterStatus came with an answer: the session's own doing, seen or unseen.

        Returns the value to be shown, or None to show nothing. A reset on the server goes back to the
        server's login, but the client's own startup setting is put in its place right behind.
        """
        unit = owed.unit if owed is not None else None
        if unit is not None and unit.resets and self._asked_for(name) and value == server.at_login.get(name):
            value = self._greeted[name]
            if self.shown.get(name) == value:
                return None
        self.shown = {**self.shown, name: value}
        if name in ("client_encoding", "standard_conforming_strings"):
            self._reread()
        elif name == "application_name":
            self.rule()
        self.audit.note_parameter(name)
        return value

    def _hears(self, name: str, value: str) -> bool:
        """A reported parameter has this value now; the client hears of it if it had another one."""
        if not self.ready or self.shown.get(name) == value:
            return False
        self.shown = {**self.shown, name: value}
        self._reread()
        self.write(build.parameter_status(name, value))
        return True

    def _asked_for(self, name: str) -> bool:
        """Whether the client's startup set this reported parameter."""
        return name in self._greeted and any(name.lower() == asked.lower() for asked in self.startup)

    def batch_settled(self, owed: Owed) -> None:
        """All of an open batch has been answered without an error."""
        waited = bool(self.batches.rest)
        self.batches.settled(owed)
        if waited and not self.batches.rest:
            self.worker.loop.call_soon(self._resume)

    def copy_in_began(self, owed: Owed) -> None:
        """The server wants copy data. A Sync that went out with the batch is lost on it."""
        if self._copies_ahead:
            self._copies_ahead -= 1
            return  # its data had been sent ahead
        self._copy_in = True
        if self._doomed is not None:
            self.worker.loop.call_soon(self.fail, self._doomed)  # no data will come
        self._resync = owed.extended and owed.complete
        self._gate = True
        if self._awaiting_copy:
            self._awaiting_copy = False
            self.barrier = not owed.extended and bool(self.audit.touched)
        self.worker.loop.call_soon(self._resume)

    def unit_failed(self, server: Server, owed: Owed, fields: dict[str, str], first: bool) -> bool:
        """An ErrorResponse is on its way to the client; whether it is to be passed on."""
        self._copy_in = False
        if owed is self.batches.open:
            if self.barrier or self.batches.held_back or self.batches.rest:
                self._awaiting_copy = self.barrier = False
                self.worker.loop.call_soon(self._resume)
            self.batches.fail()
        sqlstate = fields.get("C", "")
        if server.fatal and self.rerun.ended(server, owed, sqlstate):
            return False
        is_stale = sqlstate == "0A000" and fields.get("R") == "RevalidateCachedQuery"
        on_copy = sqlstate in REFUSALS and not is_stale and self.worker.is_replica(server.pool.node)
        if on_copy and not self.rerun.refused(server, owed, sqlstate, fields.get("R", "")):
            return False
        on_columnar = sqlstate != CANCELLED and self.worker.is_columnar(server.pool.node)
        if on_columnar and not self.rerun.failed_on_columnar(server, owed, sqlstate):
            return False
        if owed.plain and not owed.extended:
            if first:
                server.statements.unnamed = self.names.unnamed = None
        elif is_stale and not self.names.own and not self.rerun.failed(server, owed, first):
            return False
        if self.virtual is not None:
            self.virtual.failed = True
        return True

    def unit_done(self, server: Server, owed: Owed, status: int) -> None:
        """ReadyForQuery came."""
        self.units += 1
        if self._received:
            server.pool.counters.bytes_received += self._received
            self._received = 0
        if owed.wrote and self._uses_sequences:
            self.pins |= {rules.PIN_SEQUENCE}
        if self.settings.split:
            self._note_end(server, owed)
        if owed.ddl or self.ddl_open:
            self.worker.catalogues.changed(self.settings.dbname)
            self.ddl_open = status != IDLE
        if owed.plain and not self._gate and status == IDLE and not server.owed and self._loose():
            # Nothing unusual is going on: the server is free.
            self._release(server)
            return
        if self._doomed is not None and not self._is_owed():
            self.fail(self._doomed)
            return
        if owed.steps is not None and owed.unit is not None and owed.unit.named and self.parsing:
            self.parsing -= 1
        self._copy_in = False
        self._copies_ahead = 0
        self._awaiting_copy = False
        self._resync = False
        if owed.retry is not None:
            retry, owed.retry = owed.retry, None
            retry()
            return
        if owed.unit is not None and owed.unit.refused and not owed.failed:
            self.worker.catalogues.refused(self, owed.unit)
        if owed.squatters:
            held = {statement.server_name for statement in server.statements.named}
            server.tell(b"".join(build.close(b"S", name) for name in owed.squatters if name not in held))
        if self.audit.touched:
            self.audit.unit_done(server, owed, status)
            if self.busy:
                return
        # What was sent before it may have ended first.
        self.barrier = self.barrier and any(other.sink is self for other in server.owed)
        if status == IDLE:
            if self.settled(server) and self._loose():
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
        if self._parked is not None or self._input or (self._batches is not None and self._batches.held_back):
            self._resume()
        elif self._gate:
            self.settle_gate()

    def _note_end(self, server: Server, owed: Owed) -> None:
        """What it has written and seen by now, for its next read."""
        worker = self.worker
        now = worker.clock.boot_ns()
        token = self.token
        token.seen_ns = now
        if server.pool.is_primary():
            token.seen_node = ""
            if owed.wrote:
                token.wrote_ns = now
            if self.level != "strong":
                worker.consistency.need(now)
        else:
            token.seen_node = server.pool.node
            found = owed.found
            if found is not None:
                measures = worker.measures
                if server.took >= measures.long or found.cls is Class.ANALYTIC or found in measures.watched:
                    measures.ended(self, server, owed, found)

    def load_of(self, node: str) -> int:
        """Servers at work on a node for its database and user."""
        return self.worker.pools.load(node, self)

    def wish(self, wishes: Mapping[str, str]) -> None:
        """Its `pgtrident.*` settings are these now. What is no known value has no effect."""
        wishes = {**self.startup_wishes, **wishes}
        token = wishes.get(TOKEN, "")
        if token and token != self.wishes.get(TOKEN, ""):
            self._take_token(token)
        self.wishes = wishes
        self.level = self.settings.consistency
        self.analytic_level = self.settings.analytic_consistency
        key = wishes.get(KEY, "")
        asked = wishes.get(CONSISTENCY, "key" if key else "")
        if asked in LEVELS:
            self.level = self.analytic_level = asked
        if self.level == "key" and not key:
            self.level = "session"
        self.seen = self.worker.seen.group(self.login.database, self.login.user, self.level, self.analytic_level)
        self.key_slot = self.worker.consistency.key_slot(self, key) if key else -1
        self.asked = of_settings(later(wishes, self.startup_wishes))
        self.rule()

    def rule(self) -> None:
        """Its settings, its application's name or the configuration have changed."""
        worker, login = self.worker, self.login
        name = self.shown.get("application_name", login.params.get("application_name", ""))
        self.policies = worker.policies.of_client(login.database, login.user, name)
        asked = self.asked
        beyond = asked is not None and (asked.route or asked.node or asked.priority or asked.timeout or asked.ignored)
        self.unruled = self.policies.plain and not beyond

    def _take_token(self, text: str) -> None:
        """What another session has written and seen is to be seen by this one. On another timeline positions mean
        something else: then it is all that is committed by now."""
        try:
            timeline, lsn = read_token(text)
        except TridentError:
            return
        freshness = self.worker.consistency.freshness
        if timeline == freshness.timeline:
            self.token.lsn = max(self.token.lsn, lsn)
        else:
            self.token.wrote_ns = self.worker.clock.boot_ns()
            self.worker.consistency.need(self.token.wrote_ns)

    # ------------------------------------------------------------------ questions of our own

    def ask(
        self,
        server: Server,
        sql: str,
        then: Callable[[Server, list[list[bytes | None]], dict[str, str] | None], None],
    ) -> None:
        """Ask the linked server something; nothing else is sent to it until it has answered."""
        self.busy = True
        self._gate = True
        server.ask(sql, then)

    def answered(self, server: Server) -> bool:
        """The answer is here; False when it is no longer of interest: this client has left its server."""
        if server.owner is not self:
            server.pool.settled(server)
            return False
        self.busy = False
        return True

    def settled(self, server: Server) -> bool:
        """Whether nothing of this client's is under way on its server."""
        return not server.owed and (self._batches is None or self._batches.open is None)

    def _loose(self) -> bool:
        """Whether nothing ties this client to a server between its units."""
        return not self.pins and not self.audit.touched

    def proceed(self, server: Server) -> None:
        """After a question of our own: as after a unit."""
        if self.busy:
            return
        self.barrier = False
        if server.status == IDLE and self.settled(server) and self._loose():
            self._release(server)
        self._resume()

    def told(self, server: Server) -> None:
        """Names that are of no use to it any more are off its server: nothing else keeps it there."""
        if server.owner is self:
            self.proceed(server)

    def _release(self, server: Server) -> None:
        """The server goes back to its pool; the client is linked to nothing."""
        self.server = None
        self.last_server = server
        self.parsing = 0
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
        begun = self._batches is not None and self._batches.begun
        busy = begun or self._early or self.virtual is not None
        return self.server is None and self._parked is None and not busy

    @property
    def wants_read(self) -> bool:
        """Whether what is parked may be served by a replica."""
        self._thaw()
        return self._parked is not None and self._parked.cls in (Class.READ, Class.ANALYTIC)

    def quiet_since(self, now: float) -> float | None:
        """When it was first seen with nothing under way; None while something is. Seen once a second,
        so that no unit has to note the time."""
        server = self.server
        if self._early or self._parked is not None or self.busy or (server is not None and server.owed):
            self._quiet = 0.0
            self._quiet_mark = -1
            return None
        mark = self.units
        if not self._quiet or mark != self._quiet_mark:
            self._quiet = now
            self._quiet_mark = mark
        return self._quiet

    # ------------------------------------------------------------------ ends

    def refuse(self, unit: Unit, error: TridentError) -> None:
        """Answer a unit with an error of our own, and leave the connection as PostgreSQL would."""
        self.worker.counters.rejected += 1
        if self.virtual is not None:
            self.virtual.failed = True
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
        if unit is not None and not self.busy and self.server is None and unit.kind is not Kind.WELCOME:
            if self.waiting_in is not None:
                self.waiting_in.leave(self)
            self.worker.unhold(self)
            self.refused(TridentError("canceling statement due to user request", sqlstate="57014"))
        elif self.server is not None and (head := self.server.owed.head) is not None and head.sink is self:
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
        """The linked server is gone. As with PostgreSQL itself, so is the session, if it had anything there."""
        self.server = None
        self.busy = False
        if not fatal and self._doomed is None and self.rerun.lost(server):
            return
        if self._parked is not None and self._parked.kind is not Kind.WELCOME and not self._started(server):
            # Nothing of the parked unit was sent: it goes elsewhere.
            unit = self._parked
            self._parked = None
            if not self.pins and server.status == IDLE and not fatal:
                self.begin(unit)
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
        # Client and parts hold each other until a full collection, which is rare; its TLS (some 50 kB) goes now.
        self.transport = _GONE

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
                dirty=bool(self.pins or self.audit.touched & ~Effect.LOCAL),
                ruined=bool(self.pins & {rules.PIN_UNKNOWN, rules.PIN_LOAD}) or self.audit.untracked,
                open_batch=(self._batches is not None and self._batches.open is not None) or self._resync,
                copy_in=self._copy_in,
                torn=self._stream > 0,
                cancel=abrupt,
            )
        self._parked = None
        self._input = b""
        self._parts = _NO_PARTS
        if self._batches is not None:
            self._batches.drop()
        self.transport.close()
