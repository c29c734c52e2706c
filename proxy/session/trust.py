"""Which unseen code has been harmless so far: a user's function, a DO block, a CALL.

What such code left in the session is asked for after each run, until a text has left nothing behind
`RUNS` times in its database; from then on every `AGAIN`th run. A text that once did is looked after for
ever. Bounded: when full, the older half is forgotten (and looked after anew). Called by `dataplane`.
"""

from __future__ import annotations

from collections.abc import Hashable

RUNS = 3
AGAIN = 16
MAX_KNOWN = 10_000
_NEVER = -1


class Trust:
    """Clean runs by key (database and text)."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, int] = {}

    def holds(self, key: Hashable) -> bool:
        """Whether this run need not be looked after. Counts it."""
        runs = self._runs.get(key, 0)
        if runs < RUNS:
            return False
        self._runs[key] = runs + 1
        return (runs - RUNS) % AGAIN != AGAIN - 1

    def note(self, key: Hashable, clean: bool) -> None:
        """What a run that was looked after turned out to be."""
        runs = self._runs.get(key, 0)
        if runs == _NEVER:
            return
        if key not in self._runs and len(self._runs) >= MAX_KNOWN:
            for old in list(self._runs)[: MAX_KNOWN // 2]:
                del self._runs[old]
        self._runs[key] = runs + 1 if clean else _NEVER
