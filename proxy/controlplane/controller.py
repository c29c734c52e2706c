"""The controller: looks at the nodes, draws the picture, publishes it.

Each node is looked at by tasks of its own (`watch.Watched`); each result goes through `_saw`, which moves the
node's health, judges the group and publishes a snapshot if anything in it changed. Nothing here waits
for more than one node: the first picture is published as soon as the primary is known, or each node was
looked at once. A controller that is started after another one goes on from what that one published.

Owns the list of nodes and their facts; rules are in `health`, the tables in `topology.compile`, workers
in `publish`. Called by `run_controller`, which hands it to `admin` as a view.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..clock import Clock
from ..config.diff import diff
from ..config.schema import Config, Node
from ..health.judge import Verdict, judge, role_of
from ..health.table import PASSES, Layer, Seen
from ..health.verify import HIDDEN, objection
from ..ipc.messages import Counters, Home, KnownHomes, Learned, Measured, NeedCatalogue, Suspicion
from ..ipc.paths import RuntimePaths
from ..log import get_logger
from ..topology.compile import compile_snapshot, content
from ..topology.model import Health, Role
from ..topology.snapshot import Drain, NodeView, Snapshot
from . import drains
from .catalogues import Catalogues, DialDatabase
from .freshness import Sampler
from .history import Event, History
from .homes import Homes
from .link import Dial
from .measured import MeasuredShapes
from .probes import Answer
from .publish import Kept, Publisher
from .resolve import Resolver
from .seen import SeenShapes
from .shapes import Shapes
from .tasks import Tasks
from .watch import Surroundings, Watched, limits

_log = get_logger("controller")


class Controller:
    """One per proxy. Between `start` and `stop` it is also the view that `admin` reads."""

    def __init__(
        self,
        config: Config,
        *,
        workers: int,
        instance: int,
        paths: RuntimePaths,
        dial: Dial,
        dial_database: DialDatabase,
        clock: Clock,
        rng: random.Random,
        resolver: Resolver | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._resolver = resolver or Resolver()
        self._tasks = Tasks()
        self._around = Surroundings(
            config=lambda: self._config,
            clock=clock,
            rng=rng,
            dial=dial,
            resolver=self._resolver,
            tasks=self._tasks,
            probed=self._probed,
            knocked=self._knocked,
            weighed=self._weighed,
        )
        self._nodes: dict[str, Watched] = {}
        self._was_primary = ""
        self._verdict = Verdict()
        self._publisher = Publisher(
            paths=paths,
            workers=workers,
            instance=instance,
            config=lambda: self._config,
            on_suspicion=self._suspected,
            on_counters=self._counted,
            on_need=self._needed,
            on_need_catalogue=self._needed_catalogue,
            on_learned=self._learned,
            on_measured=self._noted,
            on_need_homes=self._needed_homes,
            homes=self._known_homes,
            clock=clock,
        )
        self._sampler = Sampler(
            lambda: self.snapshot, lambda: self._config, dial, self._publisher.publish_freshness, clock, self._tasks
        )
        self._catalogues = Catalogues(
            lambda: self.snapshot,
            lambda: self._config,
            dial_database,
            self._publisher.publish_names,
            clock,
            self._tasks,
        )

        self._shapes = Shapes(paths.shapes, self._publisher.publish_names, clock)
        self._measured = MeasuredShapes(paths.measured, lambda: self._config, self._publisher.publish_names, clock)
        self._homes = Homes(paths.homes, lambda: self.snapshot, lambda: self._config, self._publisher.publish_names)
        self._seen = SeenShapes(paths.shapes_seen, self._publisher.report, clock)
        file = config.history.file
        self._history = History(Path(file) if file else paths.history, config.history.keep)

    # The view for `admin`.

    @property
    def config(self) -> Config:
        return self._config

    @property
    def snapshot(self) -> Snapshot | None:
        return self._publisher.snapshot

    @property
    def counters(self) -> Mapping[int, Counters]:
        return self._publisher.counters

    def nodes(self) -> list[dict[str, Any]]:
        """One row a node; keys as in `admin.view.ControllerView.nodes`."""
        return [self._row(node) for node in self._nodes.values()]

    def shapes(self) -> list[dict[str, Any]]:
        """One row a shape; keys as in `admin.view.ControllerView.shapes`."""
        return [msgspec.structs.asdict(shape) for shape in self._shapes.all()]

    async def shapes_seen(self) -> list[dict[str, Any]]:
        """One row a shape; keys as in `admin.view.ControllerView.shapes_seen`."""
        await self._seen.gather()
        return [msgspec.structs.asdict(shape) for shape in self._seen.all()]

    def shapes_measured(self) -> list[dict[str, Any]]:
        """One row a shape; keys as in `admin.view.ControllerView.shapes_measured`."""
        return [
            {
                "database": shape.database,
                "shape": shape.shape,
                "class": learned,
                "replica_runs": shape.replica.runs,
                "replica_seconds": shape.replica.mean,
                "columnar_runs": shape.columnar.runs,
                "columnar_seconds": shape.columnar.mean,
                "cost": shape.cost if shape.cost >= 0 else None,
                "text": shape.text,
            }
            for shape, learned in self._measured.all()
        ]

    def forget_shapes(self, shape: str) -> int:
        """As in `admin.view.ControllerView.forget_shapes`."""
        return self._shapes.forget(shape) + self._measured.forget(shape)

    async def history(self, since: float, node: str, kind: str, limit: int) -> list[dict[str, Any]]:
        """One row an event; keys as in `admin.view.ControllerView.history`."""
        found = await asyncio.to_thread(self._history.find, since=since, node=node, kind=kind, limit=limit)
        return [asdict(event) for event in found]

    def commanded(self, command: str, who: str) -> None:
        """As in `admin.view.ControllerView.commanded`."""
        self._happened("command", after=command, who=who)

    def drain(self, node: str, seconds: float | None) -> None:
        """As in `admin.view.ControllerView.drain`."""
        watched = self._nodes[node]
        drains.check_drain(watched.view(), self.snapshot)
        self._empty(watched, drains.COMMAND, seconds)
        self._judge()

    def undrain(self, node: str) -> None:
        """As in `admin.view.ControllerView.undrain`."""
        watched = self._nodes[node]
        drains.check_undrain(watched.view())
        self._move_drain(watched, None, drains.COMMAND)
        self._verify(watched, "undrain")

    def reconnect(self, node: str) -> None:
        """As in `admin.view.ControllerView.reconnect`."""
        watched = self._nodes[node]
        watched.generation += 1
        self._verify(watched, "reconnect")

    def _happened(self, kind: str, **facts: str) -> None:
        self._history.note(Event(self._clock.wall(), kind, **facts))

    async def report(self, kind: str) -> list[dict[str, Any]]:
        return await self._publisher.report(kind)

    # Life.

    async def start(self) -> None:
        """Begin to probe, and to serve workers; OSError if the runtime directory can't be used."""
        self._history.start()
        self._happened("process", after="started", cause="controller")
        self._shapes.load()
        self._homes.load()
        self._seen.load()
        self._measured.load()
        kept = self._publisher.last_kept()
        if kept is not None:
            self._was_primary = kept.was_primary
        for name, settings in self._config.nodes.items():
            self._watch(name, settings, _as_kept(kept, name))
        if kept is not None:
            for name, view in kept.snapshot.nodes.items():
                if name not in self._nodes:  # work may be open there
                    role: Literal["auto", "columnar"] = "columnar" if view.role is Role.COLUMNAR else "auto"
                    gone = Node(host=view.host, port=view.port, role=role)
                    self._empty(self._watch(name, gone, view), drains.REMOVED)
            self._sampler.topology_changed(None, kept.snapshot)
            self._publisher.publish(kept.snapshot, self._was_primary)
        await self._publisher.start()
        self._tasks.start(self._sampler.run(), "freshness")
        self._tasks.start(self._seen.run(), "shapes seen")
        self._tasks.start(self._measured.run(), "shapes measured")

    async def stop(self) -> None:
        await self._tasks.stop()
        for node in self._nodes.values():
            node.stop()
        self._seen.keep()
        await self._publisher.stop()
        self._resolver.stop()
        self._happened("process", before="started", after="stopped", cause="controller")
        await asyncio.to_thread(self._history.stop)

    def reload(self, config: Config, who: str) -> None:
        """Take a new configuration, by whose wish; settings that need a restart are logged and keep their old effect
        in the processes that read them."""
        changes = list(diff(self._config, config))
        for change in changes:
            _log.info("setting_changed", setting=change.key, old=change.old, new=change.new, restart=change.restart)
            self._happened("config", before=str(change.old), after=str(change.new), cause=change.key, who=who)
        self._history.keep = config.history.keep
        self._config = config
        self._measured.judge()
        for name, node in list(self._nodes.items()):
            settings = config.nodes.get(name)
            if settings is None:
                self._empty(node, drains.REMOVED)
            elif node.removed or (settings.host, settings.port, settings.role) != (
                node.settings.host,
                node.settings.port,
                node.settings.role,
            ):
                self._unwatch(node)
                anew = self._watch(name, settings, None, generation=node.generation + 1)
                anew.drain = None if node.removed else node.drain
            else:
                node.settings = settings
                node.health.limits = limits(config)
        for name, settings in config.nodes.items():
            if name not in self._nodes:
                self._watch(name, settings, None)
        self._publisher.reconfigure(config)
        self._judge()
        for node in self._nodes.values():
            node.hurry()
        _log.info("reloaded", changes=len(changes))

    def _watch(self, name: str, settings: Node, before: NodeView | None, generation: int = 0) -> Watched:
        """Begin to look at a node; `before` is how the last controller saw it."""
        node = self._nodes[name] = Watched(name, settings, self._around, before, generation)
        node.start()
        return node

    def _unwatch(self, node: Watched) -> None:
        node.stop()
        self._nodes.pop(node.name, None)

    # The tick.

    def _weighed(self, node: Watched, error: str) -> None:
        """What a node has to do: `error` is what there is too much of."""
        spared = error and self._is_spared(node)
        if spared and not node.spared:
            _log.warning("overloaded_and_alone", node=node.name, load=error)
            self._happened("alarm", node=node.name, cause="loaded", seen=f"{error}; no other {node.role} is active")
        node.spared = bool(spared)
        if spared:
            error = ""
        self._saw(node, Layer.LOAD, Seen.LOADED if error else Seen.PASS, error)

    def _is_spared(self, node: Watched) -> bool:
        """Whether a copy serves whatever its load, since no other of its kind is active: nodes of one machine would
        else all go together."""
        others = [other for other in self._nodes.values() if other is not node and other.role is node.role]
        return node.role is not Role.PRIMARY and all(other.health.state is not Health.ACTIVE for other in others)

    def _knocked(self, node: Watched, seen: Seen, hard: bool) -> None:
        self._saw(node, Layer.NETWORK, seen, "", hard=hard)

    def _probed(self, node: Watched, answer: Answer) -> None:
        node.probes += 1
        seen = answer.seen
        if times := node.times.note(seen, answer.seconds, self._clock.now()):
            self._happened("probe", node=node.name, seen=str(times))
        if seen in PASSES or seen is Seen.NO_WRITE:
            known = [other for other in self._nodes.values() if not other.removed]
            lone = sum(1 for other in known if other.settings.role != "columnar") == 1
            role, judged = role_of(node.settings.role, answer.in_recovery, lone)
            seen = seen if seen is Seen.NO_WRITE and judged in PASSES else judged
            if role is not Role.UNKNOWN:
                self._take_role(node, role)
            if answer.in_recovery is not None:
                node.answer = answer
            if answer.logins:
                self._take_logins(node, answer.logins)
        elif seen is not Seen.BUSY:
            node.failures += 1
        error = answer.error
        if seen is Seen.WRONG_ROLE:
            error = f'it is a {node.role}, the configuration says "{node.settings.role}"'
        if error and error != node.errors[Layer.DATABASE]:
            _log.warning("probe_failed", node=node.name, cause=seen, error=error)
        self._saw(node, Layer.DATABASE, seen, error)

    def _saw(self, node: Watched, layer: Layer, seen: Seen, error: str, *, hard: bool = False) -> None:
        """The one door through which observations reach a node's health."""
        node.errors[layer] = error
        if layer is Layer.DATABASE or seen is not Seen.PASS:
            node.looks.append(f"{layer} {seen}: {error}" if error else f"{layer} {seen}")
        now = self._clock.now()
        for move in node.health.observe(layer, seen, now, hard=hard, verified=not self._unverified(node)):
            level = _log.warning if move.after in (Health.DOWN, Health.SUSPECT) else _log.info
            level("health_changed", node=node.name, before=move.before, after=move.after, cause=move.cause)
            self._happened(
                "health",
                node=node.name,
                before=str(move.before),
                after=str(move.after),
                cause=str(move.cause),
                seen="; ".join(node.looks),
            )
        self._judge()

    def _unverified(self, node: Watched) -> str:
        """Why a copy that recovers can't be called active yet; "" if there is no reason. Without a primary there is
        nothing that it could be held against."""
        primary = self._nodes.get(self._verdict.primary)
        if node.health.state is not Health.RECOVERING or node.role is Role.PRIMARY or primary is None:
            return ""
        answer, told = node.answer, primary.answer
        copy = self._publisher.freshness.copies.get(node.name)
        return objection(
            node.role,
            receiver=answer.receiver if answer else HIDDEN,
            timeline=answer.timeline if answer else 0,
            primary_timeline=told.timeline if told else 0,
            within_lag=copy is not None and copy.weight > 0,
        )

    def _take_role(self, node: Watched, role: Role) -> None:
        if node.role is role:
            return
        if node.role is not Role.UNKNOWN:
            # Servers opened for the one role must not be used for the other.
            node.generation += 1
        _log.info("role_found", node=node.name, role=role, before=node.role)
        self._happened("role", node=node.name, before=str(node.role), after=str(role))
        node.role = role

    def _take_logins(self, node: Watched, mark: str) -> None:
        """Roles, their settings or passwords have changed: servers that logged in before don't count any more.

        The primary's word goes for all nodes, since a replica may not show all that it does. A replica's own
        mark then changes when it has replayed the change, so servers opened there before that go as well.
        """
        known, node.logins = node.logins, mark
        if known in ("", mark):
            return
        _log.info("logins_changed", node=node.name)
        for other in self._nodes.values() if node.role is Role.PRIMARY else (node,):
            other.generation += 1

    def _judge(self) -> None:
        """From all facts to a snapshot, published if it says anything new."""
        nodes = list(self._nodes.values())
        several = self._config.group.multi_writer
        facts = [node.facts() for node in nodes if drains.may_lead(node.view(), multi_writer=several)]
        verdict = judge(facts, self._was_primary, multi_writer=several)
        lead = self._nodes.get(verdict.primary)
        if lead is not None and lead.drain is not None:
            self._move_drain(lead, None, drains.PROMOTED)
        if verdict.alarm and verdict.alarm != self._verdict.alarm:
            _log.error("group_contradicts_itself", alarm=verdict.alarm)
            self._happened("alarm", seen=verdict.alarm)
        for name, reason in verdict.unfit.items():
            if self._verdict.unfit.get(name) != reason:
                _log.warning("node_unfit", node=name, reason=reason)
                self._happened("unfit", node=name, after="unfit", cause=reason)
        self._verdict = verdict
        before = self.snapshot
        # While the very first answers come in, a picture without a primary would only cause refusals.
        if before is None and not verdict.primary and not all(node.probes for node in nodes):
            return
        epoch = before.epoch if before else 0
        if verdict.primary and verdict.primary != self._was_primary:
            epoch += 1
            if demoted := self._nodes.get(self._was_primary):
                demoted.generation += 1
            _log.warning("primary_changed", before=self._was_primary, after=verdict.primary, epoch=epoch)
            self._happened("primary", before=self._was_primary, after=verdict.primary, seen=f"epoch {epoch}")
            self._was_primary = verdict.primary
        for node in nodes:
            node.health.primary = node.name == verdict.primary
        halted = any(node.health.primary and node.health.halted for node in nodes)
        after = compile_snapshot(
            [node.view() for node in nodes],
            primary="" if halted else verdict.primary,
            unfit=verdict.unfit,
            writers=verdict.writers,
            version=before.version + 1 if before else 1,
            epoch=epoch,
        )
        if before is not None and content(before) == content(after):
            return
        if self._sampler.topology_changed(before, after):
            self._publisher.publish_freshness(self._sampler.freshness)
        self._publisher.publish(after, self._was_primary)
        if before is not None and not set(after.columnar) <= set(before.columnar):
            self._measured.columnar_came()
        _log.info(
            "published",
            version=after.version,
            epoch=after.epoch,
            primary=after.primary,
            replicas=list(after.replicas),
            columnar=list(after.columnar),
        )

    # Nodes that are emptied, and those that have to show anew that they are fit.

    def _empty(self, node: Watched, cause: str, seconds: float | None = None) -> None:
        """It takes no new work from the next snapshot on."""
        before = node.drain
        if before is not None and before.cause == cause and (before.done or cause == drains.REMOVED):
            return
        seconds = self._config.group.drain_timeout if seconds is None else seconds
        if before is None:
            node.generation += 1  # what is idle there goes at once, the rest when it is given back
        self._move_drain(node, Drain(self._clock.boot_ns() + int(seconds * 1e9), cause), cause)

    def _counted(self) -> None:
        """A worker has said what it has: perhaps the last of a node."""
        snapshot = self.snapshot
        for node in list(self._nodes.values()):
            if node.drain is None or node.drain.done or snapshot is None:
                continue
            if drains.is_empty(node.name, snapshot.version, self._publisher.workers, self.counters):
                self._move_drain(node, Drain(node.drain.until_ns, node.drain.cause, done=True), node.drain.cause)
                if node.removed:
                    self._unwatch(node)
                self._judge()

    def _move_drain(self, node: Watched, drain: Drain | None, cause: str) -> None:
        """The one door through which a drain begins, goes on and ends."""
        before, after = (d.state if d is not None else "" for d in (node.drain, drain))
        node.drain = drain
        if before != after:
            _log.info("drain_changed", node=node.name, before=before, after=after, cause=cause)
            self._happened("drain", node=node.name, before=before, after=after, cause=cause)

    def _verify(self, node: Watched, cause: str) -> None:
        """Ask it now. A copy takes new work again when it has passed a probe that begins now; who takes writes stays
        in service."""
        snapshot = self.snapshot
        before = node.health.state
        if before is Health.ACTIVE and (snapshot is None or node.name not in snapshot.writers):
            node.start_health_anew()
            after = node.health.state
            _log.info("health_changed", node=node.name, before=before, after=after, cause=cause)
            self._happened("health", node=node.name, before=str(before), after=str(after), cause=cause)
        self._judge()
        node.hurry()

    def _needed(self, moment_ns: int, urgent: bool) -> None:
        """A worker has reads for which copies have to hold what was written before this moment."""
        self._sampler.need(moment_ns, urgent)

    def _needed_catalogue(self, need: NeedCatalogue) -> None:
        """A worker has to know what the names of a database mean."""
        if not need.version:
            self._shapes.tell(need.database)  # it has just begun
            self._measured.tell(need.database)
        self._catalogues.need(need)

    def _learned(self, learned: Learned) -> None:
        """A worker has seen a standby refuse a read."""
        self._shapes.learn(learned)

    def _noted(self, measured: Measured) -> None:
        """A worker has measured how long a shape takes."""
        self._measured.note(measured)

    def _needed_homes(self, wanted: list[Home]) -> None:
        """A worker has met names of `spread` services that have no node yet."""
        self._homes.need(wanted)

    def _known_homes(self) -> KnownHomes:
        return self._homes.all()

    def _suspected(self, suspicion: Suspicion) -> None:
        """A worker saw something: look at once. `read_only` (25006 from the primary) means that roles have
        moved, so everybody is asked."""
        if suspicion.what == "read_only":
            for node in self._nodes.values():
                if node.role is not Role.COLUMNAR:
                    node.hurry()
        elif suspicion.node in self._nodes:
            self._nodes[suspicion.node].hurry()

    def _lag(self, node: Watched) -> dict[str, Any]:
        """How far a copy in service is, as `admin.view.ControllerView.nodes` has it."""
        copy = self._publisher.freshness.copies.get(node.name)
        if copy is None or not copy.lsn:
            return {"lag_bytes": None, "lag_seconds": None, "weight": None}
        return {
            "lag_bytes": copy.lag_bytes,
            "lag_seconds": copy.lag_ms / 1000 if copy.lag_ms >= 0 else None,
            "weight": min(copy.weight, node.share),
        }

    def _row(self, node: Watched) -> dict[str, Any]:
        health = node.health
        cause = (
            self._verdict.unfit.get(node.name)
            or node.error
            or self._unverified(node)
            or str(health.cause or "not yet probed")
        )
        return {
            "name": node.name,
            "host": node.settings.host,
            "port": node.settings.port,
            "role": str(node.role),
            "health": str(health.state),
            "address": node.addresses[0].host if node.addresses else "",
            **self._lag(node),
            "since": self._clock.wall() - (self._clock.now() - health.since),
            "cause": f"{drains.in_words(node.drain)}; {cause}" if node.drain else cause,
            "drain": node.drain.state if node.drain else "",
            "drain_until": self._clock.wall() + (node.drain.until_ns - self._clock.boot_ns()) / 1e9
            if node.drain
            else 0,
            "probes": node.probes,
            "probe_failures": node.failures,
            "server_version": node.answer.version if node.answer else None,
        }


def _as_kept(kept: Kept | None, name: str) -> NodeView | None:
    """How the last controller saw a node. One that was active and yet not in service has to show again
    that it is fit."""
    view = kept.snapshot.nodes.get(name) if kept else None
    if view is not None and view.drain is not None and view.drain.cause == drains.REMOVED:
        view = msgspec.structs.replace(view, drain=None)  # it is configured again
    if kept is None or view is None or view.health is not Health.ACTIVE:
        return view
    in_service = (kept.snapshot.primary, *kept.snapshot.writers, *kept.snapshot.replicas, *kept.snapshot.columnar)
    return view if name in in_service else msgspec.structs.replace(view, health=Health.SUSPECT)
