"""RECONNECT NODE x: all servers of a node are opened anew, and the node is looked at at once."""

from __future__ import annotations

from ..command import TEXT, Action, Context, Value
from ..language import syntax_error, take_node

USAGE = "RECONNECT NODE name"


async def _run(context: Context, words: tuple[str, ...]) -> list[list[Value]]:
    view = context.view
    name, rest = take_node(words, [row["name"] for row in view.nodes()], USAGE)
    if rest:
        raise syntax_error(f"expected {USAGE}")
    view.reconnect(name)
    return [[name, str(row["health"])] for row in view.nodes() if row["name"] == name]


COMMAND = Action(
    "reconnect",
    USAGE,
    "Opens all servers of a node anew, and probes it at once.",
    (("node", TEXT), ("health", TEXT)),
    _run,
)
