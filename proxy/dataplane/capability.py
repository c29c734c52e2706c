"""Whether an analytic statement's result has PostgreSQL's types on the columnar nodes.

Clients decode by the types that they were told, so a statement goes to a columnar node only where its
parameters and result columns are described alike there and on the primary. Found out once per text,
by Parse and Describe on both, while the statement waits; the answer is kept (bounded, for a time:
tables change). One that fails there is not sent there for that time. Called by `routes` and `rerun`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from ..errors import TridentError
from ..wire import build, parse
from .server import Owed, Server
from .waiter import Borrower

if TYPE_CHECKING:
    from .client import Client
    from .unit import Unit
    from .worker import Worker

MAX_KNOWN = 2_000
KEPT = 300.0
"""Seconds that an answer holds."""
DEADLINE = 2.0
"""Seconds for both descriptions; a statement that could not be described is no analytic one."""
FIRST_USER_OID = 16384


class Capabilities:
    """Answers by text, and the questions under way."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._known: OrderedDict[tuple[str, str, bytes, bytes], tuple[float, bool]] = OrderedDict()
        self._asking: dict[tuple[str, str, bytes, bytes], list[Client]] = {}

    def able(self, client: Client, unit: Unit, *, dry: bool = False) -> bool | None:
        """Whether a columnar node may answer; None while it is being found out, after which the
        client is released. `dry`: None where it would have to be found out."""
        text = unit.single_text()
        if text is None or unit.classified[0].fragile:
            return False
        if not self._worker.snapshot.columnar:
            # Nobody to ask; what was learned still tells analytics from ordinary reads.
            kept = self._known.get((client.settings.dbname, client.settings.user, *text))
            return kept[1] if kept is not None else True
        key = (client.settings.dbname, client.settings.user, *text)
        kept = self._known.get(key)
        if kept is not None and kept[0] > self._worker.clock.now():
            self._known.move_to_end(key)
            return kept[1]
        if dry:
            return None
        waiting = self._asking.get(key)
        if waiting is None:
            self._asking[key] = [client]
            self._worker.spawn(self._find_out(key, client), "capability")
        else:
            waiting.append(client)
        return None

    def unable(self, client: Client, unit: Unit) -> None:
        """A columnar node has failed at it: it is not asked for some time."""
        text = unit.single_text()
        if text is not None:
            self._learn((client.settings.dbname, client.settings.user, *text), False)

    def _learn(self, key: tuple[str, str, bytes, bytes], answer: bool) -> None:
        while len(self._known) >= MAX_KNOWN:
            self._known.popitem(last=False)
        self._known[key] = (self._worker.clock.now() + KEPT, answer)

    async def _find_out(self, key: tuple[str, str, bytes, bytes], client: Client) -> None:
        answer = False
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await self._same_types(client, key[2], key[3])
        except (TimeoutError, TridentError) as error:
            self._worker.log.info("analytic_not_described", error=str(error) or "timed out")
        finally:
            self._learn(key, answer)
            for waiter in self._asking.pop(key, []):
                waiter.released_from_hold()

    async def _same_types(self, client: Client, sql: bytes, oids: bytes) -> bool:
        snapshot = self._worker.snapshot
        node = next(iter(snapshot.replicas), snapshot.primary)
        if not node or not snapshot.columnar:
            return False
        theirs = await self._describe(client, node, sql, oids)
        if theirs is None or any(oid >= FIRST_USER_OID for _, oid in theirs[1]):
            return False
        return theirs == await self._describe(client, snapshot.columnar[0], sql, theirs[0])

    async def _describe(
        self, client: Client, node: str, sql: bytes, oids: bytes
    ) -> tuple[bytes, list[tuple[str, int]]] | None:
        """(parameter types in Parse's own form, result columns), or None if the node refuses."""
        pool = self._worker.pools.pool(node, client)
        server = await Borrower().take(pool)
        done: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        owed = Owed(None, extended=True)
        owed.collect = True

        def answered(server: Server, rows: object, error: dict[str, str] | None) -> None:
            if not done.done():
                done.set_result(None if error else b"".join(owed.collected or ()))
            pool.settled(server)

        owed.then = answered
        server.statements.unnamed = None
        server.unseen_by = None
        server.send(build.parse(b"", sql, oids) + build.describe(b"S", b"") + build.SYNC, owed)
        answer = await done
        if answer is None:
            return None
        parameters = b"\0\0"
        columns: list[tuple[str, int]] = []
        pos = 0
        while len(answer) - pos >= 5:
            end = pos + 1 + int.from_bytes(answer[pos + 1 : pos + 5], "big")
            if answer[pos] == 0x74:
                parameters = answer[pos + 5 : end]
            elif answer[pos] == 0x54:
                columns = parse.row_types(answer[pos + 5 : end])
            pos = end
        return parameters, columns
