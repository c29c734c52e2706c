"""The pure parts of the control plane: what errors mean, what copies are known to hold, names."""

from __future__ import annotations

import asyncio
import threading

import pytest

from proxy.config.schema import Config
from proxy.controlplane.freshness import MAX_CLAIMS, Progress, Sampler, record_end
from proxy.controlplane.link import Opened
from proxy.controlplane.probes import lsn_of, seen_in
from proxy.controlplane.resolve import Resolver, literal
from proxy.errors import NodeFailure, NodeRefused
from proxy.health.table import Seen
from proxy.testing import FakeClock
from proxy.topology.compile import compile_snapshot, content
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import Address, Freshness, NodeView, Snapshot


@pytest.mark.parametrize(
    ("sqlstate", "seen"),
    [
        ("53300", Seen.BUSY),
        ("28P01", Seen.NO_LOGIN),
        ("28000", Seen.NO_LOGIN),
        ("3D000", Seen.NO_LOGIN),
        ("57P03", Seen.STARTING),
        ("57P01", Seen.STARTING),
        ("XX000", Seen.FAIL),
    ],
)
def test_errors_of_nodes(sqlstate: str, seen: Seen) -> None:
    assert seen_in(NodeRefused({"C": sqlstate, "M": "no"})) is seen


@pytest.mark.parametrize(
    ("cause", "seen"),
    [
        (ConnectionRefusedError(), Seen.REFUSED),
        (FileNotFoundError(), Seen.REFUSED),
        (ConnectionResetError(), Seen.RESET),
        (TimeoutError(), Seen.TIMEOUT),
        (OSError(113, "no route"), Seen.UNREACHABLE),
        (ValueError(), Seen.FAIL),
    ],
)
def test_errors_of_sockets(cause: Exception, seen: Seen) -> None:
    failure = NodeFailure("x")
    failure.__cause__ = cause
    assert seen_in(failure) is seen
    assert seen_in(cause) is seen


def test_lsn() -> None:
    assert lsn_of(b"1/A0") == 0x1_0000_00A0
    assert lsn_of(None) == 0
    assert record_end(0x3000018) == 0x3000000
    assert record_end(0x3000028) == 0x3000000
    assert record_end(0x3000030) == 0x3000030


def test_progress() -> None:
    progress = Progress()
    progress.claim(100, 10)
    progress.claim(200, 20)
    assert progress.reach(9) == 0
    assert progress.reach(15) == 100
    assert progress.reach(25) == 200
    assert progress.reach(5) == 200
    progress.reset()
    assert progress.reach(99) == 0


def test_progress_is_bounded_and_keeps_the_oldest_claim() -> None:
    progress = Progress()
    for moment in range(1, 10 * MAX_CLAIMS):
        progress.claim(moment, moment)
    assert progress.reach(1) == 1
    assert progress.reach(10**6) == 10 * MAX_CLAIMS - 1


def view(name: str, role: Role, health: Health = Health.ACTIVE) -> NodeView:
    return NodeView(name=name, host=name, port=5432, role=role, health=health, addresses=(Address("10.0.0.1", 5432),))


def test_only_active_and_fit_copies_serve() -> None:
    nodes = [
        view("p", Role.PRIMARY, Health.SUSPECT),
        *(view(f"r-{health}", Role.REPLICA, health) for health in Health),
        view("foreign", Role.REPLICA),
        view("c", Role.COLUMNAR, Health.DOWN),
        NodeView(name="nameless", host="x", port=1, role=Role.REPLICA, health=Health.ACTIVE),
    ]
    made = compile_snapshot(nodes, primary="p", unfit={"foreign"}, version=3, epoch=2)
    assert (made.primary, made.replicas, made.columnar, made.has_columnar) == ("p", ("r-active",), (), True)
    assert content(made) == content(compile_snapshot(nodes, primary="p", unfit={"foreign"}, version=9, epoch=2))
    assert content(made) != content(compile_snapshot(nodes, primary="", unfit={"foreign"}, version=3, epoch=2))


def test_hosts_that_need_no_lookup() -> None:
    assert literal("10.1.2.3", 5432) == Address("10.1.2.3", 5432)
    assert literal("::1", 5432) == Address("::1", 5432)
    assert literal("/run/postgresql/", 5433) == Address("/run/postgresql/.s.PGSQL.5433")
    assert literal("db.example", 5432) is None


async def test_a_failed_lookup_keeps_the_last_addresses() -> None:
    answers: list[list[Address] | OSError] = [[Address("10.0.0.1", 1)], OSError("no server"), []]

    def lookup(host: str, port: int) -> list[Address]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    resolver = Resolver(lookup)
    for _ in range(3):
        assert await resolver.resolve("db", 1, 5.0) == (Address("10.0.0.1", 1),)
    assert not answers
    resolver.stop()


async def test_a_hanging_lookup_takes_one_thread_and_no_time() -> None:
    hang = threading.Event()
    calls = 0

    def lookup(host: str, port: int) -> list[Address]:
        nonlocal calls
        calls += 1
        hang.wait(10)
        return [Address("10.0.0.2", 1)]

    resolver = Resolver(lookup)
    for _ in range(5):
        assert await resolver.resolve("db", 1, 0.01) == ()
    assert calls == 1
    waiting = asyncio.create_task(resolver.resolve("db", 1, 5.0))
    hang.set()
    assert await waiting == (Address("10.0.0.2", 1),)
    resolver.stop()


def test_a_copy_that_joins_takes_sureness_back() -> None:
    clock = FakeClock()
    published: list[Freshness] = []

    async def dial(*_: object) -> Opened:
        raise AssertionError

    sampler = Sampler(lambda: None, Config, dial, published.append, clock)
    before = Snapshot(epoch=1, primary="p", replicas=("r1",), columnar=("c1",))
    for progress in (sampler._replicas, sampler._columnar):
        progress.claim(5, 1)
        progress.reach(1)
    assert not sampler.topology_changed(before, Snapshot(epoch=1, primary="p", replicas=(), columnar=("c1",)))
    assert sampler.freshness == Freshness(replicas_ns=5, columnar_ns=5)
    joined = Snapshot(epoch=1, primary="p", replicas=("r1", "r2"), columnar=("c1",))
    assert sampler.topology_changed(before, joined)
    assert sampler.freshness == Freshness(replicas_ns=0, columnar_ns=5)
    assert sampler.topology_changed(joined, Snapshot(epoch=2, primary="r1", replicas=("r2",), columnar=("c1",)))
    assert sampler.freshness == Freshness()
