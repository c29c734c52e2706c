"""What standbys have refused: the shapes of reads that belong on the primary, over all workers and restarts.

Owns the list and its file in the runtime directory. A worker learns (`dataplane.catalogues`), the others are told, and
the console lists and forgets. Called by `controlplane.controller`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..clock import Clock
from ..ipc.messages import KnownShapes, Learned
from ..log import get_logger
from . import files

MAX_SHAPES = 10_000
"""Over all databases; one more makes the oldest go."""

_log = get_logger("shapes")


class Shape(msgspec.Struct, frozen=True):
    """One of them."""

    database: str
    shape: str
    """The fingerprint of PostgreSQL's grammar: equal for texts that differ in constants only."""
    sqlstate: str
    """With which a standby refused it."""
    text: str
    """Without its constants."""
    since: float
    """Unix seconds."""


class Shapes:
    """Of one proxy."""

    def __init__(
        self, path: Path, publish: Callable[[KnownShapes], None], clock: Clock, most: int = MAX_SHAPES
    ) -> None:
        self._path = path
        self._most = most
        self._publish = publish
        self._clock = clock
        self._shapes: dict[tuple[str, str], Shape] = {}

    def load(self) -> None:
        """Take what an earlier controller has kept, if it can be read."""
        kept = files.read(self._path, list[Shape]) or []
        self._shapes = {(one.database, one.shape): one for one in kept[-self._most :]}

    def all(self) -> list[Shape]:
        """The oldest first."""
        return list(self._shapes.values())

    def learn(self, learned: Learned) -> None:
        """A worker has found one out."""
        key = (learned.database, learned.shape)
        if key in self._shapes:
            return
        if len(self._shapes) >= self._most:
            oldest = next(iter(self._shapes))
            del self._shapes[oldest]
            self.tell(oldest[0])
        self._shapes[key] = Shape(*key, learned.sqlstate, learned.text, self._clock.wall())
        _log.info("shape_learned", database=learned.database, shape=learned.shape, sqlstate=learned.sqlstate)
        self._changed({learned.database})

    def forget(self, shape: str = "") -> int:
        """Forget one in all databases, or all; how many there were."""
        gone = [key for key in self._shapes if shape in ("", key[1])]
        for key in gone:
            del self._shapes[key]
        self._changed({database for database, _ in gone})
        return len(gone)

    def tell(self, database: str) -> None:
        """Tell all workers what is known of a database."""
        known = {one.shape: one.sqlstate for one in self._shapes.values() if one.database == database}
        self._publish(KnownShapes(database, known))

    def _changed(self, databases: set[str]) -> None:
        for database in databases:
            self.tell(database)
        files.write(self._path, self.all())
