"""SHOW HELP: the commands there are."""

from __future__ import annotations

from ..command import TEXT, Action, Command, Context, Value
from . import load


async def _rows(_: Context) -> list[list[Value]]:
    return [
        [command.usage if isinstance(command, Action) else f"SHOW {command.name.upper()}", command.help]
        for command in load().values()
    ]


COMMAND = Command("help", "This list.", (("command", TEXT), ("shows", TEXT)), _rows)
