"""SHOW VERSION: of the program."""

from __future__ import annotations

from ... import __version__
from ..command import TEXT, Command, Context, Value


async def _rows(_: Context) -> list[list[Value]]:
    return [[f"pgtrident {__version__}"]]


COMMAND = Command("version", "Version of the program.", (("version", TEXT),), _rows)
