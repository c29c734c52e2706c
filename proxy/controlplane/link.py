"""A connection of the controller to a node: simple queries, one at a time.

Owns the reading of replies; how the node is reached and logged in to is `Dial`, given by
`run_controller`. Called by `probes` and `freshness`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from ..config.schema import Config
from ..errors import NodeFailure, NodeRefused
from ..topology.snapshot import NodeView
from ..wire import build, parse

MAX_REPLY = 1024 * 1024
"""Bytes; what the controller asks is answered in a few hundred."""

Rows = list[list[bytes | None]]


class Opened(Protocol):
    """A connection that is logged in; reading is paused."""

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def parameters(self) -> Mapping[str, str]: ...

    @property
    def leftover(self) -> bytes: ...


Dial = Callable[[NodeView, Config, float], Awaitable[Opened]]
"""(node, config, seconds) -> a connection as the probe's user; raises NodeFailure (from the OSError or
TimeoutError that it was) or NodeRefused."""


class NodeLink(asyncio.Protocol):
    """One connection, taken over from `Opened`. `on_lost` is called once, when it breaks (not when it is closed)."""

    def __init__(self, node: str, opened: Opened, on_lost: Callable[[], None] | None = None) -> None:
        self._node = node
        self.on_lost = on_lost
        self.parameters = opened.parameters
        self._transport = opened.transport
        self._buffer = bytearray()
        self._rows: Rows = []
        self._error: NodeRefused | None = None
        self._reply: asyncio.Future[Rows] | None = None
        self._lost: NodeFailure | None = None
        self._transport.set_protocol(self)
        self.data_received(opened.leftover)
        self._transport.resume_reading()

    @property
    def broken(self) -> bool:
        """Whether the node, or what lies between, has ended it."""
        return self._lost is not None

    async def query(self, sql: str) -> Rows:
        """All rows, as text. NodeRefused for the node's error, NodeFailure if the connection broke. One
        that is cancelled while it waits leaves the link unusable: close it."""
        if self._lost is not None:
            raise self._lost
        self._rows, self._error = [], None
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(build.query(sql))
        try:
            return await self._reply
        finally:
            self._reply = None

    def close(self) -> None:
        self.on_lost = None
        if not self._transport.is_closing():
            self._transport.write(build.TERMINATE)
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        pos = 0
        while len(buffer) - pos >= 5:
            length = int.from_bytes(buffer[pos + 1 : pos + 5], "big")
            if not 4 <= length <= MAX_REPLY:
                self._fail(NodeFailure(f'node "{self._node}" sent a message of {length} bytes'))
                return
            end = pos + 1 + length
            if len(buffer) < end:
                break
            try:
                self._message(buffer[pos], bytes(buffer[pos + 5 : end]))
            except Exception as error:
                self._fail(NodeFailure(f'node "{self._node}" sent a reply that can\'t be read: {error}'))
                return
            pos = end
        del buffer[:pos]

    def _message(self, kind: int, body: bytes) -> None:
        match kind:
            case 0x44:  # DataRow
                self._rows.append(parse.data_row(body))
            case 0x45:  # ErrorResponse
                self._error = NodeRefused(parse.error_fields(body))
            case 0x5A:  # ReadyForQuery
                if self._reply is not None and not self._reply.done():
                    if self._error is None:
                        self._reply.set_result(self._rows)
                    else:
                        self._reply.set_exception(self._error)

    def connection_lost(self, exc: Exception | None) -> None:
        # A FATAL that came before (the server shuts down) says more than the broken connection.
        failure = self._error or NodeFailure(f'the connection to node "{self._node}" broke')
        if failure is not self._error:
            failure.__cause__ = exc if isinstance(exc, OSError) else ConnectionResetError("closed by the node")
        self._settle(failure)

    def _fail(self, failure: NodeFailure) -> None:
        self._settle(failure)
        self._transport.abort()

    def _settle(self, failure: NodeFailure) -> None:
        if self._lost is None:
            self._lost = failure
            if self.on_lost is not None:
                self.on_lost()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(failure)
