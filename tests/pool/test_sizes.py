"""How many servers a pool has, which one a client gets, and who waits: limits of pool, node and total."""

from __future__ import annotations

import asyncio
import time

import pytest

from ..conftest import base_settings
from ..support.proxy import merged
from ..support.rawpg import Q, Reply, Wire, show, startup_message
from .conftest import Serve, Service, backend, eventually

ONE = "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve()


def in_transaction(service: Service, count: int, **params: str) -> list[Wire]:
    """Clients that hold a server each."""
    clients = [service.client(pool=5, **params) for _ in range(count)]
    for client in clients:
        client.run("BEGIN")
    return clients


def test_a_pool_for_each_database_and_user(service: Service) -> None:
    """Neither user nor database of a session changes: each pair has servers of its own, each pool its size."""
    mine, theirs = service.client(pool=1), service.client(pool=2)
    elsewhere = service.client(pool=1, database="postgres")
    for client in (mine, theirs, elsewhere):
        client.run("BEGIN")
    pids = {backend(client) for client in (mine, theirs, elsewhere)}
    assert len(pids) == 3
    assert mine.rows("SELECT current_user, current_database()") == [["pool1", service.database]]
    assert theirs.rows("SELECT current_user, current_database()") == [["pool2", service.database]]
    assert elsewhere.rows("SELECT current_user, current_database()") == [["pool1", "postgres"]]
    pools = {(row["database"], row["user"]) for row in service.console("SHOW POOLS")}
    assert {(service.database, "pool1"), (service.database, "pool2"), ("postgres", "pool1")} <= pools


def test_servers_are_opened_as_they_are_needed(service: Service) -> None:
    """One client at a time needs one server, however many clients there are."""
    for _ in range(10):
        assert service.client(pool=5).query("SELECT 1") == ONE
    assert len(service.servers("pool5")) == 1
    in_transaction(service, 3)
    assert len(service.servers("pool5")) == 3


def test_no_more_than_its_size(service: Service) -> None:
    clients = [service.client(pool=3) for _ in range(12)]
    for client in clients:
        client.send(Q("SELECT pg_backend_pid() FROM pg_sleep(0.1)"))
    assert eventually(lambda: len(service.servers("pool3")) == 3)
    pids = set()
    for client in clients:
        replies = client.until()
        assert [r.kind for r in replies] == ["T", "D", "C", "Z"], show(replies)
        pids.add(replies[1].values[0])
    assert len(pids) == 3
    assert len(service.servers("pool3")) == 3


def test_the_server_given_back_last_is_taken_first(service: Service) -> None:
    """So that a pool shrinks to what it needs, the rest growing old at the other end."""
    clients = in_transaction(service, 3)
    pids = [backend(client) for client in clients]
    for place in (0, 2, 1):
        clients[place].run("COMMIT")
    stranger = service.client(pool=5)
    for _ in range(3):
        assert backend(stranger) == pids[1]


def test_a_client_gets_the_server_it_had_last(service: Service) -> None:
    one, two = in_transaction(service, 2)
    pids = [backend(one), backend(two)]
    one.run("COMMIT")
    two.run("COMMIT")
    for _ in range(3):
        assert backend(one) == pids[0]
        assert backend(two) == pids[1]


class Crowd:
    """Many clients of one pool that do the same at the same time."""

    def __init__(self, service: Service, user: str, count: int) -> None:
        self._address = service.proxy.address
        self._hello = startup_message({"user": user, "database": service.database})
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._count = count

    async def arrive(self, sql: str) -> list[list[bytes | None]]:
        """All connect, log in and ask at once; the row that each got."""
        return await asyncio.gather(*(self._arrive(sql, number) for number in range(self._count)))

    async def _arrive(self, sql: str, number: int) -> list[bytes | None]:
        reader, writer = await asyncio.open_connection(*self._address)
        self._streams.append((reader, writer))
        writer.write(self._hello + Q(sql.format(number)))
        await self._row(reader)
        return await self._row(reader)

    async def ask(self, sql: str) -> list[list[bytes | None]]:
        """All that are there ask at once."""
        for number, (_, writer) in enumerate(self._streams):
            writer.write(Q(sql.format(number)))
        return await asyncio.gather(*(self._row(reader) for reader, _ in self._streams))

    @staticmethod
    async def _row(reader: asyncio.StreamReader) -> list[bytes | None]:
        """The row of one answer, up to its ReadyForQuery."""
        row: list[bytes | None] = []
        while True:
            head = await reader.readexactly(5)
            reply = Reply(chr(head[0]), await reader.readexactly(int.from_bytes(head[1:], "big") - 4))
            assert reply.kind != "E", reply.fields
            if reply.kind == "D":
                row = reply.values
            if reply.kind == "Z":
                return row

    async def leave(self) -> None:
        for _, writer in self._streams:
            writer.close()
            await writer.wait_closed()


async def test_a_burst_of_clients_opens_no_more_servers_than_the_pool_has(service: Service) -> None:
    """A thousand log in at once and ask at once: all are served, by twenty servers."""
    crowd = Crowd(service, "pool20", 1000)
    async with asyncio.timeout(120):
        rows = await crowd.arrive("SELECT pg_backend_pid(), {}")
        assert sorted(int(row[1] or 0) for row in rows) == list(range(1000))
        assert len({row[0] for row in rows}) <= 20
        assert len(service.servers()) <= 20
        # Again with all of them logged in, and work that takes a moment.
        rows += await crowd.ask("SELECT pg_backend_pid(), {} FROM pg_sleep(0.005)")
        assert sorted(int(row[1] or 0) for row in rows[1000:]) == list(range(1000))
        assert len({row[0] for row in rows}) <= 20
        assert len(service.servers()) <= 20
        await crowd.leave()
    assert eventually(lambda: not any(row["database"] == service.database for row in service.console("SHOW CLIENTS")))


def test_the_pool_is_whole_after_clients_vanish_in_every_state(service: Service) -> None:
    """Waiting, logging in, in a transaction, with a statement running: no place is lost."""
    for _ in range(3):
        clients = [service.client(pool=3) for _ in range(9)]
        clients[0].run("BEGIN")
        assert clients[1].query("SELECT 1; SELECT 1/0").endswith("E[22012] ZI")
        for client in clients[2:]:
            client.send(Q("SELECT pg_sleep(0.2)"))
        service.open().send(startup_message({"user": "pool3", "database": service.database}))
        for number, client in enumerate(clients):
            (client.reset if number % 2 else client.close)()
    clients = [service.client(pool=3) for _ in range(3)]
    for client in clients:
        assert client.query("BEGIN") == "C[BEGIN] ZT"
    assert len({backend(client) for client in clients}) == 3
    assert len(service.servers("pool3")) == 3


RESERVE = {"pool": {"reserve": 1, "reserve_timeout": 0.6}}


def test_reserve_for_those_that_waited_long(serve: Serve) -> None:
    service = serve(RESERVE)
    holder, waiter = service.client(pool=1), service.client(pool=1)
    holder.run("BEGIN")
    start = time.monotonic()
    assert waiter.query("BEGIN") == "C[BEGIN] ZT"
    assert 0.5 < time.monotonic() - start < 3
    assert len(service.servers("pool1")) == 2
    # The reserve has an end as well.
    third = service.client(pool=1)
    third.send(Q("SELECT 1"))
    assert third.silence(1.2)
    holder.run("COMMIT")
    assert show(third.until()) == ONE
    assert len(service.servers("pool1")) == 2


NODE_LIMIT = {"nodes": {"primary": {"max_connections": 4}}}


def test_limit_of_a_node_over_all_pools(serve: Serve) -> None:
    """Pools of one node together: idle servers of another pool make room, busy ones are waited for."""
    service = serve(NODE_LIMIT)
    holders = [service.client(pool=5) for _ in range(3)]
    for holder in holders:
        holder.run("BEGIN")
    two = service.client(pool=2)
    two.run("BEGIN")
    # A pool's first login is told by a server what the session's parameters are, so it waits as well.
    late = service.open()
    late.send(startup_message({"user": "pool3", "database": service.database}), Q("SELECT 1"))
    assert late.silence(0.5)
    assert len(service.servers()) == 4
    # The server of another pool becomes idle, and gives its place.
    two.run("COMMIT")
    assert late.until()[-1].kind == "Z"
    assert show(late.until()) == ONE
    assert eventually(lambda: not service.servers("pool2"))
    assert len(service.servers()) == 4
    for holder in holders:
        holder.run("COMMIT")
    assert two.query("SELECT 1") == ONE


TOTAL = {"pool": {"max_total": 3}, "routing": {"read_split": True}}


def test_limit_in_all(serve: Serve) -> None:
    """Over all nodes: reads on replicas and writes on the primary share it."""
    service = serve(TOTAL)
    clients = [service.client(pool=5) for _ in range(12)]
    for number, client in enumerate(clients):
        client.send(Q("SELECT 1 FROM pg_sleep(0.05)" if number % 2 else "INSERT INTO trail(item_id) VALUES (1)"))
    for client in clients:
        assert client.until()[-1].kind == "Z"
        assert client.log[-2].kind == "C"
    assert sum(int(row["sv_active"] or 0) + int(row["sv_idle"] or 0) for row in service.console("SHOW POOLS")) <= 3
    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{service.database}' AND usename <> 'postgres'"
    nodes = (service.fleet.primary, *service.fleet.replicas)
    # A process of PostgreSQL outlives its socket for a moment.
    assert eventually(lambda: 1 <= sum(int(node.query(count)[0][0]) for node in nodes) <= 3)


def test_users_limit_of_clients(serve: Serve) -> None:
    service = serve({"users": {"pool3": {"max_clients": 2}}})
    one, two = service.client(pool=3), service.client(pool=3)
    refused = service.open().login({"user": "pool3", "database": service.database})
    assert refused.endswith("E[FATAL 53300] EOF")
    assert one.query("SELECT 1") == ONE
    two.close()
    assert eventually(lambda: service.open().login({"user": "pool3", "database": service.database}).endswith("ZI"))


def test_size_changed_by_a_reload(serve: Serve) -> None:
    """Smaller: idle servers beyond it go at once, busy ones when they are free. Larger: at once."""
    service = serve(own=True)
    clients = in_transaction(service, 4)
    assert len(service.servers("pool5")) == 4

    def resize(size: int) -> None:
        over = {"admin": {"users": ["console"]}, "users": {"pool5": {"pool_size": size}}}
        service.proxy.write_config(merged(base_settings(service.fleet), over))
        service.proxy.reload()

    resize(2)
    clients[0].run("COMMIT")
    assert eventually(lambda: len(service.servers("pool5")) == 3)
    for client in clients[1:]:
        client.run("COMMIT")
    assert eventually(lambda: len(service.servers("pool5")) == 2)
    for client in clients[:2]:
        client.run("BEGIN")
    clients[2].send(Q("SELECT 1"))
    assert clients[2].silence(0.3)
    resize(3)
    assert show(clients[2].until()) == ONE
    assert len(service.servers("pool5")) == 3
