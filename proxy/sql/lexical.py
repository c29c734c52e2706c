"""PostgreSQL's lexical rules, as far as a first look needs them: tokens, first word, depth.

Owns the tokeniser. It knows no grammar and never fails: at something that PostgreSQL would refuse (an
open quote or comment) the tokens just end. It reads as with standard_conforming_strings on; where that is
off nothing is classified at all. Source: PostgreSQL manual, section 4.1 "Lexical Structure".

Called by `classify` and, for the parameters' places, by `analyze`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_NESTING = 200
MAX_CHAIN = 500
MAX_PARTS = 1500
"""Commas, semicolons, brackets and operator characters in a text: a tree of so many parts takes a parser 3-5 ms."""
MAX_TOKENS = 2500
SHORT = 400
"""A text of fewer characters can hold neither that nesting (closed) nor that chain: it isn't scanned."""

_START = r"A-Za-z_\x80-\U0010ffff"
# Possessive are single sets only: before 3.11.5 Python mistakes a possessive group that can match in several
# ways (gh-106052). A quote that ends a literal has no second one behind it, so the groups can't match otherwise.
_TOKEN = re.compile(
    rf"""
    (?P<blank>    [ \t\n\r\f\v]++ | --[^\n\r]*+ )
  | (?P<comment>  /\* )
  | (?P<string>   [eE]'(?:[^'\\]++|\\.|'')*'(?!')  |  (?:[bBxXnN]|[uU]&)?'(?:[^']++|'')*'(?!') )
  | (?P<dollar>   \$(?:[{_START}][0-9{_START}]*+)?\$ )
  | (?P<quoted>   (?:[uU]&)?"(?:[^"]++|"")*"(?!") )
  | (?P<open>     ['"] )
  | (?P<param>    \$[0-9]++ )
  | (?P<word>     [{_START}][0-9${_START}]*+ )
  | (?P<number>   [0-9][0-9A-Za-z_.]*+ )
  | (?P<operator> (?: (?!--|/\*) [-+*/<>=~!@#%^&|`?] )+ )
  | (?P<other>    . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_PARTS = b",;([=+-*/<>|.&~!@#%^:`?"
_LINKS = frozenset({"union", "intersect", "except", "join"})
_CHAINED = frozenset({"not", "is", "isnull", "notnull", "collate"})


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, end) of each token in str indices; blanks and comments are left out.

    Kinds: string, quoted (an identifier), param, word, number, operator, other (one character).
    """
    position = 0
    end = len(text)
    match = _TOKEN.match
    while position < end:
        found = match(text, position)
        if found is None:
            return
        kind = found.lastgroup or "other"
        start, position = position, found.end()
        if kind == "blank":
            continue
        if kind == "comment":
            position = _comment_end(text, position)
            if position < 0:
                return
            continue
        if kind == "dollar":
            close = text.find(found.group(), position)
            if close < 0:
                return
            position = close + len(found.group())
            kind = "string"
        elif kind == "open":
            return
        yield kind, start, position


def _comment_end(text: str, position: int) -> int:
    """Return the index behind a comment whose opening ends at `position`; -1 if it is open. They nest."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(text, position)
        if edge is None:
            return -1
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
    return position


def first_word(text: str) -> str:
    """Return the first word in lower case, behind opening parentheses; "" if there is none."""
    for kind, start, end in tokens(text):
        if kind == "word":
            return text[start:end].lower()
        if text[start] not in "(;":
            return ""
    return ""


def statement_name(text: str) -> tuple[int, int] | None:
    """Return (start, end) of the name in PREPARE name, EXECUTE name or DEALLOCATE [PREPARE] name.

    The grammar has accepted the text as one of them, or as EXPLAIN or CREATE TABLE AS of an EXECUTE. A U&""
    name includes its UESCAPE clause.
    """
    found = (token for token in tokens(text) if text[token[1]] != ";")
    keyword = next(found, None)
    if keyword is not None and text[keyword[1] : keyword[2]].lower() in ("explain", "create"):
        before = ""
        for kind, start, end in found:
            word = text[start:end].lower()
            if word == "execute" and kind == "word" and before in _BEFORE_EXECUTE:
                break
            before = word
    name = next(found, None)
    if keyword is None or name is None:
        return None
    after = next(found, None)
    if (
        after is not None
        and after[0] in ("word", "quoted")
        and text[keyword[1] : keyword[2]].lower() == "deallocate"
        and text[name[1] : name[2]].lower() == "prepare"
    ):
        name, after = after, next(found, None)
    start, end = name[1:]
    if name[0] == "quoted" and after is not None and text[after[1] : after[2]].lower() == "uescape":
        escape = next(found, None)
        end = escape[2] if escape is not None else end
    return start, end


_BEFORE_EXECUTE = frozenset(("", ")", "as", "analyze", "analyse", "verbose"))
"""What stands in front of the command, and not of a table or column of that name."""


def too_many_parts(sql: bytes) -> bool:
    """Whether a tree of this text would take a parser too long for an event loop."""
    return len(sql) > MAX_PARTS and len(sql) - len(sql.translate(None, _PARTS)) > MAX_PARTS


def trouble(text: str) -> str:
    """Return "too_deep" or "too_complex" if parsers must not get the text, else "".

    It is too deep if it nests deeper than MAX_NESTING or chains operators longer than MAX_CHAIN, since
    parsers recurse on both. AND, OR and commas make flat lists and so end a chain.
    """
    if len(text) < SHORT:
        return ""
    depth = chain = links = 0
    for count, (kind, start, end) in enumerate(tokens(text)):
        if count > MAX_TOKENS:
            return "too_complex"
        if kind == "operator":
            chain += 1
        elif kind == "other":
            mark = text[start]
            if mark in "([":
                depth += 1
            elif mark in ")]":
                depth -= 1
            elif mark == ":":
                chain += 1
            elif mark in ",;":
                chain = 0
        elif kind == "word" and end - start <= 9:
            word = text[start:end].lower()
            if word == "and" or word == "or":
                chain = 0
            elif word == "case":
                depth += 1
            elif word == "end":
                depth -= 1
            elif word in _CHAINED:
                chain += 1
            elif word in _LINKS:
                links += 1
        if depth > MAX_NESTING or chain > MAX_CHAIN or links > MAX_CHAIN:
            return "too_deep"
    return ""


_TIME_WORDS = re.compile(r"\b(?:now|today|tomorrow|yesterday)\b|\\", re.IGNORECASE)


def may_tell_time(text: str) -> bool:
    """Whether a literal of it may stand for a time by a word, which means the beginning of the transaction (manual,
    8.5.1.4); one that is written with escapes may too."""
    return _TIME_WORDS.search(text) is not None


_EXPLAIN_ROUTE = re.compile(
    rb"""(?xi)
    ( (?: \s | --[^\r\n]*+ | /\* (?: [^*/] | \*(?!/) | /(?!\*) )* \*/ )* )   # comments without others in them
    explain \s* \( \s* route \s* \)
    """
)
_EXPLAIN_ROUTE_WITHIN = 8192


def route_explained(sql: bytes) -> bytes | None:
    """The statement of EXPLAIN (ROUTE), with the comments in front of that; None for any other text. 0.3 us."""
    found = _EXPLAIN_ROUTE.match(sql, 0, _EXPLAIN_ROUTE_WITHIN)
    return found.group(1) + sql[found.end() :] if found is not None else None


_FOLD = bytes.maketrans(b"123456789", b"000000000")
_FOLDABLE = re.compile(
    rb"""(?x)
    (?: [^0-9'"$\\/\-A-Za-z_\x80-\xff] | -(?!-) | /(?!\*)   # punctuation that opens no comment
      | [A-Za-z_\x80-\xff]++ (?![0-9'$"])                    # a word without digits, not E'', U&"" ...
      | [0-9]++ (?: \.[0-9]*+ )? (?![A-Za-z_$\x80-\xff.])     # a number that runs into no word
      | '(?: [^'\\]++ | '' )*' (?!')                          # a plain quoted literal
      | "[^"0-9]*+"                                           # a quoted name without digits
    )*
    """
)
_FOLDED_MAX = 2048


def folded(sql: bytes) -> bytes:
    """The text with all digits made alike: the key by which texts that differ in numbers meet. 0.15 us."""
    return sql.translate(_FOLD)


def is_foldable(sql: bytes) -> bool:
    """Whether each digit of the text lies in a number or a plain quoted literal, so that any text with
    the same `folded` form has the same tokens but for the values of those."""
    return len(sql) <= _FOLDED_MAX and _FOLDABLE.fullmatch(sql) is not None


_LETTER = rb"A-Za-z_\x80-\xff"
_NUMBER = rb"[0-9]++ (?:\.[0-9]*+)? (?![%b$.])" % _LETTER
_STRING = rb"[^'\\]*+ (?:''[^'\\]*+)* ' (?!')"  # behind its opening quote
_REMARK = rb"[^*+][^*]*+ \*/"  # a comment behind its opening, without others in it
_MORE = rb"(?:, [ ]? (?: '%b | %b))* (?=\))" % (_STRING, _NUMBER)
# A piece: what counts, up to the mark by which a literal or comment opens (numbers have none), and what follows that,
# which doesn't. Where something else comes the rest of the text counts as it is.
_PIECE = re.compile(
    rb"""(?xs)
    ( (?: [^0-9'"$/\-%(letter)b]++ | -(?!-) | /(?!\*) | --[^\r\n]*+
        | [%(letter)b][0-9$%(letter)b]*+ | "[^"]*+" | \$[0-9]++ )*
      (?: '(?=%(string)b) | /\*(?=%(remark)b) | (?=%(number)b) | \Z | .++ ) )
    (?: (?:(?<=[ \n][iI][nN][ ]\(') | (?<=[ \n][iI][nN]\(')) %(string)b %(more)b
      | (?:(?<=[ \n][iI][nN][ ]\() | (?<=[ \n][iI][nN]\()) %(number)b %(more)b
      | (?<=')%(string)b | (?<=/\*)%(remark)b | %(number)b | \Z )
    """
    % {b"letter": _LETTER, b"string": _STRING, b"remark": _REMARK, b"number": _NUMBER, b"more": _MORE}
)


def skeleton(sql: bytes) -> bytes:
    """The text without what stands in its plain literals and comments, and with one element for each list of literals
    behind IN; "" for a text that has none. Texts with the same one have the same tokens otherwise, and the same tree
    but for the values of constants and the length of those lists (or they end in an open quote or comment, and no
    server runs them). 3-15 us."""
    return b"" if b"\0" in sql else b"\0".join(_PIECE.findall(sql))
