"""SHOW NODES: the nodes, their roles and healths, and the servers connected to them."""

from __future__ import annotations

from collections.abc import Iterable

from ...metrics.totals import PoolKey
from ..command import INT4, INT8, TEXT, Command, Context, Value, timestamp, yes_no
from ..stats import serving

_COLUMNS = (
    ("name", TEXT),
    ("role", TEXT),
    ("health", TEXT),
    ("serving", TEXT),
    ("drain", TEXT),
    ("host", TEXT),
    ("port", INT4),
    ("address", TEXT),
    ("lag_bytes", INT8),
    ("lag_ms", INT8),
    ("weight", INT8),
    ("since", TEXT),
    ("cause", TEXT),
    ("server_version", TEXT),
    ("servers", INT8),
    ("queries", INT8),
)


async def _rows(context: Context) -> list[list[Value]]:
    context.stats.sample()
    pools = context.stats.pools()
    in_service = serving(context.view)
    return [
        [
            node["name"],
            str(node["role"]),
            str(node["health"]),
            yes_no(node["name"] in in_service),
            node.get("drain"),
            node["host"],
            node["port"],
            node.get("address"),
            node.get("lag_bytes"),
            None if node.get("lag_seconds") is None else int(node["lag_seconds"] * 1000),
            node.get("weight"),
            timestamp(node.get("since")),
            node.get("cause"),
            node.get("server_version"),
            _sum(pools.items(), node["name"], ("servers_active", "servers_idle", "servers_draining")),
            _sum(pools.items(), node["name"], ("queries",)),
        ]
        for node in context.view.nodes()
    ]


def _sum(pools: Iterable[tuple[PoolKey, dict[str, int]]], node: str, fields: tuple[str, ...]) -> int:
    return sum(counts.get(field, 0) for key, counts in pools if key[0] == node for field in fields)


COMMAND = Command("nodes", "Nodes with role, health and lag.", _COLUMNS, _rows)
