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
from ..errors import LoginError, NoNode, Terminated, TridentError
from ..ipc.board import Board
from ..ipc.messages import (
    Ask,
    Counters,
    Fresh,
    GiveBack,
    Grant,
    KnownCatalogue,
    KnownClasses,
    KnownHomes,
    KnownShapes,
    Message,
    Publish,
    Reconfigure,
    Report,
    ReportRequest,
    Setup,
    Suspicion,
)
from ..metrics.counters import WorkerCounters
from ..routing.balance import Balancer
from ..routing.policy import Decision, Policies
from ..routing.router import Router
from ..session.prepared import Statements
from ..session.state import States
from ..session.trust import Trust
from ..sql.classify import Classifier
from ..sql.hints import Hints, Splitter
from ..sql.model import Class
from ..sql.seen import Seen
from ..topology.model import Health, Role
from ..topology.snapshot import NodeView, Snapshot
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
from .consistency import Consistency
from .lookup import CONSOLE_DATABASES
from .measure import Measures
from .pools import Pools, ServerPool
from .relay import tie
from .routes import Routes
from .services import Services
from .witness import Witness


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
    consistency: str
    analytic_consistency: str
    transactions: str


class Worker:
    """See the module."""

    def __init__(
        self, setup: Setup, index: int, clock: Clock, rng: random.Random, send: Callable[[Message], None]
    ) -> None:
        self.config: Config = setup.config
        self.snapshot: Snapshot = setup.snapshot
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
        self.consistency = Consistency(self, self._board)
        self._balancer = Balancer()
        self.routes = Routes(self, self._balancer)
        self.states = States()
        self.trust = Trust()
        self.statements = Statements(b"pgt_" + os.urandom(4).hex().encode() + b"_")
        self.classifier = Classifier(self.config.routing.cache_entries, self.config.routing.cache_bytes)
        self.witness = Witness(self)
        self.seen = Seen()
        self.router = self._new_router()
        routing = self.config.routing
        self.policies = Policies(self.config)
        self.services = Services(self)
        self.splitter = Splitter(routing.cache_entries // 4, routing.cache_bytes // 4)
        self.now = clock.now()
        """The clock as of the last pass of upkeep: near enough for idle times, and free."""
        self.pools = Pools(self)
        self.pools.granted.update(setup.permits)
        self.capabilities = Capabilities(self)
        self.measures = Measures(self)
        self.clients: dict[int, Client] = {}
        self._relays = 0
        self._named: dict[int, Client] = {}
        """Clients by the process id that they were told."""
        self._serial = 0
        self._held: dict[Client, tuple[float, TridentError | None]] = {}
        """Until when, and the error then; without one the unit goes on to where it needs no wait."""
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
        self.witness.stop()
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
                self.consistency.told(freshness)
                self.router.refresh(self.consistency.freshness)
                self._release_held()
            case KnownCatalogue(database, read_ns, catalogue):
                self.catalogues.learn(database, read_ns, catalogue)
            case KnownShapes(database, refused):
                self.catalogues.told(database, refused)
            case KnownClasses(database, classes):
                self.catalogues.told_classes(database, classes)
            case KnownHomes(homes):
                self.services.told(homes)
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
        self.router = self._new_router()
        self.services.published()
        self.measures.published()
        self.capabilities.came([name for name in snapshot.columnar if name not in before.columnar])
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
        self.services.upkeep()
        self._release_held()

    def _new_router(self) -> Router:
        config = self.config
        self._balancer.method = config.routing.balance
        router = Router(
            self.snapshot,
            analytic_to_primary=config.routing.analytic_to_primary,
            balancer=self._balancer,
            shares={name: node.weight for name, node in config.nodes.items()},
            zones={name: node.zone for name, node in config.nodes.items()},
            zone=config.routing.zone,
            fallback_share=config.routing.fallback_share,
        )
        router.refresh(self.consistency.freshness)
        return router

    def _move_waiters(self, pool: ServerPool) -> None:
        """Who waits at a node that no longer serves is routed again."""
        snapshot = self.snapshot
        serving = pool.is_primary() or pool.node in snapshot.replicas or pool.node in snapshot.columnar
        if serving and not self.services.leaves(pool.node):
            pool.open_more()
            return
        for waiter in list(pool.state.waiting):
            pool.leave(waiter)
            waiter.leave_for_another()

    def copy_doubted(self, node: str) -> None:
        """What a copy holds isn't known any more: who waits there is routed again."""
        self.router.refresh(self.consistency.freshness)
        for client in list(self.clients.values()):
            pool = client.waiting_in
            if pool is not None and pool.node == node:
                pool.leave(client)
                client.leave_for_another()

    def _reconfigure(self, config: Config) -> None:
        self.config = config
        self.policies = Policies(config)
        for client in self.clients.values():
            client.rule()
        self.services.reconfigured()
        self.capabilities.reconfigured()
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
        self.counters.classify_exact = self.classifier.hits_exact
        self.counters.classify_folded = self.classifier.hits_folded
        self.counters.classify_shape = self.classifier.hits_shape
        self.counters.classify_misses = self.classifier.misses
        self.counters.clients_current = self._own_clients()
        self.counters.held_current = len(self._held)
        self.counters.pinned_current = sum(1 for c in self.clients.values() if c.pins)
        self.send(
            Counters(
                self.index,
                self.counters.as_dict(),
                upkeep.report(self, "pools"),
                self.snapshot.version,
                self.pools.by_node(),
            )
        )

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

    def is_columnar(self, node: str) -> bool:
        view = self.snapshot.nodes.get(node)
        return view is not None and view.role is Role.COLUMNAR

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
            consistency=(db.consistency if db else None) or config.routing.consistency,
            analytic_consistency=config.routing.analytic_consistency,
            transactions=(who.transactions if who else None)
            or (db.transactions if db else None)
            or config.routing.transactions,
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
        try:
            self.services.check(logged_in)
        except LoginError as refusal:
            transport.write(build.error_response(refusal, "FATAL"))
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
        client.tie = self.services.tie(client)
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

    def note_decision(self, client: Client, decision: Decision, hints: Hints | None) -> None:
        """Count what rules did, and what was asked for in vain."""
        counters = self.counters
        if decision.rule:
            counters.ruled(decision.rule, "held")
        for shadow in decision.shadows:
            counters.ruled(shadow.rule, "differs" if shadow.differs else "same")
        ignored = decision.ignored + (hints.ignored if hints is not None else ())
        if ignored:
            counters.hints_ignored += 1
            client.tell_ignored(ignored)

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

    def hold(self, client: Client, since: float, error: TridentError | None, seconds: float = 0.0) -> bool:
        """Keep a client's unit until the fleet changes, at most `seconds` or `hold_timeout`; False when it has waited
        long enough, or too many wait. Without an error it goes on then."""
        timeout = seconds or self.config.routing.hold_timeout
        if self.config.pool.checkout_timeout:
            timeout = min(timeout, self.config.pool.checkout_timeout)
        now = self.clock.now()
        if now - since >= timeout or len(self._held) >= self.config.routing.max_held:
            return False
        self._held[client] = (since + timeout, error)
        self.counters.held += 1
        rest = since + timeout - now
        if error is None and rest < 2 * upkeep.PERIOD:  # upkeep ends a longer one
            self.loop.call_later(rest, self._expire_hold, client)
        return True

    def _expire_hold(self, client: Client) -> None:
        """A wait that ends before the next pass of upkeep."""
        held = self._held.get(client)
        if held is not None and held[1] is None and self.clock.now() >= held[0] - 0.001:
            del self._held[client]
            client.waited()

    def unhold(self, client: Client) -> None:
        self._held.pop(client, None)

    def _release_held(self) -> None:
        held = list(self._held)
        self._held.clear()
        for client in held:
            client.released_from_hold()

    def expire_holds(self, now: float) -> None:
        """Refuse those whose time is up, or let them go on."""
        for client, (until, error) in list(self._held.items()):
            if now >= until:
                del self._held[client]
                if error is None:
                    client.waited()
                else:
                    client.refused(error)


def _generations(snapshot: Snapshot) -> dict[str, int]:
    return {name: view.generation for name, view in snapshot.nodes.items()}


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
