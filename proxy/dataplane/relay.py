"""Two sockets tied together, byte for byte: replication connections and the console.

Nothing is scanned, such a connection is never pooled. The node's login answer is passed on as it is,
so the client gets its parameters and its cancel key from us only where it must (the key).
Called by `worker` for clients that ask for replication or for the console's database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast


class Half(asyncio.Protocol):
    """One side; `other` is where its bytes go."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Half | None = None
        self._gone = gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self._gone()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()


def tie(
    client: asyncio.Transport, server: asyncio.Transport, to_server: bytes, to_client: bytes, gone: Callable[[], None]
) -> None:
    """Tie two connected transports whose reading is paused; the byte strings go out first. `gone` is
    called once, when either side has ended."""
    ended = False

    def once() -> None:
        nonlocal ended
        if not ended:
            ended = True
            gone()

    near, far = Half(once), Half(once)
    near.transport, far.transport = client, server
    near.other, far.other = far, near
    client.set_protocol(near)
    server.set_protocol(far)
    if to_server:
        server.write(to_server)
    if to_client:
        client.write(to_client)
    client.resume_reading()
    server.resume_reading()
