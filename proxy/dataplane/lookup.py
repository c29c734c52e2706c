"""Users that only the primary knows: `auth.query`, asked over one kept connection.

Owns that connection, the cache of its answers and the limit of look-ups. It must not check passwords.
Called by `authenticate`. The query runs with a fixed search_path and the name as a parameter, so neither
a client's name nor another schema's functions change what it means.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from ..clock import Clock
from ..config.schema import Config
from ..errors import NodeFailure, NodeRefused, NoNode, NoServer, ProtocolViolation, TridentError
from ..log import Logger
from ..topology.snapshot import NodeView
from ..wire import build, parse
from ..wire.auth import Credentials
from ..wire.login import Frames
from .connect import LoginStream, dial, tls_mode

MAX_ENTRIES = 10_000
IDLE_SECONDS = 60.0
"""The kept connection is closed when nobody was looked up for this long."""
CONSOLE_DATABASES = ("pgtrident", "pgbouncer")


class Host(Protocol):
    """What a worker offers to look-ups."""

    @property
    def config(self) -> Config: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def log(self) -> Logger: ...
    @property
    def clock(self) -> Clock: ...
    def primary_node(self) -> NodeView | None: ...


@dataclass(frozen=True, slots=True)
class _Answer:
    until: float
    stored: str | None


@dataclass(slots=True)
class _Connection:
    node: NodeView
    database: str
    stream: LoginStream


Key = tuple[str, str]


class UserLookup:
    """`find` gives the stored password of a user. One look-up per user is in flight."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._answers: OrderedDict[Key, _Answer] = OrderedDict()
        self._pending: dict[Key, asyncio.Task[str | None]] = {}
        self._connection: _Connection | None = None
        self._turn = asyncio.Lock()
        self._tokens = 0.0
        self._counted_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._expired = 0

    async def find(self, user: str, database: str) -> str | None:
        """The stored password, or None for a user without one (or none at all).

        With the primary away an old answer serves. Raises NodeFailure or NoNode when there is none, and
        NoServer over `max_per_second`.
        """
        settings = self._host.config.auth.query
        key = (user, settings.database or self._real_database(database))
        known = self._answers.get(key)
        if known is not None and self._host.clock.now() < known.until:
            return known.stored
        task = self._pending.get(key)
        if task is None:
            if not self._admit(settings.max_per_second):
                if known is not None:
                    return known.stored
                raise NoServer("too many users are being looked up; try again")
            task = self._pending[key] = self._host.loop.create_task(self._look_up(key), name="user look-up")
            task.add_done_callback(lambda done: self._ended(key, done))
        try:
            return await asyncio.shield(task)
        except TridentError as error:
            if known is None:
                raise
            self._host.log.warning("user_lookup_stale", user=user, reason=error.message)
            return known.stored

    def forget(self) -> None:
        """Drop all answers: after a reload another query may be meant."""
        self._answers.clear()

    def expire(self, user: str) -> None:
        """Passwords have changed, of one user or (empty) of anybody: ask anew. The old answers are still good
        enough while the primary is away."""
        self._expired += 1
        for key, answer in self._answers.items():
            if not user or key[0] == user:
                self._answers[key] = _Answer(0.0, answer.stored)

    def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for task in self._pending.values():
            task.cancel()
        self._drop()

    def _ended(self, key: Key, task: asyncio.Task[str | None]) -> None:
        self._pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # those who wait get it; nobody may be waiting any more

    def _admit(self, per_second: int) -> bool:
        """A bucket that holds one second's worth."""
        now = self._host.clock.now()
        self._tokens = min(per_second, self._tokens + (now - self._counted_at) * per_second)
        self._counted_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _real_database(self, name: str) -> str:
        databases = self._host.config.databases
        if name in CONSOLE_DATABASES and name not in databases:
            return "postgres"
        settings = databases.get(name) or databases.get("*")
        return (settings.dbname if settings is not None else "") or name

    async def _look_up(self, key: Key) -> str | None:
        user, database = key
        settings = self._host.config.auth.query
        async with self._turn:
            expired = self._expired
            stored = await self._ask(user, database)
        keep = settings.negative_cache if stored is None else settings.cache
        # What was asked before a change that came meanwhile may be the old password.
        until = self._host.clock.now() + keep if expired == self._expired else 0.0
        self._answers[key] = _Answer(until, stored)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_ENTRIES:
            self._answers.popitem(last=False)
        return stored

    async def _ask(self, user: str, database: str) -> str | None:
        node = self._host.primary_node()
        if node is None:
            raise NoNode("users can't be looked up: there is no primary")
        kept = self._connection
        fresh = kept is None or kept.node != node or kept.database != database
        try:
            async with asyncio.timeout(self._host.config.server.connect_timeout):
                try:
                    return await self._exchange(node, user, database)
                except OSError:
                    if fresh:
                        raise
                    # The kept connection had died meanwhile; one try with a new one.
                    return await self._exchange(node, user, database)
        except NodeRefused as error:
            # About our own login or query: for the operator, not for whoever knocks.
            self._host.log.error("user_lookup_failed", node=node.name, sqlstate=error.sqlstate, reason=error.message)
            raise NodeFailure(f'users can\'t be looked up on node "{node.name}"') from error
        except (OSError, NodeFailure, ProtocolViolation) as error:
            self._host.log.warning("user_lookup_failed", node=node.name, reason=str(error))
            raise NodeFailure(f'users can\'t be looked up on node "{node.name}"') from error

    async def _exchange(self, node: NodeView, user: str, database: str) -> str | None:
        """One Parse/Bind/Execute/Sync; the connection is dropped unless it ends at ReadyForQuery."""
        connection = await self._connect(node, database)
        done = False
        try:
            query = self._host.config.auth.query.query.encode()
            connection.stream.write(
                build.parse(b"", query) + build.bind(b"", b"", [user.encode()]) + build.execute() + build.SYNC
            )
            stored = await _answer(connection.stream)
            done = True
            return stored
        finally:
            if not done:
                self._drop()
            self._arm_idle_timer()

    async def _connect(self, node: NodeView, database: str) -> _Connection:
        kept = self._connection
        if kept is not None and kept.node == node and kept.database == database:
            return kept
        self._drop()
        config, loop = self._host.config, self._host.loop
        dialled = await dial(
            node,
            config.server,
            tls_mode(config, node.name),
            Credentials(config.auth.query.user, config.auth.query.password or None),
            {
                "database": database,
                "application_name": "pgtrident",
                "client_encoding": "UTF8",
                "search_path": "pg_catalog, pg_temp",
            },
            loop=loop,
            deadline=loop.time() + config.server.connect_timeout,
        )
        stream = LoginStream()
        stream.connection_made(dialled.transport)
        dialled.transport.set_protocol(stream)
        dialled.transport.resume_reading()
        self._connection = _Connection(node, database, stream)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.stream.transport.abort()
            self._connection = None

    def _arm_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._host.loop.call_later(IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        if not self._turn.locked():
            self._drop()


async def _answer(stream: LoginStream) -> str | None:
    """The stored password of the first row, after ReadyForQuery. Raises NodeRefused for an error."""
    frames = Frames()
    stored: str | None = None
    refused: NodeRefused | None = None
    while True:
        frames.add(await stream.read())
        for kind, body in frames:
            if kind == 0x44 and stored is None:  # D
                values = parse.data_row(body)
                if len(values) < 2:
                    raise ProtocolViolation("auth.query must give two columns: name and password")
                stored = None if values[1] is None else values[1].decode("utf-8", "replace")
            elif kind == 0x45:  # E
                refused = NodeRefused(parse.error_fields(body))
            elif kind == 0x5A:  # Z
                if refused is not None:
                    raise refused
                return stored or None
