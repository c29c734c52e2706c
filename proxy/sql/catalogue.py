"""What the names of one database mean for routing, beyond PostgreSQL's own: the artefact's type and its use.

A `Catalogue` is read from the node by the controller (`sql.inventory` makes it from the rows) and replaced whole.
A name stands for all that bear it: one that is written without a schema means the worst of its namesakes in any
schema, so the search_path is not asked. That costs a statement its replica only where two schemas have different
things by one name.

Source: PostgreSQL manual, chapters 10 (which function a call means), 38.7 (volatility), 27.4.2 (what a standby
refuses).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from . import builtins
from .model import Class, Classification, Uses

HARMLESS = ""
"""The reason of a name that is known and does nothing but read what every copy has."""

Names = dict[str, dict[str, str]]
"""name -> schema -> reason why it needs the primary, or HARMLESS."""


Marks = dict[str, list[str]]
"""name -> schemas in which it is marked."""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Names by which code is run that may leave something behind in the session (settings, locks, temporary tables
    ...), or that can't be read. All others that the catalogue has do not."""

    functions: Marks = {}
    read: Marks = {}
    """Relations, where they are read: views and policies."""
    written: Marks = {}
    """Relations, where they are changed: triggers, rules, defaults, constraints, and what cascades from there."""
    operators: Marks = {}
    fields: set[str] = set()
    """Functions that `relation.name` may call."""
    hidden: bool = False
    """Such code is reached without a name."""


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The names of one database."""

    version: str = ""
    """Mark of what it was read from: equal marks, equal content."""
    functions: Names = {}
    relations: Names = {}
    operators: Names = {}
    """Of extensions and users, whose names may be PostgreSQL's own too."""
    fields: dict[str, str] = {}
    """Functions that need the primary and that `relation.name` may call."""
    collated: dict[str, bool] = {}
    """Names of columns whose values are not ordered by their bytes (collations, enums), and whether they aren't even
    told apart by them (collations that aren't deterministic, types of extensions). "" stands for texts in the
    database's own collation, "*" for all of these."""
    hidden: str = ""
    """Why no read may leave the primary, whatever its text: code that isn't harmless is reached without a name, by a
    cast, a domain, an operator class, a type, or the planner (the expression of an index)."""
    watched: Watched = msgspec.field(default_factory=Watched)
    timed: set[str] = set()
    """Names of what may tell when the transaction began, or which one it is; of functions, relations and operators in
    any schema."""
    isolated: bool = False
    """Sessions may begin with another isolation level than READ COMMITTED."""


def bind(found: Classification, catalogue: Catalogue) -> Classification:
    """What a statement is in a database with this catalogue."""
    uses = found.uses
    if uses is None:
        return found
    bound = resolved(found, reason_in(catalogue, uses), is_watched(catalogue, uses))
    reads = bound.cls is Class.READ or bound.cls is Class.ANALYTIC
    if reads and not bound.fragile and _is_collated(catalogue.collated, uses):
        return bound.collated()
    return bound


def _is_collated(collated: Mapping[str, bool], uses: Uses) -> bool:
    """Whether a statement's answer depends on a collation that columnar nodes don't have."""
    return any(name in collated and (uses.orders or collated[name]) for name in uses.columns)


def resolved(found: Classification, trouble: str, watched: bool = False) -> Classification:
    """What a statement is whose names need the primary for this reason, or are HARMLESS; `watched`: the session is to
    be looked at afterwards."""
    best = found.at_best or found
    if not trouble:
        bound = best
    elif best.writes or best.cls is Class.SESSION:
        bound = found
    else:
        bound = _on_primary(found, trouble)
    return bound.watched() if watched else bound


def near(found: Classification, catalogue: Catalogue) -> Classification:
    """What a statement is where all goes to the primary anyhow. What its text shows to be unseen code stays that: it
    may have been made anew a moment ago."""
    uses = found.uses
    return found.watched() if uses is not None and is_watched(catalogue, uses) else found


def _on_primary(found: Classification, trouble: str) -> Classification:
    return Classification(
        Class.SESSION if trouble in _NO_WRITES else Class.WRITE,
        trouble,
        effects=found.effects,
        settings=found.settings,
        resets=found.resets,
        kind=found.kind,
        name=found.name,
        name_span=found.name_span,
        uses=found.uses,
    )


_NO_WRITES = frozenset(("foreign_table", "refused_by_standby", "unlogged"))
"""Reasons of what only the primary answers rightly, and writes nothing."""


def is_timed(catalogue: Catalogue, uses: Uses) -> bool:
    """Whether the answer of what uses these names may tell when its transaction began, or which one it is."""
    timed = catalogue.timed
    if not timed:
        return False
    used = (*uses.functions, *uses.operators, *uses.relations)
    return any(name in timed for _, name in used) or not timed.isdisjoint(uses.fields)


def is_watched(catalogue: Catalogue, uses: Uses) -> bool:
    """Whether the session has to be looked at after what uses these names. Of functions that the catalogue doesn't
    have the text alone tells."""
    marks = catalogue.watched
    return (
        marks.hidden
        or any(_is_marked(marks.functions, schema, name) for schema, name in uses.functions)
        or any(_is_marked(marks.operators, schema, name) for schema, name in uses.operators)
        or any(_is_marked(marks.read, schema, name) for schema, name in uses.relations)
        or any(_is_marked(marks.written, schema, name) for schema, name in uses.written)
        or not marks.fields.isdisjoint(uses.fields)
    )


def _is_marked(marks: Marks, schema: str, name: str) -> bool:
    schemas = marks.get(name)
    return schemas is not None and (not schema or schema in schemas)


def reason_in(catalogue: Catalogue, uses: Uses) -> str:
    """Why a statement that uses these names needs the primary; HARMLESS if it does not."""
    if catalogue.hidden:
        return catalogue.hidden
    for schema, name in uses.functions:
        reason = _of(catalogue.functions, schema, name)
        if reason is None:
            reason = HARMLESS if _is_own_function(schema, name) else "unknown_function"
        if reason:
            return reason
    for schema, name in uses.operators:
        reason = _of(catalogue.operators, schema, name)
        if reason is None:
            own = schema in _OWN and name in builtins.OPERATORS
            reason = HARMLESS if own else "unknown_operator"
        if reason:
            return reason
    for schema, name in uses.relations:
        reason = _of(catalogue.relations, schema, name)
        if reason is None:
            reason = HARMLESS if not schema and name in uses.ctes else "unknown_relation"
        if reason:
            return reason
    for name in uses.fields:
        if reason := catalogue.fields.get(name):
            return reason
    return HARMLESS


_OWN = ("", "pg_catalog")


def _is_own_function(schema: str, name: str) -> bool:
    """Whether PostgreSQL itself has such a function, and it is harmless."""
    if schema == "information_schema":
        return name.startswith("_pg_")  # what its views are made of
    return schema in _OWN and name in builtins.SAFE


def _of(known: Names, schema: str, name: str) -> str | None:
    """The worst that a name may mean; None if nothing bears it."""
    namesakes: Mapping[str, str] | None = known.get(name)
    if namesakes is None:
        return None
    if schema:
        return namesakes.get(schema)
    return worst(namesakes.values())


def worst(reasons: Collection[str]) -> str:
    """Any reason but HARMLESS, the first in the alphabet, so that the answer doesn't depend on an order."""
    return min((reason for reason in reasons if reason), default=HARMLESS)
