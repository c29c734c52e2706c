"""Thousands of writes and reads by many sessions while a copy stands still: nobody is shown less than it must see.

Each session, or all that share a key, knows the least that any row may hold: what it has written and what it was
shown before it asked. The same run at `eventual` has to show older values, or it would prove nothing.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ..support.fleet import Fleet
from ..support.rawpg import B, E, P, Q, Reply, S, message, show, startup_message
from .conftest import Serve, Service, eventually

SESSIONS = 50
THINK = 0.1
"""Seconds between two statements of a session."""
SHARE = 0.8
"""Of all reads, how many copies have to serve at this pace."""
KEYS = 25
"""Sessions whose numbers are equal modulo this share a key."""
SETTINGS = {"workers": 2, "routing": {"read_split": True}, "lag": {"replica_out": 600, "replica_in": 300}}
"""A copy that stands still stays in use."""
SIZES = pytest.mark.parametrize("pairs", [1500, pytest.param(10_000, marks=pytest.mark.full)])
READ = "SELECT id, n FROM counted"
WRITE = "UPDATE counted SET n = n + 1"

State = dict[int, int]


class Session:
    """A client among many. It reads by simple queries, or by a statement that it prepared."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], prepares: bool) -> None:
        self._in, self._out = streams
        self._prepares = prepares
        self._read = (P("all", READ), B("", "all"), E(), S)

    async def ask(self, *messages: bytes) -> list[Reply]:
        """The replies up to ReadyForQuery. An error is an AssertionError."""
        self._out.write(b"".join(messages))
        replies: list[Reply] = []
        while not replies or replies[-1].kind != "Z":
            head = await self._in.readexactly(5)
            replies.append(Reply(chr(head[0]), await self._in.readexactly(int.from_bytes(head[1:], "big") - 4)))
        assert not any(reply.kind == "E" for reply in replies), show(replies)
        return replies

    async def rows(self, *messages: bytes) -> list[list[str]]:
        replies = await self.ask(*messages)
        return [[(value or b"").decode() for value in reply.values] for reply in replies if reply.kind == "D"]

    async def state(self) -> State:
        """What the rows hold."""
        if not self._prepares:
            return {int(row): int(n) for row, n in await self.rows(Q(READ))}
        read, self._read = self._read, (B("", "all"), E(), S)
        return {int(row): int(n) for row, n in await self.rows(*read)}

    async def write(self, row: int, how: int) -> State:
        """One more in a row, by one of three ways; what it holds then, if that is told."""
        if how % 3 == 0:
            return {row: int((await self.rows(Q(f"{WRITE} WHERE id = {row} RETURNING n")))[0][0])}
        if how % 3 == 1:
            await self.ask(Q("BEGIN"))
            n = int((await self.rows(Q(f"SELECT n + 1 FROM counted WHERE id = {row} FOR UPDATE")))[0][0])
            await self.ask(Q(f"{WRITE} WHERE id = {row}"))
            await self.ask(Q("COMMIT"))
            return {row: n}
        await self.ask(P("", f"{WRITE} WHERE id = $1"), B("", "", [str(row)]), E(), S)
        return {}

    async def close(self) -> None:
        self._out.write(message("X"))
        self._out.close()
        await self._out.wait_closed()


class Witness:
    """The least that each row may hold for those who share this; and how often a read showed less."""

    def __init__(self) -> None:
        self.least: State = {}
        self.reads = self.older = 0

    def saw(self, state: State) -> None:
        for row, n in state.items():
            self.least[row] = max(n, self.least.get(row, 0))

    async def read(self, client: Session) -> None:
        least = dict(self.least)  # as of the question; the answer may be as old as that
        state = await client.state()
        self.reads += 1
        self.older += any(state[row] < n for row, n in least.items())
        self.saw(state)


async def session(client: Session, witness: Witness, row: int, pairs: int, think: float) -> None:
    """One that writes, and reads after it."""
    for number in range(pairs):
        state = await client.write(row, number)
        witness.saw({row: number + 1} | state)
        await asyncio.sleep(think)
        await witness.read(client)
        await asyncio.sleep(think)


async def reader(client: Session, witness: Witness, pairs: int, think: float) -> None:
    """One that only reads what others with its key write."""
    for _ in range(pairs):
        await asyncio.sleep(think)
        await witness.read(client)
        await asyncio.sleep(think)


async def connect(service: Service, number: int, **settings: str) -> Session:
    streams = await asyncio.open_connection(*service.proxy.address)
    client = Session(streams, prepares=number % 2 == 1)
    more = {f"pgtrident.{name}": value for name, value in settings.items()}
    await client.ask(startup_message({"user": "pool20", "database": service.database, **more}))
    return client


async def run(service: Service, level: str, pairs: int, think: float) -> tuple[int, int]:
    """Reads, and how many of them showed an older value. At `key`, every second session only reads."""
    witnesses = [Witness() for _ in range(KEYS if level == "key" else SESSIONS)]
    clients = []
    for number in range(SESSIONS):
        settings = {"consistency_key": f"user {number % KEYS}"} if level == "key" else {}
        clients.append(await connect(service, number, consistency=level, **settings))
    try:
        each = pairs // len(witnesses)
        work = [session(clients[n], witness, n, each, think) for n, witness in enumerate(witnesses)]
        work += [reader(clients[n], witnesses[n % KEYS], each, think) for n in range(len(witnesses), SESSIONS)]
        await asyncio.gather(*work)
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    return sum(w.reads for w in witnesses), sum(w.older for w in witnesses)


def routes(service: Service) -> Counter[tuple[str, str]]:
    """Units so far by node and reason."""
    with urllib.request.urlopen(f"http://127.0.0.1:{service.proxy.admin_port}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = re.findall(r'^pgtrident_routes_total\{node="(\w+)",reason="(\w+)"\} ([\d.e+]+)', text, re.MULTILINE)
    return Counter({(node, reason): int(float(count)) for node, reason, count in found})


@contextmanager
def still(fleet: Fleet) -> Iterator[None]:
    """The second replica replays nothing."""
    _, second = fleet.replicas
    second.query("SELECT pg_wal_replay_pause()")
    try:
        yield
    finally:
        second.query("SELECT pg_wal_replay_resume()")
        fleet.caught_up()


def ready(service: Service, fleet: Fleet) -> Service:
    """The rows are on all nodes, and both copies serve."""
    service.admin.run("CREATE TABLE IF NOT EXISTS counted(id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 10)")
    rows = f"SELECT id, 0 FROM generate_series(0, {SESSIONS - 1}) AS id"
    service.admin.run(f"INSERT INTO counted {rows} ON CONFLICT DO NOTHING")
    fleet.caught_up()
    client = service.client(pool=20, pgtrident__consistency="eventual")
    mark = f"/* through {service.proxy.port} */ {READ}"
    assert eventually(lambda: client.query(mark) and service.reached(mark) >= {"replica1", "replica2"}, 10)
    return service


def share_of_copies(units: Counter[tuple[str, str]]) -> float:
    reads = {key: count for key, count in units.items() if key[1] not in ("write", "session")}
    return sum(count for key, count in reads.items() if key[0] != "primary") / sum(reads.values())


@SIZES
@pytest.mark.parametrize("level", ["session", "key"])
async def test_nobody_is_shown_an_older_value(serve: Serve, fleet: Fleet, level: str, pairs: int) -> None:
    service = ready(serve(SETTINGS, own=True), fleet)
    with still(fleet):
        reads, older = await run(service, level, pairs, THINK)
        assert reads >= pairs
        assert older == 0
        assert eventually(lambda: sum(routes(service).values()) >= pairs + reads)
        share = share_of_copies(routes(service))
        print(f"{level}: {pairs} writes, {reads} reads, {older} of older values, {share:.0%} of reads on replicas")
        assert share >= SHARE
        assert (await run(service, level, pairs // 3, 0))[1] == 0
        # What the levels are for: without them there are older values.
        reads, older = await run(service, "eventual", pairs // 3, 0)
        print(f"eventual: {reads} reads, {older} of older values")
        assert older > 0


async def test_a_copy_that_is_out_is_not_needed(serve: Serve, fleet: Fleet) -> None:
    """Beyond its lag limit the copy that stands still gets nothing; the other one serves its share."""
    service = ready(serve({**SETTINGS, "lag": {"replica_out": 0.2, "replica_in": 0.1}}, own=True), fleet)
    done = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"
    with still(fleet):
        service.admin.run("UPDATE counted SET n = n")
        service.proxy.wait_for("copy_out", node="replica2")
        before = fleet.replicas[1].query(done, service.database)
        assert (await run(service, "session", 500, THINK))[1] == 0
        assert eventually(lambda: sum(routes(service).values()) >= 1000)
        assert share_of_copies(routes(service)) >= SHARE
        assert fleet.replicas[1].query(done, service.database) == before


async def pass_on(first: Service, second: Service, row: int, times: int, tokens: bool) -> int:
    """Writes through one instance and reads through another, where the token is set or comes with the login; how
    many reads showed an older value."""
    witness = Witness()
    a, b = await connect(first, row), await connect(second, row)
    for number in range(times):
        witness.saw({row: number + 1} | await a.write(row, number))
        token = (await a.rows(Q("SHOW pgtrident.token")))[0][0] if tokens else ""
        assert bool(token) == tokens
        if number % 2:
            await b.close()
            b = await connect(second, row, token=token)
        elif tokens:
            await b.ask(Q(f"SET pgtrident.token = '{token}'"))
        await witness.read(b)
        await asyncio.sleep(THINK)
        await witness.read(b)
    await asyncio.gather(a.close(), b.close())
    return witness.older


@SIZES
async def test_tokens_carry_it_to_another_instance(serve: Serve, fleet: Fleet, pairs: int) -> None:
    first, second = (ready(serve(SETTINGS, own=True), fleet) for _ in range(2))

    async def carried(times: int, tokens: bool) -> int:
        """How many reads of all showed an older value."""
        return sum(await asyncio.gather(*(pass_on(first, second, n, times, tokens) for n in range(SESSIONS // 2))))

    with still(fleet):
        older = await carried(pairs // SESSIONS, True)
        without = await carried(4, False)
        print(f"{pairs} pairs over two instances: {older} of older values; without tokens, of 200: {without}")
        assert older == 0
        assert without > 0
