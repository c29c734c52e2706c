"""P15: what may come before the startup message, and what happens to clients that come with nothing."""

from __future__ import annotations

import struct
import time

import pytest

from ..support.proxy import Proxy
from ..support.rawpg import (
    CANCEL_REQUEST,
    GSS_REQUEST,
    SSL_REQUEST,
    Q,
    Wire,
    i32,
    request,
    show,
    startup_message,
)
from .conftest import DATABASE, PASSWORD, USER, Secure

PARAMS = {"user": USER, "database": DATABASE}
Address = tuple[str, int]


@pytest.fixture(params=["direct", "proxy"])
def with_tls(request: pytest.FixtureRequest, secure: Secure) -> Address:
    """An address that offers TLS and wants SCRAM."""
    if request.param == "direct":
        return secure.address
    proxy: Proxy = request.getfixturevalue("secure_proxy")
    return proxy.address


@pytest.fixture(params=["direct", "proxy"])
def tls_only(request: pytest.FixtureRequest, secure: Secure) -> Address:
    """An address that wants TLS."""
    if request.param == "direct":
        return secure.address
    proxy: Proxy = request.getfixturevalue("tls_only_proxy")
    return proxy.address


def logs_in(wire: Wire) -> bool:
    return wire.login(PARAMS, password=PASSWORD).endswith("ZI") and wire.query("SELECT 1").endswith("ZI")


@pytest.mark.parametrize("first, second", [(GSS_REQUEST, SSL_REQUEST), (SSL_REQUEST, GSS_REQUEST)])
def test_both_declined(clear_proxy: Proxy, first: int, second: int) -> None:
    wire = Wire(clear_proxy.address)
    for code in (first, second):
        assert wire.send(request(code)).raw(1) == b"N"
    assert logs_in(wire)


def test_gss_declined_then_tls(secure_proxy: Proxy, secure: Secure) -> None:
    wire = Wire(secure_proxy.address)
    assert wire.send(request(GSS_REQUEST)).raw(1) == b"N"
    wire.start_tls(secure.context())
    assert logs_in(wire)


def test_neither_asked(secure_proxy: Proxy) -> None:
    wire = Wire(secure_proxy.address)
    assert logs_in(wire)


def test_tls(with_tls: Address, secure: Secure) -> None:
    wire = Wire(with_tls, tls=secure.context())
    assert logs_in(wire)


@pytest.mark.parametrize("code", [SSL_REQUEST, GSS_REQUEST])
def test_asked_twice(clear_proxy: Proxy, code: int) -> None:
    wire = Wire(clear_proxy.address)
    assert wire.send(request(code)).raw(1) == b"N"
    replies = wire.send(request(code)).until("EOF")
    assert show(replies) == "E[FATAL 0A000] EOF"
    assert replies[0].fields["M"].startswith(f"unsupported frontend protocol 1234.{code & 0xFFFF}")


def test_tls_inside_tls(with_tls: Address, secure: Secure) -> None:
    wire = Wire(with_tls, tls=secure.context())
    assert show(wire.send(request(SSL_REQUEST)).until("EOF")) == "E[FATAL 0A000] EOF"


def test_bytes_behind_the_request(secure_proxy: Proxy) -> None:
    """Clear text that waits behind an SSLRequest could be an attacker's: it is refused."""
    wire = Wire(secure_proxy.address)
    wire.send(request(SSL_REQUEST) + startup_message(PARAMS))
    answer = wire.raw(4096, timeout=5)
    assert b"ZI" not in answer
    assert b"R\0\0\0" not in answer


def test_clear_login_where_tls_is_required(tls_only: Address) -> None:
    wire = Wire(tls_only)
    assert wire.login(PARAMS, password=PASSWORD) == "E[FATAL 28000] EOF"


def test_tls_where_it_is_required(tls_only: Address, secure: Secure) -> None:
    wire = Wire(tls_only, tls=secure.context())
    assert logs_in(wire)


@pytest.mark.parametrize("sent", [b"", b"\0", b"\0\0\0\x08\x04\xd2"], ids=["nothing", "one byte", "half a request"])
def test_silent_client_is_dropped(secure_proxy: Proxy, sent: bytes) -> None:
    wire = Wire(secure_proxy.address)
    start = time.monotonic()
    wire.send(sent)
    wire.raw(4096, timeout=8)
    assert 1 < time.monotonic() - start < 6


def test_slow_client_is_dropped(secure_proxy: Proxy) -> None:
    """The time is for the whole login, so that a byte now and then does not help."""
    wire = Wire(secure_proxy.address)
    start = time.monotonic()
    ended = False
    for byte in startup_message(PARAMS):
        try:
            wire.socket.sendall(bytes([byte]))
            ended = not wire.silence(0.25)
        except ConnectionError:
            ended = True
        if ended:
            break
    assert ended
    assert time.monotonic() - start < 6


def test_silence_after_the_request_and_in_authentication(secure_proxy: Proxy) -> None:
    asked, greeted = Wire(secure_proxy.address), Wire(secure_proxy.address)
    assert asked.send(request(SSL_REQUEST)).raw(1) == b"S"
    assert str(greeted.send(startup_message(PARAMS)).read()) == "R10"
    assert asked.raw(4096, timeout=8) == b""
    assert greeted.until("EOF", timeout=8)[-1].kind == "EOF"


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(i32(20_000) + i32(0x30000) + b"x" * 100, id="too long"),
        pytest.param(i32(-1) + i32(0x30000), id="negative"),
        pytest.param(i32(3) + b"\0" * 8, id="too short"),
        pytest.param(i32(0) + b"\0" * 8, id="zero"),
        pytest.param(i32(len(startup_message(PARAMS)) - 1) + startup_message(PARAMS)[4:-1], id="no final zero"),
        pytest.param(i32(4 + 4 + 5) + i32(0x30000) + b"user\0", id="name without value"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="another protocol"),
    ],
)
def test_bad_first_packet(with_tls: Address, packet: bytes) -> None:
    wire, other = Wire(with_tls), Wire(with_tls)
    wire.send(packet)
    answer = wire.raw(4096, timeout=5)
    assert answer == b"" or (answer[:1] == b"E" and b"FATAL" in answer and b"C08P01" in answer), answer
    assert show(other.send(i32(8) + i32(SSL_REQUEST)).until("EOF", timeout=0.1)) in ("...", "EOF")


@pytest.mark.parametrize("clear", [False, True])
def test_cancel_over_tls(with_tls: Address, secure: Secure, clear: bool) -> None:
    """libpq before 17 sends its cancel requests in clear, newer ones by TLS: both are served."""
    wire = Wire(with_tls, tls=secure.context())
    assert logs_in(wire)
    wire.send(Q("SELECT pg_sleep(20)"))
    assert wire.silence(0.3)
    wire.cancel(None if clear else secure.context())
    assert show(wire.until(timeout=5)) == "T[pg_sleep] E[57014] ZI"
    assert wire.query("SELECT 1").endswith("ZI")


@pytest.mark.parametrize("key", [b"", b"\0\0\0\0", b"\xff" * 4, b"x" * 32, b"x" * 256, b"x" * 5000])
def test_false_cancel_keys(with_tls: Address, secure: Secure, key: bytes) -> None:
    """Closed without an answer, and nobody's statement is hit."""
    wire = Wire(with_tls, tls=secure.context())
    assert logs_in(wire)
    wire.send(Q("SELECT pg_sleep(0.5)"))
    for pid in (wire.pid, 0, 0xFFFFFFFF):
        other = Wire(with_tls)
        other.send(i32(12 + len(key)) + i32(CANCEL_REQUEST) + struct.pack("!I", pid) + key)
        answer = other.raw(4096, timeout=5)
        assert answer == b"" or answer[:1] == b"E"
    assert show(wire.until(timeout=5)) == "T[pg_sleep] D[] C[SELECT 1] ZI"
