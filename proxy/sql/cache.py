"""A bounded cache from a statement's exact text to what was made of it.

Owns the bound: so many entries and so many bytes of text. It keeps two generations: when the young one has
filled half of a bound it becomes the old one, and what was in the old one and not asked for since is
dropped. So a hit on the young one is one dict lookup with nothing to reorder.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class TextCache(Generic[Value]):
    """Text (bytes) -> value; at most `entries` texts of together at most `size` bytes.

    `young` may be read directly by its owner, as the fast half of `get`.
    """

    __slots__ = ("_half_entries", "_half_size", "_old", "_young_size", "young")

    def __init__(self, entries: int, size: int) -> None:
        self._half_entries = max(1, entries // 2)
        self._half_size = max(1, size // 2)
        self._young_size = 0
        self._old: dict[bytes, Value] = {}
        self.young: dict[bytes, Value] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def get(self, text: bytes) -> Value | None:
        """Return what was kept for the text, and keep it on; None if there is nothing."""
        value = self.young.get(text)
        if value is None:
            value = self._old.pop(text, None)
            if value is not None:
                self.put(text, value)
        return value

    def put(self, text: bytes, value: Value) -> None:
        """Keep a value; a text larger than a sixteenth of the cache is not kept."""
        if len(text) > self._half_size // 8:
            return
        if len(self.young) >= self._half_entries or self._young_size + len(text) > self._half_size:
            self._old = self.young
            self.young = {}
            self._young_size = 0
        self.young[text] = value
        self._young_size += len(text)
