"""The data plane of one worker process: clients, pools, and obedience to the latest snapshot.

Owns what all clients of the worker share: classifier, router, statements, states, holds, cancel keys,
counters. It decides nothing about topology. Called by `run_worker` (messages from the controller) and
by everything else in this package.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import random
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from .. import ids, log
from ..clock import Clock
from ..config.schema import Config, Database, PoolMode
from ..errors import NoNode, Terminated, TridentError
from ..ipc.board import Board, slot_of
from ..ipc.messages import (
    Ask,
    Counters,
    Fresh,
    GiveBack,
    Grant,
    KnownCatalogue,
    KnownShapes,
    Message,
    NeedFreshness,
    Publish,
    Reconfigure,
    Report,
    ReportRequest,
    Setup,
    Suspicion,
)
from ..metrics.counters import WorkerCounters
from ..routing.router import Hold, Route, Router
from ..session.prepared import Statements
from ..session.state import States
from ..session.trust import Trust
from ..sql.classify import Classifier
from ..sql.model import Class, Classification
from ..topology.model import Health, Role
from ..topology.snapshot import Freshness, NodeView, Snapshot
from ..wire import build
from ..wire.auth import Credentials
from . import keys, upkeep
from .accept import Acceptor
from .authenticate import LoggedIn
from .balance import Peers
from .capability import Capabilities
from .catalogues import Catalogues
from .client import Client
from .connect import dial, tls_mode, with_passfile
from .lookup import CONSOLE_DATABASES
from .pools import Pools, ServerPool
from .relay import tie
from .unit import Kind, Unit


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What holds for the clients of one database and user."""

    mode: PoolMode
    dbname: str
    """The database's name on the nodes."""
    user: str
    """Who the servers are logged in as."""
    pool_size: int
    split: bool


class Worker:
    """See the module."""

    def __init__(
        self, setup: Setup, index: int, clock: Clock, rng: random.Random, send: Callable[[Message], None]
    ) -> None:
        self.config: Config = setup.config
        self.snapshot: Snapshot = setup.snapshot
        self.freshness = Freshness()
        self.instance = setup.instance
        self.index = index
        self.workers = setup.workers
        self.clock = clock
        self.rng = rng
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.log = log.get_logger("dataplane")
        self.counters = WorkerCounters()
        self.send = send
        self._console = setup.console
        self._datagrams = setup.datagrams
        self._board = Board(setup.board, index) if setup.board else None
        self._written: dict[str, int] = {}
        self._started_ns = clock.boot_ns()
        """What was written before is not known here."""
        self._need_asked = 0.0
        self._needed_ns = 0
        self.states = States()
        self.trust = Trust()
        self.statements = Statements(b"pgt_" + os.urandom(4).hex().encode() + b"_")
        self.classifier = Classifier(self.config.routing.cache_entries, self.config.routing.cache_bytes)
        self.router = Router(self.snapshot, analytic_to_primary=self.config.routing.analytic_to_primary)
        self.now = clock.now()
        """The clock as of the last pass of upkeep: near enough for idle times, and free."""
        self.pools = Pools(self)
        self.pools.granted.update(setup.permits)
        self.capabilities = Capabilities(self)
        self.clients: dict[int, Client] = {}
        self._relays = 0
        self._named: dict[int, Client] = {}
        """Clients by the process id that they were told."""
        self._serial = 0
        self._held: dict[Client, tuple[float, TridentError]] = {}
        self.catalogues = Catalogues(self, self._board if self.workers > 1 else None)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._peers: Peers | None = None
        self._acceptor = Acceptor(self, self._elsewhere)
        self._passfile = ""

    # ------------------------------------------------------------------ life

    async def start(self, listen_sockets: list[socket.socket]) -> None:
        """Serve on these sockets."""
        if self.config.auth.passfile:
            self._passfile = await asyncio.to_thread(_read, self.config.auth.passfile)
        if self._board is not None and self.workers > 1:
            self._peers = Peers(
                loop=self.loop,
                clock=self.clock,
                log=self.log,
                board=self._board,
                index=self.index,
                paths=self._datagrams,
                load=lambda: (self._own_clients(), self.counters.logins_current),
                take=self._acceptor.take,
                cancel=self._cancel,
            )
        self.spawn(upkeep.run(self), "upkeep")
        self._acceptor.start(listen_sockets)

    async def stop(self, seconds: float) -> None:
        """Take no more clients; return when transactions have ended, or after `seconds`."""
        self._acceptor.stop()
        if self._peers is not None:
            self._peers.stop()
        deadline = self.clock.now() + seconds
        while True:
            for client in list(self.clients.values()):
                if client.idle or self.clock.now() >= deadline:
                    client.fail(Terminated("terminating connection because the proxy is shutting down"))
            if not self.clients or self.clock.now() >= deadline:
                break
            await asyncio.sleep(0.02)
        self._acceptor.close()
        self.pools.close_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._peers is not None:
            self._peers.close()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """The one door for tasks: named, held, failures logged."""
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("task_failed", task=task.get_name(), exc_info=error)

    # ------------------------------------------------------------------ the controller's word

    def handle(self, message: Message) -> None:
        """A message from the controller."""
        match message:
            case Publish(snapshot):
                self._publish(snapshot)
            case Fresh(freshness):
                self.freshness = freshness
                self._release_held()
            case KnownCatalogue(database, read_ns, catalogue):
                self.catalogues.learn(database, read_ns, catalogue)
            case KnownShapes(database, refused):
                self.catalogues.told(database, refused)
            case Reconfigure(config):
                self._reconfigure(config)
            case Grant(key, permits):
                self.pools.grant(key, permits)
            case ReportRequest(number, kind):
                self.send(Report(number, self.index, upkeep.report(self, kind)))
            case _:
                pass

    def _publish(self, snapshot: Snapshot) -> None:
        before = self.snapshot
        self.snapshot = snapshot
        self.router = Router(snapshot, analytic_to_primary=self.config.routing.analytic_to_primary)
        # While there is none, what the last one said still greets new clients.
        if snapshot.primary not in ("", before.primary):
            self.pools.primary_changed()
        if _generations(snapshot) != _generations(before):
            self.pools.generations_changed()
            self._acceptor.forget_users()
            keys.cache.forget()
        for pool in list(self.pools.all.values()):
            view = snapshot.nodes.get(pool.node)
            if view is not None and view.health is Health.DOWN:
                pool.cut()
            self._move_waiters(pool)
        self._release_held()

    def _move_waiters(self, pool: ServerPool) -> None:
        """Who waits at a node that no longer serves is routed again."""
        snapshot = self.snapshot
        if pool.node == snapshot.primary or pool.node in snapshot.replicas or pool.node in snapshot.columnar:
            pool.open_more()
            return
        for waiter in list(pool.state.waiting):
            pool.leave(waiter)
            waiter.leave_for_another()

    def _reconfigure(self, config: Config) -> None:
        self.config = config
        self._acceptor.forget_users()
        self.pools.reconfigured()
        self._publish(self.snapshot)

    def permits(self) -> dict[str, int]:
        """What this worker may hold by key, where that is not its first share."""
        return dict(self.pools.granted)

    def suspect(self, node: str, what: str) -> None:
        """Tell the controller of something seen on a node."""
        self.send(Suspicion(node, what))

    def ask_permits(self, key: str, count: int, limit: int) -> None:
        self.send(Ask(self.index, key, count, limit))

    def give_back(self, key: str, count: int) -> None:
        self.send(GiveBack(self.index, key, count))

    def send_counters(self) -> None:
        """Once a second."""
        self.counters.classify_hits = self.classifier.hits
        self.counters.classify_misses = self.classifier.misses
        self.counters.clients_current = self._own_clients()
        self.counters.held_current = len(self._held)
        self.counters.pinned_current = sum(1 for c in self.clients.values() if c.pins)
        self.send(Counters(self.index, self.counters.as_dict(), upkeep.report(self, "pools")))

    # ------------------------------------------------------------------ clients come and go

    def clients_count(self) -> int:
        """Clients of all workers: `listen.max_clients` holds over them."""
        elsewhere = self._peers.clients_elsewhere() if self._peers is not None else 0
        return self._own_clients() + elsewhere

    def _own_clients(self) -> int:
        return len(self.clients) + self._relays

    def tell_load(self, adopted: int = 0) -> None:
        """Let the other workers know how many clients there are here (`Peers.tell`)."""
        if self._peers is not None:
            self._peers.tell(adopted)

    def _elsewhere(self, sock: socket.socket) -> bool:
        return self._peers is not None and self._peers.elsewhere(sock)

    def is_replica(self, node: str) -> bool:
        view = self.snapshot.nodes.get(node)
        return view is not None and view.role is Role.REPLICA

    def primary_node(self) -> NodeView | None:
        return self.snapshot.nodes.get(self.snapshot.primary)

    def settings_for(self, database: str, user: str) -> ClientSettings:
        """What holds for a client of this database and user: its user's word over its database's."""
        config = self.config
        db = self._database(database)
        who = config.users.get(user)
        mode = (who.pool_mode if who else None) or (db.pool_mode if db else None) or config.pool.mode
        size = (who.pool_size if who else 0) or (db.pool_size if db else 0) or config.pool.pool_size
        split = config.routing.read_split
        if db is not None and db.read_split is not None:
            split = db.read_split
        return ClientSettings(
            mode=mode,
            dbname=(db.dbname if db else "") or database,
            user=(db.user if db else "") or user,
            pool_size=size,
            # Session pooling gives one server to a client, so everything goes to the primary.
            split=split and mode == "transaction",
        )

    def _database(self, name: str) -> Database | None:
        """What the configuration says of a database."""
        return self.config.databases.get(name) or self.config.databases.get("*")

    def _credentials_for(self, login: LoggedIn) -> Credentials | None:
        """How servers of a client's pool log in; None when nothing is known but its name."""
        db = self._database(login.database)
        if db is not None and db.user:
            return Credentials(db.user, password=db.password or None)
        return login.credentials

    def adopt(self, transport: asyncio.Transport, logged_in: LoggedIn, leftover: bytes) -> None:
        """A client has logged in. Reading is paused; AuthenticationOk has not been sent."""
        if logged_in.database in CONSOLE_DATABASES and logged_in.database not in self.config.databases:
            self.spawn(self._relay_console(transport, logged_in, leftover), "console")
            return
        if logged_in.replication:
            self.spawn(self._relay_replication(transport, logged_in, leftover), "replication")
            return
        config = self.config
        if config.databases and logged_in.database not in config.databases and "*" not in config.databases:
            error = TridentError(f'database "{logged_in.database}" does not exist', sqlstate="3D000")
            transport.write(build.error_response(error, "FATAL"))
            transport.close()
            return
        settings = self.settings_for(logged_in.database, logged_in.user)
        who = config.users.get(logged_in.user)
        if who is not None and who.max_clients:
            mine = sum(1 for c in self.clients.values() if c.login.user == logged_in.user)
            if mine >= who.max_clients:
                error = TridentError(f'too many connections for role "{logged_in.user}"', sqlstate="53300")
                transport.write(build.error_response(error, "FATAL"))
                transport.close()
                return
        credentials = self._credentials_for(logged_in)
        if credentials is not None:
            self.pools.logged_in(settings.dbname, settings.user, credentials)
        self._serial += 1
        client = Client(self, transport, logged_in, settings, self._serial)
        self.clients[client.number] = client
        self.tell_load(adopted=1)
        self.client_event(client, "client_connected", peer=logged_in.peer, auth=logged_in.authenticated_by)
        transport.set_protocol(cast(asyncio.Protocol, client))
        self.catalogues.arrive(client, leftover)

    def let_in(self, client: Client, leftover: bytes) -> None:
        """A logged-in client may begin; it has sent this already."""
        if client.closed:
            return
        client.welcome()
        if leftover:
            client.data_received(leftover)
        if not client.closed:
            client.transport.resume_reading()

    def give_key(self, client: Client, pid: int) -> None:
        """The key that cancels this client's statements. All 32 (3.2: 256) bits of it are random; which
        worker gave it out is found by asking them all."""
        if not pid or pid in self._named:
            pid = ids.free_pid(self.instance, self.index, client.number, self._named)
        client.pid = pid
        self._named[pid] = client
        client.key = os.urandom(4 if client.login.minor < 2 else 32)

    def named(self, pid: int) -> bool:
        """Whether some client was told this process id: it is to be nobody else's."""
        return pid in self._named

    def client_gone(self, client: Client) -> None:
        """A client has ended."""
        self.clients.pop(client.number, None)
        if self._named.get(client.pid) is client:
            del self._named[client.pid]
        self._held.pop(client, None)
        self.tell_load()
        self.client_event(client, "client_disconnected")

    def client_event(self, client: Client, event: str, **fields: object) -> None:
        """One line for a connection event, if they are wanted."""
        if self.config.log.connections:
            self.log.info(event, client=client.number, user=client.login.user, database=client.login.database, **fields)

    async def _relay_console(self, transport: asyncio.Transport, logged_in: LoggedIn, leftover: bytes) -> None:
        allowed = self.config.admin.users
        try:
            if allowed and logged_in.user not in allowed:
                raise TridentError(f'user "{logged_in.user}" may not use the console', sqlstate="42501")
            try:
                server, _ = await self.loop.create_unix_connection(asyncio.Protocol, self._console)
            except OSError as error:
                raise TridentError("the controller is away; its console is not available", sqlstate="57P03") from error
        except TridentError as refusal:
            transport.write(build.error_response(refusal, "FATAL"))
            transport.close()
            return
        server.pause_reading()
        params = {"user": logged_in.user, "database": logged_in.database}
        hello = build.startup(params, 196608)
        self._relays += 1
        tie(transport, server, hello + leftover, b"", self._relay_gone)

    async def _relay_replication(self, transport: asyncio.Transport, logged_in: LoggedIn, leftover: bytes) -> None:
        """A replication connection: straight to the primary, a server of its own."""
        view = self.primary_node()
        settings = self.settings_for(logged_in.database, logged_in.user)
        try:
            if view is None:
                raise NoNode("no primary is in service for a replication connection")
            params = {"database": settings.dbname, "replication": logged_in.replication, **logged_in.params}
            dialled = await dial(
                view,
                self.config.server,
                tls_mode(self.config, view.name),
                self.completed(self._credentials_for(logged_in) or Credentials(settings.user), view, settings.dbname),
                params,
                loop=self.loop,
                deadline=self.loop.time() + self.config.server.connect_timeout,
            )
        except TridentError as error:
            transport.write(build.error_response(error, "FATAL"))
            transport.close()
            return
        greeting = [build.AUTHENTICATION_OK]
        greeting.extend(build.parameter_status(n, v) for n, v in dialled.parameters.items())
        # Its real key: nothing else of such a connection is ours, and a cancel reaches the node by it.
        greeting.append(build.backend_key(dialled.pid, dialled.key))
        greeting.append(build.ready(0x49))
        self._relays += 1
        tie(transport, dialled.transport, leftover, b"".join(greeting) + dialled.leftover, self._relay_gone)

    def _relay_gone(self) -> None:
        self._relays -= 1

    def forget_user(self, user: str) -> None:
        """A node no longer lets a user in: what was looked up of it may be old."""
        self._acceptor.forget_users(user)

    def completed(self, credentials: Credentials, view: NodeView, database: str) -> Credentials:
        """Credentials with the password of the password file, where they have none."""
        return with_passfile(credentials, self._passfile, view, database) if self._passfile else credentials

    # ------------------------------------------------------------------ cancel

    async def cancel_request(self, pid: int, key: bytes) -> None:
        """A CancelRequest reached this worker; its owner may be another one."""
        if self._holder(pid, key) is not None:
            self._cancel(pid, key)
        elif self._peers is not None:
            for worker in range(self.workers):
                if worker != self.index:
                    await self._peers.forward_cancel(worker, pid, key)

    def _holder(self, pid: int, key: bytes) -> Client | None:
        """The client that was given this process id and this key."""
        client = self._named.get(pid)
        return client if client is not None and hmac.compare_digest(client.key, key) else None

    def _cancel(self, pid: int, key: bytes) -> None:
        client = self._holder(pid, key)
        if client is not None:
            client.cancel()

    # ------------------------------------------------------------------ routing

    def written_ns(self, client: Client) -> int:
        """When the client's database was last written, by any worker (boot_ns)."""
        if self._board is not None and self.workers > 1:
            return self._board.latest(slot_of(client.settings.dbname))
        return self._written.get(client.settings.dbname, self._started_ns)

    def wrote(self, database: str) -> None:
        """A unit that may have written has ended. To be said before its client can know, whose next read
        may go through another worker."""
        now = self.clock.boot_ns()
        if self._board is not None and self.workers > 1:
            self._board.note(slot_of(database), now)
        else:
            self._written[database] = now

    def need_freshness(self, written_ns: int) -> None:
        """Reads wait for copies to hold what was written; the controller looks while it is asked."""
        now = self.clock.now()
        self._needed_ns = max(self._needed_ns, written_ns, 1)
        if now - self._need_asked >= 0.05:
            self._need_asked = now
            self.send(NeedFreshness(self._needed_ns))

    def primary_pool(self, client: Client) -> ServerPool | None:
        """The client's pool on the primary."""
        primary = self.snapshot.primary
        return self.pools.pool(primary, client) if primary else None

    def known_pool(self, client: Client) -> ServerPool | None:
        """A pool of the client's database and user from which its greeting can be known."""
        for node in (self.snapshot.primary, *self.snapshot.nodes):
            pool = self.pools.all.get((node, client.settings.dbname, client.settings.user))
            if pool is not None and pool.welcomes:
                return pool
        return None

    def route_plain(self, client: Client, classification: Classification) -> Route | None:
        """The route of a plain unit that needs no wait of any kind; else None."""
        if classification.cls is Class.ANALYTIC:
            return None
        try:
            route = self._route(client, classification.cls, self.written_ns(client), False)
        except NoNode:
            return None
        return route if isinstance(route, Route) else None

    def route_unit(self, client: Client, unit: Unit) -> Route | Hold | None:
        """The route of a unit; None when something is being found out first (the client is told).

        Raises NoNode when nothing may serve it.
        """
        able = False
        if unit.cls is Class.ANALYTIC and client.settings.split and self.snapshot.has_columnar:
            known = self.capabilities.able(client, unit)
            if known is None:
                return None
            able = known
        if unit.kind is Kind.WELCOME and not self.snapshot.primary:
            # Any node can tell whether the client's settings are right, and no name is read.
            return self._route(client, Class.READ, unit.mark, able, known=True)
        return self._route(client, unit.cls, unit.mark, able)

    def _route(self, client: Client, cls: Class, written_ns: int, able: bool, *, known: bool = False) -> Route | Hold:
        """`known`: the catalogue doesn't matter."""
        reads = cls is Class.READ or cls is Class.ANALYTIC
        fresh = self.freshness
        settings = client.settings
        route = self.router.route(
            cls,
            split=settings.split,
            known=known or not reads or self.catalogues.believed(client),
            written_ns=written_ns,
            replicas_ns=fresh.replicas_ns,
            columnar_ns=fresh.columnar_ns,
            columnar_able=able,
            load=lambda node: self.pools.load(node, client),
        )
        if isinstance(route, Hold):
            self.need_freshness(written_ns)
        else:
            if route.reason == "after_write":
                self.need_freshness(written_ns)
            self.counters.routed(route.node, route.reason)
        return route

    def count(self, cls: Class) -> None:
        """A unit of this class is sent."""
        counters = self.counters
        if cls is Class.WRITE:
            counters.routed_write += 1
        elif cls is Class.READ:
            counters.routed_read += 1
        elif cls is Class.ANALYTIC:
            counters.routed_analytic += 1
        else:
            counters.routed_session += 1

    def has_alternative(self, client: Client, node: str) -> bool:
        """Whether a client waiting at `node` could be served by another one."""
        return client.wants_read and any(name != node for name in self.snapshot.replicas)

    # ------------------------------------------------------------------ holds

    def hold(self, client: Client, since: float, error: TridentError) -> bool:
        """Keep a client's unit until the fleet changes; False when it has waited long enough, or too
        many wait."""
        timeout = self.config.routing.hold_timeout
        if self.config.pool.checkout_timeout:
            timeout = min(timeout, self.config.pool.checkout_timeout)
        if self.clock.now() - since >= timeout or len(self._held) >= self.config.routing.max_held:
            return False
        self._held[client] = (since + timeout, error)
        self.counters.held += 1
        return True

    def unhold(self, client: Client) -> None:
        self._held.pop(client, None)

    def _release_held(self) -> None:
        held = list(self._held)
        self._held.clear()
        for client in held:
            client.released_from_hold()

    def expire_holds(self, now: float) -> None:
        """Refuse those whose time is up; ask again for what the others wait for."""
        if self._held and self._needed_ns:
            self.need_freshness(self._needed_ns)
        for client, (until, error) in list(self._held.items()):
            if now >= until:
                del self._held[client]
                client.refused(error)


def _generations(snapshot: Snapshot) -> dict[str, int]:
    return {name: view.generation for name, view in snapshot.nodes.items()}


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
