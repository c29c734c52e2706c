"""Where a unit goes, and why. Pure: class, token and snapshot in; Route or Hold out, or NoNode raised.

Decided once per unit, and again after each wait. The reason codes are what console, log, metrics and
`explain` print.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from zlib import crc32

from ..errors import NoNode
from ..sql.model import Class
from ..topology.model import TRIAL, Role
from ..topology.snapshot import Copy, Freshness, Snapshot
from .balance import Balancer
from .consistency import ANY, Token

Load = Callable[[str], int]


class Route:
    """A node and the reason. Kept and reused per (node, reason), so nothing is built per unit."""

    __slots__ = ("node", "reason")

    def __init__(self, node: str, reason: str) -> None:
        self.node = node
        self.reason = reason

    def __repr__(self) -> str:
        return f"Route({self.node}, {self.reason})"


class Hold:
    """The unit waits for something; the data plane routes it again when that has come.

    Attributes:
        seconds: how long at most, after which it goes to a node that needs no wait; 0 is `hold_timeout`, after
            which it is refused.
    """

    __slots__ = ("reason", "seconds")

    def __init__(self, reason: str, seconds: float = 0.0) -> None:
        self.reason = reason
        self.seconds = seconds


FALLBACKS = frozenset(("after_write", "lagging", "no_replica"))
"""Reasons of reads that are on the primary because no copy could serve them."""
TRIALS_AT_ONCE = 1
"""Reads at a time on a replica that comes back, of each worker's pool."""
_UNKNOWN = Copy()


class _Copies:
    """Copies of one kind in service, and how far they are."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.serving: tuple[str, ...] = ()
        """Those within their lag limit."""
        self.on_trial: tuple[str, ...] = ()
        """Those that come back, and have to show first that they can."""
        self.states: Mapping[str, Copy] = {}
        self.weights: dict[str, int] = {}
        self.latencies: dict[str, int] = {}
        self.floor = 0
        """What every one of `serving` holds (boot_ns)."""
        self.furthest = 0

    def refresh(self, copies: Mapping[str, Copy], shares: Mapping[str, int], back: Mapping[str, int]) -> None:
        """`back`: how far those that come back are, in percent; others are back."""
        states = {name: copies.get(name, _UNKNOWN) for name in self.names}
        self.states = states
        within = [name for name in self.names if states[name].weight > 0]
        self.on_trial = tuple(name for name in within if back.get(name, 100) <= TRIAL)
        self.serving = tuple(name for name in within if name not in self.on_trial)
        self.weights = {
            name: min(states[name].weight, back.get(name, 100)) * shares.get(name, 100) // 100 for name in self.serving
        }
        self.latencies = {name: states[name].latency_us for name in self.serving}
        self.floor = min((states[name].fresh_ns for name in self.serving), default=0)
        self.furthest = max((states[name].fresh_ns for name in self.serving), default=0)


class Router:
    """Routes by one snapshot; made anew with each. What copies hold is told by `refresh`."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        analytic_to_primary: bool,
        balancer: Balancer | None = None,
        shares: Mapping[str, int] | None = None,
        zones: Mapping[str, str] | None = None,
        zone: str = "",
        fallback_share: int = 100,
    ) -> None:
        """`shares`: the weights of nodes by the configuration, in percent. `zones`: where nodes stand; those in
        `zone` are preferred. `fallback_share`: how many of the reads may go to the primary for want of a copy, in
        percent."""
        self.snapshot = snapshot
        self.writers = frozenset((snapshot.primary, *snapshot.writers)) - {""}
        """Nodes that take writes."""
        self.fallback_share = fallback_share
        self._analytic_to_primary = analytic_to_primary
        self._balancer = balancer or Balancer()
        self._shares = shares or {}
        self.near = frozenset(name for name, its in (zones or {}).items() if zone and its == zone)
        self._back = {name: view.share for name, view in snapshot.nodes.items() if view.share < 100}
        self._routes: dict[tuple[str, str], Route] = {}
        self.primary = self._route(snapshot.primary, "write") if snapshot.primary else None
        self.replicas = _Copies(snapshot.replicas)
        self.columnar = _Copies(snapshot.columnar)
        self.has_replicas = any(view.role is Role.REPLICA for view in snapshot.nodes.values())
        self.tags = _tags(snapshot.nodes)
        """A number for each node, by which the board tells where something was seen; 0 is none."""

    def refresh(self, freshness: Freshness) -> None:
        """What copies hold now."""
        copies = freshness.copies if freshness.epoch == self.snapshot.epoch else {}
        self.replicas.refresh(copies, self._shares, self._back)
        self.columnar.refresh(copies, self._shares, self._back)

    def _route(self, node: str, reason: str) -> Route:
        key = (node, reason)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = Route(node, reason)
        return route

    def route(
        self,
        cls: Class,
        *,
        split: bool,
        known: bool,
        strong: str,
        token: Token,
        columnar: Collection[str],
        load: Load,
        node: str = "",
        node_reason: str = "",
        writer: str = "",
    ) -> Route:
        """The route of a unit that stands alone outside a transaction.

        `split`: whether reads may leave the primary at all. `known`: whether what names mean in the database
        is known as of now. `strong`: the reason why it is to be read on the primary; "" is none. `token`: what it has
        to see at least. `columnar`: the columnar nodes that answer it as PostgreSQL does; what none of them does is an
        ordinary read. `load` counts servers at work on a node. `node`: the one that is asked for; it
        gets what it can serve, and others the rest. `writer`: who is written to in place of the primary. Raises NoNode
        when nothing may serve it.
        """
        snapshot = self.snapshot
        if not split:
            return self._to_primary("read_split_off", cls, load, writer)
        if cls is Class.WRITE or cls is Class.SESSION:
            return self._to_primary(cls.value, cls, load, writer)
        if not known:
            return self._to_primary("catalogue_unread", Class.WRITE, load, writer)
        if strong:
            return self._to_primary(strong, Class.WRITE, load, writer)  # no copy will do, whatever happens
        if node and (route := self._asked_for(node, node_reason, token, columnar)) is not None:
            return route
        if cls is Class.ANALYTIC and snapshot.has_columnar:
            chosen = self._pick(self.columnar, token, load, columnar)
            if chosen:
                return self._route(chosen, "analytic")
            chosen = self._pick(self.replicas, token, load)
            if chosen:
                return self._route(chosen, "analytic_to_replica")
            if self._analytic_to_primary:
                return self._to_primary("analytic_to_primary", cls, load, writer)
            raise NoNode(
                "analytic service temporarily unavailable: no columnar node and no replica can serve it now",
                hint="Try again when one is back, or set routing.analytic_to_primary.",
            )
        if self.replicas.on_trial and (chosen := self._try(token, load)):
            return self._route(chosen, "trial")
        chosen = self._pick(self.replicas, token, load)
        if chosen:
            return self._route(chosen, "read")
        if not snapshot.replicas:
            return self._to_primary("no_replica", cls, load, writer)
        return self._to_primary("after_write" if self.replicas.serving else "lagging", cls, load, writer)

    def _try(self, token: Token, load: Load) -> str:
        """A replica that has to show that it can serve, for one of very many reads, if it has none already; else ""."""
        if not self._balancer.tries():
            return ""
        states = self.replicas.states
        for name in self.replicas.on_trial:
            if load(name) < TRIALS_AT_ONCE and token.held_by(name, self.tags.get(name, 0), states[name]):
                return name
        return ""

    def _asked_for(self, node: str, reason: str, token: Token, columnar: Collection[str]) -> Route | None:
        """The node that hint or rule ask for, if it can serve a read now."""
        if node == self.snapshot.primary:
            return self._route(node, reason)
        copies = self.replicas if node in self.replicas.serving else self.columnar
        if node not in copies.serving or (copies is self.columnar and node not in columnar):
            return None
        return self._route(node, reason) if token.held_by(node, self.tags.get(node, 0), copies.states[node]) else None

    def misses(self, node: str, route: Route) -> bool:
        """Whether a copy that is asked for would serve, but doesn't hold yet what the read has to see."""
        return route.node != node and (node in self.replicas.serving or node in self.columnar.serving)

    def sticks(self, token: Token) -> bool:
        """Whether a read can't be spread over all replicas, since some may not hold what its session saw on one."""
        replicas = self.replicas
        return len(replicas.serving) > 1 and token.seen_ns >= replicas.floor and token.seen_node in replicas.serving

    def is_crowded(self, node: str, load: Load) -> bool:
        """Whether another replica has less than half to do of what this one has."""
        return 2 * min(load(other) for other in self.replicas.serving) + 2 < load(node)

    def stale(self, load: Load) -> Route | None:
        """A replica for a read that would rather see old data than wait: the one that is furthest."""
        names = self.replicas.names
        if not names:
            return None
        states = self.replicas.states
        return self._route(max(names, key=lambda n: (states.get(n, _UNKNOWN).lsn, -load(n))), "stale")

    def could_wait(self, cls: Class, columnar: Collection[str]) -> int:
        """What the copy that is furthest holds (boot_ns), of those that might serve such a unit; 0 if none might."""
        if cls is Class.ANALYTIC and (able := [node for node in self.columnar.serving if node in columnar]):
            return max(self.columnar.states[node].fresh_ns for node in able)
        return self.replicas.furthest

    def _pick(self, copies: _Copies, token: Token, load: Load, among: Collection[str] | None = None) -> str:
        """A copy that holds what the token asks for, be it one of `among`; "" if none does."""
        nodes: Sequence[str] = copies.serving
        if among is not None:
            nodes = [node for node in nodes if node in among]
        if not nodes:
            return ""
        if token is not ANY and (
            token.wrote_ns >= copies.floor or token.seen_ns >= copies.floor or token.lsn or token.others is not None
        ):
            tags, states = self.tags, copies.states
            nodes = [n for n in nodes if token.held_by(n, tags.get(n, 0), states[n])]
            if not nodes:
                return ""
        if self.near:
            nodes = [node for node in nodes if node in self.near] or nodes
        return self._balancer.choose(nodes, copies.weights, copies.latencies, load)

    def _to_primary(self, reason: str, cls: Class, load: Load, writer: str) -> Route:
        snapshot = self.snapshot
        if writer or snapshot.primary:
            return self._route(writer or snapshot.primary, reason)
        if cls in (Class.READ, Class.ANALYTIC) and snapshot.replicas:
            # The best that is left: of those that are furthest, the least loaded.
            states = self.replicas.states
            furthest = max(snapshot.replicas, key=lambda n: (states.get(n, _UNKNOWN).lsn, -load(n)))
            return self._route(furthest, "no_primary")
        raise NoNode(
            "no primary is in service",
            hint="Writes are refused until a primary is found; SHOW NODES on the console tells the state.",
        )


def _tags(nodes: Mapping[str, object]) -> dict[str, int]:
    """A 16-bit number for each name, equal in all workers; 0 for those that would share one."""
    tags = {name: crc32(name.encode()) & 0xFFFF for name in nodes}
    return {name: tag if list(tags.values()).count(tag) == 1 else 0 for name, tag in tags.items()}
