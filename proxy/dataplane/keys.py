"""SCRAM keys out of passwords, off the loop: PBKDF2 takes 1 ms for 4,096 iterations.

Owns the threads and the cache. It must not decide which password counts. Called by `connect` (we log in
to nodes) and `authenticate` (clients log in to us).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from ..wire.auth import ScramKeys, derive_keys

THREADS = 2
"""hashlib releases the GIL, so these compete with the loop only for cores."""
MAX_ENTRIES = 10_000

Key = tuple[str, str, bytes, int]


class KeyCache:
    """Keys by (user, password, salt, iterations), least recently used go first.

    Work in flight is bounded by its callers: logins that are half open and dials under way.
    """

    def __init__(self, entries: int = MAX_ENTRIES) -> None:
        self._entries = entries
        self._kept: OrderedDict[Key, ScramKeys] = OrderedDict()
        self._pending: dict[Key, asyncio.Future[ScramKeys]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="scram")

    async def keys(self, user: str, password: str, salt: bytes, iterations: int) -> ScramKeys:
        """Keys of a password that is known to be right, so worth keeping."""
        key = (user, password, salt, iterations)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        loop = asyncio.get_running_loop()
        future = self._pending.get(key)
        if future is None or future.get_loop() is not loop:
            # A burst of logins of one user costs one derivation.
            future = self._pending[key] = loop.run_in_executor(self._threads, derive_keys, password, salt, iterations)
        try:
            derived = await asyncio.shield(future)
        finally:
            if self._pending.get(key) is future and future.done():
                del self._pending[key]
        self._kept[key] = derived
        if len(self._kept) > self._entries:
            self._kept.popitem(last=False)
        return derived

    def forget(self) -> None:
        """Passwords have changed: keep none of the old ones' keys."""
        self._kept.clear()

    async def once(self, password: str, salt: bytes, iterations: int) -> ScramKeys:
        """Keys of a password that a client claims: not kept, lest wrong ones push out the right ones."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, derive_keys, password, salt, iterations)


cache = KeyCache()
"""The one of this process."""
