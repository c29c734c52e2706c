"""The health of one node.

Owns the state and the counts of consecutive observations. Pure: the moment is an argument, and what happened is
returned. Must not know what a probe is. Called by `controlplane.controller`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from ..topology.model import TRIAL, Health
from .table import FAILURES, PASSES, Count, Layer, Limit, Row, Seen, row

STEP = 10
"""Percent by which the share of a copy grows once it has passed a whole round."""
MAX_DAMPING = 16
"""Times as long that a node which comes and goes has to prove itself, at most."""
HARD_SPACING = 0.2
"""Seconds between two pieces of hard evidence that are both counted."""
_NEVER = -float("inf")


@dataclass(frozen=True, slots=True)
class HealthMoved:
    """A node entered another state."""

    node: str
    before: Health
    after: Health
    cause: Seen
    at: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node is measured by; durations in seconds."""

    fail_after: int = 3
    """Consecutive failures until `down`."""
    recover_after: int = 2
    """Rounds: `suspect` to `active`, `down` to `recovering`."""
    confirm_after: int = 2
    """Rounds: `recovering` to `active`."""
    ramp: float = 10.0
    """How long a recovering node takes from its first share of work to all of it."""
    grace: float = 3.0
    """How long a primary that refuses connections may take to come back before it is down."""
    flap_window: float = 600.0
    """How long it is remembered that a node left service."""
    spacing: dict[Layer, float] = field(default_factory=dict)
    """Between two like observations of a layer that are both counted: evidence from workers causes extra probes, and a
    burst of them is one finding."""


class _Looks:
    """The observations of one layer."""

    __slots__ = ("counted_at", "last", "passes")

    def __init__(self) -> None:
        self.last: Seen | None = None
        self.counted_at = _NEVER
        self.passes = 0


class NodeHealth:
    """One node's machine.

    Attributes:
        state, cause, since: the state, what led to it (None: nothing yet), and when, in monotonic seconds.
        failures: consecutive ones, of the database.
        last: the latest observation of the database, None before the first.
        primary: whether it is the one that takes writes, which is set from outside.
    """

    def __init__(
        self,
        node: str,
        limits: Limits,
        *,
        now: float,
        layers: Collection[Layer] = (Layer.DATABASE,),
        state: Health = Health.SUSPECT,
    ) -> None:
        """`layers`: those that it is looked at in. A fresh node is suspect, and the very first pass of its database
        makes it active, since there is no failure that it would have to make up for."""
        self.node = node
        self.limits = limits
        self.state = state
        self.cause: Seen | None = None
        self.since = now
        self.failures = 0
        self.primary = False
        self._layers = {layer: _Looks() for layer in layers}
        self._fresh = state is Health.SUSPECT
        self._hard = False
        """Whether there was hard evidence in this run of failures, ..."""
        self._refused_at: float | None = None
        """... and when that had reached the limit."""
        self._ramp_at: float | None = None
        """When a recovering node had passed its first round."""
        self._left: deque[float] = deque(maxlen=MAX_DAMPING)
        """When it left service."""

    @property
    def last(self) -> Seen | None:
        return self._layers[Layer.DATABASE].last

    @property
    def answering(self) -> bool:
        """Whether the latest look at its database was a pass."""
        return self.last in PASSES

    @property
    def passes(self) -> int:
        """Rounds without a break, in this state."""
        return min(looks.passes for looks in self._layers.values())

    @property
    def halted(self) -> bool:
        """Whether it is known to be gone, by hard evidence, and not yet called down: a primary that may be back within
        the grace. Nothing is to be sent there."""
        return self._refused_at is not None and self.state is Health.SUSPECT

    def share(self, now: float) -> int:
        """Percent of its work that a copy is to get now."""
        if self.state is Health.RECOVERING:
            if self._ramp_at is None:
                return TRIAL
            steps = 100 // STEP
            done = int((now - self._ramp_at) / self.limits.ramp * steps) if self.limits.ramp else steps
            return min(100, STEP * (1 + done))
        return 100 if self.state is Health.ACTIVE else 0

    def damping(self, now: float) -> int:
        """Times as many rounds as usual that it takes to come back."""
        recent = sum(1 for moment in self._left if now - moment < self.limits.flap_window)
        return min(MAX_DAMPING, 1 << max(0, recent - 1))

    def set_layers(self, layers: Collection[Layer]) -> None:
        """Look at it in these layers from now on."""
        self._layers = {layer: self._layers.get(layer) or _Looks() for layer in layers}

    def observe(
        self, layer: Layer, seen: Seen, now: float, *, hard: bool = False, verified: bool = True
    ) -> list[HealthMoved]:
        """Take one observation; returns the moves that it caused, in order.

        `hard`: it was refused while every connection that was open broke, so it counts as a failure of the database,
        and however soon it comes. `verified`: whether a recovering node has been found to hold what it should.
        A like observation that comes less than the layer's spacing after the last one counted is not counted again.
        Raises ValueError for a pair without a row; nothing changes then.
        """
        step = row(self.state, seen)
        if (looks := self._layers.get(layer)) is None:
            return []
        repeats = (looks.last in PASSES and seen in PASSES) or (looks.last in FAILURES and seen in FAILURES)
        looks.last = seen
        if hard:
            self._layers[Layer.DATABASE].last = seen
        spacing = HARD_SPACING if hard else self.limits.spacing.get(layer, 0.0)
        if repeats and now - looks.counted_at < spacing:
            return []
        looks.counted_at = now
        self._count(looks, layer, step, hard, now)
        moves: list[HealthMoved] = []
        # One observation may pass two thresholds: with fail_after = 1 a failure leads from active
        # through suspect to down. Passes start anew in each state, so they move one state at a time.
        while step.then is not None and self._reached(step, layer, verified, now):
            moves.append(self._move(step.then, seen, now))
            step = row(self.state, seen)
        return moves

    def _count(self, looks: _Looks, layer: Layer, step: Row, hard: bool, now: float) -> None:
        database = layer is Layer.DATABASE
        if step.counts is Count.FAIL:
            if database or hard:
                self.failures += 1
            self._hard = self._hard or hard
            if self._hard and self.failures >= self.limits.fail_after and self._refused_at is None:
                self._refused_at = now
            self._fresh = False
        elif database:
            self.failures = 0
            self._hard = False
            self._refused_at = None
        if step.counts is Count.PASS:
            looks.passes += 1
            if self.state is Health.RECOVERING and self._ramp_at is None and self.passes:
                self._ramp_at = now
        elif step.counts is not Count.ALIVE:
            self._start_anew()

    def _start_anew(self) -> None:
        for looks in self._layers.values():
            looks.passes = 0

    def _reached(self, step: Row, layer: Layer, verified: bool, now: float) -> bool:
        limits = self.limits
        match step.limit:
            case Limit.ONCE:
                return True
            case Limit.FAIL_AFTER:
                waits = self.primary and self._refused_at is not None and now - self._refused_at < limits.grace
                return self.failures >= limits.fail_after and not waits
            case Limit.RECOVER_AFTER:
                if self._fresh:
                    return layer is Layer.DATABASE
                damped = self.damping(now) if self.state is Health.SUSPECT else 1
                return self.passes >= limits.recover_after * damped
            case Limit.CONFIRM_AFTER:
                return verified and self.passes >= limits.confirm_after * self.damping(now) and self.share(now) >= 100

    def _move(self, after: Health, cause: Seen, now: float) -> HealthMoved:
        """The one door through which the state changes."""
        moved = HealthMoved(self.node, self.state, after, cause, now)
        if self.state is Health.ACTIVE:
            self._left.append(now)
        self.state = after
        self.cause = cause
        self.since = now
        self._ramp_at = None
        self._fresh = False
        self._start_anew()
        return moved
