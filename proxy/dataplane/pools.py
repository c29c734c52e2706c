"""The pools of a worker: dialling, handing over, cleaning and closing servers.

Thin I/O around `pool.state`: that decides who gets what, this opens and closes. One door for each
move of a server: `take`, `give`, `abandon`, `settled`, `close`. Limits hold over all workers: a worker
opens no more than it was granted (`pool.permits`).

Called by `client` (take, join, give, abandon), by `server` (lost, settled) and by `worker` (upkeep).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from ..errors import NodeFailure, NodeRefused, NoServer, Terminated, TridentError
from ..ipc.board import user_slot
from ..metrics.counters import PoolCounters
from ..pool.permits import first_share
from ..pool.state import Pool
from ..session.state import State
from ..wire import build
from ..wire.auth import Credentials
from ..wire.codes import IDLE
from .connect import cancel, dial, tls_mode
from .server import NODE_VIEW, Owed, Server
from .waiter import Waiter

if TYPE_CHECKING:
    from .client import Client
    from .worker import Worker

MAX_WELCOMES = 1_000
"""Sets of startup settings whose reported parameters are remembered, per pool."""
MAX_POOLS = 10_000
EXPIRE_AGAIN = 0.05
"""Seconds until a unit whose time is up is looked at again, while others run before it."""
_PATIENT = frozenset(("53300", "57P03", "53400", "55006"))
"""Answers to a login that mean "not now": the waiters wait on, the dial is tried again."""
_WRONG_PASSWORD = "28P01"
_NOT_LET_IN = (_WRONG_PASSWORD, "28000")
_FIRST_RETRY = 0.1
_LAST_RETRY = 2.0
"""Seconds between dials of a pool whose node does not let us in."""


class ServerPool:
    """The servers of one node, database and user in this worker."""

    def __init__(self, pools: Pools, node: str, database: str, user: str, size: int) -> None:
        self.pools = pools
        self.node = node
        self.database = database
        """Name on the node."""
        self.user = user
        self.key = f"{node}/{database}/{user}"
        self.slot = user_slot(database, user)
        """The board's slot of what is written through it."""
        self.size = size
        """Limit over all workers."""
        self.counters = PoolCounters()
        self.state: Pool[Server, Waiter] = Pool(pools.permits(self.key, size), pools.worker.config.pool.max_waiting)
        self.welcomes: dict[State, dict[str, str]] = {}
        self.retry_at = 0.0
        self._retry = 0.0
        self.last_error: TridentError | None = None
        self.reserve = pools.worker.config.pool.reserve
        self.reserve_used = False
        self.oversize = False
        """There may be more servers than the limit allows, after that was lowered."""
        self._free: deque[Server] = deque()
        self._handing = False
        self.mode = pools.worker.config.pool.mode

    # ---- who gets what

    def take(self, prefer: Server | None) -> Server | None:
        """A free server, at once or never."""
        server = self.state.take(prefer)
        while server is not None and (server.closed or server.retired):
            self.close(server, "its node was replaced")
            server = self.state.take()
        return server

    def join(self, waiter: Waiter) -> bool:
        """It waits here; False when the queue is full."""
        if not self.state.wait(waiter, self.pools.worker.clock.now()):
            self.counters.queue_full += 1
            return False
        self.counters.waits += 1
        if self.state.size < self.size or self.reserve:
            self.open_more()
        return True

    def likely_server(self) -> Server | None:
        """The server that the next client gets, or one that exists. One whose process id no client was told
        comes first."""
        named = self.pools.worker.named
        likely = None
        for servers in (self.state.idle, self.state.taken):
            for server in reversed(servers):
                if not named(server.pid):
                    return server
                if likely is None:
                    likely = server
        return likely

    def shown_pid(self, pid: int) -> int:
        """What clients know the session by that a server process of this node works for."""
        server = self.pools.processes.get((self.node, pid))
        session = server.notifier if server is not None else None
        return session.pid if session is not None else pid

    def leave(self, waiter: Waiter) -> None:
        """It no longer waits."""
        self.state.leave(waiter)

    def full_error(self) -> NoServer:
        """What a client is told that may not even wait."""
        return NoServer(
            f"too many clients ({self.state.max_waiting}) are waiting for a server of pool {self.key}",
            hint="Raise pool.pool_size or pool.max_waiting, or open fewer connections.",
        )

    def give(self, server: Server) -> None:
        """A server is free and clean: it goes to the first waiter, or is idle."""
        if server.closed or server.cancelling:
            return  # a cancel's server comes back through `settled` when that is through
        if server.full:
            self.close(server, "what its client sent last is still going out")
            self.open_more()
            return
        if server.retired or self.oversize:
            self._retire(server)
            return
        state = self.state
        if not state.waiting:
            state.give(server)
            server.idle_since = self.pools.worker.now
            return
        if self._handing:
            # A waiter gave it back before it was done (a greeting, a refusal): a loop, not a recursion.
            self._free.append(server)
            return
        self._handing = True
        try:
            self._hand_over(server)
            while self._free:
                self._hand_over(self._free.popleft())
        finally:
            self._handing = False

    def _hand_over(self, server: Server) -> None:
        """To the first who waits, if anybody still does."""
        first = None if server.closed else self.state.give(server)
        if first is None:
            server.idle_since = self.pools.worker.now
            return
        waiter, since = first
        self.counters.wait_us += int((self.pools.worker.clock.now() - since) * 1e6)
        waiter.server_granted(server)

    def _retire(self, server: Server) -> None:
        if server.retired:
            self.close(server, "its time was up")
        elif self.state.size > self.state.limit + self._reserve():
            self.close(server, "the pool was made smaller")
        else:
            self.oversize = False
            self.give(server)

    def settled(self, server: Server) -> None:
        """Nothing is owed any more by a server that nobody is linked to."""
        if server.owed or server.closed or server.owner is not None or server.cancelling:
            return
        if server.status != IDLE:
            server.ask("ROLLBACK", self._cleaned)
        elif server.dirty and not server.retired:
            server.ask("DISCARD ALL", self._discarded)
        elif server in self.state.taken:
            server.abandoned_at = 0.0
            self.give(server)

    def _cleaned(self, server: Server, rows: object, error: dict[str, str] | None) -> None:
        if error is not None or server.status != IDLE:
            self.close(server, "it could not be rolled back")
        else:
            self.settled(server)

    def _forgotten(self, server: Server, rows: object, error: dict[str, str] | None) -> None:
        if error is not None:
            self.close(server, "statements could not be closed")
        else:
            self.settled(server)

    def _discarded(self, server: Server, rows: object, error: dict[str, str] | None) -> None:
        if error is not None:
            self.close(server, "it could not be reset")
            return
        server.dirty = False
        server.unseen_by = None
        server.last_writer = None
        server.state = self.pools.worker.states.empty
        server.statements.clear()
        self.settled(server)

    def abandon(
        self,
        server: Server,
        client: Client,
        *,
        dirty: bool,
        ruined: bool,
        open_batch: bool,
        copy_in: bool,
        torn: bool,
        cancel: bool,
    ) -> None:
        """A client left its server behind, whatever that was doing."""
        server.owner = None
        server.dirty = server.dirty or dirty
        server.abandoned_at = self.pools.worker.clock.now()
        server.resume()
        if ruined:
            server.retired = True  # what was left in it can't be taken out by DISCARD ALL
        if torn:
            self.close(server, "its client left in the middle of a message")
            return
        left = server.disown(client)
        if copy_in:
            extended = server.owed.head is not None and server.owed.head.extended
            server.transport.write(build.copy_fail("client connection lost") + (build.SYNC if extended else b""))
        elif open_batch:
            # PostgreSQL rolls an unfinished batch back when its client goes; a Sync alone would commit it.
            server.transport.write(build.bind(b"", b"\1client connection lost") + build.SYNC)
        if left:
            server.tell(b"".join(build.close(b"S", name) for name in left), self._forgotten)
        if not server.owed:
            self.settled(server)
        elif cancel and not any(owed.wrote for owed in server.owed):
            # A statement that may write runs to its end, as it would without a proxy.
            self.cancel(server)

    def wrote(self) -> None:
        """A unit that may have written has ended on a server, and its client is about to be told."""
        self.pools.worker.consistency.wrote(self.slot)

    def ddl_ended(self) -> None:
        """DDL has ended on a server, or may have, and its client can't tell any more."""
        self.pools.worker.catalogues.changed(self.database)

    def expire(self, server: Server, owed: Owed) -> None:
        """The time that a hint or rule gives a unit is up: it is cancelled, once it is the one at work."""
        if server.closed or not any(other is owed for other in server.owed):
            return
        if server.owed.head is owed:
            self.counters.query_timeouts += 1
            self.cancel(server)
        else:
            self.pools.worker.loop.call_later(EXPIRE_AGAIN, self.expire, server, owed)

    def cancel(self, server: Server) -> None:
        """Ask the node to cancel what runs on a server. Until that is through, the server is not
        handed on: a late cancel would hit somebody else's statement."""
        if server.closed or not server.owed:
            return
        server.cancelling += 1
        self.pools.worker.counters.cancels_forwarded += 1
        self.pools.worker.spawn(self._cancel(server), "cancel")

    async def _cancel(self, server: Server) -> None:
        worker = self.pools.worker
        view = worker.snapshot.nodes.get(self.node)
        try:
            if view is not None:
                link = worker.config.server
                await cancel(
                    view,
                    link,
                    tls_mode(worker.config, self.node),
                    server.pid,
                    server.key,
                    loop=worker.loop,
                    address=server.address,
                )
        except NodeFailure as error:
            worker.log.warning("cancel_failed", node=self.node, error=error.message)
        finally:
            server.cancelling -= 1
            self.settled(server)

    # ---- opening

    @property
    def credentials(self) -> Credentials:
        """How servers log in."""
        return self.pools.credentials.get((self.database, self.user)) or Credentials(self.user)

    @property
    def generation(self) -> int:
        view = self.pools.worker.snapshot.nodes.get(self.node)
        return view.generation if view is not None else -1

    def is_primary(self) -> bool:
        """Whether its node takes writes."""
        return self.node in self.pools.worker.router.writers

    def _reserve(self) -> int:
        if not self.reserve:
            return 0
        oldest = self.state.oldest_wait()
        patience = self.pools.worker.config.pool.reserve_timeout
        if oldest is not None and self.pools.worker.clock.now() - oldest >= patience:
            self.reserve_used = True
        return self.reserve if self.reserve_used else 0

    def open_more(self) -> None:
        """Dial as many servers as waiters need and limits allow."""
        now = self.pools.worker.clock.now()
        if now < self.retry_at:
            return
        wanted = self.state.should_open(self._reserve())
        for _ in range(wanted):
            if not self.pools.may_open(self):
                break
            self.state.opening += 1
            self.pools.opening[self.node] = self.pools.opening.get(self.node, 0) + 1
            self.pools.worker.spawn(self._open(), "dial")
        if len(self.state.waiting) > self.state.opening and self.state.limit < self.size:
            self.pools.ask(self.key, len(self.state.waiting), self.size)

    def fill(self, minimum: int) -> None:
        """Keep `min_pool_size` servers."""
        wanted = self.state.size < min(minimum, self.state.limit)
        if wanted and self.pools.worker.clock.now() >= self.retry_at and self.pools.may_open(self):
            self.state.opening += 1
            self.pools.opening[self.node] = self.pools.opening.get(self.node, 0) + 1
            self.pools.worker.spawn(self._open(), "dial")

    async def _open(self) -> None:
        worker = self.pools.worker
        view = worker.snapshot.nodes.get(self.node)
        link = worker.config.server
        error: TridentError | None = None
        dialled = None
        generation = self.generation
        credentials = self.credentials
        try:
            if view is None:
                raise NodeFailure(f'node "{self.node}" is no longer configured')
            dialled = await dial(
                view,
                link,
                tls_mode(worker.config, self.node),
                worker.completed(credentials, view, self.database),
                {"database": self.database},
                loop=worker.loop,
                deadline=worker.loop.time() + link.connect_timeout,
            )
        except (NodeFailure, TridentError) as failure:
            error = failure
        finally:
            self.state.opened()
            self.pools.opening[self.node] -= 1
        if dialled is None:
            error = error or NodeFailure("the dial was given up")
            if error.sqlstate in _NOT_LET_IN:
                self.pools.login_refused(self, credentials, error.sqlstate)
            self._open_failed(error)
            return
        now = worker.clock.now()
        server = Server(self, worker.states.empty, worker.config.pool.max_prepared_statements)
        server.transport = dialled.transport
        server.parameters = dialled.parameters
        server.at_login = dict(dialled.parameters)
        server.pid = dialled.pid
        server.key = dialled.key
        server.address = dialled.address
        server.generation = generation
        server.retired = generation != self.generation  # the node was replaced, or drained, in the meantime
        server.idle_since = now
        lifetime = worker.config.pool.lifetime
        server.expires = now + lifetime * (1 - 0.1 * worker.rng.random()) if lifetime else 0.0
        if not self.pools.reaches(self.node):
            worker.consistency.first_seen(self.node)
        self.state.taken[server] = None
        self.pools.processes[self.node, server.pid] = server
        dialled.transport.set_protocol(cast(asyncio.Protocol, server))
        if dialled.leftover:
            server.data_received(dialled.leftover)
            if server.closed:
                self._open_failed(NodeFailure(f'node "{self.node}" said more than its login', sqlstate="08P01"))
                return
        dialled.transport.resume_reading()
        self._retry = 0.0
        self.retry_at = 0.0
        self.last_error = None
        self.counters.connects += 1
        worker.log.debug("server_opened", node=self.node, pool=self.key, pid=server.pid)
        self.give(server)

    def _open_failed(self, error: TridentError) -> None:
        worker = self.pools.worker
        self.counters.connect_failures += 1
        self.last_error = error
        refused = isinstance(error, NodeRefused)
        if not refused:
            worker.suspect(self.node, "refused" if "refused" in error.message else "unreachable")
        worker.log.warning("server_connect_failed", node=self.node, pool=self.key, error=error.message)
        self._retry = min(_LAST_RETRY, self._retry * 2 or _FIRST_RETRY)
        self.retry_at = worker.clock.now() + self._retry
        if refused and error.sqlstate not in _PATIENT:
            # The node's own verdict on this user or database: it stands for all who wait here.
            self.retry_at = 0.0
            self._retry = 0.0
            for waiter in list(self.state.waiting):
                self.state.leave(waiter)
                waiter.refused(_copy(error))
            return
        # Another node may do: route again. Those for whom none does come back here and wait.
        for waiter in list(self.state.waiting):
            if waiter.has_alternative(self.node):
                self.state.leave(waiter)
                waiter.leave_for_another()

    # ---- what servers report

    def shown_parameters(self, server: Server) -> dict[str, str]:
        """The reported parameters of a server as the client is to see them: the primary's view."""
        shown = dict(server.parameters)
        if not self.is_primary():
            shown.update(self.pools.primary_view)
            shown["in_hot_standby"] = "off"
        else:
            self.pools.primary_view = {name: shown[name] for name in NODE_VIEW if name in shown}
            self.pools.primary_view.pop("is_superuser", None)
        return shown

    def welcomes_add(self, state: State, parameters: dict[str, str]) -> None:
        """Remember what a login with these settings is told."""
        if len(self.welcomes) >= MAX_WELCOMES:
            self.welcomes.pop(next(iter(self.welcomes)))
        self.welcomes[state] = parameters

    def error_seen(self, server: Server, fields: dict[str, str]) -> None:
        """An error came from a server; some say something of the node."""
        code = fields.get("C", "")
        if code == "25006" and self.is_primary():
            self.pools.worker.suspect(self.node, "read_only")
        elif code in ("57P01", "57P02", "57P03"):
            self.pools.worker.suspect(self.node, "shutdown")

    def out_of_step(self, server: Server, message: str) -> None:
        """A server broke the protocol: it is closed, its client told."""
        self.pools.worker.counters.protocol_errors += 1
        self.pools.worker.log.error("server_out_of_step", node=self.node, pool=self.key, message=message)
        owner = server.owner
        self.close(server, message)
        if owner is not None:
            owner.server_lost(server, False)

    def lost(self, server: Server) -> None:
        """The socket of a server is gone."""
        owner = server.owner
        if server.owed or owner is not None:
            self.pools.worker.suspect(self.node, "reset")
        self.close(server, server.closing_reason or "the connection was lost")
        self.pools.worker.consistency.doubt(self.node)
        if owner is not None:
            owner.server_lost(server, server.fatal)

    def cut(self) -> None:
        """The node is down: nobody waits for an answer that may never come."""
        for server in [*self.state.idle, *self.state.taken]:
            owner = server.owner
            self.close(server, "its node is down")
            if owner is not None:
                owner.server_lost(server, False)

    def end_drain(self) -> None:
        """What was open on a node that is drained has had its time: it is ended, as PostgreSQL does it."""
        for server in [*self.state.idle, *self.state.taken]:
            owner = server.owner
            self.cancel(server)  # a statement doesn't notice that its client has gone
            self.close(server, "its node is drained")
            if owner is not None:
                owner.fail(
                    Terminated(
                        "terminating connection due to administrator command",
                        detail=f'Node "{self.node}" is being drained, and the time for what was open on it is up.',
                        hint="Connect again; the proxy stays in service.",
                    )
                )

    def close(self, server: Server, reason: str) -> None:
        """The one door by which a server ends."""
        if server.closed:
            return
        server.closed = True
        self.counters.closes += 1
        if server.owed or server.status != IDLE:
            self.counters.closes_dirty += 1
        self.state.drop(server)
        if self.pools.processes.get((self.node, server.pid)) is server:
            del self.pools.processes[self.node, server.pid]
        transport = server.transport
        if not transport.is_closing():
            if not server.owed and server.status == IDLE:
                transport.write(build.TERMINATE)
                transport.close()
            else:
                transport.abort()
        self.pools.worker.log.debug("server_closed", node=self.node, pool=self.key, pid=server.pid, reason=reason)
        self.pools.freed(self)
        self.open_more()


def _copy(error: TridentError) -> TridentError:
    """The node's error once more: severity is set by each answer."""
    if isinstance(error, NodeRefused):
        return NodeRefused(error.fields)
    return error


class Pools:
    """All pools of a worker, and the limits that hold over them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.all: dict[tuple[str, str, str], ServerPool] = {}
        self.opening: dict[str, int] = {}
        self.processes: dict[tuple[str, int], Server] = {}
        """Servers by node and process id."""
        self.primary_view: dict[str, str] = {}
        self.credentials: dict[tuple[str, str], Credentials] = {}
        """By database and user, in the order in which they were proved."""
        self.granted: dict[str, int] = {}
        self.asked: dict[str, float] = {}

    def pool(self, node: str, client: Client) -> ServerPool:
        """The pool of a node for a client, made when first needed."""
        settings = client.settings
        key = (node, settings.dbname, settings.user)
        pool = self.all.get(key)
        if pool is None:
            if len(self.all) >= MAX_POOLS:
                self._forget_unused()
            pool = self.all[key] = ServerPool(self, node, settings.dbname, settings.user, settings.pool_size)
            pool.mode = settings.mode
        return pool

    def logged_in(self, database: str, user: str, credentials: Credentials) -> None:
        """A client proved a password: the newest login tells how servers log in, for all of its database
        and user."""
        self.credentials.pop((database, user), None)
        if len(self.credentials) >= MAX_POOLS:
            del self.credentials[next(iter(self.credentials))]
        self.credentials[database, user] = credentials

    def login_refused(self, pool: ServerPool, credentials: Credentials, sqlstate: str) -> None:
        """A node does not let us in with what a client had proved: role or password were changed meanwhile.

        A wrong password is used no more; a replica may be behind, so that is for the primary to say. 28000 has
        other reasons, which may pass.
        """
        pool.welcomes.clear()
        self.worker.forget_user(pool.user)
        key = (pool.database, pool.user)
        if sqlstate == _WRONG_PASSWORD and pool.is_primary() and self.credentials.get(key) is credentials:
            del self.credentials[key]

    def _forget_unused(self) -> None:
        for key, pool in list(self.all.items()):
            if not pool.state.size and not pool.state.waiting:
                del self.all[key]

    def leave_databases(self, command: bytes) -> None:
        """Close idle servers of the databases that a command names: DROP DATABASE and the like are
        refused while anybody is connected, and to the client nobody is."""
        for pool in self.all.values():
            if pool.state.idle and pool.database.encode() in command:
                for server in list(pool.state.idle):
                    pool.close(server, "its database is about to be changed")

    def load(self, node: str, client: Client) -> int:
        """Servers at work on a node for this client's database and user."""
        pool = self.all.get((node, client.settings.dbname, client.settings.user))
        return len(pool.state.taken) + len(pool.state.waiting) if pool is not None else 0

    def by_node(self) -> dict[str, int]:
        """How many servers there are, or are being opened, of each node that has any."""
        counts: dict[str, int] = {}
        for pool in self.all.values():
            if pool.state.size:
                counts[pool.node] = counts.get(pool.node, 0) + pool.state.size
        return counts

    def reaches(self, node: str) -> bool:
        """Whether there is a server of this node."""
        return any(pool.state.idle or pool.state.taken for pool in self.all.values() if pool.node == node)

    # ---- limits

    def permits(self, key: str, limit: int) -> int:
        """How many of `limit` this worker may hold."""
        granted = self.granted.get(key)
        if granted is not None:
            return granted
        return first_share(key, limit, self.worker.index, self.worker.workers)

    def grant(self, key: str, permits: int) -> None:
        """The controller's word on a limit."""
        self.granted[key] = permits
        for pool in self.all.values():
            if pool.key == key:
                pool.state.limit = permits
                self._shrink(pool)
        while self._held(key) > permits and key not in (p.key for p in self.all.values()):
            if not self._evict(None, None if key == "total" else key.removeprefix("node:")):
                break
        self._give_back(key)
        for pool in self.all.values():
            if pool.state.waiting:
                pool.open_more()

    def _shrink(self, pool: ServerPool) -> None:
        """Close idle servers beyond the limit; busy ones go when they are free."""
        for server in list(pool.state.surplus()):
            pool.close(server, "the pool was made smaller")
        pool.oversize = pool.state.size > pool.state.limit

    def ask(self, key: str, count: int, limit: int) -> None:
        """Ask for permits, at most every 100 ms a key."""
        if self.worker.workers == 1:
            return
        now = self.worker.clock.now()
        if now - self.asked.get(key, -1.0) >= 0.1:
            self.asked[key] = now
            self.worker.ask_permits(key, count, limit)

    def freed(self, pool: ServerPool) -> None:
        """A server's socket is closed: what was held beyond a grant goes back."""
        for key in (pool.key, f"node:{pool.node}", "total"):
            self._give_back(key)

    def _give_back(self, key: str) -> None:
        """Say how much of a granted limit is still held; the rest is free for others."""
        granted = self.granted.get(key)
        if granted is not None and self.worker.workers > 1:
            self.worker.give_back(key, max(granted, self._held(key)))

    def _held(self, key: str) -> int:
        if key == "total":
            return self._count(None)
        if key.startswith("node:"):
            return self._count(key.removeprefix("node:"))
        return sum(pool.state.size for pool in self.all.values() if pool.key == key)

    def may_open(self, pool: ServerPool) -> bool:
        """Whether node and total limits leave room, closing somebody's idle server if need be."""
        worker = self.worker
        settings = worker.config.nodes.get(pool.node)
        node_limit = settings.max_connections if settings is not None else 0
        if node_limit:
            limit = self.permits(f"node:{pool.node}", node_limit)
            if self._count(pool.node) >= limit and not self._evict(pool, pool.node):
                self.ask(f"node:{pool.node}", 1, node_limit)
                return False
        total = worker.config.pool.max_total
        if total:
            limit = self.permits("total", total)
            if self._count(None) >= limit and not self._evict(pool, None):
                self.ask("total", 1, total)
                return False
        return True

    def _count(self, node: str | None) -> int:
        return sum(p.state.size for p in self.all.values() if node is None or p.node == node)

    def _evict(self, wants: ServerPool | None, node: str | None) -> bool:
        """Close the idle server that has been idle longest in another pool."""
        oldest: Server | None = None
        for pool in self.all.values():
            if pool is wants or (node is not None and pool.node != node):
                continue
            for server in pool.state.idle:
                if oldest is None or server.idle_since < oldest.idle_since:
                    oldest = server
                break
        if oldest is None:
            return False
        oldest.pool.close(oldest, "another pool needed its place")
        return True

    # ---- upkeep

    def upkeep(self, now: float) -> None:
        """One pass over waiters and servers, ten times a second."""
        settings = self.worker.config.pool
        now_ns = self.worker.clock.boot_ns()
        nodes = self.worker.snapshot.nodes.values()
        overdue = [view.name for view in nodes if view.drain is not None and now_ns >= view.drain.until_ns]
        for pool in list(self.all.values()):
            state = pool.state
            if pool.node in overdue:
                pool.end_drain()
            if state.waiting:
                self._expire_waiters(pool, now, settings.checkout_timeout)
                pool.open_more()
            elif pool.reserve_used:
                pool.reserve_used = False
                pool.oversize = True

    def _expire_waiters(self, pool: ServerPool, now: float, timeout: float) -> None:
        if not timeout:
            return
        for waiter, since in list(pool.state.waiting.items()):
            if now - since < timeout:
                break
            pool.state.leave(waiter)
            pool.counters.checkout_timeouts += 1
            detail = ""
            if pool.last_error is not None:
                detail = f"The last attempt to open a server failed: {pool.last_error.message}"
            waiter.refused(
                NoServer(
                    f"no server of pool {pool.key} became free within {timeout:g} s "
                    f"({len(pool.state.taken)} of {pool.size} in use, {len(pool.state.waiting)} clients waiting)",
                    hint="Raise pool.pool_size, or make transactions shorter.",
                    detail=detail,
                )
            )

    def housekeeping(self, now: float) -> None:
        """Once a second: idle and old servers, time-outs of statements, minimal sizes."""
        settings = self.worker.config.pool
        nodes = self.worker.snapshot.nodes
        for pool in list(self.all.values()):
            view = nodes.get(pool.node)
            gone = view is None or view.drain is not None
            generation = pool.generation
            for server in list(pool.state.idle):
                idle = now - server.idle_since
                if gone or server.generation != generation:
                    pool.close(server, "its node was replaced")
                elif (server.expires and now > server.expires) or (
                    settings.idle_timeout and idle > settings.idle_timeout and pool.state.size > settings.min_pool_size
                ):
                    pool.close(server, "its time was up")
            for server in list(pool.state.taken):
                if gone or server.generation != generation or (server.expires and now > server.expires):
                    server.retired = True
                if server.abandoned_at and now - server.abandoned_at > settings.drain_timeout:
                    pool.close(server, "it did not finish what its client had left")
                elif settings.query_timeout and server.owed and server.owner is not None and not server.cancelling:
                    # One that goes on is cancelled again when as much time has passed.
                    since = max(server.working_since, server.cancelled_at)
                    if now - since > settings.query_timeout:
                        pool.counters.query_timeouts += 1
                        server.cancelled_at = now
                        pool.cancel(server)
            if settings.min_pool_size and not gone:
                pool.fill(settings.min_pool_size)

    def generations_changed(self) -> None:
        """A new snapshot: servers of a node's earlier generation take no more work, and what a login is told
        may have changed on all nodes."""
        for pool in self.all.values():
            pool.welcomes.clear()
            generation = pool.generation
            for server in [*pool.state.idle, *pool.state.taken]:
                if server.generation != generation:
                    server.retired = True
            for server in list(pool.state.idle):
                if server.retired:
                    pool.close(server, "its node was replaced")

    def primary_changed(self) -> None:
        """Another node is the primary: what was shown of the old one no longer holds."""
        self.primary_view.clear()
        for pool in self.all.values():
            pool.welcomes.clear()

    def reconfigured(self) -> None:
        """A reload: sizes anew. Servers in use are left alone."""
        config = self.worker.config
        for pool in self.all.values():
            settings = self.worker.settings_for(pool.database, pool.user)
            if settings.pool_size != pool.size and pool.key in self.granted and self.worker.workers > 1:
                self.worker.ask_permits(pool.key, 0, settings.pool_size)
            pool.size = settings.pool_size
            pool.state.limit = self.permits(pool.key, pool.size)
            pool.state.max_waiting = config.pool.max_waiting
            pool.reserve = config.pool.reserve
            self._shrink(pool)

    def close_all(self) -> None:
        """At shutdown."""
        for pool in self.all.values():
            for server in [*pool.state.idle, *pool.state.taken]:
                pool.close(server, "shutdown")
