"""The proxy's processes with stub workers: as a module the process itself, `StubProxy` for tests of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from proxy import log
from proxy.config.load import load
from proxy.supervisor import Supervisor

from .proxy import ROOT, Settings, toml

PATIENCE = 20.0
"""Seconds for anything that is waited for."""


class StubProxy:
    """An async context manager. Lines of the log are kept as they come and can be waited for."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.config_file = directory / "pgtrident.toml"
        self.write_config(settings)
        self.lines: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self.port = 0
        self.admin_port = 0

    def write_config(self, settings: Settings) -> None:
        self.config_file.write_text(toml(settings) + "\n")

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.support.stub_proxy", str(self.config_file)),
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.create_task(self._read())
        listening = await self.event("listening")
        self.port, self.admin_port = listening["port"], listening["admin_port"]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(PATIENCE):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            raise
        await asyncio.wait_for(self._reader, PATIENCE)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            async with self._news:
                try:
                    self.lines.append(json.loads(line))
                except ValueError:
                    self.lines.append({"event": "not JSON", "text": line.decode()})
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def event(self, name: str, *, since: int = 0, **fields: Any) -> dict[str, Any]:
        """The first log line from number `since` on with this event and these fields."""
        wanted: Mapping[str, Any] = {"event": name, **fields}

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines[since:] if wanted.items() <= line.items()]

        try:
            async with asyncio.timeout(PATIENCE), self._news:
                await self._news.wait_for(found)
        except TimeoutError:
            raise AssertionError(f"no {wanted} in\n" + "\n".join(map(str, self.lines[since:]))) from None
        return found()[0]

    def pid(self, child: str) -> int:
        """Process id of the last one started as `child`."""
        started = [line for line in self.lines if line["event"] == "child_started" and line["child"] == child]
        return int(started[-1]["pid"])

    async def ask(self) -> dict[str, Any]:
        """What a worker answers."""
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            with contextlib.closing(writer):
                return dict(json.loads(await reader.readline()))

    async def get(self, path: str) -> tuple[int, str]:
        """(status, body) of a page."""
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.admin_port)
            with contextlib.closing(writer):
                writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        return int(head.split()[1]), body


if __name__ == "__main__":
    config_path = sys.argv[1]
    config = load(config_path)
    log.configure(config.log.format, config.log.level, common={"process": "supervisor"})
    sys.exit(asyncio.run(Supervisor(config, config_path, [], worker_module="tests.support.stub_worker").run()))
