"""Prepared statements at the protocol level: the client's names, the servers' names, and how a batch
of one is written for the other.

A client's name maps to a `Statement` (text, parameter types and what else changes its meaning), shared
by all clients of a worker. A server holds statements under names of our own. `Compiler` rewrites a
batch for one server: a Parse that the server does not need is answered by us, one that it lacks goes
in front, and each message forwarded leaves a step by which its reply is recognised. A name exists
from ParseComplete on, not before (manual, 55.2.3).

PostgreSQL holds a statement to the result that it had when it was parsed, whatever becomes of the tables.
Here one text is parsed again and again, so what its description said is kept with the Statement. Where tables
or settings are others than when it was parsed, the client's name goes over to another Statement of the same
text; but if that is described otherwise (a server is asked, `Compiler.question`) the client gets PostgreSQL's
own error.

Pure: bytes and steps out. Called by `dataplane.client`; steps are consumed by `dataplane.server`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from weakref import WeakValueDictionary

from mypy_extensions import mypyc_attr

from ..sql.hints import Split
from ..sql.model import Class, Classification, Effect
from ..wire import build, frontend, parse
from ..wire.frontend import Op
from . import rules

OUTDATED = b"\1outdated"
"""A name that no server has."""
NEEDED = 1
"""Kind of an Op that is no message: the statement of its name has to be there, and fit."""
_USES = frozenset(("execute", "explain", "create", "deallocate"))
"""Kinds of texts whose `Classification.name` is that of a statement that must be there when they run."""


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
    DESCRIBE_HIDDEN = 10
    """A question of ours: whether the statement is still what its clients were told."""
    REFUSED = 11
    """What the server can't read: only an error can come."""


@mypyc_attr(native_class=False)  # compiled classes can't be referred to weakly
class Statement:
    """Text and types, under one name on all servers. Interned by `Statements`.

    Attributes:
        oids: parameter types as clients give them.
        unnamed: the Parse message by which clients gave it to the unnamed statement, once one has.
        types: parameter types as PostgreSQL told them, once it has; a repeated Parse may infer no others.
        columns: the shape of its result, once that was told.
        split: the text without its hint, and the hint; None if it has none.
        context: what else its meaning depends on (`Statements.intern`); elsewhere it is never parsed.
        origin: the text as the client knows it, where this one stands for it on some servers: an EXECUTE and the like
            of a name made by Parse has the server's name for `needs`; a columnar node has a dialect of its own.
    """

    __slots__ = (
        "__weakref__",
        "classification",
        "columns",
        "context",
        "needs",
        "oids",
        "origin",
        "server_name",
        "split",
        "sql",
        "types",
        "unnamed",
    )

    def __init__(
        self, sql: bytes, oids: bytes, context: str, server_name: bytes, classification: Classification
    ) -> None:
        self.sql = sql
        self.oids = self.types = oids
        self.unnamed = b"\0"
        self.context = context
        self.server_name = server_name
        self.classification = classification
        self.columns: bytes | None = None
        self.split: Split | None = None
        self.origin: Statement | None = None
        self.needs: Statement | None = None

    def parse(self, name: bytes) -> bytes:
        """The Parse message that makes it once more under `name`."""
        return build.parse(name, self.sql, self.types)

    def named(self, name: bytes) -> Statement:
        """The text as its client gave it, for a server that knows it by the client's own name."""
        known = self.origin or self
        own = Statement(known.sql, known.types, known.context, name, known.classification)
        own.columns = known.columns
        own.split = known.split
        return own

    def described(self, types: bytes | None, row: bytes) -> None:
        """PostgreSQL told these parameter types (unless it is None) and this RowDescription."""
        if types is not None:
            self.types = types
        self.columns = parse.row_shape(row)


ANOTHERS = Statement(b"", b"", "", OUTDATED, Classification(Class.WRITE, "unknown"))
"""Stands for an unnamed statement that a server may have from a client that has gone."""


class Statements:
    """All statements in use in one worker; unused ones go by themselves."""

    def __init__(self, prefix: bytes) -> None:
        """`prefix` is not to be guessed by clients: their names go to servers as they are when unknown."""
        self._prefix = prefix
        self._number = 0
        self._known: WeakValueDictionary[tuple[bytes, bytes, str], Statement] = WeakValueDictionary()

    def intern(
        self, sql: bytes, oids: bytes, context: str, classification: Classification, split: Split | None = None
    ) -> Statement:
        """The one Statement of this text. `context` is whatever else changes what the text means
        (client_encoding, search_path, the schema's version ...)."""
        key = (sql, oids, context)
        statement = self._known.get(key)
        if statement is None:
            self._number += 1
            statement = Statement(sql, oids, context, b"%s%d" % (self._prefix, self._number), classification)
            statement.split = split
            self._known[key] = statement
        return statement

    def again(self, statement: Statement, context: str) -> Statement:
        """The same text, with the parameter types that clients were told, as it is parsed in `context`."""
        known = statement.origin or statement
        return self.intern(known.sql, known.types, context, known.classification, known.split)

    def reclassify(self, old: Classification, new: Classification) -> None:
        """More is known of a text than when it was parsed. Some 0.1 us a statement."""
        for statement in list(self._known.values()):
            if statement.classification is old:
                statement.classification = new

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
        unnamed: the unnamed statement, if there is one.
        own: its server has no statements but these, under these names (`take_names`).
    """

    __slots__ = ("named", "own", "sql", "unnamed")

    def __init__(self) -> None:
        self.named: dict[bytes, Statement] = {}
        self.sql: frozenset[bytes] = frozenset()
        self.unnamed: Statement | None = None
        self.own = False

    def clear(self) -> None:
        self.named.clear()
        self.sql = frozenset()


def take_names(client: ClientStatements, server: ServerStatements, context: str | None) -> list[bytes]:
    """Make a server's statements those of one client, under its own names, so that it can list them.

    Returns messages to be sent, a Sync behind each. `context` is given within a transaction, that a failing
    Parse would end: a statement of any other is left out.
    """
    messages = [build.close(b"S", statement.server_name) for statement in server.named]
    messages = [b"".join(messages)] if messages else []
    server.named.clear()
    client.own = True
    for name, shared in client.named.items():
        client.named[name] = own = shared.named(name)
        if context is None or context == own.context:
            server.named[own] = None
            messages.append(own.parse(name))
    return messages


class Pending:
    """One reply to come: the step, and what its success means for both sides' names."""

    __slots__ = ("client_name", "outdated", "statement", "step", "tag_effects", "types")

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
        self.types: bytes | None = None
        """For DESCRIBE: the parameter types that came ahead of the columns."""
        self.tag_effects = tag_effects
        """For EXECUTE: effects on names when it succeeds (DISCARD, PREPARE)."""


MADE = {Step.PARSE_MADE: build.PARSE_COMPLETE, Step.CLOSE_MADE: build.CLOSE_COMPLETE}


class Compiler:
    """Writes one batch for one server, message by message.

    What becomes of a name that a Bind, a Describe or an EXECUTE uses:

        the server       what the text      its result,          written
        has it           means now          as it is read now
        yes              -                  -                    the server's name for it
        no               the same           -                    a Parse in front
        no               something else     not known            `question`: a Parse and a Describe; it waits
        no               something else     as the client knows  a Parse of the text as it is read now in front;
                                                                 the name stands for that from now on
        no               something else     another              OUTDATED, for PostgreSQL's own error (0A000)

    "The same" is `Statement.context` equal to `context`, or to `apart` behind something in this batch that changes
    what is parsed (`Op.moved`). `quiet` says that nothing is in flight on the server and its transaction has not
    failed; only then may a reply be made up (a failed transaction refuses Parse, and we would not know).
    """

    __slots__ = (
        "_apart",
        "_bound",
        "_client",
        "_dropped",
        "_fresh",
        "_gone",
        "_now",
        "_server",
        "_statements",
        "_texts",
        "_translate",
        "context",
        "hits",
        "misses",
        "quiet",
        "squatters",
        "used",
    )

    def __init__(
        self,
        client: ClientStatements,
        server: ServerStatements,
        statements: Statements,
        context: str,
        apart: str,
        quiet: bool,
        translate: Callable[[Statement], Statement] | None = None,
    ) -> None:
        """`translate`: the statement that stands for a client's on this server, where that is another one."""
        self._client = client
        self._server = server
        self._statements = statements
        self.context = context
        self._apart = apart
        self._translate = translate
        self._now = context
        """`context` or `apart`, as the message at hand needs."""
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
        """Names that were put on the server for nothing but their presence, to be closed afterwards."""
        self.hits = 0
        self.misses = 0
        """Uses of a named statement that the server had, and that it did not have."""
        self.used: set[Statement] = set()

    def lookup(self, name: bytes) -> Statement | None:
        """What a name of the client means at this point of the batch."""
        if name in self._texts:
            return self._texts[name]
        if not name:
            return self._client.unnamed
        return None if self._dropped else self._client.named.get(name)

    def question(self, op: Op) -> tuple[bytes, list[Pending]] | None:
        """What has to be asked and answered before `op` can be written, if anything: how a
        statement is described where the client now is."""
        self._now = self._apart if op.moved else self.context
        if op.kind == frontend.PARSE:
            assert isinstance(op.statement, Statement)
            return self._asking(self._checked(self._resolved(op.statement)))
        if op.kind in (frontend.BIND, NEEDED) or (op.kind == frontend.DESCRIBE and op.target == 0x53):
            statement = self.needed(op.name)
            if statement is not None:
                return self._asking(self._checked(statement)) or self._asking(statement, op.name)
        return None

    @staticmethod
    def _checked(statement: Statement) -> Statement | None:
        """What has to fit for a statement to run; DEALLOCATE only needs a name to be there."""
        return None if statement.classification.kind == "deallocate" else statement.needs

    def _asking(self, statement: Statement | None, name: bytes | None = None) -> tuple[bytes, list[Pending]] | None:
        """The question whether a statement fits, if that is not known. (For `name` see `_there`.)"""
        if statement is None or not self._moved(name, statement):
            return None
        again = self._statements.again(statement, self._now)
        if again.columns is not None:
            return None
        front, pending = self._put(again)
        pending.append(Pending(Step.DESCRIBE_HIDDEN, None, again))
        return front + build.describe(b"S", again.server_name), pending

    def _moved(self, name: bytes | None, statement: Statement) -> bool:
        """Whether a statement is lacking on this server, and may not be parsed here any more."""
        return statement.context != self._now and not self._there(name, statement)

    def add(self, op: Op) -> tuple[bytes, list[Pending]]:
        """Bytes to send for one message, and the replies that they owe."""
        kind = op.kind
        self._now = self._apart if op.moved else self.context
        if kind == frontend.PARSE:
            return self._parse(op)
        if kind == frontend.BIND:
            return self._bind(op)
        if kind == frontend.EXECUTE:
            return self._execute(op)
        if kind == NEEDED:
            front, pending, name = self._use(op.name)
            if name == OUTDATED:
                pending.append(Pending(Step.BIND))
                pending[-1].outdated = True
                front += build.bind(b"", name)
            return front, pending
        if kind == frontend.DESCRIBE:
            if op.target != 0x53:
                return op.raw, [Pending(Step.DESCRIBE, None, self._bound.get(op.portal))]
            front, pending, name = self._use(op.name)
            pending.append(Pending(Step.DESCRIBE, op.name, self.lookup(op.name)))
            pending[-1].outdated = name == OUTDATED
            return front + (op.raw if name is None else build.describe(b"S", name)), pending
        return self._close(op)

    def _parse(self, op: Op) -> tuple[bytes, list[Pending]]:
        assert isinstance(op.statement, Statement)
        statement = self._resolved(op.statement)
        front, pending = self._put_needs(statement)
        if not op.name:
            self._texts[b""] = statement
            raw = op.raw if statement.sql == op.sql else build.parse(b"", statement.sql, statement.oids)
            return front + raw, [*pending, Pending(Step.PARSE, b"", statement)]
        known = self.lookup(op.name)
        if (op.name in self._client.sql and not self._dropped) or (known is not None and self._client.own):
            return op.raw, [Pending(Step.PARSE)]
        if known is not None:
            # The client has this name: PostgreSQL refuses (42P05, or 42601 first). It must do so in
            # its own words, so the name itself is put there for it to stumble over.
            self.squatters.append(op.name)
            return build.parse(op.name, b"") + op.raw, [Pending(Step.PARSE_HIDDEN), Pending(Step.PARSE)]
        if self._client.own:
            statement = statement.named(op.name)
        self._texts[op.name] = statement
        self.used.add(statement)
        raw = build.parse(statement.server_name, statement.sql, statement.oids)
        if not self._held(statement):
            self._fresh.add(statement)
            self._gone.discard(statement)
            return front + raw, [*pending, Pending(Step.PARSE, op.name, statement)]
        if self.quiet:
            return front, [*pending, Pending(Step.PARSE_MADE, op.name, statement)]
        close = build.close(b"S", statement.server_name)
        closed = Pending(Step.CLOSE_HIDDEN, None, statement)
        return front + close + raw, [*pending, closed, Pending(Step.PARSE, op.name, statement)]

    def _held(self, statement: Statement) -> bool:
        if statement in self._fresh:
            return True
        if self._dropped or statement in self._gone:
            return False
        return statement in self._server.named

    def _there(self, name: bytes | None, statement: Statement) -> bool:
        """Whether the server has what the client's `name` (None: another one) stands for."""
        if name == b"":
            return b"" in self._texts or statement is self._server.unnamed
        return self._held(statement)

    def needed(self, name: bytes) -> Statement | None:
        """What has to be on the server for a name of the client."""
        statement = self._renewed(name)
        return None if statement is None else self._resolved(statement)

    def is_there(self, statement: Statement) -> bool:
        """Whether the server has a named statement, and what that needs."""
        return self._held(statement) and (statement.needs is None or self._held(statement.needs))

    def _renewed(self, name: bytes) -> Statement | None:
        """What a name of the client means here and now: another statement of the same text, unless that is
        known to be, or may be, other than the client was told."""
        statement = self.lookup(name)
        if statement is None or not self._moved(name, statement):
            return statement
        again = self._statements.again(statement, self._now)
        if statement.columns not in (None, again.columns) and statement.origin is None:
            return statement
        if name:
            self._client.named[name] = again
        else:
            self._client.unnamed = again
        return again

    def _resolved(self, statement: Statement) -> Statement:
        """The statement with the name in its text, where there is one, as the server knows it. What it stands
        for is looked up each time, as PostgreSQL does."""
        known = statement.origin or statement
        if self._translate is not None:
            return self._translate(known)
        classification = known.classification
        if not classification.name or classification.kind not in _USES or classification.name_span is None:
            return known
        target = self._renewed(classification.name.encode("utf-8", "surrogateescape"))
        if target is None:
            return statement if statement is known else self._statements.again(known, self._now)
        if statement.needs is target:
            return statement
        sql = rules.renamed(known.sql, classification.name_span, target.server_name)
        resolved = self._statements.intern(sql, known.oids, self._now, classification)
        resolved.origin, resolved.needs = known, target
        return resolved

    def _put_needs(self, statement: Statement) -> tuple[bytes, list[Pending]]:
        """Make present what a statement has in its text."""
        needs = statement.needs
        if needs is None or needs is self._checked(statement):
            return self._put(needs)
        if self._held(needs) or needs.server_name in self.squatters:
            return b"", []
        self.squatters.append(needs.server_name)
        return build.parse(needs.server_name, b""), [Pending(Step.PARSE_HIDDEN)]

    def _put(self, statement: Statement | None) -> tuple[bytes, list[Pending]]:
        """Make a named statement present."""
        if statement is None or self._moved(None, statement):
            return b"", []
        self.used.add(statement)
        if self._held(statement):
            return b"", []
        self._fresh.add(statement)
        self._gone.discard(statement)
        return statement.parse(statement.server_name), [Pending(Step.PARSE_HIDDEN, None, statement)]

    def _use(self, name: bytes) -> tuple[bytes, list[Pending], bytes | None]:
        """Make a statement present: (bytes in front, their replies, its name there or None for the
        client's own name)."""
        statement = self.needed(name)
        if statement is None:
            if name or b"" in self._texts or self._server.unnamed is None:
                return b"", [], None
            return build.close(b"S", b""), [Pending(Step.CLOSE_HIDDEN, b"")], None
        needs = self._checked(statement)
        if self._moved(name, statement) or (needs is not None and self._moved(None, needs)):
            return b"", [], OUTDATED
        front, pending = self._put_needs(statement)
        if name:
            own, answers = self._put(statement)
            self.hits += not own
            self.misses += bool(own)
            return front + own, pending + answers, statement.server_name
        if not self._there(name, statement):
            front += statement.parse(b"")
            pending.append(Pending(Step.PARSE_HIDDEN, b"", statement))
        return front, pending, None

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
        if self._client.own:
            return op.raw, [Pending(Step.CLOSE, op.name, statement)]
        if self.quiet:
            return b"", [Pending(Step.CLOSE_MADE, op.name)]
        return build.close(b"S", b"\1no such statement"), [Pending(Step.CLOSE, op.name)]


def rename_bind(op: Op, name: bytes) -> bytes:
    """A Bind message, or the beginning of one, for the same portal and another statement name."""
    length = int.from_bytes(op.raw[1:5], "big") + len(name) - len(op.name)
    return b"B" + length.to_bytes(4, "big") + op.portal + b"\0" + name + b"\0" + op.raw[op.rest :]
