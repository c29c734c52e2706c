"""The controller in front of real servers that stop, freeze, lag, are promoted or not to be logged in to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.clock import SystemClock
from proxy.config.schema import Config, HealthSettings, Load, Node, ServerLink
from proxy.controlplane.controller import Controller
from proxy.controlplane.link import Dial, Opened
from proxy.demo.postgres import Cluster, Server
from proxy.errors import TridentError
from proxy.health import pace
from proxy.ipc.channel import Link
from proxy.ipc.messages import (
    Ask,
    Counters,
    Grant,
    Hello,
    Message,
    NeedFreshness,
    Report,
    ReportRequest,
    Setup,
    Suspicion,
)
from proxy.ipc.messages import Fresh as FreshMessage
from proxy.ipc.messages import Publish as PublishMessage
from proxy.ipc.paths import RuntimePaths
from proxy.run_controller import dial_as_prober
from proxy.testing import SeededRng
from proxy.topology.snapshot import NodeView, Snapshot

PATIENCE = 20.0


class Worker:
    """The worker's end of a channel: keeps what it was told."""

    def __init__(self, paths: RuntimePaths, number: int) -> None:
        self.number = number
        self.snapshots: list[Snapshot] = []
        self.fresh: list[dict[str, int]] = []
        self.grants: dict[str, int] = {}
        self.news = asyncio.Event()
        self.link = Link(paths.controller, lambda: Hello(number, 1), self._told)

    def _told(self, message: Message) -> None:
        match message:
            case Setup():
                self.snapshots.append(message.snapshot)
            case PublishMessage():
                self.snapshots.append(message.snapshot)
            case FreshMessage():
                self.fresh.append({name: copy.fresh_ns for name, copy in message.freshness.copies.items()})
            case Grant():
                self.grants[message.key] = message.permits
            case ReportRequest():
                self.link.send(Report(message.id, self.number, [{"n": self.number}]))
        self.news.set()

    def has(self, servers: dict[str, int]) -> None:
        """It has so many servers of these nodes."""
        self.link.send(Counters(self.number, {}, [], self.last.version, servers))

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not done():
                self.news.clear()
                await self.news.wait()

    @property
    def last(self) -> Snapshot:
        return self.snapshots[-1]

    async def until_snapshot(self, right: Callable[[Snapshot], bool]) -> Snapshot:
        await self.until(lambda: bool(self.snapshots) and right(self.last))
        return self.last


async def poll(done: Callable[[], bool]) -> None:
    """For what nobody announces."""
    async with asyncio.timeout(PATIENCE):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    with Cluster() as cluster:
        primary = cluster.create("primary")
        yield primary, cluster.replica("replica", primary)


QUICK = {"network_interval": 0.3, "ramp": 0.5, "flap_window": 0.0}


def settings(servers: tuple[Server, ...], **health: Any) -> Config:
    names = ("a", "b", "c")
    return Config(
        server=ServerLink(tls="disable"),
        health=HealthSettings(**{"user": "postgres", "interval": 0.3, "timeout": 0.25, **QUICK, **health}),
        nodes={name: Node(host="127.0.0.1", port=s.port) for name, s in zip(names, servers, strict=False)},
    )


@asynccontextmanager
async def controller(
    config: Config, directory: Path, workers: int = 1, dial: Dial = dial_as_prober
) -> AsyncIterator[tuple[Controller, list[Worker]]]:
    paths = RuntimePaths(directory)
    made = Controller(
        config,
        workers=workers,
        instance=1,
        paths=paths,
        dial=dial,
        dial_database=dial_as_prober,
        clock=SystemClock(),
        rng=SeededRng(1),
    )
    await made.start()
    ends = [Worker(paths, number) for number in range(workers)]
    links = [asyncio.create_task(end.link.run()) for end in ends]
    try:
        for end in ends:
            await end.until(lambda end=end: bool(end.snapshots))  # type: ignore[misc]
        yield made, ends
    finally:
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        await made.stop()


async def test_evidence_is_looked_at_at_once(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """With a minute between probes, only the worker's word can be the reason to look."""
    seldom = settings(servers, interval=60.0, network_interval=60.0)
    async with controller(seldom, tmp_path) as (made, [worker]):
        await worker.until_snapshot(lambda s: s.replicas == ("b",))
        servers[1].freeze()
        try:
            worker.link.send(Suspicion("b", "timeout"))
            await worker.until_snapshot(lambda s: s.replicas == ())

            def probed_again() -> bool:
                worker.link.send(Suspicion("b", "timeout"))
                return bool(made.nodes()[1]["probe_failures"] >= 5)

            # A burst of evidence is one finding: suspect, not down.
            await poll(probed_again)
            assert worker.last.nodes["b"].health == "suspect"
        finally:
            servers[1].thaw()
        assert worker.last.primary == "a"


async def test_a_dead_replica_is_down_by_hard_evidence(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """Refused, and what was open has broken: the end of the kept connection is enough to look, and to go on looking."""
    seldom = settings(servers, interval=60.0, network_interval=60.0)
    async with controller(seldom, tmp_path) as (made, [worker]):
        await worker.until_snapshot(lambda s: s.replicas == ("b",))
        servers[1].stop()
        try:
            await worker.until_snapshot(lambda s: s.nodes["b"].health == "down")
        finally:
            await asyncio.to_thread(servers[1].start)
        [moved] = [event for event in await made.history(0.0, "b", "health", 10) if event["after"] == "down"]
        assert moved["seen"].count("network refused") >= 2


async def test_a_primary_that_is_restarted_is_never_down(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """Within the grace nothing is sent there, and the epoch stays."""
    patient = settings(servers, primary_restart_grace=60.0)
    async with controller(patient, tmp_path) as (_, [worker]):
        await worker.until_snapshot(lambda s: s.primary == "a" and s.replicas == ("b",))
        servers[0].stop()
        try:
            held = await worker.until_snapshot(lambda s: s.primary == "")
            assert held.nodes["a"].health == "suspect"
        finally:
            await asyncio.to_thread(servers[0].start)
        back = await worker.until_snapshot(lambda s: s.primary == "a" and s.nodes["a"].health == "active")
        assert back.epoch == 1
        assert all(s.nodes["a"].health != "down" for s in worker.snapshots)


async def test_a_primary_that_is_gone_for_longer_is_down(servers: tuple[Server, Server], tmp_path: Path) -> None:
    async with controller(settings(servers, primary_restart_grace=0.5), tmp_path) as (_, [worker]):
        await worker.until_snapshot(lambda s: s.primary == "a" and s.replicas == ("b",))
        servers[0].stop()
        try:
            await worker.until_snapshot(lambda s: s.nodes["a"].health == "down")
        finally:
            await asyncio.to_thread(servers[0].start)
        assert (await worker.until_snapshot(lambda s: s.primary == "a")).epoch == 1


async def test_a_primary_that_cannot_write_is_suspect(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """It goes on serving, for there is no other, and says why."""
    async with controller(settings(servers, write_test=True), tmp_path) as (made, [worker]):
        await worker.until_snapshot(lambda s: s.primary == "a" and s.nodes["a"].health == "active")
        await asyncio.to_thread(servers[0].query, "ALTER SYSTEM SET default_transaction_read_only = on")
        await asyncio.to_thread(servers[0].query, "SELECT pg_reload_conf()")
        try:
            found = await worker.until_snapshot(lambda s: s.nodes["a"].health == "suspect")
            assert found.primary == "a"
            assert made.nodes()[0]["cause"] == "default_transaction_read_only is on"
        finally:
            await asyncio.to_thread(servers[0].query, "ALTER SYSTEM RESET default_transaction_read_only")
            await asyncio.to_thread(servers[0].query, "SELECT pg_reload_conf()")
        await worker.until_snapshot(lambda s: s.nodes["a"].health == "active")


async def test_it_is_noted_how_long_probes_take(
    servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "TELL_EVERY", 0.5)
    async with controller(settings(servers), tmp_path) as (made, _):
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE):
            while {event["node"] for event in found} != {"a", "b"}:
                await asyncio.sleep(0.1)
                found = await made.history(0.0, "", "probe", 100)
    times = [pace.parse_times(event["seen"]) for event in found]
    assert all(one.count >= 1 and 0 < one.p50 <= one.p99 <= one.longest < 0.25 for one in times)


async def test_a_frozen_replica_leaves_and_comes_back(servers: tuple[Server, Server], tmp_path: Path) -> None:
    async with controller(settings(servers), tmp_path) as (made, [worker]):
        await worker.until_snapshot(lambda s: s.replicas == ("b",))
        servers[1].freeze()
        try:
            await worker.until_snapshot(lambda s: s.nodes["b"].health == "down")
            assert next(s.nodes["b"].health for s in worker.snapshots if s.replicas == ()) == "suspect"
            assert worker.last.nodes["a"].health == "active"
            row = {row["name"]: row for row in made.nodes()}["b"]
            assert row["probe_failures"] >= 3
            assert "no full answer" in row["cause"] or "no answer in time" in row["cause"]
        finally:
            servers[1].thaw()
        back = await worker.until_snapshot(lambda s: s.replicas == ("b",))
        healths = [s.nodes["b"].health for s in worker.snapshots]
        assert "recovering" in healths
        assert (back.epoch, back.primary) == (1, "a")


async def test_a_replica_that_lags_is_not_active_again(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """Whatever its probes say: it has to be verified too."""
    primary, replica = servers
    async with controller(settings(servers), tmp_path) as (made, [worker]):
        await worker.until_snapshot(lambda s: s.replicas == ("b",))
        await asyncio.to_thread(replica.query, "SELECT pg_wal_replay_pause()")
        await asyncio.to_thread(primary.query, "CREATE TABLE unreplayed (x int)")
        replica.freeze()
        try:
            await worker.until_snapshot(lambda s: s.nodes["b"].health == "down")
        finally:
            replica.thaw()
        await worker.until_snapshot(lambda s: s.nodes["b"].health == "recovering")
        passed = made.nodes()[1]["probes"] + 6
        await poll(lambda: made.nodes()[1]["probes"] >= passed)
        assert (made.nodes()[1]["health"], made.nodes()[1]["cause"][:7]) == ("recovering", "its lag")
        await asyncio.to_thread(replica.query, "SELECT pg_wal_replay_resume()")
        await worker.until_snapshot(lambda s: s.nodes["b"].health == "active")


async def test_reads_wait_for_a_copy_that_lags(servers: tuple[Server, Server], tmp_path: Path) -> None:
    primary, replica = servers
    async with controller(settings(servers, timeout=0.2), tmp_path) as (_, [worker]):
        await worker.until_snapshot(lambda s: s.replicas == ("b",))
        clock = SystemClock()
        await asyncio.to_thread(primary.query, "CREATE TABLE written (x int)")
        with primary.connect() as idle:
            idle.autocommit = False
            await asyncio.to_thread(replica.query, "SELECT pg_wal_replay_pause()")
            await asyncio.to_thread(primary.query, "INSERT INTO written VALUES (1)")
            written = clock.boot_ns()
            # What an open transaction has written must not keep others from being sure.
            idle.execute("INSERT INTO written VALUES (2)")
            worker.link.send(NeedFreshness(written))
            # The replica stands still: in several rounds nothing is sure of this write.
            await asyncio.sleep(0.5)
            paused = [moments for moments in worker.fresh if moments.get("b", 0) >= written]
            await asyncio.to_thread(replica.query, "SELECT pg_wal_replay_resume()")
            assert not paused
            async with asyncio.timeout(8):  # PostgreSQL's own background writing would end it after 15 s
                await worker.until(lambda: worker.fresh[-1].get("b", 0) >= written)
            idle.rollback()


async def test_a_standby_in_place_of_a_columnar_node(servers: tuple[Server, Server], tmp_path: Path) -> None:
    config = settings(servers)
    columnar = Node(host="127.0.0.1", port=servers[1].port, role="columnar")
    config = msgspec.structs.replace(config, nodes={**config.nodes, "b": columnar})
    async with controller(config, tmp_path) as (_, [worker]):
        found = await worker.until_snapshot(lambda s: s.columnar == ("b",))
        assert (found.primary, found.replicas, found.has_columnar) == ("a", (), True)
        written = SystemClock().boot_ns()
        worker.link.send(NeedFreshness(written))
        await worker.until(lambda: worker.fresh[-1].get("b", 0) >= written)


async def test_permits_and_reports_go_through(servers: tuple[Server, Server], tmp_path: Path) -> None:
    async with controller(settings(servers), tmp_path, workers=2) as (made, [first, second]):
        first.link.send(Ask(0, "a/db/u", 3, 10))
        await second.until(lambda: second.grants.get("a/db/u") == 2)
        assert "a/db/u" not in first.grants  # not before the other has given back
        rows = await made.report("clients")
        assert sorted((row["n"], row["worker"]) for row in rows) == [(0, 0), (1, 1)]
        first.link.send(Counters(0, {"x": 1}, []))
        await made.report("clients")  # behind the counters on the same channel
        assert made.counters[0].values == {"x": 1}


async def test_a_wrong_login_is_no_illness(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """The probe's user does not exist: a lone node is taken for the primary and stays in service."""
    async with controller(settings(servers[:1], user="nobody_at_all"), tmp_path) as (made, [worker]):
        await worker.until_snapshot(lambda s: s.primary == "a")
        await poll(lambda: made.nodes()[0]["probes"] >= 4)
        row = made.nodes()[0]
        assert row["health"] == "active"
        assert row["probe_failures"] == 0
        assert "nobody_at_all" in row["cause"]


async def test_the_config_is_checked_against_the_node(servers: tuple[Server, Server], tmp_path: Path) -> None:
    wrong = Config(
        server=ServerLink(tls="disable"),
        health=HealthSettings(user="postgres", interval=0.3, timeout=0.25),
        nodes={
            "a": Node(host="127.0.0.1", port=servers[0].port, role="primary"),
            "b": Node(host="127.0.0.1", port=servers[1].port, role="primary"),
        },
    )
    async with controller(wrong, tmp_path) as (made, [worker]):
        found = await worker.until_snapshot(lambda s: s.nodes["b"].health == "down")
        assert (found.primary, found.replicas) == ("a", ())
        assert 'the configuration says "primary"' in made.nodes()[1]["cause"]


async def test_reload_of_nodes(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """One that is taken out is in the picture until no worker has anything there, over a restart too; unless it comes
    back before."""
    config, without = settings(servers), settings(servers[:1])
    async with controller(without, tmp_path) as (made, [worker]):
        assert (await worker.until_snapshot(lambda s: s.primary == "a")).replicas == ()
        made.reload(config, "test")
        before = await worker.until_snapshot(lambda s: s.replicas == ("b",))
        made.reload(without, "test")
        gone = await worker.until_snapshot(lambda s: s.replicas == ())
        assert gone.nodes["b"].generation > before.nodes["b"].generation
        made.reload(config, "test")
        await worker.until_snapshot(lambda s: s.replicas == ("b",) and s.nodes["b"].drain is None)
        made.reload(without, "test")
        left = (await worker.until_snapshot(lambda s: s.nodes["b"].drain is not None)).nodes["b"]
        worker.has({"b": 1})
        await made.report("clients")  # behind the counters on the same channel
        assert "no longer in the configuration" in made.nodes()[1]["cause"]
    async with controller(without, tmp_path) as (made, [worker]):
        assert worker.last.nodes["b"].drain == left.drain
        worker.has({})
        await worker.until_snapshot(lambda s: "b" not in s.nodes)
        assert [row["name"] for row in made.nodes()] == ["a"]


async def test_a_drain(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """It outlives a reload and a restart; its end is seen once; and the node has to show again that it is fit."""
    config = settings(servers)
    async with controller(config, tmp_path) as (made, [worker]):
        before = await worker.until_snapshot(lambda s: s.replicas == ("b",))
        with pytest.raises(TridentError, match="no other node takes writes"):
            made.drain("a", None)
        made.drain("b", 1000.0)
        asked = await worker.until_snapshot(lambda s: s.replicas == ())
        assert asked.nodes["b"].health == "active"
        assert asked.nodes["b"].generation > before.nodes["b"].generation
        said = Node(host="127.0.0.1", port=servers[1].port, role="replica")
        config = msgspec.structs.replace(config, nodes={**config.nodes, "b": said})
        made.reload(config, "test")
        worker.has({"b": 1})
        await made.report("clients")
        assert (made.nodes()[1]["drain"], worker.last.replicas) == ("draining", ())
    async with controller(config, tmp_path) as (made, [worker]):
        assert worker.last.nodes["b"].drain == asked.nodes["b"].drain
        worker.has({})
        done = await worker.until_snapshot(lambda s: s.nodes["b"].drain != asked.nodes["b"].drain)
        assert done.nodes["b"].drain is not None and done.nodes["b"].drain.state == "drained"
        made.drain("b", None)  # nothing more is to be done
        await poll(lambda: made.nodes()[1]["health"] == "active")
        assert (made.nodes()[1]["drain"], worker.last.replicas) == ("drained", ())
        made.undrain("b")
        back = await worker.until_snapshot(lambda s: s.replicas == ("b",))
        at = next(i for i, s in enumerate(worker.snapshots) if s.nodes["b"].drain is None)
        assert (worker.snapshots[at].replicas, worker.snapshots[at].nodes["b"].health) == ((), "suspect")
        drained = [
            (event["before"], event["after"], event["cause"]) for event in await made.history(0.0, "b", "drain", 100)
        ]
        assert drained == [
            ("", "draining", "command"),
            ("draining", "drained", "command"),
            ("drained", "", "command"),
        ]
        # A replica that has new servers is asked anew; the primary stays in service.
        probes = made.nodes()[1]["probes"]
        made.reconnect("b")
        assert await worker.until_snapshot(
            lambda s: s.replicas == ("b",) and s.nodes["b"].generation > back.nodes["b"].generation
        )
        assert [s.replicas for s in worker.snapshots[-2:]] == [(), ("b",)]
        assert made.nodes()[1]["probes"] > probes
        made.reconnect("a")
        renewed = await worker.until_snapshot(lambda s: s.nodes["a"].generation > back.nodes["a"].generation)
        assert (renewed.primary, renewed.nodes["a"].health, renewed.epoch) == ("a", "active", back.epoch)


async def test_a_probe_that_began_before_proves_nothing(servers: tuple[Server, Server], tmp_path: Path) -> None:
    held = asyncio.Event()
    begun: list[asyncio.Event] = []

    async def dial(node: NodeView, config: Config, seconds: float) -> Opened:
        if node.name == "b" and held.is_set() and seconds > 5:  # not those that read positions
            begun.append(asyncio.Event())
            await begun[-1].wait()
        return await dial_as_prober(node, config, seconds)

    async with controller(settings(servers, interval=60.0, timeout=20.0), tmp_path, dial=dial) as (made, [worker]):
        await worker.until_snapshot(lambda s: s.replicas == ("b",))
        held.set()
        worker.link.send(Suspicion("b", "reset"))
        await poll(lambda: len(begun) == 1)
        made.reconnect("b")
        begun[0].set()
        await poll(lambda: len(begun) == 2)
        assert (made.nodes()[1]["health"], worker.last.replicas) == ("suspect", ())
        begun[1].set()
        await worker.until_snapshot(lambda s: s.replicas == ("b",))


async def test_a_promotion_is_followed(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """Last in this module: the servers are two primaries afterwards."""
    primary, replica = servers
    async with controller(settings(servers), tmp_path) as (made, [worker]):
        before = await worker.until_snapshot(lambda s: s.replicas == ("b",))
        made.drain("b", None)  # that it is promoted counts more
        primary.kill()
        await worker.until_snapshot(lambda s: s.nodes["a"].health != "active")
        await asyncio.to_thread(replica.promote)
        worker.link.send(Suspicion("b", "read_only"))
        after = await worker.until_snapshot(lambda s: s.primary == "b")
        assert after.epoch == before.epoch + 1
        assert after.nodes["b"].drain is None
        assert after.replicas == ()
        assert after.nodes["b"].generation > before.nodes["b"].generation
        assert after.nodes["a"].generation > before.nodes["a"].generation
        await asyncio.to_thread(primary.start)
        # The old primary is back and still says that it is one: it gets nothing.
        back = await worker.until_snapshot(lambda s: s.nodes["a"].health == "active")
        assert (back.primary, back.epoch, back.replicas) == ("b", after.epoch, ())


async def test_an_overloaded_replica_gets_nothing_new(tmp_path: Path) -> None:
    """By a figure of the machine that a query tells (here a table on the primary), and never down for that."""
    with Cluster() as cluster:
        primary = cluster.create("primary")
        await asyncio.to_thread(primary.query, "CREATE TABLE cpu (port int, percent int)")
        servers = (primary, cluster.replica("one", primary), cluster.replica("two", primary))
        by_port = "SELECT percent, NULL FROM cpu WHERE port = current_setting('port')::int"
        watched = msgspec.structs.replace(settings(servers), load=Load(query=by_port, dwell=0.0))

        def busy(server: Server, percent: int) -> None:
            primary.query(f"DELETE FROM cpu WHERE port = {server.port}")
            primary.query(f"INSERT INTO cpu VALUES ({server.port}, {percent})")

        async with controller(watched, tmp_path) as (made, [worker]):
            await worker.until_snapshot(lambda s: set(s.replicas) == {"b", "c"})
            await asyncio.to_thread(busy, servers[1], 80)
            found = await worker.until_snapshot(lambda s: s.replicas == ("c",))
            assert found.nodes["b"].health == "suspect"
            assert made.nodes()[1]["cause"] == "cpu 80 (limit 75)"
            # The other one of the same machine stays, and that is said.
            await asyncio.to_thread(busy, servers[2], 90)
            await poll(lambda: any("no other replica" in event.seen for event in made._history.find()))
            # Below the limit is not below enough; and nobody is down for it.
            await asyncio.to_thread(busy, servers[1], 70)
            passed = made.nodes()[1]["probes"] + 5
            await poll(lambda: made.nodes()[1]["probes"] >= passed)
            assert worker.last.replicas == ("c",)
            await asyncio.to_thread(busy, servers[1], 50)
            # Now that another is active, the second one goes.
            await worker.until_snapshot(lambda s: s.replicas == ("b",))
            assert all(view.health != "down" for s in worker.snapshots for view in s.nodes.values())
