"""Prepared statements at the protocol level: the client's names, the servers' names, and how a batch
of one is written for the other.

A client's name maps to a `Statement` (text, parameter types and what else changes its meaning), shared
by all clients of a worker. A server holds statements under names of our own. `Compiler` rewrites a
batch for one server: a Parse that the server does not need is answered by us, one that it lacks goes
in front, and each message forwarded leaves a step by which its reply is recognised. A name exists
from ParseComplete on, not before (manual, 55.2.3).

Pure: bytes and steps out. Called by `dataplane.client`; steps are consumed by `dataplane.server`.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum
from weakref import WeakValueDictionary

from mypy_extensions import mypyc_attr

from ..sql.model import Classification, Effect
from ..wire import build, frontend
from ..wire.frontend import Op

OUTDATED = b"\1outdated"
"""A name that no server has."""


class Step(IntEnum):
    """What the next reply of a batch answers, and what becomes of it."""

    PARSE = 1
    """ParseComplete goes to the client."""
    PARSE_HIDDEN = 2
    PARSE_MADE = 3
    """Nothing was sent: the ParseComplete is ours."""
    BIND = 4
    DESCRIBE = 5
    """RowDescription or NoData ends it."""
    EXECUTE = 6
    CLOSE = 7
    CLOSE_HIDDEN = 8
    CLOSE_MADE = 9


@mypyc_attr(native_class=False)  # compiled classes can't be referred to weakly
class Statement:
    """Text and types, under one name on all servers. Interned by `Statements`."""

    __slots__ = ("__weakref__", "classification", "context", "oids", "server_name", "sql")

    def __init__(
        self, sql: bytes, oids: bytes, server_name: bytes, classification: Classification, context: str = ""
    ) -> None:
        self.sql = sql
        self.oids = oids
        self.context = context
        """What else its meaning depends on (`Statements.intern`)."""
        self.server_name = server_name
        self.classification = classification

    def parse(self, name: bytes) -> bytes:
        """The Parse message that makes it under `name`."""
        return build.parse(name, self.sql, self.oids)


class Statements:
    """All statements in use in one worker; unused ones go by themselves."""

    def __init__(self, prefix: bytes) -> None:
        """`prefix` is not to be guessed by clients: their names go to servers as they are when unknown."""
        self._prefix = prefix
        self._number = 0
        self._known: WeakValueDictionary[tuple[bytes, bytes, str], Statement] = WeakValueDictionary()

    def intern(self, sql: bytes, oids: bytes, context: str, classification: Classification) -> Statement:
        """The one Statement of this text. `context` is whatever else changes what the text means
        (client_encoding, standard_conforming_strings)."""
        key = (sql, oids, context)
        statement = self._known.get(key)
        if statement is None:
            self._number += 1
            statement = Statement(sql, oids, b"%s%d" % (self._prefix, self._number), classification, context)
            self._known[key] = statement
        return statement

    def __len__(self) -> int:
        return len(self._known)


class ServerStatements:
    """What one server holds: named statements (least recently used first) and the unnamed one."""

    __slots__ = ("limit", "named", "unnamed")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.named: OrderedDict[Statement, None] = OrderedDict()
        self.unnamed: Statement | None = None

    def clear(self) -> None:
        """DEALLOCATE ALL or DISCARD ALL ran; both leave the unnamed statement."""
        self.named.clear()

    def surplus(self, keep: set[Statement]) -> list[Statement]:
        """Statements to close so that the limit holds, never one of `keep`."""
        over = len(self.named) - self.limit
        if over <= 0:
            return []
        return [s for s in self.named if s not in keep][:over]


class ClientStatements:
    """A client's own names.

    Attributes:
        named: made by Parse; servers know them by other names.
        sql: made by SQL PREPARE, on the server that the client is pinned to, under these very names.
        described: names whose description the client may have kept, with the version of the schema then.
        schema: the version of the schema now, as far as this worker knows.
        unnamed: the unnamed statement, if there is one.
    """

    __slots__ = ("described", "named", "schema", "sql", "unnamed")

    def __init__(self) -> None:
        self.named: dict[bytes, Statement] = {}
        self.described: dict[bytes, int] = {}
        self.schema = 0
        self.sql: frozenset[bytes] = frozenset()
        self.unnamed: Statement | None = None

    def clear(self) -> None:
        self.named.clear()
        self.sql = frozenset()
        self.described.clear()


class Pending:
    """One reply to come: the step, and what its success means for both sides' names."""

    __slots__ = ("client_name", "outdated", "statement", "step", "tag_effects")

    def __init__(
        self,
        step: Step,
        client_name: bytes | None = None,
        statement: Statement | None = None,
        tag_effects: Effect = Effect.NONE,
    ) -> None:
        self.step = step
        self.client_name = client_name
        """The client's name concerned (b"" is the unnamed one), or None."""
        self.statement = statement
        self.outdated = False
        """The server is asked for a name that it can't know, to refuse a statement that is out of date."""
        self.tag_effects = tag_effects
        """For EXECUTE: effects on names when it succeeds (DISCARD, PREPARE)."""


MADE = {Step.PARSE_MADE: build.PARSE_COMPLETE, Step.CLOSE_MADE: build.CLOSE_COMPLETE}


class Compiler:
    """Writes one batch for one server, message by message.

    `quiet` says that nothing is in flight on the server and its transaction has not failed; only then
    may a reply be made up (a failed transaction refuses Parse, and we would not know).
    """

    __slots__ = ("_bound", "_client", "_dropped", "_fresh", "_gone", "_server", "_texts", "quiet", "squatters", "used")

    def __init__(self, client: ClientStatements, server: ServerStatements, quiet: bool) -> None:
        self._client = client
        self._server = server
        self.quiet = quiet
        self._texts: dict[bytes, Statement | None] = {}
        """Names parsed (or closed: None) earlier in this batch."""
        self._bound: dict[bytes, Statement | None] = {}
        """Portals bound in this batch."""
        self._fresh: set[Statement] = set()
        """Statements that this batch has already put on the server."""
        self._dropped = False
        """A statement of this batch drops all names on the server, if it succeeds."""
        self._gone: set[Statement] = set()
        self.squatters: list[bytes] = []
        """Names of the client that were put on the server as they are, to be closed afterwards."""
        self.used: set[Statement] = set()

    def lookup(self, name: bytes) -> Statement | None:
        """What a name of the client means at this point of the batch."""
        if name in self._texts:
            return self._texts[name]
        if not name:
            return self._client.unnamed
        return None if self._dropped else self._client.named.get(name)

    def add(self, op: Op) -> tuple[bytes, list[Pending]]:
        """Bytes to send for one message, and the replies that they owe."""
        kind = op.kind
        if kind == frontend.PARSE:
            return self._parse(op)
        if kind == frontend.BIND:
            return self._bind(op)
        if kind == frontend.EXECUTE:
            return self._execute(op)
        if kind == frontend.DESCRIBE:
            if op.target != 0x53:
                return op.raw, [Pending(Step.DESCRIBE)]
            front, pending, name = self._use(op.name)
            pending.append(Pending(Step.DESCRIBE, op.name))
            pending[-1].outdated = name == OUTDATED
            return front + (op.raw if name is None else build.describe(b"S", name)), pending
        return self._close(op)

    def _parse(self, op: Op) -> tuple[bytes, list[Pending]]:
        statement = op.statement
        assert isinstance(statement, Statement)
        if not op.name:
            self._texts[b""] = statement
            raw = op.raw if statement.sql == op.sql else statement.parse(b"")
            return raw, [Pending(Step.PARSE, b"", statement)]
        if op.name in self._client.sql and not self._dropped:
            return op.raw, [Pending(Step.PARSE)]
        if self.lookup(op.name) is not None:
            # The client has this name: PostgreSQL refuses (42P05, or 42601 first). It must do so in
            # its own words, so the name itself is put there for it to stumble over.
            self.squatters.append(op.name)
            return build.parse(op.name, b"") + op.raw, [Pending(Step.PARSE_HIDDEN), Pending(Step.PARSE)]
        self._texts[op.name] = statement
        self.used.add(statement)
        if not self._held(statement):
            self._fresh.add(statement)
            self._gone.discard(statement)
            return statement.parse(statement.server_name), [Pending(Step.PARSE, op.name, statement)]
        if self.quiet:
            return b"", [Pending(Step.PARSE_MADE, op.name, statement)]
        close = build.close(b"S", statement.server_name)
        return close + statement.parse(statement.server_name), [
            Pending(Step.CLOSE_HIDDEN),
            Pending(Step.PARSE, op.name, statement),
        ]

    def _held(self, statement: Statement) -> bool:
        if statement in self._fresh:
            return True
        if self._dropped or statement in self._gone:
            return False
        return statement in self._server.named

    def _use(self, name: bytes) -> tuple[bytes, list[Pending], bytes | None]:
        """Make a statement present: (bytes in front, their replies, its name there or None for the
        client's own name)."""
        statement = self.lookup(name)
        if not name:
            if b"" in self._texts or statement is self._server.unnamed:
                return b"", [], None
            if statement is None:
                return build.close(b"S", b""), [Pending(Step.CLOSE_HIDDEN, b"")], None
            return statement.parse(b""), [Pending(Step.PARSE_HIDDEN, b"", statement)], None
        if statement is None:
            return b"", [], None
        self.used.add(statement)
        if self._held(statement):
            return b"", [], statement.server_name
        if self._client.described.get(name, self._client.schema) != self._client.schema:
            # The client decodes by the description that it has kept. A new Parse here, after DDL, may
            # give other columns and types; PostgreSQL's own plan would refuse that, so this is refused.
            return b"", [], OUTDATED
        self._fresh.add(statement)
        self._gone.discard(statement)
        return (
            statement.parse(statement.server_name),
            [Pending(Step.PARSE_HIDDEN, None, statement)],
            statement.server_name,
        )

    def _bind(self, op: Op) -> tuple[bytes, list[Pending]]:
        front, pending, name = self._use(op.name)
        self._bound[op.portal] = self.lookup(op.name)
        pending.append(Pending(Step.BIND))
        pending[-1].outdated = name == OUTDATED
        return front + (op.raw if name is None else rename_bind(op, name)), pending

    def _execute(self, op: Op) -> tuple[bytes, list[Pending]]:
        statement = self._bound.get(op.portal)
        effects = Effect.NONE
        name: bytes | None = None
        if statement is not None:
            classification = statement.classification
            effects = classification.effects & (Effect.DISCARD | Effect.PREPARE)
            if effects & Effect.DISCARD:
                self._dropped = True
                self._texts = {name: text for name, text in self._texts.items() if not name}
                self._fresh.clear()
            elif effects and classification.kind == "deallocate":
                name = classification.name.encode("utf-8", "surrogateescape")
                statement = self.lookup(name)
                self._texts[name] = None
                if statement is not None:
                    self._gone.add(statement)
                    self._fresh.discard(statement)
                return op.raw, [Pending(Step.EXECUTE, name, statement, effects)]
        return op.raw, [Pending(Step.EXECUTE, None, None, effects)]

    def _close(self, op: Op) -> tuple[bytes, list[Pending]]:
        if op.target != 0x53:
            self._bound.pop(op.portal, None)
            return op.raw, [Pending(Step.CLOSE)]
        statement = self.lookup(op.name)
        self._texts[op.name] = None
        if not op.name or statement is None:
            # Unknown here: it may be one made by SQL PREPARE on the server that the client is pinned to.
            return op.raw, [Pending(Step.CLOSE, op.name)]
        if self.quiet:
            return b"", [Pending(Step.CLOSE_MADE, op.name)]
        return build.close(b"S", b"\1no such statement"), [Pending(Step.CLOSE, op.name)]


def rename_bind(op: Op, name: bytes) -> bytes:
    """A Bind message, or the beginning of one, for the same portal and another statement name."""
    length = int.from_bytes(op.raw[1:5], "big") + len(name) - len(op.name)
    return b"B" + length.to_bytes(4, "big") + op.portal + b"\0" + name + b"\0" + op.raw[op.rest :]
