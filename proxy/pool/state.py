"""One pool: the servers of a node, database and user, and who waits for them.

Pure: no await, no clock, no sockets; it returns what to open and to close. A server is seen as an
opaque object; a waiter as well. Fair: first come, first served, and a waiter that left takes nothing.
Idle servers are kept last in, first out, so that surplus ones grow old and are closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

S = TypeVar("S")
W = TypeVar("W")


class Pool(Generic[S, W]):
    """Idle and taken servers and waiters of one key.

    `limit` is how many servers may exist; `opening` counts those being connected.
    """

    __slots__ = ("idle", "limit", "max_waiting", "opening", "taken", "waiting")

    def __init__(self, limit: int, max_waiting: int) -> None:
        self.limit = limit
        self.max_waiting = max_waiting
        self.idle: dict[S, None] = {}
        self.taken: dict[S, None] = {}
        self.opening = 0
        self.waiting: OrderedDict[W, float] = OrderedDict()  # a dict's first entry takes long to find

    @property
    def size(self) -> int:
        """Servers that exist or are being opened."""
        return len(self.idle) + len(self.taken) + self.opening

    def take(self, prefer: S | None = None) -> S | None:
        """An idle server, the preferred one if it is free; None when there is none, or when others
        wait for one already."""
        idle = self.idle
        if not idle or self.waiting:
            return None
        if prefer is not None and prefer in idle:
            del idle[prefer]
            server = prefer
        else:
            server, _ = idle.popitem()
        self.taken[server] = None
        return server

    def wait(self, waiter: W, now: float) -> bool:
        """Put a waiter in the queue; False when the queue is full."""
        if len(self.waiting) >= self.max_waiting:
            return False
        self.waiting[waiter] = now
        return True

    def leave(self, waiter: W) -> bool:
        """A waiter gives up; whether it was waiting."""
        return self.waiting.pop(waiter, None) is not None

    def give(self, server: S) -> tuple[W, float] | None:
        """A taken (or newly opened) server is free: the first waiter gets it (returned, with the time when it
        began to wait), else it is idle."""
        if self.waiting:
            self.taken[server] = None
            return self.waiting.popitem(last=False)
        self.taken.pop(server, None)
        self.idle[server] = None
        return None

    def opened(self) -> None:
        """A dial ended, well or not. A good server is then passed to `give`."""
        self.opening -= 1

    def drop(self, server: S) -> None:
        """A server is gone."""
        self.idle.pop(server, None)
        self.taken.pop(server, None)

    def should_open(self, reserve: int = 0) -> int:
        """How many servers to open now: one for each waiter that no dial is under way for."""
        wanted = len(self.waiting) - self.opening
        room = self.limit + reserve - self.size
        return max(0, min(wanted, room))

    def oldest_wait(self) -> float | None:
        """When the first in the queue began to wait."""
        return next(iter(self.waiting.values()), None)

    def surplus(self) -> Iterator[S]:
        """Idle servers beyond the limit (after it was lowered), oldest first."""
        yield from list(self.idle)[: max(0, self.size - self.limit)]
