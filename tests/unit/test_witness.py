"""The helper process for long texts: what a failing one may not do."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.dataplane import witness
from proxy.dataplane.witness import PAUSE, Witness
from proxy.dataplane.worker import Worker
from proxy.session.prepared import Statements
from proxy.sql.classify import Classifier
from proxy.sql.model import Class
from proxy.testing import FakeClock


class Owner:
    """What it needs of a worker."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.classifier = Classifier(100, 1_000_000)
        self.statements = Statements(b"_p")
        self.log = self
        self.warnings: list[str] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def now(self) -> float:
        return self.clock.now()

    def warning(self, event: str, **fields: Any) -> None:
        self.warnings.append(event)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        assert self.task is None or self.task.done()
        self.task = asyncio.create_task(work, name=name)


def long(head: str) -> bytes:
    return f"{head} FROM t WHERE b NOT IN ({', '.join(['12345'] * 500)})".encode()


FIRST, SECOND = long("SELECT count(*)"), long("SELECT max(a), count(*)")


@pytest.fixture
def owner() -> Owner:
    return Owner()


async def settled(owner: Owner) -> None:
    assert owner.task is not None
    await asyncio.wait_for(owner.task, 60)


@pytest.mark.parametrize("script", ["read line", "read line; echo nonsense; exec cat"])
async def test_one_that_fails_at_a_text_never_sees_it_again(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    python = sys.executable
    monkeypatch.setattr(sys, "executable", str(program))
    subject = Witness(cast(Worker, owner))
    subject.upkeep()
    assert owner.task is None, "nothing to do"
    found = owner.classifier.classify(FIRST)
    subject.upkeep()
    await settled(owner)
    assert owner.warnings == ["witness_failed"] and not owner.classifier.unheard
    assert owner.classifier.classify(FIRST) is found and found.cls is Class.READ

    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(witness, "IDLE", 0.0)
    owner.classifier.classify(SECOND)
    task = owner.task
    subject.upkeep()
    assert owner.task is task, "it is left alone for a while"
    owner.clock.advance(PAUSE)
    subject.upkeep()
    assert owner.task is not task
    await settled(owner)
    assert owner.classifier.classify(SECOND).cls is Class.ANALYTIC
    assert owner.classifier.classify(FIRST) is found and owner.warnings == ["witness_failed"]


@pytest.mark.parametrize("program", ["/nonexistent", "/bin/false"])
async def test_without_a_program_there_is_one_try_at_a_time(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    subject = Witness(cast(Worker, owner))
    owner.classifier.classify(FIRST)
    subject.upkeep()
    await settled(owner)
    subject.upkeep()
    assert owner.warnings == ["witness_failed"] and owner.task is not None and owner.task.done()


async def test_a_stop_in_the_middle_ends_it(owner: Owner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program"
    told = tmp_path / "told"
    os.mkfifo(told)
    program.write_text(f"#!/bin/sh\nread line; echo it has come > {told}; exec tail -f /dev/null\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    subject = Witness(cast(Worker, owner))
    owner.classifier.classify(FIRST)
    subject.upkeep()
    assert owner.task is not None
    assert await asyncio.to_thread(told.read_text)
    process = subject._process
    subject.stop()
    await settled(owner)
    assert process is not None and process.returncode is not None
