"""Who waits in a pool for a server.

Owns nothing of the queue: `pools` hands out servers and says when there is none. Compiled, because compiled
code takes no look-alike for a class.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mypy_extensions import trait

from ..errors import NoServer, TridentError

if TYPE_CHECKING:
    from .pools import ServerPool
    from .server import Server


@trait
class Waiter:
    """What a pool calls; each wait ends by one of the first three."""

    def server_granted(self, server: Server) -> None:
        """The wait is over: the server is taken for this one."""
        raise NotImplementedError

    def refused(self, error: TridentError) -> None:
        """The wait is over without a server."""
        raise NotImplementedError

    def leave_for_another(self) -> None:
        """The wait is over: another node is to be tried."""
        raise NotImplementedError

    def has_alternative(self, node: str) -> bool:
        """Whether another node than this would do."""
        raise NotImplementedError


class Borrower(Waiter):
    """Takes a server of a pool to ask it something of the proxy's own."""

    def __init__(self) -> None:
        self._granted: asyncio.Future[Server] = asyncio.get_running_loop().create_future()

    async def take(self, pool: ServerPool) -> Server:
        """A server, now or later. Raises TridentError where the pool has none to give."""
        server = pool.take(None)
        if server is not None:
            return server
        if not pool.join(self):
            raise pool.full_error()
        try:
            return await self._granted
        except asyncio.CancelledError:
            if not self._granted.cancelled() and self._granted.exception() is None:
                pool.give(self._granted.result())  # it was granted before this could go on
            raise
        finally:
            pool.leave(self)

    def server_granted(self, server: Server) -> None:
        if self._granted.done():
            server.pool.give(server)
        else:
            self._granted.set_result(server)

    def refused(self, error: TridentError) -> None:
        if not self._granted.done():
            self._granted.set_exception(error)

    def leave_for_another(self) -> None:
        self.refused(NoServer("its node is no longer in service"))  # it asks this one, or none

    def has_alternative(self, node: str) -> bool:
        return False
