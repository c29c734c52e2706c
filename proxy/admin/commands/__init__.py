"""The commands of the console, one file each. A new file with a `COMMAND` is all that a command needs."""

from __future__ import annotations

import importlib
import pkgutil

from ..command import Action, Command


def load() -> dict[str, Command | Action]:
    """All commands by lower-case name, found by walking this package."""
    commands: dict[str, Command | Action] = {}
    for module in pkgutil.iter_modules(__path__):
        command: Command | Action = importlib.import_module(f"{__name__}.{module.name}").COMMAND
        if command.name in commands:
            raise ValueError(f"two console commands are named {command.name}")
        commands[command.name] = command
    return commands
