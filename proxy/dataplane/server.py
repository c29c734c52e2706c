"""One connection to a node: replies find their owner here.

Owns the queue of owed replies, the walk over what the node sends, and what is known of the server's
session (settings, statements, transaction status). Never decides where a unit goes. Only
ReadyForQuery ends a unit; a server whose replies are out of step is closed, never reused.

Called by asyncio (bytes in), by `client` (units out) and by `pools` (life and death).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import ProtocolViolation, TridentError
from ..session.prepared import ANOTHERS, MADE, ClientStatements, Pending, ServerStatements, Statement, Step
from ..session.state import State
from ..sql.model import Classification
from ..topology.snapshot import Address
from ..wire import build, parse
from ..wire.codes import FAILED, IDLE, MAX_AUTH_MESSAGE, MAX_PARAMETERS, UNASKED
from ..wire.scan import MAX_HELD, RARE, SAW_ERROR, ReplyWalker

if TYPE_CHECKING:
    from .pools import ServerPool
    from .unit import Unit

OUTDATED_ERROR = build.error_fields(
    {
        "S": "ERROR",
        "V": "ERROR",
        "C": "0A000",
        "M": "cached plan must not change result type",
        "R": "RevalidateCachedQuery",
    }
)
"""PostgreSQL's own error for a plan that no longer fits; drivers know it and prepare anew."""
ABORTED_ERROR = build.error_fields(
    {
        "S": "ERROR",
        "V": "ERROR",
        "C": "25P02",
        "M": "current transaction is aborted, commands ignored until end of transaction block",
        "R": "exec_bind_message",
    }
)
"""PostgreSQL's own, for such a statement in a transaction that has failed."""
MAX_COLLECTED = 4 * 1024 * 1024
"""Bytes of a hidden answer; the proxy's own questions stay far below."""

NODE_VIEW = frozenset(("in_hot_standby", "server_version", "default_transaction_read_only", "is_superuser"))
"""Parameters that the client sees as the primary reports them, whichever node answers."""


class Sink:
    """Where the replies of a unit go: the client, or later a merge of several servers.

    A class and not a Protocol, because calls to it are then direct ones where it is compiled.
    """

    names: ClientStatements
    pid: int

    def write(self, data: bytes) -> None:
        """Bytes of an answer."""
        raise NotImplementedError

    def unit_done(self, server: Server, owed: Owed, status: int) -> None:
        """ReadyForQuery came."""
        raise NotImplementedError

    def unit_failed(self, server: Server, owed: Owed, fields: dict[str, str], first: bool) -> bool:
        """An ErrorResponse came; whether it is passed on. `first`: nothing of the answer came before it."""
        raise NotImplementedError

    def parameter_changed(self, server: Server, owed: Owed | None, name: str, value: str) -> str | None:
        """A ParameterStatus came; the value to pass on, or None for nothing."""
        raise NotImplementedError

    def copy_in_began(self, owed: Owed) -> None:
        """The server wants copy data."""
        raise NotImplementedError

    def batch_settled(self, owed: Owed) -> None:
        """All that was sent of an open batch has been answered without an error."""
        raise NotImplementedError

    def told(self, server: Server) -> None:
        """What the proxy had to say to the linked server has been answered, and nothing more is owed."""
        raise NotImplementedError

    def server_lost(self, server: Server, fatal: bool) -> None:
        """The linked server is gone; `fatal`: it said so itself."""
        raise NotImplementedError

    def fail(self, error: TridentError) -> None:
        """It is ended, and told why."""
        raise NotImplementedError

    def server_paused(self, paused: bool) -> None:
        """The server's socket is full, or no longer."""
        raise NotImplementedError


class Owed:
    """One ReadyForQuery that a server owes, and to whom.

    A plain one passes everything on. One with `steps` is edited message by message; with `collect`
    nothing is passed on and `then` gets the answer (swallowed). `sink` None: the owner has gone.
    """

    __slots__ = (
        "at",
        "collect",
        "collected",
        "complete",
        "ddl",
        "error",
        "executed",
        "extended",
        "failed",
        "found",
        "key",
        "names",
        "next",
        "plain",
        "retry",
        "sink",
        "squatters",
        "started",
        "steps",
        "then",
        "unit",
        "wrote",
    )

    def __init__(self, sink: Sink | None, *, wrote: bool = False, extended: bool = False, plain: bool = False) -> None:
        self.sink = sink
        self.next: Owed | None = None
        """What is owed behind it, while it is in a queue."""
        self.plain = plain
        """Of a usual unit: kept by its client and used again and again."""
        self.wrote = wrote
        """Whether the unit may have written."""
        self.key = -1
        """The board's slot of the consistency key that it is run under; -1 is none."""
        self.extended = extended
        self.complete = True
        """Whether its Sync has been sent."""
        self.ddl = False
        """Whether the unit may change what names mean."""
        self.unit: Unit | None = None
        """What it answers, where that took the general way."""
        self.found: Classification | None = None
        """What it is, bound, if it is a single statement."""
        self.steps: list[Pending] | None = None
        self.at = 0
        self.failed = False
        self.error: dict[str, str] | None = None
        self.executed = False
        """Whether a statement of a batch has run."""
        self.started = False
        """Whether anything of the answer has reached the sink."""
        self.names: tuple[bytes, Statement | None] | None = None
        """For a simple Query that may drop prepared statements: the client's name and what it meant."""
        self.retry: Callable[[], None] | None = None
        self.squatters: list[bytes] | None = None
        self.collect = False
        self.collected: list[bytes] | None = None
        self.then: Callable[[Server, list[list[bytes | None]], dict[str, str] | None], None] | None = None

    def again(self) -> bool:
        """Whether the unit is to be run once more: nothing of this answer is passed on."""
        return self.retry is not None


class OwedQueue:
    """What a server owes, in the order of sending: linked, since a deque costs a dozen calls a query."""

    __slots__ = ("_count", "_last", "head")

    def __init__(self) -> None:
        self.head: Owed | None = None
        self._last: Owed | None = None
        self._count = 0

    def __bool__(self) -> bool:
        return self.head is not None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Owed]:
        owed = self.head
        while owed is not None:
            yield owed
            owed = owed.next

    def append(self, owed: Owed) -> None:
        """One more ReadyForQuery is owed."""
        if self._last is None:
            self.head = owed
        else:
            self._last.next = owed
        self._last = owed
        self._count += 1

    def pop(self) -> None:
        """The first one has come."""
        owed = self.head
        assert owed is not None
        self.head = owed.next
        owed.next = None
        if self.head is None:
            self._last = None
        self._count -= 1


class Server:
    """See the module. An asyncio.Protocol by its methods only: without that base mypyc can compile it."""

    __slots__ = (
        "_clock",
        "_paused",
        "_size",
        "_transaction_since",
        "abandoned_at",
        "address",
        "at_login",
        "cancelled_at",
        "cancelling",
        "closed",
        "closing_reason",
        "dirty",
        "expires",
        "fatal",
        "full",
        "generation",
        "idle_since",
        "key",
        "last_writer",
        "owed",
        "owner",
        "parameters",
        "pid",
        "pool",
        "reported",
        "retired",
        "state",
        "statements",
        "status",
        "took",
        "transport",
        "unseen_by",
        "walker",
        "working_since",
    )

    def __init__(self, pool: ServerPool, empty: State, statements: int) -> None:
        self.pool = pool
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.walker = ReplyWalker()
        self.owed = OwedQueue()
        self.owner: Sink | None = None
        """Who it is linked to: a unit in flight, an open transaction or a pin."""
        self.statements = ServerStatements(statements)
        self.state: State = empty
        self.unseen_by: object = None
        """The client that ran unseen code here: custom settings may be left that no question can list."""
        self.status = IDLE
        self.parameters: dict[str, str] = {}
        self.reported: dict[str, str] = {}
        """Parameters told within the answer to the proxy's last question."""
        self.at_login: dict[str, str] = {}
        """Reported parameters as they were after the login."""
        self.pid = 0
        self.key = b""
        self.address: Address | None = None
        self.generation = 0
        self.expires = 0.0
        self.idle_since = 0.0
        self._clock = pool.pools.worker.clock
        self.working_since = 0.0
        self.took = 0.0
        """Seconds of the last unit."""
        """When it began with the first unit that it owes."""
        self._transaction_since = 0.0
        self.cancelled_at = 0.0
        """When a statement was last cancelled here because it took too long."""
        self.abandoned_at = 0.0
        self.dirty = False
        """A client left state behind that must be discarded before anybody else comes."""
        self.fatal = False
        """The node has said FATAL: its end of the connection is announced."""
        self.full = False
        """The socket takes no more for now."""
        self.retired = False
        self.closed = False
        self.closing_reason = ""
        self.cancelling = 0
        """Cancel requests on their way: until they are through, the server is nobody else's."""
        self.last_writer: Sink | None = None
        self._paused = False
        self._size = 0

    # ---- out

    def send(self, data: bytes, owed: Owed) -> None:
        """Send one unit and owe its answer."""
        self.owe(owed)
        self.transport.write(data)

    def owe(self, owed: Owed) -> None:
        """One more answer is owed: what asks for it is about to be sent."""
        if self.owed.head is None:
            self.working_since = self._clock.now()
            if self.status == IDLE:
                self._transaction_since = self.working_since
        self.owed.append(owed)

    def ask(
        self,
        sql: str,
        then: Callable[[Server, list[list[bytes | None]], dict[str, str] | None], None],
    ) -> None:
        """Ask a question of our own: the rows, or the error, go to `then` and nobody else."""
        owed = Owed(None)
        owed.collect = True
        owed.then = then
        self.reported = {}
        self.statements.unnamed = None
        self.send(build.query(sql), owed)

    def tell(
        self,
        messages: bytes,
        then: Callable[[Server, list[list[bytes | None]], dict[str, str] | None], None] | None = None,
    ) -> None:
        """Send extended messages whose replies are of no interest (but for an error, to `then`), closed by a
        Sync."""
        owed = Owed(None, extended=True)
        owed.collect = True
        owed.then = then
        self.send(messages + build.SYNC, owed)

    def disown(self, sink: Sink) -> list[bytes]:
        """Its client has gone: nobody reads on what it is owed. Returns the names that its batches may have
        put here, or closed, unread: they are to be closed."""
        left: list[bytes] = []
        for owed in self.owed:
            if owed.sink is not sink:
                continue
            owed.sink = None
            self.statements.unnamed = ANOTHERS
            if owed.squatters:
                held = {statement.server_name for statement in self.statements.named}
                left += [name for name in owed.squatters if name not in held]
            if owed.steps is not None:
                for pending in owed.steps[owed.at :]:
                    if pending.statement is not None and pending.client_name != b"":
                        self.statements.named.pop(pending.statement, None)
                        left.append(pending.statement.server_name)
                owed.steps = None
        return left

    # ---- in

    def data_received(self, data: bytes) -> None:
        walker = self.walker
        if walker.carry:
            data = walker.carry + data
            walker.carry = b""
        owed = self.owed
        pos = 0
        n = len(data)
        try:
            while pos < n:
                head = owed.head
                if head is None:
                    self._unasked(data, pos)
                    return
                within = walker.skip
                end = walker.feed(data, pos)
                status = walker.status
                sink = head.sink
                if not head.collect:
                    self.pool.counters.bytes_sent += end - pos
                if status and end - pos == 6 and _is_early(head):
                    raise ProtocolViolation("a server was ready before it had answered")
                if head.wrote:
                    if status:
                        self.last_writer = sink
                    self.pool.wrote()
                if head.key >= 0:
                    self.pool.pools.worker.consistency.answers(self, head)  # before anybody can know
                if sink is not None and head.steps is None and not head.collect:
                    if end > pos:
                        chunk = data if end - pos == n else data[pos:end]
                        if walker.mask & RARE or head.names is not None or head.retry is not None:
                            chunk = self._look(head, sink, chunk, within)
                        if chunk:
                            sink.write(chunk)
                            head.started = True
                elif end > pos and (head.steps is not None or head.collect or walker.mask & RARE):
                    # (Rows whose owner has gone are not even looked at.)
                    self._special(head, data[pos:end], within)
                if not status:
                    return
                pos = end
                if owed.head is head:
                    owed.pop()
                self.status = status
                self._count(head, status)
                if pos < n and owed.head is None:
                    # Said behind the last answer that is owed: before anybody else can get this server.
                    self._unasked(data, pos)
                    pos = n
                    if self.closed:
                        return
                self._finish(head, status)
                if self.closed:
                    return
        except ProtocolViolation as error:
            self.pool.out_of_step(self, error.message)

    def _count(self, head: Owed, status: int) -> None:
        """A unit has ended, and the next that is owed begins. Questions of the proxy's own are not counted."""
        now = self._clock.now()
        if not head.collect:
            counters = self.pool.counters
            self.took = now - self.working_since
            counters.query_us += int(self.took * 1e6)
            if status == IDLE:
                counters.transactions += 1
                counters.xact_us += int((now - self._transaction_since) * 1e6)
        self.working_since = now
        if status == IDLE:
            self._transaction_since = now

    def _finish(self, head: Owed, status: int) -> None:
        if (following := self.owed.head) is not None and not following.complete:
            self.made(following)
        if head.collect:
            if head.then is not None:
                rows = [] if head.error or head.collected is None else self._rows(head.collected)
                head.then(self, rows, head.error)
            elif self.owner is None:
                self.pool.settled(self)
            elif not self.owed:
                self.owner.told(self)
            return
        if head.sink is None:
            if head.ddl:
                self.pool.ddl_ended()  # its client has left, but it has run
            self.pool.settled(self)
            return
        head.sink.unit_done(self, head, status)

    @staticmethod
    def _rows(chunks: list[bytes]) -> list[list[bytes | None]]:
        return [parse.data_row(body) for kind, body in _messages(b"".join(chunks), 0) if kind == 0x44]

    def _look(self, head: Owed, sink: Sink, chunk: bytes, within: int) -> bytes:
        """Look into a chunk that holds something rare; what may be passed on of it."""
        if head.again():
            return b""  # the rest of an answer that is asked for again
        edited: list[bytes] | None = None
        kept = 0
        pos = within
        first = not head.started
        n = len(chunk)
        while n - pos >= 5:
            kind = chunk[pos]
            end = pos + 1 + int.from_bytes(chunk[pos + 1 : pos + 5], "big")
            if end > n and kind != 0x45:
                break
            drop = False
            instead = b""
            if kind == 0x53:
                message = chunk[pos:end]
                instead = self._parameter(sink, head, message)
                drop = instead != message
            elif kind == 0x45:
                head.failed = True
                fields = self._error(chunk[pos + 5 : end], end <= n)
                drop = not sink.unit_failed(self, head, fields, first and pos == 0)
            elif kind == 0x47:
                sink.copy_in_began(head)
            elif kind == 0x43 and head.names is not None:
                self.names_dropped(sink.names, chunk[pos + 5 : end], *head.names)
            elif kind == 0x41:
                instead = self._notification(chunk[pos + 5 : end])
                drop = True
            if drop:
                if edited is None:
                    edited = []
                edited.append(chunk[kept:pos])
                edited.append(instead)
                kept = end
            pos = end
        if edited is None:
            return chunk
        if head.again():
            return b""
        edited.append(chunk[kept:])
        return b"".join(edited)

    def _error(self, body: bytes, whole: bool = True) -> dict[str, str]:
        """Note an ErrorResponse that is passed on; its fields, or what has come of one too long to be held."""
        fields = parse.error_fields(body)
        if not whole:
            # The origin stands at the end, and only a whole message can be kept from the client.
            fields.pop("R", None)
        if fields.get("V", fields.get("S")) in ("FATAL", "PANIC"):
            self.fatal = True
        self.pool.error_seen(self, fields)
        return fields

    def _parameter(self, sink: Sink | None, owed: Owed | None, message: bytes) -> bytes:
        """Note a ParameterStatus; the message that the client is to see, or nothing."""
        name, value = parse.parameter_status(message[5:])
        self.parameters[name] = value
        if len(self.parameters) > MAX_PARAMETERS or len(message) > MAX_AUTH_MESSAGE:
            raise ProtocolViolation("a server reports too many parameters, or too long ones")
        if sink is None or (name in NODE_VIEW and not self.pool.is_primary()):
            return b""
        shown = sink.parameter_changed(self, owed, name, value)
        if shown is None:
            return b""
        return message if shown == value else build.parameter_status(name, shown)

    def _notification(self, body: bytes) -> bytes:
        """A NotificationResponse as a client is to see it: from the process id that the session which sent
        it was told at login. Drivers tell by that which ones are their own."""
        pid = self.pool.shown_pid(int.from_bytes(body[:4], "big"))
        return build.message(b"A", pid.to_bytes(4, "big") + body[4:])

    @property
    def notifier(self) -> Sink | None:
        """Whose notification it is that this server has just sent to all who listen."""
        head = self.owed.head
        if head is not None and head.wrote and head.sink is not None:
            return head.sink
        return self.last_writer

    def _special(self, head: Owed, chunk: bytes, within: int) -> None:
        """A chunk of an answer that is edited, collected or thrown away."""
        if head.steps is not None and head.sink is not None:
            self._edit(head, head.sink, chunk, within)
            return
        for kind, body in _messages(chunk, within):
            if kind == 0x45:
                head.failed = True
                if head.error is None:
                    head.error = parse.error_fields(body)
                    self.pool.error_seen(self, head.error)
            elif kind == 0x53:
                self._parameter(None, None, build.message(b"S", body))
                name, value = parse.parameter_status(body)
                self.reported[name] = value
            elif kind == 0x41:
                # It came between the units of a listener, not as a part of this answer.
                if self.owner is not None:
                    self.owner.write(self._notification(body))
            elif kind == 0x47:
                # The owner has gone (or never was): end the copy without its data.
                self.transport.write(build.copy_fail("client connection lost") + (build.SYNC if head.extended else b""))
        if self.walker.mask & SAW_ERROR and not head.failed:
            head.failed = True
            head.error = {"C": "XX000", "M": "the node's error is too long to be read"}
        head.started = True
        if head.collect and head.then is not None:
            if head.collected is None:
                head.collected = []
                self._size = 0
            self._size += len(chunk)
            if self._size > MAX_COLLECTED:
                raise ProtocolViolation("the answer to a question of the proxy is too large")
            head.collected.append(chunk)

    def _edit(self, head: Owed, sink: Sink, chunk: bytes, within: int) -> None:
        """Pass an extended batch's answer on step by step."""
        steps = head.steps
        assert steps is not None
        out: list[bytes] = [chunk[:within]] if within else []
        pos = within
        n = len(chunk)
        while n - pos >= 5:
            kind = chunk[pos]
            end = pos + 1 + int.from_bytes(chunk[pos + 1 : pos + 5], "big")
            if end > n and kind != 0x45:
                break
            show = True
            if head.at < len(steps) and not head.failed:
                self._made(head, steps, out)
            if kind == 0x44 or kind == 0x64 or kind == 0x4E:  # D d N
                pass
            elif kind == 0x41:
                out.append(self._notification(chunk[pos + 5 : end]))
                show = False
            elif kind == 0x5A:
                # Only after an error does a server skip what it still owes.
                if not head.failed and head.at < len(steps):
                    raise ProtocolViolation("a server was ready before it had answered")
            elif kind == 0x53:
                out.append(self._parameter(sink, head, chunk[pos:end]))
                show = False
            elif kind == 0x45:
                fields = self._error(chunk[pos + 5 : end], end <= n)
                show = sink.unit_failed(self, head, fields, not head.started and not head.executed)
                if head.at < len(steps):
                    self._step_failed(head, steps[head.at])
                    if steps[head.at].outdated:
                        out.append(_refusal(steps[head.at], self.status))
                        show = False
                head.failed = True
                head.at = len(steps)
            elif kind == 0x47:
                sink.copy_in_began(head)
            elif kind == 0x74 and head.at < len(steps):
                steps[head.at].types = chunk[pos + 5 : end]
                show = steps[head.at].step is not Step.DESCRIBE_HIDDEN
            elif kind in _STEP_ENDS and not head.failed:
                if head.at >= len(steps):
                    raise ProtocolViolation("a server answered more than it was asked")
                pending = steps[head.at]
                if pending.step not in _STEP_ENDS[kind]:
                    raise ProtocolViolation("a server's replies are out of step")
                head.at += 1
                head.executed = head.executed or pending.step is Step.EXECUTE
                show = self._step_done(head, pending, chunk[pos + 5 : end])
            if show:
                out.append(chunk[pos:end])
            pos = end
            if head.at < len(steps) and not head.failed:
                self._made(head, steps, out)
        if pos < n:
            out.append(chunk[pos:])
        if out and head.retry is None:
            data = b"".join(out)
            if data:
                sink.write(data)
                head.started = True
        if not head.complete and not head.failed and head.at >= len(steps):
            sink.batch_settled(head)

    def made(self, head: Owed) -> None:
        """Pass on replies of our own to a batch that has no Sync yet: nothing else may come to carry them."""
        steps = head.steps
        if steps is None or head.sink is None or head.failed:
            return
        out: list[bytes] = []
        self._made(head, steps, out)
        if out:
            head.sink.write(b"".join(out))
            head.started = True

    def _made(self, head: Owed, steps: list[Pending], out: list[bytes]) -> None:
        while head.at < len(steps) and (message := MADE.get(steps[head.at].step)) is not None:
            self._step_done(head, steps[head.at], b"")
            out.append(message)
            head.at += 1

    def _step_done(self, head: Owed, pending: Pending, body: bytes) -> bool:
        """A step succeeded: names come and go now. Returns whether the client sees the reply."""
        assert head.sink is not None
        step = pending.step
        mine = self.statements
        theirs = head.sink.names
        name = pending.client_name
        statement = pending.statement
        if step in (Step.PARSE, Step.PARSE_HIDDEN, Step.PARSE_MADE):
            if statement is not None:
                if name == b"":
                    mine.unnamed = theirs.unnamed = statement
                else:
                    mine.named[statement] = None
                    mine.named.move_to_end(statement)
                    if name is not None:
                        theirs.named[name] = statement
            return step is not Step.PARSE_HIDDEN
        if step is Step.CLOSE_HIDDEN:
            if name == b"":
                mine.unnamed = None
            elif statement is not None:
                mine.named.pop(statement, None)  # whether it is parsed anew is another step
            return False
        if step in (Step.CLOSE, Step.CLOSE_MADE):
            if statement is not None:
                mine.named.pop(statement, None)
            if name:
                theirs.named.pop(name, None)
            elif name is not None:
                mine.unnamed = theirs.unnamed = None
        elif step in (Step.DESCRIBE, Step.DESCRIBE_HIDDEN):
            if statement is not None:
                statement.described(pending.types, body)
            return step is Step.DESCRIBE
        elif step is Step.EXECUTE and pending.tag_effects:
            self.names_dropped(theirs, body, name, statement)
        return True

    def names_dropped(
        self, theirs: ClientStatements, tag: bytes, name: bytes | None, statement: Statement | None
    ) -> None:
        """A statement that may drop prepared statements has succeeded with this command tag."""
        if tag in (b"DISCARD ALL\0", b"DEALLOCATE ALL\0"):
            self.statements.clear()
            theirs.clear()
        elif tag == b"DEALLOCATE\0" and statement is not None and name is not None:
            self.statements.named.pop(statement, None)
            theirs.named.pop(name, None)

    def _step_failed(self, head: Owed, pending: Pending) -> None:
        if pending.step is Step.PARSE and pending.client_name == b"" and head.sink is not None:
            # A failed Parse of the unnamed statement drops the one before.
            self.statements.unnamed = head.sink.names.unnamed = None

    def _unasked(self, data: bytes, pos: int) -> None:
        """What a server says when nothing is owed: notices, notifications, parameters, its end."""
        _check_unasked(data, pos)
        end = self.walker.feed(data, pos)
        owner = self.owner
        fatal = False
        out: list[bytes] = []
        for kind, body in _messages(data[pos:end], 0):
            if kind == 0x53:
                out.append(self._parameter(owner, None, build.message(b"S", body)))
            elif kind == 0x45:
                fatal = True
                self._error(body)
                out.append(build.message(b"E", body))
            elif kind == 0x41:
                out.append(self._notification(body))
            else:
                out.append(build.message(bytes((kind,)), body))
        if owner is not None and out:
            owner.write(b"".join(out))
        if fatal:
            self.closing_reason = "the node ended the connection"
            if owner is not None:
                owner.server_lost(self, True)
            self.pool.close(self, "ended by the node")
            self.pool.pools.worker.consistency.doubt(self.pool.node)

    # ---- life

    @property
    def mid_message(self) -> bool:
        """Whether the owner has got a message in part: whatever it is told now it takes for the rest."""
        head = self.owed.head
        return self.walker.skip > 0 and head is not None and head.sink is not None

    def connection_lost(self, exc: Exception | None) -> None:
        if any(owed.ddl for owed in self.owed):
            self.pool.ddl_ended()  # it may have run
        if not self.closed:
            self.pool.lost(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.full = True
        if self.owner is not None:
            self.owner.server_paused(True)

    def resume_writing(self) -> None:
        self.full = False
        if self.owner is not None:
            self.owner.server_paused(False)

    def pause(self) -> None:
        """The client is slow: stop reading."""
        if not self._paused and not self.closed:
            self._paused = True
            self.transport.pause_reading()
            self.pool.pools.worker.counters.pauses += 1

    def resume(self) -> None:
        if self._paused and not self.closed:
            self._paused = False
            self.transport.resume_reading()


_STEP_ENDS: dict[int, tuple[Step, ...]] = {
    0x31: (Step.PARSE, Step.PARSE_HIDDEN),
    0x32: (Step.BIND,),
    0x33: (Step.CLOSE, Step.CLOSE_HIDDEN),
    0x54: (Step.DESCRIBE, Step.DESCRIBE_HIDDEN),
    0x6E: (Step.DESCRIBE, Step.DESCRIBE_HIDDEN),
    0x43: (Step.EXECUTE,),
    0x49: (Step.EXECUTE,),
    0x73: (Step.EXECUTE,),
}
"""Which steps a reply may end. Copy messages and ParameterDescription end none."""


def _refusal(pending: Pending, status: int) -> bytes:
    """What PostgreSQL says of a statement that is out of date; a Describe gets its parameters first."""
    if status == FAILED:
        return ABORTED_ERROR
    if pending.step is Step.DESCRIBE and pending.statement is not None:
        return build.message(b"t", pending.statement.types) + OUTDATED_ERROR
    return OUTDATED_ERROR


def _is_early(head: Owed) -> bool:
    """Whether a ReadyForQuery that stands alone comes before its answer. A batch with steps is checked by
    them; one whose owner has gone may have been nothing but a Sync."""
    if head.started or head.failed or head.steps is not None:
        return False
    return head.sink is not None or head.collect


def _check_unasked(data: bytes, pos: int) -> None:
    """Refuse from `pos` on what a server may not say while nothing is owed, by the first byte already: the
    rest may come when something is owed to somebody."""
    n = len(data)
    while pos < n:
        if data[pos] not in UNASKED:
            raise ProtocolViolation("a server sent an answer that nobody asked for")
        if n - pos < 5:
            return
        length = int.from_bytes(data[pos + 1 : pos + 5], "big")
        if length < 4 or length > MAX_HELD:
            raise ProtocolViolation("a server sent a message with an impossible length")
        pos += 1 + length


def _messages(chunk: bytes, pos: int) -> list[tuple[int, bytes]]:
    """(type, body) of the whole messages in a chunk from `pos` on."""
    found = []
    n = len(chunk)
    while n - pos >= 5:
        end = pos + 1 + int.from_bytes(chunk[pos + 1 : pos + 5], "big")
        if end > n:
            break
        found.append((chunk[pos], chunk[pos + 5 : end]))
        pos = end
    return found
