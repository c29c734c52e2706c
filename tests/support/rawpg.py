"""A client of the PostgreSQL protocol that does exactly what a test says and nothing more.

Owns the building of client messages, one blocking connection, and the short form in which replies are
written in tests. It shares no code with the proxy, so that a fault in `proxy.wire` can't hide itself,
and it keeps no state of the protocol: wrong orders are what many tests send.
Tests are its only callers. Source of all formats: PostgreSQL manual, chapter 55.

Short form of replies, separated by spaces: the type byte, followed where it helps by `[...]`:
`1` `2` `3` `n` `s` `I` `c` as they are; `T[id,label]` column names; `D[3,null]` values; `C[SELECT 1]`;
`ZI` `ZT` `ZE`; `E[42601]`, `E[FATAL 08P01]` (a severity other than ERROR is named); `N[WARNING 25P01]`;
`S[name=value]`; `A[channel,payload]`; `t[23,25]` type OIDs; `G` `H` `W`; `d[...]`; `R0`; `K`;
`v[minor,name...]`; `EOF` for a closed connection (a reset counts as one); `...` for silence.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

PROTOCOL_3_0 = 0x30000
SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
CANCEL_REQUEST = 80877102

EOF = "EOF"
SILENCE = "..."

CUT_BYTES = 2000
"""In a cut connection, this many bytes of each send go one by one; the rest in large pieces."""
CUT_PAUSE = 0.00005
"""Seconds between single bytes, so that the receiver is likely to see each on its own."""


def readable(sock: socket.socket, timeout: float) -> bool:
    """Whether there is something to read within `timeout` seconds. Not by select(), which takes no descriptor
    above 1023."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(max(timeout, 0) * 1000))


def i32(number: int) -> bytes:
    return struct.pack("!i", number)


def cstr(text: str | bytes) -> bytes:
    return (text.encode() if isinstance(text, str) else text) + b"\0"


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + i32(len(body) + 4) + body


def Q(sql: str | bytes) -> bytes:
    """Query."""
    return message("Q", cstr(sql))


def P(name: str, sql: str | bytes, oids: Sequence[int] = ()) -> bytes:
    """Parse."""
    return message("P", cstr(name) + cstr(sql) + struct.pack(f"!h{len(oids)}I", len(oids), *oids))


def B(
    portal: str = "",
    statement: str = "",
    params: Sequence[str | bytes | None] = (),
    *,
    param_formats: Sequence[int] = (),
    formats: Sequence[int] = (),
) -> bytes:
    """Bind; formats are 0 for text, 1 for binary."""
    parts = [cstr(portal), cstr(statement), struct.pack(f"!h{len(param_formats)}h", len(param_formats), *param_formats)]
    parts.append(struct.pack("!h", len(params)))
    for value in params:
        if value is None:
            parts.append(i32(-1))
        else:
            raw = value.encode() if isinstance(value, str) else value
            parts.append(i32(len(raw)) + raw)
    parts.append(struct.pack(f"!h{len(formats)}h", len(formats), *formats))
    return message("B", b"".join(parts))


def D(kind: str, name: str = "") -> bytes:
    """Describe; kind is `S` or `P`."""
    return message("D", kind.encode() + cstr(name))


def E(portal: str = "", rows: int = 0) -> bytes:
    """Execute."""
    return message("E", cstr(portal) + i32(rows))


def C(kind: str, name: str = "") -> bytes:
    """Close; kind is `S` or `P`."""
    return message("C", kind.encode() + cstr(name))


S = message("S")
H = message("H")
X = message("X")
COPY_DONE = message("c")


def copy_data(data: bytes) -> bytes:
    return message("d", data)


def copy_fail(reason: str) -> bytes:
    return message("f", cstr(reason))


def function_call(oid: int, *arguments: bytes) -> bytes:
    """FunctionCall with text arguments and a text result."""
    body = struct.pack("!Ihh", oid, 0, len(arguments))
    body += b"".join(i32(len(a)) + a for a in arguments) + struct.pack("!h", 0)
    return message("F", body)


def startup_message(params: Mapping[str, str], version: int = PROTOCOL_3_0) -> bytes:
    body = i32(version) + b"".join(cstr(k) + cstr(v) for k, v in params.items()) + b"\0"
    return i32(len(body) + 4) + body


def request(code: int) -> bytes:
    """SSLRequest or GSSENCRequest."""
    return i32(8) + i32(code)


def cancel_message(pid: int, key: bytes) -> bytes:
    body = i32(CANCEL_REQUEST) + struct.pack("!I", pid) + key
    return i32(len(body) + 4) + body


@dataclass(frozen=True, slots=True)
class Reply:
    """One message of the server; `kind` is its type byte, or EOF or SILENCE."""

    kind: str
    body: bytes = b""

    @property
    def fields(self) -> dict[str, str]:
        """Fields of an ErrorResponse or NoticeResponse, by field code."""
        return {part[:1].decode(): part[1:].decode(errors="replace") for part in self.body.split(b"\0") if part}

    @property
    def values(self) -> list[bytes | None]:
        """Values of a DataRow."""
        (count,) = struct.unpack_from("!h", self.body)
        at, values = 2, list[bytes | None]()
        for _ in range(count):
            (length,) = struct.unpack_from("!i", self.body, at)
            at += 4
            values.append(None if length < 0 else self.body[at : at + length])
            at += max(length, 0)
        return values

    @property
    def columns(self) -> list[tuple[str, int, int]]:
        """Columns of a RowDescription: name, type OID, format."""
        (count,) = struct.unpack_from("!h", self.body)
        at, columns = 2, list[tuple[str, int, int]]()
        for _ in range(count):
            end = self.body.index(b"\0", at)
            _, _, oid, _, _, form = struct.unpack_from("!IhIhih", self.body, end + 1)
            columns.append((self.body[at:end].decode(), oid, form))
            at = end + 19
        return columns

    def __str__(self) -> str:
        match self.kind:
            case "E" | "N":
                fields = self.fields
                severity = "" if fields["V"] == "ERROR" else fields["V"] + " "
                return f"{self.kind}[{severity}{fields['C']}]"
            case "Z":
                return "Z" + self.body.decode()
            case "S":
                name, value = self.body.split(b"\0")[:2]
                return f"S[{name.decode()}={value.decode()}]"
            case "C":
                return f"C[{self.body[:-1].decode()}]"
            case "D":
                return "D[" + ",".join("null" if v is None else v.decode(errors="replace") for v in self.values) + "]"
            case "T":
                return "T[" + ",".join(name for name, _, _ in self.columns) + "]"
            case "t":
                oids = struct.unpack_from(f"!{(len(self.body) - 2) // 4}I", self.body, 2)
                return "t[" + ",".join(map(str, oids)) + "]"
            case "A":
                channel, payload = self.body[4:].split(b"\0")[:2]
                return f"A[{channel.decode()},{payload.decode()}]"
            case "R":
                return f"R{struct.unpack_from('!i', self.body)[0]}"
            case "d":
                return f"d[{self.body.decode(errors='replace')}]"
            case "v":
                # The whole version, or its minor part alone: both are in use.
                minor = struct.unpack_from("!i", self.body)[0] & 0xFFFF
                names = self.body[8:].split(b"\0")[:-1]
                return "v[" + ",".join([str(minor), *(n.decode() for n in names)]) + "]"
            case _:
                return self.kind


def show(replies: Iterable[Reply]) -> str:
    """The short form."""
    return " ".join(str(reply) for reply in replies)


class Wire:
    """One connection. Every reply read is kept in `log`.

    With `cut`, what is sent goes out one byte at a time. Methods that wait take seconds. `close_all` closes
    what a test left open.
    """

    _opened: ClassVar[set[Wire]] = set()

    def __init__(self, address: tuple[str, int] | str, *, cut: bool = False, tls: ssl.SSLContext | None = None) -> None:
        """`address` is host and port, or the path of a Unix socket; `tls` asks by SSLRequest."""
        self.address = address
        self.cut = cut
        self.log: list[Reply] = []
        self.pid = 0
        self.key = b""
        self.status: dict[str, str] = {}
        self._buffer = bytearray()
        self.socket = self._connect()
        self._opened.add(self)
        if tls is not None:
            self.start_tls(tls)

    def _connect(self) -> socket.socket:
        if isinstance(self.address, str):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.address)
            return sock
        sock = socket.create_connection(self.address, timeout=10)
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Ask for TLS and shake hands; an answer other than `S` is a ConnectionError."""
        self.socket.sendall(request(SSL_REQUEST))
        answer = self.raw(1)
        if answer != b"S":
            raise ConnectionError(f"TLS was answered by {answer!r}")
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    # sending

    def send(self, *messages: bytes) -> Self:
        """All messages in one write (or byte by byte when cut). Whether the other side has closed is seen by
        reading: what it said before may still be there."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._send(b"".join(messages))
        return self

    def _send(self, data: bytes) -> None:
        if self.cut:
            for at in range(min(len(data), CUT_BYTES)):
                self.socket.sendall(data[at : at + 1])
                time.sleep(CUT_PAUSE)
            data = data[CUT_BYTES:]
        if data:
            self.socket.sendall(data)

    # receiving

    def _fill(self, timeout: float) -> bool:
        """Read once; False after `timeout` seconds of nothing. Raises EOFError at the end."""
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        if not pending and not readable(self.socket, timeout):
            return False
        try:
            data = self.socket.recv(1 << 16)
        except ssl.SSLWantReadError:
            return True
        except (ConnectionError, ssl.SSLError):
            data = b""
        if not data:
            raise EOFError
        self._buffer += data
        return True

    def raw(self, count: int, timeout: float = 5) -> bytes:
        """`count` unframed bytes (the answer to SSLRequest); fewer at the end of the stream."""
        deadline = time.monotonic() + timeout
        try:
            while len(self._buffer) < count:
                if not self._fill(deadline - time.monotonic()):
                    raise TimeoutError("no answer")
        except EOFError:
            count = len(self._buffer)
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def read(self, timeout: float = 10) -> Reply:
        """The next message, EOF or SILENCE."""
        reply = self._next(timeout)
        if reply.kind != SILENCE:
            self.log.append(reply)
        if reply.kind == "S":
            name, value = reply.body.split(b"\0")[:2]
            self.status[name.decode()] = value.decode()
        return reply

    def _next(self, timeout: float) -> Reply:
        deadline = time.monotonic() + timeout
        try:
            while True:
                if len(self._buffer) >= 5:
                    end = struct.unpack_from("!i", self._buffer, 1)[0] + 1
                    if len(self._buffer) >= end:
                        reply = Reply(chr(self._buffer[0]), bytes(self._buffer[5:end]))
                        del self._buffer[:end]
                        return reply
                if not self._fill(deadline - time.monotonic()):
                    return Reply(SILENCE)
        except EOFError:
            return Reply(EOF)

    def until(self, kind: str = "Z", *, times: int = 1, timeout: float = 10) -> list[Reply]:
        """Replies up to and with the `times`-th of type `kind`, or to the end or a silence of `timeout`."""
        replies: list[Reply] = []
        while times:
            reply = self.read(timeout)
            replies.append(reply)
            if reply.kind in (EOF, SILENCE):
                break
            times -= reply.kind == kind
        return replies

    def ask(self, *messages: bytes, until: str = "Z", times: int = 1, timeout: float = 10) -> str:
        """Send, then the short form of the replies."""
        return show(self.send(*messages).until(until, times=times, timeout=timeout))

    def query(self, sql: str, timeout: float = 10) -> str:
        """Short form of the replies to a simple query."""
        return self.ask(Q(sql), timeout=timeout)

    def rows(self, sql: str, timeout: float = 10) -> list[list[str | None]]:
        """Rows of a simple query as text; an error reply is an AssertionError."""
        replies = self.send(Q(sql)).until(timeout=timeout)
        errors = [r for r in replies if r.kind in ("E", EOF, SILENCE)]
        assert not errors, f"{sql}: {show(replies)} {errors[0].fields if errors[0].kind == 'E' else ''}"
        return [[None if v is None else v.decode() for v in r.values] for r in replies if r.kind == "D"]

    def value(self, sql: str, timeout: float = 10) -> str | None:
        """First value of the first row."""
        return self.rows(sql, timeout)[0][0]

    def run(self, *statements: str) -> None:
        """Statements that must succeed."""
        for sql in statements:
            self.rows(sql)

    def silence(self, seconds: float = 0.3) -> bool:
        """True if nothing comes for so long."""
        return self.read(seconds).kind == SILENCE

    # sessions

    def login(
        self, params: Mapping[str, str], *, version: int = PROTOCOL_3_0, password: str = "", timeout: float = 10
    ) -> str:
        """Send the startup message and go through authentication; the replies in short form."""
        self.send(startup_message(params, version))
        return show(self.authenticate(password, timeout))

    def authenticate(self, password: str = "", timeout: float = 10) -> list[Reply]:
        """Answer SCRAM-SHA-256 where it is asked; read to ReadyForQuery or the end."""
        replies: list[Reply] = []
        scram = Scram(password)
        while True:
            reply = self.read(timeout)
            replies.append(reply)
            match reply.kind:
                case "R":
                    answer = scram.answer(reply.body)
                    if answer:
                        self.send(answer)
                case "K":
                    self.pid, self.key = struct.unpack_from("!I", reply.body)[0], reply.body[4:]
                case "Z" | "EOF" | "...":
                    return replies

    def cancel(self, tls: ssl.SSLContext | None = None) -> None:
        """Ask for the running statement to be cancelled, over a connection of its own; returns at its end."""
        other = Wire(self.address, tls=tls)
        other.send(cancel_message(self.pid, self.key))
        assert other.raw(1) == b"", "a cancel request was answered"
        other.close()

    def close(self) -> None:
        self.socket.close()

    @classmethod
    def close_all(cls) -> None:
        while cls._opened:
            cls._opened.pop().close()

    def reset(self) -> None:
        """Close by RST, unread data thrown away."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Scram:
    """Client side of SCRAM-SHA-256 (RFC 5802, 7677), each step open to being sent wrong.

    `gs2` is the channel binding flag with the authorisation part, `binding` the bound data.
    """

    def __init__(
        self, password: str, *, mechanism: str = "SCRAM-SHA-256", gs2: str = "n,,", binding: bytes = b""
    ) -> None:
        self.password = password
        self.mechanism = mechanism
        self.gs2 = gs2
        self.binding = binding
        self.offered: list[str] = []
        self.first_bare = "n=,r=" + base64.b64encode(hashlib.sha256(str(time.time_ns()).encode()).digest()).decode()

    def answer(self, body: bytes) -> bytes:
        """The answer to one Authentication message; empty where none is due."""
        kind, rest = struct.unpack_from("!i", body)[0], body[4:]
        if kind == 10:
            self.offered = [name.decode() for name in rest.split(b"\0") if name]
            return self.first()
        if kind == 11:
            return self.final(rest.decode())
        return b""

    def first(self) -> bytes:
        text = (self.gs2 + self.first_bare).encode()
        return message("p", cstr(self.mechanism) + i32(len(text)) + text)

    def final(self, server_first: str) -> bytes:
        parts = dict(part.split("=", 1) for part in server_first.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        channel = base64.b64encode(self.gs2.encode() + self.binding).decode()
        without_proof = f"c={channel},r={parts['r']}"
        signed = f"{self.first_bare},{server_first},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return message("p", f"{without_proof},p={base64.b64encode(proof).decode()}".encode())
