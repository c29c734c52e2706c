"""The acceptor on its own: a stand-in for the worker that adopts clients and answers nothing but a greeting.

Runs on uvloop in a thread, so that ordinary blocking drivers can be its clients. Fixtures are its callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from proxy.clock import SystemClock
from proxy.config.schema import Config
from proxy.dataplane.accept import Acceptor
from proxy.dataplane.authenticate import LoggedIn
from proxy.log import get_logger
from proxy.metrics.counters import WorkerCounters
from proxy.topology.snapshot import NodeView
from proxy.wire import build, codes

T = TypeVar("T")


class _Greeted(asyncio.Protocol):
    """A client after its login: what it sends is kept."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def data_received(self, data: bytes) -> None:
        self._front.received.put(data)


class Front:
    """A host for an Acceptor, and its listening sockets."""

    def __init__(self, config: Config, directory: Path, primary: NodeView | None = None) -> None:
        self.config = config
        self.clock = SystemClock()
        self.log = get_logger("front")
        self.counters = WorkerCounters()
        self.clients = 0
        self.primary = primary
        self.adopted: queue.Queue[LoggedIn] = queue.Queue()
        self.received: queue.Queue[bytes] = queue.Queue()
        self.cancels: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self.loop = uvloop.new_event_loop()
        self.faults: list[str] = []
        self._transports: list[asyncio.Transport] = []
        self.loop.set_exception_handler(lambda loop, context: self.faults.append(repr(context)))
        self.acceptor = Acceptor(self)
        self.tcp = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self.tcp.getsockname()[1])
        self.directory = directory
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(directory / f".s.PGSQL.{self.port}"))
        self.unix.listen()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    # -- as the acceptor sees it

    def clients_count(self) -> int:
        return self.clients

    def primary_node(self) -> NodeView | None:
        return self.primary

    async def cancel_request(self, pid: int, key: bytes) -> None:
        self.cancels.put((pid, key))

    def adopt(self, transport: asyncio.Transport, logged_in: LoggedIn, leftover: bytes) -> None:
        if leftover:
            self.received.put(leftover)
        self._transports.append(transport)
        transport.set_protocol(_Greeted(self))
        transport.write(
            build.AUTHENTICATION_OK
            + build.parameter_status("server_version", "15.0")
            + build.parameter_status("client_encoding", "UTF8")
            + build.backend_key(1, b"key!" if logged_in.minor < 2 else b"k" * 32)
            + build.ready(codes.IDLE)
        )
        transport.resume_reading()
        self.adopted.put(logged_in)

    # -- as tests see it

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the front's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def call(self, function: Callable[[], T]) -> T:
        async def wrapped() -> T:
            return function()

        return self.run(wrapped())

    def _close(self) -> None:
        self.acceptor.close()
        for transport in self._transports:
            transport.abort()

    def reconfigure(self, config: Config) -> None:
        self.config = config

    def __enter__(self) -> Self:
        self.loop.call_soon(self.acceptor.start, [self.tcp, self.unix])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call(self._close)
        self.run(_others_done())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        with warnings.catch_warnings():
            # A connection that is just closing is told of as unclosed; raised there, that would hang uvloop.
            warnings.simplefilter("ignore", ResourceWarning)
            self.loop.close()
        self.tcp.close()
        self.unix.close()
        assert not self.faults, self.faults


async def _others_done() -> None:
    """Wait for cancelled tasks to end."""
    others: set[Awaitable[Any]] = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    with contextlib.suppress(Exception):
        await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 5)
