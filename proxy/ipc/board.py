"""The board: shared memory in which workers tell each other when a database was last written.

A file of one row a worker, `SLOTS` unsigned 64-bit numbers a row (CLOCK_BOOTTIME nanoseconds), mapped
by all. Each worker writes its own row alone and readers take the maximum over the rows, so no lock is
needed: an aligned 8-byte store is whole. A slot is a hash of a database (or of a database and a key);
two that share one only make each other wait. A row outlives its worker: its writes still count.

Owns the file's layout; must not decide what a written moment means. Created by the supervisor, used
by the workers.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from zlib import crc32

SLOTS = 1024
_ROW_BYTES = SLOTS * 8


def create(path: Path, workers: int) -> None:
    """A new board, all zero, in place of any old one."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.ftruncate(fd, workers * _ROW_BYTES)
    finally:
        os.close(fd)


def slot_of(name: str) -> int:
    """The slot of a database (equal in all processes)."""
    return crc32(name.encode()) % SLOTS


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
        self._own = worker * SLOTS
        self._size = rows * SLOTS

    def note(self, slot: int, ns: int) -> None:
        """A write in `slot` ended at `ns`; a moment before the one noted changes nothing."""
        index = self._own + slot
        if ns > self._cells[index]:
            self._cells[index] = ns

    def latest(self, slot: int) -> int:
        """The latest write in `slot` by any worker; 0 if there was none."""
        return max(self._cells[slot : self._size : SLOTS])

    def close(self) -> None:
        self._cells.release()
        self._map.close()
