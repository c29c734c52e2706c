"""The console: a PostgreSQL server on a Unix socket of the controller.

Owns sockets and logins of the console; what is said after a login is for `session`. It asks for no password:
its socket lies in the private runtime directory, and a worker relays a client to it only after that client has
logged in at the worker. It takes asyncio's streams, not a Protocol, because a dialogue of a few messages
a minute is worth less than plain code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio import StreamReader, StreamWriter

from ..errors import LoginError, NoServer, ProtocolViolation, Terminated, TridentError
from ..log import get_logger
from ..wire import build, codes, frontend, startup
from .answers import Who
from .command import Context
from .commands import load
from .session import Session

MAX_CLIENTS = 100
MAX_MESSAGE = 64 * 1024
"""Bytes of one message to the console."""
LOGIN_TIMEOUT = 10.0
"""Seconds."""

_log = get_logger("console")


class Console:
    """Serves `SHOW ...` from what `context` sees."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._commands = load()
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, path: str) -> None:
        """Listen on a Unix socket that only this user can open; one left behind there is replaced."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._server = await asyncio.start_unix_server(self._connected, path, limit=MAX_MESSAGE)
        os.chmod(path, 0o600)

    async def stop(self) -> None:
        """Close the socket and all clients."""
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        client = asyncio.current_task()
        assert client is not None
        self._clients.add(client)
        try:
            await self._serve(reader, writer)
        except TridentError as error:
            writer.write(build.error_response(error, "FATAL"))
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the client has gone, or never said anything
        except asyncio.CancelledError:  # by `stop`
            writer.write(build.error_response(Terminated("terminating connection due to administrator command")))
        finally:
            self._clients.discard(client)
            writer.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        async with asyncio.timeout(LOGIN_TIMEOUT):
            who = await _startup(reader, writer)
        if who is None:
            return
        if len(self._clients) > MAX_CLIENTS:
            raise NoServer(f"the console already has {MAX_CLIENTS} clients")
        allowed = self._context.view.config.admin.users
        if allowed and who.user not in allowed:
            raise LoginError(f'user "{who.user}" may not use the console', hint="See admin.users in the configuration.")
        _log.info("console_connected", user=who.user)
        session = Session(who, self._context, self._commands)
        writer.write(build.AUTHENTICATION_OK + session.greeting())
        while True:
            await writer.drain()
            raw = await _message(reader)
            if raw[0] == frontend.TERMINATE:
                return
            writer.write(await session.handle(raw))


async def _startup(reader: StreamReader, writer: StreamWriter) -> Who | None:
    """Read first packets until one says who it is; None for a CancelRequest (nothing here can be cancelled)."""
    while True:
        head = await reader.readexactly(4)
        first = startup.parse_first(head + await reader.readexactly(startup.packet_length(head) - 4))
        if isinstance(first, startup.CancelRequest):
            return None
        if isinstance(first, startup.Startup):
            if first.negotiate:
                writer.write(build.negotiate_version(codes.PROTOCOL_3_2, first.unknown))
            return Who(first.user, first.database, first.settings)
        writer.write(b"N")  # no TLS or GSSAPI on a private socket


async def _message(reader: StreamReader) -> bytes:
    header = await reader.readexactly(5)
    length = int.from_bytes(header[1:], "big")
    frontend.check_header(header[0], length)
    if length > MAX_MESSAGE:
        raise ProtocolViolation(f"messages to the console may have at most {MAX_MESSAGE} bytes")
    return header + await reader.readexactly(length - 4)
