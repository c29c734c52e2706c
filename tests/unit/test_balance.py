"""Which worker a connection goes to, and the datagram sockets by which it gets there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.clock import SystemClock
from proxy.dataplane.balance import Peers, better_place
from proxy.ipc import board
from proxy.ipc.board import SILENT_NS, Board
from proxy.log import get_logger

QUEUE = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())


@pytest.mark.parametrize(
    ("loads", "place"),
    [
        ([0, 0], None),
        ([2, 0], None),
        ([4, 0], 1),
        ([0, 9], None),
        ([9, None], None),
        ([None, 3], None),
        ([9, None, 2], 2),
        ([7, 6, 1], 2),
        ([6, 6, 1], 2),
        ([1, 6, 6], None),
        ([5], None),
    ],
)
def test_who_gets_a_connection(loads: list[int | None], place: int | None) -> None:
    assert better_place(loads, 0) == place


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_wherever_they_arrive_the_spread_is_small(workers: int) -> None:
    rng = random.Random(workers)
    for weights in itertools.product((1, 5, 50), repeat=workers):
        loads = [0] * workers
        for _ in range(40):
            (own,) = rng.choices(range(workers), weights)
            to = better_place(loads, own)
            loads[own if to is None else to] += 1
        mean = sum(loads) / workers
        assert all(abs(load - mean) <= 2 for load in loads), loads


def test_loads_on_the_board(tmp_path: Path) -> None:
    board.create(tmp_path / "board", 3)
    one, two, three = (Board(tmp_path / "board", worker) for worker in range(3))
    assert one.loads(now_ns=SILENT_NS) == [None] * 3
    one.tell(4, 1, 2 * SILENT_NS)
    two.tell(2, 0, 2 * SILENT_NS)
    one.passed(1)
    one.passed(1)
    three.passed(1)
    three.passed(1, -1)
    two.taken()
    assert three.loads(2 * SILENT_NS) == [5, 3, None]
    assert one.clients_elsewhere(2 * SILENT_NS) == 2
    assert two.clients_elsewhere(2 * SILENT_NS) == 4
    # A new process in the place of the second: nothing is on its way to it.
    Board(tmp_path / "board", 1).join()
    two.tell(0, 0, 2 * SILENT_NS)
    assert three.loads(2 * SILENT_NS) == [5, 0, None]
    assert three.loads(3 * SILENT_NS) == [None] * 3
    two.leave()
    assert one.loads(2 * SILENT_NS) == [5, None, None]
    assert one.latest(0) == 0
    for each in (one, two, three):
        each.close()


class End:
    """One worker's end: what it took and was told."""

    def __init__(self, directory: Path, index: int, workers: int) -> None:
        self.taken: list[socket.socket] = []
        self.cancels: list[tuple[int, bytes]] = []
        self.news = asyncio.Event()
        self.board = Board(directory / "board", index)
        self.peers = Peers(
            loop=asyncio.get_running_loop(),
            clock=SystemClock(),
            log=get_logger("end"),
            board=self.board,
            index=index,
            paths=[str(directory / f"{number}.dgram") for number in range(workers)],
            load=lambda: (len(self.taken), 0),
            take=self.take,
            cancel=self.cancel,
        )
        self.peers.tell()

    def take(self, sock: socket.socket) -> None:
        self.taken.append(sock)
        self.news.set()

    def cancel(self, pid: int, key: bytes) -> None:
        self.cancels.append((pid, key))
        self.news.set()

    def accept(self, sock: socket.socket) -> None:
        if not self.peers.elsewhere(sock):
            self.take(sock)

    async def wait(self) -> None:
        async with asyncio.timeout(5):
            await self.news.wait()
        self.news.clear()

    def close(self) -> None:
        self.peers.stop()
        self.peers.close()
        for sock in self.taken:
            sock.close()
        self.board.close()


@pytest.fixture
async def ends(tmp_path: Path) -> AsyncIterator[list[End]]:
    board.create(tmp_path / "board", 2)
    with contextlib.ExitStack() as stack:
        made = [End(tmp_path, index, 2) for index in range(2)]
        for end in made:
            stack.callback(end.close)
        yield made


async def test_a_burst_is_shared_and_each_socket_still_works(ends: list[End]) -> None:
    """More at once than the kernel queues for a worker."""
    pairs = [socket.socketpair() for _ in range(60)]
    for _, far in pairs:
        ends[0].accept(far)
    async with asyncio.timeout(5):
        while sum(len(end.taken) for end in ends) < 60:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert [abs(len(end.taken) - 30) <= 2 for end in ends] == [True, True]
    for end in ends:
        for sock in end.taken:
            sock.sendall(b"x")
            assert not sock.get_inheritable()
    for near, _ in pairs:
        near.settimeout(5)
        assert near.recv(9) == b"x"
        near.close()


async def test_one_that_does_not_read_gets_no_more_than_its_queue_holds(ends: list[End]) -> None:
    asyncio.get_running_loop().remove_reader(ends[1].peers._socket)
    pairs = [socket.socketpair() for _ in range(60)]
    for _, far in pairs:
        ends[0].accept(far)
    async with asyncio.timeout(5):
        while ends[0].peers._parked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert len(ends[0].taken) >= max(60 - QUEUE - 1, 28)
    for near, _ in pairs:
        near.close()


async def test_one_that_is_gone_gets_none(ends: list[End]) -> None:
    ends[1].peers._socket.close()
    pairs = [socket.socketpair() for _ in range(10)]
    for _, far in pairs:
        ends[0].accept(far)
    assert len(ends[0].taken) == 10
    for near, _ in pairs:
        near.close()


async def test_a_cancel_request_reaches_the_other_worker(ends: list[End]) -> None:
    await ends[0].peers.forward_cancel(1, 77, b"key!")
    await ends[1].wait()
    assert ends[1].cancels == [(77, b"key!")]
    assert ends[0].cancels == []
