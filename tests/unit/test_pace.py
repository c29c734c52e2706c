"""How long the probes of a node take, summed up by the hour."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.health.pace import GRAIN, TELL_EVERY, ProbeTimes, Times, parse_times
from proxy.health.table import Seen

HOUR = int(TELL_EVERY)


def told(*probes: tuple[Seen, float]) -> Times | None:
    """What is told of an hour with these probes: the last of them is at its end."""
    times = ProbeTimes()
    last = len(probes) - 1
    for place, (seen, seconds) in enumerate(probes):
        found = times.note(seen, seconds, HOUR * place / last if last else 0.0)
        assert (found is None) or place == last
    return found


def test_they_are_told_once_an_hour() -> None:
    times = ProbeTimes()
    found = [times.note(Seen.PASS, 0.01, now) for now in range(50, 50 + 3 * HOUR, 5)]
    counts = [(place, one.count) for place, one in enumerate(found) if one is not None]
    assert counts == [(HOUR // 5, HOUR // 5 + 1), (2 * HOUR // 5, HOUR // 5)]


def test_what_counts() -> None:
    answered = [(Seen.PASS, n / 1000) for n in range(1, 101)]
    others = [(Seen.REFUSED, 9.0), (Seen.BUSY, 9.0), (Seen.TIMEOUT, 2.0), (Seen.TIMEOUT, 2.0)]
    times = told(*others, *answered)
    assert times is not None
    assert (times.count, times.timeouts, times.longest) == (100, 2, 0.1)
    assert times.p50 == pytest.approx(0.05, rel=0.05)
    assert times.p99 == pytest.approx(0.099, rel=0.05)
    assert told((Seen.TIMEOUT, 2.0), (Seen.REFUSED, 0.0)) is None


@given(st.lists(st.floats(0, 100), min_size=2, max_size=200))
def test_no_time_is_told_too_short(taken: list[float]) -> None:
    times = told(*((Seen.PASS, seconds) for seconds in taken))
    assert times is not None
    for share, found in ((0.5, times.p50), (0.99, times.p99)):
        exact = sorted(taken)[math.ceil(share * len(taken)) - 1]
        assert exact <= found * 1.000001 or found == times.longest
        assert found <= max(1e-5, exact * GRAIN * 1.000001)
    assert times.p50 <= times.p99 <= times.longest == max(taken)


def test_the_text_can_be_read_back() -> None:
    times = Times(720, 3, 0.00412, 0.0123, 1.5)
    assert str(times) == "count 720, timeouts 3, p50 4.12 ms, p99 12.30 ms, max 1500.00 ms"
    assert parse_times(str(times)) == times
    with pytest.raises(ValueError, match="not the times"):
        parse_times("pass; refused")
