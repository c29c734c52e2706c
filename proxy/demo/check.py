"""`pgtrident demo --check`: does each class of statements arrive where it belongs?

All evidence comes from the nodes (`evidence`, the port that answered, the rows that copies hold). Called by `run`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg

from . import traffic
from .evidence import Counts, Evidence
from .fleet import Fleet

SETTLE_SECONDS = 15.0
"""How long the proxy may take until reads go to copies after a write."""
ROUNDS = 40
SESSIONS = 4


class Check:
    """The steps, each printing a line; `passed` is true while all did."""

    def __init__(self, fleet: Fleet, say: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._say = say
        self._evidence = Evidence(fleet)
        self._rng = random.Random(1)
        self.passed = True

    def run(self) -> bool:
        try:
            with psycopg.connect(self._fleet.dsn, autocommit=True, connect_timeout=10) as client:
                self._writes(client)
                self._copies(client)
                self._reads()
                self._analytics(client)
        except psycopg.Error as error:
            self._is(False, f"no statement may fail: {str(error).strip()}")
        finally:
            self._evidence.close()
        return self.passed

    def _is(self, good: bool, what: str) -> None:
        self.passed = self.passed and good
        self._say(f"{'ok    ' if good else 'FAILED'}  {what}")

    def _writes(self, client: psycopg.Connection[Any]) -> None:
        before = self._evidence.read()
        for at in range(ROUNDS):
            number = at % len(traffic.WRITES)
            client.execute(traffic.WRITES[number], traffic.values("write", number, self._rng))
        ran = self._since(before, "write")
        self._is(ran == {"primary": ROUNDS}, f"{ROUNDS} writes on the primary and nowhere else: {_shown(ran)}")

    def _copies(self, client: psycopg.Connection[Any]) -> None:
        name = f"written through the proxy {self._rng.getrandbits(64):x}"
        row = client.execute(
            "INSERT INTO product VALUES (%s, %s, 'books', 1, 1) RETURNING inet_server_port()",
            (traffic.PRODUCTS + 1, name),
        ).fetchone()
        assert row is not None
        self._is(row[0] == self._fleet.primary.port, f"a row was written on port {row[0]}, the primary's")
        ports = {name: port for role, name, port in self._fleet.nodes if role != "primary"}
        missing = dict(ports)
        deadline = time.monotonic() + SETTLE_SECONDS
        while missing and time.monotonic() < deadline:
            for node, port in tuple(missing.items()):
                with psycopg.connect(self._fleet.direct(port), autocommit=True) as connection:
                    if connection.execute("SELECT 1 FROM product WHERE name = %s", (name,)).fetchone():
                        del missing[node]
            time.sleep(0.05)
        seen = ", ".join(node for node in ports if node not in missing)
        self._is(not missing, f"that row is seen by {seen or 'no copy'}")

    def _reads(self) -> None:
        """Of several sessions: one that reads without a pause may stay on its replica."""
        replicas = {server.name for server in self._fleet.replicas}
        with ExitStack() as stack:
            sessions = [
                stack.enter_context(psycopg.connect(self._fleet.dsn, autocommit=True, connect_timeout=10))
                for _ in range(SESSIONS)
            ]
            self._read(sessions, replicas)

    def _read(self, sessions: list[psycopg.Connection[Any]], replicas: set[str]) -> None:
        turns = itertools.cycle(sessions)

        def send(at: int) -> None:
            number = at % len(traffic.READS)
            next(turns).execute(traffic.READS[number], traffic.values("read", number, self._rng))

        self._until("read", replicas, lambda: send(0))
        before = self._evidence.read()
        for at in range(ROUNDS):
            send(at)
        ran = self._since(before, "read")
        good = set(ran) == replicas and sum(ran.values()) == ROUNDS
        self._is(good, f"{ROUNDS} reads on both replicas and nowhere else: {_shown(ran)}")

    def _analytics(self, client: psycopg.Connection[Any]) -> None:
        columnar = {node.name for node in self._fleet.columnar}
        self._until("analytic", columnar, lambda: client.execute(traffic.ANALYTICS[0]))
        before = self._evidence.read()
        answers = [client.execute(traffic.ANALYTICS[at % 2]).fetchall() for at in range(ROUNDS)]
        ran = self._since(before, "analytic")
        good = set(ran) == columnar and sum(ran.values()) == ROUNDS
        self._is(good, f"{ROUNDS} analytics on both columnar nodes and nowhere else: {_shown(ran)}")
        with psycopg.connect(self._fleet.direct(self._fleet.primary.port)) as primary:
            same = all(primary.execute(traffic.ANALYTICS[at]).fetchall() == answers[at] for at in range(2))
        self._is(same, "their answers are the primary's")

    def _until(self, kind: str, nodes: set[str], send: Callable[[], object]) -> None:
        """Wait for the proxy to trust its copies again after a write; what follows judges. One failure is
        enough: it waits no more then."""
        deadline = time.monotonic() + (SETTLE_SECONDS if self.passed else 0.0)
        while time.monotonic() < deadline:
            before = self._evidence.read()
            send()
            if set(self._since(before, kind)) <= nodes:
                return
            time.sleep(0.1)

    def _since(self, before: dict[str, Counts], kind: str) -> Counts:
        after = self._evidence.read()
        ran = {node: counts.get(kind, 0) - before[node].get(kind, 0) for node, counts in after.items()}
        return {node: times for node, times in ran.items() if times}


def _shown(ran: Counts) -> str:
    return ", ".join(f"{node} {times}" for node, times in ran.items()) or "nowhere"
