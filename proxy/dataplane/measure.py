"""How long reads take, as far as that may make analytics of them or the other way round.

A read that takes long on a replica is counted from then on, with all its like; what runs on a columnar node always is.
For what looks like analytics the planner of a replica is asked once, when it has run. Nothing of this stands in a
client's way. What is measured while any node is away moves nothing.

Owns the counts of the last second. What they mean is found out over all workers (`controlplane.measured`). Called by
`client` (`ended`), `upkeep` and `worker`.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from ..errors import TridentError
from ..ipc.messages import Measured, Side
from ..routing.bind import shape_of
from ..sql.grammar import normalized
from ..sql.model import Classification
from ..topology.model import Health
from ..wire import build, parse
from ..wire.codes import IDLE
from .inquiry import inquire
from .server import Owed, Server

if TYPE_CHECKING:
    from .client import Client
    from .worker import Worker

MAX_WATCHED = 1_000
"""Statements that are counted on replicas."""
MAX_COUNTED = 500
"""Statements of which runs are counted in one second; of more they aren't."""
MAX_ESTIMATES = 5_000
"""Shapes of which it is remembered that the planner was asked."""
ASKED_AGAIN = 3600.0
"""Seconds until it may be asked once more."""
DEADLINE = 5.0
"""Seconds for one answer of the planner."""
_GENERIC_PLAN = 16
"""Since this version EXPLAIN does without values for parameters (manual, EXPLAIN, GENERIC_PLAN)."""


class _Count:
    __slots__ = ("database", "runs", "total")

    def __init__(self, database: str) -> None:
        self.database = database
        self.runs = 0
        self.total = 0.0


class Measures:
    """Of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.long = 0.0
        """Seconds from which on a read is noticed (`routing.analytic_time`); infinite where nothing can be learned."""
        self.watched: dict[Classification, None] = {}
        """Reads that were long once, as bound."""
        self._counts: dict[tuple[Classification, Side], _Count] = {}
        self._asked: dict[tuple[str, str], float] = {}
        """When the planner was asked, by database and shape."""
        self._asking = False
        self.published()

    def published(self) -> None:
        """The snapshot or the configuration is another one."""
        nodes = self._worker.snapshot.nodes.values()
        whole = all(view.health is Health.ACTIVE and view.drain is None for view in nodes)
        learns = whole and self._worker.snapshot.has_columnar
        self.long = self._worker.config.routing.analytic_time if learns else float("inf")

    def ended(self, client: Client, server: Server, owed: Owed, found: Classification) -> None:
        """A read has run on a copy; `found` as it is bound."""
        took = server.took
        columnar = self._worker.is_columnar(server.pool.node)
        if self.long == float("inf") or owed.failed or server.status != IDLE or found.kind != "select":
            return
        if not columnar:
            if took >= self.long:
                if len(self.watched) >= MAX_WATCHED:
                    self.watched.clear()
                self.watched[found] = None
            elif found not in self.watched:
                return
        side: Side = "columnar" if columnar else "replica"
        key = (found, side)
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= MAX_COUNTED:
                return
            count = self._counts[key] = _Count(client.settings.dbname)
        count.runs += 1
        if columnar or took >= self.long:
            count.total += took
        if columnar and self._worker.config.routing.analytic_cost:
            self._estimate(client, found)

    def upkeep(self) -> None:
        """Once a second: tell the controller."""
        counts, self._counts = self._counts, {}
        for (found, side), count in counts.items():
            self._tell(count.database, found.text, side, count.runs, count.total)

    def _tell(self, database: str, text: bytes, side: Side, runs: int, amount: float) -> None:
        shape = shape_of(text)
        if shape:
            shown = normalized(text.decode("utf-8", "replace"))
            self._worker.send(Measured(database, shape, shown, side, runs, amount))

    # ---- the planner's word

    def _estimate(self, client: Client, found: Classification) -> None:
        """Ask for it, if nobody has; one at a time."""
        if self._asking or not self._worker.snapshot.replicas:
            return
        now = self._worker.clock.now()
        key = (client.settings.dbname, shape_of(found.text))
        if now < self._asked.get(key, 0.0):
            return
        if len(self._asked) >= MAX_ESTIMATES:
            self._asked.clear()
        self._asked[key] = now + ASKED_AGAIN
        self._asking = True
        self._worker.spawn(self._ask_planner(client, found), "estimate")

    async def _ask_planner(self, client: Client, found: Classification) -> None:
        worker = self._worker
        try:
            node = worker.snapshot.replicas[0]
            async with asyncio.timeout(DEADLINE):
                generic = "GENERIC_PLAN, " if _version(client) >= _GENERIC_PLAN else ""
                sql = f"EXPLAIN ({generic}FORMAT JSON) ".encode() + found.text
                cost = _total_cost(await inquire(client, node, build.query(sql), extended=False))
        except (TimeoutError, IndexError, TridentError) as error:
            worker.log.info("cost_not_estimated", error=str(error) or "timed out")
        else:
            self._tell(client.settings.dbname, found.text, "planner", 1, cost)
        finally:
            self._asking = False


def _version(client: Client) -> int:
    """Of the servers, as the client was told."""
    number = client.shown.get("server_version", "").partition(".")[0]
    return int(number) if number.isdigit() else 0


def _total_cost(answer: bytes) -> float:
    """Of the plan in an answer to EXPLAIN (FORMAT JSON)."""
    for kind, body in parse.messages(answer):
        if kind == 0x44:
            plan = json.loads(parse.data_row(body)[0] or b"[]")
            return float(plan[0]["Plan"]["Total Cost"])
    raise IndexError("no plan in the answer")
