"""Time as an argument: the one Clock of a process, and the fake one for tests.

`now()` is for durations inside a process. `boot_ns()` is CLOCK_BOOTTIME, for deadlines that other
processes compare with (snapshots, the board); it goes on while the machine sleeps.
"""

from __future__ import annotations

import time

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """A class and not a Protocol, because calls to it are then direct ones where it is compiled."""

    def now(self) -> float:
        """Monotonic seconds."""
        raise NotImplementedError

    def boot_ns(self) -> int:
        """CLOCK_BOOTTIME nanoseconds, equal in all processes of a machine."""
        raise NotImplementedError

    def wall(self) -> float:
        """Unix time in seconds, for people and logs only."""
        raise NotImplementedError


class SystemClock(Clock):
    """The real one."""

    def now(self) -> float:
        return time.monotonic()

    def boot_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()
