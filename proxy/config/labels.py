"""A rules file to fill in: each statement that was seen, for somebody to say what it is for; and which nobody has.

Owns the form of that file. A statement has a label if a rule names its shape; the rule's name is the label, and what
the rule says beside is up to whoever fills it in. Pure. Called by the command line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import ConfigError

MAX_TEXT = 200
"""Characters of a text that are shown."""
_HEAD = """\
# Statements that clients have sent, the most frequent first. Each is a rule to fill in: give it the name of what it
# is for in place of NAME, say what it needs (consistency, route, priority ...), and take away the marks in front.
# Several shapes may stand in one rule; one without results only gives a name, and makes an exception from the rules
# behind it.
"""


class Seen(NamedTuple):
    """A line of SHOW SHAPES SEEN."""

    database: str
    shape: str
    times: str
    cls: str
    tables: str
    consistency: str
    user: str
    since: str
    text: str


def form(seen: Iterable[Seen]) -> str:
    """The file."""
    return "\n".join((_HEAD, *(_section(one) for one in seen)))


def _section(one: Seen) -> str:
    facts = [f"{one.times} times in {one.database}", one.cls]
    if one.consistency:
        facts.append(f"consistency {one.consistency}")
    facts += [f"tables {one.tables or 'none'}", f"last by {one.user}"]
    return f'# {_plain("; ".join(facts))}\n# {_plain(one.text)}\n#[rules.NAME]\n#shape = ["{_plain(one.shape)}"]\n'


def labelled(text: str) -> set[str]:
    """Shapes that a file has rules for; ConfigError if it isn't one."""
    try:
        rules = tomllib.loads(text).get("rules", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from None
    return set(_shapes(rules))


def _shapes(rules: object) -> Iterator[str]:
    if not isinstance(rules, dict):
        raise ConfigError("rules: expected sections [rules.NAME]")
    for name, rule in rules.items():
        given = rule.get("shape", []) if isinstance(rule, dict) else None
        shapes = [given] if isinstance(given, str) else given
        if not isinstance(shapes, list) or not all(isinstance(shape, str) for shape in shapes):
            raise ConfigError(f"rules.{name}: expected a section whose `shape` is a text or a list of them")
        yield from shapes


def unlabelled(seen: Iterable[Seen], known: set[str]) -> list[str]:
    """A line for each shape that no rule names."""
    return [
        f"{_plain(one.shape)}: {_plain(one.cls)}, {one.times} times in {_plain(one.database)}, "
        f"last by {_plain(one.user)}: {_plain(one.text)}"
        for one in seen
        if one.shape not in known
    ]


def _plain(text: str) -> str:
    """On one line: names and texts are whatever clients have sent."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 3] + "..."
