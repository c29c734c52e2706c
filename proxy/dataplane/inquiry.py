"""A question of the proxy's own, asked as a client would: of one node, under the client's settings.

Owns the borrowing of a server and its settings until the answer has come. Called by `capability` and `measure`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import NoServer, TridentError
from ..session import rules
from .server import Owed, Server
from .waiter import Borrower

if TYPE_CHECKING:
    from .client import Client


class Refused(TridentError):
    """The node has answered with an error; the SQLSTATE is its own."""


async def inquire(client: Client, node: str, messages: bytes, *, extended: bool) -> bytes:
    """The answer to these messages, which end with a Sync or are one Query. Raises Refused, or another TridentError
    where the question could not be asked."""
    pool = client.worker.pools.pool(node, client)
    server = await Borrower().take(pool)
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    refused: list[TridentError] = []
    state = client.state
    owed = Owed(None, extended=extended)
    owed.collect = True

    def prepared(server: Server, rows: object, error: dict[str, str] | None) -> None:
        if error is not None:
            refused.append(NoServer(f"settings of a client could not be applied: {error.get('M', '')}"))
        else:
            server.state = state

    def answered(server: Server, rows: object, error: dict[str, str] | None) -> None:
        if error is not None:
            refused.append(Refused(error.get("M", ""), sqlstate=error.get("C", "XX000")))
        if server.state is not state:
            pool.close(server, "settings of a client could not be applied")
        else:
            pool.settled(server)
        if done.done():
            return  # nobody waits any more
        if refused:
            done.set_exception(refused[0])
        else:
            done.set_result(b"".join(owed.collected or ()))

    owed.then = answered
    sync = rules.sync_sql(server.state.values, state.values)
    if server.unseen_by is not None:
        sync = rules.clean_sql(state.values)
    server.unseen_by = None
    server.statements.unnamed = None
    if sync:
        server.ask(sync, prepared)
    else:
        server.state = state
    server.send(messages, owed)
    return await done
