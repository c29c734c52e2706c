"""How long shapes take on replicas and columnar nodes, over all workers and restarts, and what class that makes them.

Owns the measurements and their file in the runtime directory. Workers measure (`dataplane.measure`) and are told the
classes; the console lists and forgets. What is learned is `routing.measured`'s word. Called by `controller`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ..clock import Clock
from ..config.schema import Config
from ..ipc.messages import KnownClasses, Measured
from ..log import get_logger
from ..routing.measured import NONE, READ, Shape
from . import files

MAX_SHAPES = 5_000
"""Over all databases; one more makes the one go that was first."""
INTERVAL = 60.0
"""Seconds between two looks at what has become too old; what is new is kept then."""

_log = get_logger("shapes")


class MeasuredShapes:
    """Of one proxy."""

    def __init__(
        self,
        path: Path,
        config: Callable[[], Config],
        publish: Callable[[KnownClasses], None],
        clock: Clock,
        most: int = MAX_SHAPES,
    ) -> None:
        self._path = path
        self._config = config
        self._publish = publish
        self._clock = clock
        self._most = most
        self._shapes: dict[tuple[str, str], Shape] = {}
        self._classes: dict[tuple[str, str], str] = {}
        """As the workers were told."""
        self._changed = False

    def load(self) -> None:
        """Take what an earlier controller has kept, if it can be read."""
        kept = files.read(self._path, list[Shape]) or []
        self._shapes = {(one.database, one.shape): one for one in kept[-self._most :]}
        self.judge()

    async def run(self) -> None:
        """For ever: forget what is too old, and keep what is new."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.judge()
            self.keep()

    def all(self) -> list[tuple[Shape, str]]:
        """Each with its class, "" where the structure decides; the first ones first."""
        return [(shape, self._classes.get(key, "")) for key, shape in self._shapes.items()]

    def note(self, measured: Measured) -> None:
        """A worker has measured something."""
        key = (measured.database, measured.shape)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= self._most:
                self._drop(next(iter(self._shapes)))
            shape = self._shapes[key] = Shape(*key, measured.text)
        now = self._clock.wall()
        if measured.side == "replica":
            shape.replica = shape.replica.plus(measured.runs, measured.amount, now)
        elif measured.side == "columnar":
            shape.columnar = shape.columnar.plus(measured.runs, measured.amount, now)
        else:
            shape.cost, shape.cost_at = measured.amount, now
        self._changed = True
        self._judge({key})

    def judge(self) -> None:
        """Look at all anew: some time has passed, or the configuration is another one."""
        now = self._clock.wall()
        for key in [key for key, shape in self._shapes.items() if shape.expire(now)]:
            self._drop(key)
        self._judge(set(self._shapes) | set(self._classes))

    def columnar_came(self) -> None:
        """A columnar node has come into service: what was too slow there is tried once more."""
        for key, shape in self._shapes.items():
            if self._classes.get(key) == READ and shape.columnar.runs:
                shape.columnar = NONE
        self.judge()

    def forget(self, shape: str = "") -> int:
        """Forget one in all databases, or all; how many there were."""
        gone = [key for key in self._shapes if shape in ("", key[1])]
        for key in gone:
            self._drop(key)
        self._judge(set(gone))
        self.keep()
        return len(gone)

    def tell(self, database: str) -> None:
        """Tell all workers what is known of a database."""
        known = {shape: cls for (where, shape), cls in self._classes.items() if where == database}
        self._publish(KnownClasses(database, known))

    def keep(self) -> None:
        """Write down what is new."""
        if self._changed and files.write(self._path, list(self._shapes.values())):
            self._changed = False

    def _drop(self, key: tuple[str, str]) -> None:
        del self._shapes[key]
        self._changed = True

    def _judge(self, keys: set[tuple[str, str]]) -> None:
        routing = self._config().routing
        databases = set()
        for key in keys:
            shape = self._shapes.get(key)
            cls = shape.learned(routing.analytic_time, routing.analytic_cost) if shape is not None else ""
            before = self._classes.pop(key, "")
            if cls:
                self._classes[key] = cls
            if cls != before:
                databases.add(key[0])
                _log.info("class_learned", database=key[0], shape=key[1], learned=cls, before=before)
        for database in databases:
            self.tell(database)
