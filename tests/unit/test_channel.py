"""The channel between controller and workers, and the board that workers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy.ids import cancel_pid, free_pid, new_instance
from proxy.ipc import board, channel
from proxy.ipc.board import Board, slot_of
from proxy.ipc.channel import Channel, Link, Server
from proxy.ipc.messages import Counters, Drain, Grant, Hello, Message, Publish, encode
from proxy.ipc.paths import RuntimePaths
from proxy.testing import FakeTransport
from proxy.topology.snapshot import Snapshot


def connected(on_message: Callable[[Message], None]) -> tuple[Channel, FakeTransport]:
    transport = FakeTransport()
    made = Channel(lambda _, message: on_message(message), lambda _: None)
    made.connection_made(transport)  # type: ignore[arg-type]
    return made, transport


def test_frames_cut_at_every_byte() -> None:
    messages: list[Message] = [Hello(1, 2), Grant("n/d/u", 3), Publish(Snapshot(version=4)), Drain(5.0)]
    stream = b"".join(map(encode, messages))
    for cut in range(len(stream) + 1):
        got: list[Message] = []
        made, _ = connected(got.append)
        made.data_received(stream[:cut])
        made.data_received(stream[cut:])
        assert got == messages


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\2{}", b"\0\0\0\0"])
def test_garbage_ends_the_channel(garbage: bytes) -> None:
    got: list[Message] = []
    made, transport = connected(got.append)
    made.data_received(garbage + encode(Drain(1.0)))
    assert transport.aborted
    assert made.fault
    assert got == []


def test_one_that_does_not_read_is_cut_off() -> None:
    made, transport = connected(lambda _: None)
    assert made.send(Drain(1.0))
    transport.unsent = channel.MAX_UNSENT + 1
    assert not made.send(Drain(1.0))
    assert transport.aborted
    assert not made.send(Drain(1.0))


async def test_a_link_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "controller.sock"
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    told: asyncio.Queue[Message] = asyncio.Queue()
    hellos = 0

    def hello() -> Hello:
        nonlocal hellos
        hellos += 1
        return Hello(hellos, 1)

    def on_message(from_: Channel, message: Message) -> None:
        inbox.put_nowait(message)
        from_.send(Grant("k", 1))

    link = Link(path, hello, told.put_nowait)
    running = asyncio.create_task(link.run())
    assert not link.send(Counters(0, {}, []))  # nobody there yet: gone, and no harm
    for number in (1, 2):
        server = Server(on_message, lambda _: None)
        await server.start(path)
        async with asyncio.timeout(5):
            assert await inbox.get() == Hello(number, 1)
            assert await told.get() == Grant("k", 1)
            assert link.send(Counters(number, {"a": 1}, []))
            assert await inbox.get() == Counters(number, {"a": 1}, [])
            assert await told.get() == Grant("k", 1)
        await server.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_the_board_tells_where_a_key_was_read(tmp_path: Path) -> None:
    board.create(tmp_path / "board", 2)
    first, second = (Board(tmp_path / "board", worker) for worker in range(2))
    slot = slot_of("app")
    million = 1_000_000

    def at(ns: int) -> int:
        return ns | 0xFFFF

    assert first.reads(slot) == []
    first.note_read(slot, million, 7, 0)
    assert second.reads(slot) == [(at(million), 7)]
    second.note_read(slot, 3 * million, 8, 0)
    assert first.reads(slot) == [(at(million), 7), (at(3 * million), 8)]
    # Then on another node that is not known to hold what the one before did: it takes a node that holds all.
    first.note_read(slot, 2 * million, 8, at(million))
    assert first.reads(slot)[0] == (at(2 * million), 0)
    first.note_read(slot, 4 * million, 8, at(2 * million) + 1)
    assert first.reads(slot)[0] == (at(4 * million), 8)
    first.note_read(slot, 4 * million, 9, at(4 * million) + 1)
    assert first.reads(slot)[0] == (at(4 * million), 9)
    # On the primary: whatever was committed may have been seen.
    first.note_read(slot, 5 * million, 0, 0)
    assert first.reads(slot)[0] == (at(5 * million), 0)
    for each in (first, second):
        each.close()


def test_the_board_is_shared(tmp_path: Path) -> None:
    board.create(tmp_path / "board", 3)
    boards = [Board(tmp_path / "board", worker) for worker in range(3)]
    slot, other = slot_of("app"), slot_of("another")
    assert slot != other
    boards[0].note(slot, 10)
    boards[2].note(slot, 30)
    boards[2].note(slot, 20)
    assert [each.latest(slot) for each in boards] == [30, 30, 30]
    assert boards[1].latest(other) == 0
    boards[2].close()
    # A worker that is started again finds what its row had.
    again = Board(tmp_path / "board", 2)
    assert again.latest(slot) == 30
    for each in (boards[0], boards[1], again):
        each.close()
    with pytest.raises(ValueError, match="none for worker 3"):
        Board(tmp_path / "board", 3)
    board.create(tmp_path / "board", 1)
    fresh = Board(tmp_path / "board", 0)
    assert fresh.latest(slot) == 0
    fresh.close()


def test_process_ids_of_workers_differ() -> None:
    seen = set()
    for instance, worker, serial in [(1, 0, 0), (255, 255, 32767), (7, 3, 40_000)]:
        pid = cancel_pid(instance, worker, serial)
        assert 0 < pid < 2**31
        seen.add(pid)
    assert len(seen) == 3
    assert len({cancel_pid(1, 0, serial) for serial in range(32768)}) == 32768
    with pytest.raises(ValueError, match="out of range"):
        cancel_pid(0, 0, 0)
    # Serials start again; who is still there keeps its own.
    taken = {cancel_pid(1, 0, serial) for serial in (32767, 0, 1)}
    assert free_pid(1, 0, 32767, taken) == free_pid(1, 0, 32767 + 32768, taken) == cancel_pid(1, 0, 2)
    assert free_pid(1, 0, 5, taken) == cancel_pid(1, 0, 5)
    assert all(1 <= new_instance() <= 255 for _ in range(1000))


def test_an_earlier_run_leaves_nothing_that_is_taken_for_new(tmp_path: Path) -> None:
    paths = RuntimePaths(tmp_path)
    files = [paths.controller, paths.console, paths.board, paths.kept, paths.config, paths.datagrams(0)]
    for file in files:
        file.touch()
    assert set(files) <= set(paths.left_behind())
