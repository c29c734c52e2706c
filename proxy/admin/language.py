"""The console's SQL: text into statements of words. Pure.

Knows comments, quotes and semicolons and no grammar beyond; what the words mean is for `answers` and the
command files. Called by `session`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..errors import TridentError

_TOKEN = re.compile(
    r"""
    (?P<space> \s+ | --[^\r\n]* )
    | (?P<comment> /\* )
    | (?P<quoted> '(?:[^']|'')*' | "(?:[^"]|"")*" )
    | (?P<word> [\w.$]+ )
    | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. `words` are its tokens: bare words in lower case, quoted ones with their quotes."""

    words: tuple[str, ...]
    text: str


def split(sql: str) -> list[Statement]:
    """The statements of a text, empty ones left out. An open quote or comment is 42601."""
    statements: list[Statement] = []
    words: list[str] = []
    start = pos = 0
    while pos < len(sql):
        token = _TOKEN.match(sql, pos)
        assert token is not None  # the last alternative takes any character
        pos = token.end()
        text = token.group()
        match token.lastgroup:
            case "comment":
                pos = _comment_end(sql, pos)
            case "word":
                words.append(text.lower())
            case "quoted":
                words.append(text)
            case "sign" if text in ("'", '"'):
                raise syntax_error(f"unterminated quoted string at position {pos}")
            case "sign" if text == ";":
                _finish(statements, words, sql[start : pos - 1])
                start, words = pos, []
            case "sign":
                words.append(text)
    _finish(statements, words, sql[start:])
    return statements


def syntax_error(message: str) -> TridentError:
    """What a text gets that the console does not understand."""
    return TridentError(message, sqlstate="42601", hint="Use SHOW HELP for the commands of this console.")


def take_name(words: Sequence[str], names: Collection[str], kind: str) -> tuple[str, tuple[str, ...]]:
    """The one of `names` that the words begin with, and the words behind it; 42704 if there is no such `kind`.

    A name in quotes is taken as it stands there; without them its case doesn't matter, and it may have signs in it.
    """
    known = {name.lower(): name for name in names} | {name: name for name in names}
    for end in range(len(words), 0, -1):
        text = "".join(words[:end])
        quote = text[0] if text[0] in "'\"" else ""
        text = text[1:-1].replace(quote * 2, quote) if quote else text
        if text in (names if quote else known):
            return known[text], tuple(words[end:])
    shown = words[0].strip("'\"") if words else ""
    raise TridentError(f'{kind} "{shown}" does not exist', sqlstate="42704")


def take_node(words: Sequence[str], names: Collection[str], usage: str) -> tuple[str, tuple[str, ...]]:
    """The node of a command whose words go on with NODE and its name, and the words behind; 42601 for other words."""
    if words[:1] != ("node",) or len(words) < 2:
        raise syntax_error(f"expected {usage}")
    return take_name(words[1:], names, "node")


def _finish(statements: list[Statement], words: list[str], text: str) -> None:
    if words:
        statements.append(Statement(tuple(words), text.strip()))


def _comment_end(sql: str, pos: int) -> int:
    """Behind the end of a comment whose opening ends at `pos`; comments nest (manual, 4.1.5)."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(sql, pos)
        if edge is None:
            raise syntax_error("unterminated comment")
        depth += 1 if edge.group() == "/*" else -1
        pos = edge.end()
    return pos
