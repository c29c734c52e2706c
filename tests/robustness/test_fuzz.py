"""The parsers of `wire/` under made-up input: what they say is compared with a slow walk of whole messages,
and nothing but a ProtocolViolation (or another error of the tree) ever comes out of them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.errors import ProtocolViolation, TridentError
from proxy.wire import auth, frontend, parse, startup
from proxy.wire.auth import Credentials
from proxy.wire.login import ClientLogin, DeriveKeys, NodeLogin, NodeReady, Send
from proxy.wire.scan import (
    B_NAMED,
    B_PLAIN,
    B_SYNC,
    MAX_HELD,
    SAW_COMPLETE,
    SAW_COPY_IN,
    SAW_ERROR,
    SAW_NOTIFICATION,
    SAW_PARAMETER,
    SAW_PARSE_COMPLETE,
    ReplyWalker,
    scan_batch,
)

from ..support.rawpg import PROTOCOL_3_0, B, C, D, E, H, P, Q, S, cstr, i32, message, startup_message


def refusal(call: Callable[[], object]) -> TridentError | None:
    """The error of the tree that it ends with; any other is a fault."""
    try:
        call()
    except TridentError as error:
        return error
    return None


# ---- replies

REPLY_KINDS = "123ACDEGHINSTVZcdnst"
MASKS = {
    "E": SAW_ERROR,
    "S": SAW_PARAMETER,
    "A": SAW_NOTIFICATION,
    "G": SAW_COPY_IN,
    "1": SAW_PARSE_COMPLETE,
    "C": SAW_COMPLETE,
}

plain_replies = st.builds(message, st.sampled_from(REPLY_KINDS.replace("Z", "")), st.binary(max_size=40))
readies = st.builds(message, st.just("Z"), st.sampled_from([b"I", b"T", b"E"]))
replies = st.lists(st.one_of(plain_replies, plain_replies, readies), max_size=30)


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Pieces of `data`, cut at these places (modulo its length)."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


def walk(walker: ReplyWalker, pieces: Iterable[bytes]) -> list[tuple[bytes, str, int]]:
    """As a server does it: what was passed on for each unit, its status ("" for the last), the kinds seen."""
    units: list[tuple[bytes, str, int]] = []
    passed, mask = b"", 0
    for piece in pieces:
        data, walker.carry = walker.carry + piece, b""
        at = 0
        while at < len(data):
            end = walker.feed(data, at)
            passed += data[at:end]
            mask |= walker.mask
            if not walker.status:
                break
            units.append((passed, chr(walker.status), mask))
            passed, mask = b"", 0
            at = end
    units.append((passed, "", mask))
    return units


def reference(messages: Iterable[bytes]) -> list[tuple[bytes, str, int]]:
    units: list[tuple[bytes, str, int]] = []
    passed, mask = b"", 0
    for raw in messages:
        passed += raw
        kind = chr(raw[0])
        mask |= MASKS.get(kind, 0)
        if kind == "Z":
            units.append((passed, chr(raw[5]), mask))
            passed, mask = b"", 0
    units.append((passed, "", mask))
    return units


@given(replies, st.lists(st.integers(0, 5000), max_size=30))
def test_walker_agrees_with_the_reference(messages: list[bytes], places: list[int]) -> None:
    walker = ReplyWalker()
    assert walk(walker, cut(b"".join(messages), places)) == reference(messages)
    assert walker.idle()


@given(replies)
def test_walker_byte_by_byte(messages: list[bytes]) -> None:
    data = b"".join(messages)
    walker = ReplyWalker()
    assert walk(walker, [data[at : at + 1] for at in range(len(data))]) == reference(messages)


def whole_messages(data: bytes) -> tuple[list[bytes], str]:
    """Messages up to the first that is wrong or not there in full, and why it ended: "", "part" or "wrong"."""
    found, at = list[bytes](), 0
    while at < len(data):
        kind, head = chr(data[at]), data[at + 1 : at + 5]
        if len(head) < 4:
            return found, "part"
        length = int.from_bytes(head, "big")
        if length < 4 or length >= 1 << 30:
            return found, "wrong"
        raw = data[at : at + 1 + length]
        if len(raw) < 1 + length:
            long = length > MAX_HELD and kind not in "DdENV"
            return found, "wrong" if kind not in REPLY_KINDS or long else "part"
        if kind not in REPLY_KINDS or (kind == "Z" and raw[5:] not in (b"I", b"T", b"E")):
            return found, "wrong"
        found.append(raw)
        at += 1 + length
    return found, ""


odd_bytes = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda a, b, c: b"".join(a) + b + b"".join(c), replies, st.binary(min_size=1, max_size=12), replies),
    st.builds(
        lambda kind, length, rest: struct.pack("!cI", kind, length) + rest,
        st.sampled_from([bytes([n]) for n in range(256)]),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=60),
    ),
)


@given(odd_bytes, st.lists(st.integers(0, 5000), max_size=10))
@example(b"Z\0\0\0\5X", [])
@example(b"Z\0\0\0\4", [])
@example(b"D\0\0\0\3", [])
@example(b"D\x40\0\0\0" + b"x" * 50, [])
@example(b"W\0\0\0\4", [])
def test_walker_refuses_what_the_reference_refuses(data: bytes, places: list[int]) -> None:
    messages, end = whole_messages(data)
    walker = ReplyWalker()
    if end == "wrong":
        with pytest.raises(ProtocolViolation):
            walk(walker, cut(data, places))
        return
    units = walk(walker, cut(data, places))
    assert walker.idle() == (end == "")
    passed = b"".join(unit for unit, _, _ in units)
    assert passed + walker.carry == data
    # Nothing is held of rows and of what is too long, and nothing else is passed on in part.
    part = data[len(b"".join(messages)) :]
    if part and walker.skip:
        assert chr(part[0]) in "DdENV"
        assert len(part) + walker.skip == 1 + int.from_bytes(part[1:5], "big")
    assert len(walker.carry) <= MAX_HELD + 5


def test_long_messages_pass_without_being_held() -> None:
    for kind in "DdENV":
        walker = ReplyWalker()
        head = struct.pack("!cI", kind.encode(), MAX_HELD + 1)
        body = b"x" * (MAX_HELD + 1 - 4)
        units = walk(walker, [head[:3], head[3:], body[:1000], body[1000:], message("Z", b"I")])
        assert units[0] == (head + body + message("Z", b"I"), "I", MASKS.get(kind, units[0][2]))


# ---- batches of clients

names = st.sampled_from(["", "", "", "a", "name"])
ops = st.one_of(
    st.builds(P, names, st.sampled_from(["SELECT 1", "", "SELECT $1"]), st.lists(st.integers(0, 99), max_size=2)),
    st.builds(B, names, names, st.lists(st.sampled_from(["1", None, ""]), max_size=2)),
    st.builds(D, st.sampled_from("SP"), names),
    st.builds(E, names, st.integers(0, 3)),
    st.builds(C, st.sampled_from("SP"), names),
    st.sampled_from([S, S, H, Q("SELECT 1")]),
)


def form_of(batch: list[bytes]) -> int:
    """What `scan_batch` shall say of whole messages."""
    shape = "".join(chr(raw[0]) for raw in batch)
    read = [frontend.read_op(raw) for raw in batch if raw[0] in frontend.EXTENDED]
    portals_unnamed = all(not op.portal for op in read)
    parsed, bound = [op for op in read if op.kind == frontend.PARSE], [op for op in read if op.kind == frontend.BIND]
    describes = "".join(chr(op.target) for op in read if op.kind == frontend.DESCRIBE)
    if not portals_unnamed or len(bound) != 1:
        return 0
    if shape in ("PBS", "PBES", "PBDS", "PBDES", "PDBS", "PDBES", "PDBDS", "PDBDES"):
        wanted = ("S" if shape[1] == "D" else "") + ("P" if "BD" in shape else "")
        if describes == wanted and not any(op.name for op in read):
            return B_SYNC | B_PLAIN
    if shape in ("BS", "BES", "BDS", "BDES") and describes in ("", "P") and bound[0].name and not parsed:
        return B_SYNC | B_NAMED
    return 0


usual = st.sampled_from(["PBS", "PBES", "PBDES", "PDBES", "PDBDES", "BES", "BDES", "BS", "PDDBES", "PBEES", "PPBES"])


def one_of_kind(kind: str) -> st.SearchStrategy[bytes]:
    match kind:
        case "P":
            return st.builds(P, names, st.just("SELECT 1"))
        case "B":
            return st.builds(B, names, names)
        case "D":
            return st.builds(D, st.sampled_from("SP"), names)
        case "E":
            return st.builds(E, names)
        case _:
            return st.just(S)


batches = st.one_of(
    st.lists(ops, max_size=7),
    usual.flatmap(lambda shape: st.tuples(*map(one_of_kind, shape)).map(list)),
)


@given(batches)
def test_scan_of_a_batch(batch: list[bytes]) -> None:
    """Never more than the truth: what it calls usual is exactly that. Repeated Describes it may leave out."""
    got, want = scan_batch(b"".join(batch)), form_of(batch)
    if want:
        assert got == want
    elif got:
        # The walk lets further Describe messages of the unnamed statement pass: they change nothing.
        without = [raw for at, raw in enumerate(batch) if not (raw == D("S") and D("S") in batch[:at])]
        assert form_of(without) == got


@given(batches, st.binary(min_size=1, max_size=8))
def test_scan_of_a_batch_with_more_or_less(batch: list[bytes], more: bytes) -> None:
    """Half a batch, or one with anything behind, is not one."""
    data = b"".join(batch)
    assert scan_batch(data + more) == 0
    for end in range(len(data)):
        if scan_batch(data[:end]):
            assert data[end - 5 : end] == S


@given(st.binary(max_size=120))
def test_scan_of_anything(data: bytes) -> None:
    if scan_batch(data):
        assert data.endswith(S)


# ---- messages of clients


def lengths(rest: bytes) -> bytes:
    return i32(len(rest) + 4) + rest


@given(st.sampled_from(sorted(frontend.EXTENDED)), st.one_of(st.binary(max_size=60), st.binary(max_size=8)))
@example(frontend.PARSE, b"\0\0\xff\xff")
@example(frontend.PARSE, b"\0\0\0")
@example(frontend.EXECUTE, b"\0")
@example(frontend.DESCRIBE, b"")
def test_reading_a_message(kind: int, body: bytes) -> None:
    """What is read can be put together again; the rest is refused, as an ERROR."""
    raw = bytes([kind]) + lengths(body)
    if error := refusal(lambda: frontend.read_op(raw)):
        assert (error.sqlstate, error.severity) == ("08P01", "ERROR")
        return
    op = frontend.read_op(raw)
    assert op.raw == raw
    match kind:
        case frontend.PARSE:
            assert cstr(op.name) + cstr(op.sql) + op.oids == body
        case frontend.BIND:
            assert cstr(op.portal) + cstr(op.name) + raw[op.rest :] == body
        case frontend.EXECUTE:
            assert cstr(op.portal) + raw[op.rest :] == body
        case _:
            assert bytes([op.target]) + cstr(op.name or op.portal) == body


@given(st.integers(0, 255), st.integers(0, 2**32 - 1))
def test_header(kind: int, length: int) -> None:
    if error := refusal(lambda: frontend.check_header(kind, length)):
        assert (error.sqlstate, error.severity) == ("08P01", "FATAL")
    else:
        assert kind in frontend.KNOWN
        assert 4 <= length <= 4 + 0x3FFFFFFF


# ---- readers of bodies


@pytest.mark.parametrize("reader", [parse.error_fields, parse.parameter_status, parse.data_row, parse.row_types])
@given(body=st.binary(max_size=80))
def test_readers(reader: Callable[[bytes], object], body: bytes) -> None:
    error = refusal(lambda: reader(body))
    assert error is None or error.sqlstate == "08P01"


def test_reading_a_row_is_bounded() -> None:
    """A count that the body doesn't hold is refused, not made up."""
    with pytest.raises(ProtocolViolation):
        parse.data_row(b"\xff\xff")
    with pytest.raises(ProtocolViolation):
        parse.data_row(b"\0\1\0\0")


# ---- logins

first_packets = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(lengths),
    st.builds(lambda v, rest: lengths(i32(v) + rest), st.integers(0, 2**31 - 1), st.binary(max_size=40)),
    st.builds(
        lambda pairs: startup_message(dict(pairs), PROTOCOL_3_0),
        st.lists(
            st.tuples(
                st.sampled_from(["user", "database", "options", "replication", "_pq_.x", "a"]),
                st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
            ),
            max_size=5,
        ),
    ),
)


@given(first_packets, st.lists(st.integers(0, 500), max_size=5))
def test_first_packet(packet: bytes, places: list[int]) -> None:
    """The same verdict however it is cut."""

    def verdict(pieces: Iterable[bytes]) -> object:
        login = ClientLogin()
        try:
            return [event for piece in pieces for event in login.feed(piece)], login.take_leftover()
        except TridentError as error:
            return error.sqlstate, error.message

    whole = verdict([packet])
    assert verdict(cut(packet, places)) == whole
    assert verdict(packet[at : at + 1] for at in range(len(packet))) == whole


@given(st.text(max_size=60))
def test_options(text: str) -> None:
    error = refusal(lambda: startup.split_options(text))
    assert error is None or error.sqlstate in ("42601", "42704")


@given(st.one_of(st.binary(max_size=80), st.binary(max_size=80).map(lambda b: startup.PROXY_SIGNATURE + b)))
def test_proxy_header(data: bytes) -> None:
    def read() -> None:
        length = startup.proxy_length(data)
        if len(data) >= length:
            startup.parse_proxy(data[:length])

    if len(data) >= startup.PROXY_FIXED:
        error = refusal(read)
        assert error is None or error.sqlstate == "08P01"


SCRAM_PARTS = ["n,,", "y,,", "p=tls-server-end-point,,", "n=", "r=", "c=", "p=", "c=biws", "i=", "s=", "v=", ",", "a=x"]
scram_texts = st.one_of(
    st.binary(max_size=60),
    st.lists(st.one_of(st.sampled_from(SCRAM_PARTS), st.text(max_size=8)), max_size=8).map(
        lambda parts: "".join(parts).encode("utf-8", "replace")
    ),
)
password_messages = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda body: message("p", body)),
    scram_texts.map(lambda text: message("p", cstr("SCRAM-SHA-256") + i32(len(text)) + text)),
    scram_texts.map(lambda text: message("p", text)),
)


@given(st.sampled_from(["password", "md5", "scram"]), st.lists(password_messages, min_size=1, max_size=4))
def test_answers_of_clients(method: str, messages: list[bytes]) -> None:
    login = ClientLogin()
    login.feed(startup_message({"user": "u"}))
    match method:
        case "password":
            login.ask_password()
        case "md5":
            login.ask_md5(auth.md5_hash("secret", "u"), b"salt")
        case _:
            login.ask_scram(auth.mock_secret("u", b"nonce"), "servernonce", None)

    def answer() -> None:
        for data in messages:
            for event in login.feed(data):
                assert type(event).__name__ in ("Send", "Password", "WrongPassword"), "nobody knows the password"

    if error := refusal(answer):
        assert error.severity == "FATAL"
        assert error.sqlstate in ("08P01", "28000", "28P01", "0A000")


login_replies = st.one_of(
    st.binary(max_size=40),
    st.builds(message, st.sampled_from("RSKZENvDTC1"), st.binary(max_size=30)),
    st.builds(
        lambda method, rest: message("R", i32(method) + rest),
        st.sampled_from([0, 3, 5, 7, 10, 11, 12, 99]),
        st.one_of(st.binary(max_size=20), st.just(b"SCRAM-SHA-256\0\0"), st.just(b"salt"), scram_texts),
    ),
)


@given(st.lists(login_replies, max_size=8), st.lists(st.integers(0, 500), max_size=6))
@example(
    [message("R", i32(10) + b"SCRAM-SHA-256\0\0"), message("R", i32(11) + b"r=abcd,s=c2FsdA==,i=" + b"1" * 5000)], []
)
@example([message("R", i32(10) + b"SCRAM-SHA-256\0\0"), message("R", i32(11) + b"r=abcd,s=c2FsdA==,i=0")], [])
@example([message("R", i32(10) + b"SCRAM-SHA-256\0\0"), message("R", i32(0))], [])
@example([message("R", b"\0")], [])
def test_answers_of_nodes(messages: list[bytes], places: list[int]) -> None:
    login = NodeLogin(Credentials("u", password="secret"), {}, nonce="abc")
    login.start()

    def read() -> None:
        for piece in cut(b"".join(messages), places):
            for event in login.feed(piece):
                assert isinstance(event, Send | DeriveKeys | NodeReady)
                if isinstance(event, DeriveKeys):
                    assert 1 <= event.iterations <= auth.MAX_ITERATIONS
                    login.use_keys(auth.derive_keys("secret", event.salt, 1))
                if isinstance(event, NodeReady):
                    return

    refusal(read)


@given(st.binary(max_size=200))
def test_certificates(der: bytes) -> None:
    auth.certificate_hash(der)


@given(st.text(max_size=80))
def test_stored_secrets(text: str) -> None:
    auth.parse_secret("SCRAM-SHA-256$" + text)
    auth.saslprep(text)
