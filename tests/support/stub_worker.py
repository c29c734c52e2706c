"""A worker process with a data plane that only tells what it was told: for tests of processes.

It answers each connection with one JSON line and closes it. Started by the supervisor as a module.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
from collections.abc import Callable

from proxy.clock import Clock
from proxy.ipc.messages import (
    Counters,
    Fresh,
    Message,
    NeedFreshness,
    Publish,
    Reconfigure,
    Report,
    ReportRequest,
    Setup,
)
from proxy.run_worker import main


class StubPlane:
    def __init__(
        self, setup: Setup, index: int, clock: Clock, rng: random.Random, send: Callable[[Message], None]
    ) -> None:
        self.index = index
        self.send = send
        self.clock = clock
        self.snapshot = setup.snapshot
        self.config = setup.config
        self.permits_told = setup.permits
        self.fresh_ns = 0
        self.servers: list[asyncio.Server] = []

    async def start(self, listen_sockets: list[socket.socket]) -> None:
        for sock in listen_sockets:
            self.servers.append(await asyncio.start_server(self.answer, sock=sock))
        self.send(Counters(self.index, {}, []))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        now = self.clock.boot_ns()
        self.send(NeedFreshness(now))
        told = {
            "worker": self.index,
            "pid": os.getpid(),
            "version": self.snapshot.version,
            "epoch": self.snapshot.epoch,
            "primary": self.snapshot.primary,
            "replicas": sorted(self.snapshot.replicas),
            "fresh_ns": self.fresh_ns,
            "now_ns": now,
            "pool_size": self.config.pool.pool_size,
        }
        writer.write(json.dumps(told).encode() + b"\n")
        writer.close()

    def handle(self, message: Message) -> None:
        match message:
            case Publish():
                self.snapshot = message.snapshot
            case Fresh():
                self.fresh_ns = min((copy.fresh_ns for copy in message.freshness.copies.values()), default=0)
            case Reconfigure():
                self.config = message.config
            case ReportRequest():
                self.send(Report(message.id, self.index, [{"kind": message.kind}]))

    def permits(self) -> dict[str, int]:
        return self.permits_told

    async def stop(self, seconds: float) -> None:
        for server in self.servers:
            server.close()


if __name__ == "__main__":
    sys.exit(main(StubPlane))
