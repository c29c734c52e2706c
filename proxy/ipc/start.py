"""What a child process of the supervisor is told: one JSON line on its standard input.

Standard input and not arguments, since other users can read those and a configuration holds passwords; it
stays open, and its end tells the child that the supervisor has gone. Sans-I/O. Called by the supervisor,
`run_controller` and `run_worker`.
"""

from __future__ import annotations

import msgspec

from ..config.schema import Config


class ControllerStart(msgspec.Struct, frozen=True, kw_only=True):
    runtime_dir: str
    config: Config
    path: str
    """The configuration file, for reloads."""
    overrides: list[str]
    instance: int


class WorkerStart(msgspec.Struct, frozen=True, kw_only=True):
    runtime_dir: str
    worker: int
    listen_fds: list[int]
    """Inherited listening sockets."""
    ready_fd: int
    """Pipe that gets one byte, the worker's number, once it accepts clients."""
    log_format: str
    log_level: str


def line(start: ControllerStart | WorkerStart) -> bytes:
    return msgspec.json.encode(start) + b"\n"
