"""What a worker believes of catalogues: its own DDL, and that of others, which the board tells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import proxy.dataplane.worker
from proxy.dataplane.catalogues import ASK_RARELY, Catalogues
from proxy.dataplane.worker import Worker
from proxy.ipc import board
from proxy.ipc.messages import NeedCatalogue
from proxy.sql.catalogue import Catalogue
from proxy.sql.classify import classify
from proxy.testing import FakeClock

pytestmark = pytest.mark.skipif(
    not (proxy.dataplane.worker.__file__ or "").endswith(".py"),
    reason="what stands for a worker here is not compiled",
)

TEXT = classify(b"INSERT INTO item VALUES (1)")


def catalogues(path: Path, index: int, clock: FakeClock) -> tuple[Catalogues, list[Any]]:
    sent: list[Any] = []
    config = SimpleNamespace(routing=SimpleNamespace(cache_entries=10))
    worker = SimpleNamespace(clock=clock, send=sent.append, config=config)
    return Catalogues(cast(Worker, worker), board.Board(path, index)), sent


def test_ddl_through_another_worker_is_seen_by_upkeep(tmp_path: Path) -> None:
    clock = FakeClock()
    clock.advance(1)
    board.create(tmp_path / "board", 2)
    (here, _), (there, sent) = (catalogues(tmp_path / "board", index, clock) for index in (0, 1))
    binding = here.binding("db", split=False)
    here.learn("db", clock.boot_ns(), Catalogue(version="1"))
    here.upkeep()
    assert binding.of(TEXT) is TEXT
    clock.advance(1)
    there.changed("db")
    assert sent == []  # nobody has asked it for the names
    assert binding.of(TEXT) is TEXT
    here.upkeep()
    assert binding.of(TEXT).effects
    clock.advance(1)
    here.learn("db", clock.boot_ns(), None)
    here.upkeep()
    assert binding.of(TEXT) is TEXT


def test_where_no_read_waits_nobody_hurries(tmp_path: Path) -> None:
    clock = FakeClock()
    board.create(tmp_path / "board", 1)
    known, sent = catalogues(tmp_path / "board", 0, clock)
    plain, split = known.binding("db", split=False), known.binding("db", split=True)
    assert [(need.split, need.version) for need in sent] == [(False, ""), (True, "")]
    assert not plain.until
    assert split.until
    clock.advance(1)
    for binding in (plain, split):
        known.believed(binding)
    assert [cast(NeedCatalogue, need).split for need in sent[2:]] == [True]
    clock.advance(ASK_RARELY)
    known.believed(plain)
    assert [cast(NeedCatalogue, need).split for need in sent[3:]] == [False]
