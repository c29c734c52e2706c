"""SHOW SHAPES: reads that a standby has refused, and that go to the primary since."""

from __future__ import annotations

from ..command import TEXT, Command, Context, Value, timestamp

_COLUMNS = (("database", TEXT), ("shape", TEXT), ("sqlstate", TEXT), ("since", TEXT), ("text", TEXT))


async def _rows(context: Context) -> list[list[Value]]:
    return [
        [row["database"], row["shape"], row["sqlstate"], timestamp(row["since"]), row["text"]]
        for row in context.view.shapes()
    ]


COMMAND = Command("shapes", "Reads that a standby has refused.", _COLUMNS, _rows)
