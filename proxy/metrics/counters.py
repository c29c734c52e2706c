"""Slotted integers that a worker's data plane increments, shipped to the controller once a second.

Owns the fields and nothing else: no names for the outside (`catalog`), no sums (`totals`). A field
ending in `_current`, or named in `POOL_GAUGES`, goes up and down; all others only rise. Times are
microseconds, sizes bytes. A plain `counters.pins += 1` is the whole interface; nothing here may cost more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class WorkerCounters:
    """Of one worker, since it started."""

    clients_total: int = 0
    """Clients that logged in."""
    clients_current: int = 0
    clients_refused: int = 0
    """Connections turned away before a login: `listen.max_clients` or half-open logins reached."""
    logins_current: int = 0
    """Connections accepted and not logged in yet."""
    logins_failed: int = 0
    """Wrong password, no matching rule, unknown database, login time-out."""
    cancels: int = 0
    """CancelRequests received."""
    cancels_forwarded: int = 0
    """Cancels that went on to a node, because the statement was running there."""
    protocol_errors: int = 0
    """Clients or servers closed with 08P01."""
    classify_exact: int = 0
    """Texts whose classification was known: by the text itself."""
    classify_folded: int = 0
    """By the text with its digits made alike."""
    classify_shape: int = 0
    """By the text without its literals and comments."""
    classify_misses: int = 0
    routed_write: int = 0
    routed_read: int = 0
    routed_analytic: int = 0
    routed_session: int = 0
    held: int = 0
    """Units kept waiting by the proxy for something else than a free server."""
    held_current: int = 0
    rejected: int = 0
    """Units answered with an error of the proxy instead of going to a node."""
    syncs: int = 0
    """Times that a server's settings were brought in line with its client's."""
    audits: int = 0
    """Times that a server was asked what unseen code had left behind in its session."""
    pins: int = 0
    """Times that a client was tied to a server beyond its transaction."""
    pinned_current: int = 0
    reparses: int = 0
    reruns: int = 0
    """Batches run again, with their statements parsed anew, because a plan had gone stale."""
    pauses: int = 0
    """Times that reading from one side stopped because the other was slow."""
    begins_held: int = 0
    """Transactions whose BEGIN was held back."""
    hints_ignored: int = 0
    """Hints and settings `pgtrident.*` that were not understood, or could not be obeyed."""
    stale_reads: int = 0
    """Reads that a copy answered which may not hold what they had to see, as a rule allows."""
    rules: dict[tuple[str, str], int] = field(default_factory=dict)
    """Texts by (rule, what it did: `held`, or of a shadow rule `same` or `differs`)."""
    switches: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Clients that went over to another node by (service, that node, reason); all come from fixed sets."""
    routes: dict[tuple[str, str], int] = field(default_factory=dict)
    """Units by (node, reason code); both come from fixed sets, which bounds it."""

    def routed(self, node: str, reason: str) -> None:
        """Count a route under its reason code."""
        key = (node, reason)
        self.routes[key] = self.routes.get(key, 0) + 1

    def ruled(self, rule: str, result: str) -> None:
        """Count what a rule did."""
        key = (rule, result)
        self.rules[key] = self.rules.get(key, 0) + 1

    def switched(self, service: str, node: str, reason: str) -> None:
        """Count a client of a service that goes over to this node."""
        key = (service, node, reason)
        self.switches[key] = self.switches.get(key, 0) + 1

    def as_dict(self) -> dict[str, int]:
        """All plain fields, `route:<node>:<reason>` for the routes, `rule:<rule>:<result>` for the rules and
        `switch:<node>:<reason>:<service>` for the switches (reason and result have no colon, nor has a switch's
        node)."""
        values = {name: getattr(self, name) for name in WORKER_FIELDS}
        for (node, reason), count in self.routes.items():
            values[f"route:{node}:{reason}"] = count
        for (rule, result), count in self.rules.items():
            values[f"rule:{rule}:{result}"] = count
        for (service, node, reason), count in self.switches.items():
            values[f"switch:{node}:{reason}:{service}"] = count
        return values


@dataclass(slots=True)
class PoolCounters:
    """Of one pool (node, database, user) in one worker, since the worker started."""

    clients_active: int = 0
    """Clients that have a server."""
    clients_waiting: int = 0
    """Clients that wait for one."""
    servers_active: int = 0
    servers_idle: int = 0
    servers_login: int = 0
    """Being connected."""
    servers_cancelling: int = 0
    """Kept back until a cancel has run its course."""
    servers_draining: int = 0
    """Finishing what a vanished client left."""
    max_wait_us: int = 0
    """How long the first in the queue has waited by now."""
    queries: int = 0
    """Units with something to run: a Query, a function call, or a batch as one."""
    transactions: int = 0
    bytes_received: int = 0
    """From clients."""
    bytes_sent: int = 0
    """To clients."""
    wait_us: int = 0
    """Time that clients waited for a server."""
    query_us: int = 0
    """Time that servers were at work on units."""
    xact_us: int = 0
    """Time that servers were in a transaction."""
    waits: int = 0
    """Times that a client had to wait for a server."""
    connects: int = 0
    connect_failures: int = 0
    closes: int = 0
    closes_dirty: int = 0
    """Servers closed because they could not be brought back to a known state (part of `closes`)."""
    prepared_hits: int = 0
    """Uses of a named statement that the server already had."""
    prepared_misses: int = 0
    checkout_timeouts: int = 0
    queue_full: int = 0
    """Clients refused because `pool.max_waiting` others waited."""
    query_timeouts: int = 0

    def as_dict(self) -> dict[str, int]:
        """All fields."""
        return {name: getattr(self, name) for name in POOL_FIELDS}


WORKER_FIELDS = tuple(f.name for f in fields(WorkerCounters) if f.name not in ("routes", "rules", "switches"))
POOL_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(PoolCounters))
POOL_GAUGES = frozenset(
    (
        "clients_active",
        "clients_waiting",
        "servers_active",
        "servers_idle",
        "servers_login",
        "servers_cancelling",
        "servers_draining",
        "max_wait_us",
    )
)
POOL_MAXIMA = frozenset(("max_wait_us",))
"""Gauges of which several workers are worth their maximum, not their sum."""
