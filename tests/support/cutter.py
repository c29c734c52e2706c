"""A TCP relay in front of a node that cuts what the node says at every byte.

Owns its listening socket and two threads for each connection. Put between the proxy and a node it makes the
proxy meet each reply in pieces of one byte; it changes nothing else. Fixtures are its callers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

CUT_BYTES = 600
"""Of each piece read from the node so many bytes go one by one, the rest at once."""
BULK = 8192
CUT_BYTES_OF_BULK = 8
"""The same for a piece of more than BULK bytes: such a stream has many, and at 0.1 ms a byte it would take minutes."""
PAUSE = 0.00002


class Cutter:
    """Relay of a free port on 127.0.0.1 to `port`; a context manager."""

    def __init__(self, port: int) -> None:
        self._node = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, name="cutter", daemon=True)
        self._accepting.start()

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
            try:
                node = socket.create_connection(self._node)
            except OSError:
                client.close()
                continue
            for sock in (client, node):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_serve, args=(client, node), name="cutter connection", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(client: socket.socket, node: socket.socket) -> None:
    """Both directions of one connection, to the end."""
    with client, node:
        requests = threading.Thread(target=_relay, args=(client, node, 0), name="cutter requests", daemon=True)
        requests.start()
        _relay(node, client, CUT_BYTES)
        requests.join()


def _relay(source: socket.socket, target: socket.socket, cut: int) -> None:
    """Until one side ends; then both are shut down, so that the other direction ends as well."""
    try:
        while data := source.recv(1 << 16):
            single = min(cut, CUT_BYTES_OF_BULK if len(data) > BULK else len(data))
            for at in range(single):
                target.sendall(data[at : at + 1])
                time.sleep(PAUSE)
            if len(data) > single:
                target.sendall(data[single:])
    except OSError:
        pass
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
