"""What a worker's own code costs for one statement, without sockets: printed as JSON, in microseconds.

A process of its own (`cost` runs it with the proxy that is measured), with a worker whose client and servers have
transports that lead nowhere. What is left out are the system calls, which vary more from run to run than all of this.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from proxy.clock import SystemClock
from proxy.config.schema import Config
from proxy.dataplane.authenticate import LoggedIn
from proxy.dataplane.client import Client
from proxy.dataplane.server import Server
from proxy.dataplane.worker import Worker
from proxy.ipc import board
from proxy.ipc.messages import Fresh, KnownCatalogue, Setup
from proxy.sql.catalogue import Catalogue
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import Address, Copy, Freshness, NodeView, Snapshot
from proxy.wire import build

STATEMENTS = 20_000
PASSES = 15
"""The quickest one counts: all that makes one slower comes from elsewhere."""
WORKERS = 2
FAR = 10**18
"""A moment that no read waits for (ns)."""
ROW = b"".join(
    (
        build.message(b"T", b"\0\1abalance\0" + bytes(18)),
        build.message(b"D", b"\0\1\0\0\0\1" + b"0"),
        build.message(b"C", b"SELECT 1\0"),
        build.message(b"Z", b"I"),
    )
)


class _Nowhere(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def main(path: str) -> None:
    gc.disable()
    off, on = (asyncio.run(_microseconds(split, Path(path))) for split in (False, True))
    print(json.dumps({"off": off, "on": on}))


async def _microseconds(split: bool, directory: Path) -> float:
    client, server = _pair(split, directory / f"board{split}")
    numbers = random.Random(1)
    keys = (numbers.randrange(10**7) for _ in range(STATEMENTS))
    queries = [build.query(f"SELECT abalance FROM pgbench_accounts WHERE aid = {key};") for key in keys]

    def one_pass() -> float:
        began = time.perf_counter()
        for query in queries:
            client.data_received(query)
            server.data_received(ROW)
        return time.perf_counter() - began

    seconds = min(one_pass() for _ in range(PASSES))
    if server.closed or server.pool.counters.queries < STATEMENTS * PASSES:
        raise RuntimeError("the statements went elsewhere")
    return seconds / STATEMENTS * 1e6


def _pair(split: bool, board_path: Path) -> tuple[Client, Server]:
    """A client, and the one server that its reads can go to."""
    names = {"primary": Role.PRIMARY, "replica": Role.REPLICA}
    config = msgspec.convert(
        {"nodes": {name: {"host": "127.0.0.1"} for name in names}, "routing": {"read_split": split}}, Config
    )
    nodes = {
        name: NodeView(name=name, host="", port=0, role=role, health=Health.ACTIVE, addresses=(Address("127.0.0.1"),))
        for name, role in names.items()
    }
    board.create(board_path, WORKERS)
    snapshot = Snapshot(version=1, nodes=nodes, primary="primary", replicas=("replica",))
    setup = Setup(
        config=config,
        snapshot=snapshot,
        instance=1,
        workers=WORKERS,
        board=str(board_path),
        console="",
        datagrams=[],
    )
    worker = Worker(setup, 0, SystemClock(), random.Random(1), lambda message: None)
    copy = Copy(fresh_ns=FAR, since_ns=1, lsn=1, lag_ms=0, weight=100)
    worker.handle(Fresh(Freshness(sampled_ns=FAR, sampled_lsn=1, timeline=1, copies={"replica": copy})))
    login: dict[str, Any] = {"user": "u", "database": "d", "params": {}, "replication": "", "minor": 0}
    how: dict[str, Any] = {"credentials": None, "peer": "", "tls": False, "authenticated_by": "trust"}
    client = Client(worker, _Nowhere(), LoggedIn(**login, **how), worker.settings_for("d", "u"), 1)
    worker.handle(KnownCatalogue("d", FAR, Catalogue(version="1", relations={"pgbench_accounts": {"public": ""}})))
    servers = {name: _idle_server(worker, client, name) for name in names}
    client.welcome()
    return client, servers["replica" if split else "primary"]


def _idle_server(worker: Worker, client: Client, node: str) -> Server:
    pool = worker.pools.pool(node, client)
    server = Server(pool, worker.states.empty, 10)
    server.transport = _Nowhere()
    pool.state.taken[server] = None
    pool.give(server)
    return server


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
    sys.exit(0)
