"""The controller's side of all workers: who is there, what they are told, what they report.

Owns the channels, the latest counters, the permits and the last snapshot kept on disk for the next
controller. Must not decide about nodes. Called by `controlplane.controller`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec

from ..clock import Clock
from ..config.schema import Config
from ..ipc.channel import Channel, Server
from ..ipc.messages import (
    Ask,
    Counters,
    Drain,
    Fresh,
    GiveBack,
    Grant,
    Hello,
    Home,
    KnownCatalogue,
    KnownClasses,
    KnownHomes,
    KnownShapes,
    Learned,
    Measured,
    Message,
    NeedCatalogue,
    NeedFreshness,
    NeedHomes,
    Publish,
    Reconfigure,
    Report,
    ReportRequest,
    Setup,
    Suspicion,
)
from ..ipc.paths import RuntimePaths
from ..log import get_logger
from ..pool.permits import Broker, Granted
from ..topology.snapshot import Freshness, Snapshot

REPORT_TIMEOUT = 1.0
"""Seconds that workers have to send their rows."""
PERMIT_TICK = 0.05
"""Seconds between looks at permits while a worker is starved."""

_log = get_logger("publish")


class Kept(msgspec.Struct, frozen=True):
    """What outlives a controller in the runtime directory."""

    snapshot: Snapshot
    was_primary: str
    """The last primary, also while there is none."""


class Publisher:
    """All workers of one proxy."""

    def __init__(
        self,
        *,
        paths: RuntimePaths,
        workers: int,
        instance: int,
        config: Callable[[], Config],
        on_suspicion: Callable[[Suspicion], None],
        on_counters: Callable[[], None],
        on_need: Callable[[int, bool], None],
        on_need_catalogue: Callable[[NeedCatalogue], None],
        on_learned: Callable[[Learned], None],
        on_measured: Callable[[Measured], None],
        on_need_homes: Callable[[list[Home]], None],
        homes: Callable[[], KnownHomes],
        clock: Clock,
    ) -> None:
        self._paths = paths
        self.workers = workers
        self._instance = instance
        self._config = config
        self._on_suspicion = on_suspicion
        self._on_counters = on_counters
        self._on_need = on_need
        self._on_need_catalogue = on_need_catalogue
        self._on_learned = on_learned
        self._on_measured = on_measured
        self._on_need_homes = on_need_homes
        self._homes = homes
        self._clock = clock
        self._server = Server(self._received, self._lost)
        self._channels: dict[int, Channel] = {}
        self._broker = Broker(workers)
        self._tick: asyncio.TimerHandle | None = None
        self._reports: dict[int, _Pending] = {}
        self._report_id = 0
        self.snapshot: Snapshot | None = None
        self.freshness = Freshness()
        self.counters: dict[int, Counters] = {}

    async def start(self) -> None:
        await self._server.start(self._paths.controller)

    async def stop(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        await self._server.stop()

    def publish(self, snapshot: Snapshot, was_primary: str) -> None:
        """Replace the snapshot on all workers; those that wait for their first one get it now."""
        first = self.snapshot is None
        self.snapshot = snapshot
        self._keep(Kept(snapshot, was_primary))
        if first:
            for worker, channel in self._channels.items():
                self._set_up(worker, channel, None)
        else:
            self._broadcast(Publish(snapshot))

    def publish_freshness(self, freshness: Freshness) -> None:
        self.freshness = freshness
        self._broadcast(Fresh(freshness))

    def publish_names(self, known: KnownCatalogue | KnownShapes | KnownClasses | KnownHomes) -> None:
        """Tell all workers; one that comes later asks by itself, or is told when it joins."""
        self._broadcast(known)

    def reconfigure(self, config: Config) -> None:
        self._broadcast(Reconfigure(config))

    def drain(self, seconds: float) -> None:
        self._broadcast(Drain(seconds))

    def last_kept(self) -> Kept | None:
        """What the controller before this one published; None if there was none, or it can't be read."""
        try:
            return msgspec.msgpack.decode(self._paths.kept.read_bytes(), type=Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("kept_snapshot_unreadable", error=str(error))
            return None

    async def report(self, kind: str) -> list[dict[str, Any]]:
        """Rows of all workers, each with its `worker`; of those that answer within a second."""
        self._report_id += 1
        request = ReportRequest(self._report_id, kind)
        pending = _Pending({w for w, channel in self._channels.items() if channel.send(request)})
        if not pending.waiting_for:
            return []
        self._reports[request.id] = pending
        try:
            async with asyncio.timeout(REPORT_TIMEOUT):
                await pending.complete.wait()
        except TimeoutError:
            _log.warning("report_incomplete", kind=kind, workers=sorted(pending.waiting_for))
        finally:
            del self._reports[request.id]
        return pending.rows

    def _broadcast(self, message: Message) -> None:
        if self.snapshot is None:
            return
        for channel in self._channels.values():
            channel.send(message)

    def _keep(self, kept: Kept) -> None:
        new = self._paths.kept.with_suffix(".new")
        try:
            new.write_bytes(msgspec.msgpack.encode(kept))
            os.replace(new, self._paths.kept)
        except OSError as error:
            _log.warning("snapshot_not_kept", error=str(error))

    def _received(self, channel: Channel, message: Message) -> None:
        match message:
            case Hello():
                self._joined(channel, message)
            case Counters():
                if self._channels.get(message.worker) is channel:
                    self.counters[message.worker] = message
                    self._on_counters()
            case Suspicion():
                self._on_suspicion(message)
            case NeedFreshness():
                self._on_need(message.moment_ns, message.urgent)
            case Learned():
                self._on_learned(message)
            case Measured():
                self._on_measured(message)
            case NeedCatalogue():
                self._on_need_catalogue(message)
            case NeedHomes():
                self._on_need_homes(message.homes)
            case Ask() if message.worker in self._channels:
                self._grant(
                    self._broker.ask(message.worker, message.key, message.count, message.limit, self._clock.now())
                )
            case GiveBack() if message.worker in self._channels:
                self._grant(self._broker.give_back(message.worker, message.key, message.count, self._clock.now()))
            case Report():
                if pending := self._reports.get(message.id):
                    pending.add(message)
            case _:
                _log.warning("unexpected_message", message=type(message).__name__)

    def _joined(self, channel: Channel, hello: Hello) -> None:
        if not 0 <= hello.worker < self.workers:
            channel.close()
            return
        if old := self._channels.get(hello.worker):
            old.close()
        self._channels[hello.worker] = channel
        _log.info("worker_joined", worker=hello.worker, pid=hello.pid, again=hello.permits is not None)
        permits = self._broker.join(hello.worker, hello.permits)
        if self.snapshot is not None:
            self._set_up(hello.worker, channel, permits)

    def _set_up(self, worker: int, channel: Channel, permits: dict[str, int] | None) -> None:
        assert self.snapshot is not None
        channel.send(
            Setup(
                config=self._config(),
                snapshot=self.snapshot,
                instance=self._instance,
                workers=self.workers,
                board=str(self._paths.board),
                console=str(self._paths.console),
                datagrams=[str(self._paths.datagrams(w)) for w in range(self.workers)],
                permits=permits or {},
            )
        )
        channel.send(Fresh(self.freshness))
        homes = self._homes()
        if homes.homes:
            channel.send(homes)

    def _lost(self, channel: Channel) -> None:
        for worker, known in list(self._channels.items()):
            if known is channel:
                del self._channels[worker]
                self.counters.pop(worker, None)
                for pending in self._reports.values():
                    pending.give_up(worker)
                _log.info("worker_left", worker=worker, fault=channel.fault)

    def _grant(self, grants: list[Granted]) -> None:
        for grant in grants:
            if channel := self._channels.get(grant.worker):
                channel.send(Grant(grant.key, grant.permits))
        if self._tick is None and self._broker.hungry(self._clock.now()):
            self._tick = asyncio.get_running_loop().call_later(PERMIT_TICK, self._permit_tick)

    def _permit_tick(self) -> None:
        self._tick = None
        self._grant(self._broker.tick(self._clock.now()))


class _Pending:
    """A report that is being collected."""

    def __init__(self, waiting_for: set[int]) -> None:
        self.waiting_for = waiting_for
        self.rows: list[dict[str, Any]] = []
        self.complete = asyncio.Event()

    def add(self, report: Report) -> None:
        if report.worker in self.waiting_for:
            self.rows += [{**row, "worker": report.worker} for row in report.rows]
            self.give_up(report.worker)

    def give_up(self, worker: int) -> None:
        self.waiting_for.discard(worker)
        if not self.waiting_for:
            self.complete.set()
