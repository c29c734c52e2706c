"""SHOW SHAPES SEEN: the statements that clients send, by their shape, the most frequent first."""

from __future__ import annotations

from ..command import INT8, TEXT, Command, Context, Value, timestamp

_COLUMNS = (
    ("database", TEXT),
    ("shape", TEXT),
    ("count", INT8),
    ("class", TEXT),
    ("tables", TEXT),
    ("consistency", TEXT),
    ("user", TEXT),
    ("since", TEXT),
    ("text", TEXT),
)


async def _rows(context: Context) -> list[list[Value]]:
    return [
        [
            row["database"],
            row["shape"],
            row["count"],
            row["cls"],
            ", ".join(row["tables"]),
            row["consistency"],
            row["user"],
            timestamp(row["since"]),
            row["text"],
        ]
        for row in await context.view.shapes_seen()
    ]


COMMAND = Command("shapes_seen", "Statements that clients send, by shape, and how often.", _COLUMNS, _rows)
