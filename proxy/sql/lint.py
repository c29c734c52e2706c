"""`pgtrident lint`: which queries of SQL files or logs will stay on the primary, and why. Pure.

Owns the cutting of files into statements, and what is worth telling: a query that one would expect on a replica. A
write stays on the primary by its nature. Called by the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import lexical
from .analyze import patient_opinion
from .catalogue import Catalogue, bind
from .classify import classify
from .model import Class

QUERIES = frozenset(("select", "values", "table", "with", "explain", "copy", "declare", "show"))
"""First words of what is expected to read; COPY ... FROM is taken out by its reason."""
_WRITES = frozenset(
    ("copy_from", "insert", "update", "delete", "merge", "ddl", "modifying_cte", "select_into", "for_update")
)
"""Reasons that one sees in the text: nothing to tell."""
_LOGGED = re.compile(
    r"""^.*?\b(?:LOG|DETAIL|STATEMENT):\s+ (?:duration:\ [0-9.]+\ ms\s+)?
    (?:statement|execute\ [^:]*|(?:parse|bind)\ [^:]*):\s+ (?P<sql>.*)$""",
    re.VERBOSE,
)
"""A line of the server's log that holds a statement (log_statement, log_min_duration_statement; manual, 20.8)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A query that stays on the primary."""

    line: int
    reason: str
    sql: str


def lint(text: str, catalogue: Catalogue | None = None) -> Iterator[Finding]:
    """Look at each statement of a file, which may be a log of the server."""
    for line, sql in statements(text):
        found = classify(sql.encode("utf-8", "surrogateescape"), patient_opinion)
        if catalogue is not None:
            found = bind(found, catalogue)
        if found.cls in (Class.READ, Class.ANALYTIC):
            continue
        if lexical.first_word(sql) in QUERIES and found.reason not in _WRITES:
            yield Finding(line, found.reason, sql)


def statements(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each statement: of a log those that were logged, else all of an SQL file."""
    lines = text.splitlines()
    if any(_LOGGED.match(line) for line in lines[:1000]):
        return _of_log(lines)
    return _of_file(text)


def _of_log(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines that begin with a tab go on with the statement before."""
    start, parts = 0, list[str]()
    for number, line in enumerate(lines, 1):
        if line.startswith("\t") and parts:
            parts.append(line[1:])
            continue
        if parts:
            yield start, "\n".join(parts)
        logged = _LOGGED.match(line)
        start, parts = number, [logged["sql"]] if logged else []
    if parts:
        yield start, "\n".join(parts)


def _of_file(text: str) -> Iterator[tuple[int, str]]:
    """Statements end at a semicolon outside parentheses and BEGIN ATOMIC bodies; psql's own commands, lines that begin
    with a backslash, are none."""
    text = re.sub(r"(?m)^\\.*$", "", text)
    start, depth, atomic, before = -1, 0, 0, ""
    end_of_last = 0
    for kind, begin, end in lexical.tokens(text):
        mark = text[begin:end]
        if start < 0:
            start = begin
        if kind == "other":
            depth += (mark in "([") - (mark in ")]")
        elif kind == "word":
            word = mark.lower()
            if word == "atomic" and before == "begin":
                atomic = 1
            elif atomic:
                atomic += (word == "case") - (word == "end")
            before = word
        if mark == ";" and depth <= 0 and not atomic:
            if begin > start:
                yield text.count("\n", 0, start) + 1, text[start:begin]
            start, depth, before = -1, 0, ""
        end_of_last = end
    if start >= 0 and text[start:end_of_last].strip():
        yield text.count("\n", 0, start) + 1, text[start:]
