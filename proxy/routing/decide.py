"""What becomes of a unit that is to be routed: a route, or a wait for a copy that may serve it in a moment. Pure.

Owns when waiting is better than the second best node, and what a session remembers of its waits (`Roaming`). Where a
unit may go at all is `router`'s word. Called by `dataplane.routes` with all that it found out, and by EXPLAIN (ROUTE)
in the same way; it changes nothing but the session's `Roaming`.
"""

from __future__ import annotations

from collections.abc import Collection

from ..errors import NoNode
from ..sql.model import Class
from .consistency import (
    ANY,
    MOVE_WAIT,
    SPREAD_AGAIN_NS,
    SPREAD_FIRST_NS,
    SPREAD_LAST_NS,
    SPREAD_WAIT,
    Token,
    patience,
)
from .router import FALLBACKS, Hold, Load, Route, Router

RATHER_WAITED = FALLBACKS | {"analytic_to_replica", "analytic_to_primary"}
"""Reasons of routes that are second best: a copy may be a moment away from holding what the read has to see."""


class Roaming:
    """What a session remembers of its copies and its waits.

    Attributes:
        spread_ns: when its reads could last be spread over all copies: a value of `token.seen_ns` ...
        after_ns: ... and how long after that they are spread again.
        vain_ns: when a read of its last waited in vain for a copy.
    """

    __slots__ = ("after_ns", "spread_ns", "vain_ns")

    def __init__(self, spread_ns: int = 0, after_ns: int = SPREAD_FIRST_NS, vain_ns: int = 0) -> None:
        self.spread_ns = spread_ns
        self.after_ns = after_ns
        self.vain_ns = vain_ns

    def copy(self) -> Roaming:
        """For a decision that isn't meant."""
        return Roaming(self.spread_ns, self.after_ns, self.vain_ns)

    def is_stuck(self, router: Router, token: Token, route: Route, load: Load, home: str) -> bool:
        """Whether a session has read from one copy for long because others are not known to hold what it saw there.
        One that keeps to a copy (`home`) is stuck only while it is kept from that."""
        if not (router.misses(home, route) if home else router.sticks(token)):
            if token.seen_ns - self.spread_ns > SPREAD_AGAIN_NS:
                self.after_ns = SPREAD_FIRST_NS
            self.spread_ns = token.seen_ns
            return False
        if token.seen_ns - self.spread_ns <= self.after_ns:
            return False
        if home or self.after_ns < SPREAD_LAST_NS:
            return True
        crowded = router.is_crowded(token.seen_node, load)
        if not crowded:
            self.spread_ns = token.seen_ns  # looked at again when as much time has passed
        return crowded


class Request:
    """What is asked of the router for one unit.

    Attributes:
        cls, split, known, strong, token, columnar, load, writer: see `Router.route`.
        level: the consistency level by which `token` was made.
        node, node_reason: the node that hint or rule name.
        home, home_reason: the one that its session keeps to.
        stale: a rule lets old data be read rather than nothing.
        begins: its transaction has to begin on the primary if no copy can serve it.
        waited: it has waited for a copy long enough.
        first: it has not waited at all.
    """

    __slots__ = (
        "begins",
        "cls",
        "columnar",
        "first",
        "home",
        "home_reason",
        "known",
        "level",
        "load",
        "node",
        "node_reason",
        "split",
        "stale",
        "strong",
        "token",
        "waited",
        "writer",
    )

    def __init__(self, cls: Class, load: Load, *, split: bool, waited: bool, first: bool) -> None:
        self.cls = cls
        self.load = load
        self.split = split
        self.waited = waited
        self.first = first
        self.known = True
        self.strong = ""
        self.token = ANY
        self.level = ""
        self.columnar: Collection[str] = ()
        self.node = self.node_reason = ""
        self.home = self.home_reason = ""
        self.writer = ""
        self.stale = False
        self.begins = False

    @property
    def reads(self) -> bool:
        return self.cls is Class.READ or self.cls is Class.ANALYTIC


class Outcome:
    """What was decided.

    Attributes:
        route: the route, or the wait.
        need_ns: the wait is for copies that hold what was committed before this moment (boot_ns); 0 is none.
        fell: a read is on the primary because no copy can serve it.
        stale: it sees old data, as a rule allows.
    """

    __slots__ = ("fell", "need_ns", "route", "stale")

    def __init__(self, route: Route | Hold, *, need_ns: int = 0, fell: bool = False, stale: bool = False) -> None:
        self.route = route
        self.need_ns = need_ns
        self.fell = fell
        self.stale = stale


def decide(router: Router, asked: Request, roaming: Roaming, now_ns: int, causal_wait: float) -> Outcome:
    """Decide at `now_ns` (boot_ns). `causal_wait` in seconds. Raises NoNode when nothing may serve it."""
    token = asked.token
    route: Route | None = None
    error: NoNode | None = None
    try:
        route = router.route(
            asked.cls,
            split=asked.split,
            known=asked.known,
            strong=asked.strong,
            token=token,
            columnar=asked.columnar,
            load=asked.load,
            node=asked.node or asked.home,
            node_reason=asked.node_reason if asked.node else asked.home_reason,
            writer=asked.writer,
        )
    except NoNode as refusal:
        error = refusal
    if token is not ANY and not asked.waited:
        seconds = _wait(router, asked, route, roaming, now_ns, causal_wait)
        if seconds:
            return Outcome(Hold("catching_up", seconds), need_ns=max(token.wrote_ns, token.seen_ns))
    if route is None:
        assert error is not None
        raise error
    if route.reason == "read" and token is not ANY and roaming.is_stuck(router, token, route, asked.load, asked.home):
        if not asked.waited:
            if asked.first:
                roaming.after_ns = min(SPREAD_LAST_NS, roaming.after_ns * 2)
            return Outcome(Hold("spreading", SPREAD_WAIT), need_ns=token.seen_ns)
        roaming.spread_ns = token.seen_ns
    if asked.waited and route.reason in RATHER_WAITED:
        roaming.vain_ns = now_ns
    fell = asked.reads and route.reason in FALLBACKS and router.has_replicas
    if fell and asked.stale and not asked.begins and (old := router.stale(asked.load)) is not None:
        return Outcome(old, stale=True)
    return Outcome(route, fell=fell)


def _wait(
    router: Router, asked: Request, route: Route | None, roaming: Roaming, now_ns: int, causal_wait: float
) -> float:
    """Seconds that a unit waits rather than take this route; 0 if it takes it."""
    node = asked.node
    missed = bool(node) and not asked.strong and route is not None and router.misses(node, route)
    if route is not None and not missed and route.reason not in RATHER_WAITED:
        return 0.0
    furthest = router.could_wait(asked.cls, asked.columnar)
    if route is not None and not furthest:
        return 0.0
    if missed:
        return MOVE_WAIT
    return patience(asked.token, asked.level, causal_wait, now_ns, furthest, roaming.vain_ns, asked.begins)
