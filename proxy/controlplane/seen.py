"""Shapes of statements that workers have seen, summed over all workers, their restarts and those of the proxy.

Owns the list and its file in the runtime directory. A worker hands out what it has counted when it is asked
(`sql.seen`): at intervals, and whenever somebody wants to see the list. What one counted since then is lost if it dies.
Called by `controlplane.controller`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..clock import Clock
from . import files

MAX_SHAPES = 10_000
"""Over all databases; of more the least counted quarter goes."""
INTERVAL = 10.0
"""Seconds between two questions to the workers."""
KEEP_EVERY = 6
"""So many of those between two writings of the file."""


class SeenShape(msgspec.Struct):
    """One of them."""

    database: str
    shape: str
    count: int
    tables: list[str]
    cls: str
    consistency: str
    user: str
    text: str
    since: float
    """Unix seconds."""


class SeenShapes:
    """Of one proxy."""

    def __init__(
        self,
        path: Path,
        report: Callable[[str], Awaitable[list[dict[str, Any]]]],
        clock: Clock,
        most: int = MAX_SHAPES,
    ) -> None:
        self._path = path
        self._report = report
        self._clock = clock
        self._most = most
        self._shapes: dict[tuple[str, str], SeenShape] = {}
        self._changed = False

    def load(self) -> None:
        """Take what an earlier controller has kept, if it can be read."""
        kept = files.read(self._path, list[SeenShape]) or []
        self._shapes = {(one.database, one.shape): one for one in kept[: self._most]}

    async def run(self) -> None:
        """Until cancelled: ask the workers, so that little is lost with one of them."""
        rounds = 0
        while True:
            await asyncio.sleep(INTERVAL)
            await self.gather()
            rounds += 1
            if rounds % KEEP_EVERY == 0:
                self.keep()

    async def gather(self) -> None:
        """Ask the workers for what they have counted."""
        for row in await self._report("shapes"):
            self._add(row)

    def all(self) -> list[SeenShape]:
        """The most frequent first."""
        return sorted(self._shapes.values(), key=lambda one: (-one.count, one.database, one.shape))

    def keep(self) -> None:
        """Write the file, if there is anything new."""
        if self._changed and files.write(self._path, self.all()):
            self._changed = False

    def _add(self, row: Mapping[str, Any]) -> None:
        self._changed = True
        key = (row["database"], row["shape"])
        known = self._shapes.get(key)
        if known is None:
            if len(self._shapes) >= self._most:
                self._shapes = {(one.database, one.shape): one for one in self.all()[: self._most * 3 // 4]}
            known = self._shapes[key] = SeenShape(*key, 0, row["tables"], "", "", "", row["text"], self._clock.wall())
        known.count += row["count"]
        known.cls, known.consistency, known.user = row["class"], row["consistency"], row["user"]
