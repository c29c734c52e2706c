"""What a columnar node understands, by the configuration, and what its errors teach. Pure.

Owns the question whether a statement may be sent to a node at all, before anything is asked of that. What holds for all
nodes that aren't PostgreSQL themselves is `sql.portable`'s word (`Classification.fragile`). Called by
`dataplane.capability`.
"""

from __future__ import annotations

from ..config.schema import Node
from ..sql.model import Classification
from .names import Tables, globs

AS_IT_IS = frozenset(("any", "postgres"))
"""Dialects to which nothing is transpiled."""
CAPABILITY = frozenset(("42883", "42704", "42601", "0A000"))
"""SQLSTATEs by which a node says that it can't run such a statement: undefined_function, undefined_object,
syntax_error, feature_not_supported."""
LACKING = 3600.0
"""Seconds for which statements of a shape are not sent to a node that can't run it, unless that turns active anew."""
KNOWN = 300.0
"""Seconds for which holds what was found out of one text: tables change."""
DOUBTFUL = 5.0
"""The same where it could not be found out: resources and connections come and go."""
_OF_THE_TEXT = ("22", "42")
"""Classes of SQLSTATEs that come from the text and its data: a node will say that again."""


class Engine:
    """One columnar node.

    Attributes:
        dialect: the SQL that it takes (`nodes.NAME.dialect`).
        simple: it takes statements by the simple query protocol only.
    """

    __slots__ = ("_lacks", "_tables", "dialect", "simple")

    def __init__(self, node: Node) -> None:
        self.dialect = node.dialect
        self.simple = node.protocol == "simple"
        self._lacks = globs(node.lacks)
        self._tables = Tables(node.tables) if node.tables else None

    @property
    def transpiles(self) -> bool:
        return self.dialect not in AS_IT_IS

    def missing(self, found: Classification, extended: bool) -> str:
        """Why a statement isn't for this node; "" if it may be. `extended`: it comes by the extended query protocol."""
        if extended and self.simple:
            return "it speaks the simple query protocol only"
        if found.fragile and self.dialect != "postgres":
            return "its answer may be another one there"
        uses = found.uses
        if uses is None:
            return ""
        if self._lacks is not None:
            for _, name in (*uses.functions, *uses.operators):
                if self._lacks.fullmatch(name):
                    return f"it lacks {name}"
        if self._tables is not None:
            for schema, name in uses.relations:
                if not (self._tables.has(schema, name) or (not schema and name in uses.ctes)):
                    return f"it hasn't {name}"
        return ""


def lesson(sqlstate: str) -> tuple[bool, float]:
    """What an error of a columnar node teaches: whether of all texts of the shape or of this one, and for how many
    seconds; 0 is nothing."""
    if sqlstate in CAPABILITY:
        return True, LACKING
    return False, KNOWN if sqlstate[:2] in _OF_THE_TEXT else 0.0
