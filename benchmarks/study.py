"""A table of its own: systems set up for one question, beside the loads that all systems run.

Owns the medians. Called by `run`, which decides how often; the questions are in `shares`, `affinity` and `cost`.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import psycopg

from .fleet import Fleet
from .pgbench import Failed

Figures = Mapping[str, float | str]
"""What a row says, by column."""
Run = Callable[[], Mapping[str, Figures]]
"""Measures once what belongs to one system: a row, or some, by their names. Raises MISHAPS."""
MISHAPS = (Failed, RuntimeError, psycopg.Error)
FAILED = "failed"
"""The column of a row that says why there is nothing."""


@dataclass(frozen=True)
class Goal:
    """`value` is to be `limit` at least, or at most."""

    what: str
    value: float
    limit: float
    at_most: bool = False


def no_goals(rows: Mapping[str, Figures]) -> list[Goal]:
    return []


@dataclass(frozen=True)
class Study:
    """`pick` is what `--only` names it by; `about` stands over the table."""

    title: str
    pick: frozenset[str]
    about: str
    runs: Callable[[Fleet, contextlib.ExitStack], Mapping[str, Run]]
    """Sets up what takes turns, by name, to be taken down by the stack."""
    goals: Callable[[Mapping[str, Figures]], list[Goal]] = no_goals
    """What this release is to reach. Raises KeyError where a row is missing because it failed."""


def studied(study: Study, fleet: Fleet, repeats: int) -> dict[str, Figures]:
    """The rows: what takes turns does so as often as asked for, and has failed if it failed once."""
    seen: dict[str, list[Figures]] = defaultdict(list)
    failed: dict[str, Figures] = {}
    with contextlib.ExitStack() as stack:
        try:
            runs = study.runs(fleet, stack)
        except MISHAPS as error:
            return {"all": {FAILED: f"failed: {error}"}}
        for _ in range(repeats):
            for name, run in runs.items():
                if name in failed:
                    continue
                try:
                    for row, figures in run().items():
                        seen[row].append(figures)
                except MISHAPS as error:
                    failed[name] = {FAILED: f"failed: {error}"}
    return {row: medians(several) for row, several in seen.items()} | failed


def number(rows: Mapping[str, Figures], row: str, column: str) -> float:
    """Raises KeyError."""
    return float(rows[row][column])


def medians(several: Sequence[Figures]) -> Figures:
    """Of each column; of words the last."""
    found: dict[str, float | str] = {}
    for column, last in several[-1].items():
        values = [value for figures in several if isinstance(value := figures[column], int | float)]
        found[column] = median(values) if values else last
    return found
