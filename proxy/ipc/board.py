"""The board: shared memory in which workers tell each other what each must know of all.

A file of one row a worker, unsigned 64-bit numbers, mapped by all. Each worker writes its own row alone,
so no lock is needed: an aligned 8-byte store is whole. A row holds

- when something was last written (CLOCK_BOOTTIME nanoseconds) under a consistency key, or the schema of a database
  was, `SLOTS` cells of which readers take the maximum over the rows. A slot is a hash of database and key; two
  that share one only make each other wait. A row outlives its worker: its writes still count;
- when something was last read under such a key, and where (in the lowest 16 bits): `SLOTS` cells more;
- how many clients the worker has, when it said so, and how many sockets it passed to each other worker
  and took itself, ever: the difference is on its way.

Owns the file's layout; must not decide what a moment or a load means. Created by the supervisor,
used by the workers.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from zlib import crc32

from ..ids import MAX_WORKER

SLOTS = 1024
MAX_WORKERS = MAX_WORKER + 1
SILENT_NS = 3_000_000_000
"""A worker that has told nothing for so long is stuck or gone, and has no load that means anything."""
_READS = SLOTS
_CLIENTS = 2 * SLOTS
_LOGINS = _CLIENTS + 1
_TOLD = _CLIENTS + 2
_TAKEN = _CLIENTS + 3
_PASSED = _CLIENTS + 4
_ROW = _PASSED + MAX_WORKERS
_ROW_BYTES = _ROW * 8


def create(path: Path, workers: int) -> None:
    """A new board, all zero, in place of any old one."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.ftruncate(fd, workers * _ROW_BYTES)
    finally:
        os.close(fd)


_TAG = 0xFFFF


def slot_of(name: str) -> int:
    """The slot of a name, of a database and a key for example (equal in all processes)."""
    return crc32(name.encode("utf-8", "surrogateescape")) % SLOTS


def user_slot(database: str, user: str) -> int:
    """The slot of what a user writes."""
    return slot_of(f"{database}\0\0{user}")


class Board:
    """The board as one worker sees it."""

    def __init__(self, path: str | Path, worker: int) -> None:
        """Raises OSError if there is no such file, ValueError if it has no row for `worker`."""
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        rows = len(self._map) // _ROW_BYTES
        if not 0 <= worker < rows:
            self._map.close()
            raise ValueError(f"the board has {rows} rows, none for worker {worker}")
        self._cells = memoryview(self._map).cast("Q")
        self._worker = worker
        self._own = worker * _ROW
        self._size = rows * _ROW
        self._workers = range(rows)

    def note(self, slot: int, ns: int) -> None:
        """A write in `slot` ended at `ns`; a moment before the one noted changes nothing."""
        index = self._own + slot
        if ns > self._cells[index]:
            self._cells[index] = ns

    def latest(self, slot: int) -> int:
        """The latest write in `slot` by any worker; 0 if there was none."""
        return max(self.column(slot))

    def column(self, slot: int) -> memoryview:
        """What each worker noted last in `slot`, now and whenever this is read again."""
        return self._cells[slot : self._size : _ROW]

    def note_read(self, slot: int, ns: int, tag: int, held_ns: int) -> None:
        """A read in `slot` ended at `ns` on the node with this tag (0: on the primary), which is known to hold all
        that was committed before `held_ns`. Where it may be behind what another node answered before, the place is
        forgotten: whoever reads next needs a node that holds all."""
        index = self._own + _READS + slot
        before = self._cells[index]
        if before and before & _TAG != tag and held_ns <= before | _TAG:
            tag = 0
        self._cells[index] = max(before & ~_TAG, ns & ~_TAG) | tag

    def reads(self, slot: int) -> list[tuple[int, int]]:
        """The last reads in `slot` of each worker that had any: (moment, rounded up; tag of the node, 0 is any)."""
        cells = self._cells[_READS + slot : self._size : _ROW]
        return [(cell | _TAG, cell & _TAG) for cell in cells if cell]

    def join(self) -> None:
        """A new process has the row: what was on its way to the one before is lost with that."""
        cells = self._cells
        cells[self._own + _TAKEN] = sum(cells[_PASSED + self._worker : self._size : _ROW])
        cells[self._own + _TOLD] = 0

    def tell(self, clients: int, logins: int, now_ns: int) -> None:
        """What the own worker has: clients, and connections that are not logged in yet."""
        own = self._own
        self._cells[own + _CLIENTS] = clients
        self._cells[own + _LOGINS] = logins
        self._cells[own + _TOLD] = now_ns

    def leave(self) -> None:
        """The own worker takes nobody any more."""
        self._cells[self._own + _TOLD] = 0

    def loads(self, now_ns: int) -> list[int | None]:
        """Connections of each worker, those on their way to it included; None for one that is silent."""
        return [self._load(worker, now_ns) for worker in self._workers]

    def clients_elsewhere(self, now_ns: int) -> int:
        """Clients of all other workers."""
        rows = [worker * _ROW for worker in self._workers if worker != self._worker]
        return sum(self._cells[row + _CLIENTS] for row in rows if now_ns - self._cells[row + _TOLD] < SILENT_NS)

    def passed(self, to: int, count: int = 1) -> None:
        """A socket goes to another worker: to be said before it does, and with -1 if it didn't."""
        self._cells[self._own + _PASSED + to] += count

    def taken(self) -> None:
        """A socket that another worker passed has come."""
        self._cells[self._own + _TAKEN] += 1

    def _load(self, worker: int, now_ns: int) -> int | None:
        cells, row = self._cells, worker * _ROW
        if now_ns - cells[row + _TOLD] >= SILENT_NS:
            return None
        passed = sum(cells[_PASSED + worker : self._size : _ROW])
        return cells[row + _CLIENTS] + cells[row + _LOGINS] + max(0, passed - cells[row + _TAKEN])

    def close(self) -> None:
        self._cells.release()
        self._map.close()
