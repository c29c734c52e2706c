"""A unit whose plan has gone stale is run once more, where nobody can tell.

Owns the last unit that may be run again. Called by `client` (errors in) and by `batch` (units out).

"cached plan must not change result type" comes because a shared statement is older than the table. The
client may not have asked for a result of the old shape at all, so the statement is parsed anew and the unit
run again, but only where nothing has run yet and the client can't have kept an old description. Otherwise
the error stands, as it would without a proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..session.prepared import Statement
from ..wire import build, frontend
from ..wire.codes import IDLE
from .server import Owed, Server
from .unit import Kind, Unit, split_batch

if TYPE_CHECKING:
    from .client import Client


class Rerun:
    """Of one client."""

    __slots__ = ("_client", "_stale", "raw", "unit")

    def __init__(self, client: Client) -> None:
        self._client = client
        self.unit: Unit | None = None
        """The batch in flight, where it may be run again."""
        self.raw = b""
        """The last batch that went the fast way with a named statement, as the client sent it."""
        self._stale: list[bytes] = []

    def failed(self, server: Server, owed: Owed, first: bool) -> bool:
        """Its plan is stale. Whether the error is passed on; `first`: nothing was answered before it."""
        client = self._client
        if owed.plain:
            self.unit = Unit(Kind.BATCH)
            self.unit.ops = split_batch(self.raw)
            client.batches.judge(self.unit)
        unit = self.unit
        used = [] if unit is None else self._used_by(unit, server)
        for statement in used:
            del server.statements.named[statement]
        self._stale = [s.server_name for s in used]
        client.shut_gate()  # `unit_done` has something to do
        if unit is None or not first or not used or len(server.owed) != 1 or unit.retried or server.status != IDLE:
            return True
        if any(op.name in client.names.described for op in unit.ops if op.name):
            return True
        unit.retried = True
        owed.retry = self._run_again
        return False

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

    def close_stale(self, server: Server) -> None:
        """Close on the server what was found to be stale."""
        if self._stale:
            server.tell(b"".join(build.close(b"S", name) for name in self._stale))
            self._stale = []

    def _run_again(self) -> None:
        client = self._client
        unit, server = self.unit, client.server
        if unit is None or server is None:
            return
        client.worker.counters.reparses += 1
        self.close_stale(server)
        self.unit = None
        for op in unit.ops:
            if op.kind == frontend.PARSE:
                client.names.named.pop(op.name, None)  # it is parsed once more
        client.transmit(server, unit)
