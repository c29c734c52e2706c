"""One node as it is looked at: whether it can be connected to, what it says, and how much it has to do.

Owns a node's paces, its addresses, the connection that is kept, and what was last found. What that means for its health
and for the group is the word of `controller`, which makes these and is told.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..clock import Clock
from ..config.schema import Config, Node
from ..errors import TridentError
from ..health.judge import Facts
from ..health.load import Bound, LoadGate
from ..health.machine import STEP, Limits, NodeHealth
from ..health.pace import ProbeTimes
from ..health.table import Layer, Seen
from ..log import get_logger
from ..topology.model import Health, Role
from ..topology.snapshot import Address, Drain, NodeView
from . import drains
from .link import Dial, NodeLink
from .probes import Answer, Pace, knock, probe, weigh
from .resolve import Resolver
from .tasks import Tasks

RAPID = 0.25
"""Seconds between connects to a node whose connections all broke."""
CAUSES = (Layer.DATABASE, Layer.NETWORK, Layer.LOAD)
"""What is shown first of what is wrong."""
LOOKS = 5
"""Observations of a node that are written down when its health moves."""

_log = get_logger("controller")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all nodes have in common."""

    config: Callable[[], Config]
    clock: Clock
    rng: random.Random
    dial: Dial
    resolver: Resolver
    tasks: Tasks
    probed: Callable[[Watched, Answer], None]
    """A probe has ended."""
    knocked: Callable[[Watched, Seen, bool], None]
    """So has a connect; whether what it found is hard evidence."""
    weighed: Callable[[Watched, str], None]
    """Its load was read: what is beyond a limit, in words, or ""."""


def limits(config: Config) -> Limits:
    """What the health of nodes is measured by."""
    health = config.health
    return Limits(
        fail_after=health.fail_after,
        recover_after=health.recover_after,
        confirm_after=health.confirm_after,
        ramp=health.ramp,
        grace=health.primary_restart_grace,
        flap_window=health.flap_window,
        spacing={
            Layer.NETWORK: min(health.network_interval, health.interval) / 2,
            Layer.DATABASE: health.interval / 2,
            Layer.LOAD: _load_interval(config) / 2,
        },
    )


def bounds(config: Config, role: Role) -> dict[str, Bound]:
    """What a node of this role should have to do at most."""
    load = config.load
    primary = role is Role.PRIMARY
    cpu = (load.primary_cpu_out, load.primary_cpu_in) if primary else (load.cpu_out, load.cpu_in)
    return {
        "connections": Bound(load.connections_out, load.connections_in, load.dwell),
        "transactions": Bound(load.transactions_out if primary else 0, load.transactions_in, load.dwell),
        "locks": Bound(load.locks_out, load.locks_in, load.dwell),
        "oldest": Bound(load.oldest_out, load.oldest_in, load.dwell),
        "cpu": Bound(*cpu, load.dwell),
        "memory": Bound(load.memory_out, load.memory_in, load.dwell),
    }


def _load_interval(config: Config) -> float:
    return config.load.interval or config.health.interval


class Watched:
    """One node: its settings, what it last said, and its health. Looked at between `start` and `stop`."""

    def __init__(
        self, name: str, settings: Node, around: Surroundings, before: NodeView | None, generation: int = 0
    ) -> None:
        """`before` is how an earlier controller saw it."""
        same = before is not None and (before.host, before.port) == (settings.host, settings.port)
        self.name = name
        self.settings = settings
        self._around = around
        self.health = self._new_health(before.health if before is not None and same else Health.SUSPECT)
        self.generation = generation
        self.drain: Drain | None = None
        self.role = Role.COLUMNAR if settings.role == "columnar" else Role.UNKNOWN
        self.addresses: tuple[Address, ...] = ()
        self.logins = ""
        if before is not None:
            self.generation = before.generation if same else before.generation + 1
            self.drain = before.drain
        if before is not None and same:
            self.addresses = before.addresses
            self.logins = before.logins
            if settings.role in ("auto", before.role):
                self.role = before.role
        self.answer: Answer | None = None
        """The last answer that was a pass."""
        self.errors = dict.fromkeys(Layer, "")
        """What is wrong by the last look in each layer."""
        self.looks: deque[str] = deque(maxlen=LOOKS)
        """What was seen last."""
        self.probes = 0
        self.failures = 0
        self.times = ProbeTimes()
        self.spared = False
        """Whether it has too much to do, and serves for want of others."""
        self._kept: NodeLink | None = None
        """The connection of the last probe that was answered: as long as it is open the server lives."""
        self._load = LoadGate()
        self._dying = False
        """The last connect failed, and what had been open broke: it is looked at quickly until that is clear."""
        self._paces = {
            Layer.DATABASE: self._pace(self._probe, lambda config: config.health.interval),
            Layer.NETWORK: self._pace(self._knock, self._network_interval),
            Layer.LOAD: self._pace(self._weigh, _load_interval),
        }
        self._running: list[asyncio.Task[Any]] = []

    # What it is.

    @property
    def removed(self) -> bool:
        """Whether it is no longer configured, and only there for what is still open on it."""
        return self.drain is not None and self.drain.cause == drains.REMOVED

    @property
    def error(self) -> str:
        """What is wrong with it, or ""."""
        return next(filter(None, (self.errors[layer] for layer in CAUSES)), "")

    def view(self) -> NodeView:
        return NodeView(
            name=self.name,
            host=self.settings.host,
            port=self.settings.port,
            role=self.role,
            health=self.health.state,
            share=self.share if self.health.state is Health.RECOVERING else 100,
            addresses=self.addresses,
            max_connections=self.settings.max_connections,
            generation=self.generation,
            logins=self.logins,
            drain=self.drain,
        )

    @property
    def share(self) -> int:
        """Percent of its work that it is to get."""
        return self.health.share(self._around.clock.now())

    def facts(self) -> Facts:
        return Facts(
            name=self.name,
            wanted=self.settings.role,
            role=self.role,
            health=self.health.state,
            answering=self.health.answering,
            system=self.answer.system if self.answer else "",
            timeline=self.answer.timeline if self.answer else 0,
        )

    def start_health_anew(self) -> None:
        """It has to show that it is fit; looks that have begun count no more."""
        self.health = self._new_health()
        self.looks.clear()

    def _new_health(self, state: Health = Health.SUSPECT) -> NodeHealth:
        around = self._around
        layers = (Layer.NETWORK, Layer.DATABASE)
        return NodeHealth(self.name, limits(around.config()), now=around.clock.now(), layers=layers, state=state)

    # Looks.

    def start(self) -> None:
        """Look at it, in each layer at its pace, until `stop`."""
        for layer, pace in self._paces.items():
            self._running.append(self._around.tasks.start(pace.run(), f"{layer} of {self.name}"))

    def stop(self) -> None:
        for task in self._running:
            task.cancel()
        self._let_go()

    def hurry(self) -> None:
        """Look at it now."""
        for pace in self._paces.values():
            pace.hurry()

    def _pace(self, look: Callable[[], Awaitable[None]], interval: Callable[[Config], float]) -> Pace:
        return Pace(look, lambda: interval(self._around.config()), self._around.rng)

    def _network_interval(self, config: Config) -> float:
        """A node that is on its way down, or back, is looked at more often."""
        usual = config.health.network_interval
        if self._dying:
            return min(RAPID, usual)
        if self.health.state is Health.RECOVERING:
            return min(max(RAPID, config.health.ramp * STEP / 100), usual)
        return usual

    def _keep(self, link: NodeLink) -> None:
        """Hold this connection in place of the one before. When it breaks, the node is looked at."""
        self._let_go()
        self._kept = link
        link.on_lost = self.hurry

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def _probe(self) -> None:
        around = self._around
        config = around.config()
        # With an address in hand a slow resolver takes little of the probe's time.
        patience = config.health.timeout / (4 if self.addresses else 1)
        found = await around.resolver.resolve(self.settings.host, self.settings.port, patience)
        if found and found != self.addresses:
            if self.addresses and not set(found) & set(self.addresses):
                _log.info("address_changed", node=self.name, addresses=[address.host for address in found])
                self.generation += 1
            self.addresses = found
        health = self.health
        columnar = self.settings.role == "columnar"
        answer = await probe(self.view(), config, around.dial, columnar=columnar, keep=self._keep)
        if self.health is not health:
            return
        around.probed(self, answer)
        if answer.seen is Seen.PASS:
            # A login is a connect too: each costs the node a process.
            around.knocked(self, Seen.PASS, False)
            self._paces[Layer.NETWORK].put_off()

    async def _knock(self) -> None:
        if not self.addresses:
            return  # nothing is known of it before its name is
        health, settings = self.health, self._around.config().health
        seen = await knock(self.view(), min(settings.timeout, settings.network_interval))
        if self.health is not health:
            return
        # A server that has died takes all its connections along; one that lives and takes no more keeps them.
        broke = seen in (Seen.REFUSED, Seen.RESET) and self._kept is not None and self._kept.broken
        self._around.knocked(self, seen, broke and seen is Seen.REFUSED)
        self._dying = broke and health.state is not Health.DOWN
        if seen is not Seen.PASS and not broke and health.answering:
            self._paces[Layer.DATABASE].hurry()

    async def _weigh(self) -> None:
        health, link, config = self.health, self._kept, self._around.config()
        # Where nobody may log in, load is no part of its health.
        health.set_layers((Layer.NETWORK, Layer.DATABASE) if link is None else tuple(Layer))
        if link is None or link.broken:
            return
        try:
            figures = await weigh(link, config.load.query, config.health.timeout)
        except (TimeoutError, TridentError):
            # That one session hangs says nothing of the node, but it is worth a look.
            if self._kept is link:
                self._let_go()
                self._paces[Layer.DATABASE].hurry()
            return
        if self.health is not health:
            return
        limit = bounds(config, self.role)
        beyond = self._load.observe(figures, limit, self._around.clock.now())
        words = (f"{name} {value:.4g} (limit {limit[name].out:g})" for name, value in beyond.items())
        self._around.weighed(self, ", ".join(words))
