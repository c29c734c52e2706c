"""asyncpg: binary everywhere, its own numbered statements, cursors, COPY, timeouts and cancel."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable
from typing import Any

import asyncpg

from .transcript import TYPES, address, say, sqlstate


async def attempt(label: str, step: Awaitable[Any]) -> None:
    try:
        say(label, await step)
    except (asyncpg.PostgresError, TimeoutError) as error:
        say(label, f"{type(error).__name__} {sqlstate(error)}")


async def whole(connection: Any) -> None:
    say("version", connection.get_server_version()[:1])
    say("types", dict(await connection.fetchrow(TYPES.replace(", ROW(1, 'x') AS z", ""))))
    for value, kind in (
        (1, "int"),
        (2**40, "bigint"),
        (1.5, "float8"),
        ("t", "text"),
        (b"\xff", "bytea"),
        (None, "int"),
    ):
        say("parameter", await connection.fetchval(f"SELECT $1::{kind}", value))
    say("arrays", await connection.fetchval("SELECT $1::int[] || 4", [1, 2, 3]))
    for statement in ("SELEC", "SELECT 1/0", "SELECT * FROM nowhere", "INSERT INTO item VALUES (1)"):
        await attempt(statement, connection.fetch(statement))
    statement = await connection.prepare("SELECT label FROM item WHERE id = $1")
    say("prepared", [await statement.fetchval(number) for number in range(1, 6)])
    say("parameters", [p.name for p in statement.get_parameters()])
    say("attributes", [(a.name, a.type.name) for a in statement.get_attributes()])
    for number in range(30):
        await connection.fetchval(f"SELECT {number} + $1::int", number)
    await connection.executemany("INSERT INTO trail(item_id) VALUES ($1)", [(n,) for n in range(50)])
    say("executemany", await connection.fetchval("SELECT sum(item_id) FROM trail"))
    async with connection.transaction():
        cursor = await connection.cursor("SELECT id FROM item ORDER BY id")
        say("cursor", [r[0] for r in await cursor.fetch(3)])
        await cursor.forward(2)
        say("cursor", [r[0] for r in await cursor.fetch(2)])
        say("iterated", [r[0] async for r in connection.cursor("SELECT id FROM item ORDER BY id", prefetch=4)])
        try:
            async with connection.transaction():
                await connection.execute("INSERT INTO trail(item_id) VALUES (-1)")
                await connection.execute("SELECT 1/0")
        except asyncpg.PostgresError as error:
            say("savepoint", error.sqlstate)
        say("after it", await connection.fetchval("SELECT count(*) FROM trail WHERE item_id = -1"))
    for isolation in ("serializable", "repeatable_read"):
        async with connection.transaction(isolation=isolation, readonly=True):
            say("isolation", await connection.fetchval("SHOW transaction_isolation"))
            await attempt("read only", connection.execute("SELECT 1 FROM item"))
    say("copy in", await connection.copy_records_to_table("trail", records=[(1000 + n, n) for n in range(100)]))
    out = io.BytesIO()
    say("copy out", await connection.copy_from_query("SELECT id FROM item WHERE id < $1", 4, output=out))
    say("copied", out.getvalue())
    await attempt("timeout", connection.fetch("SELECT pg_sleep(20)", timeout=0.3))
    say("usable", await connection.fetchval("SELECT 1"))
    task = asyncio.ensure_future(connection.fetch("SELECT pg_sleep(20)"))
    await asyncio.sleep(0.3)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        say("cancelled")
    say("usable", await connection.fetchval("SELECT 2"))
    heard: asyncio.Queue[str] = asyncio.Queue()
    await connection.add_listener("asyncpg", lambda _connection, _pid, _channel, payload: heard.put_nowait(payload))
    await connection.execute("SELECT pg_notify('asyncpg', 'payload')")
    say("notified", await asyncio.wait_for(heard.get(), 10))
    await connection.reset()
    await connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    say("enum", await connection.fetchval("SELECT 'ok'::mood"))
    await connection.execute("CREATE TABLE shape(a int)")
    await connection.execute("INSERT INTO shape VALUES (1)")
    say("shape", [tuple(r) for r in await connection.fetch("SELECT * FROM shape")])
    await connection.execute("ALTER TABLE shape ADD b text DEFAULT 'new'")
    say("shape", [tuple(r) for r in await connection.fetch("SELECT * FROM shape")])
    say("settings", connection.get_settings().TimeZone)
    await connection.execute("SET TIME ZONE 'Asia/Tokyo'")
    say("settings", connection.get_settings().TimeZone)


async def main() -> None:
    at = address()
    options = {"host": at.host, "port": at.port, "user": at.user, "database": at.database, "ssl": False}
    connection = await asyncpg.connect(**options)
    await whole(connection)
    await connection.close()
    async with asyncpg.create_pool(
        **options, min_size=2, max_size=3, server_settings={"search_path": "tenant_b"}
    ) as pool:
        say("pool", await asyncio.gather(*(pool.fetchval("SELECT x + $1::int FROM w", n) for n in range(20))))
    plain = await asyncpg.connect(**options, statement_cache_size=0)
    say("without cache", [await plain.fetchval("SELECT $1::int", n) for n in range(5)])
    await plain.close()


asyncio.run(main())
