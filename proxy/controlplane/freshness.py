"""What copies are known to hold: all writes that had ended before a moment.

While a worker has reads that wait for it (NeedFreshness), the primary's WAL position is sampled and the
copies' replay positions are read until every copy in service has passed it. `Progress` is the pure
part; `Sampler` reads positions over connections that it keeps. Replicas and columnar nodes go apart.
It never touches probes or health: a copy that can't be asked holds freshness back, and no more.

A sample takes the moment first and the position after, so all that was committed before the moment lies
under the position. Two claims come of it:

- the insert position, for the moment itself;
- the flush position, for three `wal_writer_delay` earlier: a commit is flushed before it is
  acknowledged, or (synchronous_commit = off) within that time (manual, chapter 30.4). The insert position
  alone could stay out of reach for long: what an open transaction has written isn't flushed, nor sent to
  replicas, until somebody commits.

One case stays slow: an open transaction has filled a WAL page, and nobody commits. The flush position
then ends within a record, and the next record that the background writer logs (each 15 s) ends the wait.

Called by `controlplane.controller`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ..clock import Clock
from ..config.schema import Config
from ..errors import NodeRefused, TridentError
from ..log import get_logger
from ..topology.model import Role
from ..topology.snapshot import Freshness, NodeView, Snapshot
from .link import Dial, NodeLink
from .probes import lsn_of

MAX_CLAIMS = 64
READ_TIMEOUT = 1.0
"""Seconds for one reading of a node, connecting included."""
RETRIES = (0.002, 0.005, 0.01, 0.02)
"""Seconds between the readings of copies within a round: most have caught up in a few milliseconds."""
SYNTAX_OR_ACCESS = "42"

PRIMARY_QUERY = (
    "SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_wal_flush_lsn(),"
    " extract(epoch FROM pg_catalog.current_setting('wal_writer_delay')::interval)"
)
REPLAY_QUERY = "SELECT pg_catalog.pg_last_wal_replay_lsn()"
APPLIED_QUERY = "SHOW columnar.applied_lsn"

_PAGE = 8192
_PAGE_HEADERS = (24, 40)
_log = get_logger("freshness")


def record_end(lsn: int) -> int:
    """An insert position as the end of the record before it.

    At a page border the insert position lies behind the header of the next page, which no replay position
    reaches until more is written (access/xlog_internal.h: SizeOfXLogShortPHD, SizeOfXLogLongPHD).
    """
    return lsn - lsn % _PAGE if lsn % _PAGE in _PAGE_HEADERS else lsn


class Progress:
    """Claims of one kind of copies, oldest first: (moment, position that has to be reached)."""

    def __init__(self) -> None:
        self._claims: deque[tuple[int, int]] = deque()
        self.reached_ns = 0

    def claim(self, moment_ns: int, lsn: int) -> None:
        """All that was committed before the moment lies under `lsn`. When too many are open the newest but
        one goes: the oldest is the one that is reached first."""
        if len(self._claims) >= MAX_CLAIMS:
            self._claims.pop()
        self._claims.append((moment_ns, lsn))

    def reach(self, lsn: int) -> int:
        """Every copy has replayed up to `lsn`; returns the moment that is now sure."""
        done = [moment for moment, position in self._claims if position <= lsn]
        self.reached_ns = max(self.reached_ns, *done, 0)
        self._claims = deque(claim for claim in self._claims if claim[0] > self.reached_ns)
        return self.reached_ns

    def reset(self) -> None:
        """Another set of copies, or another primary: nothing is sure."""
        self._claims.clear()
        self.reached_ns = 0


class Sampler:
    """Reads positions while anybody needs them, and publishes what is sure."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        config: Callable[[], Config],
        dial: Dial,
        publish: Callable[[Freshness], None],
        clock: Clock,
    ) -> None:
        self._snapshot = snapshot
        self._config = config
        self._dial = dial
        self._publish = publish
        self._clock = clock
        self._replicas = Progress()
        self._columnar = Progress()
        self._links: dict[str, tuple[int, NodeLink]] = {}  # with the generation of the node that it leads to
        self._unreadable: set[str] = set()
        self._needed_ns = 0
        self._wanted = asyncio.Event()
        self._generation = 0

    @property
    def freshness(self) -> Freshness:
        return Freshness(replicas_ns=self._replicas.reached_ns, columnar_ns=self._columnar.reached_ns)

    def need(self, written_ns: int) -> None:
        """Reads wait for writes that ended at `written_ns` (boot_ns)."""
        if written_ns > self._needed_ns:
            self._needed_ns = written_ns
            self._wanted.set()

    def topology_changed(self, before: Snapshot | None, after: Snapshot) -> bool:
        """Before `after` is published: forget what no longer holds for its copies. True if freshness went
        back, and workers have to hear of it first."""
        if before is None:
            return False
        moved = before.epoch != after.epoch
        reset = []
        if moved or set(after.replicas) - set(before.replicas):
            reset.append(self._replicas)
        if moved or set(after.columnar) - set(before.columnar):
            reset.append(self._columnar)
        went_back = any(progress.reached_ns for progress in reset)
        for progress in reset:
            progress.reset()
        if reset:
            self._generation += 1
        if went_back:
            # Reads that were sure of their copies before shall be so again soon.
            self.need(self._clock.boot_ns())
        return went_back

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                began = self._clock.now()
                await self._round()
                if self._satisfied():
                    self._wanted.clear()
                    continue
                interval = self._config().health.sample_interval
                await asyncio.sleep(max(0.001, began + interval - self._clock.now()))
        finally:
            for name in list(self._links):
                self._drop(name)

    def _satisfied(self) -> bool:
        """Whether every kind of copies that is in service has passed what is needed."""
        snapshot = self._snapshot()
        if snapshot is None or not snapshot.primary:
            return False
        fresh = self.freshness
        return (not snapshot.replicas or fresh.replicas_ns >= self._needed_ns) and (
            not self._readable(snapshot.columnar) or fresh.columnar_ns >= self._needed_ns
        )

    def _readable(self, names: Sequence[str]) -> tuple[str, ...]:
        """`names`, unless one of them can't tell its position: then nothing will ever be sure of them."""
        return () if self._unreadable.intersection(names) else tuple(names)

    async def _round(self) -> None:
        snapshot = self._snapshot()
        if snapshot is None or not snapshot.primary:
            return
        for name in self._links.keys() - snapshot.nodes.keys():
            self._drop(name)
        self._unreadable.intersection_update(snapshot.nodes)
        kinds = [
            (progress, names)
            for progress, names in ((self._replicas, snapshot.replicas), (self._columnar, snapshot.columnar))
            if self._readable(names)
        ]
        if not kinds:
            return
        generation = self._generation
        moment = self._clock.boot_ns()
        sample = await self._read(snapshot.nodes[snapshot.primary], PRIMARY_QUERY)
        if sample is None or generation != self._generation:
            return
        insert, flush, delay = sample
        for progress, _ in kinds:
            progress.claim(moment - int(3e9 * float(delay or 0)), lsn_of(flush))
            progress.claim(moment, record_end(lsn_of(insert)))
        for wait in (0.0, *RETRIES):
            await asyncio.sleep(wait)
            for progress, names in kinds:
                await self._advance(progress, snapshot, names, generation)
            if generation != self._generation or self._satisfied():
                return

    async def _advance(self, progress: Progress, snapshot: Snapshot, names: Sequence[str], generation: int) -> None:
        positions = await asyncio.gather(*(self._position(snapshot.nodes[name]) for name in names))
        if generation != self._generation or not all(positions):
            return
        before = progress.reached_ns
        if progress.reach(min(positions)) > before:
            self._publish(self.freshness)

    async def _position(self, view: NodeView) -> int:
        """How far a copy has replayed; 0 if it can't be told now."""
        if view.role is not Role.COLUMNAR:
            row = await self._read(view, REPLAY_QUERY)
            return lsn_of(row[0]) if row else 0
        try:
            row = await self._read(view, APPLIED_QUERY, strict=True)
        except NodeRefused:
            # No columnar front of ours: a PostgreSQL standby in its place has a replay position instead.
            row = await self._read(view, REPLAY_QUERY)
            if not row or not row[0]:
                self._unreadable.add(view.name)
                _log.warning("no_position", node=view.name, meaning="reads never wait for this node")
                return 0
        return lsn_of(row[0]) if row else 0

    async def _read(self, view: NodeView, sql: str, *, strict: bool = False) -> list[bytes | None] | None:
        """The first row, or None if the node can't be read now. `strict` raises NodeRefused for an object
        that doesn't exist there (42xxx)."""
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                rows = await (await self._link(view)).query(sql)
                return rows[0] if rows else None
        except NodeRefused as error:
            if strict and error.sqlstate.startswith(SYNTAX_OR_ACCESS):
                raise
            self._drop(view.name)
        except (TridentError, OSError):
            self._drop(view.name)
        return None

    async def _link(self, view: NodeView) -> NodeLink:
        kept = self._links.get(view.name)
        if kept is not None and kept[0] == view.generation:
            return kept[1]
        self._drop(view.name)
        link = NodeLink(view.name, await self._dial(view, self._config(), READ_TIMEOUT))
        self._links[view.name] = (view.generation, link)
        return link

    def _drop(self, name: str) -> None:
        if kept := self._links.pop(name, None):
            kept[1].close()
