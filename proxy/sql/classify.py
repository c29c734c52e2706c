"""The door of `sql`: text -> Classification, behind a bounded cache. Pure; never raises.

Owns the order of the looks: length, lexical depth, PostgreSQL's grammar, the verdict on each statement, a
second witness for reads; and what a string of several statements means as one. Whatever can't be read goes
to the primary with a reason of its own. It knows no database: what names mean there is `routing.bind`.

Called by the data plane for each unit, and by `pgtrident classify`.
"""

from __future__ import annotations

from collections.abc import Callable

from . import lexical
from .analyze import Opinion, opinion
from .cache import TextCache
from .grammar import Unparsed, parse
from .model import DDL, EXPLAIN_ROUTE, Class, Classification, Effect, Uses, joined
from .portable import BY_VALUE
from .verdicts import RANK, Verdict, judge

MAX_PARSED = 16 * 1024
"""Bytes; a longer text is never given to a parser (C parsers die on deep text, and it would take long)."""

_OWN_SETTINGS = b"pgtrident."
MAX_UNHEARD = 64
"""A text that finds no place is looked at again when the cache has forgotten it."""
_BY_SHAPE = frozenset(("select", "values", "insert", "update", "delete", "merge"))
_BY_ARGUMENT = BY_VALUE | {"set_config"}
"""Functions of which a constant argument may decide what a statement is; a call of them never holds for other texts."""


class Classifier:
    """Classifies texts and remembers them, at most `entries` of together `size` bytes.

    First by the exact text, then by the text with its digits folded, since many applications send a new
    text each time (`pgbench -S`), then by what is left of it without its literals and comments. The last two answer
    only for plain statements without effects, of which no constant decides anything.

    The last one is not libpg_query's fingerprint. That is one for `count(*) FROM t WHERE a = 1` and `WHERE a = true`,
    for `FROM t` and `FROM t, t b`, round(a) and round(a, 2), 'a'::text and 'a'::date, which are not alike here; and a
    parser must not get a text before its depth is known, so that it takes 5-190 us, and `lexical.skeleton` 3-20.

    Attributes:
        hits_exact, hits_folded, hits_shape: how many texts were found by each step.
        misses: how many had to be looked at.
        unheard: texts on which the second witness is to be heard (`hear`), and what they are meanwhile. Whoever asks it
            takes them away; at most MAX_UNHEARD wait.
    """

    __slots__ = ("_cache", "_folded", "_shapes", "hits_exact", "hits_folded", "hits_shape", "misses", "unheard")

    def __init__(self, entries: int, size: int) -> None:
        self._cache: TextCache[Classification] = TextCache(entries // 3, size // 3)
        self._folded: TextCache[Classification] = TextCache(entries // 3, size // 3)
        self._shapes: TextCache[Classification] = TextCache(entries // 3, size // 3)
        self.hits_exact = 0
        self.hits_folded = 0
        self.hits_shape = 0
        self.misses = 0
        self.unheard: dict[bytes, Classification] = {}

    def classify(self, sql: bytes) -> Classification:
        """Return what a text is; the object is shared by all who send that text. A hit costs 0.1 us, one by shape
        3-20."""
        found = self._cache.young.get(sql) or self._cache.get(sql)
        if found is not None:
            self.hits_exact += 1
            return found
        found = self._folded.get(lexical.folded(sql))
        if found is not None:
            self.hits_folded += 1
            return found
        shape = _shape(sql)
        found = self._shapes.get(shape) if shape else None
        if found is not None:
            self.hits_shape += 1
            self._keep(sql, found)
            return found
        self.misses += 1
        found = self._looked_at(sql, shape, opinion)
        if found.unheard and len(self.unheard) < MAX_UNHEARD:
            self.unheard[sql] = found
        return found

    def hear(self, sql: bytes, second: Opinion) -> Classification:
        """Look at a text once more, with the second witness's opinion, and remember that. The same costs as at first:
        1-4 ms for a long one."""
        return self._looked_at(sql, _shape(sql), lambda _: second)

    def _looked_at(self, sql: bytes, shape: bytes, witness: Callable[[str], Opinion]) -> Classification:
        found = classify(sql, witness)
        found.text = sql
        if _OWN_SETTINGS in sql.lower():
            found.reads_wishes = True
            found.quick = False
        if _is_shared(found):
            found.foldable = lexical.is_foldable(sql)
            if shape and not found.unheard:
                self._shapes.put(shape, found)
        self._keep(sql, found)
        return found

    def _keep(self, sql: bytes, found: Classification) -> None:
        if found.foldable:
            self._folded.put(lexical.folded(sql), found)
        else:
            self._cache.put(sql, found)


def _shape(sql: bytes) -> bytes:
    """What texts have in common that differ in the values of constants only, or ""; for `_is_shared` ones."""
    if len(sql) > MAX_PARSED:
        return b""
    lower = sql.lower()
    text = sql.decode("utf-8", "surrogateescape")
    if _OWN_SETTINGS in lower or not (text.isascii() or _is_unicode(text)):
        return b""
    skeleton = lexical.skeleton(sql)
    has_word = b"now" in lower or b"day" in lower or b"tomorrow" in lower
    return skeleton + b"\0timed" if has_word and lexical.may_tell_time(text) else skeleton


def _is_shared(found: Classification) -> bool:
    """Whether it holds for any text with other constants too."""
    return (
        found.plain
        and found.kind in _BY_SHAPE
        and found.reason != "syntax"
        and (found.uses is None or not any(name in _BY_ARGUMENT for _, name in found.uses.functions))
    )


def classify(sql: bytes, witness: Callable[[str], Opinion] = opinion) -> Classification:
    """Return what a text is, without a cache: 20-500 us. `witness` gives the second opinion on a read."""
    if b"\0" in sql:
        # The parser would stop there. PostgreSQL can't get such a text either.
        return Classification(Class.WRITE, "nul", effects=Effect.SET_ANY | Effect.UNKNOWN_CODE)
    if lexical.route_explained(sql) is not None:
        found = Classification(Class.SESSION, EXPLAIN_ROUTE, kind="explain route")
        found.quick = False
        return found
    if len(sql) > MAX_PARSED:
        return _unread(sql, "too_long")
    if lexical.too_many_parts(sql):
        return _unread(sql, "too_complex")
    text = sql.decode("utf-8", "surrogateescape")
    trouble = lexical.trouble(text)
    if trouble:
        return _unread(sql, trouble)
    try:
        # Text in another encoding: its bytes above 127 are letters of identifiers or in strings, all one.
        parsed = parse(text if text.isascii() or _is_unicode(text) else sql.decode("latin-1"))
    except Unparsed as error:
        return _unread(sql, error.reason)
    if not parsed:
        return Classification(Class.READ, "empty", statements=0, kind="empty")
    verdicts = [judge(node, body, "") for node, body in parsed]
    first = verdicts[0]
    if not first.kind:
        first.kind = lexical.first_word(text) or "unknown"
    if len(verdicts) > 1:
        return _several(verdicts)
    first.timed = first.timed or lexical.may_tell_time(text)
    unheard = False
    if first.cls is Class.READ or first.cls is Class.ANALYTIC:
        second = witness(text) if first.kind == "select" else Opinion.NONE
        _weigh_opinion(first, second)
        unheard = second is Opinion.LATER
    uses = first.used()
    span = lexical.statement_name(text) if first.name else None
    found = _single(first, span, uses)
    if first.doubt:
        first.at_least(Class.WRITE, first.doubt)
        first.effects |= Effect.UNKNOWN_CODE
        found = _single(first, span, uses, found)
    found.unheard = unheard
    return found


def _single(
    verdict: Verdict, span: tuple[int, int] | None, uses: Uses | None, at_best: Classification | None = None
) -> Classification:
    return Classification(
        verdict.cls,
        verdict.reason,
        effects=verdict.effects,
        settings=frozenset(verdict.settings),
        resets=verdict.resets,
        kind=verdict.kind,
        name=verdict.name,
        name_span=span,
        starts_transaction=verdict.starts,
        ends_transaction=verdict.ends,
        read_only_transaction=verdict.read_only,
        isolation=verdict.isolation,
        timed=verdict.timed,
        fragile=verdict.fragile,
        retyped=verdict.retyped,
        uses=uses,
        at_best=at_best,
    )


def _is_unicode(text: str) -> bool:
    """Whether a text decoded with surrogateescape was valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _weigh_opinion(verdict: Verdict, second: Opinion) -> None:
    """Add a second opinion to the verdict on a read; the safer one counts.

    A witness that can't read the text, or hasn't yet, leaves the grammar to decide alone, between read and primary:
    an analytic statement must be understood by both.
    """
    if second is Opinion.WRITE:
        verdict.cls, verdict.reason = Class.WRITE, "disputed"
    elif verdict.cls is Class.ANALYTIC and second is not Opinion.ANALYTIC:
        verdict.cls, verdict.reason = Class.READ, "select"


def _several(verdicts: list[Verdict]) -> Classification:
    """Return what a string of several statements is: one unit, one node, one implicit transaction."""
    uses = joined([used for verdict in verdicts if (used := verdict.used()) is not None])
    at_best = _joined(verdicts, uses)
    is_moving = any(verdict.reason in DDL and verdict.kind != "truncate" for verdict in verdicts)
    if uses is None or not (is_moving or any(verdict.doubt for verdict in verdicts)):
        return at_best
    for verdict in verdicts:
        if verdict.doubt:
            verdict.at_least(Class.WRITE, verdict.doubt)
    # Behind DDL in the same string a name may mean what no catalogue tells.
    verdicts[0].effects |= Effect.UNKNOWN_CODE
    return _joined(verdicts, None) if is_moving else _joined(verdicts, uses, at_best)


def _joined(verdicts: list[Verdict], uses: Uses | None, at_best: Classification | None = None) -> Classification:
    first = verdicts[0]
    strongest = max(verdicts, key=lambda verdict: RANK[verdict.cls])
    cls, reason = strongest.cls, strongest.reason
    if cls is Class.READ or cls is Class.ANALYTIC:
        cls, reason = Class.WRITE, "several_statements"
    effects = Effect.NONE
    for verdict in verdicts:
        effects |= verdict.effects
    return Classification(
        cls,
        reason,
        effects=effects,
        settings=frozenset().union(*(verdict.settings for verdict in verdicts)),
        resets=any(verdict.resets for verdict in verdicts),
        statements=len(verdicts),
        kind=first.kind,
        name=first.name,
        starts_transaction=any(verdict.starts for verdict in verdicts),
        ends_transaction=any(verdict.ends for verdict in verdicts),
        fragile=any(verdict.fragile for verdict in verdicts),
        retyped=any(verdict.retyped for verdict in verdicts),
        uses=uses,
        at_best=at_best,
    )


_PLAIN_KINDS = frozenset({"select", "insert", "update", "delete", "merge", "values", "with", "table"})
_HEAD = 256
"""Characters in which the first word of an unread text is looked for."""
_SEARCHED = 256 * 1024
"""Bytes; a longer text is not searched for words but taken to do anything (4 MB would take 10 ms)."""
_EVERYTHING = ~Effect.LOAD
_TRANSACTION_WORDS = (b"begin", b"start", b"commit", b"rollback", b"end", b"abort", b"prepare")


def _unread(sql: bytes, reason: str) -> Classification:
    """Return what is said of a text that has no tree: the primary, and the effects that it may have.

    A text that this grammar refuses is refused by the server too, unless the server's grammar is newer,
    so a plain query or DML gets no effects then. A long or deep text does run: it is searched for the words
    that could touch the session, wherever they stand.
    """
    kind = lexical.first_word(sql[:_HEAD].decode("utf-8", "surrogateescape")) or "unknown"
    plain = kind in _PLAIN_KINDS
    if reason == "syntax":
        effects = Effect.NONE if plain else Effect.SET_ANY | Effect.UNKNOWN_CODE
        return Classification(Class.WRITE, reason, effects=effects, kind=kind)
    lower = sql[:_SEARCHED].lower()
    effects = Effect.UNKNOWN_CODE
    several = len(sql) > _SEARCHED or b";" in lower.rstrip(b"; \t\r\n")
    if several or not plain:
        effects |= _EVERYTHING
    if b"set_config" in lower:
        effects |= Effect.SET_ANY | Effect.ROLE
    if b"advisory" in lower:
        effects |= Effect.ADVISORY
    if b"temp" in lower and b"into" in lower:
        effects |= Effect.TEMP
    if b"currval" in lower or b"lastval" in lower:
        effects |= Effect.SEQUENCE
    transaction = several and (len(sql) > _SEARCHED or any(word in lower for word in _TRANSACTION_WORDS))
    return Classification(
        Class.WRITE,
        reason,
        effects=effects,
        statements=2 if several else 1,
        kind=kind,
        starts_transaction=transaction,
        ends_transaction=transaction,
    )
