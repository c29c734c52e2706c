"""What a client asks for besides its SQL: hints in comments, and the settings `pgtrident.*`.

Owns the two forms of a hint, the names and values that are understood, and where a comment counts as a hint: among the
comments in front of a text's first token or behind its last one, found by PostgreSQL's lexical rules (manual, 4.1).
It must not decide what is done about it (`routing.policy`), and the server gets the text as the client wrote it: what
is split off here only keeps hints out of the keys of caches. Pure; never raises. Not to be called for a session whose
texts can't be read (`routing.bind.readable`).

    /* pgtrident: route=primary key='user 42' */ SELECT ...
    SELECT ... /*pgtrident_route='primary',traceparent='00-...'*/        (sqlcommenter: values are percent-encoded)

Called by the data plane for each text in which MARK occurs, and for a client's settings when they change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from .cache import TextCache
from .lexical import MAX_TOKENS, tokens

MARK: Final = b"pgtrident"
"""A text without it has no hint: 0.05 us."""

ROUTES: Final = ("primary", "replica", "columnar")
CONSISTENCIES: Final = ("eventual", "session", "key", "global", "strong")
PRIORITIES: Final = ("low", "normal", "high")

MAX_KEY = 256
"""Bytes of a consistency key."""
MAX_NAME = 63
MAX_TOKEN = 256
MAX_COMMENTS = 4096
"""Bytes in front of a text in which its hint must end, and of a comment behind it."""
MAX_TEXT = 16 * 1024
"""Bytes; behind a longer text, which is never parsed either, no hint is looked for."""
MAX_IGNORED = 8
MAX_SHOWN = 64
MAX_TIMEOUT = 7 * 86400.0


class Hints:
    """What is asked for; "" and 0 where nothing is. Immutable; equal ones are mostly one object.

    Attributes:
        route: one of ROUTES.
        node: name of a node; whether there is one is not known here.
        consistency: one of CONSISTENCIES.
        key: whose writes are to be seen with consistency `key`.
        priority: one of PRIORITIES.
        timeout: seconds.
        after: a consistency token: what is read must not be older.
        debug: whether the client wants to be told of what is ignored (a setting only).
        ignored: what was not understood, at most MAX_IGNORED texts of MAX_SHOWN characters.
    """

    __slots__ = ("after", "consistency", "debug", "ignored", "key", "node", "priority", "route", "timeout")

    def __init__(
        self,
        *,
        route: str = "",
        node: str = "",
        consistency: str = "",
        key: str = "",
        priority: str = "",
        timeout: float = 0.0,
        after: str = "",
        debug: bool = False,
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.route = route
        self.node = node
        self.consistency = consistency
        self.key = key
        self.priority = priority
        self.timeout = timeout
        self.after = after
        self.debug = debug
        self.ignored = ignored

    def values(self) -> tuple[str, str, str, str, str, float, str, bool, tuple[str, ...]]:
        """All of it, to compare."""
        return (
            self.route,
            self.node,
            self.consistency,
            self.key,
            self.priority,
            self.timeout,
            self.after,
            self.debug,
            self.ignored,
        )

    def __repr__(self) -> str:
        return f"Hints{self.values()}"


class Split:
    """A text with a hint.

    Attributes:
        body: the text without the hint and the comments beside it: what is classified.
        start: where `body` begins in the text, in bytes. Places in the body's classification (`name_span`) are
            the body's own.
    """

    __slots__ = ("body", "hints", "start")

    def __init__(self, body: bytes, start: int, hints: Hints) -> None:
        self.body = body
        self.start = start
        self.hints = hints


class Splitter:
    """Splits texts and remembers them, at most `entries` of together `size` bytes."""

    __slots__ = ("_entries", "_known", "_texts")

    def __init__(self, entries: int, size: int) -> None:
        self._entries = max(1, entries)
        self._texts: TextCache[Split] = TextCache(entries, size)
        self._known: dict[tuple[object, ...], Hints] = {}

    def split(self, text: bytes) -> Split | None:
        """The text split, or None if it has no hint: then it is its own body. A text seen before costs 0.1 us."""
        if MARK not in text:
            return None
        found = self._texts.get(text)
        if found is None:
            found = split(text)
            if found is None:
                return None
            found.hints = self.one(found.hints)
            self._texts.put(text, found)
        return found

    def one(self, hints: Hints) -> Hints:
        """The one object for equal hints, as long as it is remembered; decisions are kept by it."""
        key = hints.values()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._entries:
                self._known.clear()
            known = self._known[key] = hints
        return known


def split(text: bytes) -> Split | None:
    """The same without remembering: 2-5 us, more where comments or dollar quotes stand inside the text."""
    if MARK not in text:
        return None
    first, comments = _leading(text)
    before = [pair for comment in comments for pair in _pairs(comment)]
    last, comments = _trailing(text, first)
    behind = [pair for comment in comments for pair in _pairs(comment)]
    if not before and not behind:
        return None
    start = first if before else 0
    return Split(text[start : last if behind else len(text)], start, _hints(before + behind, _COMMENT))


def of_settings(values: Mapping[str, str]) -> Hints | None:
    """What a session's settings `pgtrident.*` ask for; None if nothing. An empty value is none, as after RESET."""
    pairs = [
        (name[len(_PREFIX) :], value) for name, value in values.items() if value != "" and name.startswith(_PREFIX)
    ]
    return _hints(pairs, _SETTINGS) if pairs else None


# --- names and values --------------------------------------------------------------------------------

_PREFIX = "pgtrident."
_COMMENT = {name: name for name in ("route", "node", "consistency", "key", "priority", "timeout", "after")}
_SETTINGS = {
    "route": "route",
    "node": "node",
    "consistency": "consistency",
    "consistency_key": "key",
    "priority": "priority",
    "token": "after",
    "debug": "debug",
}
"""Name as it is written -> attribute of Hints."""

_WORDS: Mapping[str, tuple[str, ...]] = {"route": ROUTES, "consistency": CONSISTENCIES, "priority": PRIORITIES}
_LENGTHS = {"key": MAX_KEY, "node": MAX_NAME, "after": MAX_TOKEN}
_SWITCH = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
_TIMEOUT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|min|h)", re.ASCII)
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def _hints(pairs: Iterable[tuple[str, str]], known: Mapping[str, str]) -> Hints:
    """What the pairs ask for; of a name given twice the first counts. A name "" stands for text that is no pair."""
    hints = Hints()
    given: set[str] = set()
    ignored: list[str] = []
    for name, value in pairs:
        attribute = known.get(name, "")
        if attribute and attribute not in given and _take(hints, attribute, value):
            given.add(attribute)
        elif len(ignored) < MAX_IGNORED:
            ignored.append(_shown(f"{name}={value}" if name else value))
    hints.ignored = tuple(ignored)
    return hints


def _take(hints: Hints, attribute: str, value: str) -> bool:
    """Put a value where it belongs; False if it isn't one."""
    if attribute in _WORDS:
        value = value.lower()
        if value not in _WORDS[attribute]:
            return False
    elif attribute in _LENGTHS and not 0 < len(value.encode("utf-8", "surrogatepass")) <= _LENGTHS[attribute]:
        return False
    if attribute == "route":
        hints.route = value
    elif attribute == "node":
        hints.node = value
    elif attribute == "consistency":
        hints.consistency = value
    elif attribute == "key":
        hints.key = value
    elif attribute == "priority":
        hints.priority = value
    elif attribute == "after":
        hints.after = value
    elif attribute == "timeout":
        return _take_timeout(hints, value)
    else:
        switch = _SWITCH.get(value.lower())
        if switch is None:
            return False
        hints.debug = switch
    return True


def _take_timeout(hints: Hints, value: str) -> bool:
    """A duration with its unit: a bare number would be milliseconds to PostgreSQL and seconds to our configuration."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        return False
    seconds = float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds <= MAX_TIMEOUT:
        return False
    hints.timeout = seconds
    return True


def _shown(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:MAX_SHOWN])


# --- the two forms -----------------------------------------------------------------------------------

_OWN = re.compile(rb"\s*pgtrident:")
_OWN_PAIR = re.compile(
    r"""[\s,]*(?:([A-Za-z_][A-Za-z0-9_]*)=(?:'([^']*)'|"([^"]*)"|([^\s,'"]+))(?=[\s,]|\Z)|([^\s,]+))"""
)
_FOREIGN_PAIR = re.compile(rb"(?:^|,)\s*pgtrident_([A-Za-z0-9_]+)='((?:[^'\\]|\\.)*)'", re.DOTALL)
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def _pairs(comment: bytes) -> Iterator[tuple[str, str]]:
    """(name, value) of each pair in a comment's inside; nothing if it is no hint."""
    own = _OWN.match(comment)
    if own is not None:
        for match in _OWN_PAIR.finditer(comment[own.end() :].decode("utf-8", "replace")):
            value = match[2] or match[3] or match[4] or ""
            yield (match[1], value) if match[1] else ("", match[5])
    elif MARK in comment:
        for pair in _FOREIGN_PAIR.finditer(comment):
            value_bytes = _PERCENT.sub(_byte, _ESCAPED.sub(rb"\1", pair[2]))
            yield pair[1].decode("ascii"), value_bytes.decode("utf-8", "replace")


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes((int(match[1], 16),))


# --- which comments stand in front and behind --------------------------------------------------------

_BLANK = b" \t\n\r\f\v;"
_BEFORE = re.compile(rb"(?:[ \t\n\r\f\v;]++|--[^\n\r]*+)*")
_EDGE = re.compile(rb"/\*|\*/")
# Possessive are single sets only (see `lexical`). No alternative can take up where another one has: there is one way
# to read a text, and what it can't read (E'', dollar quotes, comments) is left to the tokeniser.
_PLAIN = re.compile(
    rb"""(?x)
    (?: [^'"$/\-A-Za-z_\x80-\xff]++
      | -(?!-) | /(?!\*)
      | [A-Za-z_\x80-\xff][0-9A-Za-z_$\x80-\xff]*+ (?!')
      | \$[0-9]++
      | '[^']*+'
      | "[^"]*+"
    )*
    """
)


def _leading(text: bytes) -> tuple[int, list[bytes]]:
    """Where the first token begins, and the insides of the comments in front of it."""
    comments: list[bytes] = []
    position = 0
    while True:
        blank = _BEFORE.match(text, position, MAX_COMMENTS)
        if blank is not None and blank.end() < MAX_COMMENTS:
            position = blank.end()
        if not text.startswith(b"/*", position):
            return position, comments
        end = _end_of_comment(text, position, MAX_COMMENTS)
        if end < 0:
            return position, comments
        comments.append(text[position + 2 : end - 2])
        position = end


def _trailing(text: bytes, start: int) -> tuple[int, list[bytes]]:
    """Where the last token ends, and the insides of the comments behind it; `start` is where the first one begins."""
    end = len(text.rstrip(_BLANK))
    if not text.endswith(b"*/", start, end) or text.find(MARK, start) < 0 or len(text) > MAX_TEXT:
        return len(text), []
    last = text.rfind(b"/*", start, end - 2)
    if last < 0:
        return len(text), []
    if text.find(b"*/", last + 2) == end - 2 and _PLAIN.fullmatch(text, start, last):
        return _without_blanks(text, last), [text[last + 2 : end - 2]]
    return _by_tokens(text, start)


def _by_tokens(text: bytes, start: int) -> tuple[int, list[bytes]]:
    """The same, exact for any text that PostgreSQL can read."""
    readable = text.decode("latin-1")  # a character for each byte, and a letter for each above 127
    position = start
    for count, (_, first, behind) in enumerate(tokens(readable)):
        if count > MAX_TOKENS:
            return len(text), []
        if readable[first] != ";":
            position = behind
    begin = -1
    comments: list[bytes] = []
    while position < len(text):
        blank = _BEFORE.match(text, position)
        if blank is not None and blank.end() > position:
            position = blank.end()
            continue
        end = _end_of_comment(text, position, len(text)) if text.startswith(b"/*", position) else -1
        if end < 0:
            return len(text), []
        if begin < 0:
            begin = position
        comments.append(text[position + 2 : end - 2])
        position = end
    return (_without_blanks(text, begin), comments) if comments else (len(text), [])


def _without_blanks(text: bytes, end: int) -> int:
    return len(text[:end].rstrip(b" \t\n\r\f\v"))


def _end_of_comment(text: bytes, position: int, limit: int) -> int:
    """The place behind a comment that opens at `position`; -1 if it is open at `limit`. They nest."""
    depth = 0
    while True:
        edge = _EDGE.search(text, position, limit)
        if edge is None:
            return -1
        depth += 1 if edge.group() == b"/*" else -1
        position = edge.end()
        if not depth:
            return position
