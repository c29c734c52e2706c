"""Dialling a node: socket, TLS, login, under one deadline; and the cancel request.

Owns a connection until it is logged in, then hands over its transport with reading paused. It must not
pool, retry later or judge health. Called by `pools`, `cancel`, `lookup` and, injected, by the
controller's probes. Sources: PostgreSQL manual 34.19 (TLS modes), 55.2.8 to 55.2.11.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

from ..config import passfile
from ..config.schema import Config, ServerLink, ServerTlsMode
from ..errors import NodeFailure, NodeRefused, ProtocolViolation
from ..topology.snapshot import Address, NodeView
from ..wire import build, codes
from ..wire.auth import Credentials
from ..wire.login import DeriveKeys, NodeLogin, NodeReady, Send
from . import keys

MAX_UNREAD = 128 * 1024
"""Bytes received and not read yet at which a login's reading pauses."""
ALPN = "postgresql"


@dataclass(frozen=True, slots=True)
class Dialled:
    """A server that is ready for queries. Reading is paused; the new owner calls `set_protocol`, feeds
    itself `leftover` and resumes. `address` is the one to send a cancel to."""

    transport: asyncio.Transport
    parameters: dict[str, str]
    pid: int
    key: bytes
    leftover: bytes
    address: Address


class LoginStream(asyncio.Protocol):
    """Bytes of a connection that is logging in, read in plain sequence. Of clients and of nodes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._buffer = bytearray()
        self._paused = False
        self._lost: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MAX_UNREAD:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc or ConnectionResetError("connection closed by the peer")
        self._wake()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    async def read(self) -> bytes:
        """What has come, at least one byte. Raises OSError at the end of the connection."""
        while not self._buffer:
            if self._lost is not None:
                raise self._lost
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        return self._take()

    def detach(self) -> bytes:
        """Pause reading and return what came last; the transport then goes to its next owner.

        Raises OSError if the connection is gone already.
        """
        if self._lost is not None:
            raise self._lost
        if self.transport.is_closing():
            raise ConnectionResetError("connection closed by the peer")
        self.transport.pause_reading()
        return self._take()

    def _take(self) -> bytes:
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def tls_mode(config: Config, node: str) -> ServerTlsMode:
    """The TLS mode towards a node: its own, or that of `[server]`."""
    settings = config.nodes.get(node)
    return settings.tls if settings is not None and settings.tls is not None else config.server.tls


def with_passfile(credentials: Credentials, text: str, node: NodeView, database: str) -> Credentials:
    """Credentials completed from the text of a .pgpass file where they have no password."""
    if credentials.password is not None:
        return credentials
    password = passfile.find_password(text, node.host, node.port, database, credentials.user)
    return credentials if password is None else replace(credentials, password=password)


async def dial(
    node: NodeView,
    link: ServerLink,
    tls_mode: ServerTlsMode,
    credentials: Credentials,
    params: Mapping[str, str],
    *,
    loop: asyncio.AbstractEventLoop,
    deadline: float,
) -> Dialled:
    """Connect and log in, trying the node's addresses in order.

    `params` are startup parameters without `user`; `deadline` is in seconds of `loop.time()`, and each
    address gets an equal share of what is left. Raises NodeRefused for the node's own error and
    NodeFailure, naming the node, for all else.
    """
    failure: Exception = NodeFailure("its name has not been resolved yet")
    for left, address in zip(range(len(node.addresses), 0, -1), node.addresses, strict=True):
        now = loop.time()
        try:
            async with asyncio.timeout_at(now + (deadline - now) / left):
                return await _log_in(node, address, link, tls_mode, credentials, params, loop)
        except NodeRefused:
            raise
        except (OSError, NodeFailure, ProtocolViolation) as error:
            failure = error
    raise _failure(node, failure) from failure


async def cancel(
    node: NodeView,
    link: ServerLink,
    tls_mode: ServerTlsMode,
    pid: int,
    key: bytes,
    *,
    loop: asyncio.AbstractEventLoop,
    address: Address | None = None,
) -> None:
    """Send a CancelRequest and wait for the node's end of the connection, within `connect_timeout`.

    `address` is where the server that is meant was reached. Raises NodeFailure; the request may or may
    not have arrived then.
    """
    target = address or next(iter(node.addresses), None)
    if target is None:
        raise _failure(node, NodeFailure("its name has not been resolved yet"))
    try:
        async with asyncio.timeout(link.connect_timeout):
            stream = await _open(node, target, link, tls_mode, loop)
            try:
                stream.write(build.cancel(pid, key))
                try:
                    while True:
                        await stream.read()
                except OSError:
                    return  # the end: the node has dealt with it
            finally:
                stream.transport.abort()
    except (OSError, NodeFailure, ProtocolViolation) as error:
        raise _failure(node, error) from error


def _failure(node: NodeView, error: Exception) -> NodeFailure:
    if isinstance(error, TimeoutError) and not error.args:
        reason = "no answer in time"
    elif isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not accepted: {error.verify_message}"
    elif isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        reason = os.strerror(error.errno).lower()
    else:
        reason = str(error) or type(error).__name__
    sqlstate = "08P01" if isinstance(error, ProtocolViolation) else "08006"
    return NodeFailure(f'node "{node.name}" ({node.host}, port {node.port}): {reason}', sqlstate=sqlstate)


async def _log_in(
    node: NodeView,
    address: Address,
    link: ServerLink,
    mode: ServerTlsMode,
    credentials: Credentials,
    params: Mapping[str, str],
    loop: asyncio.AbstractEventLoop,
) -> Dialled:
    stream = await _open(node, address, link, mode, loop)
    try:
        tls: ssl.SSLObject | None = stream.transport.get_extra_info("ssl_object")
        login = NodeLogin(
            credentials,
            params,
            nonce=secrets.token_urlsafe(18),
            certificate=None if tls is None else tls.getpeercert(binary_form=True),
            channel_binding=link.channel_binding,
        )
        stream.write(login.start())
        while True:
            for event in login.feed(await stream.read()):
                match event:
                    case Send(data):
                        stream.write(data)
                    case DeriveKeys(salt, iterations):
                        assert credentials.password is not None, "keys are derived from passwords only"
                        derived = await keys.cache.keys(credentials.user, credentials.password, salt, iterations)
                        stream.write(login.use_keys(derived))
                    case NodeReady(parameters, pid, key, leftover):
                        leftover += stream.detach()
                        return Dialled(stream.transport, parameters, pid, key, leftover, address)
    except BaseException:
        stream.transport.abort()
        raise


async def _open(
    node: NodeView, address: Address, link: ServerLink, mode: ServerTlsMode, loop: asyncio.AbstractEventLoop
) -> LoginStream:
    """A connection before its login, in TLS where the mode wants it. On Unix sockets there is none."""
    if address.is_unix or mode == "disable":
        return await _start(await _socket(address, link, loop), loop)
    try:
        return await _open_tls(node, address, link, mode, loop)
    except (ssl.SSLError, ConnectionError):
        if mode != "prefer":
            raise
    return await _start(await _socket(address, link, loop), loop)


async def _open_tls(
    node: NodeView, address: Address, link: ServerLink, mode: ServerTlsMode, loop: asyncio.AbstractEventLoop
) -> LoginStream:
    sock = await _socket(address, link, loop)
    try:
        if not link.tls_direct:
            await loop.sock_sendall(sock, build.request(codes.SSL_REQUEST))
            answer = await loop.sock_recv(sock, 1)
            if answer == b"N" and mode == "prefer":
                return await _start(sock, loop)
            if answer == b"N":
                raise NodeFailure("it does not support TLS, which the configuration requires")
            if not answer:
                raise ConnectionResetError("connection closed by the peer")
            if answer != b"S":
                raise ProtocolViolation("unexpected answer to the request for TLS")
        stream = await _start(sock, loop, _context(mode, link.ca, link.cert, link.key, _stamps(link)), node.host)
    except BaseException:
        sock.close()
        raise
    tls: ssl.SSLObject = stream.transport.get_extra_info("ssl_object")
    if link.tls_direct and tls.selected_alpn_protocol() != ALPN:
        stream.transport.abort()
        raise NodeFailure("it did not agree to direct TLS for PostgreSQL")
    return stream


async def _start(
    sock: socket.socket, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None = None, host: str | None = None
) -> LoginStream:
    stream = LoginStream()
    try:
        await loop.create_connection(lambda: stream, sock=sock, ssl=tls, server_hostname=host)
    except BaseException:
        sock.close()
        raise
    return stream


async def _socket(address: Address, link: ServerLink, loop: asyncio.AbstractEventLoop) -> socket.socket:
    if address.is_unix:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if address.is_unix:
            await loop.sock_connect(sock, address.host)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_keepalive(sock, link.keepalive_idle, link.keepalive_interval, link.keepalive_count, link.user_timeout)
            await loop.sock_connect(sock, (address.host, address.port))
    except BaseException:
        sock.close()
        raise
    return sock


def set_keepalive(sock: socket.socket, idle: float, interval: float, count: int, user_timeout: float) -> None:
    """Keepalive and TCP_USER_TIMEOUT of a TCP socket, in seconds; 0 leaves the system's default."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, idle),
        (socket.TCP_KEEPINTVL, interval),
        (socket.TCP_KEEPCNT, count),
        (socket.TCP_USER_TIMEOUT, user_timeout * 1000),
    ):
        if value > 0:
            sock.setsockopt(socket.IPPROTO_TCP, option, max(1, round(value)))


def _stamps(link: ServerLink) -> tuple[int, ...]:
    """Ages of the files, so that renewed certificates are read again."""
    return tuple(os.stat(path).st_mtime_ns for path in (link.ca, link.cert, link.key) if path)


@lru_cache(maxsize=32)
def _context(mode: ServerTlsMode, ca: str, cert: str, key: str, stamps: tuple[int, ...]) -> ssl.SSLContext:
    """Contexts are dear (30 kB, milliseconds) and safe to share."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full"
    # As in libpq: `require` with a CA at hand verifies it too.
    verify = mode in ("verify-ca", "verify-full") or (mode == "require" and ca != "")
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if ca:
        context.load_verify_locations(ca)
    elif verify:
        context.load_default_certs()
    if cert:
        context.load_cert_chain(cert, key or None)
    context.set_alpn_protocols([ALPN])
    return context
