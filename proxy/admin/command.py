"""What a console command is made of: columns, values, and the figures it may use. Types only.

A command is one file in `commands/` with a module-level `COMMAND`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from .stats import Stats
from .view import ControllerView

BOOL = 16
INT8 = 20
INT4 = 23
TEXT = 25
FLOAT8 = 701

Value = str | int | float | None
Column = tuple[str, int]
"""Name and type OID (one of those above)."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a command works on."""

    view: ControllerView
    stats: Stats


@dataclass(frozen=True, slots=True)
class Command:
    """`SHOW <name>`. The columns are fixed, so that they can be described before it runs."""

    name: str
    help: str
    columns: tuple[Column, ...]
    rows: Callable[[Context], Awaitable[Sequence[Sequence[Value]]]]


@dataclass(frozen=True, slots=True)
class Action:
    """`<name> ...`: changes something, and answers with rows."""

    name: str
    usage: str
    help: str
    columns: tuple[Column, ...]
    run: Callable[[Context, tuple[str, ...]], Awaitable[Sequence[Sequence[Value]]]]
    """Given the words behind the name; raises 42601 for what it doesn't understand."""


def timestamp(unix: float | None) -> str | None:
    """Unix seconds as PgBouncer shows a time, in UTC."""
    if unix is None:
        return None
    return dt.datetime.fromtimestamp(unix, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def yes_no(flag: bool) -> str:
    return "yes" if flag else "no"
