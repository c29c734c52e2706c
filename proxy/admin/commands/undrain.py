"""UNDRAIN NODE x: it takes new work again, once it has been looked at.

(RESUME, in PgBouncer, ends a PAUSE of a database, which is another thing.)
"""

from __future__ import annotations

from ..command import TEXT, Action, Context, Value
from ..language import syntax_error, take_node

USAGE = "UNDRAIN NODE name"


async def _run(context: Context, words: tuple[str, ...]) -> list[list[Value]]:
    view = context.view
    name, rest = take_node(words, [row["name"] for row in view.nodes()], USAGE)
    if rest:
        raise syntax_error(f"expected {USAGE}")
    view.undrain(name)
    return [[name, str(row["health"])] for row in view.nodes() if row["name"] == name]


COMMAND = Action(
    "undrain",
    USAGE,
    "Gives a drained node new work again, once a probe has passed.",
    (("node", TEXT), ("health", TEXT)),
    _run,
)
