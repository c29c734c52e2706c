"""What a tree of processes uses, from /proc (Linux).

Owns nothing. Called by the loads before and after they run.
"""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """CPU of a process and those below it between its making and `per`; of none with pid 0."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = cpu_seconds(pid) if pid else 0.0

    def per(self, count: float) -> float:
        """Microseconds for each of `count`."""
        return (cpu_seconds(self._pid) - self._before) * 1e6 / count if self._pid and count else 0.0

    def memory(self) -> float:
        """Megabytes that they have now."""
        return memory_bytes(self._pid) / 1e6 if self._pid else 0.0


def tree(root: int) -> list[int]:
    """`root` and all below it that are alive."""
    found = [root]
    for pid in found:
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                found.extend(map(int, (thread / "children").read_text().split()))
        except OSError:
            continue
    return found


def running(root: int, word: str) -> int:
    """The first process of the tree that has `word` among its arguments. Raises LookupError."""
    for pid in tree(root):
        try:
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        except OSError:
            continue
    raise LookupError(f"no process with {word}")


def cpu_seconds(root: int) -> float:
    """User and system time of the tree, with the children that ended and were waited for (proc(5), stat 14-17)."""
    total = 0
    for pid in tree(root):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        # The name in field 2 may hold blanks and parentheses.
        fields = stat.rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / TICKS


def memory_bytes(root: int) -> int:
    """Proportional set size of the tree: memory that is shared counts once. Resident size where that can't be read."""
    return sum(_memory(pid) for pid in tree(root))


def _memory(pid: int) -> int:
    for name, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
                if line.startswith(key):
                    return int(line.split()[1]) * 1024
        except OSError:
            continue
    return 0
