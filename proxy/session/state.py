"""The settings of a session that follow a client from server to server.

Owns the type and its interning: two sessions with equal settings share one object, so the data
plane compares states by identity. Values are what `current_setting()` prints. `role` and
`session_authorization` are settings like any other here; `rules` knows their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakValueDictionary


class State:
    """Settings that differ from what a fresh login has. Immutable, interned by `States`."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"State({', '.join(sorted(self.values))})"


class States:
    """All states in use in one worker. Unused ones go by themselves."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[frozenset[tuple[str, str]], State] = WeakValueDictionary()
        self.empty = State({})
        self._known[frozenset()] = self.empty

    def intern(self, values: Mapping[str, str]) -> State:
        """The one State with these values."""
        key = frozenset(values.items())
        state = self._known.get(key)
        if state is None:
            state = State(dict(values))
            self._known[key] = state
        return state

    def __len__(self) -> int:
        return len(self._known)
