"""Servers that break the protocol: the one that did is closed, its client hears the truth, nobody else notices."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence

import pytest

from ..support.fake_node import (
    FakeNode,
    Piece,
    answer,
    complete,
    data_row,
    error,
    parameter,
    ready,
    row_description,
)
from ..support.proxy import Proxy
from ..support.rawpg import EOF, B, C, D, E, H, P, Q, Reply, S, Wire, i32, message, show
from .conftest import client

ONE = "T[?column?] D[1] C[SELECT 1] ZI"
WHOLE = row_description("v") + data_row(b"mine") + complete("SELECT 1") + ready()

_numbers = itertools.count()


def marker() -> str:
    """A word that no other statement of the run holds."""
    return f"odd_{next(_numbers)}_"


def simple(word: str) -> bytes:
    return Q(f"SELECT /* {word} */ 'mine'")


def extended(word: str) -> bytes:
    return P("", f"SELECT /* {word} */ 'mine'") + B() + D("P") + E() + S


def named(word: str) -> bytes:
    """A batch whose replies are followed step by step; the usual one of `extended` is passed through."""
    return P("a", f"SELECT /* {word} */ 'mine'") + B("", "a") + D("P") + E() + S


def own(wire: Wire) -> None:
    """The connection is served, in both protocols, and what it gets is its own."""
    tag = f"tag{next(_numbers)}"
    assert wire.query(f"SELECT '{tag}' AS t") == f"T[t] D[{tag}] C[SELECT 1] ZI"
    assert wire.ask(P("", "SELECT $1::text"), B("", "", [tag]), E(), S) == f"1 2 D[{tag}] C[SELECT 1] ZI"


def ended(replies: Sequence[Reply]) -> list[Reply]:
    """The replies before the end of a connection; the end must be one FATAL of class 08, or none, and EOF."""
    assert replies[-1].kind == EOF, show(replies)
    fatal = [r for r in replies if r.kind == "E" and r.fields.get("V") == "FATAL"]
    assert len(fatal) <= 1, show(replies)
    assert all(r.fields["C"].startswith("08") for r in fatal), show(replies)
    return [r for r in replies[:-1] if r not in fatal]


class Bystanders:
    """Other clients of the same pool: one in a transaction, one that comes and goes."""

    def __init__(self, proxy: Proxy) -> None:
        self.open, self.other = client(proxy, pool=3), client(proxy, pool=3)
        assert self.open.query("BEGIN") == "C[BEGIN] ZT"

    def unhurt(self) -> None:
        assert self.open.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZT"
        for _ in range(3):
            own(self.other)


NOT_REPLIES = {
    "length 0": b"T" + i32(0) + b"xxxx",
    "length 3": b"T" + i32(3) + b"xxxx",
    "length -1": b"D" + i32(-1) + b"xxxx",
    "length of 1 GB": b"D" + i32(0x7FFFFFFF) + b"xxxx",
    "type 0": message("\0", b"abc"),
    "type of a client": message("Q", b"SELECT 1\0"),
    "type of a login": message("R", i32(0)),
    "key": message("K", i32(1) + i32(2)),
    "copy both": message("W", b"\0\0\0"),
    "ready without status": message("Z"),
    "ready with more": message("Z", b"II"),
    "ready of what": message("Z", b"X"),
    "text": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "parameter without value": message("S", b"name\0"),
    "parameter of a megabyte": parameter("x", "y" * (1 << 20)),
}


@pytest.mark.parametrize("begun", [b"", row_description("v") + data_row(b"mine")], ids=["first", "after a row"])
@pytest.mark.parametrize("form", [simple, extended])
@pytest.mark.parametrize("name", NOT_REPLIES)
def test_what_is_no_reply(proxy: Proxy, fake_node: FakeNode, name: str, form: object, begun: bytes) -> None:
    """It closes the server, and its client is told; anything behind it reaches nobody."""
    word = marker()
    head = b"" if form is simple else message("1") + message("2")
    fake_node.script(word, head + begun, NOT_REPLIES[name], answer(b"of nobody"))
    others, one = Bystanders(proxy), client(proxy, pool=3)
    lines = len(proxy.lines)
    replies = ended(one.send(form(word)).until(EOF, timeout=5))  # type: ignore[operator]
    assert "of nobody" not in show(replies)
    assert {r.kind for r in replies} <= set("12TD")
    proxy.wait_for("server_out_of_step", after=lines)
    others.unhurt()


@pytest.mark.parametrize("form", [simple, extended])
def test_end_at_every_byte(proxy: Proxy, fake_node: FakeNode, form: object) -> None:
    """A client never takes for its own what isn't: the replies that it reads whole are those that were sent whole."""
    reply = WHOLE if form is simple else message("1") + message("2") + WHOLE
    others = Bystanders(proxy)
    for cut in range(len(reply)):
        word = marker()
        fake_node.script(word, reply[:cut], end="close" if cut % 2 else "reset")
        one = client(proxy, pool=3)
        replies = ended(one.send(form(word)).until(EOF, timeout=5))  # type: ignore[operator]
        sent = [str(r) for r in _framed(reply[:cut])]
        assert [str(r) for r in replies] == sent[: len(replies)], (cut, show(replies))
        if cut % 20 == 0:
            others.unhurt()
    others.unhurt()


def _framed(data: bytes) -> list[Reply]:
    replies, at = list[Reply](), 0
    while len(data) - at >= 5 and (end := at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")) <= len(data):
        replies.append(Reply(chr(data[at]), data[at + 5 : end]))
        at = end
    return replies


def test_a_row_cut_short_is_never_filled_up(proxy: Proxy, fake_node: FakeNode) -> None:
    """The error that tells of the loss must not become the rest of the row."""
    word = marker()
    fake_node.script(word, row_description("v") + data_row(b"x" * 50)[:20], end="close")
    one = client(proxy)
    replies = one.send(simple(word)).until(EOF, timeout=5)
    assert "D" not in {r.kind for r in replies}, show(replies)


@pytest.mark.parametrize("form", [simple, extended, named])
@pytest.mark.parametrize(
    "order, late",
    [
        ("early ready", False),
        ("early ready", True),
        ("extra ready", False),
        ("extra ready", True),
        # A whole reply more that comes late can't be told from that of the next client's query.
        ("extra reply", False),
    ],
)
def test_ready_that_nobody_is_owed(proxy: Proxy, fake_node: FakeNode, form: object, order: str, late: bool) -> None:
    """The classic way to get another client's rows: one ReadyForQuery too many."""
    word, gate, more = marker(), threading.Event(), threading.Event()
    reply = WHOLE if form is simple else message("1") + message("2") + WHOLE
    secret = answer(b"secret of the first")
    first, second = {
        "early ready": (ready(), reply),
        "extra ready": (reply, ready() + secret),
        "extra reply": (reply, secret),
    }[order]
    pieces: list[Piece] = [gate, first, more, second] if late else [gate, first + second]
    fake_node.script(word, *pieces)
    one, two = client(proxy, pool=1), client(proxy, pool=1)
    one.send(form(word))  # type: ignore[operator]
    assert one.silence(0.1)
    two.send(Q("SELECT 'two'"))
    assert two.silence(0.1), "it waits for the pool's only server"
    gate.set()
    shown = show(one.until("Z", timeout=5))
    assert shown.endswith("EOF") or (shown.endswith("D[mine] C[SELECT 1] ZI") and order != "early ready"), shown
    more.set()
    seen = two.until("Z", timeout=20)
    assert show(seen) == "T[?column?] D[two] C[SELECT 1] ZI" or seen[-1].kind == EOF, show(seen)
    assert "mine" not in show(seen)
    assert "secret" not in show(seen)
    own(client(proxy, pool=1))


@pytest.mark.parametrize("late", [False, True], ids=["in one piece", "late"])
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(data_row(b"secret"), id="row"),
        pytest.param(data_row(b"secret" * 20)[:40], id="half a row"),
        pytest.param(row_description("secret")[:9], id="half a description"),
        pytest.param(complete("SELECT 1"), id="complete"),
        pytest.param(message("1"), id="parse complete"),
        pytest.param(b"\0" * 40, id="zeros"),
        pytest.param(b"T", id="one byte"),
        pytest.param(b"T\0\0", id="part of a header"),
        pytest.param(parameter("x", "y") + data_row(b"secret"), id="row behind a parameter"),
    ],
)
def test_what_an_idle_server_may_not_say(proxy: Proxy, fake_node: FakeNode, odd: bytes, late: bool) -> None:
    """Said behind the end of a reply, or while the server is idle: the next client never sees it."""
    word, gate = marker(), threading.Event()
    script = fake_node.script(word, WHOLE, gate, odd) if late else fake_node.script(word, WHOLE + odd)
    one = client(proxy, pool=1)
    lines = len(proxy.lines)
    replies = one.send(simple(word)).until("Z", timeout=5)
    assert show(replies).startswith("T[v] D[mine] C[SELECT 1] ZI") or replies[-1].kind == EOF
    gate.set()
    assert script.said.wait(5)
    proxy.wait_for("server_out_of_step", after=lines)
    two = client(proxy, pool=1)
    for _ in range(3):
        own(two)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(parameter("IntervalStyle", "postgres"), id="parameter"),
        pytest.param(message("N", error("01000", severity="WARNING")[5:]), id="notice"),
        pytest.param(message("A", i32(7) + b"channel\0payload\0"), id="notification"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["in one piece", "late"])
def test_what_an_idle_server_may_say(proxy: Proxy, fake_node: FakeNode, said: bytes, late: bool) -> None:
    """Nobody is hurt by it, cut at any byte."""
    word, gate = marker(), threading.Event()
    byte_by_byte = [said[at : at + 1] for at in range(len(said))]
    pieces: list[Piece] = [WHOLE, gate, *byte_by_byte] if late else [WHOLE + said]
    script = fake_node.script(word, *pieces)
    one, two = client(proxy, pool=1), client(proxy, pool=1)
    assert show(one.send(simple(word)).until("Z")) == "T[v] D[mine] C[SELECT 1] ZI"
    gate.set()
    assert script.said.wait(5)
    if not late:
        # Behind its reply, it is for the client that the server was linked to.
        assert one.read().kind == chr(said[0])
    for _ in range(2):
        own(two)
        own(one)


def test_a_question_of_the_proxy_answered_by_ready_alone(proxy: Proxy, fake_node: FakeNode) -> None:
    """Settings count as applied only when the server has said so, else the next reply is another's."""
    fake_node.script("odd_setting_", ready(), complete("SET") + ready())
    one = client(proxy, pool=1)
    assert one.query("SET application_name = 'plain'").endswith("ZI")
    two = client(proxy, pool=1)
    # It reaches the node by the proxy's own question when the settings of `two` are put in line.
    one.send(Q("SET work_mem = '3MB'")).until()
    params = {"user": "pool1", "database": "postgres", "application_name": "odd_setting_"}
    victim = Wire(proxy.address)
    replies = victim.login(params, timeout=5)
    assert "ZI" not in replies
    for wire in (one, two):
        own(wire)


def test_more_answers_than_steps(proxy: Proxy, fake_node: FakeNode) -> None:
    word = marker()
    fake_node.script(word, message("1") * 5 + WHOLE)
    one = client(proxy)
    replies = one.send(extended(word) + Q("SELECT 2")).until(EOF, timeout=5)
    ended(replies)
    own(client(proxy))


@pytest.mark.parametrize("order", [b"213", b"123", b"112", b"2", b"3"])
def test_answers_out_of_order(proxy: Proxy, fake_node: FakeNode, order: bytes) -> None:
    """A named statement: the wrong order would mark names that don't exist."""
    word = marker()
    fake_node.script(word, b"".join(message(chr(kind)) for kind in order) + ready())
    one = client(proxy)
    ended(one.send(P("a", f"SELECT /* {word} */ 1"), B("", "a"), E(), S).until(EOF, timeout=5))
    own(client(proxy))


def test_error_between_rows(proxy: Proxy, fake_node: FakeNode) -> None:
    """As PostgreSQL does it: what came before stands, the session lives."""
    for form, head in ((simple, ""), (extended, "1 2 ")):
        word = marker()
        begun = (message("1") + message("2") if head else b"") + row_description("v") + data_row(b"a")
        fake_node.script(word, begun, error("22012"), ready())
        one = client(proxy)
        assert one.ask(form(word)) == f"{head}T[v] D[a] E[22012] ZI"
        own(one)


@pytest.mark.parametrize("form", [simple, extended])
@pytest.mark.parametrize("size", [1_000_000, 3_000_000], ids=["1 MB", "3 MB"])
def test_large_error(proxy: Proxy, form: object, size: int) -> None:
    """An error longer than what is held passes through, and still ends its unit."""
    one = client(proxy)
    body = f"DO $$ BEGIN RAISE EXCEPTION '%', repeat('x', {size}); END $$"
    sent = Q(body) if form is simple else P("", body) + B() + E() + H
    replies = one.send(sent).until("E", timeout=10)
    assert len(replies[-1].fields["M"]) == size
    if form is extended:
        one.send(S)
    assert show(one.until("Z")) == "ZI"
    # A Query behind an open batch is answered, too.
    if form is extended:
        one.send(P("", body), B(), E(), Q("SELECT 2"), S)
        assert [r.kind for r in one.until("Z")] == ["1", "2", "E", "Z"]
    own(one)


def test_flood_of_parameters(proxy: Proxy, fake_node: FakeNode) -> None:
    """No server may fill the memory with names."""
    word = marker()
    flood = b"".join(parameter(f"made_up_{number}", "x" * 1000) for number in range(2000))
    fake_node.script(word, *([flood] * 5), WHOLE)
    others, one = Bystanders(proxy), client(proxy, pool=3)
    before = proxy.memory()
    lines = len(proxy.lines)
    one.send(simple(word)).until(EOF, timeout=10)
    proxy.wait_for("server_out_of_step", after=lines)
    assert proxy.memory() - before < 20 << 20
    others.unhurt()


def test_the_same_parameter_again_and_again(proxy: Proxy, fake_node: FakeNode) -> None:
    word = marker()
    flood = b"".join(parameter("application_name", f"n{number}") for number in range(20_000))
    fake_node.script(word, flood, WHOLE)
    others, one = Bystanders(proxy), client(proxy, pool=3)
    assert show(one.send(simple(word)).until("Z", timeout=20)).endswith("D[mine] C[SELECT 1] ZI")
    others.unhurt()


def test_flood_of_notices_for_nobody(proxy: Proxy, fake_node: FakeNode) -> None:
    word, gate = marker(), threading.Event()
    notices = message("N", error("01000", "x" * 1000, "WARNING")[5:]) * 1000
    script = fake_node.script(word, WHOLE, gate, *([notices] * 20))
    one = client(proxy, pool=1)
    assert show(one.send(simple(word)).until("Z")) == "T[v] D[mine] C[SELECT 1] ZI"
    before = proxy.memory()
    gate.set()
    assert script.said.wait(20)
    own(client(proxy, pool=1))
    assert proxy.memory() - before < 10 << 20


def test_a_message_of_a_gigabyte_is_not_held(proxy: Proxy, fake_node: FakeNode) -> None:
    """Only its client pays for it: bytes pass as they come."""
    word = marker()
    body = b"x" * (1 << 20)
    fake_node.script(word, row_description("v"), b"D" + i32(1_000_000_000), *([body] * 40), end="close")
    others, one = Bystanders(proxy), client(proxy, pool=3)
    before = proxy.memory()
    one.send(simple(word))
    got = 0
    while data := one.socket.recv(1 << 20):
        got += len(data)
        assert proxy.memory() - before < 32 << 20
    assert got > 40 << 20
    others.unhurt()


def test_copy_in_that_nobody_asked_for(proxy: Proxy, fake_node: FakeNode) -> None:
    word = marker()
    fake_node.script(word, message("G", b"\0\0\0"), complete("SELECT 0") + ready())
    one = client(proxy)
    one.send(simple(word)).until("G", timeout=5)
    one.until("Z", timeout=5)
    for _ in range(2):
        own(client(proxy))


@pytest.mark.parametrize("severity", ["FATAL", "PANIC"])
def test_fatal_from_the_server_is_said_once(proxy: Proxy, fake_node: FakeNode, severity: str) -> None:
    word = marker()
    fake_node.script(word, row_description("v") + data_row(b"a"), error("57P01", severity=severity), end="close")
    one = client(proxy)
    assert show(one.send(simple(word)).until(EOF, timeout=5)) == f"T[v] D[a] E[{severity} 57P01] EOF"
    own(client(proxy))


# ---- while logging in

LOGIN = (
    message("R", i32(0))
    + b"".join(
        parameter(name, value)
        for name, value in {
            "client_encoding": "UTF8",
            "server_version": "15.1",
            "standard_conforming_strings": "on",
            "TimeZone": "UTC",
        }.items()
    )
    + message("K", i32(4711) + b"1234")
    + ready()
)


def logins(proxy: Proxy, names: Sequence[str]) -> list[list[Reply]]:
    """Log in to these databases at once; what each client gets."""
    wires = [Wire(proxy.address) for _ in names]
    for wire, name in zip(wires, names, strict=True):
        wire.send(_startup(name))
    return [wire.authenticate(timeout=20) for wire in wires]


def _startup(database: str) -> bytes:
    body = i32(0x30000) + f"user\0pool1\0database\0{database}\0\0".encode()
    return i32(len(body) + 4) + body


def refused(replies: Sequence[Reply], proxy: Proxy) -> None:
    assert replies[-1].kind == EOF, f"{show(replies)}\n{proxy.tail()}"
    assert replies[-2].kind == "E", show(replies)
    assert "R0" not in show(replies)


def test_login_that_ends_at_every_byte(proxy: Proxy, fake_node: FakeNode) -> None:
    names = []
    for cut in range(len(LOGIN)):
        names.append(marker())
        fake_node.script(names[-1], LOGIN[:cut], end="close" if cut % 2 else "reset")
    others = Bystanders(proxy)
    for replies in logins(proxy, names):
        refused(replies, proxy)
    others.unhurt()


SASL = message("R", i32(10) + b"SCRAM-SHA-256\0\0")

BAD_LOGINS = {
    "garbage": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "ready at once": ready(),
    "parameters before authentication": LOGIN[9:],
    "length 0": b"R" + i32(0),
    "huge message": b"R" + i32(1 << 30) + b"x" * 100_000,
    "unknown method": message("R", i32(99)),
    "short method": message("R", b"\0"),
    "method twice": message("R", i32(0)) * 2,
    "rows": message("R", i32(0)) + data_row(b"x"),
    "copy": message("R", i32(0)) + message("G", b"\0\0\0"),
    "negotiated version": message("v", i32(0x30000) + i32(0)) + ready(),
    "ready of what": LOGIN[:-1] + b"X",
    "key of one byte": LOGIN.replace(message("K", i32(4711) + b"1234"), message("K", b"1")),
    "parameter without zeros": message("R", i32(0)) + message("S", b"abc"),
    "fatal": error("57P03", severity="FATAL"),
    "fatal after ok": message("R", i32(0)) + error("3D000", severity="FATAL"),
    "clear password": message("R", i32(3)),
    "md5 without salt": message("R", i32(5)),
    "sasl": SASL,
    "sasl without mechanisms": message("R", i32(10)),
    "sasl goes on": message("R", i32(11) + b"r=,s=,i="),
    "sasl ends": message("R", i32(12) + b"v="),
    "parameters for ever": message("R", i32(0))
    + b"".join(parameter(f"made_up_{number}", "x" * 1000) for number in range(5000)),
}


def test_logins_that_go_wrong(proxy: Proxy, fake_node: FakeNode) -> None:
    """Each is that pool's trouble: its client gets an error, the node stays in service."""
    names = {}
    for name, said in BAD_LOGINS.items():
        names[name] = marker()
        fake_node.script(names[name], said, end="close")
    others = Bystanders(proxy)
    for name, replies in zip(names, logins(proxy, list(names.values())), strict=True):
        assert replies[-1].kind == EOF, (name, show(replies))
        refused(replies, proxy)
    others.unhurt()


NOT_YET = "53300"
"""After some failures a pool dials less often than these clients wait."""


def test_login_that_says_too_much(proxy: Proxy, fake_node: FakeNode) -> None:
    """Behind the login's ReadyForQuery stands another, or a row: such a server serves nobody and takes no place."""
    words = []
    for said in (ready(), data_row(b"secret"), b"\0" * 10, b"T", parameter("x", "y") + data_row(b"secret")):
        words += [marker(), marker()]
        fake_node.script(words[-2], LOGIN + said)
        fake_node.script(words[-1], LOGIN, said)
    logins(proxy, words)
    # Each pool has one place: with that free again the node itself is asked, and knows no such database.
    for word in words:
        fake_node.forget(word)
        code = NOT_YET
        deadline = time.monotonic() + 20
        while code == NOT_YET and time.monotonic() < deadline:
            one = Wire(proxy.address)
            if one.login({"user": "pool1", "database": word}).endswith("ZI"):  # greeted by what an earlier login told
                one.query("SELECT 1")
            code = one.log[-2].fields["C"]
        assert code == "3D000", (word, show(one.log))


def test_login_that_never_ends(proxy: Proxy, fake_node: FakeNode) -> None:
    """A silent node, and one that sends byte after byte, hold a client no longer than it may wait."""
    gate = threading.Event()
    words = [marker(), marker()]
    fake_node.script(words[0], gate)
    fake_node.script(words[1], *(LOGIN[at : at + 1] for at in range(20)), gate)
    others = Bystanders(proxy)
    for replies in logins(proxy, words):
        refused(replies, proxy)
    others.unhurt()
    gate.set()


def test_closing_and_describing_go_on_after_all_that(proxy: Proxy) -> None:
    one = client(proxy)
    assert one.ask(P("a", "SELECT 1"), D("S", "a"), C("S", "a"), S) == "1 t[] T[?column?] 3 ZI"
    assert one.query("SELECT 1") == ONE
