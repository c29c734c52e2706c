"""The periodic pass of a worker, and what it reports of itself.

One task, ten passes a second, instead of a timer per object. Called by `worker`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..errors import Terminated
from ..wire.codes import IDLE

if TYPE_CHECKING:
    from .client import Client
    from .worker import Worker

PERIOD = 0.1


async def run(worker: Worker) -> None:
    """For ever."""
    passes = 0
    while True:
        await asyncio.sleep(PERIOD)
        passes += 1
        now = worker.now = worker.clock.now()
        worker.pools.upkeep(now)
        worker.expire_holds(now)
        worker.catalogues.upkeep()
        worker.witness.upkeep()
        worker.tell_load()
        if passes % 10 == 0:
            worker.pools.housekeeping(now)
            worker.services.upkeep()
            _idle_clients(worker, now)
            worker.seen.fold()
            worker.measures.upkeep()
            worker.send_counters()


def _idle_clients(worker: Worker, now: float) -> None:
    """End clients that were idle too long, in a transaction or at all."""
    settings = worker.config.pool
    in_transaction = settings.idle_in_transaction_timeout
    idle = settings.client_idle_timeout
    if not in_transaction and not idle:
        return
    for client in list(worker.clients.values()):
        quiet = client.quiet_since(now)
        if quiet is None:
            continue
        server = client.server
        if client.virtual is not None or (server is not None and server.status != IDLE):
            if in_transaction and now - quiet >= in_transaction:
                client.fail(Terminated("terminating connection due to idle-in-transaction timeout", sqlstate="25P03"))
        elif idle and now - quiet >= idle:
            client.fail(Terminated("terminating connection due to idle-session timeout", sqlstate="57P05"))


def report(worker: Worker, kind: str) -> list[dict[str, Any]]:
    """Rows for the console; the keys are those of `admin.view`."""
    if kind == "clients":
        return [_client_row(client) for client in worker.clients.values()]
    if kind == "shapes":
        worker.seen.fold()
        return worker.seen.take()
    if kind == "servers":
        return _server_rows(worker)
    if kind == "services":
        return worker.services.rows()
    return _pool_rows(worker)


def _client_row(client: Client) -> dict[str, Any]:
    server = client.server
    host, _, port = client.login.peer.rpartition(":")
    return {
        "id": client.number,
        "user": client.login.user,
        "database": client.login.database,
        "state": "waiting" if client.waiting_in is not None else "active" if server is not None else "idle",
        "addr": host,
        "port": int(port) if port.isdigit() else 0,
        "connect_time": client.connected_at,
        "tls": client.login.tls,
        "application_name": client.shown.get("application_name", ""),
        "node": server.pool.node if server is not None else None,
        "link": server.pid if server is not None else None,
        "pin": ", ".join(sorted(client.pins)) or None,
    }


def _server_rows(worker: Worker) -> list[dict[str, Any]]:
    rows = []
    for pool in worker.pools.all.values():
        for server in (*pool.state.idle, *pool.state.taken):
            owner = server.owner
            rows.append(
                {
                    "id": server.pid,
                    "node": pool.node,
                    "user": pool.user,
                    "database": pool.database,
                    "state": "idle" if server in pool.state.idle else "active",
                    "remote_pid": server.pid,
                    "link": getattr(owner, "number", None),
                    "close_needed": server.retired,
                }
            )
    return rows


def _pool_rows(worker: Worker) -> list[dict[str, Any]]:
    now = worker.clock.now()
    rows = []
    for pool in worker.pools.all.values():
        state = pool.state
        counters = pool.counters
        oldest = state.oldest_wait()
        counters.clients_waiting = len(state.waiting)
        counters.clients_active = sum(1 for server in state.taken if server.owner is not None)
        counters.servers_active = counters.clients_active
        counters.servers_idle = len(state.idle)
        counters.servers_login = state.opening
        counters.servers_cancelling = sum(1 for server in state.taken if server.cancelling)
        counters.servers_draining = sum(1 for server in state.taken if server.abandoned_at)
        counters.max_wait_us = int((now - oldest) * 1e6) if oldest is not None else 0
        rows.append(
            {
                "node": pool.node,
                "database": pool.database,
                "user": pool.user,
                "mode": pool.mode,
                **counters.as_dict(),
            }
        )
    return rows
