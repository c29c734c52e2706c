"""The console as its clients see it: byte transcripts, then psql and drivers as they are."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import asyncpg
import msgspec
import pg8000.native
import psycopg
import pytest

from proxy.admin import console as console_module
from proxy.admin.answers import Who
from proxy.admin.command import Context
from proxy.admin.commands import load
from proxy.admin.console import Console
from proxy.admin.session import Session
from proxy.admin.stats import Stats
from proxy.clock import SystemClock
from proxy.config.schema import Admin, Node
from proxy.errors import ProtocolViolation
from proxy.testing import SeededRng
from tests.support.fake_view import FakeView, pool_row, worker_report
from tests.support.rawpg import (
    SSL_REQUEST,
    B,
    C,
    D,
    E,
    H,
    P,
    Q,
    S,
    Wire,
    X,
    cancel_message,
    copy_data,
    function_call,
    message,
    request,
    show,
    startup_message,
)

PORT = 6432
COMMANDS = (
    "clients",
    "config",
    "databases",
    "help",
    "history",
    "nodes",
    "pools",
    "rules",
    "servers",
    "services",
    "shapes",
    "shapes_measured",
    "shapes_seen",
    "stats",
    "version",
)
ACTIONS = ("drain", "forget", "reconnect", "undrain")


class Fixture:
    """A console over a fake view."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = f"{folder}/.s.PGSQL.{PORT}"
        self.view = FakeView()
        self.console = Console(Context(self.view, Stats(self.view, SystemClock())))

    def wire(self, *, cut: bool = False, **params: str) -> Wire:
        """A client that is logged in."""
        wire = Wire(self.path, cut=cut)
        wire.send(startup_message({"user": "ann", "database": "pgtrident", **params}))
        wire.until("Z")
        return wire

    async def say(self, *messages: bytes, cut: bool = False) -> str:
        """The replies to messages, after which the client leaves."""

        def talk() -> str:
            with closing(self.wire(cut=cut)) as wire:
                return show(wire.send(*messages, X).until("EOF")[:-1])

        return await asyncio.to_thread(talk)


@pytest.fixture
async def console() -> AsyncIterator[Fixture]:
    folder = tempfile.mkdtemp(prefix="console")
    fixture = Fixture(folder)
    await fixture.console.start(fixture.path)
    yield fixture
    await fixture.console.stop()
    shutil.rmtree(folder)


def test_registry_finds_every_command() -> None:
    assert tuple(load()) == tuple(sorted(COMMANDS + ACTIONS))


async def test_services_are_summed_over_the_workers(console: Fixture) -> None:
    console.view.counters[1].values["switch:pg1:affinity_next:billing"] = 3
    assert (await console.say(Q("SHOW SERVICES"))).endswith(
        "D[billing,1,pg2, pg1,pg2,pg1,pg1=4, pg2=1,2027-01-15 08:00:00 UTC,3] D[web,0,pg2,null,null,,null,0] C[SHOW] ZI"
    )


@pytest.mark.parametrize(
    ("sql", "replies", "forgotten"),
    [
        ("SHOW SHAPES", "D[shop,0af3,25006,2027-01-15 08:00:00 UTC,SELECT f($1)] C[SHOW] ZI", []),
        (
            "show shapes seen",
            "D[shop,0af3,12,read,cart, item,session,app,2027-01-15 08:00:00 UTC,"
            "SELECT * FROM cart, item WHERE id = $1] C[SHOW] ZI",
            [],
        ),
        ("show shapes measured", "D[shop,0af3,analytic,4,250.0,0,null,null,SELECT * FROM cart] C[SHOW] ZI", []),
        ("FORGET SHAPE '0af3'", "D[1] C[FORGET] ZI", ["0af3"]),
        ("forget shape 0af3;", "D[1] C[FORGET] ZI", ["0af3"]),
        ("FORGET SHAPES", "D[1] C[FORGET] ZI", [""]),
        ("FORGET", "E[42601] ZI", []),
        ("FORGET SHAPE", "E[42601] ZI", []),
        ("FORGET SHAPE ''", "E[42601] ZI", []),
        ("SHOW FORGET", "E[42601] ZI", []),
    ],
)
async def test_shapes_are_shown_and_forgotten(console: Fixture, sql: str, replies: str, forgotten: list[str]) -> None:
    assert (await console.say(Q(sql))).endswith(replies)
    assert console.view.forgotten == forgotten
    # Who has changed something is written down, if it could be done.
    assert console.view.commands == [(sql.rstrip(";"), "ann") for _ in forgotten]


@pytest.mark.parametrize(
    ("sql", "replies", "wishes"),
    [
        ("DRAIN NODE pg2", "D[pg2,draining,2027-01-15 08:01:00 UTC] C[DRAIN] ZI", [("drain", "pg2", None)]),
        ("drain node PG2 30s;", "D[pg2,draining,2027-01-15 08:01:00 UTC] C[DRAIN] ZI", [("drain", "pg2", 30.0)]),
        ("UNDRAIN NODE 'pg2'", "D[pg2,down] C[UNDRAIN] ZI", [("undrain", "pg2", None)]),
        ('RECONNECT NODE "pg1"', "D[pg1,active] C[RECONNECT] ZI", [("reconnect", "pg1", None)]),
        ("DRAIN NODE pg2 soon", "E[42601] ZI", []),
        ("DRAIN pg2", "E[42601] ZI", []),
        ("DRAIN NODE", "E[42601] ZI", []),
        ("RECONNECT", "E[42601] ZI", []),
        ("RECONNECT NODE pg1 30s", "E[42601] ZI", []),
        ("UNDRAIN NODE pg3", "E[42704] ZI", []),
    ],
)
async def test_nodes_are_drained(console: Fixture, sql: str, replies: str, wishes: list[object]) -> None:
    assert (await console.say(Q(sql))).endswith(replies)
    assert console.view.wishes == wishes
    assert console.view.commands == [(sql.rstrip(";"), "ann") for _ in wishes]


async def test_history_is_shown(console: Fixture) -> None:
    row = "D[2027-01-15 08:00:00 UTC,health,pg2,active,suspect,refused,pass; refused: connection refused,]"
    assert (await console.say(Q("SHOW HISTORY"))).endswith(f"{row} C[SHOW] ZI")


SIMPLE = [
    (Q("SHOW VERSION"), "T[version] D[pgtrident 0.1.0] C[SHOW] ZI"),
    (Q("show /* x */ Version ; -- end"), "T[version] D[pgtrident 0.1.0] C[SHOW] ZI"),
    (Q("SHOW VERSION; SELECT 1;"), "T[version] D[pgtrident 0.1.0] C[SHOW] T[?column?] D[1] C[SELECT 1] ZI"),
    (Q("SHOW VERSION; nonsense; SELECT 1"), "T[version] D[pgtrident 0.1.0] C[SHOW] E[42601] ZI"),
    (Q("SHOW 'VERSION"), "E[42601] ZI"),
    (Q("SET application_name = 'x'; RESET ALL; DISCARD ALL"), "C[SET] C[RESET] C[DISCARD ALL] ZI"),
    (Q("BEGIN") + Q("SELECT 1") + Q("COMMIT"), "C[BEGIN] ZT T[?column?] D[1] C[SELECT 1] ZT C[COMMIT] ZI"),
    (Q("BEGIN; oops") + Q("SELECT 1") + Q("COMMIT"), "C[BEGIN] E[42601] ZE E[25P02] ZE C[ROLLBACK] ZI"),
    (Q("ROLLBACK"), "C[ROLLBACK] ZI"),
    (Q("ROLLBACK TO a"), "C[ROLLBACK] ZI"),
    (Q("BEGIN; x") + Q("ROLLBACK TO a"), "C[BEGIN] E[42601] ZE C[ROLLBACK] ZT"),
    (Q("SHOW transaction isolation level"), "T[transaction_isolation] D[read committed] C[SHOW] ZI"),
    (Q("select pg_catalog.version()"), "T[version] D[PostgreSQL 15.0 (pgtrident 0.1.0)] C[SELECT 1] ZI"),
    (Q("SELECT current_user"), "T[current_user] D[ann] C[SELECT 1] ZI"),
    (Q("SELECT 'it''s'"), "T[?column?] D[it's] C[SELECT 1] ZI"),
    (Q("SELECT 99999999999"), "E[42601] ZI"),
    (Q(b"SHOW \xff"), "E[22021] ZI"),
    (function_call(1), "E[0A000] ZI"),
    (copy_data(b"x") + S, "ZI"),
]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("sent", "got"), SIMPLE)
async def test_simple_protocol(console: Fixture, sent: bytes, got: str, cut: bool) -> None:
    assert await console.say(sent, cut=cut) == got


VERSION = "D[pgtrident 0.1.0]"
EXTENDED = [
    ((P("", "SHOW VERSION"), B(), D("P"), E(), S), f"1 2 T[version] {VERSION} C[SHOW] ZI"),
    ((P("a", "SHOW VERSION"), D("S", "a"), H, B("", "a"), E(), S), f"1 t[] T[version] 2 {VERSION} C[SHOW] ZI"),
    ((P("", "BEGIN"), B(), D("P"), E(), S, Q("END")), "1 2 n C[BEGIN] ZT C[COMMIT] ZI"),
    ((P("", " -- nothing"), B(), D("P"), E(), S), "1 2 n I ZI"),
    ((P("", "oops"), B(), E(), S, Q("SELECT 1")), "E[42601] ZI T[?column?] D[1] C[SELECT 1] ZI"),
    ((P("", "SELECT 1; SELECT 2"), S), "E[42601] ZI"),
    ((B("", "none"), S), "E[26000] ZI"),
    ((E("none"), S), "E[34000] ZI"),
    ((P("a", "SELECT 1"), P("a", "SELECT 1"), S), "1 E[42P05] ZI"),
    ((P("a", "SELECT 1"), C("S", "a"), P("a", "SELECT 2"), S), "1 3 1 ZI"),
    ((P("", "SELECT 1"), B(params=["x"]), S), "1 E[08P01] ZI"),
    ((P("", "SELECT 1"), B(formats=[0, 0]), S), "1 E[08P01] ZI"),
    ((P("", "SELECT 1"), B(formats=[2]), S), "1 E[08P01] ZI"),
    ((P("", "SELECT 1"), message("B", b"\0\0\0"), S), "1 E[08P01] ZI"),
    ((message("P", b"no end"), S), "E[08P01] ZI"),
    ((P("", "SHOW NODES"), B(), E(rows=1), E(rows=5), S), "1 2 D[...] s D[...] C[SHOW] ZI"),
    ((P("", "SELECT 1"), B("p"), S, E("p"), S), "1 2 ZI E[34000] ZI"),
    ((P("", "BEGIN"), B(), E(), P("", "oops"), S, Q("ABORT")), "1 2 C[BEGIN] E[42601] ZE C[ROLLBACK] ZI"),
    ((*(P(f"s{n}", "SELECT 1") for n in range(257)), S), " ".join(["1"] * 256) + " E[53400] ZI"),
    ((P("", "SELECT 1"), *(B(f"p{n}") for n in range(17)), S), "1 " + " ".join(["2"] * 16) + " E[53400] ZI"),
]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("sent", "got"), EXTENDED)
async def test_extended_protocol(console: Fixture, sent: tuple[bytes, ...], got: str, cut: bool) -> None:
    shown = await console.say(*sent, cut=cut)
    if "D[...]" in got:
        shown = " ".join("D[...]" if part.startswith("D[") else part for part in _parts(shown))
    assert shown == got


def _parts(shown: str) -> list[str]:
    """The short form split at spaces outside of brackets."""
    parts, depth = [""], 0
    for sign in shown:
        depth += (sign == "[") - (sign == "]")
        if sign == " " and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


async def test_binary_results(console: Fixture) -> None:
    def talk() -> list[bytes | None]:
        with closing(console.wire()) as wire:
            replies = wire.send(P("", "SELECT 258"), B(formats=[1]), D("P"), E(), S).until("Z")
        assert replies[2].columns == [("?column?", 23, 1)]
        return replies[3].values

    assert await asyncio.to_thread(talk) == [b"\0\0\1\2"]


async def test_login(console: Fixture) -> None:
    def talk() -> str:
        with closing(Wire(console.path)) as wire:
            wire.send(request(SSL_REQUEST))
            assert wire.raw(1) == b"N"
            wire.send(startup_message({"user": "ann", "database": "pgbouncer", "application_name": "me"}))
            replies = wire.until("Z")
        assert wire.status["application_name"] == "me"
        assert wire.status["session_authorization"] == "ann"
        assert wire.status["server_version"].startswith("15.0 ")
        return show(reply for reply in replies if reply.kind != "S")

    assert await asyncio.to_thread(talk) == "R0 K ZI"


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (startup_message({"database": "pgtrident"}), "E[FATAL 28000] EOF"),
        (startup_message({"user": "a"}, 2 << 16), "E[FATAL 0A000] EOF"),
        (b"\0\0\0\7xxx", "E[FATAL 08P01] EOF"),
        (b"GET / HTTP/1.1\r\n\r\n", "E[FATAL 08P01] EOF"),
        (cancel_message(0, bytes(4)), "EOF"),
        (startup_message({"user": "a"}) + b"\x00\0\0\0\4", "E[FATAL 08P01] EOF"),
        (startup_message({"user": "a"}) + b"Q\0\0\0\3", "E[FATAL 08P01] EOF"),
        (startup_message({"user": "a"}) + b"Q\0\1\0\1", "E[FATAL 08P01] EOF"),
        (startup_message({"user": "a"}) + message("Q", b"no end"), "E[FATAL 08P01] EOF"),
        (startup_message({"user": "a"}) + message("Q", b"SELECT\0 1\0"), "E[FATAL 08P01] EOF"),
        (startup_message({"user": "a"}) + X, "EOF"),
    ],
)
async def test_offenders_are_told_and_closed(console: Fixture, sent: bytes, got: str) -> None:
    def talk() -> str:
        with closing(Wire(console.path)) as wire:
            replies = wire.send(sent).until("EOF")
        return show(reply for reply in replies if reply.kind in ("E", "EOF"))

    assert await asyncio.to_thread(talk) == got
    assert await console.say(Q("SELECT 1")) == "T[?column?] D[1] C[SELECT 1] ZI"


async def test_newer_protocol_is_negotiated(console: Fixture) -> None:
    def talk() -> str:
        with closing(Wire(console.path)) as wire:
            return show(wire.send(startup_message({"user": "a", "_pq_.x": "1"}, 0x30009)).until("Z")[:2])

    assert await asyncio.to_thread(talk) == "v[2,_pq_.x] R0"


async def test_users_may_be_limited(console: Fixture) -> None:
    console.view.config = msgspec.structs.replace(console.view.config, admin=Admin(users=("boss",)))

    def talk(user: str) -> str:
        with closing(Wire(console.path)) as wire:
            return str(wire.send(startup_message({"user": user})).read())

    assert await asyncio.to_thread(talk, "ann") == "E[FATAL 28000]"
    assert await asyncio.to_thread(talk, "boss") == "R0"


async def test_clients_are_bounded(console: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "MAX_CLIENTS", 1)

    def talk() -> str:
        with closing(console.wire()) as first, closing(Wire(console.path)) as second:
            refused = show(second.send(startup_message({"user": "a"})).until("E"))
            first.send(X).until("EOF")
            return refused

    assert await asyncio.to_thread(talk) == "E[FATAL 53300]"
    assert await console.say(Q("SELECT 1")) == "T[?column?] D[1] C[SELECT 1] ZI"


async def test_silent_clients_are_dropped(console: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "LOGIN_TIMEOUT", 0.05)

    def talk() -> str:
        with closing(Wire(console.path)) as wire:
            return show(wire.until("EOF"))

    assert await asyncio.to_thread(talk) == "EOF"


async def test_socket_is_private_and_replaces_an_old_one(console: Fixture) -> None:
    assert os.stat(console.path).st_mode & 0o777 == 0o600
    console.path = f"{console.folder}/again"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(console.path)
    again = Console(Context(console.view, Stats(console.view, SystemClock())))
    await again.start(console.path)
    assert await console.say(Q("SELECT 1")) == "T[?column?] D[1] C[SELECT 1] ZI"
    await again.stop()


async def test_clients_are_told_of_the_end(console: Fixture) -> None:
    with closing(await asyncio.to_thread(console.wire)) as wire:
        await console.console.stop()
        assert show(await asyncio.to_thread(wire.until, "EOF")) == "E[FATAL 57P01] EOF"


async def test_fault_in_a_command_ends_nothing(console: Fixture, capsys: pytest.CaptureFixture[str]) -> None:
    console.view.rows["clients"] = [{"worker": 0}]
    got = await console.say(Q("SHOW CLIENTS"), Q("SELECT 1"))
    assert got == "T[" + ",".join(name for name, _ in load()["clients"].columns) + "] E[XX000] ZI " + (
        "T[?column?] D[1] C[SELECT 1] ZI"
    )
    assert "console_command_failed" in capsys.readouterr().err


async def rows(console: Fixture, sql: str) -> list[dict[str, Any]]:
    """The rows of a command through psycopg."""
    async with await psycopg.AsyncConnection.connect(
        host=console.folder, port=PORT, user="ann", dbname="pgtrident", row_factory=psycopg.rows.dict_row
    ) as connection:
        return await (await connection.execute(sql)).fetchall()


async def test_pools_are_summed_over_workers(console: Fixture) -> None:
    console.view.counters = {
        0: worker_report(0, [pool_row(clients_active=1, servers_active=1, max_wait_us=2_500_000)]),
        1: worker_report(1, [pool_row(clients_active=2, clients_waiting=3, servers_idle=4), pool_row(node="pg2")]),
    }
    first, second = await rows(console, "SHOW POOLS")
    assert second["node"] == "pg2"
    assert {name: value for name, value in first.items() if value} == {
        "database": "shop",
        "user": "app",
        "cl_active": 3,
        "cl_waiting": 3,
        "sv_active": 1,
        "sv_idle": 4,
        "maxwait": 2,
        "maxwait_us": 500_000,
        "pool_mode": "transaction",
        "node": "pg1",
    }


async def test_stats(console: Fixture) -> None:
    (row,) = await rows(console, "SHOW STATS")
    assert row["database"] == "shop"
    assert (row["total_xact_count"], row["total_query_count"], row["avg_query_count"]) == (13, 15, 15)


async def test_nodes(console: Fixture) -> None:
    first, second = await rows(console, "SHOW NODES")
    assert (first["name"], first["role"], first["health"], first["serving"]) == ("pg1", "primary", "active", "yes")
    assert (first["since"], first["cause"], first["queries"]) == ("2027-01-15 08:00:00 UTC", "probe passed", 15)
    assert (second["health"], second["serving"], second["lag_bytes"], second["since"]) == ("down", "no", 64, None)
    assert (first["drain"], second["drain"]) == (None, "draining")


async def test_clients_and_servers(console: Fixture) -> None:
    (client,) = await rows(console, "SHOW CLIENTS")
    assert (client["ptr"], client["worker"], client["wait"], client["wait_us"]) == ("c17", 1, 2, 3)
    assert (client["application_name"], client["connect_time"]) == ("naïve ☕", "2027-01-15 08:00:00 UTC")
    (server,) = await rows(console, "SHOW SERVERS")
    assert (server["node"], server["state"], server["link"]) == ("pg1", "idle", None)


async def test_databases(console: Fixture) -> None:
    console.view.counters[0].pools.append(pool_row(database="other", servers_idle=2))
    other, shop = await rows(console, "SHOW DATABASES")
    assert (other["name"], other["database"], other["current_connections"]) == ("other", "other", 2)
    assert (shop["name"], shop["host"], shop["port"], shop["pool_size"]) == ("shop", "db1", 5432, 20)
    console.view.snapshot = None
    assert (await rows(console, "SHOW DATABASES"))[1]["host"] is None


async def test_config_shows_every_setting_but_no_secret(console: Fixture) -> None:
    console.view.config = msgspec.structs.replace(console.view.config, nodes={"pg 1": Node(host="db1")})
    shown = {row["key"]: row for row in await rows(console, "SHOW CONFIG")}
    assert shown["pool.pool_size"]["value"] == shown["pool.pool_size"]["default"] == "20"
    assert shown["pool.pool_size"]["changeable"] == "yes"
    assert shown["listen.port"]["changeable"] == "no"
    assert shown['nodes."pg 1".host'] == {
        "key": 'nodes."pg 1".host',
        "value": '"db1"',
        "default": "",
        "changeable": "yes",
    }
    assert "hunter2" not in str(shown)
    assert "s3cret" not in str(shown)
    assert shown["databases.shop.password"]["value"] == '"***"'


@pytest.mark.parametrize("command", COMMANDS)
async def test_psycopg(console: Fixture, command: str) -> None:
    columns = [name for name, _ in load()[command].columns]
    async with await psycopg.AsyncConnection.connect(
        host=console.folder, port=PORT, user="ann", dbname="pgtrident"
    ) as connection:
        for binary in (False, True):
            cursor = await connection.execute(f"show {command}", binary=binary, prepare=True)
            assert [column.name for column in cursor.description or ()] == columns
            assert await cursor.fetchall()
        with pytest.raises(psycopg.errors.SyntaxError) as caught:
            await connection.execute("SHOW NOTHING")
        assert caught.value.diag.message_hint
        await connection.rollback()


async def test_asyncpg(console: Fixture) -> None:
    connection = await asyncpg.connect(host=console.folder, port=PORT, user="ann", database="pgbouncer")
    for command in COMMANDS:
        assert await connection.fetch(f"SHOW {command}")
    (row,) = await connection.fetch("SHOW STATS")
    assert row["total_query_count"] == 15
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await connection.fetch("SHOW NOTHING")
    async with connection.transaction():
        assert await connection.fetchval("SELECT 1") == 1
    await connection.execute("SHOW POOLS; SHOW STATS")
    await connection.reset()
    await connection.close()


async def test_pg8000(console: Fixture) -> None:
    def talk() -> list[Any]:
        connection = pg8000.native.Connection("ann", database="pgtrident", unix_sock=console.path)
        found = connection.run("SHOW POOLS")
        connection.close()
        return list(found)

    assert (await asyncio.to_thread(talk))[0][0] == "shop"


@pytest.mark.skipif(shutil.which("psql") is None, reason="there is no psql")
async def test_psql(console: Fixture) -> None:
    target = f"host={console.folder} port={PORT} user=ann dbname=pgtrident"
    psql = await asyncio.create_subprocess_exec(
        *("psql", target, "-XAt", "-c", "show version; show pools", "-c", "show nothing"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await psql.communicate()
    assert out.decode().splitlines()[0] == "pgtrident 0.1.0"
    assert out.decode().splitlines()[1].startswith("shop|app|")
    assert "HINT:  Use SHOW HELP" in err.decode()


async def test_random_messages_break_nothing() -> None:
    """Whatever comes, the answer is bytes or a FATAL, and the next query works."""
    rng = SeededRng(5)
    view = FakeView()
    session = Session(Who("ann", "pgtrident", {}), Context(view, Stats(view, SystemClock())), load())
    whole = [
        P("a", "SHOW NODES"),
        B("p", "a"),
        D("P", "p"),
        D("S", "a"),
        E("p", 1),
        C("P", "p"),
        Q("SHOW POOLS"),
        Q("BEGIN"),
    ]
    severities = set()
    for _ in range(5000):
        raw = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(3)):
            raw[rng.randrange(5, len(raw))] = rng.randrange(256)
        if rng.random() < 0.3:
            del raw[rng.randrange(5, len(raw) + 1) :]
        try:
            await session.handle(bytes(raw))
        except ProtocolViolation as error:
            severities.add(error.severity)
        if rng.random() < 0.3:
            assert (await session.handle(S))[:1] == b"Z"
    assert severities == {"FATAL"}
    await session.handle(S)
    await session.handle(Q("ROLLBACK"))
    assert (await session.handle(Q("SELECT 1"))).endswith(b"I")
