"""Waiting for what sends no event."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(holds: Callable[[], object], seconds: float = 5.0) -> bool:
    """Whether it holds within so many seconds: for what a node, the console or another thread does unheard."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
