"""A worker process: `python -m proxy.run_worker`, started by the supervisor.

Sets the process up (event loop, garbage collector, log), connects it to the controller and runs the data
plane. It goes on serving while the controller is away. Ends at SIGTERM or `Drain`, after its clients'
transactions or a deadline, and when the supervisor has gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from typing import Protocol

import msgspec
import uvloop

from . import log
from .clock import Clock, SystemClock
from .config.schema import Config
from .ipc.channel import Link
from .ipc.messages import Drain, Hello, Message, Publish, Reconfigure, Setup
from .ipc.paths import RuntimePaths
from .ipc.start import WorkerStart

DRAIN = 5.0
"""Seconds that open transactions get at SIGTERM; the supervisor kills a while after that."""
ORPHAN_DRAIN = 1.0
"""The same when the supervisor has gone: a new one may want the port."""

_log = log.get_logger("worker")


class DataPlane(Protocol):
    """What a worker process runs: `dataplane.worker.Worker`."""

    async def start(self, listen_sockets: list[socket.socket]) -> None: ...

    def handle(self, message: Message) -> None:
        """Publish, Fresh, Reconfigure, Grant or ReportRequest; they may come before `start`."""

    def permits(self) -> dict[str, int]:
        """What it may hold by key, where that isn't its first share."""
        ...

    async def stop(self, seconds: float) -> None:
        """Stop taking clients; return when their transactions have ended, or after `seconds`."""


Make = Callable[[Setup, int, Clock, random.Random, Callable[[Message], None]], DataPlane]


def main(make: Make) -> int:
    """`make` is the data plane's constructor."""
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerStart)
    _configure_log(start.worker, start.log_format, start.log_level)
    uvloop.run(_Process(start, make).run())
    return 0


def _configure_log(worker: int, form: str, level: str) -> None:
    log.configure(form, level, common={"process": "worker", "worker": worker})


class _Process:
    """The life of one worker process."""

    def __init__(self, start: WorkerStart, make: Make) -> None:
        self._start = start
        self._make = make
        self._plane: DataPlane | None = None
        self._config: Config | None = None
        self._set_up = asyncio.Event()
        self._stop: asyncio.Queue[float] = asyncio.Queue()
        """Seconds to drain; more than one entry hurries a stop that is under way."""
        self._link = Link(RuntimePaths(start.runtime_dir).controller, self._hello, self._received)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.put_nowait, DRAIN)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C reaches all; the supervisor decides
        loop.add_reader(sys.stdin.fileno(), self._orphaned)
        link = asyncio.create_task(self._link.run(), name="controller link")
        serve = asyncio.create_task(self._serve(), name="serve")
        stop = asyncio.create_task(self._stop.get(), name="stop")
        try:
            await asyncio.wait([serve, stop, link], return_when=asyncio.FIRST_COMPLETED)
            # Neither of these ends but by a fault of ours, which ends the process.
            for task in (serve, link):
                if task.done():
                    task.result()
            if self._plane is not None:
                await self._plane.stop(stop.result())
        finally:
            serve.cancel()
            stop.cancel()
            link.cancel()
            await asyncio.gather(serve, stop, link, return_exceptions=True)

    async def _serve(self) -> None:
        await self._set_up.wait()
        assert self._plane is not None
        await self._plane.start([socket.socket(fileno=fd) for fd in self._start.listen_fds])
        # What exists now stays; collecting it again and again costs milliseconds each time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        os.write(self._start.ready_fd, bytes([self._start.worker]))
        _log.info("worker_started", pid=os.getpid())
        await asyncio.Event().wait()

    def _orphaned(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._stop.put_nowait(ORPHAN_DRAIN)

    def _hello(self) -> Hello:
        return Hello(self._start.worker, os.getpid(), None if self._plane is None else self._plane.permits())

    def _send(self, message: Message) -> None:
        self._link.send(message)

    def _received(self, message: Message) -> None:
        match message:
            case Setup() if self._plane is None:
                # At once, and not in a task: what follows in the same read is meant for it.
                self._config = message.config
                self._plane = self._make(message, self._start.worker, SystemClock(), random.Random(), self._send)
                self._set_up.set()
            case Setup():
                # The controller is back, or a new one: take what may have changed meanwhile.
                if message.config != self._config:
                    self._reconfigure(Reconfigure(message.config))
                self._pass(Publish(message.snapshot))
            case Reconfigure():
                self._reconfigure(message)
            case Drain():
                self._stop.put_nowait(message.seconds)
            case _:
                self._pass(message)

    def _reconfigure(self, message: Reconfigure) -> None:
        self._config = message.config
        settings = message.config.log
        _configure_log(self._start.worker, settings.format, settings.level)
        self._pass(message)

    def _pass(self, message: Message) -> None:
        if self._plane is not None:
            self._plane.handle(message)


if __name__ == "__main__":
    from .dataplane.worker import Worker

    sys.exit(main(Worker))
