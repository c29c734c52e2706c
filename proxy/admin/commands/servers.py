"""SHOW SERVERS: every server connection of every worker. Columns as PgBouncer's, and worker and node."""

from __future__ import annotations

from ..command import INT4, TEXT, Command, Context, Value, timestamp

_COLUMNS = (
    ("type", TEXT),
    ("user", TEXT),
    ("database", TEXT),
    ("state", TEXT),
    ("addr", TEXT),
    ("port", INT4),
    ("local_addr", TEXT),
    ("local_port", INT4),
    ("connect_time", TEXT),
    ("request_time", TEXT),
    ("close_needed", INT4),
    ("ptr", TEXT),
    ("link", TEXT),
    ("remote_pid", INT4),
    ("tls", TEXT),
    ("application_name", TEXT),
    ("node", TEXT),
    ("worker", INT4),
)


async def _rows(context: Context) -> list[list[Value]]:
    return [
        [
            "S",
            server["user"],
            server["database"],
            server["state"],
            server.get("addr"),
            server.get("port"),
            server.get("local_addr"),
            server.get("local_port"),
            timestamp(server.get("connect_time")),
            timestamp(server.get("request_time")),
            int(server.get("close_needed") or 0),
            server["id"],
            server.get("link"),
            server.get("remote_pid"),
            server.get("tls"),
            server.get("application_name"),
            server["node"],
            server["worker"],
        ]
        for server in await context.view.report("servers")
    ]


COMMAND = Command("servers", "Connections to nodes.", _COLUMNS, _rows)
