"""A session's `pgtrident.*` settings: what it asks of the proxy.

PostgreSQL takes any name with a dot, so they are set, shown and reset as any other; but they are the proxy's, and
no server is ever brought in line for them. What a server has of them is whatever was set there last; before a
statement that may read them it is told those of its client.

Pure. Called by `dataplane.client` and `dataplane.audit`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .rules import set_sql

PREFIX = "pgtrident."
CONSISTENCY = PREFIX + "consistency"
KEY = PREFIX + "consistency_key"
TOKEN = PREFIX + "token"
SERVICE = PREFIX + "service"
"""Counts at login only (`routing.affinity`)."""
NONE: dict[str, str] = {}


def divide(values: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """(settings of the servers, wishes). An empty wish is none."""
    if not any(name.startswith(PREFIX) for name in values):
        return values, NONE
    wishes = {name: value for name, value in values.items() if name.startswith(PREFIX) and value}
    return {name: value for name, value in values.items() if not name.startswith(PREFIX)}, wishes


def later(wishes: Mapping[str, str], startup: Mapping[str, str]) -> Mapping[str, str]:
    """Without the service that was named at login, which isn't asked for again by each statement."""
    service = startup.get(SERVICE)
    if service is None or wishes.get(SERVICE) != service:
        return wishes
    return {name: value for name, value in wishes.items() if name != SERVICE}


def shown_sql(wishes: Mapping[str, str], level: str, token: str) -> str:
    """What a server is told before a statement that may read them."""
    return set_sql({KEY: "", **wishes, CONSISTENCY: level, TOKEN: token})
