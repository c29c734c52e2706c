"""The second witness for texts that are too long to be looked at on the event loop, in a process of its own.

Owns that process: started when the first such text has come, ended when none has come for a while and with the worker.
Which texts wait, and what an opinion changes, is the classifier's. It must not delay anything: until the witness has
spoken a text is what the grammar alone says, and stays that if the process can't be had, dies or takes too long.

Called by `upkeep` (`upkeep`) and `worker` (`stop`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Final

from ..sql.analyze import Opinion

if TYPE_CHECKING:
    from .worker import Worker

PATIENCE: Final = 30.0
"""Seconds for one text, and for the process to start."""
PAUSE: Final = 5.0
"""Seconds without a process after one that has failed."""
IDLE: Final = 60.0
"""Seconds that it is kept for the next text: starting it takes 0.1 s of CPU, keeping it 54 MB."""


class Witness:
    """Of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._process: asyncio.subprocess.Process | None = None
        self._more: Final = asyncio.Event()
        self._works = False
        self._not_before = 0.0

    def upkeep(self) -> None:
        """See that texts that wait are looked at."""
        if not self._worker.classifier.unheard:
            return
        self._more.set()
        if not self._works and self._worker.now >= self._not_before:
            self._works = True
            self._worker.spawn(self._work(), "witness")

    def stop(self) -> None:
        """End the process at once. It has nothing to lose."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _work(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "proxy.run_witness",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            while await self._has_more():
                await self._hear_all(self._process)
        except (OSError, TimeoutError, EOFError, ValueError) as error:
            self._not_before = self._worker.clock.now() + PAUSE
            self._worker.log.warning("witness_failed", error=repr(error), again_in=PAUSE)
        finally:
            self.stop()
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
                await self._process.communicate()
            self._process = None
            self._works = False

    async def _has_more(self) -> bool:
        try:
            async with asyncio.timeout(IDLE):
                await self._more.wait()
        except TimeoutError:
            return False
        self._more.clear()
        return True

    async def _hear_all(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        classifier = self._worker.classifier
        while classifier.unheard:
            if process.returncode is not None:
                raise EOFError(f"it has ended ({process.returncode})")
            # Taken away first: a text that ends the process isn't given to the next one.
            sql, known = classifier.unheard.popitem()
            process.stdin.write(json.dumps(sql.decode("utf-8", "surrogateescape")).encode() + b"\n")
            async with asyncio.timeout(PATIENCE):
                line = await process.stdout.readline()
            if not line:
                raise EOFError("it has ended at a text")
            self._worker.statements.reclassify(known, classifier.hear(sql, Opinion(line.decode().strip())))
