"""The immutable, versioned picture that the controller publishes and every worker obeys.

Flat tables: health and degradation are compiled into `serving`, `replicas`, `columnar` and `primary`
by the controller, so the router reads nothing else. Replaced whole, never changed.
"""

from __future__ import annotations

import msgspec

from .model import DEFAULT_GROUP, Health, Role


class Address(msgspec.Struct, frozen=True):
    """One resolved address of a node: an IP literal with a port, or the path of a Unix socket."""

    host: str
    port: int = 0

    @property
    def is_unix(self) -> bool:
        return self.host.startswith("/")


class Drain(msgspec.Struct, frozen=True):
    """Somebody wants a node to have nothing to do: it takes no new work, and what it has goes on until a deadline.
    Its health is another matter."""

    until_ns: int
    """CLOCK_BOOTTIME at which what is left there is ended."""
    cause: str
    """`command`, or `removed` from the configuration."""
    done: bool = False
    """No worker has a server there any more."""

    @property
    def state(self) -> str:
        return "drained" if self.done else "draining"


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node as a worker sees it."""

    name: str
    host: str
    """The name from the config, for TLS verification and for people."""
    port: int
    group: str = DEFAULT_GROUP
    role: Role = Role.UNKNOWN
    health: Health = Health.SUSPECT
    share: int = 100
    """Percent of its usual work that a copy is to get: one that recovers comes back in steps."""
    addresses: tuple[Address, ...] = ()
    """In the order to try them; empty until the name was resolved once."""
    max_connections: int = 0
    """Most servers to it over all workers; 0 is no limit."""
    generation: int = 0
    """Rises when existing servers of this node must not be used again."""
    logins: str = ""
    """Mark of what logins depend on there (roles, their settings and those of databases); empty if it can't be
    told. When it changes, so does `generation`."""
    drain: Drain | None = None
    """Set as long as the node is to take no new work, whatever its health."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker needs to route. `version` rises with every publication."""

    version: int = 0
    epoch: int = 0
    """The fencing token: rises by one at each change of primary."""
    lease_deadline_ns: int = 0
    """CLOCK_BOOTTIME after which writes are not relayed; 0 is none (authority = none)."""
    group: str = DEFAULT_GROUP
    nodes: dict[str, NodeView] = {}
    primary: str = ""
    """Name of the node that takes writes, or empty."""
    writers: tuple[str, ...] = ()
    """Nodes that take writes: the primary, and others beside it where the group has several writers."""
    replicas: tuple[str, ...] = ()
    """Replicas that may take new work."""
    columnar: tuple[str, ...] = ()
    """Columnar nodes that may take new work."""
    has_columnar: bool = False
    """Whether the group has columnar nodes at all (in service or not)."""


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replica or columnar node is, as of its last reading."""

    fresh_ns: int = 0
    """It has replayed all that was committed on the primary before this moment (boot_ns); 0 is nothing known."""
    since_ns: int = 0
    """It has been read without a break since then (boot_ns): until now it hasn't gone back."""
    lsn: int = 0
    """Its replay position."""
    lag_ms: int = -1
    """How long ago the primary went beyond that position; -1 is not known."""
    lag_bytes: int = 0
    weight: int = 0
    """Its share of reads in percent, by its lag; 0 is out."""
    latency_us: int = 0
    """Moving average of the time that a reading takes."""


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """What copies are known to hold. Sent apart from the snapshot because it changes several times a second."""

    epoch: int = 0
    """Of the positions; those of another one mean something else."""
    timeline: int = 0
    """Of the primary: positions of equal timelines can be compared, whoever read them."""
    sampled_ns: int = 0
    """The last moment (boot_ns) at which the primary was asked for its position ..."""
    sampled_lsn: int = 0
    """... and what it said: all that was committed before that moment lies under it."""
    copies: dict[str, Copy] = {}
    """By name of the node; one that isn't here serves no reads."""
