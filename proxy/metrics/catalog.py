"""Every metric: its name, kind, labels and help text, once; and which counter feeds it.

Pure tables, read by `export`. A new metric is an entry here and an increment in the data plane. Names
follow the Prometheus conventions: base units, `_total` on counters (added by the exporter).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PREFIX = "pgtrident_"
POOL_LABELS = ("node", "database", "user")
HEALTHS = ("active", "suspect", "down", "recovering")
MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. `name` is without prefix and without `_total`."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """How a counter's field becomes a sample: its family, fixed labels and factor to base units."""

    metric: Metric
    labels: dict[str, str] = field(default_factory=dict)
    scale: float = 1.0


BUILD = Metric("build_info", "gauge", "Always 1; the version is a label.", ("version",))
WORKERS = Metric("workers", "gauge", "Workers connected to the controller.")
EPOCH = Metric("epoch", "gauge", "Epoch of the group; rises at each change of primary.")
SNAPSHOT = Metric("snapshot_version", "gauge", "Version of the last snapshot published.")
NODE_HEALTH = Metric("node_health", "gauge", "1 for the health that a node has, else 0.", ("node", "role", "health"))
NODE_SERVING = Metric("node_serving", "gauge", "1 if a node may take new work, else 0.", ("node",))
NODE_LAG = Metric("node_lag_bytes", "gauge", "WAL that a copy has not replayed yet.", ("node",))
NODE_LAG_SECONDS = Metric("node_lag_seconds", "gauge", "How long a copy is behind the primary.", ("node",))
NODE_WEIGHT = Metric("node_weight", "gauge", "Share of its reads that a copy gets by its lag, in percent.", ("node",))
NODE_SINCE = Metric("node_since_timestamp_seconds", "gauge", "When a node's health last changed.", ("node",))
NODE_PROBES = Metric("node_probes", "counter", "Probes of a node.", ("node",))
NODE_PROBE_FAILURES = Metric("node_probe_failures", "counter", "Probes of a node that failed.", ("node",))
FLEET = (
    BUILD,
    WORKERS,
    EPOCH,
    SNAPSHOT,
    NODE_HEALTH,
    NODE_SERVING,
    NODE_LAG,
    NODE_LAG_SECONDS,
    NODE_WEIGHT,
    NODE_SINCE,
    NODE_PROBES,
    NODE_PROBE_FAILURES,
)
"""What the controller knows itself."""

ROUTES = Metric("routes", "counter", "Units by the node they went to and the reason.", ("node", "reason"))
RULES = Metric("rules", "counter", "Texts for which a rule held, by what came of it.", ("rule", "result"))
SWITCHES = Metric(
    "service_switches",
    "counter",
    "Clients of a service that went over to this node, by the reason.",
    ("service", "node", "reason"),
)
_CLASSIFICATIONS = Metric("classifications", "counter", "Texts by the step of the cache that knew them.", ("result",))
_UNITS = Metric("units", "counter", "Units routed, by class.", ("class",))

WORKER: dict[str, Source] = {
    "clients_total": Source(Metric("clients", "counter", "Clients that logged in.")),
    "clients_current": Source(Metric("clients_current", "gauge", "Clients logged in now.")),
    "clients_refused": Source(Metric("clients_refused", "counter", "Connections turned away because of a limit.")),
    "logins_current": Source(Metric("logins_current", "gauge", "Connections that have not logged in yet.")),
    "logins_failed": Source(Metric("logins_failed", "counter", "Logins that failed.")),
    "cancels": Source(Metric("cancels", "counter", "Cancel requests received.")),
    "cancels_forwarded": Source(Metric("cancels_forwarded", "counter", "Cancel requests passed on to a node.")),
    "protocol_errors": Source(Metric("protocol_errors", "counter", "Connections closed for breaking the protocol.")),
    "classify_exact": Source(_CLASSIFICATIONS, {"result": "exact"}),
    "classify_folded": Source(_CLASSIFICATIONS, {"result": "folded"}),
    "classify_shape": Source(_CLASSIFICATIONS, {"result": "shape"}),
    "classify_misses": Source(_CLASSIFICATIONS, {"result": "miss"}),
    "routed_write": Source(_UNITS, {"class": "write"}),
    "routed_read": Source(_UNITS, {"class": "read"}),
    "routed_analytic": Source(_UNITS, {"class": "analytic"}),
    "routed_session": Source(_UNITS, {"class": "session"}),
    "held": Source(Metric("held", "counter", "Units kept waiting by the proxy.")),
    "held_current": Source(Metric("held_current", "gauge", "Units kept waiting now.")),
    "rejected": Source(Metric("rejected", "counter", "Units answered with an error of the proxy.")),
    "syncs": Source(Metric("state_syncs", "counter", "Servers brought in line with their client's settings.")),
    "audits": Source(Metric("state_audits", "counter", "Servers asked what unseen code left in their session.")),
    "pins": Source(Metric("pins", "counter", "Times a client was tied to a server beyond its transaction.")),
    "pinned_current": Source(Metric("pinned_current", "gauge", "Clients tied to a server beyond their transaction.")),
    "reruns": Source(
        Metric(
            "reruns",
            "counter",
            "Reads run again elsewhere: refused by a standby, failed on a columnar node, or their copy was lost.",
        )
    ),
    "reparses": Source(Metric("reparses", "counter", "Batches run again because a plan had gone stale.")),
    "begins_held": Source(Metric("begins_held", "counter", "Transactions whose BEGIN was held back.")),
    "hints_ignored": Source(
        Metric("hints_ignored", "counter", "Hints and settings that were not understood or could not be obeyed.")
    ),
    "stale_reads": Source(
        Metric("stale_reads", "counter", "Reads answered by a copy that may be older than they asked for, by a rule.")
    ),
    "pauses": Source(Metric("pauses", "counter", "Times that reading stopped because the other side was slow.")),
}

_POOL_CLIENTS = Metric("pool_clients", "gauge", "Clients of a pool by state.", (*POOL_LABELS, "state"))
_POOL_SERVERS = Metric("pool_servers", "gauge", "Servers of a pool by state.", (*POOL_LABELS, "state"))
_POOL_PREPARED = Metric("pool_prepared", "counter", "Uses of named statements by result.", (*POOL_LABELS, "result"))
_POOL_REFUSALS = Metric(
    "pool_refusals", "counter", "Clients answered with an error by a pool's limits.", (*POOL_LABELS, "reason")
)


def _pool(name: str, kind: Literal["counter", "gauge"], text: str, scale: float = 1.0) -> Source:
    return Source(Metric(f"pool_{name}", kind, text, POOL_LABELS), scale=scale)


POOL: dict[str, Source] = {
    "clients_active": Source(_POOL_CLIENTS, {"state": "active"}),
    "clients_waiting": Source(_POOL_CLIENTS, {"state": "waiting"}),
    "servers_active": Source(_POOL_SERVERS, {"state": "active"}),
    "servers_idle": Source(_POOL_SERVERS, {"state": "idle"}),
    "servers_login": Source(_POOL_SERVERS, {"state": "login"}),
    "servers_cancelling": Source(_POOL_SERVERS, {"state": "cancelling"}),
    "servers_draining": Source(_POOL_SERVERS, {"state": "draining"}),
    "max_wait_us": _pool("max_wait_seconds", "gauge", "How long the first in the queue has waited.", MICRO),
    "queries": _pool("queries", "counter", "Units with something to run: a batch counts as one."),
    "transactions": _pool("transactions", "counter", "Transactions."),
    "bytes_received": _pool("received_bytes", "counter", "Bytes from clients."),
    "bytes_sent": _pool("sent_bytes", "counter", "Bytes to clients."),
    "wait_us": _pool("wait_seconds", "counter", "Time that clients waited for a server.", MICRO),
    "query_us": _pool("query_seconds", "counter", "Time that servers were at work on units.", MICRO),
    "xact_us": _pool("transaction_seconds", "counter", "Time that servers were in a transaction.", MICRO),
    "waits": _pool("waits", "counter", "Times that a client had to wait for a server."),
    "connects": _pool("connects", "counter", "Servers connected."),
    "connect_failures": _pool("connect_failures", "counter", "Servers that could not be connected."),
    "closes": _pool("closes", "counter", "Servers closed."),
    "closes_dirty": _pool("closes_dirty", "counter", "Servers closed because their state was not known."),
    "prepared_hits": Source(_POOL_PREPARED, {"result": "hit"}),
    "prepared_misses": Source(_POOL_PREPARED, {"result": "miss"}),
    "checkout_timeouts": Source(_POOL_REFUSALS, {"reason": "checkout_timeout"}),
    "queue_full": Source(_POOL_REFUSALS, {"reason": "queue_full"}),
    "query_timeouts": Source(_POOL_REFUSALS, {"reason": "query_timeout"}),
}


def all_metrics() -> tuple[Metric, ...]:
    """Every family once, in the order of the page."""
    families = [*FLEET, *(source.metric for source in WORKER.values()), ROUTES, RULES, SWITCHES]
    families.extend(source.metric for source in POOL.values())
    return tuple(dict.fromkeys(families))
