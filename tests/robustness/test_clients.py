"""Clients that send anything at all: they are answered or ended with an error, and nobody else notices."""

from __future__ import annotations

import contextlib
import random
import select
import threading
import time

import pytest

from ..support.fake_node import FakeNode
from ..support.proxy import Proxy
from ..support.rawpg import COPY_DONE, EOF, B, C, D, E, H, P, Q, S, Wire, copy_data, copy_fail, i32, message, show
from .conftest import client

MEGABYTE = 1 << 20

WHOLE = [
    Q("SELECT 1"),
    Q("SELECT 1/0"),
    Q(""),
    Q("BEGIN"),
    Q("COMMIT"),
    Q("SET application_name = 'fuzz'"),
    Q("COPY (SELECT 1) TO STDOUT"),
    Q("CREATE TEMP TABLE IF NOT EXISTS odd (a int)"),
    Q("COPY odd FROM STDIN"),
    Q("DEALLOCATE ALL"),
    Q("DISCARD ALL"),
    P("", "SELECT $1::text"),
    P("a", "SELECT 1"),
    P("a", "SELEC"),
    B("", "", ["x"]),
    B("", "a"),
    B("p", "a"),
    D("S", "a"),
    D("P"),
    E(),
    E("p", 1),
    C("S", "a"),
    C("P", "p"),
    S,
    S,
    H,
    copy_data(b"1\n"),
    COPY_DONE,
    copy_fail("no"),
    message("F", b"\0\0\0\1\0\0\0\0\0\0"),
]


def mutated(rng: random.Random, count: int) -> bytes:
    """Messages in any order; here and there bytes changed, lengths made up, pieces left out."""
    out = bytearray()
    for _ in range(count):
        raw = bytearray(rng.choice(WHOLE))
        match rng.randrange(12):
            case 0:
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            case 1:
                raw[1:5] = i32(rng.choice([0, 3, 4, 5, 100, 70_000, 1 << 20, 0x3FFFFFFF, -1]))
            case 2:
                del raw[rng.randrange(len(raw)) :]
            case 3:
                raw[5:5] = rng.randbytes(rng.randrange(8))
            case 4:
                raw[:1] = rng.randbytes(1)
        out += raw
    return bytes(out)


def offend(proxy: Proxy, rng: random.Random) -> None:
    """One client that sends made-up messages in made-up pieces, reads or doesn't, and goes away somehow."""
    wire = client(proxy, pool=3)
    data = mutated(rng, rng.randrange(1, 25))
    with contextlib.suppress(OSError):
        while data:
            size = rng.choice([1, 3, 17, 100, 5000])
            wire.socket.sendall(data[:size])
            data = data[size:]
        if rng.random() < 0.7:
            while select.select([wire.socket], [], [], 0.01)[0] and wire.socket.recv(1 << 16):
                pass
    (wire.reset if rng.random() < 0.5 else wire.close)()


def fuzz(proxy: Proxy, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    other, open_one = client(proxy, pool=3), client(proxy, pool=3)
    assert open_one.query("BEGIN") == "C[BEGIN] ZT"
    for number in range(rounds):
        offend(proxy, rng)
        tag = f"{seed}-{number}"
        assert other.query(f"SELECT '{tag}'") == f"T[?column?] D[{tag}] C[SELECT 1] ZI"
        batch = (P("", "SELECT $1::text, current_setting('application_name')"), B("", "", [tag]), E(), S)
        assert other.ask(*batch) == f"1 2 D[{tag},] C[SELECT 1] ZI"
    assert open_one.query("COMMIT") == "C[COMMIT] ZI"
    # All servers are there again.
    wires = [client(proxy, pool=3) for _ in range(3)]
    for wire in wires:
        wire.send(Q("SELECT 'free' FROM pg_sleep(0.05)"))
    for wire in wires:
        assert show(wire.until(timeout=15)) == "T[?column?] D[free] C[SELECT 1] ZI"


def test_made_up_messages(proxy: Proxy) -> None:
    fuzz(proxy, 20, seed=0)
    Wire.close_all()
    descriptors, memory = proxy.descriptors(), proxy.memory()
    for seed in range(1, 4):
        fuzz(proxy, 60, seed)
    Wire.close_all()
    deadline = time.monotonic() + 10
    while proxy.descriptors() > descriptors + 6:
        assert time.monotonic() < deadline, "descriptors that stay open"
        time.sleep(0.05)
    assert proxy.memory() - memory < 16 * MEGABYTE


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 110))
def test_made_up_messages_for_longer(proxy: Proxy, seed: int) -> None:
    fuzz(proxy, 400, seed)


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(Q("SELECT 1")[:1] + i32(0x3FFFFFF0), id="query"),
        pytest.param(b"P" + i32(12 * MEGABYTE), id="parse"),
        pytest.param(b"B" + i32(0x3FFFFFF0), id="bind"),
        pytest.param(b"d" + i32(0x3FFFFFF0), id="copy data"),
        pytest.param(b"F" + i32(0x3FFFFFF0), id="function call"),
        pytest.param(P("", "SELECT 1") + b"Q" + i32(0x3FFFFFF0), id="query behind a batch"),
        pytest.param(P("", "SELECT 1") + b"P" + i32(0x3FFFFFF0), id="parse behind a batch"),
    ],
)
def test_a_gigabyte_that_never_ends(proxy: Proxy, begun: bytes) -> None:
    """The beginning of a message of a gigabyte: what comes of it is passed on, or refused; it isn't kept."""
    one, other = client(proxy, pool=3), client(proxy, pool=3)
    before = proxy.memory()
    body = b"x" * MEGABYTE
    with contextlib.suppress(ConnectionError):
        one.send(begun)
        for number in range(60):
            one.socket.sendall(body)
            if number % 20 == 0:
                assert other.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
    assert proxy.memory() - before < 32 * MEGABYTE
    one.reset()
    assert other.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("form", ["simple", "extended"])
def test_a_node_that_does_not_read(proxy: Proxy, fake_node: FakeNode, form: str) -> None:
    """Copy data for it stays with the client: the proxy stops reading."""
    gate = threading.Event()
    word = f"odd_copy_{form}_"
    head = b"" if form == "simple" else message("1") + message("2")
    fake_node.script(word, head + message("G", b"\0\0\0"), gate, end="close")
    one, other = client(proxy, pool=3), client(proxy, pool=3)
    sql = f"COPY {word} FROM STDIN"
    one.send(Q(sql) if form == "simple" else P("", sql) + B() + E() + S).until("G", timeout=5)
    before = proxy.memory()
    one.socket.settimeout(1)
    sent = 0
    data = copy_data(b"x" * 60_000)
    with contextlib.suppress(TimeoutError):
        while sent < 200 * MEGABYTE:
            sent += one.socket.send(data[sent % len(data) :])
    assert sent < 100 * MEGABYTE
    assert proxy.memory() - before < 16 * MEGABYTE
    assert other.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
    gate.set()
    one.socket.settimeout(None)
    assert one.until(EOF, timeout=10)[-1].kind == EOF


def test_a_name_that_runs_on_into_the_next_message(proxy: Proxy) -> None:
    """A Bind whose name has no end is refused, also where name and next type together are a known name."""
    one = client(proxy, pool=1)
    assert one.ask(P("overlonD", "SELECT 1"), S) == "1 ZI"
    assert one.ask(message("B", b"\0overlon"), D("P"), E(), S).endswith("E[08P01] ZI")
    assert one.ask(B("", "overlonD"), D("P"), E(), S) == "2 T[?column?] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("ahead", [b"", P("a", "SELECT 1")], ids=["alone", "behind a batch"])
def test_a_query_without_a_text(proxy: Proxy, ahead: bytes) -> None:
    one = client(proxy, pool=1)
    assert "08P01" in show(one.send(ahead, message("Q"), S).until())
    one.close()
    assert client(proxy, pool=1).query("SELECT 1").endswith("ZI")
