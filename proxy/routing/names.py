"""Names with `*` in the configuration, and the tables that they mean. Pure. Called by `policy` and `columnar`."""

from __future__ import annotations

import re
from collections.abc import Iterable


def globs(given: Iterable[str] | None) -> re.Pattern[str] | None:
    """Of names with `*`; None where anything will do. No name at all fits nothing."""
    if given is None:
        return None
    alternatives = [".*".join(re.escape(part) for part in one.split("*")) for one in given]
    return re.compile("|".join(alternatives) if alternatives else r"(?!)", re.DOTALL)


class Tables:
    """Tables by name, or by schema.name; either with `*`."""

    __slots__ = ("_names", "_qualified")

    def __init__(self, given: Iterable[str]) -> None:
        self._names = globs([one for one in given if "." not in one])
        self._qualified = globs([one for one in given if "." in one])

    def has(self, schema: str, name: str) -> bool:
        """Whether this table is meant; `schema` is "" where the text gives none."""
        if self._names is not None and self._names.fullmatch(name):
            return True
        return bool(schema) and self._qualified is not None and bool(self._qualified.fullmatch(f"{schema}.{name}"))
