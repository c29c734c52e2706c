"""A read written anew in the dialect of a columnar node, with result columns of the types that PostgreSQL gives them.

Owns which casts keep values exactly. A statement that would need another one isn't transpiled: no digit of a number may
depend on the node. Called by `dataplane.capability`; sqlglot itself is used in `analyze` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .analyze import Rewrite, rewritten

_INT8, _INT2, _INT4, _FLOAT8, _NUMERIC, _DATE, _TIMESTAMP, _TIMESTAMPTZ = 20, 21, 23, 701, 1700, 1082, 1114, 1184
_WHOLE = frozenset((_INT2, _INT4, _INT8))
_NAMES = {
    _INT8: "int8",
    _INT2: "int2",
    _INT4: "int4",
    _FLOAT8: "float8",
    _NUMERIC: "numeric(38, 0)",
    _TIMESTAMP: "timestamp",
    _TIMESTAMPTZ: "timestamptz",
}
_FROM: dict[int, frozenset[int]] = {
    # to: from. Whole numbers stay what they are, or the cast fails; moments too, in the session's time zone.
    _INT2: frozenset((_INT4, _INT8)),
    _INT4: frozenset((_INT2, _INT8)),
    _INT8: frozenset((_INT2, _INT4)),
    _FLOAT8: _WHOLE,
    _NUMERIC: _WHOLE,
    _TIMESTAMP: frozenset((_DATE,)),
    _TIMESTAMPTZ: frozenset((_DATE, _TIMESTAMP)),
}


class Column(NamedTuple):
    """A result column: its name, and the OID of its type."""

    name: str
    oid: int


def transpiled(sql: bytes, dialect: str, columns: Sequence[Rewrite] = ()) -> bytes | None:
    """The statement in another dialect; None where that can't be had. `columns` say what is to be done to each."""
    try:
        text = rewritten(sql.decode(), dialect, columns)
    except UnicodeDecodeError:
        return None
    return None if text is None else text.encode()


def fixes(given: Sequence[Column], wanted: Sequence[Column]) -> list[Rewrite] | None:
    """What makes the columns of a columnar node those of PostgreSQL; None if nothing does that exactly."""
    if len(given) != len(wanted):
        return None
    rewrites = []
    for own, theirs in zip(given, wanted, strict=True):
        cast = ""
        if own.oid != theirs.oid:
            if own.oid not in _FROM.get(theirs.oid, ()):
                return None
            cast = _NAMES[theirs.oid]
        rewrites.append(Rewrite(theirs.name if own != theirs else "", cast))
    return rewrites
