"""SHOW CONFIG: every setting in force, its default, and whether a reload changes it. No secret is shown."""

from __future__ import annotations

import msgspec

from ...config.settings import Setting, dotted, values
from ..command import TEXT, Command, Context, Value, yes_no


async def _rows(context: Context) -> list[list[Value]]:
    return [
        [dotted(path), setting.show(value), _default(setting), yes_no(not setting.restart)]
        for path, setting, value in values(context.view.config)
    ]


def _default(setting: Setting) -> str:
    return "" if setting.default is msgspec.NODEFAULT else setting.show(setting.default)


COMMAND = Command(
    "config",
    "Settings in force; passwords are hidden.",
    (("key", TEXT), ("value", TEXT), ("default", TEXT), ("changeable", TEXT)),
    _rows,
)
