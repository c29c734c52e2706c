"""What happened is kept, whatever becomes of the file, and nothing waits for it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.controlplane import history as module
from proxy.controlplane.history import Event, History, read

from ..support.proxy import ROOT
from ..support.waiting import eventually


def event(number: int, **facts: str) -> Event:
    return Event(float(number), facts.pop("kind", "health"), **facts)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", 0.02)
    monkeypatch.setattr(module, "PATIENCE", 0.02)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    made = History(path, keep=1e12)
    made.start()
    yield made
    made.stop()


def kept(path: Path) -> list[float]:
    try:
        return [found.at for found in read(path)]
    except sqlite3.Error:
        return []


def test_each_event_is_in_the_file_at_once(history: History, path: Path) -> None:
    told = Event(1.5, "health", "replica1", "active", "suspect", "refused", "connection refused; timeout", "")
    history.note(told)
    assert eventually(lambda: kept(path))
    assert read(path) == [told] == history.find()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_asked_for(history: History, path: Path) -> None:
    for number in range(10):
        history.note(event(number, node=f"n{number % 2}", kind="health" if number < 5 else "config"))
    history.stop()
    assert [found.at for found in read(path, since=7)] == [7, 8, 9]
    assert [found.at for found in read(path, node="n1", kind="config")] == [5, 7, 9]
    assert [found.at for found in history.find(limit=2)] == [8, 9]


def test_measurements_are_told_to_who_asks_for_them(history: History, path: Path) -> None:
    history.note(event(1))
    history.note(event(2, kind="probe"))
    for find in (history.find, lambda **asked: read(path, **asked)):
        assert eventually(lambda: len(kept(path)) == 1)
        assert [found.at for found in find()] == [1]
        assert [found.at for found in find(kind="probe")] == [2]
        history.stop()


def test_it_goes_on_in_the_same_file(history: History, path: Path) -> None:
    history.note(event(1))
    history.stop()
    another = History(path, keep=1e12)
    another.note(event(2))  # before it has begun
    another.start()
    another.stop()
    assert kept(path) == [1, 2]


def test_what_is_old_is_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRIM_EVERY", 1)
    monkeypatch.setattr(module, "MAX_EVENTS", 5)
    history = History(path, keep=100.0)
    history.start()
    for number in (1, 2, 150, 151):
        history.note(event(number))
    assert eventually(lambda: kept(path) == [150, 151])
    for number in range(200, 220):
        history.note(event(number))
    history.stop()
    assert kept(path) == [215, 216, 217, 218, 219]


def test_a_locked_file(history: History, path: Path) -> None:
    history.note(event(1))
    assert eventually(lambda: kept(path))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    history.note(event(2))
    assert [found.at for found in history.find()] == [2]  # the file can't be read either
    holder.execute("ROLLBACK")
    holder.close()
    assert eventually(lambda: kept(path) == [1, 2])


def test_a_file_that_is_taken_away(history: History, path: Path) -> None:
    history.note(event(1))
    assert eventually(lambda: kept(path))
    path.unlink()
    history.note(event(2))
    assert eventually(lambda: kept(path) == [2])


def test_a_damaged_file_is_set_aside(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    history = History(path, keep=1e12)
    history.start()
    history.note(event(1))
    history.stop()
    assert kept(path) == [1]
    assert path.with_name("history.damaged").read_bytes().startswith(b"no database")


def test_without_a_place_to_write_the_last_events_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    history = History(tmp_path / "missing" / "history", keep=1e12)
    history.start()
    for number in range(10):
        history.note(event(number))
    assert [found.at for found in history.find()] == [7, 8, 9]
    (tmp_path / "missing").mkdir()
    assert eventually(lambda: kept(tmp_path / "missing" / "history") == [7, 8, 9])
    history.stop()


FULL = """
import resource, sys, time
from pathlib import Path
from proxy.controlplane import history as module
module.RETRY = 0.02
path = Path(sys.argv[1])
history = module.History(path, keep=1e12)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
history.start()
for number in range(50):
    history.note(module.Event(float(number), "health", seen="x" * 1000))
while not history._failed:
    time.sleep(0.01)
assert [event.at for event in history.find()] == [float(number) for number in range(50)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
while history._waiting:
    time.sleep(0.01)
history.stop()
"""


def test_a_full_disk(path: Path) -> None:
    """As far as a file may grow: it can't be written then, and is written on when it can."""
    subprocess.run([sys.executable, "-c", FULL, str(path)], check=True, timeout=30, cwd=ROOT)
    assert kept(path) == list(range(50))


KILLED = """
import os, signal, sys, time
from pathlib import Path
from proxy.controlplane import history as module
history = module.History(Path(sys.argv[1]), keep=1e12)
history.start()
for number in range(10_000):
    history.note(module.Event(float(number), "health"))
    if number == 200:
        while len(history._waiting) > 100:
            time.sleep(0.001)
        print(number - len(history._waiting), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_controller_that_is_killed(path: Path) -> None:
    """What was written stays, and the next one goes on."""
    command = [sys.executable, "-c", KILLED, str(path)]
    ran = subprocess.run(command, check=False, timeout=30, cwd=ROOT, stdout=subprocess.PIPE)
    assert ran.returncode == -signal.SIGKILL
    before = kept(path)
    assert before == list(range(len(before))) and len(before) >= int(ran.stdout)
    history = History(path, keep=1e12)
    history.start()
    history.note(event(1_000))
    history.stop()
    assert kept(path) == [*before, 1_000]


IN_THE_MIDDLE = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
connection.execute("BEGIN")
for _ in range(1000):
    connection.execute("INSERT INTO history (at, kind, node, before, after, cause, seen, who) "
                       "VALUES (9, 'health', '', '', '', '', ?, '')", ["x" * 1000])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_who_was_killed_in_the_middle_of_a_write_is_no_hindrance(history: History, path: Path) -> None:
    history.note(event(1))
    history.stop()
    subprocess.run([sys.executable, "-c", IN_THE_MIDDLE, str(path)], check=False, timeout=30)
    assert path.with_name("history-journal").stat().st_size > 0
    assert [found.at for found in read(path)] == [1.0]
