"""The controller process: `python -m proxy.run_controller`, started by the supervisor.

Puts the parts together: configuration, controller, console and pages, and how nodes are dialled. SIGHUP
reads the configuration anew, and one that can't be used changes nothing. Ends at SIGTERM, and when the
supervisor has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from . import log
from .admin.service import Admin
from .clock import SystemClock
from .config.diff import diff
from .config.load import load
from .config.schema import Config
from .controlplane.controller import Controller
from .controlplane.link import Opened
from .dataplane.connect import dial, tls_mode, with_passfile
from .errors import ConfigError
from .ipc.paths import RuntimePaths
from .ipc.start import ControllerStart
from .topology.snapshot import NodeView
from .wire.auth import Credentials

_log = log.get_logger("controller")


def main() -> int:
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=ControllerStart)
    paths = RuntimePaths(start.runtime_dir)
    config = last_good(paths) or start.config
    _configure_log(config)
    uvloop.run(_run(start, paths, config))
    return 0


async def _run(start: ControllerStart, paths: RuntimePaths, config: Config) -> None:
    clock = SystemClock()
    controller = Controller(
        config,
        workers=start.config.workers,
        instance=start.instance,
        paths=paths,
        dial=dial_as_prober,
        dial_database=dial_as_prober,
        clock=clock,
        rng=random.Random(),
    )
    admin = Admin(controller, clock)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C reaches all; the supervisor decides
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(start, paths, controller))
    loop.add_reader(sys.stdin.fileno(), stop.set)
    try:
        await controller.start()
        await admin.start(str(paths.console))
        await stop.wait()
    finally:
        await admin.stop()
        await controller.stop()


def _reload(start: ControllerStart, paths: RuntimePaths, controller: Controller) -> None:
    try:
        wanted = load(start.path, start.overrides)
    except ConfigError as error:
        _log.error("reload_failed", error=error.message, kept="the configuration in use")
        return
    config = with_fixed(controller.config, wanted)
    for change in diff(controller.config, wanted):
        if change.restart:
            _log.warning("restart_needed", setting=change.key)
    with contextlib.suppress(OSError):
        _keep(paths.config, config)
    _configure_log(config)
    controller.reload(config, "SIGHUP")


def with_fixed(running: Config, wanted: Config) -> Config:
    """`wanted`, with what only a restart can change as it is in `running`: sockets, processes."""
    return msgspec.structs.replace(
        wanted,
        workers=running.workers,
        runtime_dir=running.runtime_dir,
        listen=running.listen,
        admin=msgspec.structs.replace(
            wanted.admin, enabled=running.admin.enabled, host=running.admin.host, port=running.admin.port
        ),
    )


def last_good(paths: RuntimePaths) -> Config | None:
    """The configuration of the last reload, for a controller that is started after it."""
    try:
        return msgspec.json.decode(paths.config.read_bytes(), type=Config)
    except (OSError, msgspec.DecodeError):
        return None


def _keep(path: Path, config: Config) -> None:
    """It holds passwords: for this user alone, and never half-written."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(config))
    os.replace(new, path)


def _configure_log(config: Config) -> None:
    log.configure(config.log.format, config.log.level, common={"process": "controller"})


async def dial_as_prober(node: NodeView, config: Config, seconds: float, database: str = "") -> Opened:
    """A connection to a node as the user that probes; to `health.database` if no other is named."""
    loop = asyncio.get_running_loop()
    database = database or config.health.database
    credentials = prober(config)
    if config.auth.passfile and credentials.password is None:
        credentials = with_passfile(credentials, _text(config.auth.passfile), node, database)
    params = {"database": database, "application_name": "pgtrident"}
    mode = tls_mode(config, node.name)
    return await dial(node, config.server, mode, credentials, params, loop=loop, deadline=loop.time() + seconds)


def _text(path: str) -> str:
    """Of a small local file; nothing if it can't be read, as libpq does."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError as error:
        _log.warning("passfile_unreadable", error=str(error))
        return ""


def prober(config: Config) -> Credentials:
    """Who probes: `health.user`, else the first user or database login whose password is known as it is,
    else `postgres` without one (nodes may trust it; else the probe learns that they answer, and no more)."""
    health = config.health
    if health.user:
        return Credentials(health.user, health.password or None)
    for name, user in config.users.items():
        if user.password and not user.password.startswith(("md5", "SCRAM-SHA-256$")):
            return Credentials(name, user.password)
    for database in config.databases.values():
        if database.user and database.password:
            return Credentials(database.user, database.password)
    return Credentials("postgres")


if __name__ == "__main__":
    sys.exit(main())
