"""A transaction whose BEGIN is held back: plain reads in it run on replicas until the first statement that is none.

Drivers and ORMs open a transaction for each request, and most requests only read. The client is told that its
transaction has begun; nothing has. Each plain read runs on a replica as a unit of its own, so no transaction stays
open on a standby, and the status at the end of its answer is rewritten. The first statement that is not a plain read
has the BEGIN sent to the primary, as the client wrote it, and goes on there. This is what READ COMMITTED means: each
statement sees what was committed when it began (manual, 13.2.1). What would show the difference goes to the primary
from the start: other isolation levels, and statements that tell when the transaction began or which one it is.

A replica serves such a read only if it holds all that was committed when the client began: a value from before, written
back on the primary, would undo what others did meanwhile.

SET LOCAL of a setting that decides neither what names mean nor what the client is told of the session (a time-out, a
tenant for row security) doesn't move it either: it is run as SET on a copy, so that PostgreSQL checks it, and holds for
its client until the transaction ends; the primary gets it behind the BEGIN as it was written.

Owns the state of one such transaction and the question which units may run in it. Called by `begins` and `client`.
"""

from __future__ import annotations

import re

from ..session.prepared import ClientStatements, Statement
from ..session.state import State
from ..sql.model import Class, Classification, Effect, is_parsed_by
from ..wire import build, frontend
from ..wire.frontend import Op
from .unit import Kind, Unit

HELD_BY = {
    "read_only": frozenset(("read_only",)),
    "optimistic": frozenset(("read_only", "read_write")),
}
"""Which BEGINs are held back, by the setting `transactions`."""
_LEVELS = frozenset(("", "read committed", "read uncommitted"))
_ENDS = frozenset(("commit", "rollback"))
_REFUSED = frozenset(("select", "insert", "update", "delete", "merge"))
_UNREAD = frozenset(("syntax", "too_long", "too_complex", "too_deep", "unreadable_encoding"))
"""Reasons of what may be no SQL at all."""
_PORTAL = 0x50
"""Target of a Describe or Close."""


class Virtual:
    """See the module.

    Attributes:
        begin: the text of the client's BEGIN.
        begun_ns: when it came (boot_ns).
        since: the same in seconds of the clock.
        failed: a read in it has failed: until its end it answers nothing else.
        has_read: a statement has been looked at in it: its isolation level may not be changed any more.
        state: the settings that hold again behind it.
        locals: the texts of each SET LOCAL that was run in it.
    """

    __slots__ = ("begin", "begun_ns", "failed", "has_read", "locals", "since", "state")

    def __init__(self, begin: str, begun_ns: int, since: float, state: State) -> None:
        self.begin = begin
        self.begun_ns = begun_ns
        self.since = since
        self.failed = False
        self.has_read = False
        self.state = state
        self.locals: list[str] = []

    def sql(self) -> str:
        """The string by which it begins on the primary, in the state that its client knows. (A BEGIN may end with a
        comment.)"""
        steps = [self.begin, *self.locals]
        if self.failed:
            steps.append("SELECT 1/0")
        elif self.has_read:
            steps.append("SELECT 1")
        return "\n; ".join(steps)


def may_hold(mode: str, begin: Classification, default_isolation: str) -> bool:
    """Whether this BEGIN is held back; `default_isolation` is the session's."""
    held = HELD_BY.get(mode)
    if held is None or begin.statements != 1 or begin.kind not in ("begin", "start transaction"):
        return False
    return ("read_only" if begin.read_only_transaction else "read_write") in held and (
        begin.isolation or default_isolation
    ) in _LEVELS


def local_setting(text: str) -> str:
    """SET LOCAL as a SET, if that may be run on a copy in its place; "" otherwise."""
    found = _LOCAL.match(text)
    if found is None or not text.isascii():
        return ""
    name = found[1].lower()
    if name.startswith(_NEVER_LOCAL) or name in _TOLD or is_parsed_by(name):
        return ""
    return f"SET {text[found.start(1) :]}"


_LOCAL = re.compile(r"\s*SET\s+LOCAL\s+([A-Za-z_][\w.]*)\s*(?:=|\sTO\s)", re.IGNORECASE)
_NEVER_LOCAL = ("default_transaction_", "idle_", "pgtrident.", "transaction_")
_TOLD = frozenset(("application_name",))
"""Clients are told of its changes (manual, 55.2.7), so of its end too."""


def end_of(unit: Unit) -> str:
    """The tag of a statement that ends a transaction and does nothing else, if a unit is that; "" for all others."""
    found = unit.single
    if found is None or found.kind not in _ENDS or found.starts_transaction:
        return ""
    return found.kind.upper()


class Command:
    """A statement without parameters or rows that a batch runs first.

    Attributes:
        statement: what is run.
        parsed: the name under which the batch parses it; None where that was done before.
        length: how many messages it takes.
        replies: what they are answered with, up to the tag.
    """

    __slots__ = ("length", "parsed", "replies", "statement")

    def __init__(self, statement: Statement, parsed: bytes | None, length: int, replies: bytes) -> None:
        self.statement = statement
        self.parsed = parsed
        self.length = length
        self.replies = replies


def first_command(ops: list[Op], names: ClientStatements) -> Command | None:
    """The command that stands by itself at the start of a batch, as drivers send BEGIN and COMMIT; None if there is
    none, or PostgreSQL has to answer it: a name that is taken, say."""
    at = 0
    parsed: bytes | None = None
    replies = b""
    statement: object = None
    if ops and ops[0].kind == frontend.PARSE:
        parsed, statement, at = ops[0].name, ops[0].statement, 1
        replies = build.PARSE_COMPLETE
        if parsed and (parsed in names.named or parsed in names.sql):
            return None
    if len(ops) < at + 2 or ops[at].kind != frontend.BIND:
        return None
    bind = ops[at]
    if statement is None:
        statement = names.named.get(bind.name) if bind.name else names.unnamed
    elif bind.name != parsed:
        return None
    if not isinstance(statement, Statement) or bind.portal or bind.raw[bind.rest : bind.rest + 4] != bytes(4):
        return None
    replies += build.BIND_COMPLETE
    at += 1
    if ops[at].kind == frontend.DESCRIBE and ops[at].target == _PORTAL and not ops[at].portal:
        replies += build.NO_DATA
        at += 1
    if len(ops) <= at or ops[at].kind != frontend.EXECUTE or ops[at].portal:
        return None
    return Command(statement, parsed, at + 1, replies)


def is_refused(unit: Unit) -> bool:
    """Whether PostgreSQL says of a unit in a failed transaction just that it has failed (25P02). What it says otherwise
    is for the primary to say: of what ends a transaction, is no SQL, is empty, or uses what was prepared before."""
    if unit.kind is Kind.BATCH:
        told = bool(unit.ops) and unit.ops[0].kind == frontend.PARSE
    else:
        told = unit.kind is Kind.QUERY
    if not told or len(unit.classified) != 1:
        return False
    found = unit.classified[0]
    return found.statements == 1 and found.kind in _REFUSED and found.reason not in _UNREAD


def is_plain_read(unit: Unit) -> bool:
    """Whether it may run by itself: one read, that tells nothing of its transaction."""
    if unit.cls not in (Class.READ, Class.ANALYTIC) or unit.effects is not Effect.NONE or unit.reads_wishes:
        return False
    if unit.refused or unit.unseen or not unit.synced or len(unit.classified) > 1:
        return False
    if unit.kind is Kind.CALL or (unit.kind is Kind.BATCH and not _leaves_no_portal(unit)):
        return False
    return all(found.plain and not found.timed for found in unit.classified)


def _leaves_no_portal(unit: Unit) -> bool:
    """Whether nothing of a batch can be asked for in the next one: a portal lives until its transaction ends (manual,
    55.2.3), and here that is at the batch's Sync. It binds at most once, and runs what it has bound to its end."""
    binds = runs = 0
    for op in unit.ops:
        if op.portal:
            return False
        if op.kind == frontend.BIND:
            binds += 1
        elif op.kind == frontend.EXECUTE:
            runs += 1
            if runs > binds or any(op.raw[op.rest :]):
                return False
        elif op.target == _PORTAL and not binds:
            return False
    return binds == runs and binds <= 1
