"""What has to be known of a statement's text before DuckDB sees it: words, pieces, placeholders.

Pure. Lexical only; the grammar is DuckDB's. Called by `session` and `engine`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"
      |\$(?P<tag>[A-Za-z_]\w*)?\$.*?\$(?P=tag)\$|\$\$.*?\$\$)
  | \$(?P<param>\d+)
  | (?P<catalog>pg_catalog\s*\.\s*)(?=\w+\s*\()
  | (?P<word>[^\W\d][\w$]*)
  | (?P<end>;)
  | (?P<other>\d[\w.]*|.)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_CAST = re.compile(r"\s*::\s*([A-Za-z_]\w*)")
MAX_PARAMS = 65_535


def _tokens(sql: str) -> Iterator[re.Match[str]]:
    return _TOKEN.finditer(sql)


def split(sql: str) -> list[str]:
    """The statements of a simple Query, without those that are empty."""
    pieces: list[str] = []
    start = 0
    filled = False
    for token in _tokens(sql):
        if token.lastgroup == "end":
            if filled:
                pieces.append(sql[start : token.start()].strip())
            start, filled = token.end(), False
        elif token.lastgroup != "space":
            filled = True
    if filled:
        pieces.append(sql[start:].strip())
    return pieces


def words(sql: str, limit: int = 4) -> list[str]:
    """The first bare words in upper case, up to the first thing that is none (an opening `(` is passed over)."""
    found: list[str] = []
    for token in _tokens(sql):
        if token.lastgroup == "word":
            found.append(token.group().upper())
            if len(found) == limit:
                break
        elif token.lastgroup != "space" and (found or token.group() != "("):
            break
    return found


def params(sql: str) -> int:
    """How many parameters a statement has: the highest `$n`."""
    numbers = [int(token["param"]) for token in _tokens(sql) if token.lastgroup == "param"]
    highest = max(numbers, default=0)
    return highest if highest <= MAX_PARAMS else 0


def casts(sql: str) -> dict[int, str]:
    """The type names, in lower case, that parameters are cast to where they stand: `$1::int`."""
    found: dict[int, str] = {}
    for token in _tokens(sql):
        cast = _CAST.match(sql, token.end()) if token.lastgroup == "param" else None
        if cast:
            found[int(token["param"])] = cast[1].lower()
    return found


def for_engine(sql: str, types: Sequence[str]) -> str:
    """The text as DuckDB takes it: `$n` cast to its type where one is known (DuckDB would take every text
    value for VARCHAR), and functions without `pg_catalog.`, where none can be added."""
    out: list[str] = []
    for token in _tokens(sql):
        if token.lastgroup == "param":
            number = int(token["param"])
            kind = types[number - 1] if 0 < number <= len(types) else ""
            out.append(f"CAST(${number} AS {kind})" if kind else token.group())
        elif token.lastgroup != "catalog":
            out.append(token.group())
    return "".join(out)
