"""The proxy as a process: written a configuration, started on free ports, waited for, stopped.

Owns the process and its log lines. It reads nothing but what an operator could: the log, the exit code
and the ports. Fixtures and tests that need their own proxy are its callers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0
STOP_SECONDS = 15.0

Settings = Mapping[str, Any]
PLAIN_HEALTH: Settings = {"ramp": 0.0, "flap_window": 0.0, "network_interval": 10.0}
"""Nodes that are stopped and started again and again are back as soon as they have proved themselves; and they aren't
connected to between probes, since each connection is a process and many proxies share a fleet."""


class ProxyFailed(RuntimeError):
    """The proxy did not start or stop as it should; the message has the end of its log."""


def toml(settings: Settings, prefix: str = "") -> str:
    """TOML text of nested mappings of strings, numbers, booleans and lists."""
    values = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    # JSON's strings, numbers, booleans and arrays are TOML as well.
    lines = [f"{_key(key)} = {json.dumps(value)}" for key, value in values.items()]
    for key, value in settings.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{_key(key)}"
            lines += [f"[{name}]", toml(value, name + ".")]
    return "\n".join(lines)


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def merged(base: Settings, over: Settings) -> dict[str, Any]:
    """`base` with `over` laid on it, section by section."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


class Proxy:
    """A running proxy; a context manager."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        """`directory` is private to this proxy; its configuration and log are kept there."""
        self.directory = directory
        self.config_file = directory / "pgtrident.toml"
        self.log_file = directory / "proxy.log"
        self.lines: list[str] = []
        self.port = 0
        self.admin_port = 0
        self.write_config(settings)
        self._news = threading.Condition()
        self._ended = False
        command = [sys.executable, "-m", "proxy", "serve", "-c", str(self.config_file)]
        setpriv = shutil.which("setpriv")
        if setpriv and threading.current_thread() is threading.main_thread():
            command = [setpriv, "--pdeathsig", "TERM", *command]  # a killed run leaves nothing behind
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="proxy log", daemon=True)
        self._reader.start()
        try:
            event = self.wait_for("listening", START_SECONDS)
        except BaseException:
            self.kill()
            raise
        self.port = int(event["port"])
        self.admin_port = int(event.get("admin_port") or 0)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    def write_config(self, settings: Settings) -> None:
        """Write the configuration file anew; `reload` makes a running proxy read it."""
        self.config_file.write_text(toml(settings) + "\n")

    def reload(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def wait_for(self, event: str, seconds: float = 10.0, *, after: int = 0, **fields: Any) -> dict[str, Any]:
        """The first log line from number `after` on that says `event` (with these fields)."""
        deadline = time.monotonic() + seconds
        at = after
        with self._news:
            while True:
                while at < len(self.lines):
                    with contextlib.suppress(ValueError):
                        line = json.loads(self.lines[at])
                        if line.get("event") == event and fields.items() <= line.items():
                            return dict(line)
                    at += 1
                if self._ended:
                    raise ProxyFailed(f"the proxy ended (exit code {self._process.wait()}):\n{self.tail()}")
                if not self._news.wait(deadline - time.monotonic()):
                    raise ProxyFailed(f"the proxy did not say {event!r} in {seconds:g} s:\n{self.tail()}")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.lines[-lines:])

    def processes(self) -> list[int]:
        """Ids of the supervisor and all processes below it."""
        found = [self.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    def memory(self) -> int:
        """Resident bytes of all its processes."""
        pages = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Open file descriptors of all its processes."""
        count = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                count += len(os.listdir(f"/proc/{pid}/fd"))
        return count

    def stop(self) -> int:
        """SIGTERM, then wait; the exit code. A proxy that does not end is killed and ProxyFailed raised."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProxyFailed(f"the proxy did not stop in {STOP_SECONDS:g} s:\n{self.tail()}") from None
        self._finish()
        return code

    def faults(self) -> list[str]:
        """Stop it; an exit code other than 0, and what must never be in a log."""
        code = self.stop()
        found = [f"{self.log_file}: {line}" for line in self.lines if "Traceback" in line]
        return found + ([f"{self.log_file}: exit code {code}"] if code else [])

    def kill(self) -> None:
        """Kill -9 of all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._finish()

    def _finish(self) -> None:
        self._reader.join(5)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with self.log_file.open("w") as log:
            for line in stream:
                log.write(line)
                log.flush()
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        faults = self.faults()
        if kind is None and faults:
            raise ProxyFailed("\n".join(faults))
