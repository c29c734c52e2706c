"""P22: large messages, slow readers, and malformed input: only the offender is hurt, and memory stays bounded."""

from __future__ import annotations

import struct
import time

import pytest

from ..support.proxy import Proxy
from ..support.rawpg import EOF, B, C, D, E, P, Q, S, Wire, function_call, i32, message, show
from ..support.target import THROUGH_PROXY, Target

ONE = "T[?column?] D[1] C[SELECT 1] ZI"
MEGABYTE = 1 << 20


def alive(target: Target) -> None:
    """Another client is served."""
    assert target.client(pool=2).query("SELECT 1") == ONE


def test_nul_inside_a_query(target: Target) -> None:
    one = target.client()
    target.compare = False
    assert one.query("SELECT 1\0; SELECT 2") == "E[08P01] ZI"
    assert one.query("SELECT 1") == ONE


def test_nul_inside_a_parse(target: Target) -> None:
    """The rest after the NUL is read as a count of types: a malformed message, not a lost session."""
    one = target.client()
    target.compare = False
    assert one.ask(P("", "SELECT 1\0x"), S) == "E[08P01] ZI"
    assert one.query("SELECT 1") == ONE


def test_nul_in_a_text_parameter(target: Target) -> None:
    one = target.client()
    assert one.ask(P("", "SELECT $1::text"), B("", "", [b"a\0b"]), E(), S) == "1 E[22021] ZI"
    assert one.query("SELECT 1") == ONE


@pytest.mark.parametrize("sql", [b"SELECT '\xff'", b"SELECT 1 -- \xc3", b"\xff\xfe"])
def test_invalid_utf8(target: Target, sql: bytes) -> None:
    one = target.client()
    assert one.ask(Q(sql)) == "E[22021] ZI"
    assert one.ask(P("", sql), S) == "E[22021] ZI"
    assert one.ask(P("", "SELECT $1::text"), B("", "", [b"\xff"]), E(), S) == "1 E[22021] ZI"
    assert one.query("SELECT 1") == ONE
    # Names are converted as well.
    assert one.ask(message("P", b"\xff\0SELECT 1\0\0\0"), S) == "E[22021] ZI"
    # A Query behind it is skipped like all else up to Sync.
    assert one.ask(message("B", b"\0\xff\0\0\0\0\0\0\0"), Q("SELECT 1"), S) == "E[22021] ZI"
    assert one.query("SELECT 1") == ONE


@pytest.mark.parametrize("kind", ["w", "Z", "R", "1", "\0", " "])
def test_unknown_type(target: Target, kind: str) -> None:
    one = target.client()
    assert show(one.send(message(kind, b"abc")).until(EOF)) == "E[FATAL 08P01] EOF"
    alive(target)


@pytest.mark.parametrize("length", [0, 3, -1, -(2**31), 0x7FFFFFFF])
@pytest.mark.parametrize("kind", [b"Q", b"P", b"S"])
def test_bad_length(target: Target, kind: bytes, length: int) -> None:
    one = target.client()
    target.compare = False
    replies = show(one.send(kind + i32(length) + b"x" * 8).until(EOF, timeout=5))
    if length == 0x7FFFFFFF and not target.pooled and kind != b"S":
        # PostgreSQL takes up to 1 GB and closes for more.
        assert replies in ("EOF", "E[FATAL 08P01] EOF", "E[08P01] E[FATAL 08P01] EOF")
    else:
        assert replies in ("EOF", "E[FATAL 08P01] EOF")
    alive(target)


LAST = Q("SELECT 'last'")
"""Sent behind, to know when all replies are in."""

MALFORMED = [
    pytest.param(message("P", b"name"), id="parse without zeros"),
    pytest.param(message("P", b"\0SELECT 1\0"), id="parse without count"),
    pytest.param(message("P", b"\0SELECT 1\0\0\2\0\0\0\0"), id="parse with fewer types than said"),
    pytest.param(message("P", b"\0SELECT 1\0\xff\xff"), id="parse with -1 types"),
    pytest.param(message("P", b""), id="empty parse"),
    pytest.param(message("B", b"\0\0"), id="short bind"),
    pytest.param(message("B", b"\0\0" + struct.pack("!hhi", 0, 1, 100) + b"x"), id="bind value too long"),
    pytest.param(message("B", b"\0\0" + struct.pack("!hhi", 0, 1, -5) + b"\0\0"), id="bind value of -5"),
    pytest.param(message("B", b"\0\0" + struct.pack("!hh", 0, -1) + b"\0\0"), id="bind of -1 values"),
    pytest.param(message("B", b""), id="empty bind"),
    pytest.param(message("D", b""), id="empty describe"),
    pytest.param(message("D", b"X\0"), id="describe of what"),
    pytest.param(message("D", b"S"), id="describe without name"),
    pytest.param(message("C", b"X\0"), id="close of what"),
    pytest.param(message("E", b"\0\0"), id="short execute"),
    pytest.param(message("E", b""), id="empty execute"),
    pytest.param(message("Q", b"SELECT 1"), id="query without zero"),
    pytest.param(message("Q", b""), id="empty query message"),
    pytest.param(message("S", b"xx"), id="sync with a body"),
    pytest.param(message("H", b"xx"), id="flush with a body"),
    pytest.param(message("F", b"\0"), id="short function call"),
]


@pytest.mark.parametrize("sent", MALFORMED)
def test_malformed_body(target: Target, sent: bytes) -> None:
    """PostgreSQL calls it an ERROR and reads on at the next Sync; ending the connection is fit as well."""
    one = target.client()
    target.compare = False
    replies = one.send(P("kept", "SELECT 1"), P("", "SELECT $1::text"), S, sent, S, LAST).until("D")
    assert show(replies).startswith("1 1 ZI")
    errors = [r for r in replies if r.kind == "E"]
    assert errors
    assert {e.fields["C"] for e in errors} <= {"08P01"}
    if replies[-1].kind != EOF:
        assert show(one.until()) == "C[SELECT 1] ZI"
        assert one.query("SELECT 1") == ONE
        assert one.ask(B("", "kept"), E(), S) == "2 D[1] C[SELECT 1] ZI"
    alive(target)


@pytest.mark.parametrize("sent", MALFORMED)
def test_malformed_body_in_a_transaction(target: Target, sent: bytes) -> None:
    one = target.client(pool=1)
    target.compare = False
    one.run("BEGIN", "INSERT INTO trail(item_id) VALUES (1)")
    replies = one.send(P("", "SELECT $1::text"), sent, S, Q("ROLLBACK"), LAST).until("D")
    assert {r.fields["C"] for r in replies if r.kind == "E"} == {"08P01"}
    one.close()
    assert target.client(pool=1).value("SELECT count(*) FROM trail") == "0"


def test_twenty_megabytes_both_ways(target: Target) -> None:
    one = target.client()
    text = "x" * (20 * MEGABYTE)
    replies = one.send(Q(f"SELECT length('{text}')")).until(timeout=60)
    assert show(replies) == f"T[length] D[{20 * MEGABYTE}] C[SELECT 1] ZI"
    replies = one.send(Q("SELECT repeat('y', 20 * 1024 * 1024)")).until(timeout=60)
    assert [r.kind for r in replies] == ["T", "D", "C", "Z"]
    assert replies[1].values == [b"y" * (20 * MEGABYTE)]
    # As a parameter, and back.
    batch = (P("", "SELECT $1::bytea"), B("", "", [b"z" * (5 * MEGABYTE)], param_formats=[1], formats=[1]), E(), S)
    replies = one.send(*batch).until(timeout=60)
    assert [r.kind for r in replies] == ["1", "2", "D", "C", "Z"]
    assert replies[2].values == [b"z" * (5 * MEGABYTE)]
    one.log.clear()


@THROUGH_PROXY
def test_time_is_linear_in_size(target: Target) -> None:
    target.compare = False
    one = target.client()
    took = []
    for size in (4, 16):
        message_ = Q(f"/* {'x' * (size * MEGABYTE)} */ SELECT 1")
        start = time.monotonic()
        for at in range(0, len(message_), 8192):
            one.socket.sendall(message_[at : at + 8192])
        assert show(one.until(timeout=60)) == ONE
        took.append(time.monotonic() - start)
    assert took[1] < 10 * took[0] + 0.5


def test_many_columns_and_rows(target: Target) -> None:
    one = target.client()
    columns = ", ".join(f"{n} AS c{n}" for n in range(1600))
    assert len(one.send(Q(f"SELECT {columns}")).until()[1].values) == 1600
    replies = one.send(Q("SELECT generate_series(1, 20000)")).until()
    assert len(replies) == 20003
    parameters = [str(n) for n in range(2000)]
    sql = "SELECT " + " + ".join(f"${n + 1}::int" for n in range(2000))
    assert one.ask(P("", sql), B("", "", parameters), E(), S) == f"1 2 D[{sum(range(2000))}] C[SELECT 1] ZI"


def test_pipelined_batches_without_reading(target: Target) -> None:
    """More replies than any buffer holds: reading from the client must not stop for ever, nor memory grow."""
    target.compare = False
    one = target.client()
    count = 20_000
    batch = P("", "SELECT 1") + B() + E() + S
    one.socket.setblocking(False)
    data, at, ready = batch * count, 0, 0
    buffer = b""
    deadline = time.monotonic() + 90
    while ready < count:
        assert time.monotonic() < deadline, f"{ready} of {count} answered, {at} of {len(data)} sent"
        try:
            at += one.socket.send(data[at : at + 65536])
        except BlockingIOError:
            pass
        if at >= len(data) or at % 10 == 0 or ready:
            try:
                buffer += one.socket.recv(1 << 20)
            except BlockingIOError:
                time.sleep(0.001)
            ready += buffer.count(b"Z\0\0\0\5I")
            buffer = buffer[-5:] if not buffer.endswith(b"Z\0\0\0\5I") else b""
    one.socket.setblocking(True)


@THROUGH_PROXY
def test_slow_reader_costs_no_memory_and_hurts_nobody(target: Target, running_proxies: dict[str, Proxy]) -> None:
    target.compare = False
    proxy = next(proxy for proxy in running_proxies.values() if proxy.address == target.address)
    slow, other = target.client(pool=2), target.client(pool=2)
    before = proxy.memory()
    slow.send(Q("SELECT repeat('y', 1000) FROM generate_series(1, 500000)"))
    for _ in range(10):
        slow.socket.recv(1000)
        time.sleep(0.05)
        start = time.monotonic()
        assert other.query("SELECT 1") == ONE
        assert time.monotonic() - start < 1
    assert proxy.memory() - before < 32 * MEGABYTE
    slow.reset()
    assert other.query("SELECT 1") == ONE


@THROUGH_PROXY
def test_slow_sender_hurts_nobody(target: Target) -> None:
    """Half of a message holds no server, as long as it is small enough to be kept."""
    target.compare = False
    slow, other = target.client(pool=1), target.client(pool=1)
    query = Q(f"SELECT length('{'x' * 50_000}')")
    slow.socket.sendall(query[:30_000])
    for _ in range(3):
        assert other.query("SELECT 1") == ONE
    slow.socket.sendall(query[30_000:])
    assert show(slow.until()) == "T[length] D[50000] C[SELECT 1] ZI"


def test_everything_at_once(target: Target) -> None:
    """One long write of all kinds of messages, errors between; each reply at its place."""
    one = target.client()
    replies = one.ask(
        *(P("a", "SELECT $1::int + 1"), D("S", "a"), B("p", "a", ["1"]), D("P", "p"), E("p"), C("P", "p"), S),
        *(Q("SELECT 1; SELECT 2"), P("", "SELEC"), B(), S, Q("BEGIN"), B("", "a", ["x"]), E(), S, Q("ROLLBACK")),
        *(C("S", "a"), D("S", "a"), S, Q(""), Q("SELECT 'end'")),
        times=8,
    )
    assert replies == (
        "1 t[23] T[?column?] 2 T[?column?] D[2] C[SELECT 1] 3 ZI "
        "T[?column?] D[1] C[SELECT 1] T[?column?] D[2] C[SELECT 1] ZI E[42601] ZI C[BEGIN] ZT E[22P02] ZE "
        "C[ROLLBACK] ZI 3 E[26000] ZI I ZI"
    )
    assert one.ask() == "T[?column?] D[end] C[SELECT 1] ZI"


def test_function_call_message(target: Target) -> None:
    """An old message that some drivers still use for large objects."""
    one = target.client()
    oid = one.value("SELECT 'pg_catalog.int4abs'::regproc::oid")
    assert oid is not None
    replies = one.send(function_call(int(oid), b"-5")).until()
    assert [r.kind for r in replies] == ["V", "Z"]
    assert replies[0].body == struct.pack("!i", 1) + b"5"
    assert one.query("SELECT 1") == ONE


def test_cancel_hits_only_ones_own(target: Target) -> None:
    target.compare = False
    one, two, admin = target.client(pool=2), target.client(pool=2), target.admin()
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    for _ in range(3):
        two.send(Q("SELECT pg_sleep(2)"))
        one.send(Q("SELECT pg_sleep(20)"))
        while admin.value(sleeping) != "2":
            time.sleep(0.01)
        one.cancel()
        assert show(one.until(timeout=5)) == "T[pg_sleep] E[57014] ZI"
        assert show(two.until(timeout=5)) == "T[pg_sleep] D[] C[SELECT 1] ZI"
        # Late: nothing of one's own runs any more.
        one.cancel()
        assert one.query("SELECT 1") == ONE
        assert two.query("SELECT 1") == ONE


def test_late_cancels_hit_nobody(target: Target) -> None:
    """One server, two clients in turn, cancels just when the statement ends: at any place of its answer."""
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    cancelled = ("E[57014] ZI", "T[?column?] E[57014] ZI", "T[?column?] D[1] E[57014] ZI")
    for _ in range(15):
        one.send(Q("SELECT 1"))
        one.cancel()
        assert two.query("SELECT pg_sleep(0.02)") == "T[pg_sleep] D[] C[SELECT 1] ZI"
        assert show(one.until()) in (ONE, *cancelled)


@THROUGH_PROXY
def test_cancel_of_a_waiting_client(target: Target) -> None:
    """Its statement has not gone out: it is dropped from the queue, and the running one is not hit."""
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    two.send(Q("SELECT pg_sleep(0.6)"))
    one.send(Q("INSERT INTO trail(item_id) VALUES (1)"))
    assert one.silence(0.2)
    one.cancel()
    assert show(one.until(timeout=5)) == "E[57014] ZI"
    assert show(two.until(timeout=5)) == "T[pg_sleep] D[] C[SELECT 1] ZI"
    assert one.value("SELECT count(*) FROM trail") == "0"


def test_hundreds_of_clients(target: Target) -> None:
    """A burst on a small pool: everybody is served, and no more servers are opened than it may have."""
    if not target.pooled:
        return
    target.compare = False
    clients: list[Wire] = [target.client(pool=2) for _ in range(60 if target.cut else 300)]
    for number, client in enumerate(clients):
        client.send(Q(f"SELECT {number}"))
    for number, client in enumerate(clients):
        assert show(client.until(timeout=30)) == f"T[?column?] D[{number}] C[SELECT 1] ZI"
    servers = target.admin().value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'pool2'")
    assert servers is not None
    assert int(servers) <= 2
