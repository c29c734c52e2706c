"""Logins that are malformed, slow, many or wrong: they cost little, end in time, and keep nobody else out."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from ..conftest import base_settings
from ..support.fake_node import FakeNode
from ..support.fleet import Fleet
from ..support.proxy import Proxy, merged
from ..support.rawpg import EOF, SSL_REQUEST, Q, Scram, Wire, cstr, i32, message, request, show, startup_message

ONE = "T[?column?] D[1] C[SELECT 1] ZI"
PASSWORD = "correct horse"
PARAMS = {"user": "pool5", "database": "postgres"}
LOGIN_TIMEOUT = 2.0
FAILURE_DELAY = 0.3
LOOK_UPS = 20
"""A second."""
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def strict(fleet: Fleet, fake_node: FakeNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy that wants passwords: in clear in database `template1`, by md5 for user pool3, else by SCRAM."""
    settings = merged(
        base_settings(fleet),
        {
            "nodes": {"primary": {"port": fake_node.port}},
            "listen": {"login_timeout": LOGIN_TIMEOUT},
            "auth": {
                "hba": [
                    "host template1 all 127.0.0.1/32 password",
                    "host all pool3 127.0.0.1/32 md5",
                    "host all all 127.0.0.1/32 scram-sha-256",
                ],
                "failure_delay": FAILURE_DELAY,
                "failures_per_second": 100,
                "query": {"enabled": True, "user": "postgres", "max_per_second": LOOK_UPS, "negative_cache": 60},
            },
            "users": {"pool5": {"password": PASSWORD}, "pool3": {"password": PASSWORD}},
        },
    )
    with Proxy(settings, tmp_path_factory.mktemp("proxy")) as proxy:
        serves(proxy, within=20)
        yield proxy


def serves(proxy: Proxy, within: float = 5) -> None:
    """Who knows the password is let in and answered."""
    start = time.monotonic()
    wire = Wire(proxy.address)
    assert wire.login(PARAMS, password=PASSWORD, timeout=within).endswith("ZI"), proxy.tail()
    assert wire.query("SELECT 1") == ONE
    assert time.monotonic() - start < within
    wire.close()


def falls_back(count: Callable[[], int], to: int, seconds: float = 10) -> None:
    """Wait for what closed connections leave behind to go."""
    deadline = time.monotonic() + seconds
    while (now := count()) > to:
        assert time.monotonic() < deadline, f"{now} are left, not {to}"
        time.sleep(0.05)


@contextlib.contextmanager
def no_leak(proxy: Proxy) -> Iterator[None]:
    """What is done inside leaves no descriptor and no memory behind."""
    serves(proxy)
    descriptors, memory = proxy.descriptors(), proxy.memory()
    yield
    serves(proxy)
    falls_back(proxy.descriptors, descriptors + 2)
    assert proxy.memory() - memory < 24 * MEGABYTE


# ---- malformed

STARTUP = startup_message(PARAMS)
FIRST = {
    "length 0": i32(0) + b"xxxx",
    "length 7": i32(7) + b"xxx",
    "length -1": i32(-1) + b"xxxx",
    "length 10001": i32(10_001) + b"x" * 9_997,
    "HTTP": b"GET / HTTP/1.1\r\nHost: db\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "zeros": bytes(1000),
    "a Query": Q("SELECT 1"),
    "no terminator": i32(8 + 8) + i32(0x30000) + b"user\0pg\0",
    "half a pair": i32(8 + 6) + i32(0x30000) + b"user\0\0",
    "behind the terminator": i32(8 + 13) + i32(0x30000) + b"user\0pool5\0\0x",
    "cancel too short": i32(12) + i32(80877102) + b"xxxx",
    "cancel too long": i32(12 + 257) + i32(80877102) + b"x" * 261,
    "TLS that is not offered": bytes.fromhex("1603010200010001fc0303") + b"x" * 500,
}


@pytest.mark.parametrize("name", FIRST)
def test_first_packets(strict: Proxy, name: str) -> None:
    with no_leak(strict):
        for pieces in ([FIRST[name]], [FIRST[name][at : at + 1] for at in range(min(40, len(FIRST[name])))]):
            wire = Wire(strict.address)
            with contextlib.suppress(OSError):  # it may close before all is sent
                for piece in pieces:
                    wire.socket.sendall(piece)
            assert show(wire.until(EOF, timeout=5)) in ("E[FATAL 08P01] EOF", "EOF")


ANSWERS = {
    "a Query": Q("SELECT 1"),
    "length 0": b"p" + i32(0),
    "length 3": b"p" + i32(3),
    "length -1": b"p" + i32(-1),
    "70 kB": b"p" + i32(70_000) + b"x" * 70_000,
    "1 GB": b"p" + i32(1 << 30),
    "no mechanism": message("p", b""),
    "unknown mechanism": message("p", cstr("PLAIN") + i32(3) + b"n,,"),
    "wrong length": message("p", cstr("SCRAM-SHA-256") + i32(99) + b"n,,n=,r=x"),
    "no nonce": message("p", cstr("SCRAM-SHA-256") + i32(5) + b"n,,n="),
    "zero inside": message("p", cstr("SCRAM-SHA-256") + i32(10) + b"n,,n=,r=\0x"),
    "PLUS that was not offered": message("p", cstr("SCRAM-SHA-256-PLUS") + i32(9) + b"n,,n=,r=x"),
    "password without zero": message("p", b"abc"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_to_authentication(strict: Proxy, name: str) -> None:
    with no_leak(strict):
        wire = Wire(strict.address)
        assert wire.ask(STARTUP, until="R") == "R10"
        with contextlib.suppress(OSError):
            wire.send(ANSWERS[name])
        assert show(wire.until(EOF, timeout=5)) in ("E[FATAL 08P01] EOF", "EOF")


def scram_messages() -> list[bytes]:
    """What a client sends up to a wrong proof."""
    scram = Scram("wrong")
    final = f"c=biws,r={'x' * 40},p={'A' * 43}=".encode()
    return [STARTUP, scram.first(), message("p", final)]


def test_end_at_every_byte(strict: Proxy) -> None:
    """Clients that go away anywhere in their login, politely or not."""
    whole = b"".join(scram_messages())
    with no_leak(strict):
        for end in range(len(whole)):
            wire = Wire(strict.address)
            wire.send(whole[:end])
            if end % 3 == 0:
                wire.reset()
            elif end % 3 == 1:
                wire.socket.shutdown(socket.SHUT_WR)
            else:
                wire.close()


# ---- slow

SLOW: dict[str, Sequence[bytes]] = {
    "silent": [],
    "half a startup packet": [STARTUP[:9]],
    "half a request for TLS": [request(SSL_REQUEST)[:6]],
    "nothing behind the request for TLS": [request(SSL_REQUEST)],
    "no password": [STARTUP],
    "half a password": [STARTUP, scram_messages()[1][:20]],
    "no proof": [STARTUP, scram_messages()[1]],
    "first byte of TLS": [b"\x16"],
    "first byte of a PROXY header": [b"\x0d"],
}


def test_slow_logins(strict: Proxy) -> None:
    """20 of each kind, and as many that send a byte now and then: all are ended at `login_timeout`, and whoever
    comes meanwhile is served as ever."""
    with no_leak(strict):
        began = time.monotonic()
        wires = [Wire(strict.address) for _ in range(20 * len(SLOW))]
        for wire, pieces in zip(wires, list(SLOW.values()) * 20, strict=True):
            wire.send(*pieces)
        drips = [Wire(strict.address) for _ in range(50)]
        sent = 0
        while time.monotonic() - began < LOGIN_TIMEOUT - 0.3:
            for wire in drips:
                wire.send(STARTUP[sent : sent + 1])
            sent += 1
            serves(strict, within=2)
            time.sleep(0.1)
        for wire in (*wires, *drips):
            with contextlib.suppress(ConnectionError):
                while wire.socket.recv(1000):
                    pass
        assert LOGIN_TIMEOUT - 1 < time.monotonic() - began < LOGIN_TIMEOUT + 3


def half_open(proxy: Proxy, count: int) -> None:
    """So many connections that say nothing, or begin to: the proxy stays small and serves others."""
    with no_leak(proxy):
        before = proxy.memory()
        connections = list[socket.socket]()
        try:
            for number in range(count):
                connections.append(socket.create_connection(proxy.address))
                if number % 3:
                    # Where it is too late already: the oldest go when there are too many.
                    with contextlib.suppress(ConnectionError):
                        connections[-1].sendall(STARTUP[: number % 40])
                if number % (count // 10) == 0:
                    serves(proxy, within=4)
            assert proxy.memory() - before < 100 * MEGABYTE
            serves(proxy, within=4)
        finally:
            for connection in connections:
                connection.close()


def test_a_thousand_half_open_connections(strict: Proxy) -> None:
    half_open(strict, 1000)


@pytest.mark.full
def test_ten_thousand_half_open_connections(strict: Proxy) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 10_500:
        pytest.skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 10_500), hard))
    try:
        half_open(strict, 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connect_and_go(strict: Proxy) -> None:
    """Port scans and health checks of load balancers."""
    with no_leak(strict):
        lines = len(strict.lines)
        for number in range(500):
            connection = socket.create_connection(strict.address)
            if number % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
    assert len(strict.lines) - lines < 20, "a line for each"


# ---- wrong passwords


def wrong(proxy: Proxy, user: str, database: str) -> tuple[str, float]:
    """A login with a wrong password: the replies, and how long they took."""
    wire = Wire(proxy.address)
    start = time.monotonic()
    wire.send(startup_message({"user": user, "database": database}))
    scram = Scram("wrong")
    while True:
        reply = wire.read(timeout=15)
        if reply.kind != "R":
            break
        kind = int.from_bytes(reply.body[:4], "big")
        wire.send(
            message("p", b"wrong\0")
            if kind == 3
            else message("p", b"md5" + b"0" * 32 + b"\0")
            if kind == 5
            else scram.answer(reply.body)
        )
    took = time.monotonic() - start
    replies = show([reply, *wire.until(EOF, timeout=5)])
    wire.close()
    return replies, took


@pytest.mark.parametrize(
    "user, database",
    [
        ("pool5", "postgres"),
        ("pool3", "postgres"),
        ("pool5", "template1"),
        ("nobody{}", "postgres"),
        ("none", "none{}"),
    ],
    ids=["scram", "md5", "clear", "unknown users", "unknown databases"],
)
def test_flood_of_wrong_passwords(strict: Proxy, fake_node: FakeNode, user: str, database: str) -> None:
    """Each waits, all together are paced, no node is bothered, and who knows the password gets in at once."""
    count = 150
    with no_leak(strict):
        known = len(fake_node.startups)
        began = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            results = pool.map(lambda n: wrong(strict, user.format(n), database.format(n)), range(count))
            for _ in range(3):
                serves(strict, within=2)
            outcomes = list(results)
        took = time.monotonic() - began
        replies = [reply for reply, _ in outcomes]
        if "{}" in user + database:
            # Those over the limit of look-ups failed at once, as did those whose database can't be asked.
            assert set(replies) <= {"E[FATAL 28P01] EOF", "E[FATAL 53300] EOF", "E[FATAL 08006] EOF"}
            assert replies.count("E[FATAL 53300] EOF") > count / 2
        else:
            # One that is kept waiting for longer than a login may take is let go without a word.
            assert all(reply == "E[FATAL 28P01] EOF" or seconds > LOGIN_TIMEOUT * 0.9 for reply, seconds in outcomes)
            assert replies.count("E[FATAL 28P01] EOF") > count / 2
            assert took > count / 100 * 0.9
        assert all(seconds > FAILURE_DELAY * 0.9 for reply, seconds in outcomes if "28P01" in reply)
        # Nodes saw probes, who knew the password, and at most so many look-ups as are allowed.
        users = [packet.split(b"user\0")[1].split(b"\0")[0] for packet in fake_node.startups[known:]]
        assert set(users) <= {b"postgres", b"pool5"}
        assert users.count(b"pool5") <= 5
        assert users.count(b"postgres") < (LOOK_UPS if "{}" in user + database else 0) * (took + 2) + 5 * took + 5


def test_nothing_secret_is_logged(strict: Proxy) -> None:
    """After all these logins."""
    wrong(strict, "pool5", "template1")
    assert not [line for line in strict.lines if PASSWORD in line or "wrong" in line.replace("wrong password", "")]


def test_all_at_once_are_closed_when_the_proxy_stops(
    fleet: Fleet, own_proxy: Callable[[dict[str, object]], Proxy]
) -> None:
    """Half-open logins don't hold up the end."""
    proxy = own_proxy({"listen": {"login_timeout": 60.0}})
    connections = [socket.create_connection(proxy.address) for _ in range(100)]
    start = time.monotonic()
    assert proxy.stop() == 0
    assert time.monotonic() - start < 10
    readable, _, _ = select.select(connections, [], [], 1)
    assert len(readable) == len(connections)
    for connection in connections:
        connection.close()
