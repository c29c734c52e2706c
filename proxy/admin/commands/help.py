"""SHOW HELP: the commands there are."""

from __future__ import annotations

from ..command import TEXT, Action, Command, Context, Value
from . import load


async def _rows(_: Context) -> list[list[Value]]:
    return [[_usage(command), command.help] for command in load().values()]


def _usage(command: Command | Action) -> str:
    return command.usage if isinstance(command, Action) else f"SHOW {command.name.replace('_', ' ').upper()}"


COMMAND = Command("help", "This list.", (("command", TEXT), ("shows", TEXT)), _rows)
