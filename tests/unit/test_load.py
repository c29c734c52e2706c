"""Limits of load: beyond them only for long enough, and back only well below."""

from __future__ import annotations

from proxy.health.load import Bound, LoadGate


def walk(bound: Bound, values: list[float | None], step: float = 5.0) -> list[bool]:
    gate = LoadGate()
    return [
        "cpu" in gate.observe({} if value is None else {"cpu": value}, {"cpu": bound}, number * step)
        for number, value in enumerate(values)
    ]


def test_a_limit_has_hysteresis() -> None:
    assert walk(Bound(75, 60), [70, 75, 76, 70, 61, 60, 59, 74]) == [False, False, True, True, True, True, False, False]


def test_a_peak_is_nothing() -> None:
    bound = Bound(85, 70, 60)
    assert walk(bound, [90, 90, 80, 90], step=30.0) == [False] * 4
    assert walk(bound, [90, 90, 90, 80], step=30.0) == [False, False, True, True]


def test_what_cannot_be_read_stays_as_it_was() -> None:
    assert walk(Bound(75, 60), [80, None, None, 50, None]) == [True, True, True, False, False]


def test_a_limit_that_is_taken_away() -> None:
    gate = LoadGate()
    assert gate.observe({"cpu": 80.0, "locks": 60.0}, {"cpu": Bound(75, 60), "locks": Bound(50, 25)}, 0.0) == {
        "cpu": 80.0,
        "locks": 60.0,
    }
    assert gate.observe({"cpu": 80.0}, {"cpu": Bound(0, 0)}, 5.0) == {}
