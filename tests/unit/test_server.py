"""The walk over a server's replies, by itself."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.dataplane.server import Owed, Server, Sink
from proxy.session.state import States


class Recorder(Sink):
    """A pool and a sink that note what they are told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def wrote(self) -> None:
        self.told.append("wrote")

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def unit_done(self, server: Server, owed: Owed, status: int) -> None:
        self.told.append("done")

    def settled(self, server: Server) -> None:
        self.told.append("settled")


DONE = b"C\0\0\0\x0dINSERT 0\0Z\0\0\0\x05I"


def server_of(pool: Any) -> Server:
    return Server(pool, States().empty, 10)


@pytest.mark.parametrize("cut", range(1, len(DONE)))
def test_a_write_is_noted_before_its_client_can_know(cut: int) -> None:
    sink = Recorder()
    server = server_of(sink)
    server.owed.append(Owed(sink, wrote=True))
    server.data_received(DONE[:cut])
    server.data_received(DONE[cut:])
    at = sink.told.index("wrote")
    assert b"Z" not in b"".join(told for told in sink.told[:at] if isinstance(told, bytes))
    assert sink.told[-1] == "done" and sink.told.count("wrote") == 1


def test_a_write_whose_client_has_gone_is_noted() -> None:
    pool = Recorder()
    server = server_of(pool)
    server.owed.append(Owed(None, wrote=True))
    server.data_received(DONE)
    assert pool.told == ["wrote", "settled"]
