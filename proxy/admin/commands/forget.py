"""FORGET SHAPE 'x', FORGET SHAPES: what a standby has refused may be tried there again."""

from __future__ import annotations

from ..command import INT8, Action, Context, Value
from ..language import syntax_error

USAGE = "FORGET SHAPE 'shape' | SHAPES"


async def _run(context: Context, words: tuple[str, ...]) -> list[list[Value]]:
    match words:
        case ("shapes",):
            return [[context.view.forget_shapes("")]]
        case ("shape", shape) if shape.strip("'\""):
            return [[context.view.forget_shapes(shape.strip("'\""))]]
    raise syntax_error(f"expected {USAGE}")


COMMAND = Action("forget", USAGE, "Lets refused reads be tried on a standby again.", (("forgotten", INT8),), _run)
