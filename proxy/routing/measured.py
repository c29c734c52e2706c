"""What is learned about a shape's class: from its own run times on replicas and columnar nodes, and from the planner.

In this order (hints and rules come before, the structure of the text behind; `sql.verdicts`):

    run times on both sides        the faster one
    on replicas only, long         analytic
    the planner's estimate         analytic from `routing.analytic_cost` on, else an ordinary read

Of a shape's runs on replicas those are timed that are long, and from the first such one on all are counted; the others
count as if they took no time. So its mean is at least what it is taken for here, and a read that is slow now and then
stays where it is.

Owns the arithmetic and when knowledge ends. Pure; times in seconds, moments in Unix seconds. Called by
`controlplane.measured`.
"""

from __future__ import annotations

import msgspec

READ, ANALYTIC = "read", "analytic"
RUNS = 3
"""So many make a mean."""
LASTS = 3600.0
"""Seconds after which a side that has not run any more is not believed."""
_MOST_RUNS = 64
"""Older runs count for half when there are so many."""


class Times(msgspec.Struct, frozen=True):
    """Runs of a shape on one side."""

    runs: int = 0
    total: float = 0.0
    """Seconds."""
    at: float = 0.0
    """The last one."""

    @property
    def mean(self) -> float:
        """Seconds; 0 where there are none."""
        return self.total / self.runs if self.runs else 0.0

    def plus(self, runs: int, total: float, now: float) -> Times:
        """The same with further runs."""
        runs, total = self.runs + runs, self.total + total
        while runs > _MOST_RUNS:
            runs, total = runs // 2, total / 2
        return Times(runs, total, now)


NONE = Times()


class Shape(msgspec.Struct):
    """One shape in one database."""

    database: str
    shape: str
    text: str
    """Without its constants."""
    replica: Times = NONE
    columnar: Times = NONE
    cost: float = -1.0
    """By the planner, in its own units; -1 is not known."""
    cost_at: float = 0.0

    def expire(self, now: float) -> bool:
        """Forget what is too old; whether nothing is left."""
        if now - self.replica.at > LASTS:
            self.replica = NONE
        if now - self.columnar.at > LASTS:
            self.columnar = NONE
        if now - self.cost_at > LASTS:
            self.cost = -1.0
        return not self.replica.runs and not self.columnar.runs and self.cost < 0

    def learned(self, long: float, costly: float) -> str:
        """READ or ANALYTIC; "" where the structure decides. `long`: `routing.analytic_time`; `costly`:
        `routing.analytic_cost`, 0 asks no planner."""
        replica, columnar = self.replica, self.columnar
        if replica.runs >= RUNS and columnar.runs >= RUNS:
            return ANALYTIC if columnar.mean <= replica.mean else READ
        if replica.runs >= RUNS and replica.mean >= long:
            return ANALYTIC
        if costly and self.cost >= 0:
            return ANALYTIC if self.cost >= costly else READ
        return ""
