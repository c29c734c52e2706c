"""A04: one dead node must not stop the rest, neither at start nor later; nodes come back by themselves."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.demo.postgres import Cluster, Server

from ..support.proxy import Proxy
from ..support.rawpg import Q, Wire, show

CODES = ("E[57P03]", "E[08006]", "E[53300]", "E[57014]")


@pytest.fixture
def nodes() -> Iterator[tuple[Server, Server]]:
    """A primary and a replica that this test may stop."""
    with Cluster() as cluster:
        primary = cluster.create("primary", settings={"synchronous_commit": "on"})
        primary.query("CREATE TABLE t(a int)")
        yield primary, cluster.replica("replica", primary)


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port where connections neither open nor fail: the backlog is full and nobody accepts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        yield int(address[1])
        for filler in fillers:
            filler.close()


def start(directory: Path, ports: dict[str, int], *, transactions: str = "read_only", **pool: float) -> Proxy:
    return Proxy(
        {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"port": 0},
            "server": {"tls": "disable", "connect_timeout": 1.0},
            "auth": {"hba": ["host all all all trust"]},
            "routing": {"read_split": True, "transactions": transactions},
            "health": {"user": "postgres", "interval": 0.3, "timeout": 0.25},
            "pool": {"checkout_timeout": 2.0, **pool},
            "nodes": {name: {"host": "127.0.0.1", "port": port} for name, port in ports.items()},
            "databases": {"*": {}},
        },
        directory,
    )


def client(proxy: Proxy) -> Wire:
    wire = Wire(proxy.address)
    assert wire.login({"user": "postgres", "database": "postgres"}, timeout=15).endswith("ZI"), show(wire.log)
    return wire


def becomes(wire: Wire, sql: str, want: tuple[str, ...], seconds: float = 20) -> str:
    """Repeat a statement until its replies begin with one of `want`; each single answer comes in bounded time."""
    deadline = time.monotonic() + seconds
    while True:
        start = time.monotonic()
        got = wire.query(sql, timeout=10)
        assert time.monotonic() - start < 8, f"{sql} took {time.monotonic() - start:.1f} s"
        if got.startswith(want):
            return got
        assert time.monotonic() < deadline, f"{sql}: still {got}"
        time.sleep(0.1)


def test_start_with_a_black_hole(nodes: tuple[Server, Server], black_hole: int, tmp_path: Path) -> None:
    primary, replica = nodes
    started = time.monotonic()
    ports = {"primary": primary.port, "replica": replica.port, "hole": black_hole}
    with start(tmp_path, ports) as proxy:
        one = client(proxy)
        assert becomes(one, "INSERT INTO t VALUES (1)", ("C[INSERT",))
        assert time.monotonic() - started < 10
        for _ in range(10):
            before = time.monotonic()
            assert one.query("SELECT count(*) FROM t").startswith("T")
            assert time.monotonic() - before < 2


def test_start_with_nothing(tmp_path: Path, black_hole: int) -> None:
    """The proxy starts; clients get one clear error in bounded time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refused = listener.getsockname()[1]
    with start(tmp_path, {"primary": refused, "hole": black_hole}) as proxy:
        wire = Wire(proxy.address)
        began = time.monotonic()
        replies = wire.login({"user": "postgres", "database": "postgres"}, timeout=15)
        if replies.endswith("ZI"):
            replies = wire.query("SELECT 1")
        assert "E[" in replies
        assert time.monotonic() - began < 10


def test_primary_down_and_back(nodes: tuple[Server, Server], tmp_path: Path) -> None:
    primary, replica = nodes
    with start(tmp_path, {"primary": primary.port, "replica": replica.port}) as proxy:
        one, two = client(proxy), client(proxy)
        becomes(one, "INSERT INTO t VALUES (1)", ("C[INSERT",))
        replica.wait_for_lsn(primary.lsn())
        primary.stop("immediate")
        becomes(one, "INSERT INTO t VALUES (2)", CODES)
        # Reads go on, at the latest when the replica is known to be up to date or the primary to be down.
        becomes(two, "SELECT count(*) FROM t WHERE a = 1", ("T[count] D[1]",))
        # New clients can log in.
        three = client(proxy)
        becomes(three, "SELECT count(*) FROM t WHERE a = 1", ("T[count] D[1]",))
        replies = one.send(Q("INSERT INTO t VALUES (2)")).until()
        assert [r.kind for r in replies] == ["E", "Z"]
        assert "primary" in replies[0].fields["M"]
        primary.start()
        for wire in (one, two, three):
            becomes(wire, "INSERT INTO t VALUES (3)", ("C[INSERT",))


def test_a_transaction_that_waits_for_the_primary_reads_nowhere_else(
    nodes: tuple[Server, Server], tmp_path: Path
) -> None:
    """It has begun on a replica, and its settings are on their way to the primary."""
    primary, replica = nodes
    read = "SELECT decode('610a', 'hex') FROM t LIMIT 1"
    ports = {"primary": primary.port, "replica": replica.port}
    with start(tmp_path, ports, transactions="optimistic", pool_size=1, checkout_timeout=15) as proxy:
        one, holder = client(proxy), client(proxy)
        becomes(holder, "INSERT INTO t VALUES (1)", ("C[INSERT",))
        where = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT decode%'"
        deadline = time.monotonic() + 20
        while True:
            assert one.query("BEGIN") == "C[BEGIN] ZT"
            assert one.query("SET LOCAL bytea_output = escape") == "C[SET] ZT"
            assert one.query(read) == r"T[decode] D[a\012] C[SELECT 1] ZT"
            if replica.ask(where)[0][0]:
                break
            assert one.query("COMMIT") == "C[COMMIT] ZI"
            assert time.monotonic() < deadline
        assert holder.query("BEGIN") == "C[BEGIN] ZT"
        assert holder.query("INSERT INTO t VALUES (2)") == "C[INSERT 0 1] ZT"
        replica.stop("immediate")
        one.send(Q(read))  # to the primary, where it waits for a server
        seen = len(proxy.lines)
        proxy.wait_for("health_changed", node="replica", before="suspect", level="warning")
        replica.start()
        proxy.wait_for("health_changed", 30, after=seen, node="replica", before="recovering", level="info")
        assert one.silence(0.1)
        primary.stop("immediate")
        assert [reply.kind for reply in one.until(timeout=30)] == ["E", "Z"]
        assert one.query("SELECT 1") == "E[25P02] ZE"
        assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"


def test_replicas_down_and_back(nodes: tuple[Server, Server], tmp_path: Path) -> None:
    primary, replica = nodes
    with start(tmp_path, {"primary": primary.port, "replica": replica.port}) as proxy:
        one = client(proxy)
        replica.stop("immediate")
        becomes(one, "SELECT 1", ("T[?column?] D[1]",))
        for _ in range(5):
            assert one.query("SELECT count(*) FROM t").startswith("T[count] D[0]")
        assert one.query("INSERT INTO t VALUES (1)") == "C[INSERT 0 1] ZI"
        replica.start()
        replica.wait_for_lsn(primary.lsn())
        deadline = time.monotonic() + 20
        commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'"
        before = replica.query(commits)[0][0]
        while True:
            for _ in range(50):
                assert one.query("SELECT count(*) FROM t").startswith("T[count] D[1]")
            # More than the probes alone would make.
            if replica.query(commits)[0][0] > before + 60:
                break
            assert time.monotonic() < deadline, "no reads on the replica that came back"


def test_frozen_primary(nodes: tuple[Server, Server], tmp_path: Path) -> None:
    """It accepts and never answers: clients are not made to wait without bound, and reads go on."""
    primary, replica = nodes
    with start(tmp_path, {"primary": primary.port, "replica": replica.port}) as proxy:
        one = client(proxy)
        becomes(one, "INSERT INTO t VALUES (1)", ("C[INSERT",))
        replica.wait_for_lsn(primary.lsn())
        becomes(one, "SELECT count(*) FROM t", ("T[count] D[1]",))
        primary.freeze()
        try:
            two = client(proxy)
            answer = becomes(two, "SELECT count(*) FROM t", ("T[count] D[1]", "E[FATAL", "EOF"), seconds=25)
            if not answer.startswith("T"):
                # The server that it waited for was given up, and its connection with it.
                two = client(proxy)
                becomes(two, "SELECT count(*) FROM t", ("T[count] D[1]",), seconds=25)
        finally:
            primary.thaw()
        becomes(two, "INSERT INTO t VALUES (2)", ("C[INSERT",))
