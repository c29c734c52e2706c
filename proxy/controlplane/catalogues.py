"""Catalogues: what the names of databases mean, read from the primary and kept up to date for the workers.

Owns when a database is read: when a worker needs it (its first client has come, or DDL has ended there), and at
intervals, since DDL may pass by. A mark is asked for first; only where it has changed all is read. The queries and
what their rows mean are `sql.inventory`.

Called by `controlplane.controller`, and `read` by the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from ..clock import Clock
from ..config.schema import Config
from ..errors import NodeFailure, NodeRefused, TridentError
from ..ipc.messages import KnownCatalogue, NeedCatalogue
from ..log import get_logger
from ..sql import inventory
from ..sql.catalogue import Catalogue
from ..topology.snapshot import NodeView, Snapshot
from .link import NodeLink, Opened
from .tasks import Tasks

MAX_DATABASES = 64
"""Of those whose reads are split, and of the others. More get no catalogue, so that their reads stay on the primary, or
nobody knows what touches their sessions in secret."""
READ_TIMEOUT = 10.0
"""Seconds for one reading, connecting included."""
RETRY = 0.5
"""Seconds after which a reading that failed is tried again. Where no read waits for it, twice as long each time, up to
`catalogue_interval`."""
NO_DATABASE = "3D000"
REST = 4
"""Between two readings of a database lies so many times what the last one took: where DDL never ends, a fifth of a
processor is spent on it at most."""

DialDatabase = Callable[[NodeView, Config, float, str], Awaitable[Opened]]
"""(node, config, seconds, database) -> a connection as the probe's user; raises as `link.Dial`."""

_log = get_logger("catalogues")


class _Database:
    """What is known of one database."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.catalogue: Catalogue | None = None
        self.split = False
        """Whether reads wait for it."""
        self.mark = ""
        self.read_ns = 0
        self.wanted_ns = 0
        self.untold = False
        """A worker has asked that has another catalogue than this, or none."""
        self.error = ""
        self.missing = False
        self.hurry = asyncio.Event()


class Catalogues:
    """All databases with clients that don't keep their server."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        config: Callable[[], Config],
        dial: DialDatabase,
        publish: Callable[[KnownCatalogue], None],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._snapshot = snapshot
        self._config = config
        self._dial = dial
        self._publish = publish
        self._clock = clock
        self._tasks = tasks
        self._databases: dict[str, _Database] = {}
        self._full: set[bool] = set()

    def need(self, need: NeedCatalogue) -> None:
        """A worker needs the catalogue as of a moment or later, and has another one."""
        database = need.database
        known = self._databases.get(database)
        if known is None:
            if sum(one.split == need.split for one in self._databases.values()) >= MAX_DATABASES:
                if need.split not in self._full:
                    self._full.add(need.split)
                    _log.warning("too_many_catalogues", database=database, most=MAX_DATABASES, split=need.split)
                self._publish(KnownCatalogue(database, 0))
                return
            known = self._databases[database] = _Database(database)
            self._tasks.start(self._keep(known), f"catalogue {database}")
        known.split = known.split or need.split
        known.untold = known.untold or known.catalogue is None or known.catalogue.version != need.version
        known.wanted_ns = max(known.wanted_ns, need.changed_ns)
        known.hurry.set()

    async def _keep(self, known: _Database) -> None:
        """Until cancelled."""
        retry = RETRY
        while True:
            began = self._clock.now()
            well = await self._look(known)
            if known.missing:
                del self._databases[known.name]
                return
            interval = self._config().routing.catalogue_interval
            if not well:
                await asyncio.sleep(RETRY if known.split else retry)
                retry = max(RETRY, min(2 * retry, interval))
                continue
            retry = RETRY
            await asyncio.sleep(REST * (self._clock.now() - began))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await known.hurry.wait()

    async def _look(self, known: _Database) -> bool:
        """Read what has changed, and tell the workers; False if it has to be tried again soon."""
        known.hurry.clear()
        before, untold = known.catalogue, known.untold
        began_ns = self._clock.boot_ns()
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                await self._read(known)
        except (TridentError, OSError, ValueError) as error:
            reason = str(error) or "no full answer in time"
            known.missing = isinstance(error, NodeRefused) and error.sqlstate == NO_DATABASE
            if reason != known.error:
                meaning = "what triggers, views and the like do to sessions is not seen"
                if known.split:
                    meaning = f"its reads stay on the primary, and {meaning}"
                _log.warning("catalogue_unreadable", database=known.name, error=reason, meaning=meaning)
            known.error = reason
            if known.read_ns <= known.wanted_ns:
                self._publish(KnownCatalogue(known.name, 0))
            return False
        known.error = ""
        known.read_ns = began_ns
        known.untold = known.untold and not untold
        news = known.catalogue if untold or known.catalogue is not before else None
        self._publish(KnownCatalogue(known.name, began_ns, news))
        return True

    async def _read(self, known: _Database) -> None:
        snapshot = self._snapshot()
        if snapshot is None or not snapshot.primary:
            raise NodeFailure("no primary is in service")
        primary = snapshot.nodes[snapshot.primary]
        link = NodeLink(primary.name, await self._dial(primary, self._config(), READ_TIMEOUT, known.name))
        try:
            began = self._clock.now()
            mark = await _mark(link)
            if mark == known.mark and known.catalogue is not None:
                return
            catalogue = await _all(link)
        finally:
            link.close()
        known.mark = mark
        if known.catalogue is None or known.catalogue.version != catalogue.version:
            known.catalogue = catalogue
            _log.info(
                "catalogue_read",
                database=known.name,
                relations=len(catalogue.relations),
                functions=len(catalogue.functions),
                hidden=catalogue.hidden,
                seconds=round(self._clock.now() - began, 3),
            )


async def read(node: str, opened: Opened) -> Catalogue:
    """Read a catalogue over this connection, and close it. Raises NodeRefused and NodeFailure, and TridentError for a
    database with more than `inventory.MAX_ROWS` of anything."""
    link = NodeLink(node, opened)
    try:
        return await _all(link)
    finally:
        link.close()


async def _mark(link: NodeLink) -> str:
    (row,) = await link.query(inventory.MARK)
    return " ".join((value or b"-").decode() for value in row)


async def _all(link: NodeLink) -> Catalogue:
    await link.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    for setting in inventory.PREPARE:
        await link.query(setting)
    rows = {name: await _rows(link, sql) for name, sql in inventory.QUERIES.items()}
    await link.query("COMMIT")
    return await asyncio.to_thread(inventory.catalogue_of, rows)


async def _rows(link: NodeLink, sql: str) -> list[inventory.Row]:
    found = await link.query(f"{sql} LIMIT {inventory.MAX_ROWS + 1}")
    if len(found) > inventory.MAX_ROWS:
        raise TridentError(f"the database has more than {inventory.MAX_ROWS} objects of one kind", sqlstate="54000")
    return [[None if value is None else value.decode("utf-8", "replace") for value in row] for row in found]
