"""A06: idle replicas serve; behind a write none answers that lags, or that hears nothing of the primary."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.demo.postgres import Server

from ..conftest import base_settings, wait_until_serving
from ..support.fleet import Fleet
from ..support.proxy import Proxy, merged
from ..support.rawpg import Wire
from ..support.target import SPLIT, Target
from ..support.witness import PRIMARY, Witness

COUNT = "SELECT count(*) FROM trail"
BOTH = frozenset(("replica1", "replica2"))
IDLE = "SELECT extract(epoch FROM now() - pg_last_xact_replay_timestamp()) > 2.5"
STREAMS = "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'"


@pytest.fixture(scope="module")
def own_fleet() -> Iterator[Fleet]:
    """One that this file may hurt."""
    with Fleet() as fleet:
        yield fleet


@pytest.fixture
def proxy(own_fleet: Fleet, tmp_path: Path) -> Iterator[Proxy]:
    over = {"routing": {"read_split": True}, "health": {"interval": 0.3, "timeout": 0.25}}
    with Proxy(merged(base_settings(own_fleet), over), tmp_path) as proxy:
        wait_until_serving(proxy)
        yield proxy


@pytest.fixture
def witness(own_fleet: Fleet, proxy: Proxy) -> Iterator[Witness]:
    target = Target(SPLIT, proxy.address, own_fleet.take_database(), own_fleet)
    witness = Witness(target)
    yield witness
    witness.close()
    target.close()


@pytest.fixture
def client(witness: Witness) -> Wire:
    return witness.target.client()


def until(holds: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def in_service(witness: Witness, nodes: frozenset[str]) -> None:
    """Wait until all these nodes answer reads. Each has a session of its own: one that asks without a pause stays where
    it is."""
    seen: set[str] = set()
    until(lambda: seen.update(witness.ran(witness.target.client(pool=5), COUNT)[1]) or seen >= nodes)


def writes_are_read(witness: Witness, client: Wire, reader: Wire) -> frozenset[str]:
    """The nodes that answered reads behind some writes; each was up to date for who wrote, and for another with the
    same consistency key."""
    nodes: frozenset[str] = frozenset()
    for wire in (client, reader):
        wire.query("SET pgtrident.consistency_key = 'both'")
    for _ in range(20):
        last = client.value("INSERT INTO trail(item_id) VALUES (1) RETURNING id")
        for wire in (client, reader):
            replies, ran = witness.ran(wire, "SELECT max(id) FROM trail")
            assert f"D[{last}]" in replies, (replies, ran)
            nodes |= ran
    return nodes


def test_idle_replicas_serve(own_fleet: Fleet, witness: Witness) -> None:
    """By the age of what it replayed last, a replica of an idle primary seems to lag."""
    witness.ready()
    until(lambda: all(replica.query(IDLE)[0][0] for replica in own_fleet.replicas))
    seen: set[str] = set()
    while seen != BOTH:
        replies, nodes = witness.ran(witness.target.client(pool=5), COUNT)
        assert "D[0]" in replies
        assert nodes <= BOTH
        seen |= nodes


@pytest.mark.parametrize("number", [1, 2])
def test_paused_replicas(own_fleet: Fleet, witness: Witness, client: Wire, number: int) -> None:
    reader = witness.target.client(pool=5)
    in_service(witness, BOTH)
    with own_fleet.paused(*own_fleet.replicas[:number]):
        nodes = writes_are_read(witness, client, reader)
        assert "replica1" not in nodes
        if number == 2:
            assert nodes == PRIMARY
    in_service(witness, BOTH)


@contextlib.contextmanager
def cut(replica: Server) -> Iterator[None]:
    """Its WAL receiver does not reach the primary."""
    ((source,),) = replica.query("SHOW primary_conninfo")

    def follow(conninfo: str) -> None:
        quoted = conninfo.replace("'", "''")
        replica.query(f"ALTER SYSTEM SET primary_conninfo = '{quoted}'")
        replica.query("SELECT pg_reload_conf()")

    follow("host=127.0.0.1 port=1")
    try:
        until(lambda: replica.query(STREAMS) == [(0,)])
        yield
    finally:
        follow(source)
    until(lambda: replica.query(STREAMS) == [(1,)])


def test_a_replica_that_hears_nothing(own_fleet: Fleet, witness: Witness, client: Wire) -> None:
    """It has replayed all it has received, and that is old."""
    replica = own_fleet.replicas[0]
    reader = witness.target.client(pool=5)
    in_service(witness, BOTH)
    with cut(replica):
        assert "replica1" not in writes_are_read(witness, client, reader)
        assert replica.query("SELECT pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn()") == [(True,)]
    in_service(witness, BOTH)


def test_without_a_primary_to_compare_with(own_fleet: Fleet, proxy: Proxy, witness: Witness, client: Wire) -> None:
    in_service(witness, BOTH)
    seen = len(proxy.lines)
    own_fleet.primary.stop("immediate")
    try:
        for _ in range(2):
            for _ in range(20):
                replies, nodes = witness.ran(client, COUNT)
                assert replies == "T[count] D[0] C[SELECT 1] ZI" and nodes <= BOTH
            proxy.wait_for("published", after=seen, primary="")
    finally:
        own_fleet.primary.start()
    until(lambda: client.query("INSERT INTO trail(item_id) VALUES (1)") == "C[INSERT 0 1] ZI")
    in_service(witness, BOTH)
