"""DRAIN NODE x: the node takes no new work, so that somebody can work on it."""

from __future__ import annotations

from ...config.units import parse_duration
from ..command import TEXT, Action, Context, Value, timestamp
from ..language import syntax_error, take_node

USAGE = "DRAIN NODE name [time]"
_COLUMNS = (("node", TEXT), ("drain", TEXT), ("until", TEXT))


async def _run(context: Context, words: tuple[str, ...]) -> list[list[Value]]:
    view = context.view
    name, rest = take_node(words, [row["name"] for row in view.nodes()], USAGE)
    seconds = None
    if rest:
        try:
            seconds = parse_duration("".join(rest).strip("'\""))
        except ValueError:
            raise syntax_error(f"expected {USAGE}, with a time such as 30s or 5min") from None
    view.drain(name, seconds)
    row = next(row for row in view.nodes() if row["name"] == name)
    return [[name, row["drain"], timestamp(row["drain_until"])]]


COMMAND = Action(
    "drain", USAGE, "Gives a node no new work, and ends what is open there when the time is up.", _COLUMNS, _run
)
