"""What rules ask of a text: the tables that it names, whatever it does with them, and its shape. Pure; never raises.

What a classification has in `uses` is for deciding where a read may go; rules ask about writes too. A text that the
classifier wouldn't parse has neither. Called by `routing.policy`, once for a statement that such a rule may be for.
"""

from __future__ import annotations

from . import grammar, lexical
from .classify import MAX_PARSED

SHAPED = frozenset(("select", "values", "insert", "update", "delete", "merge"))
"""Kinds whose texts mean the same if their shapes are equal."""


def tables(sql: bytes) -> frozenset[tuple[str, str]]:
    """(schema or "", name) of each; names that WITH gives are among them, what DROP names is not. 20-200 us."""
    text = _readable(sql)
    try:
        parsed = grammar.parse(text)
    except grammar.Unparsed:
        return frozenset()
    return frozenset(relation for _, body in parsed for relation in grammar.survey(body).relations)


def shape(sql: bytes) -> str:
    """The fingerprint, as in SHOW SHAPES; "" for what has none. 4-20 us."""
    text = _readable(sql)
    return grammar.shape(text) if text else ""


def _readable(sql: bytes) -> str:
    """The text, or "" if a parser must not get it."""
    if b"\0" in sql or len(sql) > MAX_PARSED or lexical.too_many_parts(sql):
        return ""
    text = sql.decode("utf-8", "replace")
    return "" if lexical.trouble(text) else text
