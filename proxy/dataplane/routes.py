"""The routes of a worker's units: what the router has to be told is gathered here, and what it says is acted upon.

Owns the gathering (what columnar nodes can answer, the catalogue, the session's node, what it has to see), the asking
for newer samples, and the counting. What is decided by that is pure (`routing.decide`, `routing.router`); EXPLAIN
(ROUTE) gathers the same, asks for nothing and counts nothing. Called by `client` and `explain`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..errors import NoNode
from ..routing.balance import Balancer
from ..routing.consistency import ANY, TOKEN_WAIT, Fallbacks, Token
from ..routing.decide import Outcome, Request, decide
from ..routing.policy import DEFAULT, Policy
from ..routing.router import FALLBACKS, Hold, Route
from ..sql.model import Class, Classification
from .unit import Kind, Unit

if TYPE_CHECKING:
    from .client import Client
    from .worker import Worker

MARGIN = 0.002
"""Seconds that a wait for a client's own node ends behind the moment at which that is given up."""


class Routes:
    """Of one worker."""

    def __init__(self, worker: Worker, balancer: Balancer) -> None:
        self._worker = worker
        self._balancer = balancer
        self._fallbacks = Fallbacks()

    def plain(self, client: Client, classification: Classification) -> Route | None:
        """The route of a plain unit that needs no wait of any kind; else None. The short way of `of`, for what was
        bound just now (`Client._bound`: whether its catalogue is believed has been asked)."""
        cls = classification.cls
        if cls is Class.ANALYTIC:
            return None
        level = client.level
        if level == "global" or (level == "key" and client.key_slot < 0):
            return None
        worker = self._worker
        reads = cls is Class.READ
        settings = client.settings
        binding = client.binding
        known = not reads or binding is None or binding.read_ns > binding.changed_ns
        strong = "strong" if level == "strong" else ""
        home = reason = writer = ""
        tie = client.tie
        if tie is not None:
            copies = reads and settings.split and known and not strong
            if worker.services.place(tie, level, copies=copies, able=False) or tie.error is not None:
                return None
            home, reason, writer = tie.node, tie.reason, tie.writer
            strong = strong or tie.strong
        token = worker.consistency.token(client, level, 0, client.key_slot) if reads else ANY
        router = worker.router
        try:
            route = router.route(
                cls,
                split=settings.split,
                known=known,
                strong=strong,
                token=token,
                columnar=(),
                load=client.load_of,
                node=home,
                node_reason=reason,
                writer=writer,
            )
        except NoNode:
            return None
        if reads and (
            route.reason in FALLBACKS or client.roaming.is_stuck(router, client.token, route, client.load_of, home)
        ):
            return None
        self._may_go(reads, False)
        worker.counters.routed(route.node, route.reason)
        return route

    def of(self, client: Client, unit: Unit) -> Route | Hold | None:
        """The route of a unit; None when something is being found out first (the client is told).

        Raises NoNode when nothing may serve it, and Moved when its session is to be told of a switch.
        """
        worker = self._worker
        asked = self._asked(client, unit)
        if isinstance(asked, Hold):
            if asked.reason == "token_unknown":
                worker.consistency.need(unit.mark, waits=True)
            return asked
        if asked is None:
            return None
        outcome = self._decided(client, asked, unit)
        if outcome.need_ns:
            worker.consistency.need(outcome.need_ns, waits=True)
        route = outcome.route
        if isinstance(route, Hold):
            return route
        if not self._may_go(asked.reads, outcome.fell):
            return Hold("fallback_share")
        if outcome.stale:
            worker.counters.stale_reads += 1
        worker.counters.routed(route.node, route.reason)
        return route

    def would_be(self, client: Client, unit: Unit) -> Route | Hold | None:
        """What `of` would say now; nothing is asked for, counted or remembered."""
        asked = self._asked(client, unit, dry=True)
        if not isinstance(asked, Request):
            return asked
        turn, roaming = self._balancer.turn, client.roaming
        client.roaming = roaming.copy()
        try:
            outcome = self._decided(client, asked, unit)
        finally:
            self._balancer.turn, client.roaming = turn, roaming
        if isinstance(outcome.route, Route) and not self._may_go(asked.reads, outcome.fell, dry=True):
            return Hold("fallback_share")
        return outcome.route

    def has_to_see(self, client: Client, policy: Policy, level: str, mark: int) -> Token:
        """What a read of this client has to see at a consistency level, if it came at the moment `mark` (boot_ns)."""
        consistency = self._worker.consistency
        slot = consistency.key_slot(client, policy.key) if policy.key else client.key_slot
        return consistency.token(client, level, mark, slot)

    def _decided(self, client: Client, asked: Request, unit: Unit) -> Outcome:
        worker = self._worker
        causal_wait = worker.config.routing.causal_wait
        return decide(worker.router, asked, client.roaming, worker.clock.boot_ns(), causal_wait)

    def _may_go(self, reads: bool, fell: bool, *, dry: bool = False) -> bool:
        """Whether a read may go where it is to go (`routing.fallback_share`)."""
        share = self._worker.router.fallback_share
        return share >= 100 or not reads or self._fallbacks.allows(fell, share, self._worker.clock.now(), dry=dry)

    def _asked(self, client: Client, unit: Unit, *, dry: bool = False) -> Request | Hold | None:
        """What to ask for a unit; a wait that comes before that, or None when something is found out first."""
        worker = self._worker
        split = client.settings.split
        # What moves a transaction to the primary goes there whatever is asked for.
        policy = DEFAULT if unit.begins or unit.policy is None else unit.policy
        cls = policy.routed_as(unit.cls)
        columnar: Collection[str] = ()
        if cls is Class.ANALYTIC and split and worker.snapshot.has_columnar:
            able = () if unit.failed_on_columnar else worker.capabilities.able(client, unit, dry=dry)
            if able is None:
                return None
            columnar = able
            if not able:
                cls = Class.READ
        greets = unit.kind is Kind.WELCOME and not worker.snapshot.primary
        if greets:
            # Any node can tell whether the client's settings are right, and no name is read.
            cls = Class.READ
        if unit.reads_wishes and not unit.waited:
            unit.mark = unit.mark or worker.clock.boot_ns()
            if not worker.consistency.token_text(client.token, unit.mark):
                return Hold("token_unknown", TOKEN_WAIT)
        asked = Request(cls, client.load_of, split=split, waited=unit.waited, first=not unit.since)
        asked.columnar = columnar
        analytic = cls is Class.ANALYTIC and worker.snapshot.has_columnar
        asked.level = policy.consistency or (client.analytic_level if analytic else client.level)
        asked.node, asked.node_reason = policy.node, policy.reason
        asked.stale, asked.begins = policy.stale, unit.floor_ns > 0
        if greets:
            return asked
        asked.strong = _primary_for(policy, asked.level)
        if asked.reads:
            unit.mark = unit.mark or worker.clock.boot_ns()
            asked.token = self.has_to_see(client, policy, asked.level, unit.mark)
            if unit.floor_ns:
                # Within one transaction nothing goes back, at `eventual` neither.
                asked.token = (client.token if asked.token is ANY else asked.token).with_floor(unit.floor_ns)
            asked.known = client.binding is None or worker.catalogues.believed(client.binding, dry=dry)
        return self._tied(client, unit, asked, policy, dry)

    def _tied(self, client: Client, unit: Unit, asked: Request, policy: Policy, dry: bool) -> Request | Hold:
        """Add the node that the client keeps to; it may have to be waited for."""
        tie = client.tie
        if tie is None:
            return asked
        if not dry:
            worker = self._worker
            copies = asked.reads and asked.split and asked.known and not asked.strong
            able = asked.cls is Class.ANALYTIC and worker.snapshot.has_columnar
            until = worker.services.place(tie, asked.level, copies=copies, able=able, named=bool(policy.node))
            if tie.error is not None:
                moved, tie.error = tie.error, None
                raise moved
            if until and not unit.waited:
                return Hold("affinity_wait", until - (unit.since or worker.clock.now()) + MARGIN)
        asked.home, asked.home_reason, asked.writer = tie.node, tie.reason, tie.writer
        asked.strong = asked.strong or tie.strong
        return asked


def _primary_for(policy: Policy, level: str) -> str:
    """The reason why a read is to be on the primary; "" if there is none."""
    if policy.route == "primary":
        return policy.reason
    return "strong" if level == "strong" else ""
