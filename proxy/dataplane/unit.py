"""The smallest thing that is routed: a simple Query, an extended batch, a function call, a greeting.

Owns what a unit is known to do (class, effects, DDL), joined over its texts. Must not know where it goes or
how it gets there. Called by `client` and `batch`, read by `worker` and `capability`.
"""

from __future__ import annotations

import re
from enum import Enum

from ..routing.policy import Policy
from ..sql.model import DDL, EXPLAIN_ROUTE, Class, Classification, Effect
from ..wire import frontend
from ..wire.frontend import Op

_STRENGTH = {Class.READ: 0, Class.ANALYTIC: 1, Class.SESSION: 2, Class.WRITE: 3}
_UNSEEN = Effect.UNKNOWN_CODE | Effect.SET_ANY

_NO_DDL = frozenset(("analyze", "comment", "grant", "revoke", "truncate", "vacuum", "cluster", "reindex"))
"""Kinds that change no meaning of a name, whatever their reason."""
_DDL_WORDS = re.compile(
    rb"\b(?:create(?!\s+(?:local\s+)?temp)|alter|drop|(?<!insert\s)(?<!merge\s)into(?!\s+(?:local\s+)?temp)|prepared)\b",
    re.IGNORECASE,
)
"""In a string of several statements, or a DO block. Temporary tables are nobody else's."""

_MOVING = Effect.SET | Effect.SET_ANY | Effect.ROLE | Effect.TEMP | Effect.LOCAL

EMPTY = Classification(Class.READ, "empty", kind="empty", statements=0)
TOO_LONG = Classification(Class.WRITE, "too_long", effects=Effect.UNKNOWN_CODE)
CALL = Classification(Class.WRITE, "function_call", effects=Effect.UNKNOWN_CODE, kind="call")


class Kind(Enum):
    """What a unit is made of."""

    WELCOME = "welcome"
    QUERY = "query"
    BATCH = "batch"
    CALL = "call"


class Unit:
    """A unit on its way that could not go the fast way.

    Attributes:
        policy: what hints, settings and rules say of it; None where nobody says anything.
        raw: the message, for QUERY and CALL (of a streamed one: its beginning).
        ops: the messages of a BATCH.
        synced: whether a BATCH ends with Sync.
        cls, classified: the strongest class, and each text's classification.
        effects, settings, resets: joined over the texts.
        named: whether a BATCH names statements, so that names in flight must be settled first.
        unseen: whether code runs that can't be seen (a user's function, DO, CALL).
        untracked: whether it sets a setting whose name can't be told (set_config($1, ...)).
        explains: whether it asks where a statement would go: the proxy answers it itself.
        reads_wishes: whether it may read the proxy's own settings, and the server has to be told them first.
        retried: whether it is run for the second time.
        refused: the SQLSTATE with which a standby refused it, where it is run on the primary for that.
        failed_on_columnar: a columnar node could not run it: it is an ordinary read now.
        begins: whether the BEGIN that is held back goes in front of it.
        instead_of: the SET LOCAL in such a transaction in whose place it is run, unless it gets to the primary.
        floor_ns: a read in such a transaction has to see all that was committed before this moment; 0 is none.
        mark: boot_ns when the unit arrived, where that matters (`global`).
        waited: whether it has waited for a copy long enough.
        since: when it began to wait, in seconds of the clock; 0 while it has not.
    """

    __slots__ = (
        "begins",
        "bound_text",
        "classified",
        "cls",
        "effects",
        "explains",
        "failed_on_columnar",
        "floor_ns",
        "instead_of",
        "kind",
        "losses",
        "lost_on",
        "mark",
        "named",
        "ops",
        "policy",
        "raw",
        "reads_wishes",
        "refused",
        "resets",
        "retried",
        "settings",
        "since",
        "synced",
        "unseen",
        "untracked",
        "waited",
    )

    def __init__(self, kind: Kind, raw: bytes = b"") -> None:
        self.kind = kind
        self.raw = raw
        self.ops: list[Op] = []
        self.bound_text: tuple[bytes, bytes] | None = None
        """The text and types of a statement prepared before, where the unit binds one."""
        self.synced = True
        self.cls = Class.READ
        self.classified: list[Classification] = []
        self.effects = Effect.NONE
        self.settings: frozenset[str] = frozenset()
        self.resets = False
        self.named = False
        self.policy: Policy | None = None
        self.explains = False
        self.reads_wishes = False
        self.lost_on = ""
        """The node whose connection was lost while it ran, ..."""
        self.losses = 0
        """... and how often."""
        self.retried = False
        self.refused = ""
        self.failed_on_columnar = False
        self.unseen = False
        self.untracked = False
        self.begins = False
        self.floor_ns = 0
        self.instead_of: Unit | None = None
        self.mark = 0
        self.waited = False
        self.since = 0.0

    def join(self, classification: Classification, trusted: bool = False) -> None:
        """Take one more text into account. `trusted`: unseen code that has left nothing behind so far."""
        self.classified.append(classification)
        if classification.reason == EXPLAIN_ROUTE:
            self.explains = True
        if classification.reads_wishes:
            self.reads_wishes = True
        if _STRENGTH[classification.cls] > _STRENGTH[self.cls]:
            self.cls = classification.cls
        if classification.plain:
            return
        effects = classification.effects
        if Effect.UNKNOWN_CODE in effects:
            self.unseen = True
        elif Effect.SET_ANY in effects and classification.kind not in ("reset", "discard"):
            self.untracked = True
        if self.unseen and trusted and not effects & ~_UNSEEN:
            return
        self.effects |= effects
        self.settings |= classification.settings
        self.resets = self.resets or classification.resets

    @property
    def may_be_ddl(self) -> bool:
        """Whether what names mean may be another after it."""
        return any(is_ddl(c, text) for c in self.classified for text in self._texts())

    def _texts(self) -> list[bytes]:
        if self.kind is not Kind.BATCH:
            return [self.raw]
        bound = [self.bound_text[0]] if self.bound_text is not None else []
        return bound + [op.sql for op in self.ops if op.kind == frontend.PARSE]

    @property
    def copies_in(self) -> bool:
        """Whether a COPY FROM in it is about to run."""
        runs = self.kind is not Kind.BATCH or any(op.kind == frontend.EXECUTE for op in self.ops)
        return runs and any(c.kind == "copy" and c.cls is Class.WRITE for c in self.classified)

    @property
    def is_discard_all(self) -> bool:
        """Whether it is DISCARD ALL and nothing else."""
        single = self.single
        return single is not None and single.kind == "discard" and Effect.DISCARD in self.effects

    @property
    def reads_sequence(self) -> bool:
        """Whether it asks for the session's own last value of a sequence, and nothing in it made one."""
        return self.single is not None and Effect.SEQUENCE in self.effects and not self.discards

    @property
    def discards(self) -> bool:
        """Whether a DISCARD is part of it."""
        return any(c.kind == "discard" for c in self.classified)

    @property
    def single(self) -> Classification | None:
        """What it is, where it is one statement."""
        alone = len(self.classified) == 1 and self.classified[0].statements == 1
        return self.classified[0] if alone else None

    def single_text(self) -> tuple[bytes, bytes] | None:
        """Text and raw parameter types where the unit is one statement, run once."""
        if self.single is None:
            return None
        if self.kind is Kind.QUERY:
            return frontend.query_text(self.raw), b"\0\0"
        for op in self.ops:
            if op.kind == frontend.PARSE:
                return op.sql, op.oids
        return self.bound_text


def is_ddl(classification: Classification, text: bytes) -> bool:
    """Whether what names mean may be another after this text."""
    if classification.kind == "commit prepared" or (
        classification.reason in DDL and classification.kind not in _NO_DDL
    ):
        return True
    several = classification.statements > 1 or classification.kind == "do"
    return several and _DDL_WORDS.search(text) is not None


def moves(classification: Classification, text: bytes) -> bool:
    """Whether a Parse behind this text, in the same batch, may find something else than one before it."""
    return bool(classification.effects & _MOVING) or is_ddl(classification, text)


def split_batch(data: bytes) -> list[Op]:
    """The extended messages of a batch, without its Sync."""
    ops = []
    pos = 0
    while pos < len(data):
        end = pos + 1 + int.from_bytes(data[pos + 1 : pos + 5], "big")
        if data[pos] in frontend.EXTENDED:
            ops.append(frontend.read_op(data[pos:end]))
        pos = end
    return ops
