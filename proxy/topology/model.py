"""What a fleet is made of: roles and healths. Frozen facts, no behaviour."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What a node is for. `unknown` until it has been asked."""

    PRIMARY = "primary"
    REPLICA = "replica"
    COLUMNAR = "columnar"
    UNKNOWN = "unknown"


class Health(StrEnum):
    """The health of a node; moved only by `health.machine`."""

    ACTIVE = "active"
    SUSPECT = "suspect"
    DOWN = "down"
    RECOVERING = "recovering"


DEFAULT_GROUP = "main"
"""The only group today; a sharded database will have several."""

TRIAL = 1
"""Percent of its reads that a copy which comes back gets while it has to show that it can serve at all."""
