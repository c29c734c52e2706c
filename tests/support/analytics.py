"""A columnar node with a live copy of a test's database: DuckDB behind the protocol, as in the demo.

Owns the node's process, its publication and its slot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proxy.demo.processes import Process

from .fleet import Fleet


class ColumnarNode(NamedTuple):
    """One of them; `log` has every statement that it was given."""

    process: Process
    log: Path

    @property
    def settings(self) -> dict[str, object]:
        """Of its section in the proxy's configuration."""
        return {"host": "127.0.0.1", "port": self.process.port, "role": "columnar"}


@contextlib.contextmanager
def columnar_node(fleet: Fleet, database: str, tmp_path: Path) -> Iterator[ColumnarNode]:
    """A node that follows all tables of a database."""
    fleet.primary.query("CREATE PUBLICATION analytics FOR ALL TABLES", dbname=database)
    log = tmp_path / "statements.log"
    log.touch()
    source = ("--source", fleet.primary.dsn(database), "--publication", "analytics", "--slot", database)
    process = Process("proxy.demo.columnar", [*source, "--statement-log", str(log)], tmp_path / "columnar.log")
    try:
        yield ColumnarNode(process, log)
    finally:
        process.stop()
        fleet.primary.query(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s", database
        )
        fleet.primary.query("SELECT pg_drop_replication_slot(%s)", database)
        fleet.primary.query("DROP PUBLICATION analytics", dbname=database)
