"""What a reload changes, and which changes need a restart.

Pure; called by the controller at a reload, which logs the changes, and by `cli`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from .schema import Config, Section
from .settings import ROOT, Group, Setting, dotted, toml, values

S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs; texts are in TOML form, secrets as stars, empty is not set."""

    key: str
    old: str
    new: str
    restart: bool
    """It takes effect at the next start only."""


def diff(old: Config, new: Config) -> Iterator[Change]:
    """All changes in the order of the schema; of a section that came or went, each of its settings. The order of
    rules counts too."""
    before = {path: (setting, value) for path, setting, value in values(old)}
    after = {path: (setting, value) for path, setting, value in values(new)}
    for path in dict.fromkeys([*before, *after]):
        setting, _ = before.get(path) or after[path]
        was = before[path][1] if path in before else None
        now = after[path][1] if path in after else None
        if was != now:
            yield Change(dotted(path), setting.show(was), setting.show(now), setting.restart)
    was, now = ([name for name in one if name in old.rules and name in new.rules] for one in (old.rules, new.rules))
    if was != now:
        yield Change("rules", toml(was), toml(now), False)


def with_fixed(running: Config, wanted: Config) -> Config:
    """`wanted`, but what only a restart can change as it is in `running`: what holds after a reload."""
    return _with_fixed(ROOT, running, wanted)


def _with_fixed(group: Group, running: S, wanted: S) -> S:
    kept = {}
    for name, entry in group.children.items():
        if isinstance(entry, Setting) and entry.restart:
            kept[name] = getattr(running, name)
        elif isinstance(entry, Group):
            kept[name] = _with_fixed(entry, getattr(running, name), getattr(wanted, name))
    return msgspec.structs.replace(wanted, **kept)
