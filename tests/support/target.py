"""What a case is run against: PostgreSQL itself, or the proxy in one of several set-ups.

A case is a function of a `Target`. Run on `direct` it proves that the test knows what PostgreSQL does;
run through the proxy it must see the same. Beyond what the case asserts, every reply of every client is
recorded, and the recordings of the proxy runs are compared with the direct one.
"""

from __future__ import annotations

import re
import ssl
import struct
from collections.abc import Iterable

import pytest

from .fleet import Fleet
from .rawpg import EOF, PROTOCOL_3_0, Reply, Wire

DIRECT = "direct"
PROXY = "proxy"
CUT = "bytewise"
SPLIT = "split"
TARGETS = (DIRECT, PROXY, CUT, SPLIT)
"""`bytewise` is the proxy with both directions cut at every byte; `split` has reads on replicas."""


def targets(*names: str) -> pytest.MarkDecorator:
    """Limit a test to some of the targets."""
    return pytest.mark.parametrize("target", names, indirect=True)


THROUGH_PROXY = targets(PROXY, CUT, SPLIT)
"""For cases about sharing servers, which PostgreSQL itself doesn't do."""

LOCAL_FIELDS = "FLR"
"""Fields of an error that name a place in PostgreSQL's source; an error of the proxy's has none."""

FIRST_USER_OID = 16384


class Target:
    """One test's view: an address, a database of its own, and the clients it opened."""

    def __init__(self, name: str, address: tuple[str, int], database: str, fleet: Fleet) -> None:
        self.name = name
        self.address = address
        self.database = database
        self.fleet = fleet
        self.compare = True
        """Whether recordings are compared; a test whose replies differ by nature switches it off."""
        self.clients: list[Wire] = []
        self._admins: list[Wire] = []

    @property
    def pooled(self) -> bool:
        """Whether servers are shared: steps about that make no sense on PostgreSQL itself."""
        return self.name != DIRECT

    @property
    def cut(self) -> bool:
        return self.name == CUT

    def open(self, *, tls: ssl.SSLContext | None = None) -> Wire:
        """A connection on which nothing has been sent yet."""
        client = Wire(self.address, cut=self.cut, tls=tls)
        self.clients.append(client)
        return client

    def client(self, *, pool: int = 2, version: int = PROTOCOL_3_0, **params: str) -> Wire:
        """A logged-in client on a pool of `pool` servers; `params` are startup parameters (`__` is a dot)."""
        client = self.open()
        client.login(self.params(pool=pool, **params), version=version)
        last = client.log[-1]
        assert last.kind == "Z", f"login failed: {last} {last.fields if last.kind == 'E' else client.log[-2:]}"
        return client

    def params(self, *, pool: int = 2, **params: str) -> dict[str, str]:
        """Startup parameters."""
        more = {key.replace("__", "."): value for key, value in params.items()}
        return {"user": f"pool{pool}", "database": self.database, **more}

    def admin(self) -> Wire:
        """A client of the primary itself, whatever the target."""
        client = Wire(("127.0.0.1", self.fleet.primary.port))
        self._admins.append(client)
        client.login({"user": "postgres", "database": self.database})
        return client

    def close(self) -> None:
        for client in (*self.clients, *self._admins):
            client.close()

    def recording(self) -> list[list[str]]:
        """All replies of each client, in the order in which the clients came, without what always differs."""
        return [normalised(client.log) for client in self.clients]


def normalised(replies: Iterable[Reply]) -> list[str]:
    """Replies as text, without process ids, keys, OIDs of new objects and places in the source. Neighbouring
    ParameterStatus messages are sorted: their order means nothing."""
    lines: list[str] = []
    batch: list[str] = []
    for reply in replies:
        if reply.kind == "S":
            batch.append(str(reply))
            continue
        lines += sorted(batch)
        batch.clear()
        lines.append(_normal(reply))
    return lines + sorted(batch)


def _normal(reply: Reply) -> str:
    match reply.kind:
        case "K":
            return "K"
        case "A":
            return str(reply)
        case "E" | "N":
            fields = {k: v for k, v in reply.fields.items() if k not in LOCAL_FIELDS}
            return f"{reply.kind}{re.sub(r'0x[0-9a-f]+|PID [0-9]+', '#', str(fields))}"
        case "T":
            return f"T{_masked_columns(reply)}"
        case "EOF" | "Z" | "C":
            return str(reply)
        case _:
            return f"{reply.kind}{reply.body!r}"


def _masked_columns(reply: Reply) -> list[tuple[object, ...]]:
    columns: list[tuple[object, ...]] = []
    (count,) = struct.unpack_from("!h", reply.body)
    at = 2
    for _ in range(count):
        end = reply.body.index(b"\0", at)
        table, *rest = struct.unpack_from("!IhIhih", reply.body, end + 1)
        columns.append((reply.body[at:end], "user table" if table >= FIRST_USER_OID else table, *rest))
        at = end + 19
    return columns


def difference(want: list[list[str]], got: list[list[str]]) -> str:
    """Where two recordings part; empty if they are equal."""
    if len(want) != len(got):
        return f"{len(want)} clients directly, {len(got)} through the proxy"
    for number, (one, other) in enumerate(zip(want, got, strict=True), 1):
        for place, (a, b) in enumerate(zip(one, other, strict=False)):
            if a != b:
                return f"client {number}, reply {place}: directly {a[:500]}, through the proxy {b[:500]}"
        if len(one) != len(other):
            extra = (one if len(one) > len(other) else other)[min(len(one), len(other))]
            # How a closed connection is seen depends on who closes first.
            if extra != EOF:
                side = "directly" if len(one) > len(other) else "through the proxy"
                return f"client {number}: {extra[:500]} only {side}"
    return ""
