"""Where a unit goes, and why. Pure: class, session and snapshot in; Route or Hold out, or NoNode raised.

Decided once per unit, and again after each wait. The reason codes are what console, log, metrics and
`explain` print.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import NoNode
from ..sql.model import Class
from ..topology.snapshot import Snapshot


class Route:
    """A node and the reason. Kept and reused per (node, reason), so nothing is built per unit."""

    __slots__ = ("node", "reason")

    def __init__(self, node: str, reason: str) -> None:
        self.node = node
        self.reason = reason

    def __repr__(self) -> str:
        return f"Route({self.node}, {self.reason})"


class Hold:
    """The unit waits for something; the data plane routes it again when that has come."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


HOLD_FRESH = Hold("copies_catching_up")


class Router:
    """Routes by one snapshot; made anew with each."""

    def __init__(self, snapshot: Snapshot, *, analytic_to_primary: bool) -> None:
        self.snapshot = snapshot
        self._analytic_to_primary = analytic_to_primary
        self._turn = 0
        self._routes: dict[tuple[str, str], Route] = {}
        self.primary = self._route(snapshot.primary, "write") if snapshot.primary else None

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
        written_ns: int,
        replicas_ns: int,
        columnar_ns: int,
        columnar_able: bool,
        load: Callable[[str], int],
    ) -> Route | Hold:
        """The route of a unit that stands alone outside a transaction.

        `split`: whether reads may leave the primary at all. `known`: whether what names mean in the database
        is known as of now. `written_ns`: the last write to this
        database that had ended when the unit arrived; a copy serves only when it is known to hold all
        that ended before (`replicas_ns`, `columnar_ns`). `columnar_able`: the statement's result has
        PostgreSQL's types on a columnar node; one that has not is an ordinary read.
        `load` counts servers at work on a node. Raises NoNode when nothing may serve it.
        """
        snapshot = self.snapshot
        if not split:
            return self._to_primary("read_split_off", cls)
        if cls is Class.WRITE or cls is Class.SESSION:
            return self._to_primary(cls.value, cls)
        if not known:
            return self._to_primary("catalogue_unread", Class.WRITE)
        fresh = written_ns < replicas_ns
        if cls is Class.ANALYTIC and columnar_able and snapshot.has_columnar:
            if snapshot.columnar:
                if written_ns < columnar_ns:
                    return self._route(self._least(snapshot.columnar, load), "analytic")
                return HOLD_FRESH
            if snapshot.replicas:
                return self._route(self._least(snapshot.replicas, load), "analytic_to_replica") if fresh else HOLD_FRESH
            if self._analytic_to_primary:
                return self._to_primary("analytic_to_primary", cls)
            raise NoNode(
                "analytic service temporarily unavailable: no columnar node and no replica is in service",
                hint="Try again when one is back, or set routing.analytic_to_primary.",
            )
        if not snapshot.replicas:
            return self._to_primary("no_replica", cls)
        if not fresh:
            return self._to_primary("after_write", cls)
        return self._route(self._least(snapshot.replicas, load), "read")

    def _to_primary(self, reason: str, cls: Class) -> Route:
        snapshot = self.snapshot
        if snapshot.primary:
            return self._route(snapshot.primary, reason)
        if cls in (Class.READ, Class.ANALYTIC) and snapshot.replicas:
            return self._route(self._least(snapshot.replicas, lambda _: 0), "no_primary")
        raise NoNode(
            "no primary is in service",
            hint="Writes are refused until a primary is found; SHOW NODES on the console tells the state.",
        )

    def _least(self, nodes: tuple[str, ...], load: Callable[[str], int]) -> str:
        """The node with the fewest servers at work; equals take turns."""
        if len(nodes) == 1:
            return nodes[0]
        self._turn += 1
        first = self._turn % len(nodes)
        return min(nodes[first:] + nodes[:first], key=load)
