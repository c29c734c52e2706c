"""The benchmark's figures: medians, ratios, goals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from typing import cast

from benchmarks.fleet import Fleet
from benchmarks.loads import Load, Measure, loads
from benchmarks.pgbench import Failed, quantile
from benchmarks.report import Row, goals, middle, study_table, table
from benchmarks.run import studies
from benchmarks.study import Figures, Goal, Run, Study, studied


def load(*pick: str) -> Load:
    return Load(" ".join(pick), frozenset(pick), "tps", 16, lambda system: Measure())


def test_median_is_taken_of_each_figure() -> None:
    runs = [Measure(rate=3, cpu_us=9), Measure(rate=1, cpu_us=7), Measure(rate=2, cpu_us=8)]
    assert middle(runs) == Measure(rate=2, cpu_us=8)


def test_one_failure_is_not_hidden_by_good_runs() -> None:
    assert middle([Measure(rate=1), Measure(failed="failed: x"), Measure(rate=1)]).failed == "failed: x"


def test_ratios_are_to_pgbouncer() -> None:
    text = table(Row(load("a"), {"pgbouncer": Measure(rate=200, cpu_us=20), "pgtrident": Measure(rate=150, cpu_us=25)}))
    assert "| pgtrident | 150 | 0.75 |  |  | 25 | 1.25 |  |" in text.splitlines()


def test_a_goal_is_missed_or_reached() -> None:
    def at(rate: float, cpu: float) -> str:
        measures = {"pgbouncer": Measure(rate=100, cpu_us=10), "pgtrident": Measure(rate=rate, cpu_us=cpu)}
        return goals([Row(load("select", "simple", "16"), measures)])

    assert at(86, 12).count("| yes |") == 2
    assert at(84, 14).count("| **no** |") == 2
    assert goals([Row(load("select", "simple", "16"), {"pgtrident": Measure(failed="failed: x")})]) == ""


def test_every_goal_has_its_load() -> None:
    rows = [
        Row(each, dict.fromkeys(("direct", "pgbouncer", "pgpool", "pgtrident"), Measure(1, 1, 1, 1, 1)))
        for each in loads(5, 1000, 10_000)
    ]
    # 4 selects with 3 goals each, 2 prepared, 2 copies, 2 kinds of idle clients.
    assert len(goals(rows).splitlines()) == 4 + 4 * 3 + 2 + 2 + 2


def study(runs: Mapping[str, Run]) -> Study:
    def set_up(fleet: Fleet, stack: ExitStack) -> Mapping[str, Run]:
        return runs

    def wanted(rows: Mapping[str, Figures]) -> list[Goal]:
        return [Goal("a's tps", float(rows["a"]["tps"]), 2)]

    return Study("title", frozenset(), "about", set_up, wanted)


def test_what_a_study_measures_takes_turns_and_gives_medians() -> None:
    turns = []
    values = iter((3.0, 1.0, 2.0))

    def a() -> Mapping[str, Figures]:
        turns.append("a")
        return {"a": {"tps": next(values), "where": f"turn {len(turns)}"}, "a: part": {"tps": 0.0}}

    def b() -> Mapping[str, Figures]:
        turns.append("b")
        raise Failed("it is | gone")

    told = study({"a": a, "b": b})
    rows = studied(told, cast(Fleet, None), 3)
    assert turns == ["a", "b", "a", "a"]
    assert study_table((told, rows)).splitlines()[-5:] == [
        "|  | tps | where |",
        "| --- | --- | --- |",
        "| a | 2 | turn 4 |",
        "| a: part | 0 |  |",
        "| b | failed: it is / gone |  |",
    ]
    assert "| a's tps | at least 2 | 2 | yes |" in goals([], [(told, rows)])
    assert goals([], [(told, {"a": {"failed": "failed: x"}})]) == ""


def test_every_goal_of_a_study_can_be_seen() -> None:
    rows: Mapping[str, Figures] = defaultdict(lambda: defaultdict(lambda: 1.0))
    # Shares with pauses, blocks of writers and replicas, CPU of three selects, own code, transactions of two updates.
    assert [len(each.goals(rows)) for each in studies(5)] == [0, 1, 0, 1, 1, 1, 3, 1, 2]


def test_quantile() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([], 0.5) == 0.0
