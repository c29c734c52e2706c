"""The tables that a text names, whatever it does with them. Pure; never raises.

What a classification has in `uses` is for deciding where a read may go; rules ask about writes too. Called by
`routing.policy`, once for each statement that a rule about tables may be for.
"""

from __future__ import annotations

from . import lexical
from .classify import MAX_PARSED
from .grammar import Unparsed, parse, survey


def tables(sql: bytes) -> frozenset[tuple[str, str]]:
    """(schema or "", name) of each; names that WITH gives are among them. None for a text that isn't parsed, nor for
    DROP, which names its objects in another way. 20-200 us."""
    if b"\0" in sql or len(sql) > MAX_PARSED or lexical.too_many_parts(sql):
        return frozenset()
    text = sql.decode("utf-8", "replace")
    if lexical.trouble(text):
        return frozenset()
    try:
        parsed = parse(text)
    except Unparsed:
        return frozenset()
    return frozenset(relation for _, body in parsed for relation in survey(body).relations)
