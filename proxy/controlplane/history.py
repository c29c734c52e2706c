"""What has happened to the fleet, and why, kept for months: health, primaries, settings, commands.

Owns the SQLite file and the thread that alone writes it: the loop never waits for a disk. Each event is committed by
itself, so that a killed controller loses none that it had written. A file that is full, locked, damaged or gone stops
nothing: events wait in memory, as many as `MAX_WAITING`, until there is a file again; a damaged one is set aside.
Called by `controller`; `read` also by the command line, which needs no running proxy.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from ..log import get_logger

MAX_WAITING = 10_000
"""Events that wait for the file; of more the oldest are given up."""
MAX_EVENTS = 1_000_000
"""Events in the file, however young."""
RETRY = 5.0
"""Seconds until a file that could not be written is tried again."""
TRIM_EVERY = 1_000
"""Events between two looks for those that are too old."""
PATIENCE = 1.0
"""Seconds for a file that another process has locked."""
STOP_SECONDS = 2.0
"""For what still waits when the controller ends."""
MEASURED = "probe"
"""The kind of an event that is a measurement: told only to who asks for it, since there are many."""

_log = get_logger("controller")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        at: Unix seconds.
        kind: `health`, `drain`, `role`, `primary`, `unfit`, `alarm`, `config`, `command`, `process`, or
            `probe`: how long the probes of an hour took.
        node: whom it is about; empty for the whole fleet.
        before, after: the state, node or value that was, and that is.
        cause: what led to it, in a word that metrics count by where there is one.
        seen: what it was decided by, in words.
        who: who gave the command, or changed the configuration; empty for the proxy itself.
    """

    at: float
    kind: str
    node: str = ""
    before: str = ""
    after: str = ""
    cause: str = ""
    seen: str = ""
    who: str = ""


_COLUMNS = ", ".join(f'"{field.name}"' for field in fields(Event))
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS history (
    id integer PRIMARY KEY, "at" real NOT NULL, {", ".join(f'"{f.name}" text NOT NULL' for f in fields(Event)[1:])}
);
CREATE INDEX IF NOT EXISTS history_at ON history("at");
"""
_INSERT = f"INSERT INTO history({_COLUMNS}) VALUES ({', '.join('?' * len(fields(Event)))})"
_FIND = f"""
SELECT {_COLUMNS} FROM history WHERE "at" >= ?1 AND (?2 = '' OR node = ?2)
    AND (kind = ?3 OR ?3 = '' AND kind <> '{MEASURED}')
ORDER BY id DESC LIMIT ?4
"""


def read(path: Path, *, since: float = 0.0, node: str = "", kind: str = "", limit: int = 1000) -> list[Event]:
    """The last events of a file, the oldest first: not before `since` (Unix seconds), of one node or kind if given
    (without a kind all but `MEASURED`). sqlite3.Error if there is none, or it can't be read. Who was killed while it
    wrote leaves a journal, which the next reader has to roll back: hence not `mode=ro`."""
    with _open(f"{path.absolute().as_uri()}?mode=rw") as connection:
        rows = connection.execute(_FIND, (since, node, kind, limit)).fetchall()
    return [Event(*row) for row in reversed(rows)]


def _wanted(event: Event, kind: str) -> bool:
    return event.kind == kind or (not kind and event.kind != MEASURED)


@contextlib.contextmanager
def _open(uri: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(uri, timeout=PATIENCE, uri=True, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


class History:
    """Of one controller."""

    def __init__(self, path: Path, keep: float) -> None:
        """`keep`: seconds until an event is dropped."""
        self._path = path
        self.keep = keep
        self._waiting: deque[Event] = deque(maxlen=MAX_WAITING)
        self._news = threading.Condition()
        self._stopped = False
        self._failed = ""
        self._written = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write what has been noted."""
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, if that takes no longer than `STOP_SECONDS`."""
        with self._news:
            self._stopped = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def note(self, event: Event) -> None:
        """Keep an event; returns at once."""
        with self._news:
            self._waiting.append(event)
            self._news.notify()

    def find(self, *, since: float = 0.0, node: str = "", kind: str = "", limit: int = 1000) -> list[Event]:
        """As `read`, with what isn't in the file yet. It reads a file: not for the loop."""
        with self._news:
            waiting = list(self._waiting)
        young = [e for e in waiting if e.at >= since and node in ("", e.node) and _wanted(e, kind)]
        try:
            written: Sequence[Event] = read(self._path, since=since, node=node, kind=kind, limit=limit)
        except sqlite3.Error:
            written = ()
        known = set(young)
        return [*(event for event in written if event not in known), *young][-limit:]

    # The thread.

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._stopped)
                if self._stopped and (self._failed or not self._waiting):
                    return
            try:
                with _open(self._path.absolute().as_uri()) as connection:
                    self._path.chmod(0o600)
                    connection.executescript(_SCHEMA)
                    self._write(connection)
            except (sqlite3.Error, OSError) as error:
                self._set_back(error)

    def _write(self, connection: sqlite3.Connection) -> None:
        """Write what comes, until there is nothing more; sqlite3.Error also when somebody has taken the file away."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._stopped)
                if not self._waiting:
                    return
                event = self._waiting[0]
            connection.execute(_INSERT, astuple(event))
            with self._news:
                if self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()
            if self._failed:
                _log.info("history_written_again", file=str(self._path))
                self._failed = ""
            if self._written % TRIM_EVERY == 0:
                connection.execute('DELETE FROM history WHERE "at" < ?', (event.at - self.keep,))
                connection.execute("DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - ?", (MAX_EVENTS,))
            self._written += 1

    def _set_back(self, error: Exception) -> None:
        """It can't be written now."""
        if str(error) != self._failed:
            self._failed = str(error)
            _log.error("history_not_written", file=str(self._path), error=self._failed)
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            # Damaged, or no database at all (SQLITE_CORRUPT, SQLITE_NOTADB): what can be saved is for a human.
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_name(self._path.name + ".damaged"))
                self._failed = ""
            return
        with self._news:
            self._news.wait_for(lambda: self._stopped, RETRY)
