"""A columnar node met as a PostgreSQL server: by psycopg, asyncpg and raw messages."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from proxy.demo.columnar.engine import Engine
from proxy.demo.columnar.server import Server
from proxy.wire import build, codes, parse

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine(None)
    connection = engine.connect()
    connection.execute("CREATE TABLE t (a integer, b bigint, c varchar, d decimal(12,2), moment timestamptz)")
    connection.execute("INSERT INTO t VALUES (1, 10, 'x', 1.50, '2024-01-01 00:00:00+00'), (2, 20, 'y', 2.25, NULL)")
    connection.close()
    engine.declared = {"c": 1043}
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("columnar") / "statements.log"


@pytest.fixture(scope="module")
def node(engine: Engine, log: Path) -> Iterator[Server]:
    server = Server(engine, server_version="15.7", statement_log=log)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(node: Server) -> Iterator[Connection]:
    with psycopg.connect(f"host=127.0.0.1 port={node.port} user=me dbname=shop", autocommit=True) as connection:
        yield connection


def sqlstate(client: Connection, sql: str) -> str:
    with pytest.raises(psycopg.Error) as error:
        client.execute(sql)
    return error.value.sqlstate or ""


def test_who_answers(client: Connection, node: Server) -> None:
    row = client.execute(
        "SELECT pg_is_in_recovery(), pg_catalog.inet_server_port(), current_database(), current_user, pg_backend_pid()"
    ).fetchone()
    assert row == (True, node.port, "shop", "me", client.info.backend_pid)
    assert client.info.server_version == 150007
    assert client.execute("SHOW columnar.applied_lsn").fetchall() == [("0/0",)]
    assert client.execute("SELECT columnar_applied_lsn()").fetchall() == [("0/0",)]


def test_columns_are_named_and_typed_as_by_postgresql(client: Connection) -> None:
    cursor = client.execute(
        "SELECT count(*), sum(a), sum(b), sum(d), avg(a), max(c), c, a + 1, a::bigint, 'x', coalesce(a, 1), "
        "extract(year FROM max(moment)), sum(a) FILTER (WHERE a > 1) AS few, (SELECT max(a) FROM t) "
        "FROM t GROUP BY a, c"
    )
    assert cursor.description is not None
    assert [(column.name, column.type_code) for column in cursor.description] == [
        *(("count", 20), ("sum", 20), ("sum", 1700), ("sum", 1700), ("avg", 701), ("max", 25), ("c", 1043)),
        *(("?column?", 23), ("a", 20), ("?column?", 25), ("coalesce", 23), ("extract", 20), ("few", 20), ("max", 23)),
    ]


@pytest.mark.parametrize("binary", [False, True])
def test_values_in_both_formats(client: Connection, binary: bool) -> None:
    sql = (
        "SELECT 1::smallint, 2::int, 3::bigint, 1.50::numeric(10,2), 0.1::float8, true, 'é', date '2024-02-29', "
        "timestamp '2024-02-29 12:34:56.5', timestamptz '2024-02-29 00:00:00+00', NULL::int, '\\xAA'::blob, [1, NULL]"
    )
    row = client.execute(sql, binary=binary).fetchone()
    assert row == (
        *(1, 2, 3, Decimal("1.50"), 0.1, True, "é", date(2024, 2, 29)),
        *(datetime(2024, 2, 29, 12, 34, 56, 500_000), datetime(2024, 2, 29, tzinfo=UTC), None, b"\xaa", [1, None]),
    )
    assert row is not None
    assert str(row[3]) == "1.50"


def test_semantics_of_postgresql(client: Connection) -> None:
    assert client.execute("SELECT 5 / 2").fetchone() == (2,)
    rows = client.execute("SELECT x FROM (VALUES (1), (NULL), (2)) v (x) ORDER BY x DESC").fetchall()
    assert rows == [(None,), (2,), (1,)]
    assert sqlstate(client, "SELECT 1 / 0") == "22012"


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        *(("SELECT * FROM nope", "42P01"), ("SELECT nope FROM t", "42703"), ("SELEC 1", "42601")),
        *(("SELECT nofunction(1)", "42883"), ("SELECT 'x'::int", "22P02"), ("SELECT 2147483647 + a FROM t", "22003")),
        *(("INSERT INTO t VALUES (1)", "25006"), ("CREATE TABLE x (a int)", "25006"), ("DROP TABLE t", "25006")),
        *(("SELECT 1::jsonb", "42704"), ("SELECT a FROM t t1, t t2", "42702"), ("SELECT a FROM t GROUP BY b", "42803")),
        *(("COPY t TO STDOUT", "0A000"), ("LISTEN x", "0A000"), ("ATTACH 'x.db'", "0A000"), ("SHOW nope", "42704")),
        *(("SELECT * FROM read_text('/etc/passwd')", "42501"), ("SELECT * FROM '/etc/passwd'", "42P01")),
        ("BEGIN READ WRITE", "25006"),
    ],
)
def test_errors_have_sqlstates_and_leave_the_session(client: Connection, sql: str, state: str) -> None:
    assert sqlstate(client, sql) == state
    assert client.execute("SELECT 1").fetchone() == (1,)


def test_parameters(client: Connection) -> None:
    found = client.execute(
        "SELECT c FROM t WHERE a = %s AND d < %s AND moment > %s", (1, Decimal("1.6"), date(2023, 1, 1))
    )
    assert found.fetchall() == [("x",)]
    assert client.execute("SELECT sum(b) FROM t WHERE a = ANY(%s)", ([1, 2],)).fetchall() == [(Decimal(30),)]
    for _ in range(10):  # psycopg prepares from the fifth on
        assert client.execute("SELECT a + %s FROM t ORDER BY 1 LIMIT %s", (1, 1)).fetchall() == [(2,)]


def test_transaction_states(client: Connection) -> None:
    status = client.info.transaction_status
    assert status.name == "IDLE"
    client.execute("BEGIN")
    assert client.info.transaction_status.name == "INTRANS"
    assert sqlstate(client, "SELECT nope") == "42703"
    assert client.info.transaction_status.name == "INERROR"
    assert sqlstate(client, "SELECT 1") == "25P02"
    assert client.execute("COMMIT").statusmessage == "ROLLBACK"
    assert client.info.transaction_status.name == "IDLE"
    with client.transaction():
        assert client.execute("SELECT count(*) FROM t").fetchone() == (2,)


def test_a_transaction_sees_one_state(client: Connection, engine: Engine) -> None:
    writer = engine.connect()
    writer.execute("CREATE TABLE moving (a integer)")
    with client.transaction():
        assert client.execute("SELECT count(*) FROM moving").fetchone() == (0,)
        writer.execute("INSERT INTO moving VALUES (1)")
        assert client.execute("SELECT count(*) FROM moving").fetchone() == (0,)
    assert client.execute("SELECT count(*) FROM moving").fetchone() == (1,)
    writer.execute("DROP TABLE moving")
    writer.close()


def test_settings(client: Connection) -> None:
    client.execute("SET my.own = 'a b'")
    assert client.execute("SELECT current_setting('my.own')").fetchone() == ("a b",)
    assert client.execute("SELECT set_config('my.own', 'c', false)").fetchone() == ("c",)
    assert client.execute("SHOW my.own").fetchone() == ("c",)
    assert client.execute("SELECT current_setting('no.such', true)").fetchone() == (None,)
    client.execute("SET TIME ZONE 'Asia/Tokyo'")
    assert client.info.parameter_status("TimeZone") == "Asia/Tokyo"
    shown = client.execute("SELECT moment::varchar, date_trunc('day', moment) FROM t WHERE a = 1").fetchone()
    assert shown is not None
    assert shown[0] == "2024-01-01 09:00:00+09"
    client.execute("RESET ALL")
    assert client.info.parameter_status("TimeZone") == "UTC"
    assert client.execute("DISCARD ALL").statusmessage == "DISCARD ALL"


def test_cancel_and_timeout(client: Connection) -> None:
    endless = "SELECT count(*) FROM range(100000) a, range(1000000) b WHERE a.range + b.range = 7"
    timer = threading.Timer(0.2, client.cancel_safe)
    timer.start()
    assert sqlstate(client, endless) == "57014"
    timer.join()
    client.execute("SET statement_timeout = '100ms'")
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        client.execute(endless)
    assert client.execute("SELECT 1").fetchone() == (1,)


def test_statement_log_has_each_statement_once_and_no_values(client: Connection, log: Path) -> None:
    start = len(log.read_text().splitlines())
    client.execute("SELECT a FROM t WHERE c = %s", ("a secret value",))
    client.execute("SELECT 1 AS logged")
    lines = [json.loads(line) for line in log.read_text().splitlines()[start:]]
    assert [line["sql"] for line in lines] == ["SELECT a FROM t WHERE c = $1", "SELECT 1 AS logged"]
    assert lines[0]["user"] == "me"
    assert "secret" not in log.read_text()


def test_several_results_stream_side_by_side(client: Connection) -> None:
    with client.cursor() as first:
        rows = first.stream("SELECT * FROM generate_series(1, 100000)", size=1)
        assert sum(1 for _ in rows) == 100_000


async def test_portals_with_row_limits(node: Server) -> None:
    connection = await asyncpg.connect(host="127.0.0.1", port=node.port, user="me", database="shop")
    try:
        async with connection.transaction():
            cursor = await connection.cursor("SELECT * FROM generate_series(1, 5000) g (n)")
            assert [row["n"] for row in await cursor.fetch(3)] == [1, 2, 3]
            assert await connection.fetchval("SELECT count(*) FROM t") == 2  # between two parts of the other
            assert len(await cursor.fetch(4000)) == 4000
            assert len(await cursor.fetch(4000)) == 997
        assert await connection.fetchval("SELECT a + $1::int FROM t ORDER BY a LIMIT 1", 41) == 42
    finally:
        await connection.close()


# -- raw messages


class Raw:
    """A connection at message level."""

    def __init__(self, port: int, version: int = codes.PROTOCOL_3_0) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), 10)
        self.file = self.link.makefile("rb")
        self.link.sendall(build.startup({"user": "me", "database": "shop"}, version))
        self.greeting = self.until(b"Z")

    def next(self) -> tuple[bytes, bytes]:
        head = self.file.read(5)
        if not head:
            return b"", b""
        return head[:1], self.file.read(int.from_bytes(head[1:], "big") - 4)

    def until(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        got = [self.next()]
        while got[-1][0] not in (kind, b""):
            got.append(self.next())
        return got

    def kinds(self, *messages: bytes) -> str:
        self.link.sendall(b"".join(messages))
        return b"".join(kind for kind, _ in self.until(b"Z")).decode()

    def close(self) -> None:
        self.file.close()
        self.link.close()


@pytest.fixture
def raw(node: Server) -> Iterator[Raw]:
    connection = Raw(node.port)
    yield connection
    connection.close()


def test_message_sequences(raw: Raw) -> None:
    assert raw.kinds(build.query("")) == "IZ"
    assert raw.kinds(build.query("SELECT 1; SELECT nope; SELECT 2")) == "TDCEZ"
    assert raw.kinds(build.parse(b"", b""), build.bind(b"", b""), build.execute(), build.SYNC) == "12IZ"
    assert (
        raw.kinds(build.parse(b"s", b"SELECT a FROM t WHERE a = $1"), build.describe(b"S", b"s"), build.SYNC) == "1tTZ"
    )
    again = [build.bind(b"", b"s", [b"1"]), build.describe(b"P", b""), build.execute(), build.SYNC]
    assert raw.kinds(*again) == "2TDCZ"
    assert raw.kinds(build.parse(b"s", b"SELECT 1"), build.bind(b"", b"s"), build.SYNC) == "EZ"
    assert raw.kinds(build.close(b"S", b"s"), build.bind(b"", b"s"), build.SYNC) == "3EZ"
    assert raw.kinds(build.parse(b"", b"SET a.b = 1"), build.describe(b"S", b""), build.SYNC) == "1tnZ"
    assert raw.kinds(build.message(b"F", bytes(8))) == "EZ"


def test_pipeline_skips_after_an_error_until_sync(raw: Raw) -> None:
    def run(sql: bytes) -> bytes:
        return build.parse(b"", sql) + build.bind(b"", b"") + build.execute()

    assert raw.kinds(run(b"SELECT 1"), run(b"SELECT nope"), run(b"SELECT 2"), build.SYNC) == "12DCEZ"
    assert raw.kinds(run(b"SELECT 3"), build.SYNC) == "12DCZ"


def test_row_limit_suspends(raw: Raw) -> None:
    raw.kinds(build.query("BEGIN"))
    open_portal = [build.parse(b"", b"SELECT * FROM generate_series(1, 5)"), build.bind(b"p", b"")]
    assert raw.kinds(*open_portal, build.execute(b"p", 2), build.SYNC) == "12DDsZ"
    assert raw.kinds(build.query("SELECT 'between two parts'")) == "TDCZ"
    assert raw.kinds(build.execute(b"p", 2), build.execute(b"p", 2), build.SYNC) == "DDsDCZ"
    raw.kinds(build.query("COMMIT"))
    assert raw.kinds(build.execute(b"p"), build.SYNC) == "EZ"


def test_malformed_messages_end_the_session_only(node: Server, raw: Raw) -> None:
    for bad in (b"Q\0\0\0\2", b"Q\0\0\0\5a", b"B\0\0\0\x06\0\0", b"?\0\0\0\4", b"P\0\0\0\4"):
        victim = Raw(node.port)
        victim.link.sendall(bad)
        kind, body = victim.next()
        assert kind == b"E"
        assert parse.error_fields(body)["C"] == "08P01"
        assert parse.error_fields(body)["S"] == "FATAL"
        assert victim.next()[0] == b""
        victim.close()
    assert raw.kinds(build.query("SELECT 1")) == "TDCZ"


def test_unknown_minor_version_is_negotiated(node: Server) -> None:
    connection = Raw(node.port, codes.PROTOCOL_3_0 + 9999)
    assert connection.greeting[0][0] == b"v"
    connection.close()


def test_cancel_needs_the_key(node: Server, raw: Raw) -> None:
    body = next(body for kind, body in raw.greeting if kind == b"K")
    pid = struct.unpack("!i", body[:4])[0]
    raw.link.sendall(build.query("SELECT count(*) FROM range(20000) a, range(20000) b WHERE a.range + b.range = 7"))
    while not select.select([raw.link], [], [], 0)[0]:
        with socket.create_connection(("127.0.0.1", node.port)) as other:
            other.sendall(build.cancel(pid, b"\0\0\0\0"))
            assert other.recv(1) == b""
    assert raw.until(b"Z")[-2][0] == b"C"


def test_scram_login(engine: Engine) -> None:
    server = Server(engine, users={"me": "a pass word"})
    server.start()
    try:
        where = {"host": "127.0.0.1", "port": server.port, "dbname": "shop"}
        with psycopg.connect(**where, user="me", password="a pass word", require_auth="scram-sha-256") as client:
            assert client.execute("SELECT 1").fetchone() == (1,)
        for user, password in (("me", "wrong"), ("nobody", "a pass word")):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(**where, user=user, password=password)
    finally:
        server.stop()
