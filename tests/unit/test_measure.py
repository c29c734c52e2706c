"""Counting run times takes bounded space, whatever comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.dataplane import measure
from proxy.dataplane.measure import Measures
from proxy.sql.classify import Classifier
from proxy.sql.model import Classification
from proxy.topology.model import Health
from proxy.topology.snapshot import Drain, NodeView
from proxy.wire.codes import IDLE


class Worker:
    """What `Measures` asks of its worker; runs on node `columnar` are those of a columnar node."""

    def __init__(self) -> None:
        self.snapshot = SimpleNamespace(nodes={}, has_columnar=True, replicas=("replica1",))
        self.config = SimpleNamespace(routing=SimpleNamespace(analytic_time=0.1, analytic_cost=1.0))
        self.clock = SimpleNamespace(now=lambda: 1.0)
        self.asked: list[str] = []

    def is_columnar(self, node: str) -> bool:
        return node == "columnar"

    def send(self, message: object) -> None:
        """To the controller."""

    def spawn(self, question: Any, name: str) -> None:
        question.close()
        self.asked.append(name)


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Measures:
    for name in ("MAX_WATCHED", "MAX_COUNTED", "MAX_ESTIMATES"):
        monkeypatch.setattr(measure, name, 3)
    return Measures(cast(Any, Worker()))


def ran(measures: Measures, found: Classification, node: str, took: float) -> None:
    client = SimpleNamespace(settings=SimpleNamespace(dbname="shop"), shown={})
    server = SimpleNamespace(took=took, status=IDLE, pool=SimpleNamespace(node=node))
    measures.ended(cast(Any, client), cast(Any, server), cast(Any, SimpleNamespace(failed=False)), found)


def reads(count: int) -> list[Classification]:
    classifier = Classifier(100, 100_000)
    return [classifier.classify(f"SELECT count(*) FROM t{'x' * number}".encode()) for number in range(count)]


@pytest.mark.parametrize("node", ["replica1", "columnar"])
def test_many_statements(measures: Measures, node: str) -> None:
    for number, found in enumerate(reads(20)):
        ran(measures, found, node, 0.2)
        measures._asking = False  # the planner has answered
        assert len(measures.watched) <= 3
        assert len(measures._counts) <= 3
        assert len(measures._asked) <= 3
        if number % 5 == 4:
            measures.upkeep()
    # Of five statements in a second three are counted; the planner is asked of those on the columnar node.
    asked = cast(Any, measures._worker).asked
    assert asked == (["estimate"] * 12 if node == "columnar" else [])


def test_nothing_is_learned_while_a_node_is_away(measures: Measures) -> None:
    snapshot = cast(Any, measures._worker).snapshot
    for health, drain, learns in (
        (Health.ACTIVE, None, True),
        (Health.DOWN, None, False),
        (Health.ACTIVE, Drain(0, "command"), False),
    ):
        snapshot.nodes = {"r": NodeView(name="r", host="r", port=1, health=health, drain=drain)}
        measures.published()
        assert (measures.long < float("inf")) is learns
