"""All of `admin` as one thing to start and stop: console, HTTP pages, and the clock of their figures.

Made by `run_controller` with the controller's view; nothing else needs to be known of this package.
"""

from __future__ import annotations

import asyncio

from ..clock import Clock
from ..log import get_logger
from .command import Context
from .console import Console
from .http import HttpServer
from .stats import Stats
from .view import ControllerView

SAMPLE_INTERVAL = 1.0
"""Seconds between looks at the workers' counters, which come once a second."""

_log = get_logger("admin")


class Admin:
    """Console and HTTP of one controller."""

    def __init__(self, view: ControllerView, clock: Clock) -> None:
        self._view = view
        self._stats = Stats(view, clock)
        self._console = Console(Context(view, self._stats))
        self._http = HttpServer(view, self._stats) if view.config.admin.enabled else None
        self._timer: asyncio.TimerHandle | None = None
        self.http_port = 0
        """The port of the pages once started; 0 if they are switched off."""

    async def start(self, console_path: str) -> None:
        """Listen on the console's Unix socket and, if `admin.enabled`, for HTTP; OSError if a port is taken."""
        await self._console.start(console_path)
        if self._http is not None:
            admin = self._view.config.admin
            self.http_port = await self._http.start(admin.host, admin.port)
            _log.info("admin_listening", host=admin.host, admin_port=self.http_port)
        self._tick()

    async def stop(self) -> None:
        """Close everything; harmless if `start` failed half-way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._http is not None:
            await self._http.stop()
        await self._console.stop()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_INTERVAL, self._tick)
        self._stats.sample()
