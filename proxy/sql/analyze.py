"""The second witness: what sqlglot makes of a statement that the grammar takes for a read.

Owns all use of sqlglot and is its only importer. It never decides alone: `classify` takes the safer of two
opinions, and this one may also be that it can't read the text.

It is asked only about texts that cost it little: 40-300 us for usual ones. Its time doubles with each level
of brackets behind a type's name or ARRAY, as in date(date(x)) (it tries a type first, then a function), grows
with the cube of a row of subscripts, and with the square of other nesting. So a budget comes first. Off the event
loop it has a larger one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres

from .lexical import tokens

MAX_TEXT = 2048
MAX_TOKENS = 800
"""Tokens, doubled for each level of nested type brackets."""
MAX_NESTING = 30
MAX_SUBSCRIPTS = 20
PATIENT_TEXT = 16 * 1024
PATIENT_TOKENS = 6400
"""The same where nobody waits: 1,200 literals behind IN take 7 ms."""

# It warns of every statement that it keeps as plain text; that is an opinion here, not an event.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_TYPE_WORDS = frozenset(
    word.lower() for word, token in Postgres.Tokenizer.KEYWORDS.items() if token in Postgres.Parser.TYPE_TOKENS
) | {"array"}
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
    LATER = "later"
    """It was not asked, since that would take too long here (`patient_opinion`)."""


def opinion(text: str) -> Opinion:
    """Return sqlglot's opinion of one statement, or LATER if it would take too long; never raises."""
    readable = prepared(text) if len(text) <= MAX_TEXT else None
    return Opinion.LATER if readable is None else _opinion(readable)


def patient_opinion(text: str) -> Opinion:
    """The same off the event loop; NONE if it would take too long even so."""
    readable = prepared(text, PATIENT_TOKENS) if len(text) <= PATIENT_TEXT else None
    return Opinion.NONE if readable is None else _opinion(readable)


def _opinion(readable: str) -> Opinion:
    try:
        trees = sqlglot.parse(readable, read=Postgres)
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


def prepared(text: str, budget: int = MAX_TOKENS) -> str | None:
    """Return the text as sqlglot can read it, or None if that would cost too much.

    A space is put behind each parameter: its tokeniser can't read `$1,$2` without one.
    """
    pieces: list[str] = []
    done = count = subscripts = typed = most_typed = 0
    open_brackets: list[bool] = []
    after_type = False
    for kind, start, end in tokens(text):
        count += 1
        mark = text[start]
        if kind == "param":
            pieces += text[done:end], " "
            done = end
        elif kind == "other":
            if mark in "([":
                open_brackets.append(after_type)
                typed += after_type
                subscripts += mark == "["
                most_typed = max(most_typed, typed)
            elif mark in ")]" and open_brackets:
                typed -= open_brackets.pop()
        if count > budget or len(open_brackets) > MAX_NESTING or subscripts > MAX_SUBSCRIPTS:
            return None
        after_type = kind in ("word", "quoted") and text[start:end].strip('"').lower() in _TYPE_WORDS
    if count << most_typed > budget:
        return None
    pieces.append(text[done:])
    return "".join(pieces)


class Rewrite(NamedTuple):
    """What is to be done to a result column: it gets this name and this type of PostgreSQL's; without a name nothing
    is done, "" as the type leaves that."""

    name: str
    cast: str


def rewritten(text: str, dialect: str, columns: Sequence[Rewrite] = ()) -> str | None:
    """Return one read in another dialect of sqlglot's, or None if it can't be had as it is meant; never raises.

    A name that is given to a column must occur nowhere else in the statement: what means a table's column there would
    mean this one in some dialects.
    """
    readable = prepared(text) if len(text) <= MAX_TEXT else None
    if readable is None:
        return None
    try:
        tree = sqlglot.parse_one(readable, read=Postgres)
        if not isinstance(tree, _ROOTS):
            return None
        if any(column.name for column in columns):
            if not isinstance(tree, exp.Select) or tree.is_star or len(tree.expressions) != len(columns):
                return None
            used = {name.name.lower() for name in tree.find_all(exp.Column, exp.TableAlias, exp.Table, exp.Alias)}
            pairs = list(zip(tree.expressions, columns, strict=True))
            if any(wanted.name.lower() in used for column, wanted in pairs if wanted.name != column.alias):
                return None
            tree.set("expressions", [_remade(column, wanted) if wanted.name else column for column, wanted in pairs])
        return tree.sql(dialect=dialect, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except Exception:
        return None  # as in `opinion`


def _remade(column: exp.Expr, wanted: Rewrite) -> exp.Expr:
    """A result column with another name, and maybe another type."""
    value = column.this if isinstance(column, exp.Alias) else column
    if wanted.cast:
        value = exp.cast(value, exp.DataType.build(wanted.cast, dialect=Postgres))
    return exp.alias_(value, wanted.name, quoted=True)
