"""A proxy whose primary misbehaves on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..conftest import base_settings, wait_until_serving
from ..support.fake_node import FakeNode
from ..support.fleet import Fleet
from ..support.proxy import Proxy, merged
from ..support.rawpg import Wire


@pytest.fixture(scope="session")
def fake_node(fleet: Fleet) -> Iterator[FakeNode]:
    """The primary behind a relay that can be told to misbehave."""
    with FakeNode(fleet.primary.port) as node:
        yield node


@pytest.fixture(scope="module")
def proxy(fleet: Fleet, fake_node: FakeNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy in front of the fake node. What waits for a server is refused soon."""
    settings = merged(
        base_settings(fleet),
        {
            "nodes": {"primary": {"port": fake_node.port}},
            "pool": {"checkout_timeout": 1.5},
            "log": {"level": "debug"},
        },
    )
    with Proxy(settings, tmp_path_factory.mktemp("proxy")) as proxy:
        wait_until_serving(proxy)
        yield proxy


def client(proxy: Proxy, *, pool: int = 2, database: str = "postgres", timeout: float = 15) -> Wire:
    """A logged-in client."""
    wire = Wire(proxy.address)
    replies = wire.login({"user": f"pool{pool}", "database": database}, timeout=timeout)
    assert replies.endswith("ZI"), f"{replies}\n{proxy.tail()}"
    return wire
