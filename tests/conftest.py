"""Fixtures of all tests that need servers: one fleet, proxies by configuration, a target for each case."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from .support.cutter import Cutter
from .support.fleet import POOL_SIZES, Fleet
from .support.proxy import PLAIN_HEALTH, Proxy, Settings, merged
from .support.rawpg import Wire
from .support.target import CUT, DIRECT, SPLIT, TARGETS, Target, difference

FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """The primary and two replicas that most tests share."""
    with Fleet() as fleet:
        yield fleet


def base_settings(fleet: Fleet) -> dict[str, Any]:
    """A proxy over the whole fleet where everybody may connect, with pools as `POOL_SIZES` says."""
    nodes = {"primary": fleet.primary, "replica1": fleet.replicas[0], "replica2": fleet.replicas[1]}
    return {
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": {"port": 0},
        "auth": {"hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]},
        "server": {"tls": "disable"},
        "health": {"user": "postgres", "interval": 3.0, "timeout": 0.8, **PLAIN_HEALTH},
        "nodes": {name: {"host": "127.0.0.1", "port": server.port} for name, server in nodes.items()},
        "databases": {"*": {}},
        "users": {f"pool{size}": {"pool_size": size} for size in POOL_SIZES},
    }


def wait_until_serving(proxy: Proxy, user: str = "pool20", database: str = "postgres") -> None:
    """Wait until a client can log in and is answered: the first probes have been read by then."""
    client = Wire(proxy.address)
    with contextlib.closing(client):
        client.login({"user": user, "database": database}, timeout=20)
        assert client.query("SELECT 1", timeout=20).endswith("ZI"), proxy.tail()


def pytest_configure(config: pytest.Config) -> None:
    """Made-up input is the same in each run; much more, and other input each time, with the long tests."""
    config.addinivalue_line("markers", "settings(over): settings of the proxy that the test's target needs")
    if "not full" in config.getoption("markexpr"):
        settings.register_profile("tier", max_examples=150, deadline=None, derandomize=True)
    else:
        settings.register_profile("tier", max_examples=3000, deadline=None)
    settings.load_profile("tier")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a case's many inputs all run on PostgreSQL itself and through the plain proxy; cut and split one does, and
    the others are left to the long tests. Runs before the selection by marker."""
    seen: set[tuple[str, str]] = set()
    for item in items:
        parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
        variant = parameters.get("target")
        if variant not in (CUT, SPLIT):
            continue
        case = (item.nodeid.partition("[")[0], variant)
        if case in seen:
            item.add_marker("full")
        seen.add(case)


MAX_PROXIES = 4
"""Shared proxies of one process at a time."""

StartProxy = Callable[[Settings], Proxy]


@pytest.fixture(scope="session")
def running_proxies() -> dict[str, Proxy]:
    """The proxies that tests share, by their settings; the one last asked for comes last."""
    return {}


@pytest.fixture(scope="session")
def proxies(
    fleet: Fleet, running_proxies: dict[str, Proxy], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartProxy]:
    """Gives the proxy with the settings asked for; it is started when it is first asked for. The one that has not
    been asked for longest is stopped when there are `MAX_PROXIES`: each costs probes."""
    running = running_proxies
    faults: list[str] = []

    def start(over: Settings) -> Proxy:
        key = json.dumps(over, sort_keys=True)
        proxy = running.pop(key, None)
        if proxy is None:
            while len(running) >= MAX_PROXIES:
                faults.extend(running.pop(next(iter(running))).faults())
            proxy = Proxy(merged(base_settings(fleet), over), tmp_path_factory.mktemp("proxy"))
            running[key] = proxy
            wait_until_serving(proxy)
        running[key] = proxy
        return proxy

    yield start
    faults.extend(line for proxy in running.values() for line in proxy.faults())
    assert not faults, "\n".join(faults)


@pytest.fixture
def own_proxy(fleet: Fleet, tmp_path: Path) -> Iterator[StartProxy]:
    """A proxy of the test's own (settings laid over the common ones), for tests that hurt it."""
    running: list[Proxy] = []

    def start(over: Settings) -> Proxy:
        directory = tmp_path / f"proxy{len(running)}"
        directory.mkdir()
        running.append(Proxy(merged(base_settings(fleet), over), directory))
        wait_until_serving(running[-1])
        return running[-1]

    yield start
    faults = [line for proxy in running for line in proxy.faults()]
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="session")
def cutter(fleet: Fleet) -> Iterator[Cutter]:
    """The primary behind a relay that cuts its replies at every byte."""
    with Cutter(fleet.primary.port) as cutter:
        yield cutter


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    Wire.close_all()


@pytest.fixture
def database(fleet: Fleet) -> Iterator[str]:
    """A database of the test's own with the common objects."""
    name = fleet.take_database()
    yield name
    fleet.give_back_database(name)


@pytest.fixture(scope="session")
def recordings() -> dict[str, list[list[str]]]:
    """What each case saw on PostgreSQL itself, by test."""
    return {}


@pytest.fixture(params=TARGETS)
def target(
    request: pytest.FixtureRequest, fleet: Fleet, database: str, recordings: dict[str, list[list[str]]]
) -> Iterator[Target]:
    """Where the case runs; its clients are closed and its recording compared afterwards.

    The marker `settings` lays further settings over the proxy's.
    """
    marker = request.node.get_closest_marker("settings")
    over: dict[str, Any] = dict(marker.args[0]) if marker else {}
    if request.param == DIRECT:
        address = ("127.0.0.1", fleet.primary.port)
    else:
        if request.param == SPLIT:
            over = merged(over, {"routing": {"read_split": True}})
        if request.param == CUT:
            cutter: Cutter = request.getfixturevalue("cutter")
            # The cutter shares this process with the test: while that moves megabytes, a probe may come too late.
            patient = {"health": {"fail_after": 1000}, "nodes": {"primary": {"port": cutter.port}}}
            over = merged(patient, over)
        address = request.getfixturevalue("proxies")(over).address
    target = Target(request.param, address, database, fleet)
    yield target
    target.close()
    if not target.compare or request.node.stash.get(FAILED, False):
        return
    key = request.node.nodeid.replace(f"[{request.param}", "[").replace(f"-{request.param}", "")
    if request.param == DIRECT:
        recordings[key] = target.recording()
    elif key in recordings:
        found = difference(recordings[key], target.recording())
        assert not found, found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let fixtures know that the test failed: a comparison would only repeat it."""
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report
