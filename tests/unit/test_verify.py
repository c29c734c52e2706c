"""What keeps a copy that comes back from being active."""

from __future__ import annotations

import pytest

from proxy.health.verify import HIDDEN, objection
from proxy.topology.model import Role


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({}, ""),
        ({"receiver": None}, "stream"),
        ({"receiver": "startup"}, ""),
        ({"timeline": 1}, "timeline 1"),
        ({"timeline": 3}, "timeline 3"),
        ({"timeline": 0}, ""),
        ({"primary_timeline": 0}, ""),
        # By the control file alone only a later one is sure.
        ({"receiver": HIDDEN, "timeline": 1}, ""),
        ({"receiver": HIDDEN, "timeline": 3}, "timeline 3"),
        ({"within_lag": False}, "lag"),
        ({"role": Role.COLUMNAR, "receiver": None}, ""),
        ({"role": Role.COLUMNAR, "receiver": None, "within_lag": False}, "lag"),
    ],
)
def test_objections(facts: dict[str, object], word: str) -> None:
    usual = {"receiver": "streaming", "timeline": 2, "primary_timeline": 2, "within_lag": True}
    said = objection(**{"role": Role.REPLICA, **usual, **facts})  # type: ignore[arg-type]
    assert word in said
    assert bool(word) == bool(said)
