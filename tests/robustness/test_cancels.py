"""Cancel requests by the thousand, early, late, doubled, with wrong keys: only one's own statement is ever hit."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ..support.proxy import Proxy, Settings
from ..support.rawpg import B, E, P, Q, S, Wire, cancel_message, show

USER = {"user": "pool2", "database": "postgres"}
"""Two servers for all."""
CANCELLERS, VICTIMS = 3, 3


def login(proxy: Proxy) -> Wire:
    wire = Wire(proxy.address)
    assert wire.login(USER, timeout=20).endswith("ZI")
    return wire


def request_cancel(proxy: Proxy, pid: int, key: bytes, *, wait: bool) -> None:
    """One CancelRequest; its end is awaited or not."""
    with contextlib.suppress(ConnectionError), socket.create_connection(proxy.address, timeout=10) as sock:
        sock.sendall(cancel_message(pid, key))
        if wait:
            sock.recv(1)


class Canceller:
    """Starts statements and cancels them at any moment, sometimes after they have ended, sometimes twice, and
    sometimes goes away right behind the request."""

    def __init__(self, proxy: Proxy, seed: str) -> None:
        self.proxy = proxy
        self.random = random.Random(seed)
        self.rounds = 0
        self.hits = 0
        self.old: list[tuple[int, bytes]] = []

    def run(self, until: float) -> None:
        wire = login(self.proxy)
        while time.monotonic() < until:
            self.rounds += 1
            sql = f"SELECT 'own{self.rounds}' FROM pg_sleep({self.random.choice([0, 0, 0.001, 0.02])})"
            wire.send(Q(sql) if self.random.random() < 0.5 else P("", sql) + B() + E() + S)
            for _ in range(self.random.choice([1, 1, 1, 2, 4])):
                request_cancel(self.proxy, wire.pid, wire.key, wait=self.random.random() < 0.5)
            if self.random.random() < 0.05:
                self.old.append((wire.pid, wire.key))
                wire.close()
                wire = login(self.proxy)
                continue
            replies = wire.until(timeout=20)
            got = show(replies)
            if "E[57014]" in got:
                self.hits += 1
            else:
                assert f"D[own{self.rounds}]" in got, got
            assert got.endswith("ZI"), got
            if self.old and self.random.random() < 0.3:
                request_cancel(self.proxy, *self.random.choice(self.old[-20:]), wait=False)
            if self.random.random() < 0.2:
                request_cancel(self.proxy, wire.pid, os.urandom(len(wire.key)), wait=False)
            if self.random.random() < 0.2:
                request_cancel(self.proxy, self.random.getrandbits(32), os.urandom(4), wait=False)
        wire.close()


class Victim:
    """Never asks for a cancel, so none of its statements may fail."""

    def __init__(self, proxy: Proxy, seed: str) -> None:
        self.proxy = proxy
        self.random = random.Random(seed)
        self.rounds = 0

    def run(self, until: float) -> None:
        wire = login(self.proxy)
        while time.monotonic() < until:
            self.rounds += 1
            tag = f"{id(self)}-{self.rounds}"
            sleep = self.random.choice([0, 0, 0.001, 0.01])
            match self.random.randrange(3):
                case 0:
                    got = wire.query(f"SELECT '{tag}' FROM pg_sleep({sleep})", timeout=20)
                    assert got == f"T[?column?] D[{tag}] C[SELECT 1] ZI", got
                case 1:
                    batch = P("", f"SELECT $1::text FROM pg_sleep({sleep})") + B("", "", [tag]) + E() + S
                    got = wire.ask(batch, timeout=20)
                    assert got == f"1 2 D[{tag}] C[SELECT 1] ZI", got
                case _:
                    got = wire.ask(
                        Q("BEGIN"), Q(f"SELECT '{tag}' FROM pg_sleep({sleep})"), Q("COMMIT"), times=3, timeout=20
                    )
                    assert got == f"C[BEGIN] ZT T[?column?] D[{tag}] C[SELECT 1] ZT C[COMMIT] ZI", got
        wire.close()


def storm(proxy: Proxy, seconds: float) -> tuple[int, int, int]:
    """All at once for so long: rounds of cancellers, statements of theirs that were hit, rounds of victims."""
    cancellers = [Canceller(proxy, f"c{n}") for n in range(CANCELLERS)]
    victims = [Victim(proxy, f"v{n}") for n in range(VICTIMS)]
    faults: list[BaseException] = []
    until = time.monotonic() + seconds

    def run(actor: Canceller | Victim) -> None:
        try:
            actor.run(until)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(actor,), daemon=True) for actor in (*cancellers, *victims)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
    assert not any(thread.is_alive() for thread in threads), "clients that never ended"
    if faults:
        raise BaseExceptionGroup("a cancel hit somebody else, or nobody was served", faults[:5])
    # The pool is whole again: as many as it has servers at once, and no server is kept for a cancel.
    wires = [login(proxy) for _ in range(2)]
    for wire in wires:
        wire.send(Q("SELECT 'after' FROM pg_sleep(0.1)"))
    for wire in wires:
        assert show(wire.until(timeout=10)) == "T[?column?] D[after] C[SELECT 1] ZI"
    return sum(c.rounds for c in cancellers), sum(c.hits for c in cancellers), sum(v.rounds for v in victims)


@pytest.fixture(params=[1, 2], ids=["1 worker", "2 workers"])
def cancel_proxy(request: pytest.FixtureRequest, own_proxy: Callable[[Settings], Proxy]) -> Iterator[Proxy]:
    return own_proxy({"workers": request.param})


def test_storm(cancel_proxy: Proxy) -> None:
    descriptors = cancel_proxy.descriptors()
    rounds, hits, others = storm(cancel_proxy, 6)
    assert rounds > 2 * CANCELLERS
    assert others > 2 * VICTIMS
    assert hits, "no cancel ever hit its own statement"
    Wire.close_all()
    deadline = time.monotonic() + 10
    while cancel_proxy.descriptors() > descriptors + 8:
        assert time.monotonic() < deadline, "descriptors that stay open"
        time.sleep(0.05)


@pytest.mark.full
def test_long_storm(cancel_proxy: Proxy) -> None:
    rounds, _, others = storm(cancel_proxy, 120)
    assert rounds > 5000
    assert others > 5000


def test_a_key_is_worth_nothing_without_its_secret(cancel_proxy: Proxy) -> None:
    """Every process id near one's own, and one's own with every kind of wrong key."""
    wire = login(cancel_proxy)
    wire.send(Q("SELECT 'done' FROM pg_sleep(1)"))
    for other in range(-50, 51):
        if other:
            request_cancel(cancel_proxy, (wire.pid + other) % 2**32, wire.key, wait=False)
    number = struct.unpack("!I", wire.key[:4])[0]
    for key in (b"\0" * 4, struct.pack("!I", (number + 1) % 2**32), wire.key + b"x", wire.key * 8, b"\xff" * 256):
        request_cancel(cancel_proxy, wire.pid, key, wait=True)
    assert show(wire.until(timeout=10)) == "T[?column?] D[done] C[SELECT 1] ZI"


def test_flood_of_requests_for_one_statement(cancel_proxy: Proxy) -> None:
    """A hundred at once: the statement is cancelled once, the session lives, and nobody else's statement is hit."""
    two = login(cancel_proxy)
    for _ in range(3):
        one = login(cancel_proxy)  # those that come late are meant for whatever this session runs then
        one.send(Q("SELECT pg_sleep(20)"))
        for _ in range(100):
            request_cancel(cancel_proxy, one.pid, one.key, wait=False)
        assert show(one.until(timeout=10)).endswith("E[57014] ZI")
        assert two.query("SELECT 'two' FROM pg_sleep(0.05)") == "T[?column?] D[two] C[SELECT 1] ZI"
