"""A08: more clients than servers: throughput holds, waiting is fair and bounded, and one pool's flood is its own."""

from __future__ import annotations

import selectors
import time

import pytest

from ..support.rawpg import B, E, P, Q, S, Wire, show
from ..support.target import PROXY, SPLIT, Target, targets

ONE = "T[?column?] D[1] C[SELECT 1] ZI"
READ, WRITE = "SELECT count(*) FROM item", "INSERT INTO trail(item_id) VALUES (1)"
WORK = (READ, WRITE, "BEGIN", READ, READ, READ, READ, WRITE, "COMMIT")
"""Autocommit read and write, then a transaction."""


class Load:
    """Many clients, each sending the statements of WORK one after the other, served from one loop."""

    def __init__(self, clients: list[Wire]) -> None:
        self.done = 0
        self.longest = 0.0
        self._selector = selectors.DefaultSelector()
        self._steps: dict[Wire, tuple[int, float]] = {}
        for client in clients:
            self._selector.register(client.socket, selectors.EVENT_READ, client)
            self._next(client, 0)

    def _next(self, client: Wire, step: int) -> None:
        client.send(Q(WORK[step % len(WORK)]))
        self._steps[client] = (step, time.monotonic())

    def run(self, seconds: float) -> float:
        """Statements a second."""
        start = time.monotonic()
        while (elapsed := time.monotonic() - start) < seconds:
            for key, _ in self._selector.select(0.5):
                client: Wire = key.data
                replies = client.until()
                assert not any(r.kind in ("E", "EOF", "...") for r in replies), (show(replies), client.log[-1].body)
                client.log.clear()
                step, since = self._steps[client]
                self.longest = max(self.longest, time.monotonic() - since)
                self.done += 1
                self._next(client, step + 1)
        return self.done / elapsed

    def finish(self) -> None:
        for client in self._steps:
            client.close()  # some are within a transaction, for whose end the others would wait
        self._selector.close()


@pytest.mark.full  # it compares throughputs, which a busy machine spoils
@targets(PROXY, SPLIT)
def test_throughput_holds(target: Target) -> None:
    """A part of the rate with as many clients as servers is kept with forty times as many. The bound is loose:
    the test's own client shares the machine."""
    target.compare = False
    rates = {}
    longest = {}
    for count in (5, 6, 20, 200):
        load = Load([target.client(pool=5) for _ in range(count)])
        rates[count] = load.run(1.5)
        longest[count] = load.longest
        load.finish()
    for count in (6, 20, 200):
        assert rates[count] > 0.6 * rates[5], rates
    # Waiting is fair: no client waits much longer than its turn takes.
    assert longest[200] < 40 * 200 / rates[200] + 1, (longest, rates)


@targets(PROXY)
def test_waiters_are_served_in_their_order(target: Target) -> None:
    target.compare = False
    holder = target.client(pool=1)
    waiters = [target.client(pool=1) for _ in range(10)]
    holder.run("BEGIN", "CREATE SEQUENCE turn")
    for waiter in waiters:
        waiter.send(Q("SELECT nextval('turn')"))
        assert waiter.silence(0.03)
    holder.run("COMMIT")
    assert [show(w.until()) for w in waiters] == [f"T[nextval] D[{n}] C[SELECT 1] ZI" for n in range(1, 11)]


@pytest.mark.settings({"pool": {"checkout_timeout": 30.0}})
@targets(PROXY)
def test_clients_that_give_up(target: Target) -> None:
    """A hundred time out and come again at once, three times over; nothing they left behind is served first."""
    target.compare = False
    holder, patient = target.client(pool=1), target.client(pool=1)
    holder.run("BEGIN")
    patient.send(Q("SELECT 1"))
    for _ in range(3):
        impatient = [target.client(pool=1) for _ in range(33)]
        for client in impatient:
            client.send(Q("INSERT INTO trail(item_id) SELECT 1 FROM pg_sleep(0.2)"))
        for client in impatient:
            client.close()
    start = time.monotonic()
    holder.run("COMMIT")
    assert show(patient.until()) == ONE
    assert holder.value("SELECT count(*) FROM trail") == "0"
    assert time.monotonic() - start < 2


@targets(PROXY, SPLIT)
def test_missing_database_and_role(target: Target) -> None:
    """PostgreSQL's own answer, at once, each time."""
    target.compare = False
    for params, code in (
        ({"user": "pool1", "database": "nope"}, "3D000"),
        ({"user": "nobody_here", "database": target.database}, "28000"),
    ):
        for _ in range(3):
            start = time.monotonic()
            assert target.open().login(params).endswith(f"E[FATAL {code}] EOF")
            assert time.monotonic() - start < 2
    assert target.client(pool=1).query("SELECT 1") == ONE


@targets(PROXY, SPLIT)
def test_flood_of_one_pool_leaves_others_alone(target: Target) -> None:
    target.compare = False
    flood = [target.client(pool=1) for _ in range(100)]
    for client in flood:
        client.send(Q("SELECT pg_sleep(0.05)"))
    other = target.client(pool=2)
    for _ in range(10):
        start = time.monotonic()
        assert other.query("SELECT 1") == ONE
        assert other.query(WRITE) == "C[INSERT 0 1] ZI"
        assert time.monotonic() - start < 1
    for client in flood:
        client.close()


@pytest.mark.settings({"pool": {"max_waiting": 3}})
@targets(PROXY)
def test_bounded_queue(target: Target) -> None:
    target.compare = False
    holder = target.client(pool=1)
    holder.run("BEGIN")
    clients = [target.client(pool=1) for _ in range(8)]
    for client in clients:
        client.send(P("", WRITE), B(), E(), S)
        time.sleep(0.02)
    refused = [client for client in clients if not client.silence(0.05)]
    assert len(refused) == 5
    for client in refused:
        assert show(client.until()) == "ZI"
        assert str(client.log[-2]) == "E[53300]"
    holder.run("COMMIT")
    for client in clients:
        if client not in refused:
            assert show(client.until()) == "1 2 C[INSERT 0 1] ZI"


@targets(SPLIT)
def test_nobody_holds_one_server_while_waiting_for_another(target: Target) -> None:
    """Clients that read and write in turn, on pools of one server a node: no deadlock."""
    target.compare = False
    load = Load([target.client(pool=1) for _ in range(30)])
    assert load.run(2) > 20
    load.finish()
