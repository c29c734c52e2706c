"""The pure parts of the control plane: what errors mean, what copies are known to hold, names."""

from __future__ import annotations

import asyncio
import math
import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.schema import Config
from proxy.controlplane.freshness import Sampler, _Followed, record_end
from proxy.controlplane.link import NodeLink, Opened
from proxy.controlplane.probes import lsn_of, seen_in
from proxy.controlplane.resolve import Resolver, literal
from proxy.controlplane.tasks import Tasks
from proxy.errors import NodeFailure, NodeRefused
from proxy.health.lag import MAX_POSITIONS, LagGate, Positions
from proxy.health.table import Seen
from proxy.testing import FakeClock, FakeTransport
from proxy.topology.compile import compile_snapshot, content
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import Address, Copy, Freshness, NodeView, Snapshot
from proxy.wire import build


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


def positions(*samples: tuple[int, int]) -> Positions:
    made = Positions()
    for moment, lsn in samples:
        made.note(moment, lsn)
    return made


def test_what_a_position_holds() -> None:
    made = positions((100, 10), (200, 20), (300, 20), (400, 20), (500, 30))
    assert [made.held_until(lsn) for lsn in (9, 10, 19, 20, 29, 30, 99)] == [0, 100, 100, 400, 400, 500, 500]
    assert [made.behind_since(lsn) for lsn in (9, 10, 19, 20, 29, 30)] == [0, 200, 200, 500, 500, None]
    made.clear()
    assert (made.held_until(99), made.behind_since(0)) == (0, None)


def test_a_primary_that_goes_on_lower() -> None:
    """It was restarted, and what it had not flushed is gone."""
    made = positions((100, 10), (200, 30), (300, 20))
    assert made.held_until(20) == 300
    assert made.held_until(10) == 100
    assert made.behind_since(10) == 300


def test_positions_are_bounded_and_old_ones_thinned() -> None:
    made = Positions()
    for moment in range(1, 10 * MAX_POSITIONS):
        made.note(moment, moment)
        assert len(made._moments) <= MAX_POSITIONS
    assert made.held_until(10**6) == 10 * MAX_POSITIONS - 1
    assert 0 < made.held_until(5 * MAX_POSITIONS) <= 5 * MAX_POSITIONS


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 5)), max_size=30), st.integers(0, 40))
def test_positions_never_claim_what_was_not_sampled(steps: list[tuple[int, int]], lsn: int) -> None:
    moment = position = 10
    samples = []
    made = Positions()
    for later, more in steps:
        moment, position = moment + later, max(0, position + more)
        made.note(moment, position)
        samples.append((moment, position))
    held = made.held_until(lsn)
    assert held == 0 or any(at == held and position <= lsn for at, position in samples)


def gated(*lags: float | None, gate: LagGate | None = None, pace: float = 0.1) -> list[int]:
    gate = gate or LagGate()
    return [gate.observe(lag, out=0.2, back=0.1, now=n * pace) for n, lag in enumerate(lags)]


def test_a_copy_begins_when_its_lag_is_known() -> None:
    assert gated(None, None, 0.0) == [0, 0, 100]
    assert gated(math.inf, 0.15) == [0, 100]


def test_a_copy_that_lags_is_out_at_once_and_back_in_steps() -> None:
    assert gated(0.0, 0.2, 0.21) == [100, 100, 0]
    back = gated(0.0, 0.3, 0.15, *[0.05] * 4, 0.15, *[0.05] * 5)
    assert back == [100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10]
    gate = LagGate()
    gated(0.0, 0.3, gate=gate)
    assert gated(*[0.0] * 15, gate=gate, pace=1.0)[4:] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100]


def test_a_copy_that_cannot_be_read_is_out_after_some_readings() -> None:
    assert gated(0.0, None, None, 0.0, None, None, None) == [100, 100, 100, 100, 100, 100, 0]


def view(name: str, role: Role, health: Health = Health.ACTIVE) -> NodeView:
    return NodeView(name=name, host=name, port=5432, role=role, health=health, addresses=(Address("10.0.0.1", 5432),))


def test_only_fit_copies_that_are_active_or_come_back_serve() -> None:
    nodes = [
        view("p", Role.PRIMARY, Health.SUSPECT),
        *(view(f"r-{health}", Role.REPLICA, health) for health in Health),
        view("foreign", Role.REPLICA),
        view("c", Role.COLUMNAR, Health.DOWN),
        NodeView(name="nameless", host="x", port=1, role=Role.REPLICA, health=Health.ACTIVE),
    ]
    made = compile_snapshot(nodes, primary="p", unfit={"foreign"}, version=3, epoch=2)
    assert (made.primary, made.replicas) == ("p", ("r-active", "r-recovering"))
    assert (made.columnar, made.has_columnar) == ((), True)
    assert content(made) == content(compile_snapshot(nodes, primary="p", unfit={"foreign"}, version=9, epoch=2))
    assert content(made) != content(compile_snapshot(nodes, primary="", unfit={"foreign"}, version=3, epoch=2))


def test_writers_beside_the_primary_write_while_they_are_active() -> None:
    nodes = [view(name, Role.PRIMARY, health) for name, health in zip("abcd", Health, strict=True)]
    active, suspect = next(n.name for n in nodes if n.health is Health.ACTIVE), "b"
    for writers, primary, expected in (
        ((), "", ()),
        ((), suspect, (suspect,)),
        (tuple("abcd"), suspect, (active, suspect)),
        (tuple("abcd"), "", (active,)),
    ):
        made = compile_snapshot(nodes, primary=primary, unfit=(), writers=writers, version=1, epoch=1)
        assert made.writers == expected
    made = compile_snapshot(nodes, primary="", unfit={active}, writers="abcd", version=1, epoch=1)
    assert made.writers == ()


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


async def test_another_primary_takes_all_sureness_back() -> None:
    async def dial(*_: object) -> Opened:
        raise OSError

    tasks = Tasks()
    published: list[Freshness] = []
    sampler = Sampler(lambda: None, Config, dial, published.append, FakeClock(), tasks)
    before = Snapshot(epoch=1, primary="p", replicas=("r1",), columnar=("c1",))
    assert not sampler.topology_changed(None, before)
    assert set(sampler.freshness.copies) == {"r1", "c1"}
    sampler._copies["r1"].copy = Copy(fresh_ns=5, lsn=1, weight=100)
    joined = Snapshot(epoch=1, primary="p", replicas=("r1", "r2"))
    assert not sampler.topology_changed(before, joined)
    assert {name: copy.fresh_ns for name, copy in sampler.freshness.copies.items()} == {"r1": 5, "r2": 0}
    assert sampler.topology_changed(joined, Snapshot(epoch=2, primary="r2", replicas=("r1",)))
    assert sampler.freshness.epoch == 2
    assert {name: copy.fresh_ns for name, copy in sampler.freshness.copies.items()} == {"r1": 0}
    await tasks.stop()


class Replaying:
    """A replica that says how far it is, over as many connections as are opened."""

    def __init__(self) -> None:
        self.lsn = "0/64"
        self.end: Callable[[NodeLink], None] | None = None
        """What happens to a connection right behind its answer."""

    async def dial(self, *_: object) -> Opened:
        node = self

        class Transport(FakeTransport):
            link: NodeLink

            def set_protocol(self, link: NodeLink) -> None:
                self.link = link

            def write(self, data: bytes | bytearray | memoryview) -> None:
                if bytes(data[:1]) == b"Q" and node.lsn:
                    row = struct.pack("!hi", 1, len(node.lsn)) + node.lsn.encode()
                    self.link.data_received(build.message(b"D", row) + build.message(b"Z", b"I"))
                    if node.end is not None:
                        node.end(self.link)

        return cast(Opened, SimpleNamespace(transport=Transport(), parameters={}, leftover=b""))


async def followed_copy(tasks: Tasks) -> tuple[Sampler, _Followed, Replaying]:
    """A replica that has been read once: it holds all before the moment 1."""
    replica = Replaying()
    view = NodeView(name="r", host="r", port=1, role=Role.REPLICA)
    snapshot = Snapshot(epoch=1, nodes={"r": view}, replicas=("r",))
    sampler = Sampler(lambda: snapshot, Config, replica.dial, lambda _: None, FakeClock(), tasks)
    followed = sampler._copies["r"] = _Followed("r", 0)
    sampler._inserted.note(1, 100)
    await sampler._look(followed)
    assert (followed.copy.fresh_ns, followed.copy.since_ns) == (1, 0)
    return sampler, followed, replica


@pytest.mark.parametrize("how", ["silent", "breaks", "breaks behind its answer"])
async def test_a_copy_that_may_have_gone_back_is_known_no_more(how: str) -> None:
    tasks = Tasks()
    sampler, followed, replica = await followed_copy(tasks)
    if how == "silent":
        replica.lsn = ""
        await sampler._look(followed)
    elif how == "breaks":
        sampler._links["r"][1].connection_lost(None)
    else:
        replica.end = lambda link: link.connection_lost(None)
        await sampler._look(followed)
    assert (followed.copy.fresh_ns, followed.copy.since_ns) == (0, FakeClock().boot_ns())
    # It has been restarted, and goes on before where it was.
    replica.lsn, replica.end = "0/1", None
    await sampler._look(followed)
    await sampler._look(followed)
    assert followed.copy.lsn == 1
    assert followed.copy.fresh_ns == 0
    await tasks.stop()
