"""SHOW RULES: the rules of the configuration, and what came of them."""

from __future__ import annotations

from ..command import INT8, TEXT, Command, Context, Value, yes_no

_RESULTS = ("held", "same", "differs")
_COLUMNS = (("name", TEXT), ("shadow", TEXT), *((result, INT8) for result in _RESULTS))


async def _rows(context: Context) -> list[list[Value]]:
    values = context.stats.scrape().values
    return [
        [name, yes_no(rule.shadow), *(values.get(f"rule:{name}:{result}", 0) for result in _RESULTS)]
        for name, rule in context.view.config.rules.items()
    ]


COMMAND = Command("rules", "Rules: how often they held, or would have made a difference.", _COLUMNS, _rows)
