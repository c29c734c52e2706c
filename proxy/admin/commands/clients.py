"""SHOW CLIENTS: every client of every worker. Columns as PgBouncer's, and worker, client id, node and pin."""

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
    ("wait", INT4),
    ("wait_us", INT4),
    ("ptr", TEXT),
    ("link", TEXT),
    ("tls", TEXT),
    ("application_name", TEXT),
    ("node", TEXT),
    ("pin", TEXT),
    ("worker", INT4),
)


async def _rows(context: Context) -> list[list[Value]]:
    rows: list[list[Value]] = []
    for client in await context.view.report("clients"):
        seconds, micros = divmod(client.get("wait_us") or 0, 1_000_000)
        rows.append(
            [
                "C",
                client["user"],
                client["database"],
                client["state"],
                client.get("addr"),
                client.get("port"),
                client.get("local_addr"),
                client.get("local_port"),
                timestamp(client.get("connect_time")),
                timestamp(client.get("request_time")),
                seconds,
                micros,
                client["id"],
                client.get("link"),
                client.get("tls"),
                client.get("application_name"),
                client.get("node"),
                client.get("pin"),
                client["worker"],
            ]
        )
    return rows


COMMAND = Command("clients", "Clients connected.", _COLUMNS, _rows)
