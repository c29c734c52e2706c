"""How far a copy is behind, and whether it may serve: in seconds without trusting clocks, with hysteresis.

`Positions` remembers where the primary's WAL stood at which moment of the own clock. A copy's replay position
is looked up in it: no clock of a node counts, an idle primary makes no lag, and nothing is written for it.
`LagGate` turns lags into a share of reads: out at once beyond the limit, back in steps.

Pure; moments are boot_ns, positions are LSNs as integers. Called by `controlplane.freshness`.
"""

from __future__ import annotations

from bisect import bisect_right

MAX_POSITIONS = 4096
STEADY = 5
"""Readings below the lower limit until a copy that was out comes back."""
UNREADABLE = 3
"""Readings that fail until a copy is out."""
STEP = 10
"""Percent of its reads by which a copy comes back."""
STEP_SECONDS = 1.0


class Positions:
    """(moment, position): all that was committed on the primary before the moment lies under the position."""

    def __init__(self) -> None:
        self._moments: list[int] = []
        self._lsns: list[int] = []

    def note(self, moment_ns: int, lsn: int) -> None:
        """One more sample. A primary that came back without its unflushed WAL goes on at a lower position; what
        lies above is then said better by the new sample."""
        moments, lsns = self._moments, self._lsns
        if moments and moment_ns <= moments[-1]:
            return
        while lsns and lsns[-1] > lsn:
            lsns.pop()
            moments.pop()
        if len(lsns) > 1 and lsns[-2] == lsn:
            moments[-1] = moment_ns  # first and last of a time without writes are enough
            return
        if len(lsns) >= MAX_POSITIONS:
            half = MAX_POSITIONS // 2
            moments[:half] = moments[:half:2]
            lsns[:half] = lsns[:half:2]
        moments.append(moment_ns)
        lsns.append(lsn)

    def held_until(self, lsn: int) -> int:
        """The moment before which all that was committed has been replayed by who has replayed up to `lsn`;
        0 if none is known."""
        at = bisect_right(self._lsns, lsn)
        return self._moments[at - 1] if at else 0

    def behind_since(self, lsn: int) -> int | None:
        """The first moment at which the primary was seen beyond `lsn`; 0 if it was so from the beginning (nobody
        knows since when), None if it never was."""
        at = bisect_right(self._lsns, lsn)
        if at == len(self._lsns):
            return None
        return self._moments[at] if at else 0

    def clear(self) -> None:
        """Another primary: positions mean something else."""
        self._moments.clear()
        self._lsns.clear()


class LagGate:
    """Whether one copy is within its lag limits.

    A new one is out until its lag is known, and then in as a whole: only one that has been beyond its limit
    comes back in steps.

    Attributes:
        weight: its share of reads in percent; 0 is out.
    """

    __slots__ = ("_bad", "_good", "_seen", "_stepped", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self._seen = False
        self._good = 0
        self._bad = 0
        self._stepped = 0.0

    def observe(self, lag: float | None, *, out: float, back: float, now: float) -> int:
        """One reading: `lag` in seconds, None if the copy couldn't be read. Limits in seconds: beyond `out` it is
        out, below `back` it may come back. Returns the weight."""
        if lag is None:
            self._bad += 1
            self._good = 0
            if self._bad >= UNREADABLE:
                self.weight = 0
            return self.weight
        self._bad = 0
        if lag > out:
            self._seen = self._seen or self.weight > 0
            self.weight = self._good = 0
        elif self.weight == 0:
            if not self._seen:
                self._seen = True
                self.weight = 100
            elif lag < back:
                self._good += 1
                if self._good >= STEADY:
                    self.weight = STEP
                    self._stepped = now
            else:
                self._good = 0
        elif self.weight < 100 and now - self._stepped >= STEP_SECONDS:
            self.weight = min(100, self.weight + STEP)
            self._stepped = now
        return self.weight
