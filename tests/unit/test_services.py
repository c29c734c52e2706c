"""How a worker obeys affinity: where units of tied clients go, who waits, who is told, and what a reload changes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from proxy.config.schema import Config
from proxy.controlplane.homes import Homes
from proxy.dataplane.authenticate import LoggedIn
from proxy.dataplane.client import Client
from proxy.dataplane.services import Tie
from proxy.dataplane.unit import Kind, Unit
from proxy.dataplane.worker import Worker
from proxy.errors import LoginError, Moved
from proxy.ipc.messages import Fresh, Home, KnownHomes, Message, NeedHomes, Publish, Reconfigure, Setup
from proxy.routing.policy import Policy
from proxy.routing.router import Hold
from proxy.sql.classify import classify
from proxy.testing import FakeClock, FakeTransport
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import Copy, Freshness, NodeView, Snapshot

P, R = Role.PRIMARY, Role.REPLICA
READ, WRITE = classify(b"SELECT a FROM t"), classify(b"INSERT INTO t VALUES (1)")
SECOND = 1_000_000_000


def config(services: dict | None = None, *, several: bool = False, **routing: object) -> Config:
    nodes = {name: {"host": name, "role": "primary" if name in "pq" else "auto"} for name in "pqrst"}
    return msgspec.convert(
        {
            "nodes": nodes,
            "services": services or {},
            "group": {"multi_writer": several},
            "routing": {"read_split": True, **routing},
        },
        Config,
    )


def fleet(version: int = 1, *, nodes: str = "prst", **health: Health) -> Snapshot:
    """Primaries p and q, replicas r, s and t; all active but those of another health."""
    views = {
        name: NodeView(
            name=name, host=name, port=1, role=P if name in "pq" else R, health=health.get(name, Health.ACTIVE)
        )
        for name in nodes
    }
    fit = [name for name, view in views.items() if view.health is Health.ACTIVE]
    return Snapshot(
        version=version,
        nodes=views,
        primary="p",
        writers=tuple(name for name in nodes if name == "p" or (name == "q" and name in fit)),
        replicas=tuple(name for name in fit if views[name].role is R),
    )


class Plane:
    """A worker without servers: only where units would go."""

    def __init__(self, config: Config, snapshot: Snapshot) -> None:
        self.sent: list[Message] = []
        self.clock = FakeClock()
        self.clock.advance(10)
        setup = Setup(config=config, snapshot=snapshot, instance=1, workers=1, board="", console="", datagrams=[])
        self.worker = Worker(setup, 0, self.clock, random.Random(1), self.sent.append)
        self.fresh("rst")
        self._number = 0

    def fresh(self, nodes: str, behind: float = 0.0) -> None:
        """Copies hold all that was committed until now, or until some seconds ago."""
        moment = self.clock.boot_ns() - int(behind * SECOND)
        copies = {name: Copy(fresh_ns=moment, since_ns=1, lsn=1, weight=100) for name in nodes}
        self.worker.handle(Fresh(Freshness(sampled_ns=moment, sampled_lsn=1, copies=copies)))

    def client(self, database: str = "s", **params: str) -> Client:
        self._number += 1
        login = LoggedIn(
            user="u",
            database=database,
            params={name.replace("__", "."): value for name, value in params.items()},
            replication="",
            minor=0,
            credentials=None,
            peer="10.0.0.1:5",
            tls=False,
            authenticated_by="trust",
        )
        transport = cast(asyncio.Transport, FakeTransport())
        settings = self.worker.settings_for(database, "u")
        client = Client(self.worker, transport, login, settings, self._number)
        client.binding = None  # what names mean is no matter here
        client.tie = self.worker.services.tie(client)
        self.worker.clients[self._number] = client
        return client

    def goes(self, client: Client, what: Any = READ, *, waited: bool = False, policy: Policy | None = None) -> str:
        """`node reason`, or `wait` with its seconds, or the SQLSTATE; the short way and the general way agree."""
        plain = self.worker.routes.plain(client, what)
        unit = Unit(Kind.QUERY, b"")
        unit.join(what)
        unit.waited = waited
        unit.policy = policy
        try:
            route = self.worker.routes.of(client, unit)
        except Moved as error:
            assert plain is None
            return error.sqlstate
        if isinstance(route, Hold):
            assert plain is None
            return f"wait {route.seconds:.1f}" if route.reason == "affinity_wait" else route.reason
        assert route is not None
        if policy is None and not waited and route.reason.split("_")[0] in ("affinity", "write", "several"):
            assert plain is route
        assert policy is not None or plain in (None, route)
        return f"{route.node} {route.reason}"

    def see(self, config: Config | None = None, **health: Any) -> None:
        nodes = health.pop("nodes", "".join(self.worker.snapshot.nodes))
        if config is not None:
            self.worker.handle(Reconfigure(config))
        self.worker.handle(Publish(fleet(self.worker.snapshot.version + 1, nodes=nodes, **health)))


def one(selector: str | int = 1, nodes: str = "rst", **more: object) -> dict:
    settings = {"switch_times": 3, "switch_interval": 1, "check_interval": 5}
    return {"s": {"nodes": list(nodes), "selector": str(selector), **settings, **more}}


async def test_who_has_no_service_is_not_tied():
    plane = Plane(config(one()), fleet())
    assert plane.client("other").tie is None
    assert plane.client("s").tie is not None
    assert Plane(config(one(), read_split=False), fleet()).client("s").tie is None  # all goes to the primary anyway
    named = plane.client("other", pgtrident__service="s")
    assert cast(Tie, named.tie).service == "s"
    assert named.unruled  # the short way stays open to it
    with pytest.raises(LoginError, match='service "gone" does not exist'):
        plane.worker.services.check(replace(named.login, params={"pgtrident.service": "gone"}))


async def test_reads_keep_to_the_node_and_writes_to_the_primary():
    plane = Plane(config(one()), fleet())
    client = plane.client()
    assert [plane.goes(client) for _ in range(3)] == ["r affinity"] * 3
    assert plane.goes(client, WRITE) == "p write"
    plane.see(r=Health.DOWN)
    assert plane.goes(client) == "s affinity_next"
    assert plane.worker.counters.switches == {("s", "s", "affinity_next"): 1}
    plane.see()
    plane.clock.advance(5)
    assert plane.goes(client) == "r affinity"
    (row,) = plane.worker.services.rows()
    assert (row["preferred"], row["node"], row["sessions"]) == ("r", "r", {"r": 1})
    assert row["since"]


async def test_a_doubtful_node_is_waited_for_and_then_left():
    plane = Plane(config(one()), fleet())
    client, late = plane.client(), plane.client()
    plane.goes(client)
    plane.see(r=Health.SUSPECT)
    assert plane.goes(client) == "wait 3.0"
    assert plane.goes(client, WRITE) == "p write"
    plane.clock.advance(2)
    assert plane.goes(late) == "wait 1.0"
    # Who has waited as long as it may goes by the ordinary rules.
    assert plane.goes(client, waited=True) in ("s read", "t read")
    plane.clock.advance(1)
    assert plane.goes(client) == "s affinity_next"


async def test_a_wait_is_measured_from_its_start():
    plane = Plane(config(one()), fleet())
    client = plane.client()
    plane.see(r=Health.SUSPECT)
    unit = Unit(Kind.QUERY, b"")
    unit.join(READ)
    unit.since = plane.clock.now()
    plane.clock.advance(2)
    hold = plane.worker.routes.of(client, unit)
    assert isinstance(hold, Hold)
    assert hold.seconds == pytest.approx(3, abs=0.1)


async def test_reads_on_the_primary_wait_for_nobody():
    plane = Plane(config(one(), consistency="strong"), fleet())
    client = plane.client()
    plane.see(r=Health.SUSPECT)
    assert plane.goes(client) == "p strong"


async def test_a_node_that_does_not_hold_what_was_seen_is_skipped_for_that_read():
    plane = Plane(config(one(nodes="rs")), fleet())
    client = plane.client()
    assert plane.goes(client) == "r affinity"
    client.token.wrote_ns = plane.clock.boot_ns()
    plane.clock.advance(0.01)
    plane.fresh("rst", behind=1)
    assert plane.goes(client) == "p after_write"
    plane.fresh("rst")
    assert plane.goes(client) == "r affinity"
    # Another copy holds it: the read goes there, and in a while waits for its own.
    client.token.seen_ns, client.token.seen_node = plane.clock.boot_ns(), "t"
    client.roaming.spread_ns = client.token.seen_ns
    assert plane.goes(client) == "t read"
    client.token.seen_ns += SECOND
    assert plane.goes(client) == "spreading"
    assert plane.goes(client, waited=True) == "t read"
    # On its own node it waits for nobody, however long it has been there.
    client.token.seen_node, client.roaming.spread_ns = "r", 0
    assert plane.goes(client) == "r affinity"


async def test_a_switch_is_told_once_to_who_wants_it():
    services = one(reconnect=["notify", "failback"]) | {"q": {"nodes": ["r", "s"], "selector": "1"}}
    plane = Plane(config(services), fleet())
    busy, idle, silent = plane.client(), plane.client(), plane.client("q")
    for client in (busy, idle, silent):
        plane.goes(client)
    plane.see(r=Health.DOWN)
    assert [plane.goes(busy) for _ in range(3)] == ["40001", "s affinity_next", "s affinity_next"]
    assert plane.goes(silent) == "s affinity_next"
    plane.see()
    plane.clock.advance(60)
    assert plane.goes(busy) == "r affinity"
    assert [plane.goes(idle, WRITE), plane.goes(idle)] == ["40001", "r affinity"]


async def test_who_was_waited_for_in_vain_is_told_by_upkeep():
    plane = Plane(config(one(reconnect=["notify", "failback"])), fleet())
    idle = plane.client()
    plane.goes(idle)
    plane.see(r=Health.SUSPECT)
    plane.clock.advance(3)
    plane.worker.services.upkeep()
    assert cast(Tie, idle.tie).error is not None


async def test_a_reload_ties_anew_who_it_concerns():
    plane = Plane(config(one("hash") | {"q": {"nodes": ["t"]}}), fleet())
    client, other = plane.client(application_name="x"), plane.client("q")
    kept = other.tie
    plane.see(config(one(0) | {"q": {"nodes": ["t"], "check_interval": 1}}))
    assert plane.goes(client).endswith("affinity")
    assert other.tie is kept
    plane.see(config({}))
    assert client.tie is None and other.tie is None
    plane.see(config(one(1, "sr")))
    assert plane.goes(client) == "s affinity"
    plane.see(config(one(1, "sr")), nodes="ps")
    named = plane.client("other", pgtrident__service="s")
    plane.see(config({}))
    assert named.tie is None


async def test_sessions_are_kept_even():
    plane = Plane(config(one(0, "rs", reconnect=["failback", "balance"])), fleet(s=Health.DOWN))
    clients = [plane.client() for _ in range(10)]
    for client in clients:
        cast(Tie, client.tie).key = "0"  # as if there had been no other node when they came
        assert plane.goes(client) == "r affinity"
    plane.see()
    plane.clock.advance(60)
    for _ in range(10):
        plane.worker.services.upkeep()
    assert sorted(plane.goes(client) for client in clients) == ["r affinity"] * 5 + ["s affinity"] * 5


# --- several writers


async def test_writes_and_reads_keep_to_a_writer():
    plane = Plane(config(one(2, "pq"), several=True), fleet(nodes="pqrst"))
    client, other = plane.client(), plane.client("other")
    assert [plane.goes(client, WRITE), plane.goes(client)] == ["q write", "q several_writers"]
    assert [plane.goes(other, WRITE), plane.goes(other)] == ["p write", "p several_writers"]
    plane.see(q=Health.SUSPECT)
    assert [plane.goes(client, WRITE), plane.goes(client)] == ["wait 3.0"] * 2
    plane.clock.advance(3)
    assert [plane.goes(client, WRITE), plane.goes(client)] == ["p write", "p several_writers"]
    plane.see()
    plane.clock.advance(5)
    assert plane.goes(client, WRITE) == "q write"


async def test_a_doubtful_primary_is_waited_for_where_others_write():
    plane = Plane(config(one(1, "pq"), several=True), fleet(nodes="pqrst"))
    client = plane.client()
    plane.goes(client, WRITE)
    plane.see(p=Health.SUSPECT)
    assert plane.goes(client, WRITE) == "wait 3.0"
    assert plane.worker.services.leaves("p") and not plane.worker.services.leaves("q")
    plane.clock.advance(3)
    assert plane.goes(client, WRITE) == "q write"


@pytest.mark.parametrize(
    ("nodes", "routing", "expected"),
    [
        ("qrs", {}, "q several_writers"),
        ("qrs", {"consistency": "eventual"}, "r affinity"),
        ("q", {"consistency": "eventual"}, "q several_writers"),
        ("qrs", {"consistency": "strong"}, "q strong"),
        ("qrs", {"consistency": "eventual", "read_split": False}, "q read_split_off"),
    ],
)
async def test_copies_are_read_only_by_who_need_not_see_anything(nodes: str, routing: dict, expected: str):
    plane = Plane(config(one(1, nodes), several=True, **routing), fleet(nodes="pqrst"))
    assert plane.goes(plane.client()) == expected


async def test_hints_go_before_services():
    plane = Plane(config(one(1, "qrs"), several=True), fleet(nodes="pqrst"))
    client = plane.client()
    named = Policy(node="s", reason="hint")
    assert plane.goes(client, policy=named) == "q several_writers"
    assert plane.goes(client, policy=Policy(node="s", consistency="eventual", reason="hint")) == "s hint"
    assert plane.goes(client, policy=Policy(route="primary", reason="hint")) == "q hint"
    plane = Plane(config(one()), fleet())
    client = plane.client()
    plane.see(r=Health.SUSPECT)
    assert plane.goes(client, policy=named) == "s hint"
    assert plane.goes(client, policy=Policy(route="primary", reason="hint")) == "p hint"


# --- spread


async def test_workers_and_controller_agree_on_homes(tmp_path: Path):
    settings, snapshot = config(one("spread", "rs")), fleet()
    planes = [Plane(settings, snapshot) for _ in range(2)]

    def publish(known: KnownHomes) -> None:
        for plane in planes:
            plane.worker.handle(known)

    homes = Homes(tmp_path / "homes", lambda: snapshot, lambda: settings, publish)
    for number in range(8):
        plane = planes[number % 2]
        plane.client(application_name=f"n{number}")
        (asked,) = [message for message in plane.sent if isinstance(message, NeedHomes)]
        plane.sent.clear()
        homes.need(asked.homes)
    found = [[plane.goes(plane.client(application_name=f"n{n}")) for n in range(8)] for plane in planes]
    assert found[0] == found[1] == ["r affinity", "s affinity"] * 4
    after = Homes(tmp_path / "homes", lambda: snapshot, lambda: settings, publish)
    after.load()
    assert sorted(after.all().homes, key=lambda home: home.name) == [
        Home("s", R, f"n{number}", "rs"[number % 2]) for number in range(8)
    ]
    # One that comes later is told all.
    late = Plane(settings, snapshot)
    late.worker.handle(after.all())
    assert [late.goes(late.client(application_name=f"n{n}")) for n in range(8)] == found[0]


@pytest.mark.parametrize("content", [None, b"", b"[1]", b'{"nonsense": {"a": "b"}}'])
def test_homes_that_cannot_be_read_are_none(tmp_path: Path, content: bytes | None):
    if content is not None:
        (tmp_path / "homes").write_bytes(content)
    told: list[KnownHomes] = []
    homes = Homes(tmp_path / "homes", fleet, lambda: config(one("spread")), told.append)
    homes.load()
    assert homes.all().homes == []
    homes.need([Home("s", R, "x"), Home("nobody", R, "x")])
    assert told == [KnownHomes([Home("s", R, "x", "r")])]
