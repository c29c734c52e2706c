"""The one way in which the controller starts tasks: named, held, their failures logged.

Called by everything in `controlplane`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..log import get_logger

_log = get_logger("controller")


class Tasks:
    """A set of running tasks."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel all and wait for their end."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task_failed", task=task.get_name(), exc_info=error)
