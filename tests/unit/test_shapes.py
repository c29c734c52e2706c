"""The list of shapes that standbys refuse: kept, bounded, told to all."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.controlplane.shapes import Shapes
from proxy.ipc.messages import KnownShapes, Learned
from proxy.testing import FakeClock


def learned(shape: str, database: str = "a", sqlstate: str = "25006") -> Learned:
    return Learned(database, shape, sqlstate, f"SELECT {shape}($1)")


def made(path: Path, most: int = 100) -> tuple[Shapes, list[KnownShapes]]:
    told: list[KnownShapes] = []
    return Shapes(path, told.append, FakeClock(), most), told


def test_workers_are_told_what_is_new_and_what_is_gone(tmp_path: Path) -> None:
    known, told = made(tmp_path / "shapes")
    known.learn(learned("x"))
    known.learn(learned("x"))
    known.learn(learned("y", "b", "0A000"))
    known.learn(learned("x", "b"))
    assert told == [
        KnownShapes("a", {"x": "25006"}),
        KnownShapes("b", {"y": "0A000"}),
        KnownShapes("b", {"y": "0A000", "x": "25006"}),
    ]
    told.clear()
    assert known.forget("x") == 2
    assert sorted(told, key=lambda one: one.database) == [KnownShapes("a", {}), KnownShapes("b", {"y": "0A000"})]
    assert (known.forget("x"), known.forget(), known.all()) == (0, 1, [])


def test_they_are_there_for_the_next_controller(tmp_path: Path) -> None:
    known, _ = made(tmp_path / "shapes")
    known.learn(learned("x"))
    known.learn(learned("y", "b"))
    after, told = made(tmp_path / "shapes")
    after.load()
    assert after.all() == known.all()
    after.tell("b")
    assert told == [KnownShapes("b", {"y": "25006"})]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]"])
def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "shapes").write_bytes(content)
    known, _ = made(tmp_path / "shapes")
    known.load()
    assert known.all() == []
    known.learn(learned("x"))
    assert len(known.all()) == 1


def test_a_directory_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    known, told = made(tmp_path / "nowhere" / "shapes")
    known.learn(learned("x"))
    assert told == [KnownShapes("a", {"x": "25006"})]


def test_the_oldest_goes_when_there_are_too_many(tmp_path: Path) -> None:
    known, told = made(tmp_path / "shapes", 3)
    for name in "vwxyz":
        known.learn(learned(name))
    assert [one.shape for one in known.all()] == ["x", "y", "z"]
    assert told[-1] == KnownShapes("a", {"x": "25006", "y": "25006", "z": "25006"})
