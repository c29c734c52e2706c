"""Which node a client keeps to, so that the node's cache stays warm with what that client reads.

A client has a service (`Plans.service_of`; GENERAL for those without one) and a key (`Affinity.key`), both
found once, at login. They give an order of nodes, equal in all workers and instances; the first node of it
that may serve is taken. What happens while that one is away:

    in use      its clients are on it
    awaited     doubtful: its clients wait for it, until `switch_times` x `switch_interval` have passed
    left        it is down, or was waited for in vain: its clients are on the next node of their orders
    returning   active again: each of its keys goes back at a moment of its own within `check_interval`, so
                that a cold node isn't met by all at once

Only a node's own clients feel any of this. Each worker finds it out for itself, from the healths in the
snapshot and the time that it is given.

Owns orders, those states, and the table of `spread`. Must not read a clock, nor decide whether a node may
serve: who asks says which do. Pure. Meant for `router` (`choose`), the worker (`key`, `moves`) and the
controller (`Homes`, which it keeps over restarts).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b

from ..config.schema import Config, Service
from ..errors import LoginError
from ..topology.model import Health, Role
from ..topology.snapshot import NodeView, Snapshot

GENERAL = ""
"""Stands for the service of clients that have none."""
MAX_ORDERS = 10_000
MAX_KEY = 256
"""Characters of a key that count."""
MAX_NAMES = 100_000
"""Names of which `spread` remembers the node."""
MAX_WANTED = 1000
MOVED_SHARE = 0.1
"""Of its live sessions a worker moves at most this share in one round of `balance`."""


class Standing(StrEnum):
    """How the clients of a service take one of its nodes."""

    IN_USE = "in_use"
    AWAITED = "awaited"
    LEFT = "left"
    RETURNING = "returning"


class Look(StrEnum):
    """What a snapshot, or the time, says of a node."""

    ACTIVE = "active"
    DOUBTFUL = "doubtful"
    DOWN = "down"
    PASSED = "passed"
    """The time that its standing may last."""


_LOOKS = {
    Health.ACTIVE: Look.ACTIVE,
    Health.SUSPECT: Look.DOUBTFUL,
    Health.RECOVERING: Look.DOUBTFUL,
    Health.DOWN: Look.DOWN,
}

_NEXT = {
    (Standing.IN_USE, Look.ACTIVE): Standing.IN_USE,
    (Standing.IN_USE, Look.DOUBTFUL): Standing.AWAITED,
    (Standing.IN_USE, Look.DOWN): Standing.LEFT,
    (Standing.AWAITED, Look.ACTIVE): Standing.IN_USE,
    (Standing.AWAITED, Look.DOUBTFUL): Standing.AWAITED,
    (Standing.AWAITED, Look.DOWN): Standing.LEFT,
    (Standing.AWAITED, Look.PASSED): Standing.LEFT,
    (Standing.LEFT, Look.ACTIVE): Standing.RETURNING,
    (Standing.LEFT, Look.DOUBTFUL): Standing.LEFT,
    (Standing.LEFT, Look.DOWN): Standing.LEFT,
    (Standing.RETURNING, Look.ACTIVE): Standing.RETURNING,
    # It has only just come back, so nobody waits for it once more.
    (Standing.RETURNING, Look.DOUBTFUL): Standing.LEFT,
    (Standing.RETURNING, Look.DOWN): Standing.LEFT,
    (Standing.RETURNING, Look.PASSED): Standing.IN_USE,
}
"""A pair that is missing is a mistake: `step` raises and nothing moves."""


class Choice:
    """A node, or none and how long to wait for one. Kept and reused while it means a node."""

    __slots__ = ("hold_until", "node", "notify", "reason")

    def __init__(self, node: str, reason: str, hold_until: float = 0.0, notify: bool = False) -> None:
        self.node = node
        """Empty: none, and the router goes by its own rules, unless `hold_until` says to wait."""
        self.reason = reason
        self.hold_until = hold_until
        """Ask again at this moment, or when a new snapshot comes, if that is earlier; 0 is no waiting."""
        self.notify = notify
        """The client wants to be told, by one error, that it was moved off a node that has failed."""

    def __repr__(self) -> str:
        return f"Choice({self.node or None}, {self.reason}, hold_until={self.hold_until}, notify={self.notify})"


UNTIED = Choice("", "no_affinity")
"""The client isn't tied to any nodes."""
NO_NODE = Choice("", "affinity_away")
"""None of its nodes serves, and there is none left to wait for."""


class Plan:
    """What the configuration says of one service, defaults filled in. Durations are seconds."""

    __slots__ = ("balance", "budget", "by", "check_interval", "failback", "name", "nodes", "notify", "selector")

    def __init__(
        self,
        name: str,
        nodes: tuple[str, ...],
        selector: str,
        by: str,
        *,
        budget: float,
        check_interval: float,
        reconnect: Collection[str],
    ) -> None:
        self.name = name
        self.nodes = nodes
        """Empty is every node of the role that is asked for."""
        self.selector = selector
        """As in `services.NAME.selector`, or "modulo"."""
        self.by = by
        self.budget = budget
        self.check_interval = check_interval
        self.notify = "notify" in reconnect
        self.failback = "failback" in reconnect
        self.balance = "balance" in reconnect and selector == "0"

    @property
    def has_keys(self) -> bool:
        """Whether clients of this service differ in their order of nodes by what they are."""
        return not self.selector.isdecimal()


class Plans:
    """All services of a configuration; made anew at a reload."""

    def __init__(self, config: Config) -> None:
        general = config.routing.affinity
        self._by_name: dict[str, Plan] = {}
        self._by_database: dict[str, str] = {}
        if general.by is not None:
            selector = "1" if general.method == "ordered" else general.method
            self._by_name[GENERAL] = _plan(config, GENERAL, Service(selector=selector))
        for name, service in config.services.items():
            self._by_name[name] = _plan(config, name, service)
            for database in service.databases or (name,):
                self._by_database[database] = name

    @property
    def all(self) -> Collection[Plan]:
        return self._by_name.values()

    def get(self, service: str) -> Plan | None:
        return self._by_name.get(service)

    def service_of(self, database: str, named: str = "") -> str:
        """The service of a client that logs in to `database` and whose startup option names `named`, if any.

        Raises LoginError for a service that doesn't exist.
        """
        if not named:
            return self._by_database.get(database, GENERAL)
        if named not in self._by_name:
            raise LoginError(f'service "{named}" does not exist', sqlstate="3D000")
        return named


def _plan(config: Config, name: str, service: Service) -> Plan:
    general = config.routing.affinity
    times = general.switch_times if service.switch_times is None else service.switch_times
    interval = general.switch_interval if service.switch_interval is None else service.switch_interval
    check = general.check_interval if service.check_interval is None else service.check_interval
    return Plan(
        name,
        service.nodes,
        service.selector,
        service.by or general.by or "application_name",
        budget=times * interval,
        check_interval=check,
        reconnect=general.reconnect if service.reconnect is None else service.reconnect,
    )


class Homes:
    """The nodes that names of `spread` services were given: plain data that outlives restarts.

    The controller assigns and tells the workers, so that all agree; a name that isn't known yet is placed
    by its hash. At most MAX_NAMES; over that the one assigned first is forgotten.
    """

    def __init__(self, known: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._homes: dict[tuple[str, str], str] = {}
        self._counts: dict[tuple[str, str], int] = {}  # names by scope and node
        for scope, names in (known or {}).items():
            for name, node in names.items():
                self.learn(scope, name, node)

    def __len__(self) -> int:
        return len(self._homes)

    def get(self, scope: str, name: str) -> str:
        """The node, or empty."""
        return self._homes.get((scope, name), "")

    def learn(self, scope: str, name: str, node: str) -> None:
        at = (scope, name)
        if at not in self._homes and len(self._homes) >= MAX_NAMES:
            self._forget(next(iter(self._homes)))
        self._forget(at)
        self._homes[at] = node
        self._counts[scope, node] = self._counts.get((scope, node), 0) + 1

    def _forget(self, at: tuple[str, str]) -> None:
        node = self._homes.pop(at, "")
        if node:
            self._counts[at[0], node] -= 1

    def assign(self, scope: str, name: str, nodes: Sequence[str]) -> str:
        """The node of a name: the one it has, or else, of `nodes`, the one that has the fewest names."""
        node = self.get(scope, name)
        if node in nodes or not nodes:
            return node
        node = min(nodes, key=lambda n: self._counts.get((scope, n), 0))
        self.learn(scope, name, node)
        return node

    def dump(self) -> dict[str, dict[str, str]]:
        """What the constructor takes."""
        known: dict[str, dict[str, str]] = {}
        for (scope, name), node in self._homes.items():
            known.setdefault(scope, {})[name] = node
        return known


def scope_of(service: str, role: Role) -> str:
    """Under which `Homes` keeps the names of a service for nodes of one role."""
    return f"{role}:{service}"


class Watch:
    """How the clients of one service take one node; moved only by `step`.

    Attributes:
        proven: whether the node has ever been active.
    """

    __slots__ = ("proven", "since", "standing")

    def __init__(self, now: float) -> None:
        self.standing = Standing.LEFT
        self.since = now
        self.proven = False

    def step(self, look: Look, now: float) -> None:
        standing = _NEXT.get((self.standing, look))
        if standing is None:
            raise AssertionError(f"no row for {self.standing} and {look}")
        if standing is not self.standing:
            self.standing = standing
            self.since = now

    def settle(self, plan: Plan, now: float) -> Standing:
        """The standing as of now: a wait ends, and a return is complete."""
        standing = self.standing
        if standing is Standing.AWAITED or standing is Standing.RETURNING:
            lasts = plan.budget if standing is Standing.AWAITED else plan.check_interval
            if now >= self.since + lasts:
                self.step(Look.PASSED, now)
        return self.standing


class Affinity:
    """Orders and choices by one snapshot; made anew with each, carrying on from the one before."""

    def __init__(
        self,
        plans: Plans,
        snapshot: Snapshot,
        now: float,
        *,
        homes: Homes | None = None,
        before: Affinity | None = None,
        first_turn: int = 0,
    ) -> None:
        """`first_turn`: where round robin begins, so that workers don't all begin with the same node."""
        self._plans = plans
        self._snapshot = snapshot
        self.homes: Homes = homes if homes is not None else before.homes if before is not None else Homes()
        self._turns: dict[str, int] = before._turns if before is not None else {}
        self._first_turn: int = before._first_turn if before is not None else first_turn
        self._orders: dict[tuple[str, str, Role], tuple[str, ...]] = {}
        self._choices: dict[tuple[str, str, bool], Choice] = {}
        self._members: dict[tuple[str, Role], tuple[str, ...]] = {}
        self._watches: dict[tuple[str, str], Watch] = {}
        self._wanted: dict[tuple[str, Role, str], None] = {}
        for plan in plans.all:
            for node in plan.nodes or tuple(snapshot.nodes):
                watch = before._watches.get((plan.name, node)) if before is not None else None
                view = snapshot.nodes.get(node)
                self._watches[plan.name, node] = _watched(plan, watch, _look(view), now)

    def key(self, service: str, facts: Mapping[str, str]) -> str:
        """What a client's order of nodes goes by, for as long as it lives (but see `turn_to`).

        `facts` are what `routing.affinity.by` may name: application_name, user ...
        """
        plan = self._plans.get(service)
        if plan is None:
            return ""
        if plan.selector == "0":
            turn = self._turns.get(service, self._first_turn)
            self._turns[service] = turn + 1
            return str(turn)
        return facts.get(plan.by, "")[:MAX_KEY] if plan.has_keys else ""

    def turn_to(self, service: str, role: Role, node: str) -> str:
        """The key that makes `node` the first one of a client that takes turns: what `balance` moves it by."""
        return str(self.members(service, role).index(node))

    def members(self, service: str, role: Role) -> tuple[str, ...]:
        """The service's nodes of a role, in or out of service, in order of preference."""
        known = self._members.get((service, role))
        if known is None:
            plan = self._plans.get(service)
            known = self._members[service, role] = _members(plan, self._snapshot, role) if plan is not None else ()
        return known

    def order(self, service: str, key: str, role: Role) -> tuple[str, ...]:
        """The nodes to try; empty for a client that isn't tied to any."""
        at = (service, key, role)
        known = self._orders.get(at)
        if known is None:
            if len(self._orders) >= MAX_ORDERS:
                self._orders.clear()
            known = self._orders[at] = self._order(service, key, role)
        return known

    def _order(self, service: str, key: str, role: Role) -> tuple[str, ...]:
        plan = self._plans.get(service)
        nodes = self.members(service, role)
        if plan is None or not nodes:
            return ()
        match plan.selector:
            case "0":
                return _from(nodes, int(key))
            case "modulo":
                return _from(nodes, _hash(key))
            case "hash":
                return ranked(nodes, key)
            case "spread":
                home = self.homes.get(scope_of(service, role), key)
                if home in nodes:
                    return _from(nodes, nodes.index(home))
                if len(self._wanted) < MAX_WANTED:
                    self._wanted[service, role, key] = None
                return ranked(nodes, key)
        return nodes

    @property
    def wanted(self) -> bool:
        """Whether `take_wanted` has something."""
        return bool(self._wanted)

    def take_wanted(self) -> list[tuple[str, Role, str]]:
        """Service, role and name of which `spread` doesn't know the node, each once: for the controller."""
        wanted = list(self._wanted)
        self._wanted.clear()
        return wanted

    def told(self, service: str, role: Role, name: str, node: str) -> None:
        """The controller has said which node a name of a `spread` service has."""
        self.homes.learn(scope_of(service, role), name, node)
        self._orders.pop((service, name, role), None)

    def choose(
        self, service: str, key: str, role: Role, now: float, serving: Collection[str], current: str = ""
    ) -> Choice:
        """The node for a unit, between units and never inside a transaction.

        `serving`: nodes of the role that may serve it. `current`: where the client's last unit of this kind
        went, or empty; a client whose service doesn't go back by itself stays there.
        """
        plan = self._plans.get(service)
        if plan is None:
            return UNTIED
        order = self.order(service, key, role)
        if current and not plan.failback and current in serving and current in order:
            return self._choice(current, "affinity" if current == order[0] else "affinity_kept", False)
        spare = ""
        for node in order:
            watch = self._watches[service, node]
            standing = watch.settle(plan, now)
            if node not in serving:
                if standing is Standing.AWAITED:
                    if spare:
                        break
                    return Choice("", "affinity_wait", watch.since + plan.budget)
            elif (
                standing is Standing.IN_USE
                or standing is Standing.AWAITED
                or (standing is Standing.RETURNING and now >= watch.since + plan.check_interval * _share(key))
            ):
                return self._take(plan, node, order, current)
            elif not spare:
                spare = node
        # A node that is coming back is better than waiting, and one that was left is better than none.
        return self._take(plan, spare, order, current) if spare else NO_NODE

    def _take(self, plan: Plan, node: str, order: tuple[str, ...], current: str) -> Choice:
        failed = False
        if plan.notify and current not in ("", node):
            watch = self._watches.get((plan.name, current))
            view = self._snapshot.nodes.get(current)
            drained = view is not None and view.drain is not None  # somebody's plan, and no failure
            failed = watch is not None and watch.standing is Standing.LEFT and not drained
        return self._choice(node, "affinity" if node == order[0] else "affinity_next", failed)

    def _choice(self, node: str, reason: str, notify: bool) -> Choice:
        at = (node, reason, notify)
        choice = self._choices.get(at)
        if choice is None:
            choice = self._choices[at] = Choice(node, reason, notify=notify)
        return choice


def _look(view: NodeView | None) -> Look:
    """What a snapshot says of a node. For one that is drained nobody waits."""
    return Look.DOWN if view is None or view.drain is not None else _LOOKS[view.health]


def _watched(plan: Plan, watch: Watch | None, look: Look, now: float) -> Watch:
    """A node's watch after a look at it. A node takes its clients at once when it is active for the first time: nobody
    has left it. If it hasn't been proven yet, nobody waits for it."""
    if watch is None:
        watch = Watch(now)
    watch.settle(plan, now)
    watch.step(look, now)
    first = look is Look.ACTIVE and not watch.proven
    watch.proven = watch.proven or first
    # Without `failback` those who have left stay where they are by `current`, and others come at once.
    if watch.standing is Standing.RETURNING and (first or not plan.failback):
        watch.step(Look.PASSED, now)
    return watch


def _members(plan: Plan, snapshot: Snapshot, role: Role) -> tuple[str, ...]:
    nodes = plan.nodes or tuple(snapshot.nodes)
    if not plan.nodes and plan.has_keys:
        nodes = tuple(sorted(nodes))  # instances may list their nodes in other orders
    if not plan.has_keys and plan.selector != "0":
        nodes = _from(nodes, int(plan.selector) - 1)
    return tuple(node for node in nodes if node in snapshot.nodes and snapshot.nodes[node].role is role)


def _from(nodes: tuple[str, ...], place: int) -> tuple[str, ...]:
    """All nodes, beginning with the one at `place`, which counts on from the start."""
    first = place % len(nodes)
    return nodes[first:] + nodes[:first]


def ranked(nodes: Sequence[str], key: str) -> tuple[str, ...]:
    """Rendezvous hashing: each node gets a rank of its own for the key, so one more or less moves only the
    keys that it gets or had."""
    return tuple(sorted(nodes, key=lambda node: (-_hash(f"{node}\0{key}"), node)))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


def _share(key: str) -> float:
    """Where in `check_interval` a key goes back to its node: 0 up to 1. Without keys all go at once."""
    return _hash(key) / 2**64 if key else 0.0


def moves(sessions: Mapping[int, str], nodes: Sequence[str], share: float = MOVED_SHARE) -> dict[int, str]:
    """Which sessions should go to which node, so that `nodes` have equally many; for `balance`.

    `sessions`: the node of each live session that may be moved. Nodes that aren't in `nodes` are left alone.
    At most `share` of the sessions, and at least one, goes in a round; the one that came first goes first.
    """
    counts = dict.fromkeys(nodes, 0)
    there: dict[str, list[int]] = {node: [] for node in nodes}
    for session in sorted(sessions, reverse=True):
        node = sessions[session]
        if node in counts:
            counts[node] += 1
            there[node].append(session)
    moved: dict[int, str] = {}
    for _ in range(max(1, int(sum(counts.values()) * share))):
        fullest = max(nodes, key=lambda n: counts[n], default="")
        emptiest = min(nodes, key=lambda n: counts[n], default="")
        if not fullest or counts[fullest] - counts[emptiest] < 2:
            break
        moved[there[fullest].pop()] = emptiest
        counts[fullest] -= 1
        counts[emptiest] += 1
    return moved
