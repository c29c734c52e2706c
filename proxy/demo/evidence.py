"""What the nodes themselves say of where statements ran: pg_stat_statements of the PostgreSQL servers, the
statement logs of the columnar nodes. The proxy is not asked.

Called by `run` (the live table) and `check`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import count
from typing import Any

import psycopg

from . import traffic
from .fleet import DATABASE, Columnar, Fleet
from .postgres import Server

Counts = dict[str, int]
"""Statements of the traffic by class."""

_CALLS = """
SELECT query, sum(calls)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = %s GROUP BY query"""


def as_sent(statement: str) -> str:
    """A statement of the traffic as nodes see it: with `$n`."""
    numbers = count(1)
    return re.sub("%s", lambda _: f"${next(numbers)}", statement)


def _normal(sql: str) -> str:
    """pg_stat_statements has parameters in place of constants, numbered on."""
    return re.sub(r"\$?\b\d+\b", "?", sql)


_CLASS_OF = {as_sent(sql): kind for kind, statements in traffic.CLASSES.items() for sql in statements}
_CLASS_OF_NORMAL = {_normal(sql): kind for sql, kind in _CLASS_OF.items()}


class Evidence:
    """Counts by node, read anew at each call of `read`. Connections are its own and by the Unix socket."""

    def __init__(self, fleet: Fleet) -> None:
        self._servers = [fleet.primary, *fleet.replicas]
        self._columnar = fleet.columnar
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        self._read_to: dict[str, int] = {}
        self._logged: dict[str, Counter[str]] = {node.name: Counter() for node in fleet.columnar}

    def read(self) -> dict[str, Counts]:
        found = {server.name: self._postgres(server) for server in self._servers}
        return found | {node.name: self._log(node) for node in self._columnar}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _postgres(self, server: Server) -> Counts:
        if server.name not in self._connections:
            self._connections[server.name] = server.connect(DATABASE)
        counts: Counter[str] = Counter()
        for query, calls in self._connections[server.name].execute(_CALLS, (DATABASE,)):
            kind = _CLASS_OF_NORMAL.get(_normal(query))
            if kind:
                counts[kind] += calls
        return dict(counts)

    def _log(self, node: Columnar) -> Counts:
        counts = self._logged[node.name]
        with node.statement_log.open("rb") as log:
            log.seek(self._read_to.get(node.name, 0))
            for line in log:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._read_to[node.name] = self._read_to.get(node.name, 0) + len(line)
                kind = _CLASS_OF.get(json.loads(line)["sql"])
                if kind:
                    counts[kind] += 1
        return dict(counts)
