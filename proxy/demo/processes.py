"""Modules of this package run as processes of the demo: started, waited for, stopped.

Owns the process and its log file. Called by `fleet` and by tests of the columnar node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 30.0
STOP_SECONDS = 15.0
_ROOT = Path(__file__).resolve().parents[2]
"""Where the package `proxy` is imported from."""


class ProcessFailed(RuntimeError):
    """A process did not start; the message has the end of its log."""


class Process:
    """`python -m module arguments`, which says in a line of JSON with the event `listening` where it listens."""

    def __init__(self, module: str, arguments: Sequence[str], log_file: Path) -> None:
        """Start, and wait until it listens. Raises ProcessFailed."""
        self.log_file = log_file
        command = [sys.executable, "-m", module, *arguments]
        setpriv = shutil.which("setpriv")
        if setpriv and threading.current_thread() is threading.main_thread():
            command = [setpriv, "--pdeathsig", "TERM", *command]  # a killed demo leaves nothing behind
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=_ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the demo, which stops all in order
            )
        try:
            self.listening = self._wait()
        except BaseException:
            self.stop()
            raise
        self.port = int(self.listening["port"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM, and SIGKILL when that doesn't help; the exit code."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def _wait(self) -> dict[str, Any]:
        deadline = time.monotonic() + START_SECONDS
        while True:
            for line in self.log_file.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    if isinstance(said, dict) and said.get("event") == "listening":
                        return said
            if not self.running or time.monotonic() > deadline:
                raise ProcessFailed(f"{self.log_file.stem} did not start:\n{self.tail()}")
            time.sleep(0.05)
