"""What is measured: direct connections, PgBouncer, Pgpool-II and pgtrident, all set up alike.

Owns their configuration files and processes. All of them log clients in by SCRAM with the same stored
secret, hold a pool of 20 servers for the one user, log no connections, and reach the nodes over TCP in clear.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import IO, Any, TypeVar

import psycopg

from proxy.demo.postgres import Server, free_port

from .fleet import DATABASE, USER, Fleet

ROOT = Path(__file__).resolve().parents[1]
POOL_SIZE = 20
MAX_CLIENTS = 12_000
START_SECONDS = 20.0
Result = TypeVar("Result")


class System:
    """One of the systems; itself the direct connection to the primary."""

    name = "direct"
    proxied = False
    usual = True
    """Whether it is measured without being asked for by name."""
    max_clients = 250

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.port = fleet.primary.port

    def start(self) -> None:
        """Start and wait until a client can log in. Raises RuntimeError with the end of the log."""

    def stop(self) -> None:
        """Stop; does nothing when it is not running."""

    def restart(self) -> None:
        self.stop()
        self.start()

    def meanwhile(self, run: Callable[[], Result]) -> Result:
        """Serve while `run` lasts, and wait until its sessions have ended, so that the servers have counted them."""
        self.start()
        try:
            return run()
        finally:
            self.stop()
            self.fleet.left()

    @property
    def pid(self) -> int:
        """The process at the top of the proxy's tree; 0 without one."""
        return 0

    def version(self) -> str:
        return str(self.fleet.primary.query("SELECT split_part(version(), ' on ', 1)")[0][0])


class Proxy(System):
    """A system that is a process of its own."""

    proxied = True
    max_clients = MAX_CLIENTS

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = fleet.directory / f"{self.name}.log"

    def command(self) -> list[str]:
        """Write the configuration; the command that serves it."""
        raise NotImplementedError

    def spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Under the servers' account: neither PgBouncer nor Pgpool-II should be root."""
        return self.fleet.cluster.spawn(self.command(), log)

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = self.spawn(log)
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.name} does not serve:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def ask(self, sql: str, database: str = DATABASE) -> list[tuple[Any, ...]]:
        """What a client that logs in for it is answered. Raises psycopg.Error."""
        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=self.fleet.password,
            dbname=database,
            sslmode="disable",
            connect_timeout=2,
            autocommit=True,
        ) as connection:
            return connection.execute(sql.encode(), prepare=False).fetchall()

    def answers(self) -> bool:
        """Whether it serves as it is meant to."""
        try:
            self.ask("SELECT 1")
        except psycopg.Error:
            return False
        return True


class PgBouncer(Proxy):
    """Transaction pooling."""

    name = "pgbouncer"

    def command(self) -> list[str]:
        fleet = self.fleet
        users = fleet.write("userlist.txt", f'"{USER}" "{fleet.secret}"\n')
        settings = fleet.write(
            "pgbouncer.ini",
            f"""
[databases]
{DATABASE} = host=127.0.0.1 port={fleet.primary.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
listen_backlog = 4096
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {POOL_SIZE}
max_client_conn = {MAX_CLIENTS}
server_tls_sslmode = disable
client_tls_sslmode = allow
client_tls_cert_file = {fleet.cert}
client_tls_key_file = {fleet.key}
log_connections = 0
log_disconnections = 0
log_pooler_errors = 0
""",
        )
        return [binary("pgbouncer") or "pgbouncer", str(settings)]

    def version(self) -> str:
        return first_line(["pgbouncer", "--version"])


class Pgpool(Proxy):
    """Pgpool-II with the primary alone and no balancing, its cheapest way of pooling."""

    name = "pgpool"
    max_clients = 100  # a process each

    def balancing(self) -> str:
        """Settings for reads and replicas."""
        return "load_balance_mode = off\nsr_check_period = 0"

    def command(self) -> list[str]:
        fleet = self.fleet
        fleet.write("pool_passwd", f"{USER}:TEXT{fleet.password}\n")
        hba = fleet.write("pool_hba.conf", "host all all 127.0.0.1/32 scram-sha-256\n")
        settings = fleet.write(
            "pgpool.conf",
            f"""
backend_clustering_mode = 'streaming_replication'
listen_addresses = '127.0.0.1'
port = {self.port}
pcp_port = {free_port()}
socket_dir = '{fleet.directory}'
unix_socket_directories = '{fleet.directory}'
pcp_socket_dir = '{fleet.directory}'
wd_ipc_socket_dir = '{fleet.directory}'
pid_file_name = '{fleet.directory}/pgpool.pid'
logdir = '{fleet.directory}'
work_dir = '{fleet.directory}'
backend_hostname0 = '127.0.0.1'
backend_port0 = {fleet.primary.port}
backend_flag0 = 'ALWAYS_PRIMARY|DISALLOW_TO_FAILOVER'
num_init_children = {self.max_clients}
max_pool = 1
listen_backlog_multiplier = 4
memory_cache_enabled = off
enable_pool_hba = on
pool_passwd = '{fleet.directory}/pool_passwd'
sr_check_user = '{USER}'
sr_check_password = '{fleet.password}'
sr_check_database = '{DATABASE}'
health_check_period = 0
{self.balancing()}
ssl = on
ssl_cert = '{fleet.cert}'
ssl_key = '{fleet.key}'
log_min_messages = warning
""",
        )
        pcp = fleet.write("pcp.conf", "")
        # -D: what an earlier one has written down of its nodes isn't true of this one's.
        return [binary("pgpool") or "pgpool", "-n", "-D", "-f", str(settings), "-a", str(hba), "-F", str(pcp)]

    def version(self) -> str:
        return first_line(["pgpool", "--version"])


class PgpoolBalancing(Pgpool):
    """Reads go to the two replicas alone, as with pgtrident; `writes` is its `disable_load_balance_on_write`."""

    def __init__(self, fleet: Fleet, writes: str) -> None:
        self.name = f"pgpool, {writes}"
        self.writes = writes
        super().__init__(fleet)

    def balancing(self) -> str:
        replicas = "".join(
            f"backend_hostname{n} = '127.0.0.1'\nbackend_port{n} = {replica.port}\n"
            f"backend_flag{n} = 'DISALLOW_TO_FAILOVER'\nbackend_weight{n} = 1\n"
            for n, replica in enumerate(self.fleet.replicas, 1)
        )
        return f"{replicas}backend_weight0 = 0\ndisable_load_balance_on_write = '{self.writes}'"


class Relay(Proxy):
    """Bytes from one side to the other on uvloop, and nothing else."""

    name = "relay"
    usual = False
    max_clients = 250  # a server each

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.relay", str(self.port), str(self.fleet.primary.port)]

    def spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT)

    def version(self) -> str:
        return f"relay on uvloop {metadata.version('uvloop')}"


class Pgtrident(Proxy):
    """One worker. Plain reads go to the first `replicas` of the fleet's, without any all goes to the primary;
    `compiled` is the wheel as users get it, else the pure Python source. `routing` and `more` are further settings,
    in that section and in sections of their own."""

    def __init__(
        self, fleet: Fleet, name: str = "", *, replicas: int, compiled: bool = True, routing: str = "", more: str = ""
    ) -> None:
        self.usual = compiled or not replicas
        self.replicas = fleet.replicas[:replicas]
        self.compiled = compiled
        self.routing = routing
        self.more = more
        self.name = name or "pgtrident" + ("-replicas" if replicas else "") + ("" if compiled else "-pure")
        super().__init__(fleet)

    @property
    def python(self) -> Path:
        return ROOT / (".venv-compiled" if self.compiled else ".venv") / "bin" / "python"

    def command(self) -> list[str]:
        fleet = self.fleet
        tables = "".join(node(server) for server in (fleet.primary, *self.replicas))
        settings = fleet.write(
            f"{self.name}.toml",
            f"""
[listen]
port = {self.port}
max_clients = {MAX_CLIENTS}
[listen.tls]
mode = "allow"
cert = "{fleet.cert}"
key = "{fleet.key}"
[server]
tls = "disable"
[pool]
pool_size = {POOL_SIZE}
[routing]
read_split = {str(bool(self.replicas)).lower()}
{self.routing}
[health]
user = "{USER}"
password = "{fleet.password}"
database = "{DATABASE}"
[log]
connections = false
level = "warning"
[admin]
port = 0
[users.{USER}]
password = "{fleet.secret}"
{tables}
{self.more}
""",
        )
        return [str(self.python), "-m", "proxy", "serve", "-c", str(settings)]

    def spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        # In a directory without a package of that name, so that the compiled one is found.
        return subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.fleet.directory
        )

    def answers(self) -> bool:
        """All nodes are in service, and reads go where they should, which takes the catalogue."""
        if not super().answers():
            return False
        said = self.ask("EXPLAIN (ROUTE) SELECT abalance FROM pgbench_accounts WHERE aid = 1")
        nodes = [value for item, value in said if item == "candidate"]
        routed = not self.replicas or ("reason", "read") in said
        return routed and all("active" in value for value in nodes)

    def version(self) -> str:
        from proxy import __version__

        return f"pgtrident {__version__}"


def candidates(fleet: Fleet) -> Iterator[System]:
    """All that this machine has, in the table's order; says what is missing."""
    yield System(fleet)
    for kind in (PgBouncer, Pgpool):
        if binary(kind.name):
            yield kind(fleet)
        else:
            print(f"skipping {kind.name}: it is not installed (Debian: apt-get install {kind.name}*)")
    yield Relay(fleet)
    for replicas in (0, 2):
        for compiled in (True, False):
            system = Pgtrident(fleet, replicas=replicas, compiled=compiled)
            if system.python.exists():
                yield system
            else:
                print(f"skipping {system.name}: there is no {system.python.parent.parent.name} (make compile)")


def node(server: Server) -> str:
    """A node of pgtrident's; its role is asked of it."""
    return f'[nodes.{server.name}]\nhost = "127.0.0.1"\nport = {server.port}\n'


def binary(name: str) -> str | None:
    """Where a daemon is; Debian keeps them in sbin, which is not on everybody's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def first_line(command: list[str]) -> str:
    command[0] = binary(command[0]) or command[0]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return re.sub(r"\s+", " ", (done.stdout or done.stderr).splitlines()[0])
