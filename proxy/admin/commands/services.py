"""SHOW SERVICES: the services of the configuration, and on which nodes their clients are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...config.schema import Service
from ..command import INT8, TEXT, Command, Context, Value, timestamp
from ..view import Row

_COLUMNS = (
    ("name", TEXT),
    ("selector", TEXT),
    ("nodes", TEXT),
    ("preferred", TEXT),
    ("node", TEXT),
    ("sessions", TEXT),
    ("since", TEXT),
    ("switches", INT8),
)


async def _rows(context: Context) -> list[list[Value]]:
    config = context.view.config
    reported = await context.view.report("services")
    switches: Counter[str] = Counter()
    for name, count in context.stats.scrape().values.items():
        if name.startswith("switch:"):
            switches[name.split(":", 3)[3]] += count
    return [_row(name, service, reported, switches[name]) for name, service in config.services.items()]


def _row(name: str, service: Service, reported: Sequence[Row], switches: int) -> list[Value]:
    rows = [row for row in reported if row["service"] == name]
    sessions: Counter[str] = Counter()
    for row in rows:
        sessions.update(row["sessions"])
    since = max((row["since"] for row in rows if row.get("since")), default=None)
    return [
        name,
        service.selector,
        ", ".join(service.nodes),
        _said(rows, "preferred"),
        _said(rows, "node"),
        ", ".join(f"{node}={sessions[node]}" for node in sorted(sessions)),
        timestamp(since),
        switches,
    ]


def _said(rows: list[Row], key: str) -> str | None:
    """What most workers say; None where each client has a node of its own."""
    said = Counter(row[key] for row in rows if row.get(key))
    return said.most_common(1)[0][0] if said else None


COMMAND = Command("services", "Services and the nodes that their clients are on.", _COLUMNS, _rows)
