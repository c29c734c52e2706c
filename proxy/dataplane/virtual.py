"""A transaction whose BEGIN is held back: plain reads in it run on replicas until the first statement that is none.

Drivers and ORMs open a transaction for each request, and most requests only read. The client is told that its
transaction has begun; nothing has. Each plain read runs on a replica as a unit of its own, so no transaction stays
open on a standby, and the status at the end of its answer is rewritten. The first statement that is not a plain read
has the BEGIN sent to the primary, as the client wrote it, and goes on there. This is what READ COMMITTED means: each
statement sees what was committed when it began (manual, 13.2.1). What would show the difference goes to the primary
from the start: other isolation levels, and statements that tell when the transaction began or which one it is.

A replica serves such a read only if it holds all that was committed when the client began: a value from before, written
back on the primary, would undo what others did meanwhile.

Owns the state of one such transaction and the question which units may run in it. Called by `client`.
"""

from __future__ import annotations

from ..sql.model import Class, Classification, Effect
from ..wire import frontend
from .unit import Kind, Unit

HELD_BY = {
    "read_only": frozenset(("read_only",)),
    "optimistic": frozenset(("read_only", "read_write")),
}
"""Which BEGINs are held back, by the setting `transactions`."""
_LEVELS = frozenset(("", "read committed", "read uncommitted"))
_ENDS = frozenset(("commit", "rollback"))


class Virtual:
    """See the module.

    Attributes:
        begin: the text of the client's BEGIN.
        begun_ns: when it came (boot_ns).
        since: the same in seconds of the clock.
        failed: a read in it has failed: until its end it answers nothing else.
    """

    __slots__ = ("begin", "begun_ns", "failed", "since")

    def __init__(self, begin: str, begun_ns: int, since: float) -> None:
        self.begin = begin
        self.begun_ns = begun_ns
        self.since = since
        self.failed = False


def may_hold(mode: str, begin: Classification, default_isolation: str) -> bool:
    """Whether this BEGIN is held back; `default_isolation` is the session's."""
    held = HELD_BY.get(mode)
    if held is None or begin.statements != 1 or begin.kind not in ("begin", "start transaction"):
        return False
    return ("read_only" if begin.read_only_transaction else "read_write") in held and (
        begin.isolation or default_isolation
    ) in _LEVELS


def end_of(unit: Unit) -> str:
    """The tag of a Query that ends a transaction and does nothing else; "" for all other units."""
    if unit.kind is not Kind.QUERY or len(unit.classified) != 1:
        return ""
    found = unit.classified[0]
    if found.statements != 1 or found.kind not in _ENDS or found.starts_transaction:
        return ""
    return found.kind.upper()


def is_plain_read(unit: Unit) -> bool:
    """Whether it may run by itself: one read, that tells nothing of its transaction."""
    if unit.cls not in (Class.READ, Class.ANALYTIC) or unit.effects is not Effect.NONE or unit.reads_wishes:
        return False
    if unit.refused or unit.unseen or not unit.synced or len(unit.classified) > 1:
        return False
    if unit.kind is Kind.BATCH and sum(op.kind == frontend.EXECUTE for op in unit.ops) > 1:
        return False
    return unit.kind is not Kind.CALL and all(found.plain and not found.timed for found in unit.classified)
