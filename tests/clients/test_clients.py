"""Real drivers see no difference: each one's script runs on PostgreSQL itself and through the proxy, there with
noisy neighbours on the same pool, and the transcripts are equal."""

from __future__ import annotations

import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from ..conftest import StartProxy
from ..support.fleet import Fleet
from ..support.proxy import ROOT
from ..support.rawpg import B, E, P, Q, S, Wire

HERE = Path(__file__).parent
NEIGHBOURS = 6
USER = "pool5"
SECONDS = 120.0
SCRIPTS = ("psycopg_client", "asyncpg_client", "pg8000_client", "sqlalchemy_client", "django_client")


class Compare(Protocol):
    """Run a command with host, port, user and database behind it, in both ways, and compare."""

    def __call__(self, *command: str, **environment: str) -> None: ...


class Neighbour(threading.Thread):
    """A client that changes all the session state it can, over and over, and checks that it sees its own."""

    STEPS: Sequence[tuple[bytes, ...]] = (
        (Q("SET search_path = tenant_b, tenant_a"),),
        (Q("SET TIME ZONE 'America/New_York'; SET DateStyle = 'SQL, DMY'"),),
        (Q("SET client_encoding = 'LATIN1'"),),
        (Q("SET standard_conforming_strings = off"),),
        (Q("SET default_transaction_read_only = on"),),
        (Q("SET statement_timeout = '30s'"), Q("SET extra_float_digits = 0")),
        (Q("SET ROLE pool1"),),
        (Q("SET SESSION AUTHORIZATION pool2"),),
        (Q("SET bytea_output = 'escape'"), Q("SET IntervalStyle = 'iso_8601'")),
        (P("S_1", "SELECT 'not yours'"), P("__asyncpg_stmt_1__", "SELECT 'not yours'"), P("_pg3_0", "SELECT 1"), S),
        (P("", "SELECT 'not yours'"), B(), E(), S),
        (Q("PREPARE p AS SELECT 'not yours'"), Q("DEALLOCATE p")),
        (Q("BEGIN"), Q("SELECT 1/0"), Q("ROLLBACK")),
        (Q("BEGIN"), Q("SET LOCAL work_mem = '1MB'"), Q("COMMIT")),
        (Q("CREATE TEMP TABLE item AS SELECT 'not yours' AS label"), Q("DROP TABLE pg_temp.item")),
        (Q("LISTEN clients"), Q("UNLISTEN *")),
        (Q("SELEC"), P("", "SELEC"), S),
        (Q("RESET ALL"), Q("RESET SESSION AUTHORIZATION"), Q("RESET ROLE"), Q("DISCARD ALL")),
    )

    def __init__(self, address: tuple[str, int], database: str, number: int) -> None:
        super().__init__(name=f"neighbour {number}", daemon=True)
        self.random = random.Random(number)
        self.stopping = threading.Event()
        self.fault = ""
        self.rounds = 0
        self.number = number
        self.wire = Wire(address)
        replies = self.wire.login({"user": USER, "database": database}, timeout=30)
        assert replies.endswith("ZI"), replies

    def run(self) -> None:
        wire = self.wire
        while not self.stopping.wait(0.01):
            step = self.random.choice(self.STEPS)
            ends = sum(message[:1] in (b"Q", b"S") for message in step)
            replies = wire.send(*step).until(times=ends, timeout=60)
            if replies[-1].kind != "Z":
                self.fault = f"{step!r}: {[str(reply) for reply in replies]}"
                return
            wire.send(Q(f"SET app.me = 'n{self.number}'"), Q("SELECT current_setting('app.me')"))
            replies = wire.until(times=2, timeout=60)
            rows = [str(reply) for reply in replies if reply.kind == "D"]
            if rows != [f"D[n{self.number}]"]:
                self.fault = f"{[str(reply) for reply in replies]}"
                return
            wire.log.clear()
            self.rounds += 1


@contextmanager
def neighbours(address: tuple[str, int], database: str) -> Iterator[None]:
    threads = [Neighbour(address, database, number) for number in range(NEIGHBOURS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.stopping.set()
        for thread in threads:
            thread.join(60)
    faults = [f"{thread.name}: {thread.fault}" for thread in threads if thread.fault]
    assert not faults, "\n".join(faults)
    assert all(thread.rounds for thread in threads), "a neighbour that did nothing"


def run(command: Sequence[str], **environment: str) -> str:
    """A script's output, and how it ended; what it said on stderr only if it failed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=SECONDS,
            env={**kept, "PGSSLMODE": "disable", "PYTHONWARNINGS": "ignore", **environment},
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode()
        return f"{said}hung for {SECONDS:g} s"
    said = re.sub(r"PID \d+", "PID", done.stdout + (done.stderr if done.returncode else ""))
    return f"{said}exit code {done.returncode}"


def same(want: str, got: str) -> None:
    assert want.endswith("exit code 0"), f"the script fails on PostgreSQL itself:\n{want[-3000:]}"
    lines = list(difflib.unified_diff(want.splitlines(), got.splitlines(), "direct", "through the proxy", lineterm=""))
    assert not lines, "\n".join(lines[:60])


# With the reads apart the neighbours' pins can hold a pool for longer than a busy machine's time-outs allow.
@pytest.fixture(params=["primary only", pytest.param("reads on replicas", marks=pytest.mark.full)])
def compare(request: pytest.FixtureRequest, fleet: Fleet, database: str, proxies: StartProxy) -> Compare:
    split = request.param == "reads on replicas"

    def compared(*command: str, **environment: str) -> None:
        direct = ("127.0.0.1", fleet.primary.port)
        address = proxies({"routing": {"read_split": True}} if split else {}).address
        want = run([*command, direct[0], str(direct[1]), USER, database], **environment)
        fleet.refill(database)
        with neighbours(address, database):
            got = run([*command, address[0], str(address[1]), USER, database], **environment)
        same(want.replace(str(direct[1]), "PORT"), got.replace(str(address[1]), "PORT"))

    return compared


@pytest.mark.parametrize("script", SCRIPTS)
def test_python(compare: Compare, script: str) -> None:
    compare(sys.executable, "-m", f"tests.clients.{script}")


def test_psql(compare: Compare, fleet: Fleet) -> None:
    psql = str(fleet.cluster.tool("psql"))
    script = f'exec "{psql}" -X -h "$1" -p "$2" -U "$3" -d "$4" -f {HERE / "psql_client.sql"} 2>&1'
    compare("sh", "-c", script, "psql")


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """node-postgres, installed by npm for this run."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on this machine")
    directory = tmp_path_factory.mktemp("node")
    shutil.copy(HERE / "node" / "package.json", directory)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=directory,
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
    )
    if done.returncode:
        pytest.skip(f"npm could not install node-postgres: {done.stderr.strip()[-300:]}")
    return directory / "node_modules"


def test_node(compare: Compare, node_modules: Path) -> None:
    compare("node", str(HERE / "node" / "client.js"), NODE_MODULES=str(node_modules), NODE_NO_WARNINGS="1")
