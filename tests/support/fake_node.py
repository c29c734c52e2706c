"""A node that misbehaves on demand: PostgreSQL itself, until a marked statement or login comes.

Owns its listening socket and two threads a connection. It relays to a real node, so that probes, logins
and all other clients are served as ever; a statement (or a startup packet) whose bytes hold a marker
never reaches the node and is answered by a script: bytes in pieces, waits for the test between them, and
an end. Fixtures and tests are its callers.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

from .rawpg import cstr, i32, message

PAUSE = 0.0005
"""Seconds between pieces, so that the receiver is likely to see each on its own."""

End = Literal["stay", "close", "reset"]
Piece = bytes | threading.Event
"""Bytes to send, or an event to wait for before the next ones."""

PATIENCE = 20.0
LONG = 1 << 17
"""Bytes of a message that is relayed without being looked at."""


def row_description(*names: str) -> bytes:
    """T with columns of type text."""
    fields = (cstr(name) + struct.pack("!IhIhih", 0, 0, 25, -1, -1, 0) for name in names)
    return message("T", struct.pack("!h", len(names)) + b"".join(fields))


def data_row(*values: bytes) -> bytes:
    return message("D", struct.pack("!h", len(values)) + b"".join(i32(len(v)) + v for v in values))


def complete(tag: str) -> bytes:
    return message("C", cstr(tag))


def ready(status: str = "I") -> bytes:
    return message("Z", status.encode())


def error(sqlstate: str, text: str = "scripted", severity: str = "ERROR") -> bytes:
    fields = {"S": severity, "V": severity, "C": sqlstate, "M": text}
    return message("E", b"".join(cstr(code + value) for code, value in fields.items()) + b"\0")


def parameter(name: str, value: str) -> bytes:
    return message("S", cstr(name) + cstr(value))


def answer(*values: bytes) -> bytes:
    """A whole reply to a simple SELECT of one column."""
    return row_description("v") + b"".join(map(data_row, values)) + complete(f"SELECT {len(values)}") + ready()


class Script:
    """What is said instead of the node's reply; `said` is set once all pieces are out."""

    def __init__(self, pieces: Sequence[Piece], end: End) -> None:
        self.pieces = pieces
        self.end = end
        self.said = threading.Event()


class FakeNode:
    """Relay of a free port on 127.0.0.1 to the node at `port`; a context manager."""

    def __init__(self, port: int) -> None:
        self._node = ("127.0.0.1", port)
        self._scripts: dict[bytes, Script] = {}
        self.asked: list[bytes] = []
        """Markers in the order in which they came."""
        self.startups: list[bytes] = []
        """First packets of all connections, cancel requests among them."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, name="fake node", daemon=True)
        self._accepting.start()

    def script(self, marker: str, *pieces: Piece, end: End = "stay") -> Script:
        """Answer what holds `marker` by `pieces`, then `end`: go on relaying, or end the connection."""
        script = self._scripts[marker.encode()] = Script(pieces, end)
        return script

    def forget(self, marker: str) -> None:
        """What holds `marker` goes to the node again."""
        del self._scripts[marker.encode()]

    def find(self, data: bytes) -> Script | None:
        """The script for a message, if it holds a marker."""
        for marker, script in self._scripts.items():
            if marker in data:
                self.asked.append(marker)
                return script
        return None

    def close(self) -> None:
        """Stop accepting; connections end with their peers."""
        # A blocked accept returns when the socket is shut down, not when it is closed.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(5)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_Link(self, client, self._node).run, name="fake node link", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Link:
    """One connection: the client's messages are cut and looked at, the node's bytes pass untouched."""

    def __init__(self, fake: FakeNode, client: socket.socket, node: tuple[str, int]) -> None:
        self._fake = fake
        self._client = client
        self._address = node
        self._node: socket.socket | None = None
        self._buffer = b""

    def run(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._relay()
        self._shut()

    def _shut(self) -> None:
        for sock in (self._client, self._node):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def _relay(self) -> None:
        head = self._take(4)
        packet = head + self._take(int.from_bytes(head, "big") - 4)
        self._fake.startups.append(packet)
        if (script := self._fake.find(packet)) is not None:
            self._say(script)
            self._drain()
            return
        self._node = socket.create_connection(self._address)
        self._node.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._answers, name="fake node answers", daemon=True).start()
        self._node.sendall(packet)
        batch = b""
        while True:
            head = self._take(5)
            length = int.from_bytes(head[1:], "big") - 4
            if length > LONG:
                self._node.sendall(batch + head)
                batch = b""
                self._pass(length)
                continue
            batch += head + self._take(length)
            # An extended batch is judged as a whole, at its Sync or Flush.
            if head[:1] in b"PBDEC":
                continue
            if (script := self._fake.find(batch)) is not None:
                self._say(script)
            else:
                self._node.sendall(batch)
            batch = b""

    def _say(self, script: Script) -> None:
        try:
            for piece in script.pieces:
                if isinstance(piece, threading.Event):
                    piece.wait(PATIENCE)
                else:
                    self._client.sendall(piece)
                    time.sleep(PAUSE)
            if script.end == "reset":
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            script.said.set()
        if script.end != "stay":
            raise EOFError

    def _answers(self) -> None:
        assert self._node is not None
        with contextlib.suppress(OSError):
            while data := self._node.recv(1 << 16):
                self._client.sendall(data)
        # The client sees the end; the other thread then sees the client's.
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def _drain(self) -> None:
        while self._client.recv(1 << 16):
            pass

    def _pass(self, count: int) -> None:
        """Relay so many bytes as they come."""
        assert self._node is not None
        while count:
            data = self._buffer[:count] or self._client.recv(min(count, 1 << 16))
            if not data:
                raise EOFError
            self._buffer = self._buffer[len(data) :]
            self._node.sendall(data)
            count -= len(data)

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            data = self._client.recv(1 << 16)
            if not data:
                raise EOFError
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken
