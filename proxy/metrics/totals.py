"""Sums over all workers that never fall when a worker starts anew.

A worker reports totals since its own start; a restarted one begins at zero. `Totals` keeps what earlier
lives of a worker and pools since removed had counted, so that a sum never goes backwards (Prometheus would
take a fall for a restart of everything, and SHOW STATS would shrink). Pure; called by `admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .counters import POOL_FIELDS, POOL_GAUGES, POOL_MAXIMA

PoolKey = tuple[str, str, str]
"""Node, database, user."""

MAX_POOLS = 10_000
"""Pools remembered apart; the counts of any more go to one row of user `(other)` per node and database."""

_POOL_COUNTS = tuple(name for name in POOL_FIELDS if name not in POOL_GAUGES)


class Totals:
    """Feed with `update`, read `values` and `pools`."""

    def __init__(self) -> None:
        self._values: dict[int, Mapping[str, int]] = {}
        self._pools: dict[int, dict[PoolKey, Mapping[str, Any]]] = {}
        self._past_values: dict[str, int] = {}
        self._past_pools: dict[PoolKey, dict[str, int]] = {}

    def update(self, worker: int, values: Mapping[str, int], pools: Iterable[Mapping[str, Any]]) -> None:
        """The latest report of one worker. A counter that fell says that it is a new life."""
        before = self._values.get(worker, {})
        rows = {pool_key(row): row for row in pools}
        if any(values.get(name, 0) < count for name, count in before.items() if not is_gauge(name)):
            self.forget(worker)
        for key, row in self._pools.get(worker, {}).items():
            if key not in rows or any(rows[key].get(name, 0) < row.get(name, 0) for name in _POOL_COUNTS):
                self._retire(key, row)
        self._values[worker] = values
        self._pools[worker] = rows

    def forget(self, worker: int) -> None:
        """A worker has ended: its counts stay, its gauges go."""
        for name, count in self._values.pop(worker, {}).items():
            if not is_gauge(name):
                self._past_values[name] = self._past_values.get(name, 0) + count
        for key, row in self._pools.pop(worker, {}).items():
            self._retire(key, row)

    def keep(self, workers: Iterable[int]) -> None:
        """Forget all workers but these."""
        for worker in self._values.keys() - set(workers):
            self.forget(worker)

    def values(self) -> dict[str, int]:
        """Worker counters by name, summed."""
        sums = dict(self._past_values)
        for values in self._values.values():
            for name, count in values.items():
                sums[name] = sums.get(name, 0) + count
        return sums

    def pools(self, rows: Iterable[Mapping[str, Any]] | None = None) -> dict[PoolKey, dict[str, int]]:
        """Pool counters summed, of now and earlier. `rows` stand for the last reports if they are newer."""
        if rows is None:
            rows = (row for pools in self._pools.values() for row in pools.values())
        sums = {key: dict(row) for key, row in self._past_pools.items()}
        for row in rows:
            _add(sums.setdefault(pool_key(row), {}), row, POOL_FIELDS)
        return sums

    def _retire(self, key: PoolKey, row: Mapping[str, Any]) -> None:
        if key not in self._past_pools and len(self._past_pools) >= MAX_POOLS:
            key = (key[0], key[1], "(other)")
        _add(self._past_pools.setdefault(key, {}), row, _POOL_COUNTS)


def pool_key(row: Mapping[str, Any]) -> PoolKey:
    """The labels of a pool's row."""
    return row["node"], row["database"], row["user"]


def merge_pools(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a pool from the rows of several workers, in order of database, user and node."""
    merged: dict[PoolKey, dict[str, Any]] = {}
    for row in rows:
        key = pool_key(row)
        into = merged.setdefault(
            key, {"node": key[0], "database": key[1], "user": key[2], "mode": row.get("mode") or ""}
        )
        _add(into, row, POOL_FIELDS)
    return sorted(merged.values(), key=lambda row: (row["database"], row["user"], row["node"]))


def is_gauge(name: str) -> bool:
    """Whether a worker's counter goes up and down."""
    return name.endswith("_current") and ":" not in name


def _add(into: dict[str, Any], row: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        count = row.get(name) or 0
        into[name] = max(into.get(name, 0), count) if name in POOL_MAXIMA else into.get(name, 0) + count
