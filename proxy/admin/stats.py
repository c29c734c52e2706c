"""The figures behind SHOW STATS and /metrics: sums over the workers, and averages over the last minute.

Owns the `Totals` of the process and a bounded history of them. Reads the controller's view when `sample` is
called (by `service`, once a second, and before each use); knows neither console nor HTTP. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from .. import __version__
from ..clock import Clock
from ..metrics.export import Scrape
from ..metrics.totals import PoolKey, Totals
from .view import ControllerView, Row

WINDOW = 60.0
"""Seconds that averages look back, as PgBouncer's stats_period."""
STEP = 10.0
"""Seconds between the points of the history."""

DATABASE_FIELDS = ("transactions", "queries", "bytes_received", "bytes_sent", "xact_us", "query_us", "wait_us")
"""Pool counters that SHOW STATS sums by database."""

DatabaseSums = Mapping[str, Mapping[str, int]]


class Stats:
    """Figures over all workers."""

    def __init__(self, view: ControllerView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._totals = Totals()
        self._history: deque[tuple[float, DatabaseSums]] = deque(maxlen=int(WINDOW / STEP))
        self._history.append((clock.now(), {}))

    def sample(self) -> None:
        """Take in what the workers last said."""
        counters = self._view.counters
        for worker, latest in counters.items():
            self._totals.update(worker, latest.values, latest.pools)
        self._totals.keep(counters)
        now = self._clock.now()
        if now - self._history[-1][0] >= STEP:
            self._history.append((now, self.by_database()))

    def by_database(self, pools: Iterable[Row] | None = None) -> dict[str, dict[str, int]]:
        """DATABASE_FIELDS by database; `pools` are rows newer than the last sample, if any."""
        sums: dict[str, dict[str, int]] = {}
        for (_, database, _), counts in self._totals.pools(pools).items():
            into = sums.setdefault(database, dict.fromkeys(DATABASE_FIELDS, 0))
            for field in DATABASE_FIELDS:
                into[field] += counts.get(field, 0)
        return sums

    def window(self) -> tuple[float, DatabaseSums]:
        """The oldest point of the last minute: seconds since then (at least one) and the sums of then."""
        then, sums = self._history[0]
        return max(1.0, self._clock.now() - then), sums

    def scrape(self) -> Scrape:
        """All figures of this moment."""
        self.sample()
        snapshot = self._view.snapshot
        return Scrape(
            version=__version__,
            workers=len(self._view.counters),
            epoch=snapshot.epoch if snapshot else 0,
            snapshot_version=snapshot.version if snapshot else 0,
            serving=serving(self._view),
            nodes=self._view.nodes(),
            values=self._totals.values(),
            pools=self.pools(),
        )

    def pools(self) -> dict[PoolKey, dict[str, int]]:
        """All pool counters summed over the workers."""
        return self._totals.pools()


def serving(view: ControllerView) -> frozenset[str]:
    """Names of the nodes that may take new work by the last snapshot."""
    snapshot = view.snapshot
    if snapshot is None:
        return frozenset()
    return frozenset((snapshot.primary, *snapshot.writers, *snapshot.replicas, *snapshot.columnar)) - {""}
