"""The demo's fleet: PostgreSQL servers, columnar nodes, the proxy in front, the sample data.

Owns all processes of the demo and takes them down in order. Called by `run` and `check`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from . import traffic
from .postgres import Cluster, PostgresError, free_port
from .processes import Process

DATABASE = "shop"
USER = "app"
PROBER = "pgtrident"
USUAL_PORT = 6432
_HBA = ("host all all 127.0.0.1/32 scram-sha-256",)
_SETTINGS = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_planning": "off",
    "synchronous_commit": "on",  # so that a commit goes to the copies at once
}


class Columnar:
    """One columnar node and its statement log."""

    def __init__(self, name: str, process: Process, statement_log: Path) -> None:
        self.name = name
        self.process = process
        self.port = process.port
        self.statement_log = statement_log


class Fleet:
    """A context manager: everything runs inside it."""

    def __init__(self, *, sales: int, read_split: bool = True) -> None:
        """`sales` is how many rows the large table has."""
        self.password = secrets.token_urlsafe(9)
        self.cluster = Cluster()
        self.columnar: list[Columnar] = []
        self.proxy: Process | None = None
        try:
            self.primary = self.cluster.create("primary", settings=_SETTINGS, hba=_HBA)
            self._fill(sales)
            self.replicas = [self.cluster.replica(name, self.primary) for name in ("replica1", "replica2")]
            users = self._file("users.json", json.dumps({USER: self.password, PROBER: self.password}))
            self.columnar = [self._columnar(name, users) for name in ("columnar1", "columnar2")]
            self.proxy = self._proxy(read_split)
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> list[tuple[str, str, int]]:
        """(role, name, port) of all."""
        servers = [("primary", self.primary), *(("replica", replica) for replica in self.replicas)]
        return [
            *((role, server.name, server.port) for role, server in servers),
            *(("columnar", node.name, node.port) for node in self.columnar),
        ]

    @property
    def dsn(self) -> str:
        """Where applications connect: the proxy."""
        assert self.proxy is not None
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.proxy.port}/{DATABASE}"

    def direct(self, port: int) -> str:
        """A node by itself, for evidence."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{port}/{DATABASE}"

    def close(self) -> None:
        if self.proxy:
            self.proxy.stop()
        for node in self.columnar:
            node.process.stop()
        self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inner

    def _fill(self, sales: int) -> None:
        primary = self.primary
        for role, grant in ((USER, ""), (PROBER, "IN ROLE pg_monitor")):
            # The password is a word of our own making, so that it needs no quoting beyond this.
            primary.query(f"CREATE ROLE {role} LOGIN PASSWORD '{self.password}' {grant}")
        primary.query(f"CREATE DATABASE {DATABASE} OWNER {USER}")
        try:
            primary.query("CREATE EXTENSION pg_stat_statements", dbname=DATABASE)
        except psycopg.Error as error:
            raise PostgresError(f"the demo needs PostgreSQL's extension pg_stat_statements: {error}") from error
        primary.query(f"SET ROLE {USER}; {traffic.SCHEMA} {traffic.fill(sales)}", dbname=DATABASE)
        primary.query("ANALYZE; CREATE PUBLICATION pgtrident FOR ALL TABLES", dbname=DATABASE)

    def _columnar(self, name: str, users: Path) -> Columnar:
        directory = self.cluster.directory
        log = directory / f"{name}-statements.log"
        arguments = [
            *("--source", self.primary.dsn(DATABASE, tcp=False), "--slot", name),
            *("--data", str(directory / f"{name}.duckdb"), "--users", str(users), "--statement-log", str(log)),
        ]
        return Columnar(name, Process("proxy.demo.columnar", arguments, directory / f"{name}.log"), log)

    def _proxy(self, read_split: bool) -> Process:
        login = {"user": PROBER, "password": self.password, "database": DATABASE}
        settings: dict[str, Any] = {
            "listen": {"host": "127.0.0.1", "port": _usual_port()},
            "admin": {"port": 0},
            # Its tables are small: to PostgreSQL's planner nothing here is analytics.
            "routing": {"read_split": read_split, "analytic_cost": 0},
            "health": {**login, "interval": 1.0, "timeout": 0.5, "network_interval": 0.5, "ramp": 3.0},
            f"users.{USER}": {"password": self.password},
            f"databases.{DATABASE}": {},
        }
        for server in (self.primary, *self.replicas):
            settings[f"nodes.{server.name}"] = {"host": "127.0.0.1", "port": server.port}
        for node in self.columnar:
            settings[f"nodes.{node.name}"] = {"host": "127.0.0.1", "port": node.port, "role": "columnar"}
        config = self._file("pgtrident.toml", _toml(settings))
        return Process("proxy", ["serve", "-c", str(config)], self.cluster.directory / "proxy.log")

    def _file(self, name: str, content: str) -> Path:
        path = self.cluster.directory / name
        path.touch(0o600)
        path.write_text(content)
        return path


def _usual_port() -> int:
    """6432 if it is free, for people's memory; else any."""
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", USUAL_PORT))
        return USUAL_PORT
    return free_port()


def _toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    lines: list[str] = []
    for section, keys in sections.items():
        lines.append(f"[{section}]")
        # JSON's strings, numbers and booleans are TOML's too.
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"
