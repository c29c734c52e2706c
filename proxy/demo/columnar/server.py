"""The node as a server: sockets, logins, cancels, a thread a client, the statement log.

Owns listening and the life of sessions. Called by `__main__` and by tests that run a node in their own process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ...errors import LoginError, NoServer, ProtocolViolation, Terminated, TridentError
from ...wire import auth, build, codes, startup
from ...wire.login import ClientLogin, Proved, Send, WrongPassword
from ...wire.startup import CancelRequest, GssRequest, SslRequest, Startup
from .engine import Engine
from .session import Session
from .settings import Settings

LOGIN_SECONDS = 30.0
MAX_CLIENTS = 200
_MAX_PIECE = 64 * 1024

log = logging.getLogger("columnar")


class NotReady(TridentError):
    """The first copy is not there yet."""

    sqlstate = "57P03"
    severity = "FATAL"
    retryable = True


class SocketStream:
    """Messages over a socket: whole ones in, joined writes out."""

    def __init__(self, link: socket.socket, received: bytes = b"") -> None:
        self._link = link
        self._in = bytearray(received)
        self._out: list[bytes] = []
        self._size = 0

    def message(self) -> tuple[int, bytes]:
        head = self._take(5)
        length = int.from_bytes(head[1:], "big")
        if not 4 <= length <= codes.MAX_MESSAGE:
            raise ProtocolViolation("invalid message length")
        return head[0], self._take(length - 4)

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._size += len(data)
        if self._size >= _MAX_PIECE:
            self.flush()

    def flush(self) -> None:
        if self._out:
            self._link.sendall(b"".join(self._out))
            self._out, self._size = [], 0

    def _take(self, count: int) -> bytes:
        while len(self._in) < count:
            data = self._link.recv(_MAX_PIECE)
            if not data:
                raise EOFError
            self._in += data
        piece = bytes(self._in[:count])
        del self._in[:count]
        return piece


@dataclass(slots=True)
class _Client:
    key: bytes
    link: socket.socket
    session: Session | None = None


@dataclass(slots=True)
class Server:
    """`users` are passwords by name, plain or as SCRAM secrets; without any, everybody is trusted."""

    engine: Engine
    server_version: str = "15.0"
    users: Mapping[str, str] = field(default_factory=dict)
    statement_log: Path | None = None
    is_ready: Callable[[], bool] = lambda: True
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one; `start` sets it."""
    _listener: socket.socket | None = None
    _clients: dict[int, _Client] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _log_lock: threading.Lock = field(default_factory=threading.Lock)
    _log_file: TextIO | None = None
    _nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _next_pid: int = 1

    def start(self) -> None:
        """Listen, and serve in threads."""
        self._listener = socket.create_server((self.host, self.port), backlog=128)
        self.port = self._listener.getsockname()[1]
        if self.statement_log:
            self._log_file = self.statement_log.open("a", encoding="utf-8")
        threading.Thread(target=self._accept, args=(self._listener,), name="accept", daemon=True).start()

    def stop(self) -> None:
        """Close the port and end all clients."""
        if self._listener:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        goodbye = build.error_response(Terminated("terminating connection due to administrator command"))
        with self._lock:
            clients = list(self._clients.values())
        for client in clients:
            with contextlib.suppress(OSError):
                client.link.sendall(goodbye)
                client.link.shutdown(socket.SHUT_RDWR)
        if self._log_file:
            with self._log_lock:
                self._log_file.close()
                self._log_file = None

    # -- a connection

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connection, args=(link,), name="client", daemon=True).start()

    def _connection(self, link: socket.socket) -> None:
        with link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(LOGIN_SECONDS)
            try:
                self._serve(link)
            except (EOFError, OSError):
                pass
            except TridentError as error:
                with contextlib.suppress(OSError):
                    link.sendall(build.error_response(error, severity="FATAL"))
            except Exception:
                log.exception("a session failed")
                with contextlib.suppress(OSError):
                    link.sendall(build.error_response(TridentError("internal error of the columnar node"), "FATAL"))

    def _serve(self, link: socket.socket) -> None:
        first = _first_packet(link)
        if first is None:
            return
        login = ClientLogin()
        for event in login.feed(first):
            if isinstance(event, CancelRequest):
                self._cancel(event)
            elif isinstance(event, Startup):
                self._welcome(link, login, event)

    def _welcome(self, link: socket.socket, login: ClientLogin, wanted: Startup) -> None:
        if wanted.replication:
            raise LoginError("a columnar node has no replication connections", sqlstate="0A000")
        self._authenticate(link, login, wanted)
        if not self.is_ready():
            raise NotReady("the columnar node is still making its first copy")
        client = _Client(secrets.token_bytes(4), link)
        with self._lock:
            if len(self._clients) >= MAX_CLIENTS:
                raise NoServer("sorry, too many clients already")
            pid, self._next_pid = self._next_pid, self._next_pid + 1
            self._clients[pid] = client
        try:
            variables: dict[str, str | int] = {"server_port": self.port, "server_addr": self.host, "pid": pid}
            engine = self.engine.session({**variables, "database": wanted.database, "user": wanted.user})
            try:
                fixed = {
                    **{"server_version": self.server_version, "server_version_num": _version_num(self.server_version)},
                    "session_authorization": wanted.user,
                }
                stream = SocketStream(link, login.take_leftover())
                client.session = Session(
                    stream, engine, Settings(fixed, wanted.settings), log=self._logger(wanted, pid)
                )
                stream.write(login.final() + build.AUTHENTICATION_OK + build.backend_key(pid, client.key))
                link.settimeout(None)
                client.session.run()
            finally:
                engine.close()
        finally:
            with self._lock:
                del self._clients[pid]

    def _authenticate(self, link: socket.socket, login: ClientLogin, wanted: Startup) -> None:
        if not self.users:
            link.sendall(login.ask_nothing())
            return
        secret = auth.mock_secret(wanted.user, self._nonce)
        if wanted.user in self.users:
            stored = self.users[wanted.user]
            keys = auth.parse_secret(stored)
            secret = keys or auth.secret_of(auth.derive_keys(stored, auth.user_salt(wanted.user, self._nonce), 4096))
        link.sendall(login.ask_scram(secret, secrets.token_urlsafe(18), None))
        while True:
            data = link.recv(_MAX_PIECE)
            if not data:
                raise EOFError
            for event in login.feed(data):
                if isinstance(event, Send):
                    link.sendall(event.data)
                elif isinstance(event, Proved):
                    return
                elif isinstance(event, WrongPassword):
                    raise LoginError(f'password authentication failed for user "{wanted.user}"', sqlstate="28P01")

    def _cancel(self, request: CancelRequest) -> None:
        with self._lock:
            client = self._clients.get(request.pid)
        if client and client.session and secrets.compare_digest(client.key, request.key):
            client.session.cancel()

    def _logger(self, wanted: Startup, pid: int) -> Callable[[str, Settings], None]:
        def write(sql: str, settings: Settings) -> None:
            line = {"time": time.time(), "user": wanted.user, "database": wanted.database, "pid": pid}
            line |= {"application_name": settings.show("application_name"), "sql": sql}
            with self._log_lock:
                if self._log_file:
                    self._log_file.write(json.dumps(line) + "\n")
                    self._log_file.flush()

        return write


def _first_packet(link: socket.socket) -> bytes | None:
    """The first packet that asks for no encryption, which is declined; None if the client left."""
    while True:
        head = _exactly(link, 4)
        if not head:
            return None
        packet = head + _exactly(link, startup.packet_length(head) - 4)
        if not isinstance(startup.parse_first(packet), SslRequest | GssRequest):
            return packet
        link.sendall(b"N")


def _exactly(link: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = link.recv(count - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)


def _version_num(version: str) -> str:
    major, _, minor = version.partition(".")
    return f"{int(major) * 10_000 + int(minor or 0)}"
