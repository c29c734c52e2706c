"""The second witness: what sqlglot makes of a statement that the grammar takes for a read.

Owns all use of sqlglot and is its only importer. It never decides alone: `classify` takes the safer of two
opinions, and this one may also be that it can't read the text. Called for texts of at most MAX_TEXT bytes,
since sqlglot costs 40-300 us for usual ones and far more for long ones.
"""

from __future__ import annotations

import logging
from enum import StrEnum

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres

from proxy.sql.lexical import tokens

MAX_TEXT = 2048

# It warns of every statement that it keeps as plain text; that is an opinion here, not an event.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_ROOTS = (exp.Select, exp.SetOperation, exp.Values, exp.Subquery)
_WRITES = (exp.DML, exp.Into, exp.Lock, exp.DDL, exp.Command, exp.Set, exp.Transaction, exp.Commit, exp.Rollback)
_AGGREGATES = (exp.AggFunc, exp.Window, exp.Group)


class Opinion(StrEnum):
    """What sqlglot says of a text."""

    READ = "read"
    ANALYTIC = "analytic"
    WRITE = "write"
    NONE = "none"
    """It can't read the text, or reads it as something that it keeps as plain text."""


def opinion(text: str) -> Opinion:
    """Return sqlglot's opinion of one statement; never raises."""
    try:
        trees = sqlglot.parse(spaced(text), read=Postgres)
        tree = next((tree for tree in trees if tree is not None), None)
        if not isinstance(tree, _ROOTS):
            return Opinion.NONE
        aggregates = False
        for node in tree.walk():
            if isinstance(node, _WRITES):
                return Opinion.WRITE
            aggregates = aggregates or isinstance(node, _AGGREGATES)
    except Exception:
        # Its compiled parser raises TypeError, RecursionError and others besides its own ParseError and
        # TokenError; whatever it is, the text was not understood.
        return Opinion.NONE
    return Opinion.ANALYTIC if aggregates else Opinion.READ


def spaced(text: str) -> str:
    """Put a space behind each parameter: sqlglot's tokeniser can't read `$1,$2` without one."""
    if "$" not in text:
        return text
    pieces: list[str] = []
    done = 0
    for kind, _, end in tokens(text):
        if kind == "param":
            pieces += text[done:end], " "
            done = end
    pieces.append(text[done:])
    return "".join(pieces)
