"""Learning whether reads are analytic, by run times and the planner's estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.schema import Config, Routing
from proxy.controlplane.measured import MeasuredShapes
from proxy.ipc.messages import KnownClasses, Measured, Side
from proxy.routing.bind import Binding, shape_of
from proxy.routing.measured import LASTS, NONE, RUNS, Shape, Times
from proxy.sql.catalogue import Catalogue
from proxy.sql.classify import Classifier
from proxy.sql.model import Class
from proxy.testing import FakeClock

FEW, ENOUGH = RUNS - 1, RUNS


def times(runs: int, mean: float) -> Times:
    return NONE.plus(runs, runs * mean, 0)


@pytest.mark.parametrize(
    "replica, columnar, cost, learned",
    [
        ((0, 0), (0, 0), -1, ""),
        # Both sides: the faster one, whatever the planner says.
        ((ENOUGH, 0.5), (ENOUGH, 0.05), 1, "analytic"),
        ((ENOUGH, 0.5), (ENOUGH, 0.6), 1e9, "read"),
        ((ENOUGH, 0.5), (FEW, 0.6), -1, "analytic"),
        # Replicas alone: long, often enough.
        ((ENOUGH, 0.1), (0, 0), -1, "analytic"),
        ((FEW, 9), (0, 0), -1, ""),
        ((ENOUGH, 0.05), (0, 0), -1, ""),
        # The planner.
        ((0, 0), (0, 0), 9_999, "read"),
        ((0, 0), (0, 0), 10_000, "analytic"),
        ((0, 0), (ENOUGH, 5), 10, "read"),
        ((FEW, 0.5), (0, 0), 10, "read"),
    ],
)
def test_what_is_learned(replica: tuple[int, float], columnar: tuple[int, float], cost: float, learned: str) -> None:
    shape = Shape("d", "s", "", times(*replica), times(*columnar), cost)
    assert shape.learned(0.1, 10_000) == learned
    if cost >= 0 and (replica[0] < RUNS or columnar[0] < RUNS):
        assert shape.learned(0.1, 0) in ("", "analytic")  # nobody asked the planner


def test_old_runs_count_for_less() -> None:
    slow = NONE.plus(64, 64 * 1.0, 1)
    assert slow.plus(64, 64 * 0.1, 2).mean == pytest.approx(0.55)
    assert slow.plus(1, 0.0, 2).runs <= 64
    for _ in range(20):
        slow = slow.plus(10, 0.1, 3)
    assert slow.mean < 0.1


def test_what_is_too_old_is_forgotten() -> None:
    shape = Shape("d", "s", "", NONE.plus(3, 3, 100), NONE.plus(3, 1, 200), 5.0, 300)
    assert not shape.expire(100 + LASTS)
    assert shape.replica.runs == 3
    assert not shape.expire(101 + LASTS)
    assert (shape.replica, shape.columnar.runs, shape.cost) == (NONE, 3, 5.0)
    assert shape.expire(301 + LASTS)


class Store:
    def __init__(self, path: Path, **routing: float) -> None:
        self.told: list[KnownClasses] = []
        self.clock = FakeClock()
        self.config = Config(routing=Routing(**routing))  # type: ignore[arg-type]
        self.shapes = MeasuredShapes(path, lambda: self.config, self.told.append, self.clock, 3)

    def note(self, side: Side, amount: float, runs: int = RUNS, shape: str = "s", database: str = "d") -> None:
        self.shapes.note(Measured(database, shape, "SELECT $1", side, runs, amount))

    def classes(self) -> dict[str, str]:
        return {shape.shape: learned for shape, learned in self.shapes.all()}


def test_workers_are_told_what_changes(tmp_path: Path) -> None:
    store = Store(tmp_path / "measured")
    store.note("replica", 3.0)
    assert store.told == [KnownClasses("d", {"s": "analytic"})]
    store.note("replica", 3.0)
    assert len(store.told) == 1
    store.note("columnar", 30.0)
    assert store.told[-1] == KnownClasses("d", {"s": "read"})
    # A columnar node comes back: it is tried once more.
    store.shapes.columnar_came()
    assert store.told[-1] == KnownClasses("d", {"s": "analytic"})
    store.clock.advance(LASTS + 1)
    store.shapes.judge()
    assert store.told[-1] == KnownClasses("d", {}) and store.classes() == {}


def test_thresholds_come_from_the_configuration(tmp_path: Path) -> None:
    store = Store(tmp_path / "measured", analytic_cost=100)
    store.note("planner", 99.0)
    assert store.classes() == {"s": "read"}
    store.config = Config(routing=Routing(analytic_cost=50))
    store.shapes.judge()
    assert store.classes() == {"s": "analytic"}
    store.config = Config(routing=Routing(analytic_cost=0))
    store.shapes.judge()
    assert store.classes() == {"s": ""}


def test_it_is_kept_bounded_and_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path / "measured")
    for name in "abcd":
        store.note("replica", 3.0, shape=name)
    assert list(store.classes()) == ["b", "c", "d"]
    store.shapes.keep()
    again = Store(tmp_path / "measured")
    again.shapes.load()
    assert again.classes() == dict.fromkeys("bcd", "analytic")
    assert again.told == [KnownClasses("d", dict.fromkeys("bcd", "analytic"))]
    assert again.shapes.forget("c") == 1
    assert again.told[-1] == KnownClasses("d", dict.fromkeys("bd", "analytic"))
    assert again.shapes.forget() == 2
    (tmp_path / "measured").write_text("[{")
    broken = Store(tmp_path / "measured")
    broken.shapes.load()
    assert broken.classes() == {}


@pytest.mark.parametrize(
    "sql, learned, cls",
    [
        (b"SELECT count(*) FROM t", "read", Class.READ),
        (b"SELECT count(*) FROM t", "analytic", Class.ANALYTIC),
        (b"SELECT * FROM t WHERE a > 7", "analytic", Class.ANALYTIC),
        (b"SELECT * FROM t WHERE a > 7", "read", Class.READ),
        (b"SELECT * FROM t FOR UPDATE", "analytic", Class.WRITE),
        (b"INSERT INTO t VALUES (1)", "read", Class.WRITE),
        (b"SHOW work_mem", "analytic", Class.SESSION),
        (b"SELECT frobnicate(1)", "analytic", Class.WRITE),
    ],
)
def test_only_plain_reads_change_their_class(sql: bytes, learned: str, cls: Class) -> None:
    binding = Binding("d", 100, 0)
    binding.learn(Catalogue(version="1", relations={"t": {"public": ""}}), 1)
    found = Classifier(100, 10_000).classify(sql)
    before = binding.of(found).cls
    binding.learned({shape_of(sql): learned})
    assert binding.of(found).cls is cls
    binding.learned({})
    assert binding.of(found).cls is before
