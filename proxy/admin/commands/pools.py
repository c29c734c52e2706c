"""SHOW POOLS: clients and servers of every pool, summed over the workers. Columns as PgBouncer's, and the node."""

from __future__ import annotations

from ...metrics.totals import merge_pools
from ..command import INT4, INT8, TEXT, Command, Context, Value

_COLUMNS = (
    ("database", TEXT),
    ("user", TEXT),
    ("cl_active", INT8),
    ("cl_waiting", INT8),
    ("sv_active", INT8),
    ("sv_idle", INT8),
    ("sv_used", INT8),
    ("sv_tested", INT8),
    ("sv_login", INT8),
    ("sv_being_canceled", INT8),
    ("maxwait", INT4),
    ("maxwait_us", INT4),
    ("pool_mode", TEXT),
    ("node", TEXT),
)


async def _rows(context: Context) -> list[list[Value]]:
    rows: list[list[Value]] = []
    for pool in merge_pools(await context.view.report("pools")):
        seconds, micros = divmod(pool["max_wait_us"], 1_000_000)
        rows.append(
            [
                pool["database"],
                pool["user"],
                pool["clients_active"],
                pool["clients_waiting"],
                pool["servers_active"],
                pool["servers_idle"],
                0,  # sv_used: an idle server is not set aside for a check here
                pool["servers_draining"],
                pool["servers_login"],
                pool["servers_cancelling"],
                seconds,
                micros,
                pool["mode"],
                pool["node"],
            ]
        )
    return rows


COMMAND = Command("pools", "Clients and servers of every pool.", _COLUMNS, _rows)
