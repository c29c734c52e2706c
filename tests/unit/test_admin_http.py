"""The HTTP pages, over HTTP."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.admin.service import Admin
from proxy.clock import SystemClock
from proxy.config import schema
from proxy.topology.snapshot import Snapshot
from tests.support.fake_view import FakeView


@asynccontextmanager
async def serving(view: FakeView) -> AsyncIterator[str]:
    """The pages' address."""
    settings = msgspec.structs.replace(view.config.admin, port=0)
    view.config = msgspec.structs.replace(view.config, admin=settings)
    admin = Admin(view, SystemClock())
    with tempfile.TemporaryDirectory() as folder:
        await admin.start(f"{folder}/console")
        try:
            yield f"http://127.0.0.1:{admin.http_port}"
        finally:
            await admin.stop()


async def get(url: str) -> tuple[int, str, str]:
    """Status, content type and text."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, response.headers["Content-Type"], await response.text()


async def test_metrics_page() -> None:
    async with serving(FakeView()) as url:
        status, kind, text = await get(f"{url}/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=0.0.4")
    assert "pgtrident_pool_queries" in {family.name for family in text_string_to_metric_families(text)}


async def test_health_needs_nothing() -> None:
    view = FakeView()
    view.snapshot, view.counters = None, {}
    async with serving(view) as url:
        assert (await get(f"{url}/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({}, 200, '"reason": ""'),
        ({"snapshot": None}, 503, "no snapshot"),
        ({"snapshot": Snapshot()}, 503, "no node"),
        ({"snapshot": Snapshot(columnar=("duck",))}, 200, '"ready": true'),
        ({"counters": {}}, 503, "no worker"),
    ],
)
async def test_ready(change: dict[str, object], status: int, reason: str) -> None:
    view = FakeView()
    for name, value in change.items():
        setattr(view, name, value)
    async with serving(view) as url:
        got, kind, text = await get(f"{url}/readyz")
    assert got == status
    assert kind.startswith("application/json")
    assert reason in text


async def test_other_pages_are_not_there() -> None:
    async with serving(FakeView()) as url:
        assert (await get(f"{url}/config"))[0] == 404


async def test_pages_can_be_switched_off() -> None:
    view = FakeView()
    view.config = msgspec.structs.replace(view.config, admin=schema.Admin(enabled=False))
    admin = Admin(view, SystemClock())
    with tempfile.TemporaryDirectory() as folder:
        await admin.start(f"{folder}/console")
        assert admin.http_port == 0
        assert stat.S_ISSOCK(os.stat(f"{folder}/console").st_mode)
        await admin.stop()
