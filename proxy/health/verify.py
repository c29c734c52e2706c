"""Whether a copy that comes back holds what it should: the last thing between `recovering` and `active`.

Owns the reasons against it. Pure. That it is of the same system as the primary is `judge`'s word. Called by
`controlplane.controller`.
"""

from __future__ import annotations

from ..topology.model import Role

HIDDEN = "hidden"
"""The state of a WAL receiver that the probe's user may not see (manual, chapter 28.2.5: pg_stat_wal_receiver)."""


def objection(role: Role, *, receiver: str | None, timeline: int, primary_timeline: int, within_lag: bool) -> str:
    """Why a copy isn't fit yet, or "".

    `receiver`: the state of a replica's WAL receiver, None if it has none. `timeline`: 0 is not known; where the
    receiver is hidden it comes from the control file, and may be older than what is replayed. `within_lag`: its lag is
    known and within its limit.
    """
    if role is Role.REPLICA:
        if receiver is None:
            return "it doesn't stream from a primary"
        differs = timeline and primary_timeline and timeline != primary_timeline
        if differs and (receiver != HIDDEN or timeline > primary_timeline):
            return f"it is on timeline {timeline}, the primary on {primary_timeline}"
    return "" if within_lag else "its lag is beyond the limit, or isn't known yet"
