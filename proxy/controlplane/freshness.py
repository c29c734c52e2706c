"""Where the primary's WAL stands and how far copies have replayed it: what they are known to hold, and their lag.

One loop samples the primary's position, one loop a copy reads its replay position; a copy that can't be asked
holds nobody else up. Positions are read `health.sample_interval` apart, and much faster while a worker has
reads that wait (NeedFreshness): one sample sent after a write covers all that wrote before it. What is made of
the readings is `health.lag`. It never touches probes or health.

A sample takes the moment first and the position after, so all that was committed before the moment lies
under the position. Two claims come of it:

- the insert position, for the moment itself;
- the flush position, for three `wal_writer_delay` earlier: a commit is flushed before it is
  acknowledged, or (synchronous_commit = off) within that time (manual, chapter 30.4). The insert position
  alone could stay out of reach for long: what an open transaction has written isn't flushed, nor sent to
  replicas, until somebody commits.

One case stays slow: an open transaction has filled a WAL page, and nobody commits. The flush position
then ends within a record, and the next record that the background writer logs (each 15 s) ends the wait.

Lag goes by the flush position, since what isn't flushed can't be replayed by anybody. For that slow case it is
taken two pages lower where it ends with a page.

A standby that was restarted may go on before the position that it had reached: when its link breaks, or is given up
because it doesn't answer, nothing is known of it any more.

Called by `controlplane.controller`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import msgspec

from ..clock import Clock
from ..config.schema import Config
from ..errors import NodeRefused, TridentError
from ..health.lag import LagGate, Positions
from ..log import get_logger
from ..topology.model import Role
from ..topology.snapshot import Copy, Freshness, NodeView, Snapshot
from .link import Dial, NodeLink
from .probes import lsn_of
from .tasks import Tasks

READ_TIMEOUT = 1.0
"""Seconds for one reading of a node, connecting included."""
HURRY = 0.02
"""Seconds between samples of the primary while copies are behind what was written ..."""
URGENT = 0.002
"""... and while clients wait for them."""
RETRIES = (0.002, 0.005, 0.01, 0.02)
"""Seconds between the readings of a copy that has not come as far as the last sample: most have in a few
milliseconds."""
SYNTAX_OR_ACCESS = "42"

PRIMARY_QUERY = (
    "SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_wal_flush_lsn(),"
    " extract(epoch FROM pg_catalog.current_setting('wal_writer_delay')::interval),"
    " pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8)"
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


async def _happens(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after so long."""
    if seconds <= 0 or event.is_set():
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


class _Followed:
    """One copy that is read."""

    def __init__(self, name: str, now_ns: int) -> None:
        self.name = name
        self.gate = LagGate()
        self.copy = Copy(since_ns=now_ns)
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.no_position = False
        """It can't tell its position: reads never wait for it, and its lag isn't known."""
        self.alarmed = False


class Sampler:
    """Reads positions, and publishes what is sure."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        config: Callable[[], Config],
        dial: Dial,
        publish: Callable[[Freshness], None],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._snapshot = snapshot
        self._config = config
        self._dial = dial
        self._publish = publish
        self._clock = clock
        self._tasks = tasks
        self._inserted = Positions()
        self._flushed = Positions()
        self._replayable = Positions()
        self._sampled = (0, 0)
        self._copies: dict[str, _Followed] = {}
        self._links: dict[str, tuple[int, NodeLink]] = {}  # with the generation of the node that it leads to
        self._needed_ns = 0
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()
        self._epoch = 0
        self._timeline = 0
        self._due = False

    @property
    def freshness(self) -> Freshness:
        moment, lsn = self._sampled
        copies = {name: followed.copy for name, followed in self._copies.items()}
        return Freshness(epoch=self._epoch, timeline=self._timeline, sampled_ns=moment, sampled_lsn=lsn, copies=copies)

    def need(self, moment_ns: int, urgent: bool = False) -> None:
        """Reads are to see what was written before this moment (boot_ns); `urgent`: clients wait for it."""
        if moment_ns > self._needed_ns:
            self._needed_ns = moment_ns
            self._wanted.set()
        if urgent and moment_ns > self._sampled[0]:
            self._urgent.set()

    def topology_changed(self, before: Snapshot | None, after: Snapshot) -> bool:
        """Before `after` is published: forget what no longer holds for its copies. True if freshness went
        back, and workers have to hear of it first."""
        went_back = False
        if before is not None and before.epoch != after.epoch:
            self._inserted.clear()
            self._flushed.clear()
            self._replayable.clear()
            self._sampled = (0, 0)
            for followed in self._copies.values():
                went_back = went_back or followed.copy.fresh_ns > 0
                followed.copy = self._unknown(followed)
        self._epoch = after.epoch
        serving = {*after.replicas, *after.columnar}
        for name in self._copies.keys() - serving:
            self._unfollow(name)
        for name in serving - self._copies.keys():
            self._copies[name] = followed = _Followed(name, self._clock.boot_ns())
            followed.task = self._tasks.start(self._follow(followed), f"lag of {name}")
        return went_back

    def _unfollow(self, name: str) -> None:
        followed = self._copies.pop(name)
        if followed.task is not None:
            followed.task.cancel()
        self._drop(name)

    async def run(self) -> None:
        """Sample the primary until cancelled."""
        try:
            while True:
                began = self._clock.now()
                await self._sample()
                for followed in self._copies.values():
                    followed.wake.set()
                pace = self._config().health.sample_interval
                hurry = min(HURRY, pace)
                await asyncio.sleep(max(0.001, began + min(URGENT, pace) - self._clock.now()))
                await _happens(self._urgent, began + hurry - self._clock.now())
                if not self._urgent.is_set() and not self._waited_for():
                    self._wanted.clear()
                    await _happens(self._wanted, began + pace - self._clock.now())
                self._urgent.clear()
        finally:
            for name in list(self._links):
                self._drop(name)

    def _waited_for(self) -> bool:
        """Whether a copy that can tell its position has not passed what is needed."""
        return any(f.copy.fresh_ns < self._needed_ns and not f.no_position for f in self._copies.values())

    async def _sample(self) -> None:
        snapshot = self._snapshot()
        if snapshot is None or not snapshot.primary or (not self._copies and self._needed_ns <= self._sampled[0]):
            return
        epoch = self._epoch
        moment = self._clock.boot_ns()
        sample = await self._read(snapshot.nodes[snapshot.primary], PRIMARY_QUERY)
        if sample is None or epoch != self._epoch:
            return
        insert, flush, delay, timeline = sample
        position = record_end(lsn_of(insert))
        flushed = lsn_of(flush)
        self._flushed.note(moment - int(3e9 * float(delay or 0)), flushed)
        self._replayable.note(moment, flushed if flushed % _PAGE else max(0, flushed - 2 * _PAGE))
        self._inserted.note(moment, position)
        self._sampled = (moment, position)
        self._timeline = int(timeline or b"0", 16)
        self._publish_soon()  # who asks for a token waits for this

    async def _follow(self, followed: _Followed) -> None:
        """Read a copy whenever the primary was sampled, and when that takes too long."""
        while True:
            await _happens(followed.wake, self._config().health.sample_interval)
            for wait in (0.0, *RETRIES):
                await _happens(followed.wake, wait)
                followed.wake.clear()
                await self._look(followed)
                if followed.copy.fresh_ns >= self._sampled[0] or followed.no_position:
                    break

    async def _look(self, followed: _Followed) -> None:
        """One reading of a copy."""
        snapshot = self._snapshot()
        view = snapshot.nodes.get(followed.name) if snapshot is not None else None
        if view is None:
            return
        epoch = self._epoch
        began = self._clock.now()
        before = followed.copy
        lsn = await self._position(followed, view)
        if epoch != self._epoch or self._copies.get(followed.name) is not followed:
            return
        if followed.copy is not before:
            lsn, before = 0, followed.copy  # it may have been read before its link broke
        now = self._clock.now()
        lag = self._lag(lsn) if lsn else None
        weight = self._weigh(followed, view, lag, now)
        took = int((now - began) * 1e6)
        if lsn:
            followed.copy = Copy(
                fresh_ns=max(before.fresh_ns, self._inserted.held_until(lsn), self._flushed.held_until(lsn)),
                since_ns=before.since_ns,
                lsn=lsn,
                lag_ms=-1 if lag is None or lag == math.inf else int(lag * 1000),
                lag_bytes=max(0, self._sampled[1] - lsn),
                weight=weight,
                latency_us=took if not before.latency_us else before.latency_us + (took - before.latency_us) // 8,
            )
        elif weight != before.weight:
            followed.copy = msgspec.structs.replace(before, weight=weight)
        if (followed.copy.fresh_ns, followed.copy.lsn, weight) != (before.fresh_ns, before.lsn, before.weight):
            self._publish_soon()
        self._judge_lag(followed, view, before)

    def _lag(self, lsn: int) -> float | None:
        """Seconds since the primary had flushed more than `lsn`, infinite where that was before it was first asked;
        None if it never was."""
        if not self._sampled[0]:
            return None
        since = self._replayable.behind_since(lsn)
        if since is None:
            return 0.0
        return (self._clock.boot_ns() - since) / 1e9 if since else math.inf

    def _weigh(self, followed: _Followed, view: NodeView, lag: float | None, now: float) -> int:
        if followed.no_position:
            return 100
        if lag is None and not self._sampled[0] and followed.copy.lsn:
            return followed.gate.weight  # no primary to compare with: as it was
        out, back = self._limits(view)
        return followed.gate.observe(lag, out=out, back=back, now=now)

    def _limits(self, view: NodeView) -> tuple[float, float]:
        """Lag in seconds beyond which a copy is out, and below which it comes back."""
        lag = self._config().lag
        own = self._config().nodes.get(view.name)
        columnar = view.role is Role.COLUMNAR
        out = own.lag_out if own is not None and own.lag_out is not None else None
        back = own.lag_in if own is not None and own.lag_in is not None else None
        if out is None:
            out = lag.columnar_out if columnar else lag.replica_out
        if back is None:
            back = min(out, lag.columnar_in if columnar else lag.replica_in)
        return out, back

    def _judge_lag(self, followed: _Followed, view: NodeView, before: Copy) -> None:
        """Say what has changed."""
        copy = followed.copy
        if before.weight and not copy.weight:
            _log.warning("copy_out", node=view.name, lag_ms=copy.lag_ms, lag_bytes=copy.lag_bytes)
        elif copy.weight and not before.weight:
            _log.info("copy_in", node=view.name, lag_ms=copy.lag_ms, weight=copy.weight)
        if view.role is Role.COLUMNAR:
            alarm = copy.lag_ms > self._config().lag.columnar_alarm * 1000
            if alarm and not followed.alarmed:
                _log.error("columnar_far_behind", node=view.name, lag_ms=copy.lag_ms, lag_bytes=copy.lag_bytes)
            followed.alarmed = alarm

    def _publish_soon(self) -> None:
        """Once for all that changes in this turn of the loop."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._publish_now)

    def _publish_now(self) -> None:
        self._due = False
        self._publish(self.freshness)

    async def _position(self, followed: _Followed, view: NodeView) -> int:
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
                if not followed.no_position:
                    followed.no_position = True
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
            self._give_up(view.name)
        except (TridentError, OSError):
            self._give_up(view.name)
        return None

    async def _link(self, view: NodeView) -> NodeLink:
        kept = self._links.get(view.name)
        if kept is not None and kept[0] == view.generation:
            return kept[1]
        self._give_up(view.name)
        opened = await self._dial(view, self._config(), READ_TIMEOUT)
        link = NodeLink(view.name, opened, lambda: self._link_lost(view.name))
        self._links[view.name] = (view.generation, link)
        return link

    def _link_lost(self, name: str) -> None:
        """The node may have been restarted, and go on before where it was."""
        if (followed := self._copies.get(name)) is not None:
            followed.copy = self._unknown(followed)
            self._publish_soon()

    def _unknown(self, followed: _Followed) -> Copy:
        """It may have gone back until now."""
        return Copy(since_ns=self._clock.boot_ns(), weight=followed.copy.weight)

    def _give_up(self, name: str) -> None:
        """It doesn't answer on this link, or is another node now: what happens to it meanwhile is not seen."""
        if name in self._links:
            self._drop(name)
            self._link_lost(name)

    def _drop(self, name: str) -> None:
        if kept := self._links.pop(name, None):
            kept[1].close()
