"""Services keep to their nodes, leave them when they fail, and come back; who has nothing to do with a node notices
nothing. Which node answered is said by the nodes: by their logs, or by a column that differs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.demo.postgres import Cluster, Server
from proxy.routing.affinity import ranked

from ..conftest import base_settings, wait_until_serving
from ..support.fleet import Fleet
from ..support.proxy import Proxy, merged
from ..support.rawpg import EOF as CLOSED
from ..support.rawpg import B, D, E, P, Q, S, Wire, show
from .conftest import CONSOLE_USER, Service, eventually

PROBE_SECONDS = 0.05
BUDGET = 0.9
CHECK = 1.0
SLACK = 1.5
"""Seconds for the machine: probes of the proxy, samples of positions, and processes that want the same processor."""
SETTINGS: dict[str, Any] = {
    "admin": {"users": [CONSOLE_USER]},
    "users": {CONSOLE_USER: {}},
    "health": {"interval": 0.3, "timeout": 0.25},
    "routing": {
        "read_split": True,
        "affinity": {"switch_times": 3, "switch_interval": BUDGET / 3, "check_interval": CHECK},
    },
}
TEXT = "SELECT count(*) FROM item /* seen {} */"


@pytest.fixture(scope="module")
def own_fleet() -> Iterator[Fleet]:
    """One that this file may hurt."""
    with Fleet() as fleet:
        yield fleet


def health(service: Service, node: str) -> str | None:
    return next(row["health"] for row in service.console("SHOW NODES") if row["name"] == node)


def shown(service: Service, name: str) -> dict[str, str | None]:
    return next(row for row in service.console("SHOW SERVICES") if row["name"] == name)


class Scene:
    """A proxy with services, and what the nodes say of who asked them."""

    def __init__(self, fleet: Fleet, directory: Path, over: dict[str, Any]) -> None:
        self.settings = merged(merged(base_settings(fleet), SETTINGS), over)
        self.proxy = Proxy(self.settings, directory)
        wait_until_serving(self.proxy)
        self.service = Service(self.proxy, "a", fleet)
        self.replicas = {replica.name: replica for replica in fleet.replicas}
        self._logs = [(n, n.log_file.stat().st_size) for n in (fleet.primary, *fleet.replicas)]
        self._number = 0

    def client(self, database: str = "a", **params: str) -> Wire:
        return self.service.client(pool=20, database=database, **params)

    def answers(self, client: Wire) -> str:
        """The node that answers a read of this client's."""
        self._number += 1
        mark = f"now {self._number}"
        client.query(TEXT.format(mark))
        return self.seen()[mark]

    def settled(self, *databases: str) -> None:
        """Reads go to replicas by now, and both replicas take them."""
        assert eventually(lambda: self._weights()[1:] == ["100", "100"], 10)
        for database in databases:
            client = self.client(database)
            assert eventually(lambda client=client: self.answers(client) != "primary", 10)
            client.close()

    def spread(self, clients: Mapping[str, Wire]) -> dict[str, str]:
        """The nodes of these names of a `spread` service, equally many each, which they have once the controller has
        said so: a name's first statement doesn't wait for that."""
        nodes: dict[str, str] = {}

        def even() -> bool:
            nodes.update({name: self.answers(client) for name, client in clients.items()})
            return set(Counter(nodes.values()).values()) == {len(clients) // len(self.replicas)}

        assert eventually(even), nodes
        return nodes

    def _weights(self) -> list[str | None]:
        return [row["weight"] for row in self.service.console("SHOW NODES")]

    def seen(self) -> dict[str, str]:
        """Nodes by the marks of the texts that they ran."""
        return {
            mark.decode(): node.name
            for node, start in self._logs
            for mark in re.findall(rb"/\* seen ([^*]+) \*/", node.log_file.read_bytes()[start:])
        }

    def reload(self, over: dict[str, Any]) -> None:
        start = len(self.proxy.lines)
        self.proxy.write_config(merged(self.settings, over))
        self.proxy.reload()
        self.proxy.wait_for("reloaded", after=start)


class Prober:
    """Asks on one connection, again and again, and keeps when which answer came."""

    def __init__(self, name: str, client: Wire, text: str, pause: float = PROBE_SECONDS) -> None:
        self.name = name
        self._pause = pause
        self.answers: list[tuple[float, str, str]] = []
        """When it came, the mark of its text, and the replies in short."""
        self.between = threading.Lock()
        """Held while nothing is under way."""
        self._client = client
        self._text = text
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            number += 1
            mark = f"{self.name} {number}"
            with self.between:
                replies = self._client.query(self._text.format(mark), timeout=30)
            self.answers.append((time.monotonic(), mark, replies))

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._stop.set()
        self._thread.join()

    def answered(self, count: int = 3, seconds: float = 10) -> bool:
        """Wait for so many more answers."""
        wanted = len(self.answers) + count
        return eventually(lambda: len(self.answers) >= wanted, seconds)

    def errors(self) -> list[str]:
        return [replies for _, _, replies in self.answers if "E[" in replies or "EOF" in replies]


def moments(prober: Prober, node_of: Callable[[str, str], str]) -> list[tuple[str, float, float]]:
    """Which nodes answered, in order: the node, its first and its last answer."""
    found: list[tuple[str, float, float]] = []
    for moment, mark, replies in prober.answers:
        node = node_of(mark, replies)
        if found and found[-1][0] == node:
            found[-1] = (node, found[-1][1], moment)
        else:
            found.append((node, moment, moment))
    return found


def fail_and_return(service: Service, node: Server, *probers: Prober) -> float:
    """Kill the node of the first prober while nobody waits for it, and start it again once that one is elsewhere; when
    it was active again."""
    mover = probers[0]
    home = f"{node.name}=1"
    with contextlib.ExitStack() as stack:
        for prober in probers:
            stack.enter_context(prober.between)
        node.kill()
        # The proxy has seen its servers end.
        assert eventually(lambda: node.name not in [row["node"] for row in service.console("SHOW SERVERS")])
    try:
        assert eventually(lambda: shown(service, mover.name)["sessions"] != home, 10)
        assert all(prober.answered(10) for prober in probers)
    finally:
        node.start()
    assert eventually(lambda: health(service, node.name) == "active", 20)
    active = time.monotonic()
    assert eventually(lambda: shown(service, mover.name)["sessions"] == home, 10)
    assert all(prober.answered(10) for prober in probers)
    return active


def assert_left_and_back(found: list[tuple[str, float, float]], home: str, other: str, active: float) -> None:
    assert [node for node, _, _ in found] == [home, other, home], found
    (_, _, last), (_, first, _), (_, back, _) = found
    assert first - last < BUDGET + SLACK, found
    assert back - active < CHECK + SLACK, (found, active)


@pytest.fixture
def scene(own_fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Scene]]:
    with contextlib.ExitStack() as stack:
        for database in ("a", "b"):
            with contextlib.suppress(Exception):
                own_fleet.primary.query(f"CREATE DATABASE {database}")
            own_fleet.refill(database)
            own_fleet.primary.query(f"ALTER DATABASE {database} SET log_statement = 'all'")
        own_fleet.caught_up()

        def start(services: dict[str, Any], **over: Any) -> Scene:
            scene = Scene(own_fleet, tmp_path, merged({"services": services}, over))
            stack.enter_context(scene.proxy)
            return scene

        yield start
    for replica in own_fleet.replicas:
        replica.start()


PAIR = {
    "a": {"nodes": ["replica1", "replica2"], "selector": "1"},
    "b": {"nodes": ["replica1", "replica2"], "selector": "2"},
}


def test_a_service_leaves_its_node_and_comes_back(scene: Callable[..., Scene]) -> None:
    it = scene(PAIR, workers=2)
    it.settled("a", "b")
    a, b = (Prober(name, it.client(name), TEXT) for name in "ab")
    with a, b:
        assert a.answered(10)
        active = fail_and_return(it.service, it.replicas["replica1"], a, b)
    nodes = it.seen()
    assert (a.errors(), b.errors()) == ([], [])
    assert_left_and_back(moments(a, lambda mark, _: nodes[mark]), "replica1", "replica2", active)
    assert [node for node, _, _ in moments(b, lambda mark, _: nodes[mark])] == ["replica2"]
    row = shown(it.service, "a")
    expected = {"preferred": "replica1", "node": "replica1", "nodes": "replica1, replica2", "sessions": "replica1=1"}
    assert expected.items() <= row.items()
    assert row["switches"] == "2" and row["since"]
    row = shown(it.service, "b")
    assert (row["sessions"], row["switches"]) == ("replica2=1", "0")


@pytest.mark.full
def test_under_load(scene: Callable[..., Scene]) -> None:
    """Clients that never pause, and a probe a second for each service, while a node is killed and comes back."""
    it = scene(PAIR, workers=2, routing={"affinity": {"check_interval": 10}})
    it.settled("a", "b")
    probers = [Prober(name, it.client(name), TEXT, 1.0) for name in "ab"]
    load = [Prober(f"{name}{number}", it.client(name), TEXT, 0.0) for name in "ab" for number in range(8)]
    node = it.replicas["replica1"]
    with contextlib.ExitStack() as stack:
        for prober in (*probers, *load):
            stack.enter_context(prober)
        assert probers[0].answered(5)
        killed = time.monotonic()
        node.kill()
        assert probers[0].answered(5)
        node.start()
        assert eventually(lambda: health(it.service, "replica1") == "active", 20)
        active = time.monotonic()
        assert probers[0].answered(15, 30)
    nodes = it.seen()
    assert [prober.errors()[:3] for prober in (*probers, *load)] == [[]] * 18
    for prober in (probers[0], *load[:8]):
        found = moments(prober, lambda mark, _: nodes[mark])
        assert [node for node, _, _ in found] == ["replica1", "replica2", "replica1"], (prober.name, found)
        assert found[2][1] - active < 10 + SLACK
    for prober in (probers[1], *load[8:]):
        assert {nodes[mark] for _, mark, _ in prober.answers} == {"replica2"}
    away, back = (moments(probers[0], lambda mark, _: nodes[mark])[turn][1] for turn in (1, 2))
    count = sum(len(prober.answers) for prober in (*probers, *load))
    print(f"{count} reads, none failed; on the next node after {away - killed:.1f} s, back after {back - active:.1f} s")


@pytest.mark.parametrize("way", ["simple", "extended", "named"])
def test_what_a_node_that_dies_was_reading_is_read_elsewhere(scene: Callable[..., Scene], way: str) -> None:
    """Unless a part of it is known already."""
    it = scene(PAIR)
    it.settled("a")
    whole = "SELECT id FROM item WHERE id < 3 ORDER BY id"
    client, other = it.client("a"), it.client("a")
    asked = {
        "simple": (Q(whole),),
        "extended": (P("", whole), B(), D("P"), E(), S),
        "named": (B("", "known"), D("P"), E(), S),
    }
    node = it.replicas["replica1"]
    other.send(Q("SELECT g FROM generate_series(1, 3000000) g"))
    assert eventually(lambda: node.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"))
    client.ask(P("known", whole), S)
    expected = client.ask(*asked[way])
    node.freeze()
    try:
        client.send(*asked[way])
        busy = eventually(lambda: it.service.shown(client)["state"] == "active")
    finally:
        node.kill()
    assert busy
    try:
        assert show(client.until()) == expected
        told = Counter(reply.kind for reply in other.until("EOF"))
        assert 0 < told["D"] < 3_000_000 and not told["C"] and told[CLOSED] == 1
    finally:
        node.start()
    assert client.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("way", ["simple", "extended", "named"])
def test_what_a_node_that_is_shut_down_was_reading_is_read_elsewhere(scene: Callable[..., Scene], way: str) -> None:
    """It ends all its sessions by FATAL 57P01; the client sees nothing of that."""
    it = scene(PAIR)
    it.settled("a")
    whole = "SELECT id FROM item WHERE id < 3 ORDER BY id"
    client = it.client("a")
    client.ask(P("known", whole), S)
    asked = {
        "simple": (Q(whole),),
        "extended": (P("", whole), B(), D("P"), E(), S),
        "named": (B("", "known"), D("P"), E(), S),
    }
    expected = client.ask(*asked[way])
    node = it.replicas["replica1"]
    with it.service.fleet.primary.connect(it.service.database) as locker, locker.transaction():
        locker.execute("LOCK TABLE item")
        it.service.fleet.primary.query(
            "SELECT pg_logical_emit_message(true, '', '')"
        )  # its commit brings the lock along
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM item%'"
        assert eventually(lambda: node.ask("SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock'"))
        client.send(*asked[way])
        assert eventually(lambda: node.ask(waiting))
        node.stop()
    try:
        assert show(client.until()) == expected
    finally:
        node.start()
    assert client.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


def test_who_wants_to_be_told_is_told_once(scene: Callable[..., Scene]) -> None:
    """Also who was idle all the time, and whose node was back before it asked again."""
    it = scene(
        {
            "a": {**PAIR["a"], "reconnect": ["notify", "failback"], "switch_times": 0},
            "b": {**PAIR["b"], "selector": "1"},
        }
    )
    it.settled("a", "b")
    busy, idle, other = it.client("a"), it.client("a"), it.client("b")
    assert [it.answers(client) for client in (busy, idle, other)] == ["replica1"] * 3
    busy.query("SET work_mem = '7MB'")
    it.replicas["replica1"].kill()
    try:
        assert eventually(lambda: health(it.service, "replica1") == "down", 10)
        (error,) = [reply for reply in busy.send(Q("SELECT 1")).until() if reply.kind == "E"]
        assert (error.fields["C"], error.fields["S"]) == ("40001", "ERROR")
        assert 'service "a" was moved from node "replica1" to node "replica2"' in error.fields["M"]
        assert (busy.value("SHOW work_mem"), it.answers(busy)) == ("7MB", "replica2")
    finally:
        it.replicas["replica1"].start()
    assert eventually(lambda: health(it.service, "replica1") == "active", 20)
    assert eventually(lambda: it.answers(busy) == "replica1", CHECK + SLACK)
    assert "40001" in idle.query("SELECT 1")
    assert eventually(lambda: [it.answers(client) for client in (busy, idle, other)] == ["replica1"] * 3, SLACK)


def test_selectors(scene: Callable[..., Scene]) -> None:
    it = scene(
        {
            "a": {"nodes": ["replica1", "replica2"], "selector": "0"},
            "b": {"nodes": ["replica1", "replica2"], "selector": "spread"},
            "hashed": {"nodes": ["replica1", "replica2"], "selector": "hash"},
            "second": {"nodes": ["replica1", "replica2"], "selector": "2"},
        }
    )
    it.settled("a", "b")
    turns = Counter(it.answers(it.client("a")) for _ in range(8))
    assert min(turns["replica1"], turns["replica2"]) >= 3  # each worker takes turns of its own
    first = it.spread({name: it.client("b", application_name=name) for name in "pqrs"})
    again = {name: it.answers(it.client("b", application_name=name)) for name in reversed("pqrs")}
    assert again == first
    names = [str(number) for number in range(6)]
    hashed = [it.answers(it.client("b", application_name=name, pgtrident__service="hashed")) for name in names]
    assert set(hashed) == {"replica1", "replica2"}
    assert hashed == [
        it.answers(it.client("a", application_name=name, options="-c pgtrident.service=hashed")) for name in names
    ]
    assert {it.answers(it.client("a", pgtrident__service="second")) for _ in range(3)} == {"replica2"}
    refused = it.service.open().login({"user": "pool2", "database": "a", "pgtrident.service": "nobody"})
    assert "3D000" in refused


def test_names_keep_their_nodes_over_restarts(scene: Callable[..., Scene]) -> None:
    nodes = ["replica1", "replica2"]
    it = scene({"a": {"nodes": nodes, "selector": "spread"}}, workers=1)
    it.settled("a")
    first = it.spread({name: it.client("a", application_name=name) for name in "pqrstu"})
    assert first != {name: ranked(nodes, name)[0] for name in first}
    for child in ("controller", "worker 0"):
        seen = len(it.proxy.lines)
        os.kill(int(it.proxy.wait_for("child_started", child=child)["pid"]), signal.SIGKILL)
        it.proxy.wait_for("child_started", after=seen, child=child)
    Wire.close_all()
    it.service.forget_connections()
    it.settled("a")
    assert {name: it.answers(it.client("a", application_name=name)) for name in reversed(first)} == first


def test_a_node_that_is_added_is_used_by_live_sessions(scene: Callable[..., Scene]) -> None:
    """So is another selector."""
    it = scene({"a": {"nodes": ["replica1"], "selector": "1"}})
    it.settled("a")
    client = it.client("a")
    assert it.answers(client) == "replica1"
    it.reload({"services": {"a": {"nodes": ["replica2", "replica1"]}}})
    assert eventually(lambda: it.answers(client) == "replica2", CHECK + SLACK)
    it.reload({"services": {"a": {"nodes": ["replica2", "replica1"], "selector": "0"}}})
    assert eventually(lambda: it.answers(client) in ("replica1", "replica2"))
    it.reload({"services": {"a": {"nodes": ["replica2", "replica1"], "selector": "2"}}})
    assert eventually(lambda: it.answers(client) == "replica1", CHECK + SLACK)


def test_what_a_session_wrote_is_read_whatever_its_node_holds(scene: Callable[..., Scene], own_fleet: Fleet) -> None:
    it = scene(PAIR, lag={"replica_out": 60, "replica_in": 30})
    it.settled("a")
    client = it.client("a")
    assert it.answers(client) == "replica1"
    with own_fleet.paused(own_fleet.replicas[0]):
        last = client.value("INSERT INTO trail(item_id) VALUES (1) RETURNING id")
        for _ in range(30):
            assert client.value("SELECT max(id) FROM trail") == last
        assert it.answers(client) != "replica1"
    assert eventually(lambda: it.answers(client) == "replica1")


# --- several writers


@pytest.fixture(scope="module")
def writers() -> Iterator[dict[str, Server]]:
    """Two servers that both write. What they hold differs, to tell them apart."""
    with Cluster() as cluster:
        found = {name: cluster.create(name) for name in ("w1", "w2")}
        for name, server in found.items():
            server.query("CREATE ROLE pool20 SUPERUSER LOGIN")
            for database in ("a", "b"):
                server.query(f"CREATE DATABASE {database}")
                server.query(f"CREATE TABLE seen(mark text, node text DEFAULT '{name}')", dbname=database)
                server.query(f"CREATE TABLE me AS SELECT '{name}' AS name", dbname=database)
        yield found


@pytest.fixture
def written(writers: dict[str, Server], tmp_path: Path) -> Iterator[Service]:
    nodes = {name: {"host": "127.0.0.1", "port": w.port, "role": "primary"} for name, w in writers.items()}
    settings = merged(
        SETTINGS,
        {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"port": 0},
            "auth": {"hba": ["host all all 127.0.0.1/32 trust"]},
            "server": {"tls": "disable"},
            "health": {"user": "postgres"},
            "nodes": nodes,
            "databases": {"*": {}},
            "users": {"pool20": {"pool_size": 20}},
            "group": {"multi_writer": True},
            "services": {
                "a": {"nodes": ["w1", "w2"], "selector": "1"},
                "b": {"nodes": ["w1", "w2"], "selector": "2"},
            },
        },
    )
    with Proxy(settings, tmp_path) as proxy:
        wait_until_serving(proxy)
        service = Service(proxy, "a", cast(Fleet, None))
        for name in writers:
            assert eventually(lambda name=name: health(service, name) == "active")
        yield service
    for server in writers.values():
        server.start()


INSERT = "INSERT INTO seen(mark) VALUES ('{}') RETURNING node"
ME = "SELECT name FROM me"


def node_said(mark: str, replies: str) -> str:
    """What the writer's own default put into its row."""
    return re.findall(r"D\[(w\d)\]", replies)[0]


def test_writes_keep_to_a_writer(written: Service, writers: dict[str, Server]) -> None:
    clients = {name: written.client(pool=20, database=name) for name in "ab"}
    for name, home in (("a", "w1"), ("b", "w2")):
        client = clients[name]
        assert client.value(ME) == client.value(INSERT.format("x")) == home
        client.query("BEGIN")
        assert client.value(ME) == home
        client.query("COMMIT")
    a, b = (Prober(name, client, INSERT) for name, client in clients.items())
    with a, b:
        assert a.answered(10)
        active = fail_and_return(written, writers["w1"], a, b)
    assert (a.errors(), b.errors()) == ([], [])
    assert_left_and_back(moments(a, node_said), "w1", "w2", active)
    assert [node for node, _, _ in moments(b, node_said)] == ["w2"]


def test_a_client_that_is_held_returns_when_nothing_holds_it(written: Service, writers: dict[str, Server]) -> None:
    client = written.client(pool=20)
    writers["w1"].kill()
    assert eventually(lambda: health(written, "w1") == "down", 10)
    assert client.value(ME) == "w2"
    client.query("CREATE TEMP TABLE mine AS SELECT 1 AS one")
    free = written.client(pool=20)
    writers["w1"].start()
    assert eventually(lambda: free.value(ME) == "w1", 20)
    assert [client.value(ME), client.value("SELECT one FROM mine")] == ["w2", "1"]
    client.query("DROP TABLE mine")
    client.query("DISCARD ALL")
    assert client.value(ME) == "w1"
    assert CLOSED not in [reply.kind for reply in client.log]
