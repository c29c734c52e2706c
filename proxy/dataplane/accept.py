"""New connections: from the listening socket to a client that is logged in.

Owns each raw socket until its kind is known (direct TLS, PROXY protocol, a request for encryption, a
startup packet), since a TLS handshake can't take bytes that asyncio has read already; then its
LoginStream until `Host.adopt`. It must not serve clients. Called by `worker`. Source: PostgreSQL manual
55.2.9 to 55.2.11.

A login is one task that is cancelled at `login_timeout`. At most MAX_HALF_OPEN are under way; one more
takes the place of the oldest, so that silent connections can't keep others out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import pwd
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from ..config.schema import ClientTls, Config
from ..errors import ConfigError, LoginError, NoServer, ProtocolViolation, TridentError
from ..metrics.counters import WorkerCounters
from ..wire import auth, build, codes, startup
from ..wire.login import ClientLogin
from ..wire.startup import CancelRequest, Startup
from . import lookup
from .authenticate import Authenticator, LoggedIn, Peer
from .connect import ALPN, LoginStream, set_keepalive

MAX_HALF_OPEN = 4096
ACCEPTS_AT_ONCE = 64
ACCEPT_PAUSE = 0.2
"""Seconds without accepting after the system had no file descriptor or memory left."""
TLS_SHUTDOWN = 2.0
"""Seconds that a client has to answer the end of TLS."""

_TLS_HANDSHAKE = 0x16
_PROXY = 0x0D


class Host(lookup.Host, Protocol):
    """What a worker offers to the acceptor."""

    @property
    def counters(self) -> WorkerCounters: ...

    def clients_count(self) -> int:
        """Clients logged in, over all workers."""
        ...

    def cancel_request(self, pid: int, key: bytes) -> Awaitable[None]:
        """Carry out a CancelRequest; the connection it came by is closed afterwards."""
        ...

    def adopt(self, transport: asyncio.Transport, logged_in: LoggedIn, leftover: bytes) -> None:
        """Take over a client. Reading is paused; AuthenticationOk has not been sent."""
        ...


class _ClientTlsContext:
    """The context for clients, and the hash of its certificate for channel binding."""

    def __init__(self, settings: ClientTls) -> None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(settings.cert, settings.key or None)
            if settings.ca:
                context.load_verify_locations(settings.ca)
                wanted = settings.mode in ("verify-ca", "verify-full")
                context.verify_mode = ssl.CERT_REQUIRED if wanted else ssl.CERT_OPTIONAL
            pem = Path(settings.cert).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"listen.tls: certificate, key or CA can't be used: {error}") from error
        if settings.mode in ("verify-ca", "verify-full") and not settings.ca:
            raise ConfigError(f'listen.tls: mode "{settings.mode}" needs `ca`')
        context.set_alpn_protocols([ALPN])
        # As PostgreSQL: sessions are not resumed, so none is kept (without the second line TLS 1.3 keeps two a client).
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        self.context = context
        end = "-----END CERTIFICATE-----"
        begin = pem.index("-----BEGIN CERTIFICATE-----")
        leaf = pem[begin : pem.index(end, begin) + len(end)]
        self.binding = auth.certificate_hash(ssl.PEM_cert_to_DER_cert(leaf))


def _client_tls(config: Config) -> _ClientTlsContext | None:
    settings = config.listen.tls
    return None if settings.mode == "disable" else _ClientTlsContext(settings)


def _trusted(config: Config) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Who may send a PROXY header; nobody while that is switched off."""
    if not config.listen.proxy_protocol:
        return ()
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in config.listen.proxy_protocol_trusted)
    except ValueError as error:
        raise ConfigError(f"listen.proxy_protocol_trusted: {error}; expected addresses or CIDR blocks") from error


class _Connection:
    """A connection on its way: a raw socket first, a stream later, the host's in the end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.stream: LoginStream | None = None
        self.peer = _peer(sock)
        self.adopted = False

    def send_error(self, error: TridentError) -> None:
        data = build.error_response(error, "FATAL")
        if self.stream is not None:
            self.stream.write(data)
            return
        with suppress(OSError):
            self.sock.send(data)
            # Unread bytes would turn the close into a reset, which may overtake the error.
            self.sock.recv(codes.MAX_STARTUP)

    def close(self, *, at_once: bool) -> None:
        if self.adopted:
            return
        if self.stream is None:
            self.sock.close()
        elif at_once:
            self.stream.transport.abort()
        else:
            self.stream.transport.close()


class Acceptor:
    """Accepts on the worker's sockets and logs clients in.

    `elsewhere` may take an accepted, untouched socket away (to a less loaded worker) and then returns
    True. Raises ConfigError when rules, users or certificates of the configuration can't be used.
    """

    def __init__(self, host: Host, elsewhere: Callable[[socket.socket], bool] | None = None) -> None:
        self._host = host
        self._elsewhere = elsewhere
        self._config = host.config
        self._tls = _client_tls(host.config)
        self._trusted = _trusted(host.config)
        self._authenticator = Authenticator(host)
        self._listeners: list[socket.socket] = []
        self._logins: dict[asyncio.Task[None], None] = {}
        self._resume: asyncio.TimerHandle | None = None

    def start(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on these listening sockets; they stay the caller's."""
        for listener in sockets:
            listener.setblocking(False)
            self._listeners.append(listener)
        self._listen()

    def stop(self) -> None:
        """Accept no more; logins under way go on."""
        if self._resume is not None:
            self._resume.cancel()
        for listener in self._listeners:
            self._host.loop.remove_reader(listener)
        self._listeners.clear()

    def close(self) -> None:
        """Accept no more and drop who has not logged in yet."""
        self.stop()
        for task in self._logins:
            task.cancel()
        self._authenticator.close()

    def forget_users(self, user: str = "") -> None:
        """Passwords have changed on the nodes, of one user or of anybody."""
        self._authenticator.forget_users(user)

    def take(self, sock: socket.socket) -> None:
        """Log in the client of an accepted socket, our own or one that another worker passed on."""
        counters, listen = self._host.counters, self._host.config.listen
        try:
            sock.setblocking(False)
            connection = _Connection(sock)
            if connection.peer.address is not None:
                set_keepalive(
                    sock, listen.keepalive_idle, listen.keepalive_interval, listen.keepalive_count, listen.user_timeout
                )
        except OSError:  # gone before it was looked at
            sock.close()
            return
        if len(self._logins) >= MAX_HALF_OPEN:
            counters.clients_refused += 1
            oldest = next(iter(self._logins))
            del self._logins[oldest]
            oldest.cancel()
        task = self._host.loop.create_task(self._run(connection), name="login")
        self._logins[task] = None
        counters.logins_current += 1
        task.add_done_callback(partial(self._ended, connection))

    # -- accepting

    def _listen(self) -> None:
        for listener in self._listeners:
            self._host.loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._host.log.error("accept_failed", reason=str(error))
                self._pause()
                return
            if self._elsewhere is None or not self._elsewhere(sock):
                self.take(sock)

    def _pause(self) -> None:
        for listener in self._listeners:
            self._host.loop.remove_reader(listener)
        self._resume = self._host.loop.call_later(ACCEPT_PAUSE, self._listen)

    def _ended(self, connection: _Connection, task: asyncio.Task[None]) -> None:
        """The one place where a login that was not adopted is closed, even one cancelled before its first step."""
        self._logins.pop(task, None)
        self._host.counters.logins_current -= 1
        connection.close(at_once=task.cancelled())
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.log.error("login_crashed", exc_info=error)

    # -- one login

    async def _run(self, connection: _Connection) -> None:
        host = self._host
        self._refresh()
        try:
            async with asyncio.timeout(host.config.listen.login_timeout or None):
                await self._log_in(connection)
        except TimeoutError:
            host.counters.logins_failed += 1
            self._tell("login_timed_out", connection)
            connection.close(at_once=True)
        except TridentError as error:
            self._count(error)
            self._tell("login_failed", connection, sqlstate=error.sqlstate, reason=error.message)
            connection.send_error(error)
        except ssl.SSLError as error:
            host.counters.logins_failed += 1
            self._tell("tls_handshake_failed", connection, reason=error.reason or "")
        except OSError:
            pass  # the client went away

    def _count(self, error: TridentError) -> None:
        counters = self._host.counters
        if isinstance(error, ProtocolViolation):
            counters.protocol_errors += 1
        elif isinstance(error, NoServer):
            counters.clients_refused += 1
        else:
            counters.logins_failed += 1

    def _tell(self, event: str, connection: _Connection, **fields: str) -> None:
        if self._host.config.log.connections:
            self._host.log.info(event, peer=connection.peer.name, **fields)

    def _refresh(self) -> None:
        """Take up what a new configuration says; what can't be used leaves the old in force."""
        config = self._host.config
        if config is self._config:
            return
        self._config = config
        try:
            self._tls, self._trusted = _client_tls(config), _trusted(config)
        except ConfigError as error:
            self._host.log.error("listen_config_refused", reason=error.message)

    async def _log_in(self, connection: _Connection) -> None:
        """Ends with the client adopted, or its cancel request carried out."""
        read = await self._preamble(connection)
        stream = connection.stream or await self._plain(connection)
        login = ClientLogin()
        data = read or await stream.read()
        while not (events := login.feed(data)):
            data = await stream.read()
        first = events[0]
        if isinstance(first, CancelRequest):
            self._host.counters.cancels += 1
            await self._host.cancel_request(first.pid, first.key)
            return
        assert isinstance(first, Startup), "a first packet is one or the other"
        self._admit(connection.peer)
        logged_in = await self._authenticator.run(login, first, stream, connection.peer)
        rest = stream.detach()
        self._host.counters.clients_total += 1
        self._host.adopt(stream.transport, logged_in, login.take_leftover() + rest)
        connection.adopted = True

    def _admit(self, peer: Peer) -> None:
        listen = self._host.config.listen
        if listen.tls.mode not in ("disable", "allow") and peer.address is not None and not peer.tls:
            raise LoginError("the connection is not encrypted, and the proxy requires TLS", hint="Use sslmode=require.")
        if listen.max_clients and self._host.clients_count() >= listen.max_clients:
            raise NoServer("sorry, too many clients already")

    # -- before the startup packet

    async def _preamble(self, connection: _Connection) -> bytes:
        """Deal with what may come before a startup packet. Returns the bytes of that which were read.

        In TLS the connection has its stream afterwards.
        """
        sock, loop = connection.sock, self._host.loop
        first = await _peek(sock, loop)
        if first == _PROXY and self._is_trusted(connection.peer):
            await self._proxy_header(connection, sock)
            first = await _peek(sock, loop)
        if first == _TLS_HANDSHAKE and self._tls is not None and connection.peer.address is not None:
            tls = await self._encrypt(connection, sock, self._tls)
            if tls.selected_alpn_protocol() != ALPN:
                raise ConnectionAbortedError("direct TLS without the protocol's name")
            return b""
        asked: set[int] = set()
        while True:
            head = await _take(sock, 8, loop)
            code = int.from_bytes(head[4:], "big")
            if (
                startup.packet_length(head) != 8
                or code not in (codes.SSL_REQUEST, codes.GSSENC_REQUEST)
                or code in asked
            ):
                return head
            asked.add(code)
            if code == codes.SSL_REQUEST and self._tls is not None and connection.peer.address is not None:
                # What is behind the request came in clear, perhaps from somebody in between.
                if _has_more(sock):
                    raise ProtocolViolation("received unencrypted data after SSL request")
                await loop.sock_sendall(sock, b"S")
                await self._encrypt(connection, sock, self._tls)
                return b""
            await loop.sock_sendall(sock, b"N")

    def _is_trusted(self, peer: Peer) -> bool:
        return peer.address is not None and any(peer.address in network for network in self._trusted)

    async def _proxy_header(self, connection: _Connection, sock: socket.socket) -> None:
        """Consume exactly the header; the client is who it names from here on."""
        loop = self._host.loop
        fixed = await _take(sock, startup.PROXY_FIXED, loop)
        rest = await _take(sock, startup.proxy_length(fixed) - startup.PROXY_FIXED, loop)
        header = startup.parse_proxy(fixed + rest)
        if header.address is not None:
            host, port = header.address
            address = _ip(host)
            connection.peer = replace(
                connection.peer, name=_address_name(host, port), address=address, local_address=None
            )

    async def _plain(self, connection: _Connection) -> LoginStream:
        stream = LoginStream()
        await self._host.loop.connect_accepted_socket(lambda: stream, connection.sock)
        connection.stream = stream
        return stream

    async def _encrypt(self, connection: _Connection, sock: socket.socket, tls: _ClientTlsContext) -> ssl.SSLObject:
        stream = LoginStream()
        await self._host.loop.connect_accepted_socket(
            lambda: stream, sock, ssl=tls.context, ssl_shutdown_timeout=TLS_SHUTDOWN
        )
        connection.stream = stream
        session: ssl.SSLObject = stream.transport.get_extra_info("ssl_object")
        certificate = session.getpeercert()
        connection.peer = replace(
            connection.peer,
            tls=True,
            has_certificate=bool(certificate),
            common_name=_common_name(certificate) if certificate else "",
            binding=tls.binding,
        )
        return session


def _common_name(certificate: Mapping[str, object]) -> str:
    """The subject's CN, if it has exactly one: with several it would be open which one counts."""
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple), "as the ssl module gives it"
    names = [value for part in subject for name, value in part if name == "commonName"]
    return str(names[0]) if len(names) == 1 else ""


def _peer(sock: socket.socket) -> Peer:
    if sock.family == socket.AF_UNIX:
        size = struct.calcsize("3i")
        pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = ""
        return Peer(name=f"unix:{pid}", os_user=user)
    host, port = sock.getpeername()[:2]
    return Peer(name=_address_name(host, port), address=_ip(host), local_address=_ip(sock.getsockname()[0]))


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address; one of IPv4 that came over a socket of IPv6 as what it is."""
    address = ipaddress.ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def _address_name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _peek(sock: socket.socket, loop: asyncio.AbstractEventLoop) -> int:
    """The first byte, left where it is. Raises ConnectionError at the end."""
    while True:
        try:
            data = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await _readable(sock, loop)
            continue
        if not data:
            raise ConnectionResetError("connection closed by the client")
        return data[0]


async def _take(sock: socket.socket, count: int, loop: asyncio.AbstractEventLoop) -> bytes:
    """Exactly `count` bytes and not one more."""
    data = b""
    while len(data) < count:
        part = await loop.sock_recv(sock, count - len(data))
        if not part:
            raise ConnectionResetError("connection closed by the client")
        data += part
    return data


def _has_more(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


async def _readable(sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
