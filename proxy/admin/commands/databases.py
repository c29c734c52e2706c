"""SHOW DATABASES: how each database is reached. Columns as PgBouncer's."""

from __future__ import annotations

from ...config.schema import Database
from ...metrics.totals import merge_pools
from ..command import INT4, INT8, TEXT, Command, Context, Value

_COLUMNS = (
    ("name", TEXT),
    ("host", TEXT),
    ("port", INT4),
    ("database", TEXT),
    ("force_user", TEXT),
    ("pool_size", INT4),
    ("min_pool_size", INT4),
    ("reserve_pool", INT4),
    ("pool_mode", TEXT),
    ("max_connections", INT4),
    ("current_connections", INT8),
    ("paused", INT4),
    ("disabled", INT4),
)


async def _rows(context: Context) -> list[list[Value]]:
    config = context.view.config
    connected: dict[str, int] = {}
    for pool in merge_pools(await context.view.report("pools")):
        servers = pool["servers_active"] + pool["servers_idle"] + pool["servers_draining"]
        connected[pool["database"]] = connected.get(pool["database"], 0) + servers
    rest = config.databases.get("*", Database())
    named = {**dict.fromkeys(connected, rest), **config.databases}
    snapshot = context.view.snapshot
    primary = snapshot.nodes.get(snapshot.primary) if snapshot else None
    return [
        [
            name,
            primary.host if primary else None,
            primary.port if primary else None,
            database.dbname or name,
            database.user or None,
            database.pool_size or config.pool.pool_size,
            config.pool.min_pool_size,
            config.pool.reserve,
            database.pool_mode or config.pool.mode,
            config.pool.max_total,
            connected.get(name, 0),
            0,
            0,
        ]
        for name, database in sorted(named.items())
    ]


COMMAND = Command("databases", "Databases and the limits of their pools.", _COLUMNS, _rows)
