"""The health of one node.

Owns the state and the two counts of consecutive observations. Pure: the moment is an argument, and
what happened is returned. Must not know what a probe is. Called by `controlplane.controller`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..topology.model import Health
from .table import FAILURES, PASSES, Count, Limit, Seen, row


@dataclass(frozen=True, slots=True)
class HealthMoved:
    """A node entered another state."""

    node: str
    before: Health
    after: Health
    cause: Seen
    at: float
    """Monotonic seconds."""


class NodeHealth:
    """One node's machine.

    Attributes:
        state, cause, since: the state, what led to it (None: nothing yet), and when, in monotonic seconds.
        passes, failures: consecutive ones; passes are counted anew in each state.
        last: the latest observation, None before the first.
    """

    def __init__(
        self,
        node: str,
        *,
        fail_after: int,
        recover_after: int,
        spacing: float,
        now: float,
        state: Health = Health.SUSPECT,
    ) -> None:
        """`spacing`, in seconds: see `observe`. A fresh node is suspect, and its very first pass makes it
        active, since there is no failure that it would have to make up for."""
        self.node = node
        self.state = state
        self.cause: Seen | None = None
        self.since = now
        self.last: Seen | None = None
        self.failures = 0
        self.passes = 0
        self._fresh = state is Health.SUSPECT
        self._counted_at = -float("inf")
        self.tune(fail_after=fail_after, recover_after=recover_after, spacing=spacing)

    def tune(self, *, fail_after: int, recover_after: int, spacing: float) -> None:
        """Take new thresholds; they apply from the next observation on."""
        self._limits = {Limit.ONCE: 1, Limit.FAIL_AFTER: fail_after, Limit.RECOVER_AFTER: recover_after}
        self._spacing = spacing

    @property
    def answering(self) -> bool:
        """Whether the latest observation was a pass."""
        return self.last in PASSES

    def observe(self, seen: Seen, now: float) -> list[HealthMoved]:
        """Take one observation; returns the moves that it caused, in order.

        A pass after a pass, or a failure after a failure, that comes less than `spacing` seconds after
        the last one counted is not counted again: evidence from workers causes extra probes, and a burst
        of them is one finding, not three. Raises ValueError for a pair without a row; nothing changes then.
        """
        step = row(self.state, seen)
        repeats = (self.last in PASSES and seen in PASSES) or (self.last in FAILURES and seen in FAILURES)
        self.last = seen
        if repeats and now - self._counted_at < self._spacing:
            return []
        self._counted_at = now
        if step.counts is Count.FAIL:
            self.failures += 1
            self.passes = 0
            self._fresh = False
        else:
            self.failures = 0
            if step.counts is Count.PASS:
                self.passes += 1
        moves: list[HealthMoved] = []
        # One observation may pass two thresholds: with fail_after = 1 a failure leads from active
        # through suspect to down. Passes start anew in each state, so they move one state at a time.
        while step.then is not None and self._reached(step.counts, step.limit):
            moves.append(self._move(step.then, seen, now))
            step = row(self.state, seen)
        return moves

    def _reached(self, count: Count, limit: Limit) -> bool:
        if count is Count.FAIL:
            return self.failures >= self._limits[limit]
        return self._fresh or self.passes >= self._limits[limit]

    def _move(self, after: Health, cause: Seen, now: float) -> HealthMoved:
        """The one door through which the state changes."""
        moved = HealthMoved(self.node, self.state, after, cause, now)
        self.state = after
        self.cause = cause
        self.since = now
        self.passes = 0
        self._fresh = False
        return moved
