"""Which shapes of statements a worker has seen, and how often: what somebody has to say something about. Pure.

Counting happens where units are sent, on the classification, which all texts share that differ in numbers only (and
that are short and plain): one dict entry, 0.03 us. Shapes are made of that once a second (`fold`), of the one text that
was classified, and handed out when they are asked for (`take`).

Owns the counts until they are taken. It must not delay a unit: what would take too long stays for the next second, and
over a bound isn't counted. Only statements that rules can find by their shape are kept (`facts.SHAPED`). Called by
`dataplane.client` (`note`), `upkeep` (`fold`) and for a report (`take`).
"""

from __future__ import annotations

from typing import Any

from . import facts
from .cache import TextCache
from .grammar import normalized
from .model import Class, Classification

MAX_SHAPES = 5_000
"""Kept until they are taken; of more the least counted quarter goes."""
MAX_GROUPS = 1_000
"""Of database, user and consistency; what further ones send isn't counted."""
MAX_NOTED = 5_000
"""Classifications between two folds; more aren't counted."""
MAX_TEXT = 400
"""Characters of a text that are kept."""
MAX_TABLES = 20
BUDGET = 5_000
"""Microseconds that one fold may take, about; what is left is for the next one."""
_FINGERPRINT = 20
_DETAILS = 200


class Group:
    """What clients of one database, user and consistency have sent since the last fold."""

    __slots__ = ("_owner", "analytic", "consistency", "counts", "database", "user")

    def __init__(self, owner: Seen | None, database: str, user: str, consistency: str, analytic: str) -> None:
        self._owner = owner
        """None: what is sent isn't counted."""
        self.database = database
        self.user = user
        self.consistency = consistency
        self.analytic = analytic
        """The consistency of analytic reads."""
        self.counts: dict[Classification, int] = {}

    def note(self, found: Classification) -> None:
        """A text of this classification is sent."""
        counts = self.counts
        counted = counts.get(found)
        if counted is not None:
            counts[found] = counted + 1
        elif self._owner is not None and self._owner.admits():
            counts[found] = 1


class _Details:
    """What is shown of a shape."""

    __slots__ = ("tables", "text")

    def __init__(self, text: bytes) -> None:
        names = sorted(".".join(part for part in one if part) for one in facts.tables(text))
        self.tables = names[:MAX_TABLES]
        self.text = normalized(text.decode("utf-8", "replace"))[:MAX_TEXT]


class Seen:
    """All of one worker."""

    def __init__(self, shapes: int = MAX_SHAPES, noted: int = MAX_NOTED, groups: int = MAX_GROUPS) -> None:
        self._most = shapes
        self._most_noted = noted
        self._most_groups = groups
        self._groups: dict[tuple[str, str, str, str], Group] = {}
        self._uncounted = Group(None, "", "", "", "")
        self._noted = 0
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._shapes: TextCache[str] = TextCache(2 * shapes, 4 * 1024 * 1024)
        self._details: dict[str, _Details] = {}

    def group(self, database: str, user: str, consistency: str, analytic: str) -> Group:
        """Where clients of this kind count what they send; one for all of them."""
        key = (database, user, consistency, analytic)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= self._most_groups:
                return self._uncounted
            group = self._groups[key] = Group(self, *key)
        return group

    def admits(self) -> bool:
        """Whether one more classification may be noted before the next fold."""
        self._noted += 1
        return self._noted <= self._most_noted

    def fold(self, budget: int = BUDGET) -> None:
        """Make shapes of what has been sent."""
        self._noted = 0
        for group in self._groups.values():
            if not group.counts:
                continue
            counts, group.counts = group.counts, {}
            for found, count in counts.items():
                if budget <= 0:
                    group.counts[found] = count
                    self._noted += 1
                elif found.statements == 1 and found.kind in facts.SHAPED and found.text:
                    budget -= self._add(group, found, count)

    def _add(self, group: Group, found: Classification, count: int) -> int:
        """What it has cost, about."""
        cost = 1
        shape = self._shapes.get(found.text)
        if shape is None:
            shape = facts.shape(found.text)
            self._shapes.put(found.text, shape)
            cost += _FINGERPRINT
        if not shape:
            return cost
        key = (group.database, shape)
        row = self._rows.get(key)
        if row is None:
            details = self._details.get(shape)
            if details is None:
                if len(self._details) >= self._most:
                    self._details.clear()
                details = self._details[shape] = _Details(found.text)
                cost += _DETAILS
            self._make_room()
            row = self._rows[key] = {
                "database": group.database,
                "shape": shape,
                "count": 0,
                "tables": details.tables,
                "text": details.text,
            }
        row["count"] += count
        row["class"] = str(found.cls)
        reads = found.cls is Class.READ or found.cls is Class.ANALYTIC
        level = group.analytic if found.cls is Class.ANALYTIC else group.consistency
        row["consistency"] = level if reads else ""
        row["user"] = group.user
        return cost

    def _make_room(self) -> None:
        if len(self._rows) >= self._most:
            kept = sorted(self._rows.items(), key=lambda item: -item[1]["count"])[: self._most * 3 // 4]
            self._rows = dict(kept)

    def take(self) -> list[dict[str, Any]]:
        """One row a shape, counted since the last time: `database`, `shape`, `count`, `tables`, `class`, `consistency`
        ("" where it isn't a read), `user` (one of the last second in which it was seen), `text` (without constants)."""
        rows, self._rows = self._rows, {}
        return list(rows.values())
