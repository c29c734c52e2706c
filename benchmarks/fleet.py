"""The cluster under test: a primary, two replicas, one user with a SCRAM password, certificates.

Owns the servers and every file of a run. Called by `run`.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import trustme

from proxy.demo.postgres import Cluster, Server

USER = "bench"
DATABASE = "bench"
SETTINGS = {
    # Else nothing is sent to replicas until the WAL writer comes by.
    "synchronous_commit": "on",
    "max_connections": "300",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


class Fleet:
    """Started servers with pgbench's tables; close with `close`."""

    def __init__(self, scale: int, settings: Mapping[str, str] | None = None) -> None:
        self.cluster = Cluster()
        self.directory = self.cluster.directory
        self.rows = scale * 100_000
        """Of pgbench_accounts."""
        self.settings = {**SETTINGS, **(settings or {})}
        self.password = secrets.token_urlsafe(12)
        self.cert = self.directory / "bench.crt"
        self.key = self.directory / "bench.key"
        self._certificates()
        self.primary = self.writer("primary", self.password)
        self.secret = str(self.primary.query(f"SELECT rolpassword FROM pg_authid WHERE rolname = '{USER}'")[0][0])
        environment = self.environment(self.primary.port)
        command = [self.pgbench, "-i", "-q", "-s", str(scale), DATABASE]
        subprocess.run(command, check=True, env=environment, capture_output=True, cwd="/")
        self.primary.query("CREATE UNLOGGED TABLE copied (line text)", dbname=DATABASE)
        self.primary.query("CHECKPOINT")
        self.replicas = [self.cluster.replica(name, self.primary) for name in ("replica1", "replica2")]
        self.caught_up()

    def writer(self, name: str, password: str) -> Server:
        """A server that writes, with the user and an empty database. `password` may be the stored secret."""
        server = self.cluster.create(name, settings=self.settings, hba=["host all all 127.0.0.1/32 scram-sha-256"])
        server.enable_tls(self.cert, self.key)
        server.query(f"CREATE ROLE {USER} LOGIN SUPERUSER PASSWORD '{password}'")
        server.query(f"CREATE DATABASE {DATABASE} OWNER {USER}")
        return server

    def caught_up(self) -> None:
        """Wait until the replicas hold what the primary does."""
        for replica in self.replicas:
            replica.wait_for_lsn(self.primary.lsn())

    def left(self) -> None:
        """Wait until no session of the user is left: a session adds to a server's statistics when it ends."""
        deadline = time.monotonic() + 30
        for server in self.cluster.servers.values():
            while server.query(f"SELECT 1 FROM pg_stat_activity WHERE usename = '{USER}'"):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"sessions stay on {server.name}")
                time.sleep(0.02)

    @property
    def pgbench(self) -> str:
        return str(self.cluster.tool("pgbench"))

    @property
    def psql(self) -> str:
        return str(self.cluster.tool("psql"))

    def environment(self, port: int) -> dict[str, str]:
        """For libpq's programs."""
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(port),
            "PGUSER": USER,
            "PGPASSWORD": self.password,
            "PGDATABASE": DATABASE,
            "PGSSLMODE": "disable",
            "PGGSSENCMODE": "disable",
            "LC_ALL": "C.UTF-8",
        }

    def write(self, name: str, text: str) -> Path:
        """A file that the servers' account may read, and nobody else."""
        path = self.directory / name
        path.touch(0o600)
        path.write_text(text)
        self.cluster.own(path)
        return path

    def close(self) -> None:
        self.cluster.close()

    def _certificates(self) -> None:
        leaf = trustme.CA().issue_cert("localhost", "127.0.0.1")
        self.write("bench.crt", "".join(pem.bytes().decode() for pem in leaf.cert_chain_pems))
        self.write("bench.key", leaf.private_key_pem.bytes().decode())
