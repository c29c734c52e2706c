"""The states of a node and what each observation does to it.

    active      in service
    suspect     failed of late, overloaded, or not proven since the start: a copy gets no new work, its old work
                goes on; a primary stays in service (nothing else could take its writes)
    down        out of service at once
    recovering  answers again, has to prove itself

Nodes are looked at in three layers, each at its own pace: whether they can be connected to, whether they answer as a
database, and how much they have to do. What counts are runs without a break. Failures are counted where the database
was asked, so that an open port says nothing against a stuck server, and a quicker look at the network makes a node
suspect sooner and never down sooner. Passes are rounds: as many as the layer that has fewest.

Each pair of state and observation has one row: how the observation is counted, and which state is entered once that
count has reached a threshold. A pair that is missing is a mistake in this file; `row` raises and nothing moves.

Owns the meaning of observations; must not know about sockets, time or other nodes. Called by `health.machine`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ..topology.model import Health


class Layer(StrEnum):
    """Where a node is looked at."""

    NETWORK = "network"
    """A connection is opened and closed."""
    DATABASE = "database"
    """A login and a query; on the primary a write as well."""
    LOAD = "load"
    """What it has to do, against the limits of the configuration."""


class Seen(StrEnum):
    """What one look at a node found. The value is the cause that people are shown."""

    PASS = "pass"
    """Nothing is wrong in this layer: of the database, that the query was answered and the role is one that this node
    may have."""
    NO_LOGIN = "no_login"
    """It answered, but the probe's own user, password or database is wrong (28xxx, 3D000, 42501):
    a fault of our settings, so the node counts as answering."""
    BUSY = "busy"
    """Too many connections (53xxx): it lives, and is no better for being asked again."""
    LOADED = "loaded"
    """More to do than it should have: no new work, but never a reason to call it down."""
    NO_WRITE = "no_write"
    """A primary that answers and can't write: its disk is full, or it was made read-only."""
    FAIL = "fail"
    """An answer that makes no sense, or an error that no row above covers."""
    REFUSED = "refused"
    """Nothing listens there."""
    RESET = "reset"
    """The connection broke off."""
    TIMEOUT = "timeout"
    """No full answer within `health.timeout`."""
    UNREACHABLE = "unreachable"
    """No route, or no address known yet."""
    STARTING = "starting"
    """Starting up, shutting down or recovering from a crash (57P01 to 57P03)."""
    WRONG_ROLE = "wrong_role"
    """It answered with a role that its settings forbid, or holds other data: never to be used."""


class Count(StrEnum):
    """How an observation is counted."""

    PASS = "pass"
    """One more consecutive pass; failures start again from none."""
    FAIL = "fail"
    """One more consecutive failure; passes start again from none."""
    ALIVE = "alive"
    """Breaks a run of failures, and is no pass."""
    HEAVY = "heavy"
    """The same, and passes start again from none."""


class Limit(StrEnum):
    """Which threshold the count is compared with."""

    ONCE = "once"
    FAIL_AFTER = "fail_after"
    RECOVER_AFTER = "recover_after"
    CONFIRM_AFTER = "confirm_after"
    """With a verification, and all weights back."""


class Row(NamedTuple):
    counts: Count
    then: Health | None = None
    """The state to enter when the count has reached `limit`; None stays."""
    limit: Limit = Limit.ONCE


FAILURES = (Seen.FAIL, Seen.REFUSED, Seen.RESET, Seen.TIMEOUT, Seen.UNREACHABLE, Seen.STARTING)
PASSES = (Seen.PASS, Seen.NO_LOGIN)
LIMITS = (Seen.LOADED, Seen.NO_WRITE)

_PASSED = {
    Health.ACTIVE: Row(Count.PASS),
    Health.SUSPECT: Row(Count.PASS, Health.ACTIVE, Limit.RECOVER_AFTER),
    Health.DOWN: Row(Count.PASS, Health.RECOVERING, Limit.RECOVER_AFTER),
    Health.RECOVERING: Row(Count.PASS, Health.ACTIVE, Limit.CONFIRM_AFTER),
}
_FAILED = {
    Health.ACTIVE: Row(Count.FAIL, Health.SUSPECT),
    Health.SUSPECT: Row(Count.FAIL, Health.DOWN, Limit.FAIL_AFTER),
    Health.DOWN: Row(Count.FAIL),
    Health.RECOVERING: Row(Count.FAIL, Health.DOWN),
}
_BUSY = dict.fromkeys(Health, Row(Count.ALIVE))
_HEAVY = {
    Health.ACTIVE: Row(Count.HEAVY, Health.SUSPECT),
    Health.SUSPECT: Row(Count.HEAVY),
    Health.DOWN: Row(Count.HEAVY),
    Health.RECOVERING: Row(Count.HEAVY),
}
_WRONG = {
    Health.ACTIVE: Row(Count.FAIL, Health.DOWN),
    Health.SUSPECT: Row(Count.FAIL, Health.DOWN),
    Health.DOWN: Row(Count.FAIL),
    Health.RECOVERING: Row(Count.FAIL, Health.DOWN),
}

TABLE: dict[tuple[Health, Seen], Row] = {
    **{(state, seen): row for seen in PASSES for state, row in _PASSED.items()},
    **{(state, seen): row for seen in FAILURES for state, row in _FAILED.items()},
    **{(state, Seen.BUSY): row for state, row in _BUSY.items()},
    **{(state, seen): row for seen in LIMITS for state, row in _HEAVY.items()},
    **{(state, Seen.WRONG_ROLE): row for state, row in _WRONG.items()},
}


def row(state: Health, seen: Seen) -> Row:
    """The row of a pair; raises ValueError when the table has none."""
    try:
        return TABLE[state, seen]
    except KeyError:
        raise ValueError(f"no row for a node that is {state} and was seen as {seen}") from None
