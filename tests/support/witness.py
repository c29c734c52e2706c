"""Which nodes ran a statement: what they say themselves, in their logs.

Owns the marker that each statement carries and the reading of the logs. A statement that was tried on a standby, and
answered by the primary because the standby refused it, is seen on both. The cases about routing are its callers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .rawpg import COPY_DONE, B, E, P, Q, S, Wire, copy_data
from .target import DIRECT, SPLIT, Target, targets

ON_POSTGRES_AND_SPLIT = targets(DIRECT, SPLIT)
"""For cases about where a statement goes: replies as from PostgreSQL itself, with reads on replicas."""

PRIMARY = frozenset(("primary",))
SECONDS = 15.0

Form = Callable[[str], Sequence[bytes]]


def simple(sql: str) -> Sequence[bytes]:
    return (Q(sql),)


def extended(sql: str) -> Sequence[bytes]:
    return P("", sql), B(), E(), S


def copying(*lines: str) -> Form:
    """A COPY FROM STDIN with its data."""
    return lambda sql: (Q(sql), copy_data("".join(f"{line}\n" for line in lines).encode()), COPY_DONE)


FORMS: tuple[Form, ...] = (simple, extended)


def _tail(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read()


class Witness:
    """Sees where the clients of one target are answered; every statement on its database is logged."""

    def __init__(self, target: Target, logs: Mapping[str, Path] | None = None) -> None:
        """`logs` are those of further nodes, by name."""
        self.target = target
        self._fleet = target.fleet
        self._number = 0
        self._scouted = 0
        self._scout: Wire | None = None
        nodes = {node.name: node.log_file for node in (self._fleet.primary, *self._fleet.replicas)} | dict(logs or {})
        self._logs = [(name, path, path.stat().st_size) for name, path in nodes.items()]
        self._fleet.primary.query(f"ALTER DATABASE {target.database} SET log_statement = 'all'")
        self._fleet.caught_up()

    def close(self) -> None:
        self._fleet.primary.query(f"ALTER DATABASE {self.target.database} RESET log_statement")

    def ran(self, client: Wire, sql: str, form: Form = simple) -> tuple[str, frozenset[str]]:
        """Replies in short form, and the names of the nodes that were given the statement."""
        self._number += 1
        mark = f" /* seen {self._number} */"
        replies = client.ask(*form(sql + mark), timeout=30)
        return replies, self.seen(mark)

    def ready(self) -> None:
        """Wait until reads go to replicas: only then does it show what is kept from them. What PostgreSQL itself is
        asked needs no wait."""
        if self.target.name != SPLIT:
            return
        if self._scout is None:
            self._scout = Wire(self.target.address)
            self._scout.login(self.target.params(pool=20))
            # Databases are filled anew behind the proxy's back: DDL has it read the catalogue again.
            self._scout.run("DROP TABLE IF EXISTS nothing")
        deadline = time.monotonic() + SECONDS
        while True:
            self._scouted += 1
            mark = f"/* ready {self._scouted} */"
            self._scout.query(f"SELECT 1 {mark}")
            if self.seen(mark) - PRIMARY:
                return
            assert time.monotonic() < deadline, "no read went to a replica"
            time.sleep(0.005)

    def on_primary(self, client: Wire, sql: str, form: Form = simple) -> str:
        """Replies to a statement that no replica may be given, though replicas are in use."""
        self.ready()
        replies, nodes = self.ran(client, sql, form)
        assert nodes == PRIMARY, f"{sql}: {replies} on {set(nodes)}"
        return replies

    def on_replica(self, client: Wire, sql: str, form: Form = simple) -> str:
        """Replies to a read that costs the primary nothing, once a replica is known to hold what its session saw."""
        self.ready()
        deadline = time.monotonic() + SECONDS
        while True:
            before = len(client.log)
            replies, nodes = self.ran(client, sql, form)
            if nodes != PRIMARY or self.target.name != SPLIT or time.monotonic() > deadline:
                break
            del client.log[before:]  # it is one statement to whoever compares
        where = PRIMARY if self.target.name != SPLIT else nodes - PRIMARY
        assert len(nodes) == 1 and nodes == where, f"{sql}: {replies} on {set(nodes)}"
        return replies

    def on_one(self, client: Wire, sql: str, form: Form = simple) -> str:
        """Replies to a statement that may run anywhere, and only once."""
        self.ready()
        replies, nodes = self.ran(client, sql, form)
        assert len(nodes) == 1, f"{sql}: {replies} on {set(nodes)}"
        return replies

    def elsewhere(self, sql: str) -> str:
        """A statement that passes by the proxy, replayed everywhere."""
        replies = self.target.admin().query(sql)
        self._fleet.caught_up()
        return replies

    def seen(self, mark: str) -> frozenset[str]:
        """The names of the nodes that were given a statement with this mark."""
        return frozenset(name for name, log, start in self._logs if mark.encode() in _tail(log, start))
