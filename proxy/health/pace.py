"""How often nodes are probed, and how long their probes take.

`ProbeTimes` sums the probes of one node up, for an hour each, in a form that the history keeps and `tune` reads
back. Owns that form. Pure: moments are arguments, in monotonic seconds. Called by `controlplane.probes` and
`controlplane.controller`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from .table import Seen

MIN_GAP = 0.1
"""Seconds between the starts of two probes of a node, whatever evidence comes in."""
JITTER = 0.1
"""Part of the interval by which a start may be moved, so that probes of many proxies don't line up."""
TELL_EVERY = 3600.0
"""Seconds that are summed up together."""
GRAIN = 1.05
"""Times that differ by less than this factor are counted as one, as the longer of them."""
SHORTEST = 1e-5
"""Seconds; what is shorter is counted as this. Up to a minute that makes 320 counts."""

_TEXT = re.compile(r"count (\d+), timeouts (\d+), p50 ([\d.]+) ms, p99 ([\d.]+) ms, max ([\d.]+) ms", re.ASCII)


@dataclass(frozen=True, slots=True)
class Times:
    """How long the probes of a node took. Seconds, measured by the proxy from the first packet to the last answer."""

    count: int
    """Probes that were answered; the times are those of these."""
    timeouts: int
    """Probes that weren't answered in time: how long they would have taken is not known."""
    p50: float
    p99: float
    longest: float

    def __str__(self) -> str:
        p50, p99, longest = (f"{seconds * 1000:.2f}" for seconds in (self.p50, self.p99, self.longest))
        return f"count {self.count}, timeouts {self.timeouts}, p50 {p50} ms, p99 {p99} ms, max {longest} ms"


def parse_times(text: str) -> Times:
    """What `str` of it gave; ValueError for another text."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError("not the times of probes")
    p50, p99, longest = (float(part) / 1000 for part in match.groups()[2:])
    return Times(int(match[1]), int(match[2]), p50, p99, longest)


class ProbeTimes:
    """Of one node, since they were last told."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._counts: Counter[int] = Counter()
        self._longest = 0.0
        self._timeouts = 0

    def note(self, seen: Seen, seconds: float, now: float) -> Times | None:
        """Take one probe. Once an hour the times, if there are any; then it begins anew.

        Those of other probes say nothing: a refusal is quicker than an answer.
        """
        if self._since is None:
            self._since = now
        if seen is Seen.PASS:
            self._counts[math.ceil(math.log(max(1.0, seconds / SHORTEST), GRAIN))] += 1
            self._longest = max(self._longest, seconds)
        elif seen is Seen.TIMEOUT:
            self._timeouts += 1
        if now - self._since < TELL_EVERY:
            return None
        self._since = now
        count = self._counts.total()
        times = Times(count, self._timeouts, self._within(0.5), self._within(0.99), self._longest) if count else None
        self._begin()
        return times

    def _within(self, share: float) -> float:
        """Seconds within which this share of the probes was answered."""
        left = math.ceil(share * self._counts.total())
        for grain in sorted(self._counts):
            left -= self._counts[grain]
            if left <= 0:
                return min(self._longest, SHORTEST * GRAIN**grain)
        return self._longest
