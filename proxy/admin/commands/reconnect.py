"""RECONNECT NODE x: all servers of a node are opened anew, and the node is looked at at once."""

from __future__ import annotations

from ..command import TEXT, Action, Context, Value
from ..language import syntax_error, take_name

USAGE = "RECONNECT NODE name"


async def _run(context: Context, words: tuple[str, ...]) -> list[list[Value]]:
    view = context.view
    if words[:1] != ("node",) or len(words) < 2:
        raise syntax_error(f"expected {USAGE}")
    name, rest = take_name(words[1:], [row["name"] for row in view.nodes()], "node")
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
