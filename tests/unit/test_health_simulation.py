"""The health machine against a node that breaks and heals at random, on a clock of its own.

Each schedule is a seed: paces of the layers, faults and their times, jitter. Faults stop in the end; then the node has
to come back.
"""

from __future__ import annotations

import heapq
from collections import deque

import pytest

from proxy.health.machine import MAX_DAMPING, HealthMoved, Limits, NodeHealth
from proxy.health.table import FAILURES, PASSES, Layer, Seen
from proxy.testing import SeededRng
from proxy.topology.model import TRIAL, Health

ACTIVE, SUSPECT, DOWN, RECOVERING = Health.ACTIVE, Health.SUSPECT, Health.DOWN, Health.RECOVERING
EDGES = {
    (ACTIVE, SUSPECT),
    (ACTIVE, DOWN),
    (SUSPECT, ACTIVE),
    (SUSPECT, DOWN),
    (DOWN, RECOVERING),
    (RECOVERING, DOWN),
    (RECOVERING, ACTIVE),
}
FAULTY = 200.0
"""Seconds in which faults come and go."""
STUCK = (Seen.TIMEOUT, Seen.FAIL, Seen.STARTING, Seen.RESET)
PERIODS = {Layer.NETWORK: 2.0, Layer.DATABASE: 5.0, Layer.LOAD: 5.0}
JITTER = 0.1


class Schedule:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = SeededRng(seed)
        self.limits = Limits(
            fail_after=rng.randint(1, 4),
            recover_after=rng.randint(1, 3),
            confirm_after=rng.randint(1, 3),
            ramp=rng.choice((0.0, 10.0, 30.0)),
            grace=rng.choice((0.0, 3.0)),
            flap_window=rng.choice((0.0, 60.0, 600.0)),
            spacing={layer: period / 2 for layer, period in PERIODS.items()},
        )
        self.node = NodeHealth("n", self.limits, now=0.0, layers=PERIODS)
        self.node.primary = rng.random() < 0.3
        self.fault = ""
        self.changes_at = rng.uniform(0, 30)
        self.verified_from = 0.0
        self.failures: deque[float] = deque()
        """Moments of what may count as failures in a row: of the database, and hard ones."""
        self.entered: list[float] = []
        """When it became active again."""
        self.now = 0.0

    def run(self) -> None:
        due = [(self.rng.uniform(0, period), layer) for layer, period in PERIODS.items()]
        heapq.heapify(due)
        while self.now < FAULTY + self.patience:
            self.now, layer = heapq.heappop(due)
            if self.now >= self.changes_at:
                self.break_or_heal()
            quick = self.look(layer)
            pace = 0.25 if quick else PERIODS[layer] * self.rng.uniform(1 - JITTER, 1 + JITTER)
            heapq.heappush(due, (self.now + pace, layer))
        assert self.node.state is ACTIVE, (self.rng, self.limits)
        self.check_flapping()

    @property
    def patience(self) -> float:
        """How long it may take to come back after the last fault: rounds at the slowest pace, damped, and the ramp."""
        limits = self.limits
        rounds = limits.fail_after + limits.recover_after * MAX_DAMPING + limits.confirm_after * MAX_DAMPING
        return 5.0 * (1 + JITTER) * (rounds + 3) + limits.ramp

    def break_or_heal(self) -> None:
        rng = self.rng
        if self.now >= FAULTY:
            self.fault, self.changes_at = "", float("inf")
            self.verified_from = min(self.verified_from, self.now)
            return
        self.fault = rng.choice(("", "", "dead", "hung", "stuck", "loaded", "no_write", "flaky", "unverified", "busy"))
        if self.fault == "unverified":
            self.fault, self.verified_from = "", min(FAULTY, self.now + rng.uniform(0, 60))
        self.changes_at = self.now + rng.choice((1.0, 10.0, 60.0)) * rng.random()

    def look(self, layer: Layer) -> bool:
        """One observation; whether the next one comes quickly."""
        seen, hard = self.found(layer)
        node, before = self.node, self.node.state
        if seen in FAILURES and (layer is Layer.DATABASE or hard):
            self.failures.append(self.now)
        elif layer is Layer.DATABASE:
            self.failures.clear()
        share = node.share(self.now)
        moves = node.observe(layer, seen, self.now, hard=hard, verified=self.now >= self.verified_from)
        for moved in moves:
            self.check(moved, layer, seen)
        self.check_share(share, before, bool(moves))
        return hard and (node.halted or node.state is not DOWN)

    def found(self, layer: Layer) -> tuple[Seen, bool]:
        fault = self.fault
        if fault == "flaky":
            fault = self.rng.choice(("", "", "hung"))
        if fault == "dead":
            return Seen.REFUSED, layer is Layer.NETWORK
        if fault == "hung":
            return Seen.TIMEOUT, False
        if fault == "stuck" and layer is not Layer.NETWORK:
            return self.rng.choice(STUCK), False
        if layer is Layer.DATABASE:
            return {"no_write": Seen.NO_WRITE, "busy": Seen.BUSY}.get(fault, Seen.PASS), False
        return Seen.LOADED if fault == "loaded" and layer is Layer.LOAD else Seen.PASS, False

    def check(self, moved: HealthMoved, layer: Layer, seen: Seen) -> None:
        told = (self.rng, self.limits, moved)
        assert (moved.before, moved.after) in EDGES, told
        if moved.after is DOWN:
            assert seen in FAILURES, told
            if moved.before is not RECOVERING:
                assert len(self.failures) >= self.limits.fail_after, told
        if moved.after is ACTIVE:
            assert seen in PASSES, told
            self.entered.append(self.now)
            if moved.before is RECOVERING:
                assert self.now >= self.verified_from, told
        if moved.after is RECOVERING:
            assert seen in PASSES, told

    def check_share(self, before: int, state: Health, moved: bool) -> None:
        node, now = self.node, self.now
        share = node.share(now)
        if node.state in (DOWN, SUSPECT):
            assert share == 0
        elif node.state is ACTIVE:
            assert share == 100
            if moved and state is RECOVERING and self.limits.ramp:
                assert before >= 90  # it had come back by steps
        elif moved:
            assert share == TRIAL
        else:
            assert share >= before
        if node.halted:
            assert node.state is SUSPECT

    def check_flapping(self) -> None:
        """Within a window each return takes twice as many rounds as the one before."""
        window = self.limits.flap_window
        fewest = min(self.limits.recover_after, self.limits.confirm_after)
        for first in range(len(self.entered)):
            within = [at for at in self.entered[first:] if at - self.entered[first] < window]
            # The k-th return takes 2^(k-1) rounds or more, each the spacing at least.
            rounds = sum(fewest * min(MAX_DAMPING, 1 << k) - 1 for k in range(len(within) - 2))
            took = rounds * PERIODS[Layer.DATABASE] / 2
            assert len(within) < 3 or took <= within[-1] - within[0], (self.rng, within)


def test_schedules() -> None:
    for seed in range(10_000):
        Schedule(seed).run()


@pytest.mark.full
def test_many_schedules() -> None:
    for seed in range(10_000, 110_000):
        Schedule(seed).run()
