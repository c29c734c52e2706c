"""The controller's HTTP pages: /metrics, /healthz, /readyz and /history.

Owns the web server and nothing that it shows. /healthz says that the controller's loop runs; /readyz says
that the proxy can serve: a node may take work and a worker is connected. Neither asks a node, so a probe of
an orchestrator costs nothing and can't hang. Started by `service`.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from ..metrics.export import CONTENT_TYPE, page
from .stats import Stats, serving
from .view import ControllerView

MAX_EVENTS = 10_000
"""In one answer of /history."""
SHUTDOWN_TIMEOUT = 1.0
"""Seconds that open requests get when the server stops."""


class HttpServer:
    """Serves the pages on one TCP port."""

    def __init__(self, view: ControllerView, stats: Stats) -> None:
        self._view = view
        self._stats = stats
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/history", self._history)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which matters where 0 asked for a free one. OSError if it is taken."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, None if host == "*" else host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Close the port and all requests."""
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        body = await asyncio.to_thread(page, self._stats.scrape())  # with 1,000 pools half a second
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        reason = not_ready(self._view)
        body = json.dumps({"ready": not reason, "reason": reason}) + "\n"
        return web.Response(status=503 if reason else 200, text=body, content_type="application/json")

    async def _history(self, request: web.Request) -> web.Response:
        """?since= (Unix seconds), node=, kind=, limit=: the last events, the oldest first."""
        asked = request.query
        try:
            since, limit = float(asked.get("since", 0)), int(asked.get("limit", MAX_EVENTS))
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        limit = min(max(limit, 0), MAX_EVENTS)
        return web.json_response(await self._view.history(since, asked.get("node", ""), asked.get("kind", ""), limit))


def not_ready(view: ControllerView) -> str:
    """Why the proxy can't serve, or an empty string."""
    if view.snapshot is None:
        return "no snapshot yet: no node has been probed"
    if not serving(view):
        return "no node is in service"
    if not view.counters:
        return "no worker is connected"
    return ""
