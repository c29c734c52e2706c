"""SHOW HISTORY: what has happened to the fleet, and why."""

from __future__ import annotations

from ..command import TEXT, Command, Context, Value, timestamp

LAST = 1000
_TEXTS = ("kind", "node", "before", "after", "cause", "seen", "who")
_COLUMNS = (("at", TEXT), *((name, TEXT) for name in _TEXTS))


async def _rows(context: Context) -> list[list[Value]]:
    events = await context.view.history(0.0, "", "", LAST)
    return [[timestamp(event["at"]), *(event[name] for name in _TEXTS)] for event in events]


COMMAND = Command("history", f"The last {LAST:,} things that happened to the fleet, and why.", _COLUMNS, _rows)
