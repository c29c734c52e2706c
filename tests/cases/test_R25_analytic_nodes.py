"""R25: an analytic statement has PostgreSQL's result, or a columnar node is not asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.demo.processes import Process

from ..conftest import StartProxy
from ..support.analytics import columnar_node
from ..support.fleet import Fleet
from ..support.rawpg import Reply, Wire
from ..support.target import SPLIT, Target
from ..support.witness import FORMS, PRIMARY, Witness

COLUMNAR = frozenset(("columnar",))


@dataclass(frozen=True)
class Analytics:
    """A proxy over the fleet and a columnar node with a copy of the test's database."""

    target: Target
    node: Process
    log: Path
    witness: Witness

    def same(self, client: Wire, sql: str) -> list[frozenset[str]]:
        """The nodes that answered, by each protocol; each time as PostgreSQL does: names, types and text."""
        direct = self.target.admin()
        nodes = []
        for form in FORMS:
            direct.log.clear()
            direct.ask(*form(sql))
            client.log.clear()
            replies, ran = self.witness.ran(client, sql, form)
            assert seen(client.log) == seen(direct.log), (sql, replies, ran)
            nodes.append(ran)
        return nodes

    def used(self, client: Wire) -> None:
        """Wait until the copy answers."""
        deadline = time.monotonic() + 20
        while self.witness.ran(client, "SELECT count(*) FROM item WHERE qty > 0")[1] != COLUMNAR:
            assert time.monotonic() < deadline, self.node.tail()
            time.sleep(0.02)


def seen(replies: list[Reply]) -> list[object]:
    return [reply.columns if reply.kind == "T" else str(reply) for reply in replies]


@pytest.fixture
def analytics(fleet: Fleet, database: str, own_proxy: StartProxy, tmp_path: Path) -> Iterator[Analytics]:
    with columnar_node(fleet, database, tmp_path) as node:
        settings = {
            "routing": {"read_split": True, "analytic_cost": 0},
            "nodes": {"columnar": node.settings},
            "health": {"interval": 0.3, "timeout": 0.25},
        }
        target = Target(SPLIT, own_proxy(settings).address, database, fleet)
        witness = Witness(target, {"columnar": node.log})
        yield Analytics(target, node.process, node.log, witness)
        witness.close()
        target.close()


COLLATED = """
CREATE COLLATION alike (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE words (id int PRIMARY KEY, w text COLLATE "en-x-icu", a text COLLATE alike, m mood, x float8, n int);
INSERT INTO words VALUES (1, 'a', 'x', 'sad', 0.5, 1), (2, 'B', 'X', 'ok', 1.5, 2), (3, '_c', 'y', 'happy', 2.5, 2);
"""
OWN_RULES = (
    "SELECT w, count(*) FROM words GROUP BY w ORDER BY w",
    "SELECT count(*) FROM words WHERE w > 'B'",
    "SELECT max(w), count(*) FROM words",
    "SELECT id, row_number() OVER (ORDER BY w) FROM words ORDER BY id",
    "SELECT v, count(*) FROM words AS t(i, v) GROUP BY v ORDER BY v",
    "SELECT count(*) FROM words WHERE a = 'x'",
    "SELECT count(DISTINCT a) FROM words",
    "SELECT count(*) FROM words WHERE m > 'ok'",
    "SELECT round(x), count(*) FROM words GROUP BY 1 ORDER BY 1",
    "SELECT x::text, count(*) FROM words GROUP BY 1 ORDER BY 1",
    "SELECT avg(n)::int, (sum(x) / 3)::int, count(*) FROM words",
    "SELECT 'is ' || x, count(*) FROM words GROUP BY 1 ORDER BY 1",
)
"""What a columnar node would answer otherwise, with the same types."""
FAILS = ("SELECT sqrt(x), count(*) FROM nums GROUP BY 1", "SELECT ln(x), count(*) FROM nums GROUP BY 1")
SAME = (
    "SELECT sum(qty), count(*), avg(qty) FROM item",
    "SELECT 7/2, 7/2.0, CAST(2400000.0 AS numeric(38,15)) / CAST(0.95 AS numeric(38,15))",
    "SELECT count(*), max(7/2), max(7/2.0) FROM item",
    "SELECT label FROM (VALUES ('a'),('B'),('_c')) v(label) ORDER BY label",
    "SELECT label, count(*) FROM item GROUP BY label ORDER BY label",
    "SELECT count(*) FROM item WHERE label > 'item2' AND label LIKE 'item%'",
    "SELECT x FROM (VALUES (1),(NULL),(2)) v(x) ORDER BY x DESC",
    "SELECT nullif(qty, 3) AS x, count(*) FROM item GROUP BY 1 ORDER BY x DESC",
    "SELECT nullif(qty, 3) AS x, count(*) FROM item GROUP BY 1 ORDER BY x",
    "SELECT qty > 10 AS big, min(label), string_agg(label, ',' ORDER BY id) FROM item GROUP BY 1 ORDER BY 1",
)
NEVER = (
    "SELECT sum(qty) FROM item WHERE item_label(id) IS NOT NULL",
    "SELECT count(*) FROM item i JOIN pg_class c ON true",
    "SELECT count(*) FROM scratch",
    "SELECT count(*) FROM (SELECT 1 FROM item FOR UPDATE) s",
    "SELECT count(*), now() = transaction_timestamp() FROM item, ticket_view",
)


def test_same_answers_wherever_they_come_from(analytics: Analytics) -> None:
    client = analytics.target.client()
    client.run("INSERT INTO item VALUES (30, 'a', 3), (31, 'B', 3), (32, '_c', 4)")
    analytics.used(client)
    nodes = {sql: analytics.same(client, sql) for sql in SAME}
    assert nodes["SELECT label, count(*) FROM item GROUP BY label ORDER BY label"] == [COLUMNAR] * 2
    for sql in NEVER:
        assert not any(COLUMNAR & ran for ran in analytics.same(client, sql)), sql
    # PostgreSQL's own refusal.
    assert client.query("SELECT count(*) FROM item FOR UPDATE") == "E[0A000] ZI"


def test_collations_rounding_and_text(analytics: Analytics) -> None:
    client = analytics.target.client()
    # Known to the copy, and tied to no catalogue of before.
    client.run(COLLATED)
    analytics.used(client)
    assert analytics.same(client, "SELECT w, count(*) FROM words GROUP BY w HAVING count(*) = 7") == [COLUMNAR] * 2
    for sql in OWN_RULES:
        assert not any(COLUMNAR & ran for ran in analytics.same(client, sql)), sql


def test_own_writes_and_transactions(analytics: Analytics) -> None:
    client = analytics.target.client()
    analytics.used(client)
    before = client.value("SELECT sum(qty) FROM item")
    client.run("BEGIN", "INSERT INTO item VALUES (901, 'n', 1)")
    replies, nodes = analytics.witness.ran(client, "SELECT sum(qty) FROM item")
    assert f"D[{int(before or 0) + 1}]" in replies and nodes == PRIMARY
    client.run("ROLLBACK")
    for number in range(1, 6):
        client.run(f"INSERT INTO item VALUES ({1000 + number}, 'n', 1)")
        assert client.value("SELECT count(*) FROM item WHERE qty > 0") == str(20 + number)
    client.run("CREATE TEMP TABLE item(qty int)")
    assert client.value("SELECT count(*) FROM item WHERE qty > 0") == "0"


def test_what_fails_on_the_columnar_node(analytics: Analytics) -> None:
    """Another node answers, with its own error if it has one; the same text goes there at once from then on."""
    client = analytics.target.client()
    client.run("CREATE TABLE nums (id int PRIMARY KEY, x float8)", "INSERT INTO nums VALUES (1, -1), (2, 'NaN')")
    analytics.used(client)
    for sql in FAILS:
        assert all(ran > COLUMNAR for ran in analytics.same(client, sql)), sql
        answer = client.query(sql)
        asked = analytics.log.read_text().count(sql)
        assert client.query(sql) == answer
        assert analytics.log.read_text().count(sql) == asked


def test_without_its_columnar_node(analytics: Analytics) -> None:
    """Whoever asks while it goes is answered by another node."""
    client = analytics.target.client()
    analytics.used(client)
    analytics.node.kill()
    for _ in range(20):
        replies, nodes = analytics.witness.ran(client, "SELECT count(*) FROM item WHERE qty > 0")
        assert replies == "T[count] D[20] C[SELECT 1] ZI"
        assert not nodes & COLUMNAR
