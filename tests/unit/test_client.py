"""Clients on one server, all by fake transports: what depends on which of two things comes first."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from proxy.config.schema import Config
from proxy.dataplane.authenticate import LoggedIn
from proxy.dataplane.client import Client
from proxy.dataplane.consistency import SILENT
from proxy.dataplane.server import Server
from proxy.dataplane.waiter import Borrower
from proxy.dataplane.worker import Worker
from proxy.errors import NoServer
from proxy.ipc import board
from proxy.ipc.board import Board
from proxy.ipc.messages import Fresh, Publish, Setup
from proxy.session import rules
from proxy.session.wishes import KEY
from proxy.testing import FakeClock, FakeTransport
from proxy.topology.model import Health, Role
from proxy.topology.snapshot import Address, Copy, Freshness, NodeView, Snapshot
from proxy.wire import build
from proxy.wire.codes import IDLE

DONE = build.message(b"C", b"SELECT 0\0") + build.message(b"Z", b"I")


class Pair:
    """A client in the middle of its session and the one server of its pool."""

    def __init__(self, board: str = "", **pool: float) -> None:
        config = msgspec.convert({"nodes": {"primary": {"host": "127.0.0.1"}}, "pool": pool}, Config)
        node = NodeView(
            name="primary",
            host="127.0.0.1",
            port=1,
            role=Role.PRIMARY,
            health=Health.ACTIVE,
            addresses=(Address("127.0.0.1", 1),),  # nobody listens: a cancel ends at once
        )
        snapshot = Snapshot(version=1, nodes={"primary": node}, primary="primary")
        setup = Setup(config=config, snapshot=snapshot, instance=1, workers=1, board=board, console="", datagrams=[])
        self.clock = FakeClock()
        self.worker = Worker(setup, 0, self.clock, random.Random(1), lambda message: None)
        self.client = self._client(1)
        self.pool = self.worker.pools.pool("primary", self.client)
        self.another_server()
        self.client.welcome()

    def another_server(self) -> None:
        """A free one, as a dial would have given it."""
        self.server = Server(self.pool, self.worker.states.empty, 10)
        self.server.transport = cast(asyncio.Transport, FakeTransport())
        self.server.generation = self.pool.generation
        self.pool.state.taken[self.server] = None
        self.pool.give(self.server)

    def another(self, number: int) -> Client:
        """One more client, logged in."""
        client = self._client(number)
        client.welcome()
        return client

    def begin(self) -> None:
        """The first client opens a transaction."""
        self.client.data_received(build.query("BEGIN"))
        self.server.data_received(build.message(b"C", b"BEGIN\0") + build.message(b"Z", b"T"))

    def _client(self, number: int) -> Client:
        login = LoggedIn(
            user="u",
            database="d",
            params={},
            replication="",
            minor=0,
            credentials=None,
            peer="",
            tls=False,
            authenticated_by="trust",
        )
        transport = cast(asyncio.Transport, FakeTransport())
        return Client(self.worker, transport, login, self.worker.settings_for("d", "u"), number)

    async def tasks_ended(self) -> None:
        while self.worker._tasks:
            await asyncio.wait(list(self.worker._tasks))


@pytest.fixture
async def pair() -> Pair:
    return Pair()


async def test_a_cancel_that_is_quicker_than_the_answer(pair: Pair) -> None:
    """The client leaves while a question of the proxy's own is under way: its server comes back with the answer."""
    client, server = pair.client, pair.server
    pair.begin()
    answered: list[Any] = []

    def then(server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        answered.append(client.answered(server))

    client.ask(server, "SELECT 1", then)
    client.eof_received()
    await pair.tasks_ended()
    assert server not in pair.pool.state.idle
    server.data_received(DONE)
    assert answered == [False]
    assert server in pair.pool.state.idle


async def test_a_bad_message_while_only_questions_of_the_proxy_are_under_way(pair: Pair) -> None:
    client, server = pair.client, pair.server
    pair.begin()
    server.tell(build.close(b"S", b"x"))
    client.data_received(b"\xb9\0\0\0\x04")
    assert client.closed


async def test_a_bad_message_behind_a_statement_waits_for_its_answer(pair: Pair) -> None:
    client, server = pair.client, pair.server
    client.data_received(build.query("SELECT 1") + b"\xb9\0\0\0\x04")
    assert not client.closed
    server.data_received(DONE)
    assert client.closed


@pytest.mark.parametrize("sql", ["COPY t FROM STDIN", "SELECT 1; COPY t FROM STDIN"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_bad_message_within_a_copy(pair: Pair, when: str, sql: str) -> None:
    """No data will come, so the answer is not waited for."""
    client, server = pair.client, pair.server
    began = build.message(b"G", b"\0\0\0")
    bad = b"\xb9\0\0\0\x04"
    client.data_received(build.query(sql))
    for part in (bad, began) if when == "before" else (began, bad):
        (server if part is began else client).data_received(part)
    await asyncio.sleep(0)
    assert client.closed


async def test_a_waiter_has_a_server_opened_at_once(pair: Pair) -> None:
    pair.begin()
    pair.another(2).data_received(build.query("SELECT 1"))
    assert pair.pool.state.opening == 1


async def test_the_reserve_is_looked_at_when_one_more_comes() -> None:
    pair = Pair(pool_size=1, reserve=1, reserve_timeout=5.0)
    pair.begin()
    pair.another(2).data_received(build.query("SELECT 1"))
    assert pair.pool.state.opening == 0
    pair.clock.advance(6.0)
    pair.another(3).data_received(build.query("SELECT 1"))
    assert pair.pool.state.opening == 1


INSERT = build.query("INSERT INTO t VALUES (1)")
INSERTED = build.message(b"C", b"INSERT 0 1\0") + build.message(b"Z", b"I")


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[tuple[Pair, Board]]:
    """A client with a consistency key, and the board as another worker sees it."""
    board.create(tmp_path / "board", 2)
    pair = Pair(board=str(tmp_path / "board"))
    pair.client.wish({KEY: "k"})
    other = Board(tmp_path / "board", 1)
    yield pair, other
    other.close()


@pytest.mark.parametrize("cut", range(1, len(INSERTED)))
async def test_a_write_is_noted_before_its_client_can_know(
    keyed: tuple[Pair, Board], cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next read under its key may go through another worker."""
    pair, other = keyed
    pair.client.data_received(INSERT)
    now = pair.clock.advance(1.0)
    told: list[bool] = []

    def write(end: FakeTransport, data: bytes) -> None:
        if b"C" in data or b"Z" in data:
            told.append(other.latest(pair.client.key_slot) == int(now * 1e9))

    monkeypatch.setattr(FakeTransport, "write", write)
    pair.server.data_received(INSERTED[:cut])
    pair.server.data_received(INSERTED[cut:])
    assert told
    assert all(told)


async def test_a_read_is_noted_before_its_client_can_know(
    keyed: tuple[Pair, Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor may the next read under its key show less."""
    pair, other = keyed
    pair.client.data_received(build.query("SELECT 1"))
    now = int(pair.clock.advance(1.0) * 1e9)
    told: list[bool] = []

    def write(end: FakeTransport, data: bytes) -> None:
        told.append([moment for moment, _ in other.reads(pair.client.key_slot) if moment >= now] != [])

    monkeypatch.setattr(FakeTransport, "write", write)
    pair.server.data_received(DONE)
    assert told == [True]
    assert not other.latest(pair.client.key_slot)


async def test_a_write_whose_client_has_gone_is_noted(keyed: tuple[Pair, Board]) -> None:
    pair, other = keyed
    pair.client.data_received(INSERT)
    now = pair.clock.advance(1.0)
    pair.client.eof_received()
    pair.server.data_received(INSERTED)
    assert other.latest(pair.client.key_slot) == int(now * 1e9)


async def borrowing(pair: Pair) -> asyncio.Task[Server]:
    """A question of the proxy's own that waits, since the first client has the server."""
    pair.begin()
    task = asyncio.ensure_future(Borrower().take(pair.pool))
    await asyncio.sleep(0)
    assert pair.pool.state.waiting
    return task


async def test_a_borrower_waits_like_a_client(pair: Pair) -> None:
    task = await borrowing(pair)
    pair.client.data_received(build.query("ROLLBACK"))
    pair.server.data_received(DONE)
    assert await task is pair.server
    assert pair.server in pair.pool.state.taken
    pair.pool.give(pair.server)
    assert await Borrower().take(pair.pool) is pair.server


async def test_a_borrower_whose_node_goes_is_refused(pair: Pair) -> None:
    task = await borrowing(pair)
    pair.worker._publish(Snapshot(version=2, nodes=pair.worker.snapshot.nodes))
    with pytest.raises(NoServer):
        await task
    assert not pair.pool.state.waiting


async def test_a_borrower_that_has_given_up_leaves_the_queue(pair: Pair) -> None:
    task = await borrowing(pair)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not pair.pool.state.waiting


@pytest.mark.parametrize("granted_first", [True, False])
async def test_a_borrower_that_gives_up_as_it_is_granted_gives_back(pair: Pair, granted_first: bool) -> None:
    """Whichever is first: the server is nobody's but the pool's."""
    task = await borrowing(pair)
    pair.client.data_received(build.query("ROLLBACK"))
    if not granted_first:
        task.cancel()
    pair.server.data_received(DONE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pair.server in pair.pool.state.idle


async def test_what_a_connection_needs_goes_with_it(pair: Pair) -> None:
    """Full collections are rare, and TLS takes some 50 kB a connection."""
    client = pair.another(2)
    held = weakref.ref(client.transport)
    gc.disable()
    try:
        client.connection_lost(None)
        assert held() is None
    finally:
        gc.enable()
    client.write(b"nobody reads this")


FATAL = build.message(b"E", b"SFATAL\0VFATAL\0C57P01\0Mgoing\0\0")


@pytest.mark.parametrize("how", ["lost", "fatal", "new", "new and told"])
async def test_a_copy_that_breaks_a_connection_is_doubted(pair: Pair, how: str) -> None:
    """It may have been restarted, and the controller may be away."""
    worker = pair.worker
    copy = Copy(fresh_ns=pair.clock.boot_ns(), lsn=1, weight=100)
    worker.handle(Fresh(Freshness(copies={"primary": copy, "other": copy})))
    pair.clock.advance(0.5)
    if how == "lost":
        pair.server.connection_lost(None)
    elif how == "fatal":
        pair.server.data_received(FATAL)
    else:
        pair.clock.advance(SILENT)
        if how == "new and told":
            worker.handle(Fresh(worker.consistency.freshness))
        worker.consistency.first_seen("primary")
    now = pair.clock.boot_ns()
    doubted = (copy.fresh_ns, 0) if how == "new and told" else (0, now)
    assert (
        worker.consistency.freshness.copies["primary"].fresh_ns,
        worker.consistency.freshness.copies["primary"].since_ns,
    ) == doubted
    assert worker.consistency.freshness.copies["other"] == copy
    # What was under way is no better; what was read since is.
    worker.handle(Fresh(Freshness(copies={"primary": copy})))
    assert worker.consistency.freshness.copies["primary"].fresh_ns == doubted[0]
    worker.handle(Fresh(Freshness(copies={"primary": Copy(fresh_ns=now + 1, lsn=1, weight=100)})))
    assert worker.consistency.freshness.copies["primary"].fresh_ns == now + 1


async def test_who_waits_at_a_copy_that_is_doubted_is_routed_again(pair: Pair) -> None:
    pair.begin()
    other = pair.worker.clients[2] = pair.another(2)
    other.data_received(build.query("SELECT 1"))
    assert other.waiting_in is pair.pool
    pair.worker.handle(Fresh(Freshness(copies={"primary": Copy(weight=100)})))
    waits = pair.pool.counters.waits
    pair.worker.consistency.doubt("primary")
    assert pair.pool.counters.waits == waits + 1  # once more here: there is no other
    assert other.waiting_in is pair.pool


async def test_a_late_cancel_of_the_proxys_own_question(pair: Pair) -> None:
    """It was meant for the statement before: what the session is gets asked once more, and once only."""
    cancelled = build.error_fields({"S": "ERROR", "C": "57014", "M": "canceled"}) + build.message(b"Z", b"I")
    pair.client.data_received(build.query("SET work_mem = '1MB'"))
    pair.server.data_received(build.message(b"C", b"SET\0") + build.message(b"Z", b"I"))
    assert len(pair.server.owed) == 1
    pair.server.data_received(cancelled)
    assert len(pair.server.owed) == 1
    assert not pair.client.pins
    pair.server.data_received(cancelled)
    assert pair.client.pins == {rules.PIN_UNKNOWN}


def connected_anew(pair: Pair, **node: Any) -> None:
    """A snapshot by which no server that there is may be used again."""
    before = pair.worker.snapshot
    view = before.nodes["primary"]
    view = msgspec.structs.replace(view, generation=view.generation + 1, **node)
    pair.worker.handle(Publish(msgspec.structs.replace(before, version=before.version + 1, nodes={"primary": view})))


async def test_who_never_pauses_leaves_a_server_that_is_to_go(pair: Pair) -> None:
    """What comes behind the statement under way goes to another server; in a transaction it stays."""
    client, server = pair.client, pair.server
    sent = cast(FakeTransport, server.transport)
    pair.begin()
    sent.take()
    client.data_received(build.query("SELECT 1"))
    connected_anew(pair)
    client.data_received(build.query("SELECT 2"))
    assert sent.take() == build.query("SELECT 1") + build.query("SELECT 2")
    server.data_received(build.message(b"C", b"SELECT 0\0") + build.message(b"Z", b"T"))
    server.data_received(build.message(b"C", b"SELECT 0\0") + build.message(b"Z", b"T"))
    client.data_received(build.query("COMMIT"))
    server.data_received(build.message(b"C", b"COMMIT\0") + build.message(b"Z", b"I"))
    assert server.closed
    pair.another_server()
    server = pair.server
    sent = cast(FakeTransport, server.transport)
    client.data_received(build.query("SELECT 3"))
    connected_anew(pair)
    client.data_received(build.query("SELECT 4"))
    assert sent.take() == build.query("SELECT 3")
    server.data_received(DONE)
    assert server.closed and client.waiting_in is pair.pool
    await pair.tasks_ended()


async def test_a_server_that_was_dialled_before_is_nobodys(pair: Pair) -> None:
    dialled, let_in = asyncio.Event(), asyncio.Event()
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # whether there is TLS
        writer.write(b"N")
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big") - 4)
        dialled.set()
        await let_in.wait()
        writer.write(build.AUTHENTICATION_OK + build.backend_key(1, b"key!") + build.ready(IDLE))
        heard.put_nowait(await reader.read())
        writer.close()

    pair.begin()  # so that its server isn't free
    async with await asyncio.start_server(node, "127.0.0.1", 0) as serving:
        connected_anew(pair, addresses=(Address("127.0.0.1", serving.sockets[0].getsockname()[1]),))
        borrower = asyncio.ensure_future(Borrower().take(pair.pool))
        await dialled.wait()
        connected_anew(pair)
        let_in.set()
        server = await borrower
        assert server.generation == pair.pool.generation == 2
        assert await heard.get() == build.TERMINATE
        pair.pool.close(server, "the end")
        assert await heard.get() == build.TERMINATE
