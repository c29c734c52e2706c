"""A unit is run once more where nobody can tell: its plan has gone stale, a standby has refused it, or a copy is gone.

Owns the last unit that may be run again. Called by `client` (errors in) and by `batch` (units out).

"cached plan must not change result type" comes because a statement is older than the table. The client may
not have asked for a result of the old shape at all, so its name is given to the same text parsed anew and the
unit run again, but only where nothing has run yet and no client can have kept an old description. Otherwise
the error stands, as it would without a proxy.

A standby refuses what writes in a way that could not be seen, what reads an unlogged table, and what stands in the way
of replay (manual, 27.4.2). A read that stood alone goes to the primary then, if nothing of its answer has been passed
on; and where the primary does answer it, it is remembered. Whatever error a columnar node gives, but that it was
cancelled, an analytic statement is run as an ordinary read then; what the error teaches is `routing.columnar`'s word.

Where a copy is lost, what it was reading for a client is read elsewhere, and the session goes on: it had nothing there.
So it is where the copy ends its sessions itself, since it is shut down or has crashed, or one that stands in the way of
replay. (Any other FATAL ends the session for the client too.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..routing.bind import CONFLICT, WRITES
from ..session.prepared import Statement
from ..sql.model import Class
from ..wire import frontend
from ..wire.codes import IDLE
from ..wire.scan import is_query
from .server import Owed, Server
from .unit import Kind, Unit, split_batch

if TYPE_CHECKING:
    from .client import Client


REFUSALS = frozenset((WRITES, "0A000", "55000", CONFLICT))
"""SQLSTATEs with which a standby answers what a primary may answer otherwise: read_only_sql_transaction,
feature_not_supported, object_not_in_prerequisite_state, and serialization_failure for a conflict with recovery."""

CANCELLED = "57014"
"""query_canceled: the client's wish, or its time-out."""

ENDED = frozenset(("57P01", "57P02", "57P03", CONFLICT))
"""SQLSTATEs with which a copy ends a session for its own reasons: admin_shutdown, crash_shutdown, cannot_connect_now,
and a conflict with recovery that a statement alone can't solve."""

MAX_LOSSES = 50
"""Connections of one node that may be lost under a unit, as when the node dies with all of them."""

SERIALIZABLE = "GetSerializableTransactionSnapshot"
"""It refuses all that a session with default_transaction_isolation = serializable runs on a standby, which says nothing
of the statement (storage/lmgr/predicate.c)."""


class Rerun:
    """Of one client."""

    __slots__ = ("_client", "raw", "unit")

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unit: Unit | None = None
        """The batch in flight, where it may be run again."""
        self.raw = b""
        """The last unit that went the fast way as the client sent it: a batch with a named statement, or anything
        where reads are split."""

    def failed(self, server: Server, owed: Owed, first: bool) -> bool:
        """Its plan is stale. Whether the error is passed on; `first`: nothing was answered before it."""
        client = self._client
        if owed.plain:
            self.unit = Unit(Kind.BATCH)
            self.unit.ops = split_batch(self.raw)
            client.batches.judge(self.unit)
        elif self.unit is not owed.unit:
            self.unit = None
        unit = self.unit
        client.shut_gate()  # `unit_done` has something to do
        used = [] if unit is None else self._used_by(unit, server)
        if any(client.is_current(statement) for statement in used):
            # DDL that did not pass through here: what is parsed from now on must not be taken for the same.
            client.worker.catalogues.changed(client.settings.dbname)
        if unit is None or not used:
            return True
        shown = any(op.kind == frontend.DESCRIBE and op.target != 0x53 for op in unit.ops)
        free = {statement for statement in used if statement.columns is None or shown}
        self._renew(unit, free)
        if not first or len(free) < len(used) or len(server.owed) != 1 or unit.retried or server.status != IDLE:
            return True
        unit.retried = True
        owed.retry = self._run_again
        return False

    def refused(self, server: Server, owed: Owed, sqlstate: str, routine: str) -> bool:
        """A standby has refused it. Whether the error is passed on. `routine` is where the error was raised."""
        unit = self._to_run_elsewhere(server, owed)
        if unit is None:
            return True
        unit.refused = CONFLICT if routine == SERIALIZABLE else sqlstate
        owed.retry = self._run_on_primary
        return False

    def failed_on_columnar(self, server: Server, owed: Owed, sqlstate: str) -> bool:
        """A columnar node can't run it, which says nothing of the statement. Whether the error is passed on."""
        unit = self._to_run_elsewhere(server, owed)
        if unit is None:
            return True
        self._client.worker.capabilities.unable(self._client, unit, server.pool.node, sqlstate)
        owed.retry = self._run_as_read
        return False

    def ended(self, server: Server, owed: Owed, sqlstate: str) -> bool:
        """The server has ended its session. Whether that is kept from the client: when the connection breaks, which
        follows at once, it is lost and no more (`lost`)."""
        if sqlstate not in ENDED or owed.started or not self._may_be_lost(server) or not self._alone(server, owed):
            return False
        server.fatal = False
        owed.retry = self._wait_for_its_end
        return True

    def _wait_for_its_end(self) -> None:
        """Nothing is answered behind a FATAL."""

    def _may_be_lost(self, server: Server) -> bool:
        """Whether nothing but a read is lost with a server."""
        client = self._client
        owed = server.owed.head
        return owed is not None and owed.sink is client and not client.pins and not server.pool.is_primary()

    def lost(self, server: Server) -> bool:
        """The server has gone, and its client has none now. Whether what it was asked is asked of another one."""
        client = self._client
        owed = server.owed.head
        if owed is None or not self._may_be_lost(server):
            return False
        owed.retry = None
        node = server.pool.node
        before = owed.unit
        if before is not None and before.lost_on == node and before.losses < MAX_LOSSES:
            before.retried = False  # another connection of the same dead node, whose end had not been heard of
        unit = self._to_run_elsewhere(server, owed)
        if unit is None:
            return False
        unit.lost_on = node
        unit.losses += 1
        client.worker.counters.reruns += 1
        self.unit = None
        self._read_again(unit)
        client.send_elsewhere(unit)
        return True

    def _to_run_elsewhere(self, server: Server, owed: Owed) -> Unit | None:
        """The unit that has failed, if nobody can tell that it is run once more on another node."""
        if server.fatal:
            return None  # it has ended the session, and nothing follows
        client = self._client
        unit = self._as_sent(owed)
        if unit is None or unit.retried or owed.started or not self._alone(server, owed):
            return None
        unit.retried = True
        self.unit = unit
        client.shut_in()
        return unit

    def _alone(self, server: Server, owed: Owed) -> bool:
        """Whether it is outside a transaction, and nothing of the client's follows."""
        return len(server.owed) == 1 and server.status == IDLE and owed.complete and not self._client.waits_behind

    def _as_sent(self, owed: Owed) -> Unit | None:
        """The unit that is answered, if it can be sent again."""
        if not owed.plain:
            unit = owed.unit
            return unit if unit is not None and (unit.kind is Kind.QUERY or unit is self.unit) else None
        client = self._client
        if is_query(self.raw):
            unit = Unit(Kind.QUERY, self.raw)
            client.join_text(unit, frontend.query_text(self.raw))
            return unit
        unit = Unit(Kind.BATCH)
        unit.ops = split_batch(self.raw)
        for op in unit.ops:
            client.read_statement(op)
        client.batches.judge(unit)
        return unit

    def _run_on_primary(self) -> None:
        unit = self.unit
        if unit is not None:
            unit.cls = Class.WRITE if unit.refused == WRITES else Class.SESSION
            self._run_elsewhere(unit)

    def _run_as_read(self) -> None:
        unit = self.unit
        if unit is not None:
            unit.failed_on_columnar = True
            self._run_elsewhere(unit)

    def _run_elsewhere(self, unit: Unit) -> None:
        client = self._client
        if client.server is None:
            return
        client.worker.counters.reruns += 1
        self.unit = None
        self._read_again(unit)
        client.send_elsewhere(unit)

    def _renew(self, unit: Unit, free: set[Statement]) -> None:
        """Let the client's names for these statements stand for their texts as they are read now."""
        client = self._client
        named = client.names.named
        for op in unit.ops:
            known = named.get(op.name)
            if known is not None and known in free:
                named[op.name] = client.worker.statements.again(known, client.meaning())

    def _used_by(self, unit: Unit, server: Server) -> list[Statement]:
        used: set[Statement] = set()
        for op in unit.ops:
            if isinstance(op.statement, Statement):
                used.add(op.statement)
            elif op.kind in (frontend.BIND, frontend.DESCRIBE):
                known = self._client.names.named.get(op.name)
                if known is not None:
                    used.add(known)
        return [s for s in server.statements.named if s in used]

    def _run_again(self) -> None:
        client = self._client
        unit, server = self.unit, client.server
        if unit is None or server is None:
            return
        client.worker.counters.reparses += 1
        self.unit = None
        self._read_again(unit)
        client.transmit(server, unit)

    def _read_again(self, unit: Unit) -> None:
        client = self._client
        for op in unit.ops:
            if op.kind == frontend.PARSE:
                client.names.named.pop(op.name, None)  # it is parsed once more
                client.read_statement(op)
