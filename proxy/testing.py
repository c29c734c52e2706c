"""Fakes that stand in for the clock, the random source and a transport in tests.

They live beside the real things so that a change of one is seen in the other. Nothing in the proxy
itself imports this module.
"""

from __future__ import annotations

import random
from typing import Any

from .clock import Clock


class FakeClock(Clock):
    """A clock that moves only when told; `now` in seconds, `boot_ns` and `wall` move along."""

    def __init__(self, now: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall_offset = wall - now

    def now(self) -> float:
        return self._now

    def boot_ns(self) -> int:
        return int(self._now * 1e9)

    def wall(self) -> float:
        return self._now + self._wall_offset

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass; returns the new `now`."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now += seconds
        return self._now


class SeededRng(random.Random):
    """A random source that knows its seed, so that a failing test can name it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed_used = seed

    def __repr__(self) -> str:
        return f"SeededRng({self.seed_used})"


class FakeTransport:
    """What a protocol writes to: keeps the bytes and the calls. `unsent` plays a full write buffer."""

    def __init__(self, **extra: Any) -> None:
        self.written = bytearray()
        self.reading = True
        self.closed = False
        self.aborted = False
        self.unsent = 0
        self._extra = extra

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def take(self) -> bytes:
        """What was written since the last call."""
        data = bytes(self.written)
        self.written.clear()
        return data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)
