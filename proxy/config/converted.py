"""What converters of other products' files share: the configuration that they build, and its TOML text.

Owns the form of the result; must not know any of those files. Pure. Called by `convert` and `convert_dm`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from .settings import ROOT, Entry, Group, Named, Setting, dotted, toml

Tree = dict[str, Any]


@dataclass(slots=True)
class Output:
    """The configuration as it grows, and what is to be said of it."""

    tree: Tree = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set(self, path: tuple[str, ...], value: Any) -> None:
        section = self.tree
        for part in path[:-1]:
            section = section.setdefault(part, {})
        section[path[-1]] = value


def whole(key: str, value: str, base: int = 10) -> int:
    """A whole number; ConfigError says of which key it was expected."""
    try:
        return int(value, base)
    except ValueError:
        raise ConfigError(f"{key}: expected a whole number, not {value!r}") from None


def node_name(address: tuple[str, int], taken: Collection[str]) -> str:
    """A name for the node at a host and port, unlike those that are taken."""
    host, port = address
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", host).strip("_") or "node"
    name = stem if port == 5432 else f"{stem}_{port}"
    while name in taken:
        name += "_"
    return name[:63]


def write(out: Output, source: str) -> str:
    """The TOML text; `source` says what it was made from."""
    lines = [f"# Made from {source}."]
    if out.notes:
        lines += ["# Not carried over, or to be looked at:"]
        lines += ["#   " + re.sub(r"[^\x20-\x7e]", "?", note) for note in out.notes]
    for path, section in _sections(ROOT, out.tree, ()):
        if path:
            lines += ["", f"[{dotted(path)}]"]
        lines += section
    return "\n".join(lines) + "\n"


def _sections(entry: Entry, tree: Tree, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each section with its lines, in the order of the schema."""
    if isinstance(entry, Named):
        for name, content in tree.items():
            yield from _sections(entry.item, content, (*path, name))
        return
    assert isinstance(entry, Group)
    lines = [
        f"{name} = {toml(tree[name], setting.unit)}"
        for name, setting in entry.children.items()
        if isinstance(setting, Setting) and name in tree
    ]
    if lines or (path and len(path) == 2 and isinstance(ROOT.children[path[0]], Named)):
        yield path, lines
    for name, child in entry.children.items():
        if not isinstance(child, Setting) and name in tree:
            yield from _sections(child, tree[name], (*path, name))
