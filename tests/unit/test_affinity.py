"""Which node a client keeps to: orders, waiting, switching and coming back, and a fleet that fails at random."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.schema import Config
from proxy.errors import LoginError
from proxy.routing import affinity
from proxy.routing.affinity import (
    GENERAL,
    Affinity,
    Choice,
    Homes,
    Look,
    Plans,
    Standing,
    Watch,
    moves,
    ranked,
    scope_of,
)
from proxy.testing import SeededRng
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import NodeView, Snapshot

R = Role.REPLICA


def config(services: dict | None = None, **general: object) -> Config:
    nodes = {name: {"host": name} for name in "pabcd"}
    return msgspec.convert({"nodes": nodes, "services": services or {}, "routing": {"affinity": general}}, Config)


def fleet(down: str = "", suspect: str = "", recovering: str = "", nodes: str = "abc") -> Snapshot:
    """A primary `p` and replicas, named by one letter each."""
    health = (
        dict.fromkeys(down, Health.DOWN)
        | dict.fromkeys(suspect, Health.SUSPECT)
        | dict.fromkeys(recovering, Health.RECOVERING)
    )
    views = {
        name: NodeView(
            name=name,
            host=name,
            port=1,
            role=Role.PRIMARY if name == "p" else R,
            health=health.get(name, Health.ACTIVE),
        )
        for name in "p" + nodes
    }
    serving = tuple(name for name in nodes if name not in health)
    return Snapshot(nodes=views, primary="p", replicas=serving)


class Worker:
    """What a worker does with affinity: a new one with each snapshot, and choices for clients that it remembers."""

    def __init__(self, config: Config, snapshot: Snapshot, now: float = 0.0) -> None:
        self.plans = Plans(config)
        self.snapshot = snapshot
        self.affinity = Affinity(self.plans, snapshot, now)

    def see(self, snapshot: Snapshot, now: float, config: Config | None = None) -> None:
        if config is not None:
            self.plans = Plans(config)
        self.snapshot = snapshot
        self.affinity = Affinity(self.plans, snapshot, now, before=self.affinity)

    def choose(self, service: str, key: str, now: float, current: str = "") -> Choice:
        return self.affinity.choose(service, key, R, now, self.snapshot.replicas, current)

    def say(self, service: str, key: str, now: float, current: str = "") -> str:
        """`node reason`, with `until` for a wait and `notify` for whom is told."""
        choice = self.choose(service, key, now, current)
        until = f" until {choice.hold_until:g}" if choice.hold_until else ""
        return (
            f"{choice.node or '-'} {choice.reason.removeprefix('affinity_')}{until}{' notify' if choice.notify else ''}"
        )


def one(selector: str | int = 1, nodes: str = "abc", **settings: object) -> dict:
    return {"s": {"nodes": list(nodes), "selector": str(selector)} | settings}


# --- orders


@pytest.mark.parametrize(
    ("services", "general", "service", "keys", "orders"),
    [
        (one(1), {}, "s", ["", "x"], ["abc", "abc"]),
        (one(2), {}, "s", [""], ["bca"]),
        (one(4), {}, "s", [""], ["abc"]),
        (one(2, "pab"), {}, "s", [""], ["ab"]),  # the Nth of the whole list; a primary serves no reads of copies
        (one(0), {}, "s", ["0", "1", "2", "3"], ["abc", "bca", "cab", "abc"]),
        (one(1, "ba"), {}, "s", [""], ["ba"]),
        ({}, {"by": "user", "method": "ordered"}, GENERAL, ["x"], ["abc"]),
        ({}, {}, GENERAL, ["x"], [""]),
        (one(1, "d"), {}, "s", [""], [""]),  # the node isn't there yet
    ],
)
def test_orders(services: dict, general: dict, service: str, keys: list[str], orders: list[str]):
    found = Affinity(Plans(config(services, **general)), fleet(), 0.0)
    assert ["".join(found.order(service, key, R)) for key in keys] == orders


def test_hashes_are_the_same_in_all_workers_instances_and_releases():
    """Fixed results: another hash would move all clients of all caches at an upgrade."""
    assert [ranked("abc", key)[0] for key in ("billing", "web", "reports", "", "ß")] == GOLDEN
    listed = Affinity(Plans(config(by="user")), fleet(nodes="abc"), 0.0)
    turned = Affinity(Plans(config(by="user")), fleet(nodes="cab"), 0.0)
    modulo = [Affinity(Plans(config(by="user", method="modulo")), fleet(nodes=nodes), 0.0) for nodes in ("abc", "bca")]
    for name in map(str, range(50)):
        assert listed.order(GENERAL, name, R) == turned.order(GENERAL, name, R) == ranked("abc", name)
        assert modulo[0].order(GENERAL, name, R) == modulo[1].order(GENERAL, name, R)


GOLDEN = ["a", "b", "c", "b", "a"]


@given(st.text(), st.sets(st.text(min_size=1, max_size=3), min_size=2, max_size=8))
def test_a_lost_node_moves_only_its_own_names(key: str, nodes: set[str]):
    order = ranked(sorted(nodes), key)
    for lost in nodes:
        assert ranked(sorted(nodes - {lost}), key) == tuple(node for node in order if node != lost)


def test_hash_and_modulo_spread_names_over_nodes():
    for method in ("hash", "modulo"):
        found = Affinity(Plans(config(by="user", method=method)), fleet(), 0.0)
        counts = Counter(found.order(GENERAL, f"user{n}", R)[0] for n in range(3000))
        assert min(counts.values()) > 900, method


def test_orders_are_kept_in_bounds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(affinity, "MAX_ORDERS", 10)
    found = Affinity(Plans(config(one("hash"))), fleet(), 0.0)
    orders = {key: found.order("s", key, R) for key in map(str, range(35))}
    assert len(found._orders) <= 10
    assert all(found.order("s", key, R) == order for key, order in orders.items())


# --- services and keys


def test_the_service_of_a_client():
    plans = Plans(config({"s": {"nodes": ["a"], "databases": ["x", "y"]}, "t": {"nodes": ["b"]}}))
    assert [plans.service_of(name) for name in ("x", "y", "s", "t", "z")] == ["s", "s", GENERAL, "t", GENERAL]
    assert plans.service_of("x", "t") == "t"
    with pytest.raises(LoginError, match='service "u" does not exist'):
        plans.service_of("x", "u")
    with pytest.raises(LoginError):
        Plans(config(by="user")).service_of("x", "u")


FACTS = {"application_name": "app", "user": "joe", "database": "d", "client_addr": "10.0.0.1", "key": "k" * 300}


@pytest.mark.parametrize(
    ("services", "general", "keys"),
    [
        (one(0), {}, ["0", "1", "2"]),
        (one(3), {}, ["", ""]),
        (one("hash"), {}, ["app"]),
        (one("spread"), {"by": "user"}, ["joe"]),
        (one("hash", by="database"), {"by": "user"}, ["d"]),
        (one("hash", by="client_addr"), {}, ["10.0.0.1"]),
        (one("hash", by="key"), {}, ["k" * 256]),
    ],
)
def test_what_a_clients_order_goes_by(services: dict, general: dict, keys: list[str]):
    found = Affinity(Plans(config(services, **general)), fleet(), 0.0)
    assert [found.key("s", FACTS) for _ in keys] == keys
    assert found.key("unknown", FACTS) == ""


def test_turns_go_on_over_snapshots_and_begin_elsewhere_in_each_worker():
    worker = Worker(config(one(0)), fleet())
    first = worker.affinity.key("s", {})
    worker.see(fleet(), 1.0)
    assert [first, worker.affinity.key("s", {})] == ["0", "1"]
    assert Affinity(worker.plans, fleet(), 0.0, first_turn=1).key("s", {}) == "1"
    assert [worker.affinity.turn_to("s", R, node) for node in "abc"] == ["0", "1", "2"]


# --- waiting, switching, coming back


def test_every_standing_knows_what_every_look_means():
    for standing, look in product(Standing, Look):
        watch = Watch(0.0)
        watch.standing = standing
        if look is Look.PASSED and standing in (Standing.IN_USE, Standing.LEFT):
            with pytest.raises(AssertionError, match="no row"):
                watch.step(look, 1.0)
            assert watch.standing is standing
        else:
            watch.step(look, 1.0)
            assert watch.since == (0.0 if watch.standing is standing else 1.0)


Step = tuple[float, dict, list[str]]
PLAIN = one(1, switch_times=3, switch_interval=2, check_interval=60)

STORIES: dict[str, tuple[dict, list[tuple[float, dict | None, str]]]] = {
    # settings, then: the moment, what the snapshot of that moment says (None: no new one), what a client is told
    "all well": (PLAIN, [(0, {}, "a affinity")]),
    "doubtful: waited for, then the next one": (
        PLAIN,
        [
            (0, {}, "a affinity"),
            (10, {"suspect": "a"}, "- wait until 16"),
            (15.9, None, "- wait until 16"),
            (15.9, {"suspect": "a"}, "- wait until 16"),
            (16, None, "b next"),
            (17, {"suspect": "a"}, "b next"),
            (18, {"down": "a"}, "b next"),
        ],
    ),
    "active again in time": (
        PLAIN,
        [(10, {"suspect": "a"}, "- wait until 16"), (12, {}, "a affinity"), (20, {"suspect": "a"}, "- wait until 26")],
    ),
    "down: at once": (PLAIN, [(10, {"down": "a"}, "b next")]),
    "down while waited for": (PLAIN, [(10, {"suspect": "a"}, "- wait until 16"), (11, {"down": "a"}, "b next")]),
    "back when active again, not before": (
        PLAIN,
        [
            (10, {"down": "a"}, "b next"),
            (20, {"recovering": "a"}, "b next"),
            (90, {"recovering": "a"}, "b next"),
            (91, {}, "a affinity"),  # without keys all go at once
        ],
    ),
    "the next one is waited for too": (
        PLAIN,
        [
            (10, {"down": "a"}, "b next"),
            (11, {"down": "a", "suspect": "b"}, "- wait until 17"),
            (17, None, "c next"),
            (18, {"down": "ab", "suspect": "c"}, "- wait until 24"),
            (24, None, "- away"),
            (25, {"down": "ac"}, "b next"),  # just back, and there is no other
        ],
    ),
    "both doubtful at the same moment: one wait": (
        PLAIN,
        [(10, {"suspect": "ab"}, "- wait until 16"), (16, None, "c next")],
    ),
    "no waiting at all": (
        one(1, switch_times=0),
        [(10, {"suspect": "a"}, "b next")],
    ),
    "who doesn't go back": (
        one(1, reconnect=[]),
        [(10, {"down": "a"}, "b next"), (20, {}, "b kept"), (30, {"down": "b"}, "a affinity"), (40, {}, "a affinity")],
    ),
    "told after a switch, not when going back": (
        one(1, reconnect=["notify", "failback"]),
        [(9, {}, "a affinity"), (10, {"down": "a"}, "b next notify"), (11, None, "b next"), (200, {}, "a affinity")],
    ),
    "told after a wait in vain": (
        one(1, reconnect=["notify"]),
        [(9, {}, "a affinity"), (10, {"suspect": "a"}, "- wait until 13"), (13, None, "b next notify")],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_stories(name: str):
    services, steps = STORIES[name]
    worker = Worker(config(services), fleet())
    current = "a"
    for now, change, expected in steps:
        if change is not None:
            worker.see(fleet(**change), now)
        assert worker.say("s", "", now, current) == expected, now
        current = worker.choose("s", "", now, current).node or current


def test_a_node_that_lags_is_passed_over_without_waiting():
    """It is active, and no unit's fault is another's: the caller says what may serve this one."""
    worker = Worker(config(PLAIN), fleet())
    choice = worker.affinity.choose("s", "", R, 1.0, ("b", "c"), "a")
    assert (choice.node, choice.notify) == ("b", False)
    assert worker.say("s", "", 1.0) == "a affinity"


def test_a_primary_that_is_doubtful_and_still_serves_is_used():
    def primaries(health: Health) -> Snapshot:
        nodes = {
            name: NodeView(
                name=name, host=name, port=1, role=Role.PRIMARY, health=health if name == "a" else Health.ACTIVE
            )
            for name in "ab"
        }
        return Snapshot(nodes=nodes, primary="a")

    worker = Worker(config(PLAIN), primaries(Health.ACTIVE))
    worker.see(primaries(Health.SUSPECT), 1.0)
    for serving, node in ((("a", "b"), "a"), (("b",), "")):
        assert worker.affinity.choose("s", "", Role.PRIMARY, 1.0, serving).node == node


def test_keys_go_back_one_by_one_within_the_check_interval():
    worker = Worker(config(one("hash", check_interval=60)), fleet())
    keys = [key for key in map(str, range(300)) if worker.choose("s", key, 0.0).node == "a"]
    worker.see(fleet(down="a"), 10.0)
    assert "a" not in {worker.choose("s", key, 10.0).node for key in keys}
    worker.see(fleet(), 100.0)
    back = [
        sum(worker.choose("s", key, now).node == "a" for key in keys) for now in (100.0, 115.0, 130.0, 145.0, 160.0)
    ]
    assert back[0] < len(keys) * 0.1
    assert all(later - earlier > len(keys) * 0.1 for earlier, later in pairwise(back))
    assert back[-1] == len(keys)


def test_a_node_that_is_coming_back_is_taken_rather_than_waiting_for_another():
    worker = Worker(config(one("hash")), fleet())
    key = next(key for key in map(str, range(100)) if ranked("abc", key) == ("a", "b", "c"))
    worker.see(fleet(down="a"), 10.0)
    worker.see(fleet(), 20.0)
    assert worker.say("s", key, 20.0) == "b next"
    worker.see(fleet(suspect="b"), 21.0)
    assert worker.say("s", key, 21.0) == "a affinity"


def test_without_failback_others_come_at_once():
    worker = Worker(config(one("hash", reconnect=[])), fleet())
    keys = [key for key in map(str, range(100)) if ranked("abc", key)[0] == "a"]
    worker.see(fleet(down="a"), 10.0)
    worker.see(fleet(), 20.0)
    assert {worker.choose("s", key, 20.0).node for key in keys} == {"a"}
    assert {worker.choose("s", key, 20.0, "b").node for key in keys} == {"b"}


def test_workers_agree_whether_or_not_anybody_asked_meanwhile():
    busy, quiet = (Worker(config(one("hash")), fleet()) for _ in range(2))
    keys = list(map(str, range(100)))
    for worker in (busy, quiet):
        worker.see(fleet(suspect="a"), 10.0)
        if worker is busy:
            assert "a" not in {worker.choose("s", key, 15.0).node for key in keys}
        worker.see(fleet(), 20.0)
    assert [busy.choose("s", key, 30.0).node for key in keys] == [quiet.choose("s", key, 30.0).node for key in keys]


def test_a_new_node_is_used_by_live_sessions():
    before, after = config(one("hash", "ab")), config(one("hash", "abc"))
    worker = Worker(before, fleet(nodes="ab"))
    keys = list(map(str, range(100)))
    was = {key: worker.choose("s", key, 0.0).node for key in keys}
    worker.see(fleet(suspect="c"), 10.0, after)  # not proven yet: nobody waits for it
    assert {key: worker.choose("s", key, 10.0, was[key]).node for key in keys} == was
    worker.see(fleet(), 20.0)
    now = {key: worker.choose("s", key, 80.0, was[key]).node for key in keys}
    moved = {key for key in keys if now[key] != was[key]}
    assert 15 < len(moved) < 55
    assert {now[key] for key in moved} == {"c"}


def test_a_new_node_that_is_active_already_gets_its_keys_at_once():
    worker = Worker(config(one(0, "ab")), fleet(nodes="ab"))
    worker.see(fleet(), 10.0, config(one(0, "abc")))
    assert [worker.choose("s", str(turn), 10.0).node for turn in range(6)] == list("abcabc")


def test_a_node_that_is_proven_a_moment_later_is_not_one_that_returns():
    """As after a start: clients that came before that don't stay elsewhere for `check_interval`."""
    worker = Worker(config(one(0, "ab")), fleet(nodes="ab", suspect="b"))
    assert [worker.choose("s", str(turn), 0.0).node for turn in range(4)] == list("aaaa")
    worker.see(fleet(nodes="ab"), 0.1)
    assert [worker.choose("s", str(turn), 0.1, "a").node for turn in range(4)] == list("abab")
    # Once it has been in service, it comes back bit by bit.
    worker.see(fleet(nodes="ab", down="b"), 10.0)
    worker.see(fleet(nodes="ab"), 20.0)
    assert "a" in {worker.choose("s", str(turn), 20.0, "a").node for turn in range(1, 200, 2)}


def test_without_affinity_nothing_is_chosen():
    worker = Worker(config(), fleet())
    assert worker.choose(GENERAL, "", 0.0) is affinity.UNTIED
    assert worker.choose("unknown", "", 0.0) is affinity.UNTIED


# --- spread


def test_a_new_name_goes_to_the_node_with_fewest():
    homes = Homes()
    abc = ("a", "b", "c")
    given = [homes.assign("x", name, abc) for name in ("n1", "n2", "n3", "n4", "n1")]
    assert given == ["a", "b", "c", "a", "a"]
    assert homes.assign("y", "n9", abc) == "a"  # another service counts for itself
    again = Homes(msgspec.json.decode(msgspec.json.encode(homes.dump()), type=dict[str, dict[str, str]]))
    assert again.dump() == homes.dump()
    assert again.assign("x", "n5", abc) == "b"
    assert again.assign("x", "n2", ("a", "c")) == "c"  # its node is gone for good
    assert again.assign("x", "n6", ()) == ""
    for _ in range(5):
        again.learn("x", "n1", "a")  # told more than once is still one name
    assert [again.assign("x", name, abc) for name in ("n7", "n8", "n9")] == ["b", "a", "b"]


def test_names_are_kept_in_bounds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(affinity, "MAX_NAMES", 3)
    homes = Homes()
    for name in "vwxyz":
        homes.assign("s", name, ("a", "b"))
    assert list(homes.dump()["s"]) == ["x", "y", "z"]
    assert homes.assign("s", "new", ("a", "b")) == "b"  # until now a has x and z, b has y
    assert homes.assign("s", "newer", ("a", "b")) == "a"  # x went for `new`


def test_workers_learn_the_nodes_of_names():
    worker = Worker(config(one("spread")), fleet())
    found = worker.affinity
    names = list(map(str, range(20)))
    assert [found.order("s", name, R) for name in names] == [ranked("abc", name) for name in names]
    wanted = found.take_wanted()
    assert wanted == [("s", R, name) for name in names]
    assert found.take_wanted() == []
    homes = Homes()
    for service, role, name in wanted:
        found.told(service, role, name, homes.assign(scope_of(service, role), name, found.members(service, role)))
    assert Counter(found.order("s", name, R)[0] for name in names) == {"a": 7, "b": 7, "c": 6}
    worker.see(fleet(down="a"), 1.0)  # what was learnt stays
    assert worker.affinity.order("s", "0", R) == ("a", "b", "c")
    assert worker.affinity.take_wanted() == []


# --- balance


def test_moves_make_nodes_even_by_and_by():
    sessions = dict.fromkeys(range(100), "a") | {200: "x"}
    rounds = 0
    while moved := moves(sessions, "abc"):
        assert len(moved) <= 10
        assert all(sessions[session] == "a" for session in moved)
        sessions |= moved
        rounds += 1
    assert sorted(Counter(sessions.values()).items()) == [("a", 34), ("b", 33), ("c", 33), ("x", 1)]
    assert rounds == 7


@pytest.mark.parametrize(
    ("sessions", "nodes", "moved"),
    [
        ({}, "ab", {}),
        ({1: "a"}, "ab", {}),
        ({1: "a", 2: "a"}, "", {}),
        ({1: "a", 2: "a"}, "a", {}),
        ({1: "a", 2: "a"}, "ab", {1: "b"}),
        ({1: "a", 2: "a", 3: "b"}, "ab", {}),
    ],
)
def test_few_sessions(sessions: dict[int, str], nodes: str, moved: dict[int, str]):
    assert moves(sessions, nodes) == moved


# --- a fleet that fails at random

SERVICES = {
    "one": {"nodes": ["a", "b", "c", "d"], "selector": "1"},
    "two": {"nodes": ["a", "b", "c", "d"], "selector": "2"},
    "hash": {"nodes": ["a", "b", "c", "d"], "selector": "hash"},
    "spread": {"nodes": ["d", "c", "b", "a"], "selector": "spread", "check_interval": 20},
    "turns": {"nodes": ["a", "b", "c"], "selector": "0", "reconnect": ["notify", "failback"]},
}
BUDGET = 3.0


@pytest.mark.parametrize("seed", range(8))
def test_a_fleet_that_fails_at_random(seed: int):
    """Each second a node may fail or recover. At any moment:

    - a client whose own node has been active for its check interval, or always, is on it, whatever the others do;
    - nobody waits longer than the budgets of the nodes ahead, nor for a node that is down;
    - whoever isn't on its own node has a node that serves as long as there is one, or is waiting;
    - what is said to one client twice is the same (no flapping within one moment).
    """
    rng = SeededRng(seed)
    worker = Worker(config(SERVICES), fleet(nodes="abcd"))
    clients = [(service, f"app{n}" if service != "turns" else str(n)) for service in SERVICES for n in range(12)]
    clients = [(service, "" if service in ("one", "two") else key) for service, key in clients]
    homes = {client: worker.affinity.order(*client, R)[0] for client in clients}
    health = dict.fromkeys("abcd", Health.ACTIVE)
    changed = dict.fromkeys("abcd", -1000.0)  # since when it is as it is, active or not
    waiting: dict[tuple[str, str], float] = {}
    current = dict(homes)
    following = {
        Health.ACTIVE: [Health.SUSPECT, Health.DOWN],
        Health.SUSPECT: [Health.ACTIVE, Health.DOWN],
        Health.DOWN: [Health.RECOVERING],
        Health.RECOVERING: [Health.ACTIVE, Health.DOWN],
    }
    for second in range(600):
        now = float(second)
        for node in "abcd":
            if rng.random() < (0.01 if health[node] is Health.ACTIVE else 0.15):
                health[node] = rng.choice(following[health[node]])
                changed[node] = now
        if now in changed.values():
            names = {each: "".join(n for n in "abcd" if health[n] is each) for each in Health}
            worker.see(fleet(names[Health.DOWN], names[Health.SUSPECT], names[Health.RECOVERING], nodes="abcd"), now)
        serving = worker.snapshot.replicas
        for client in clients:
            service, key = client
            choice = worker.choose(service, key, now, current[client])
            again = worker.choose(service, key, now, current[client])
            assert (choice.node, choice.hold_until) == (again.node, again.hold_until)
            order = worker.affinity.order(service, key, R)
            home = homes[client]
            assert order[0] == home
            interval = SERVICES[service].get("check_interval", 60)
            if health[home] is Health.ACTIVE and now >= changed[home] + interval:
                assert choice.node == home
            if choice.node:
                assert choice.node in serving
                waiting.pop(client, None)
                if choice.node != home and choice.reason == "affinity_next" and home in serving:
                    assert changed[home] + interval > now  # it is returning
                current[client] = choice.node
            elif choice.hold_until:
                assert now < choice.hold_until <= now + BUDGET
                doubtful = [n for n in order if health[n] is not Health.ACTIVE]
                assert any(health[n] is not Health.DOWN for n in doubtful)
                assert now - waiting.setdefault(client, now) <= BUDGET * len(order)
            else:
                assert not set(serving) & set(order)
                waiting.pop(client, None)


def test_the_failure_of_a_node_disturbs_only_its_own_clients():
    worker = Worker(config(SERVICES), fleet(nodes="abcd"))
    clients = [(service, str(n)) for service in SERVICES for n in range(20)]
    was = {client: worker.choose(*client, 0.0).node for client in clients}
    for now, change in ((10.0, {"suspect": "b"}), (20.0, {"down": "b"}), (30.0, {"recovering": "b"}), (40.0, {})):
        worker.see(fleet(nodes="abcd", **change), now)
        for moment in (now, now + 5):
            for client, node in was.items():
                if node != "b":
                    assert worker.choose(*client, moment, node).node == node
    assert {client: worker.choose(*client, 100.0).node for client in clients} == was
