"""SHOW SHAPES MEASURED: how long reads take on replicas and columnar nodes, and what class that makes them."""

from __future__ import annotations

from ..command import FLOAT8, INT8, TEXT, Command, Context, Value

_COLUMNS = (
    ("database", TEXT),
    ("shape", TEXT),
    ("class", TEXT),
    ("replica_runs", INT8),
    ("replica_ms", FLOAT8),
    ("columnar_runs", INT8),
    ("columnar_ms", FLOAT8),
    ("cost", FLOAT8),
    ("text", TEXT),
)


async def _rows(context: Context) -> list[list[Value]]:
    return [
        [
            row["database"],
            row["shape"],
            row["class"],
            row["replica_runs"],
            _ms(row["replica_seconds"]),
            row["columnar_runs"],
            _ms(row["columnar_seconds"]),
            row["cost"],
            row["text"],
        ]
        for row in context.view.shapes_measured()
    ]


def _ms(seconds: float) -> float | None:
    return round(seconds * 1000, 3) if seconds else None


COMMAND = Command("shapes_measured", "Reads that take long, or ran on columnar nodes.", _COLUMNS, _rows)
