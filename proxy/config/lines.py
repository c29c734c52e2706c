"""On which line of a TOML text each key stands.

`tomllib` gives values without places, and a message about a value must name its line. This scanner
only has to walk text that `tomllib` has accepted, so it knows strings, brackets and line ends and
nothing about values. Pure; called by `load`.
"""

from __future__ import annotations

import re
import tomllib

Path = tuple[str, ...]

_TOKEN = re.compile(
    r'(?P<string>"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\')'
    r"|(?P<comment>\#[^\n]*)"
    r"|(?P<newline>\n)"
    r"|(?P<mark>[\[\]{},=.])"
    r"|(?P<bare>[A-Za-z0-9_:+-]+)"
    r"|[ \t\r]+",
    re.DOTALL,
)


def line_numbers(text: str) -> dict[Path, int]:
    """The line (from 1) of every table and key; of a table that is opened twice, the first."""
    lines: dict[Path, int] = {}
    table: Path = ()
    prefixes: list[Path] = []  # one for each open { of a value: the key that it belongs to
    key: list[str] = []
    line = 1
    brackets = 0  # open [ of a value
    in_value = False
    for match in _TOKEN.finditer(text + "\n"):  # a last line may lack its end
        token = match[0]
        inline = bool(prefixes) and brackets == 0
        match match.lastgroup:
            case "comment":
                pass
            case "newline" if in_value and not brackets and not prefixes:
                in_value, key = False, []
            case "newline" if not in_value and key:  # the end of a [table] line
                table, key = tuple(key), []
                _note(lines, table, line)
            case "bare" | "string" if not in_value:
                key += _names(token)
            case "mark" if token == "=" and not in_value:
                _note(lines, ((prefixes[-1] if prefixes else table) + tuple(key)), line)
                in_value = True
            case "mark" if in_value and token in "[]":
                brackets += 1 if token == "[" else -1
            case "mark" if token == "{" and in_value and brackets == 0:
                prefixes.append((prefixes[-1] if prefixes else table) + tuple(key))
                in_value, key = False, []
            case "mark" if token == "," and inline:
                in_value, key = False, []
            case "mark" if token == "}" and inline:
                prefixes.pop()
                in_value, key = True, []
        line += token.count("\n")
    return lines


def _note(lines: dict[Path, int], path: Path, line: int) -> None:
    for length in range(1, len(path) + 1):
        lines.setdefault(path[:length], line)


def _names(token: str) -> list[str]:
    """The parts of a key token: a quoted part is one name."""
    if token[0] in "\"'":
        return [tomllib.loads(f"x = {token}")["x"]]
    return [token]
