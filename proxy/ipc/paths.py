"""Names of the files in the runtime directory, which is private (0700) and belongs to one supervisor.

Called by the supervisor and all processes below it.
"""

from __future__ import annotations

from pathlib import Path


class RuntimePaths:
    """The files below one runtime directory."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.controller = self.directory / "controller.sock"
        """Where workers reach the controller."""
        self.console = self.directory / "console.sock"
        self.board = self.directory / "board"
        self.lock = self.directory / "lock"
        self.kept = self.directory / "published"
        """What the controller last published, for the one that is started after it."""
        self.config = self.directory / "config"
        """The configuration of the last reload; none until there was one."""

        self.shapes = self.directory / "shapes"
        """What standbys have refused. It stays for the next run."""
        self.measured = self.directory / "measured"
        """How long shapes take on replicas and columnar nodes. It stays too."""
        self.homes = self.directory / "homes"
        """Where names of `spread` services keep to. It stays too."""
        self.history = self.directory / "history"
        """What has happened. It stays too, and may be elsewhere (`history.file`)."""
        self.shapes_seen = self.directory / "shapes_seen"
        """What clients have sent. It stays too."""

    def datagrams(self, worker: int) -> Path:
        """The datagram socket of a worker."""
        return self.directory / f"worker{worker}.dgram"

    def left_behind(self) -> list[Path]:
        """What an earlier run may have left, and a new one must not take for its own."""
        return [
            self.controller,
            self.console,
            self.board,
            self.kept,
            self.config,
            *self.directory.glob("worker*.dgram"),
        ]
