"""First packets, `options` strings and PROXY headers. Expectations were seen on PostgreSQL 15."""

from __future__ import annotations

import struct

import pytest

from proxy.errors import LoginError, ProtocolViolation, TridentError, Unsupported
from proxy.wire import build, codes
from proxy.wire.startup import (
    PROXY_SIGNATURE,
    CancelRequest,
    GssRequest,
    SslRequest,
    Startup,
    packet_length,
    parse_first,
    parse_proxy,
    split_options,
)


def started(version: int = codes.PROTOCOL_3_0, **params: str) -> Startup:
    first = parse_first(build.startup({"user": "ada", **params}, version))
    assert isinstance(first, Startup)
    return first


def packet(body: bytes, version: int = codes.PROTOCOL_3_0) -> bytes:
    return struct.pack("!ii", len(body) + 8, version) + body


def test_requests() -> None:
    assert parse_first(build.request(codes.SSL_REQUEST)) == SslRequest()
    assert parse_first(build.request(codes.GSSENC_REQUEST)) == GssRequest()
    assert parse_first(build.cancel(77, b"abcd")) == CancelRequest(77, b"abcd")
    assert parse_first(build.cancel(77, b"k" * 256)) == CancelRequest(77, b"k" * 256)


@pytest.mark.parametrize("key", [b"", b"abc", b"k" * 257])
def test_cancel_key_length(key: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse_first(build.cancel(1, key))


@pytest.mark.parametrize("length", [-1, 0, 3, 4, 7, 10_001, 20_000])
def test_length_out_of_range(length: int) -> None:
    with pytest.raises(ProtocolViolation):
        packet_length(struct.pack("!i", length))


def test_plain_startup() -> None:
    first = started(database="shop", application_name="till", TimeZone="Asia/Tokyo")
    assert (first.user, first.database, first.minor, first.negotiate) == ("ada", "shop", 0, False)
    assert first.settings == {"application_name": "till", "TimeZone": "Asia/Tokyo"}
    assert first.replication == ""


def test_database_defaults_to_user() -> None:
    assert started().database == started(database="").database == "ada"


def test_no_user() -> None:
    for params in ({"database": "x"}, {"user": ""}):
        with pytest.raises(LoginError, match="no PostgreSQL user name specified") as caught:
            parse_first(build.startup(params, codes.PROTOCOL_3_0))
        assert caught.value.sqlstate == "28000"


@pytest.mark.parametrize(
    "body", [b"", b"user\0ada\0", b"user\0ada", b"user\0ada\0\0x\0", b"user\0\0", b"\0x\0\0", b"user\0ada\0\0\0"]
)
def test_layout(body: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="expected terminator as last byte"):
        parse_first(packet(body))


@pytest.mark.parametrize(
    ("version", "shown"), [(4 << 16, "4.0"), (2 << 16, "2.0"), (codes.SSL_REQUEST, "1234.5679"), (1234 << 16, "1234.0")]
)
def test_other_protocols(version: int, shown: str) -> None:
    with pytest.raises(Unsupported, match=f"unsupported frontend protocol {shown}: server supports 3.0 to 3.2"):
        parse_first(packet(b"user\0ada\0\0", version))


@pytest.mark.parametrize(
    ("asked", "option", "granted", "negotiate"),
    [
        (0, "", 0, False),
        (2, "", 2, False),
        (3, "", 2, True),
        (9999, "_pq_.test_protocol_negotiation", 2, True),
        (0, "_pq_.foo", 0, True),
    ],
)
def test_negotiation(asked: int, option: str, granted: int, negotiate: bool) -> None:
    first = started(codes.PROTOCOL_3_0 + asked, **({option: "1"} if option else {}))
    assert (first.minor, first.negotiate) == (granted, negotiate)
    assert first.unknown == ((option,) if option else ())
    assert not first.settings, "a protocol option is no setting"


def test_names_are_cut_like_in_postgresql() -> None:
    assert started(user="x" * 100).user == "x" * 63
    assert started(user="é" * 50).user == "é" * 31


def test_bytes_that_are_not_utf8() -> None:
    first = parse_first(packet(b"user\0ada\0application_name\0caf\xe9\0\0"))
    assert isinstance(first, Startup)
    assert first.settings == {"application_name": "caf?"}
    with pytest.raises(LoginError, match="search_path"):
        parse_first(packet(b"user\0ada\0search_path\0caf\xe9\0\0"))


@pytest.mark.parametrize(
    ("given", "taken"),
    [("database", "database"), ("on", "on"), ("true", "true"), ("1", "1"), ("off", ""), ("f", ""), ("0", "")],
)
def test_replication(given: str, taken: str) -> None:
    assert started(replication=given).replication == taken


@pytest.mark.parametrize("given", ["banana", "o", "2"])
def test_bad_replication(given: str) -> None:
    with pytest.raises(LoginError) as caught:
        started(replication=given)
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        (
            "  -c search_path=tenant_a   -c statement_timeout=5s ",
            {"search_path": "tenant_a", "statement_timeout": "5s"},
        ),
        (r"-c search_path=a,\ b --work-mem=6MB", {"search_path": "a, b", "work_mem": "6MB"}),
        ("-cwork_mem=6MB", {"work_mem": "6MB"}),
        (r"-c a=x\\y\=z", {"a": r"x\y=z"}),
        ("-c a=x\\", {"a": "x"}),
        ("-c a=1 -c a=2", {"a": "2"}),
        ("-c my-x.a-b=5-6", {"my_x.a_b": "5-6"}),
        ("-c a=", {"a": ""}),
        ("-e -S 6MB", {"datestyle": "euro", "work_mem": "6MB"}),
        ("-c a=1 --", {"a": "1"}),
    ],
)
def test_options(text: str, settings: dict[str, str]) -> None:
    assert split_options(text) == settings


@pytest.mark.parametrize(
    ("text", "sqlstate", "message"),
    [
        ("-c nonsense", "42601", "-c nonsense requires a value"),
        ("--nonsense", "42601", "--nonsense requires a value"),
        ("-Z foo", "42601", "invalid command-line argument for server process: -Z"),
        ("foo", "42601", "invalid command-line argument for server process: foo"),
        ("-- -c a=b", "42601", "invalid command-line argument for server process: -c"),
        ("-c", "42601", "invalid command-line argument for server process: -c"),
        ("-c search_path='a b'", "42601", "invalid command-line argument for server process: b'"),
        ("-c =5", "42704", 'unrecognized configuration parameter ""'),
        ("-c user=root", "42704", 'unrecognized configuration parameter "user"'),
        ("-c database=x", "42704", 'unrecognized configuration parameter "database"'),
        ("-c _pq_.x=1", "42704", 'unrecognized configuration parameter "_pq_.x"'),
    ],
)
def test_bad_options(text: str, sqlstate: str, message: str) -> None:
    with pytest.raises(LoginError) as caught:
        split_options(text)
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)


def test_a_startup_parameter_wins_over_options() -> None:
    assert started(options="-c a=1 -c b=2", a="3").settings == {"a": "3", "b": "2"}


def test_every_cut_and_change_of_a_packet_is_an_answer_or_an_error() -> None:
    good = build.startup({"user": "ada", "options": "-c a=b", "_pq_.x": ""}, codes.PROTOCOL_3_2)
    for at in range(len(good)):
        for value in (0, 1, 0x7F, 0xFF):
            try:
                parse_first(good[:at] + bytes((value,)) + good[at + 1 :])
            except TridentError:
                continue


def proxy_header(command: int, family: int, body: bytes) -> bytes:
    return PROXY_SIGNATURE + bytes((0x20 | command, family << 4 | 1)) + struct.pack("!H", len(body)) + body


def test_proxy_v4_with_extensions() -> None:
    body = bytes((10, 1, 2, 3, 10, 0, 0, 1)) + struct.pack("!HH", 4711, 6432) + b"\x03\0\4abcd"
    header = parse_proxy(proxy_header(1, 1, body))
    assert (header.length, header.address) == (16 + len(body), ("10.1.2.3", 4711))


def test_proxy_v6() -> None:
    body = bytes(15) + b"\1" + bytes(15) + b"\2" + struct.pack("!HH", 5, 6)
    assert parse_proxy(proxy_header(1, 2, body)).address == ("::1", 5)


def test_proxy_local_and_unknown_have_no_address() -> None:
    assert parse_proxy(proxy_header(0, 1, bytes(12))).address is None
    assert parse_proxy(proxy_header(1, 0, b"")).address is None


@pytest.mark.parametrize(
    "header",
    [
        b"\r" + bytes(15),
        PROXY_SIGNATURE + b"\x11\x11\0\0",
        PROXY_SIGNATURE + b"\x25\x11\0\0",
        PROXY_SIGNATURE + b"\x21\x11\xff\xff",
        proxy_header(1, 1, bytes(11)),
        proxy_header(1, 2, bytes(35)),
    ],
)
def test_bad_proxy_headers(header: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse_proxy(header)
