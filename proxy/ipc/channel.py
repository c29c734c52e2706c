"""Moves messages between the controller and its workers over Unix stream sockets.

Owns framing, bounds and reconnecting; must not interpret a message. What can't be queued within
`MAX_UNSENT` is refused: a worker that doesn't read is cut off and gets everything anew when it comes
back. A worker serves on while the controller is away; `Link` keeps trying to reach it. Called by
`controlplane.publish` (Server) and `run_worker` (Link).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from .messages import MAX_FRAME, Hello, Message, decode, encode

MAX_UNSENT = 16 * 1024 * 1024
"""Bytes that may wait to be sent on one channel."""
_FIRST_RETRY = 0.02
_LAST_RETRY = 0.5
"""Seconds between a worker's attempts to reach the controller."""

Handler = Callable[["Channel", Message], None]
LostHandler = Callable[["Channel"], None]


class Channel(asyncio.Protocol):
    """One connected socket. `fault` tells why it was closed on our side, if it was."""

    def __init__(self, on_message: Handler, on_lost: LostHandler) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self.fault = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        pos = 0
        while len(buffer) - pos >= 4:
            size = int.from_bytes(buffer[pos : pos + 4], "big")
            if size > MAX_FRAME:
                self._break(f"a frame of {size} bytes")
                return
            if len(buffer) - pos - 4 < size:
                break
            body = bytes(buffer[pos + 4 : pos + 4 + size])
            pos += 4 + size
            try:
                message = decode(body)
            except msgspec.DecodeError as error:
                self._break(f"a frame that can't be read: {error}")
                return
            self._on_message(self, message)
        del buffer[:pos]

    @property
    def connected(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: Message) -> bool:
        """False if the message was not taken: not connected, or the other side doesn't read."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            self._break("the other side doesn't read")
            return False
        self._transport.write(encode(message))
        return True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _break(self, fault: str) -> None:
        self.fault = fault
        self._buffer.clear()
        if self._transport is not None:
            self._transport.abort()


class Server:
    """The controller's side: one listening Unix socket."""

    def __init__(self, on_message: Handler, on_lost: LostHandler) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._server: asyncio.AbstractServer | None = None
        self._channels: set[Channel] = set()

    async def start(self, path: Path) -> None:
        """Listen at `path`, whose directory is private; an old socket there is replaced."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, str(path))

    def _accept(self) -> Channel:
        channel = Channel(self._on_message, self._forget)
        self._channels.add(channel)
        return channel

    def _forget(self, channel: Channel) -> None:
        self._channels.discard(channel)
        self._on_lost(channel)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for channel in list(self._channels):
            channel.close()


class Link:
    """A worker's side: one channel to the controller, made again whenever it is lost."""

    def __init__(self, path: Path, hello: Callable[[], Hello], on_message: Callable[[Message], None]) -> None:
        """`hello` is asked for the first message of each connection."""
        self._path = path
        self._hello = hello
        self._on_message = on_message
        self._channel: Channel | None = None
        self._lost = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._channel is not None and self._channel.connected

    def send(self, message: Message) -> bool:
        """False, and the message is gone, while the controller is away: counters are totals and wishes
        are repeated, and what the worker holds is told by its next Hello."""
        return self._channel is not None and self._channel.send(message)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        wait = _FIRST_RETRY
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._lost.clear()
                try:
                    _, channel = await loop.create_unix_connection(
                        lambda: Channel(self._received, self._gone), str(self._path)
                    )
                except OSError:
                    await asyncio.sleep(wait)
                    wait = min(wait * 2, _LAST_RETRY)
                    continue
                self._channel = channel
                channel.send(self._hello())
                connected_at = loop.time()
                await self._lost.wait()
                # One that hangs up at once is not asked again at full speed.
                if loop.time() - connected_at > _LAST_RETRY:
                    wait = _FIRST_RETRY
                await asyncio.sleep(wait)
                wait = min(wait * 2, _LAST_RETRY)
        finally:
            if self._channel is not None:
                self._channel.close()

    def _received(self, channel: Channel, message: Message) -> None:
        self._on_message(message)

    def _gone(self, channel: Channel) -> None:
        self._channel = None
        self._lost.set()
