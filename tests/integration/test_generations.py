"""Roles, their settings and passwords change on the nodes while the proxy has pools for them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.demo.postgres import Cluster, Server

from ..support.proxy import Proxy, Settings
from ..support.rawpg import Wire, show

HBA = (
    "host all postgres 127.0.0.1/32 trust",
    "host all watcher 127.0.0.1/32 trust",
    "host all all 127.0.0.1/32 scram-sha-256",
)
Nodes = tuple[Server, Server]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with Cluster() as cluster:
        primary = cluster.create("primary", settings={"synchronous_commit": "on"}, hba=HBA)
        primary.query("CREATE ROLE watcher LOGIN")
        yield primary, cluster.replica("replica", primary)


@pytest.fixture
def app(nodes: Nodes) -> Iterator[Nodes]:
    """The role `app` with the password "old"."""
    nodes[0].query("CREATE ROLE app LOGIN PASSWORD 'old'")
    nodes[1].wait_for_lsn(nodes[0].lsn())
    yield nodes
    with contextlib.suppress(Exception):
        nodes[0].query("ALTER DATABASE postgres RESET ALL; DROP ROLE app")


def settings_of(nodes: Nodes, prober: str = "postgres", users: Settings | None = None) -> Settings:
    return {
        "workers": 2,
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": {"port": 0},
        "server": {"tls": "disable"},
        "auth": {
            "hba": ["host all all 127.0.0.1/32 scram-sha-256"],
            "failure_delay": 0.0,
            "query": {"enabled": True, "user": "postgres", "cache": 600.0},
        },
        "routing": {"read_split": True},
        "health": {"user": prober, "interval": 0.3, "timeout": 0.25},
        "nodes": {s.name: {"host": "127.0.0.1", "port": s.port} for s in nodes},
        "databases": {"*": {}},
        "users": users or {},
    }


@contextlib.contextmanager
def proxy_of(nodes: Nodes, directory: Path, prober: str = "postgres", users: Settings | None = None) -> Iterator[Proxy]:
    with Proxy(settings_of(nodes, prober, users), directory) as proxy:
        proxy.wait_for("published", replicas=["replica"])
        yield proxy


def log_in(proxy: Proxy, password: str = "old") -> tuple[Wire, str]:
    wire = Wire(proxy.address)
    return wire, wire.login({"user": "app", "database": "postgres"}, password=password)


def client(proxy: Proxy, password: str = "old") -> Wire:
    wire, replies = log_in(proxy, password)
    assert replies.endswith("ZI"), replies
    return wire


def eventually(holds: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def servers(node: Server) -> set[int]:
    return {row[0] for row in node.query("SELECT pid FROM pg_stat_activity WHERE usename = 'app'")}


def third(wire: Wire) -> str | None:
    """A read whose answer depends on extra_float_digits."""
    return wire.value("SELECT 1 / 3::float8")


LONG, SHORT = "0.3333333333333333", "0.33333"


@pytest.mark.parametrize("prober", ["postgres", "watcher"])
def test_settings_of_roles_and_databases(app: Nodes, tmp_path: Path, prober: str) -> None:
    primary, replica = app
    with proxy_of(app, tmp_path, prober) as proxy:
        old = client(proxy)
        eventually(lambda: third(old) == LONG and servers(replica))
        before = servers(primary) | servers(replica)
        seen = len(proxy.lines)
        primary.query("ALTER ROLE app SET extra_float_digits = -10")
        for node in ("primary", "replica"):
            proxy.wait_for("logins_changed", 20, after=seen, node=node)
        for wire in (client(proxy), old):
            is_short_everywhere(wire, replica)
        assert not before & (servers(primary) | servers(replica))
        primary.query("ALTER DATABASE postgres SET extra_float_digits = -9")
        primary.query("ALTER ROLE app RESET extra_float_digits")
        eventually(lambda: third(old) == SHORT + "3")
        # What is reported at a login follows, too, in each worker.
        for _ in range(8):
            assert "DateStyle=ISO, MDY" in told(proxy)
        primary.query("ALTER DATABASE postgres SET DateStyle = 'German, DMY'")
        # (Not in both at the same moment.)
        eventually(lambda: all("DateStyle=German, DMY" in told(proxy) for _ in range(8)))


def is_short_everywhere(wire: Wire, replica: Server) -> None:
    """In a transaction (on the primary), and for reads alone (on the replica)."""
    eventually(lambda: third(wire) == SHORT)
    wire.query("BEGIN")
    assert third(wire) == SHORT
    wire.query("COMMIT")
    eventually(lambda: third(wire) == SHORT and servers(replica))
    assert [third(wire) for _ in range(4)] == [SHORT] * 4


def told(proxy: Proxy) -> list[str]:
    wire = client(proxy)
    return [r.body.rstrip(b"\0").replace(b"\0", b"=").decode() for r in wire.log if r.kind == "S"]


@pytest.mark.parametrize("prober", ["postgres", "watcher"])
def test_a_changed_password(app: Nodes, tmp_path: Path, prober: str) -> None:
    primary, replica = app
    with proxy_of(app, tmp_path, prober) as proxy:
        old = client(proxy)
        eventually(lambda: old.value("SELECT 1") and servers(replica))
        before = servers(primary) | servers(replica)
        seen = len(proxy.lines)
        primary.query("ALTER ROLE app PASSWORD 'new'")
        replica.wait_for_lsn(primary.lsn())
        proxy.wait_for("logins_changed", 20, after=seen, node="primary")
        eventually(lambda: not before & (servers(primary) | servers(replica)))
        # What the client from before has proved is of no use any more.
        assert "E[28000]" in old.query("SELECT 1")
        for _ in range(4):
            assert "28P01" in log_in(proxy, "old")[1]
        # One that knows it makes the pool useful again, for the others of its worker as well.
        new = [client(proxy, "new") for _ in range(8)]
        for wire in (*new, old):
            assert wire.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


def test_a_password_of_the_configuration_that_is_old(app: Nodes, tmp_path: Path) -> None:
    """The node's own error, no node is blamed, and a reload makes old clients' pool useful again."""
    primary, _ = app
    with proxy_of(app, tmp_path, users={"app": {"password": "old"}}) as proxy:
        old = client(proxy)
        seen = len(proxy.lines)
        primary.query("ALTER ROLE app PASSWORD 'new'")
        proxy.wait_for("logins_changed", 20, after=seen, node="primary")
        eventually(lambda: "E[28P01]" in old.query("BEGIN; COMMIT"))
        assert "E[28000]" in old.query("BEGIN; COMMIT")
        proxy.write_config(settings_of(app, users={"app": {"password": "new"}}))
        proxy.reload()
        eventually(lambda: log_in(proxy, "new")[1].endswith("ZI"))
        for _ in range(8):  # so that some come to each worker
            client(proxy, "new")
        eventually(lambda: old.query("BEGIN; COMMIT").endswith("C[COMMIT] ZI"))
        assert not [line for line in proxy.lines if '"health_changed"' in line and '"down"' in line]


def test_a_dropped_role(app: Nodes, tmp_path: Path) -> None:
    primary, _ = app
    with proxy_of(app, tmp_path) as proxy:
        old = client(proxy)
        old.query("SELECT 1")
        seen = len(proxy.lines)
        primary.query("DROP ROLE app")
        proxy.wait_for("logins_changed", 20, after=seen, node="primary")
        eventually(lambda: not servers(primary))
        assert "28P01" in log_in(proxy)[1]
        assert "E[28" in old.query("BEGIN"), show(old.log)


def test_a_change_while_the_controller_is_away(app: Nodes, tmp_path: Path) -> None:
    """Without one the servers stay through a restart of the controller; the change is seen by the new one."""
    primary, _ = app
    with proxy_of(app, tmp_path) as proxy:
        wire = client(proxy)
        assert wire.query("BEGIN; COMMIT").endswith("ZI")
        before = servers(primary)
        assert before
        restart_controller(proxy)
        assert servers(primary) == before
        os.kill(controller_of(proxy), signal.SIGSTOP)
        primary.query("ALTER ROLE app SET extra_float_digits = -10")
        restart_controller(proxy)
        eventually(lambda: third(wire) == SHORT)
        assert not before & servers(primary)


def controller_of(proxy: Proxy) -> int:
    return next(p for p in proxy.processes() if b"run_controller" in Path(f"/proc/{p}/cmdline").read_bytes())


def restart_controller(proxy: Proxy) -> None:
    """Kill it, and wait until its successor has looked at the primary."""
    seen = len(proxy.lines)
    os.kill(controller_of(proxy), signal.SIGKILL)
    for worker in (0, 1):
        proxy.wait_for("worker_joined", 60, after=seen, worker=worker)
