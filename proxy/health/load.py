"""How much a node has to do, against its limits: with hysteresis, and a time for which a peak is nothing.

Owns what lies beyond a limit, and since when. Pure; figures and limits come in by name, moments in monotonic seconds.
Must not know how a figure is read, nor what follows. Called by `controlplane.controller`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Bound(NamedTuple):
    """A limit of one figure, in the figure's own unit."""

    out: float
    """Beyond it the node has too much to do; 0 is no limit."""
    back: float
    """Below it that is over."""
    dwell: float = 0.0
    """Seconds for which it has to be beyond `out`."""


class LoadGate:
    """Of one node."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """When a figure went beyond its limit."""
        self.beyond: dict[str, float] = {}
        """Figures that count as too much, as last read."""

    def observe(self, figures: Mapping[str, float], bounds: Mapping[str, Bound], now: float) -> Mapping[str, float]:
        """One reading. A figure that could not be read stays what it was. Returns `beyond`."""
        for name, bound in bounds.items():
            value = figures.get(name)
            if not bound.out:
                self._forget(name)
            elif value is not None:
                self._look(name, value, bound, now)
        for name in [name for name in self.beyond if name not in bounds]:
            self._forget(name)
        return self.beyond

    def _look(self, name: str, value: float, bound: Bound, now: float) -> None:
        if name in self.beyond:
            if value < bound.back:
                self._forget(name)
            else:
                self.beyond[name] = value
        elif value <= bound.out:
            self._since.pop(name, None)
        elif now - self._since.setdefault(name, now) >= bound.dwell:
            self.beyond[name] = value

    def _forget(self, name: str) -> None:
        self._since.pop(name, None)
        self.beyond.pop(name, None)
