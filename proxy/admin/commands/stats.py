"""SHOW STATS: work done by database, in all and on average over the last minute. Columns as PgBouncer's."""

from __future__ import annotations

from ..command import INT8, TEXT, Command, Context, Value

_NAMES = (
    ("xact_count", "transactions"),
    ("query_count", "queries"),
    ("received", "bytes_received"),
    ("sent", "bytes_sent"),
    ("xact_time", "xact_us"),
    ("query_time", "query_us"),
    ("wait_time", "wait_us"),
)
_AVERAGES = (
    ("xact_count", "transactions", ""),
    ("query_count", "queries", ""),
    ("recv", "bytes_received", ""),
    ("sent", "bytes_sent", ""),
    ("xact_time", "xact_us", "transactions"),
    ("query_time", "query_us", "queries"),
    ("wait_time", "wait_us", ""),
)
"""Name, counter, and what it is divided by: the counts and bytes by seconds, the times by their number."""

_COLUMNS = (
    ("database", TEXT),
    *((f"total_{name}", INT8) for name, _ in _NAMES),
    *((f"avg_{name}", INT8) for name, _, _ in _AVERAGES),
)


async def _rows(context: Context) -> list[list[Value]]:
    pools = await context.view.report("pools")
    context.stats.sample()
    seconds, past = context.stats.window()
    rows: list[list[Value]] = []
    for database, sums in sorted(context.stats.by_database(pools).items()):
        before = past.get(database, {})
        grown = {field: count - before.get(field, 0) for field, count in sums.items()}
        rows.append(
            [
                database,
                *(sums[field] for _, field in _NAMES),
                *(int(grown[field] / (max(1, grown[per]) if per else seconds)) for _, field, per in _AVERAGES),
            ]
        )
    return rows


COMMAND = Command("stats", "Work done, by database; times in microseconds.", _COLUMNS, _rows)
