"""A bare relay on uvloop: what is read from one side is written to the other, one server connection a client.

The floor for a proxy on this loop: it looks at nothing and pools nothing. Run by `systems` as
`python -m benchmarks.relay PORT SERVER_PORT`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Side(asyncio.Protocol):
    """One connection; `other` is where its bytes go, once that is connected."""

    def __init__(self, other: Side | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.other is not None:
            self.other.joined(self)

    def joined(self, other: Side) -> None:
        """The other side is connected."""
        self.other = other
        assert other.transport is not None
        other.transport.writelines(self._early)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        other = self.other
        if other is not None and other.transport is not None:
            other.transport.write(data)
        else:
            self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def main(port: int, server_port: int) -> None:
    """Serve on 127.0.0.1 until stopped."""
    loop = asyncio.get_running_loop()
    dials = set()

    class Client(Side):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            dial = loop.create_task(loop.create_connection(lambda: Side(self), "127.0.0.1", server_port))
            dials.add(dial)
            dial.add_done_callback(dials.discard)

    server = await loop.create_server(Client, "127.0.0.1", port, backlog=1000)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
