"""The servers that tests run against, and databases on them.

Owns one primary with two replicas for a whole run, and databases that are filled anew with the common
objects for each test: while it runs, a test has a database, and so pools, of its own.
Fixtures are its callers.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from proxy.demo.postgres import HBA, Cluster, Server

POOL_SIZES = (1, 2, 3, 5, 20)
"""For each there is a role `pool<N>`; the proxy gives that role pools of N servers."""

RESET = """
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS public, tenant_a, tenant_b CASCADE;
CREATE SCHEMA public;
GRANT ALL ON SCHEMA public TO PUBLIC;
"""
FIXTURE = Path(__file__).with_name("fixture.sql")


class Fleet:
    """A primary and two replicas, and the databases made on them."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        try:
            self.primary = self.cluster.create(
                "primary",
                # On, so that a commit is sent to the replicas at once; what no commit flushes (of a rollback, say)
                # is to follow soon, since no replica is fresh before.
                settings={
                    "synchronous_commit": "on",
                    "wal_writer_delay": "10ms",
                    "max_prepared_transactions": "10",
                    "track_functions": "all",
                },
                hba=(*HBA, "host replication all 127.0.0.1/32 trust"),
            )
            for size in POOL_SIZES:
                self.primary.query(f"CREATE ROLE pool{size} SUPERUSER LOGIN")
            self.replicas = [self.cluster.replica(name, self.primary) for name in ("replica1", "replica2")]
        except BaseException:
            self.cluster.close()
            raise

    def take_database(self) -> str:
        """A database with the fixture and nothing else, present on all nodes."""
        if self._free:
            name = self._free.pop()
        else:
            name = f"case{next(self._numbers)}"
            self.primary.query(f"CREATE DATABASE {name}")
        self.refill(name)
        return name

    def refill(self, name: str) -> None:
        """Put the database back to the fixture."""
        self.primary.query(RESET + FIXTURE.read_text(), dbname=name)
        self.caught_up()

    def give_back_database(self, name: str) -> None:
        """End what is connected to it on any node, and keep it for another test: making one anew takes
        hundreds of files on each node."""
        for server in (self.primary, *self.replicas):
            server.ask("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", name)
        self._free.append(name)

    def caught_up(self) -> None:
        """Wait until the replicas have replayed all there is now."""
        lsn = self.primary.lsn()
        for replica in self.replicas:
            replica.wait_for_lsn(lsn)

    @contextlib.contextmanager
    def paused(self, *replicas: Server) -> Iterator[None]:
        """These replicas replay nothing; all, if none is named."""
        chosen = replicas or self.replicas
        try:
            for replica in chosen:
                replica.query("SELECT pg_wal_replay_pause()")
            for replica in chosen:
                while replica.ask("SELECT pg_get_wal_replay_pause_state()") != [("paused",)]:
                    time.sleep(0.01)
            yield
        finally:
            for replica in chosen:
                replica.query("SELECT pg_wal_replay_resume()")

    def close(self) -> None:
        self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
