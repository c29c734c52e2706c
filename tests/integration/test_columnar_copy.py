"""The copy that a columnar node keeps: made, followed, resumed, made again. A real primary; the node's parts
in this process."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proxy.demo.columnar.copies import Copies
from proxy.demo.columnar.engine import Engine
from proxy.demo.columnar.follow import Follower
from proxy.demo.columnar.pgoutput import lsn_number
from proxy.demo.postgres import Cluster, Server
from proxy.demo.processes import Process

SECONDS = 20.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    with Cluster() as cluster:
        yield cluster.create("primary", settings={"synchronous_commit": "on"})


class Node:
    """Engine and follower on a file, as the process has them; may be stopped and started again."""

    def __init__(self, primary: Server, dbname: str, path: Path) -> None:
        self.primary = primary
        self.dbname = dbname
        self.path = path
        self.start()

    def start(self) -> None:
        self.engine = Engine(self.path)
        self.copies = Copies(self.engine)
        self.follower = Follower(self.copies, self.primary.dsn(self.dbname), "pub", self.dbname)
        self.reader = self.engine.connect()
        self.follower.start()

    def stop(self) -> None:
        self.follower.stop()
        self.engine.close()

    def source(self, sql: str) -> list[tuple[Any, ...]]:
        return self.primary.query(sql, dbname=self.dbname)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return list(self.reader.execute(sql).fetchall())

    def caught_up(self) -> None:
        """Wait until all that the primary has committed is here."""
        wanted = lsn_number(self.primary.lsn())
        deadline = time.monotonic() + SECONDS
        while self.copies.applied < wanted:
            assert time.monotonic() < deadline, f"{self.engine.applied_lsn()} is behind {self.primary.lsn()}"
            time.sleep(0.01)

    def assert_same(self, sql: str) -> None:
        assert self.query(sql) == self.source(sql)


@pytest.fixture
def database(primary: Server) -> Iterator[str]:
    name = f"copy{next(_numbers)}"
    primary.query(f"CREATE DATABASE {name}")
    primary.query("CREATE PUBLICATION pub FOR ALL TABLES", dbname=name)
    yield name
    primary.query(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
    )
    with contextlib.suppress(psycopg.Error):
        primary.query(f"SELECT pg_drop_replication_slot('{name}')")


@pytest.fixture
def node(primary: Server, database: str, tmp_path: Path) -> Iterator[Node]:
    primary.query(
        """
        CREATE TABLE t (id int PRIMARY KEY, n numeric(12,2), s varchar(20), b bytea, f float8, y bool, note text,
                        at_ timestamptz DEFAULT '2024-02-29 12:00+02', u uuid DEFAULT gen_random_uuid());
        INSERT INTO t (id, n, s, b, f, y, note)
            SELECT i, i * 1.25, 's' || i, decode(to_hex(i + 4096), 'hex'), i / 3.0, i % 2 = 0,
                   CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN E'a"b,\\n\\\\.\\tc' ELSE 'é' END
            FROM generate_series(1, 500) i;
        CREATE TABLE bare (a int, b text);
        ALTER TABLE bare REPLICA IDENTITY FULL;
        INSERT INTO bare VALUES (1, 'x'), (1, 'x'), (2, NULL);
        """,
        dbname=database,
    )
    node = Node(primary, database, tmp_path / "node.duckdb")
    yield node
    node.stop()


ALL = "SELECT id, n, s, b, f, y, note, u FROM t ORDER BY id"
BARE = "SELECT a, b FROM bare ORDER BY a, b"


def test_first_copy_has_every_value(node: Node) -> None:
    assert not node.copies.applied or node.follower.ready.is_set()
    assert node.follower.ready.wait(SECONDS)
    node.caught_up()
    node.assert_same(ALL)
    node.assert_same(BARE)


def test_changes_are_followed(node: Node) -> None:
    assert node.follower.ready.wait(SECONDS)
    node.source(
        """
        UPDATE t SET n = n + 1, note = 'changed' WHERE id < 50;
        DELETE FROM t WHERE id BETWEEN 60 AND 70;
        UPDATE t SET id = id + 10000 WHERE id BETWEEN 80 AND 90;
        INSERT INTO t (id, s) VALUES (20000, 'new'); UPDATE t SET s = 'newer' WHERE id = 20000;
        DELETE FROM t WHERE id = 1; INSERT INTO t (id, s) VALUES (1, 'again');
        DELETE FROM bare WHERE ctid = (SELECT min(ctid) FROM bare WHERE a = 1);
        UPDATE bare SET b = 'q' WHERE a = 2; INSERT INTO bare VALUES (3, 'z'), (3, 'z');
        """
    )
    node.caught_up()
    node.assert_same(ALL)
    node.assert_same(BARE)
    node.source("BEGIN; DELETE FROM t; ROLLBACK")
    node.source("TRUNCATE bare")
    node.caught_up()
    node.assert_same(ALL)
    assert node.query("SELECT count(*) FROM bare") == [(0,)]


def test_values_that_an_update_leaves_out_stay(node: Node) -> None:
    """A large value that isn't changed is not in the stream (TOAST); it may lie in DuckDB or be pending."""
    assert node.follower.ready.wait(SECONDS)
    node.source("ALTER TABLE t ALTER note SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL")
    node.source("UPDATE t SET note = repeat('x', 50000), b = decode(repeat('ab', 50000), 'hex') WHERE id = 7")
    node.caught_up()
    node.source("UPDATE t SET n = 99 WHERE id = 7; UPDATE t SET id = 7007 WHERE id = 7")
    node.source("UPDATE t SET note = repeat('y', 50000) WHERE id = 8; UPDATE t SET n = 98 WHERE id = 8")
    node.source("ALTER TABLE bare ALTER b SET STORAGE EXTERNAL; INSERT INTO bare VALUES (5, repeat('z', 50000))")
    node.source("UPDATE bare SET a = 6 WHERE a = 5")
    node.caught_up()
    node.assert_same(ALL)
    node.assert_same(BARE)


def test_readers_see_whole_transactions(node: Node) -> None:
    assert node.follower.ready.wait(SECONDS)
    total = node.query("SELECT sum(n) FROM t")
    for amount in range(1, 30):
        node.source(f"UPDATE t SET n = n + CASE WHEN id % 2 = 0 THEN {amount} ELSE -{amount} END")
        assert node.query("SELECT sum(n) FROM t") == total
    node.caught_up()
    assert node.query("SELECT sum(n) FROM t") == total
    node.assert_same(ALL)


def test_a_restart_goes_on_where_it_stopped(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    assert node.follower.ready.wait(SECONDS)
    node.source("UPDATE t SET s = 'before' WHERE id = 2")
    node.caught_up()
    node.stop()
    node.source("UPDATE t SET s = 'meanwhile' WHERE id = 3")
    with caplog.at_level(logging.INFO, "columnar"):
        node.start()
        assert node.follower.ready.is_set()  # what it has serves at once
        node.caught_up()
    node.assert_same(ALL)
    assert "copied" not in caplog.text
    assert node.query("SELECT count(*) FROM columnar.position") == [(1,)]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t ADD COLUMN extra int DEFAULT 7",
        "ALTER TABLE t RENAME COLUMN s TO extra",
        "CREATE TABLE extra (extra int)",
    ],
)
def test_an_altered_or_new_table_is_copied_again(node: Node, change: str) -> None:
    assert node.follower.ready.wait(SECONDS)
    node.source(change)
    table = "extra" if change.startswith("CREATE") else "t"
    node.source("INSERT INTO extra VALUES (1)" if table == "extra" else "UPDATE t SET n = 0 WHERE id = 1")
    wait_for_table(node, table)
    node.caught_up()
    node.assert_same(f"SELECT extra, count(*) FROM {table} GROUP BY extra ORDER BY extra")
    node.source("UPDATE t SET n = 5 WHERE id = 2")
    node.caught_up()
    node.assert_same("SELECT id, n FROM t ORDER BY id")


def wait_for_table(node: Node, table: str) -> None:
    deadline = time.monotonic() + SECONDS
    while ("extra",) not in node.query(f"SELECT column_name FROM duckdb_columns() WHERE table_name = '{table}'"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_lost_slot_means_a_new_copy(node: Node, database: str) -> None:
    assert node.follower.ready.wait(SECONDS)
    node.caught_up()
    node.stop()
    node.primary.query(f"SELECT pg_drop_replication_slot('{database}')")
    node.source("DELETE FROM t WHERE id > 10")
    node.start()
    node.caught_up()
    node.assert_same(ALL)


def test_a_table_with_a_value_that_cannot_be_held_is_withdrawn(node: Node) -> None:
    assert node.follower.ready.wait(SECONDS)
    node.caught_up()
    node.source("UPDATE t SET n = 'NaN' WHERE id = 5; INSERT INTO bare VALUES (9, 'after')")
    node.caught_up()
    with pytest.raises(Exception, match="does not exist"):
        node.query("SELECT * FROM t")
    node.assert_same(BARE)
    node.stop()
    node.start()
    node.source("UPDATE t SET s = 'x' WHERE id = 6; INSERT INTO bare VALUES (10, 'and on')")
    node.caught_up()
    node.assert_same(BARE)


def test_columns_that_cannot_be_held_are_left_out(primary: Server, database: str, tmp_path: Path) -> None:
    primary.query(
        "CREATE TABLE odd (id int PRIMARY KEY, j jsonb, n numeric, c char(4), v int);"
        "INSERT INTO odd VALUES (1, '{}', 1, 'c', 2)",
        dbname=database,
    )
    node = Node(primary, database, tmp_path / "odd.duckdb")
    try:
        assert node.follower.ready.wait(SECONDS)
        node.source("UPDATE odd SET j = '[]', v = 3")
        node.caught_up()
        assert node.query("SELECT * FROM odd WHERE c = 'c'") == [(1, "c", 3)]
    finally:
        node.stop()


def test_a_source_that_goes_away_is_followed_again(node: Node) -> None:
    assert node.follower.ready.wait(SECONDS)
    node.primary.restart()
    assert node.query("SELECT count(*) FROM t") == [(500,)]
    node.source("UPDATE t SET s = 'after' WHERE id = 4")
    node.caught_up()
    node.assert_same(ALL)


def test_the_process_refuses_clients_until_it_has_a_copy_and_ends_cleanly(
    primary: Server, database: str, tmp_path: Path
) -> None:
    primary.query("CREATE TABLE w (a int PRIMARY KEY); INSERT INTO w VALUES (1)", dbname=database)
    where = {"host": "127.0.0.1", "user": "me", "dbname": database}
    arguments = ["--publication", "pub", "--slot", database, "--data", str(tmp_path / "p.duckdb")]
    with psycopg.connect(primary.dsn(database)) as blocker:
        blocker.execute("INSERT INTO w VALUES (2)")  # a slot waits for open transactions, so the copy does
        process = Process("proxy.demo.columnar", ["--source", primary.dsn(database), *arguments], tmp_path / "p.log")
        try:
            with pytest.raises(psycopg.OperationalError, match="first copy"):
                psycopg.connect(**where, port=process.port)
        finally:
            blocker.rollback()
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with psycopg.connect(**where, port=process.port) as client:
                assert client.execute("SELECT count(*) FROM w").fetchone() == (1,)
                assert lsn_number(client.execute("SELECT columnar_applied_lsn()").fetchone()[0]) > 0  # type: ignore[index]
            break
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, process.tail()
            time.sleep(0.05)
    assert process.stop() == 0
