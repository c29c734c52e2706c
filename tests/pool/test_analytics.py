"""Analytic statements on a columnar node: answered as by the primary, in text and in binary, or not sent there."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..support.analytics import ColumnarNode, columnar_node
from ..support.fleet import Fleet
from ..support.rawpg import B, D, E, P, Q, Reply, S, Wire
from ..support.reports import REPORTS, SCHEMA, WITH_PARAMETERS
from ..support.target import SPLIT, Target
from ..support.witness import Witness
from .conftest import Serve, Service, eventually
from .test_consistency_run import routes

FLOATS = {700: "!f", 701: "!d"}
ROUTING = {"read_split": True, "catalogue_interval": 0.5, "analytic_cost": 0}
"""The tables here are small: to the planner nothing is analytics."""
READY = "SELECT count(*) FROM line WHERE quantity > 0"


@pytest.fixture
def node(fleet: Fleet, database: str, tmp_path: Path) -> Iterator[ColumnarNode]:
    fleet.primary.query(SCHEMA, dbname=database)
    with columnar_node(fleet, database, tmp_path) as node:
        yield node


def served(serve: Serve, node: ColumnarNode, **settings: Any) -> Service:
    """A proxy with this columnar node, once that answers."""
    over = {
        "routing": ROUTING,
        "nodes": {"columnar": {**node.settings, **settings}},
        "health": {"interval": 0.3, "timeout": 0.25},
    }
    service = serve(over, own=True)
    client = service.client()
    numbers = iter(range(10_000))

    def answers() -> bool:
        mark = f"/* ready {next(numbers)} */"
        client.query(f"{READY} {mark}")
        return ran(node, mark)

    assert eventually(answers, 20), node.process.tail()
    return service


def ran(node: ColumnarNode, mark: str) -> bool:
    return mark in node.log.read_text()


def table(replies: Sequence[Reply]) -> tuple[list[tuple[str, int]], list[list[bytes | None]]]:
    """(name and type of each column, rows); an error fails."""
    assert not [reply for reply in replies if reply.kind == "E"], [str(reply) for reply in replies]
    columns = next(reply.columns for reply in replies if reply.kind == "T")
    return [(name, oid) for name, oid, _ in columns], [reply.values for reply in replies if reply.kind == "D"]


def same(ours: Sequence[Reply], theirs: Sequence[Reply], binary: bool) -> bool:
    """Whether two answers are equal; floating-point numbers may differ in their last digits."""
    (columns, rows), (wanted, expected) = table(ours), table(theirs)
    if columns != wanted or len(rows) != len(expected):
        return False
    return all(
        value == other or _close(value, other, FLOATS.get(oid, ""), binary)
        for row, like in zip(rows, expected, strict=True)
        for value, other, (_, oid) in zip(row, like, wanted, strict=True)
    )


def _close(value: bytes | None, other: bytes | None, form: str, binary: bool) -> bool:
    if not form or value is None or other is None:
        return False
    one, two = (struct.unpack(form, it)[0] if binary else float(it) for it in (value, other))
    return math.isclose(one, two, rel_tol=1e-12)


def answer(client: Wire, sql: str, how: str, params: Sequence[str] = ()) -> list[Reply]:
    if how == "simple":
        client.send(Q(sql))
    else:
        formats = [1] if how == "binary" else []
        client.send(P("", sql), B(params=params, formats=formats), D("P"), E(), S)
    return client.until(timeout=30)


@pytest.mark.parametrize("dialect", [pytest.param("any", marks=pytest.mark.full), "duckdb"])
def test_two_hundred_reports(serve: Serve, node: ColumnarNode, dialect: str) -> None:
    """Wherever they run. Most of them have to run on the columnar node, or this says little."""
    service = served(serve, node, dialect=dialect)
    client, direct = service.client(), service.admin
    others = []
    columnar = set()
    for number, sql in enumerate(REPORTS):
        for how in ("simple", "text", "binary"):
            mark = f" /* {how} {number} */"
            if not same(answer(client, sql + mark, how), answer(direct, sql, how), how == "binary"):
                others.append((how, sql))
            if ran(node, mark.strip()):
                columnar.add(number)
    print(f"{dialect}: {len(REPORTS)} reports, {len(others)} of other answers, {len(columnar)} on the columnar node")
    assert others == []
    assert len(columnar) > LEAST[dialect], sorted(set(range(200)) - columnar)


LEAST = {"any": 110, "duckdb": 150}
"""More than so many of the two hundred run on the columnar node."""


@pytest.mark.parametrize("how", ["text", "binary"])
def test_types_of_parameters_come_from_the_primary(serve: Serve, node: ColumnarNode, how: str) -> None:
    service = served(serve, node, dialect="duckdb")
    client, direct = service.client(), service.admin
    for number, (sql, params) in enumerate(WITH_PARAMETERS):
        mark = f" /* {how} {number} */"
        assert same(answer(client, sql + mark, how, params), answer(direct, sql, how, params), how == "binary"), sql
        assert ran(node, mark.strip()), sql


ROWS = "SELECT priority, count(*) FROM orders GROUP BY priority ORDER BY priority"


class Standby:
    """A proxy to which a standby is a columnar node: whatever differs is the proxy's doing."""

    def __init__(
        self,
        serve: Serve,
        fleet: Fleet,
        database: str,
        routing: Mapping[str, Any] | None = None,
        *,
        others: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        fleet.primary.query(SCHEMA, dbname=database)
        fleet.caught_up()
        nodes = {"replica2": {"role": "columnar", "dialect": "postgres", **settings}, **(others or {})}
        self.service = serve({"routing": {**ROUTING, **(routing or {})}, "nodes": nodes}, own=True)
        self.witness = Witness(Target(SPLIT, self.service.proxy.address, database, fleet))
        self.client = self.service.client()
        self.runs = 0

    def ran(self, sql: str, how: str = "simple", params: Sequence[str] = ()) -> str:
        """The node that answered, as the primary does."""
        (node,) = self.nodes(sql, how, params)
        return node

    def nodes(self, sql: str, how: str = "simple", params: Sequence[str] = ()) -> frozenset[str]:
        """The same with the nodes that were asked about it."""
        self.runs += 1
        mark = f"/* {how} {self.runs} */"
        binary = how == "binary"
        ours = answer(self.client, f"{sql} {mark}", how, params)
        assert same(ours, answer(self.service.admin, sql, how, params), binary), sql
        return self.witness.seen(mark)

    def ready(self) -> None:
        assert eventually(lambda: self.ran("SELECT count(*) FROM orders") == "replica2", 20)


def test_what_a_node_lacks_and_has(serve: Serve, fleet: Fleet, database: str) -> None:
    it = Standby(serve, fleet, database, lacks=["string_agg"], tables=["ord*", "line"])
    it.ready()
    assert it.ran("SELECT to_char(placed, 'YYYY-MM'), count(*) FROM orders GROUP BY 1 ORDER BY 1") == "replica2"
    assert it.ran("SELECT string_agg(status, ',' ORDER BY id), count(*) FROM orders") != "replica2"
    assert it.ran("SELECT count(*) FROM orders o JOIN customer c ON c.id = o.customer_id") != "replica2"
    assert it.ran("SELECT count(*) FROM orders o JOIN line l ON o.id = l.order_id") == "replica2"
    assert it.ran("SELECT sum(total + $1) FROM orders", "binary", ("2",)) == "replica2"


def test_a_node_that_speaks_the_simple_protocol_only(serve: Serve, fleet: Fleet, database: str) -> None:
    it = Standby(serve, fleet, database, protocol="simple")
    it.ready()
    assert it.ran(ROWS) == "replica2"
    assert it.ran(ROWS, "text") != "replica2"
    assert it.ran("SELECT sum(total + $1) FROM orders", "binary", ("2",)) != "replica2"


def test_each_session_is_described_by_its_own_settings(serve: Serve, fleet: Fleet, database: str) -> None:
    """A table of the same name and text is another one by the search path."""
    it = Standby(serve, fleet, database)
    it.service.admin.run(
        "CREATE SCHEMA other",
        "CREATE TABLE other.orders AS SELECT id::int AS priority, 'x'::text AS status FROM orders",
    )
    fleet.caught_up()
    it.ready()
    sql = "SELECT sum(priority), max(status), count(*) FROM orders"
    assert it.ran(sql, "binary") == "replica2"
    for settings in ("SET search_path = other", "RESET search_path", "SET search_path = other"):
        it.client.run(settings)
        it.service.admin.run(settings)
        assert eventually(lambda: it.ran(sql, "binary") == "replica2", 10)


def test_prepared_there_and_run_elsewhere(serve: Serve, node: ColumnarNode) -> None:
    """The name stands for the client's own text: another node, or a transaction, gets that."""
    service = served(serve, node, dialect="duckdb")
    client, direct = service.client(), service.admin
    sql = "SELECT extract(year FROM shipped), count(*), sum(quantity + $1) FROM line GROUP BY 1 ORDER BY 1"
    mark = "/* kept */"
    for name in ("", "kept"):
        wanted = answer(direct, sql, "binary", ("1",))
        client.send(P(name, f"{sql} {mark}"), B("", name, ["1"], formats=[1]), D("P"), E(), S)
        assert same(client.until(), wanted, True)
        assert ran(node, mark)
        before = node.log.read_text().count(mark)
        client.query("BEGIN")
        if not name:
            client.send(P("", f"{sql} {mark}"))
        client.send(B("", name, ["1"], formats=[1]), D("P"), E(), S)
        assert same(client.until(), wanted, True)
        client.query("COMMIT")
        assert node.log.read_text().count(mark) == before
        if name:
            client.send(B("", name, ["1"], formats=[1]), D("P"), E(), S)
            assert same(client.until(), wanted, True)


SLOW = "SELECT g FROM generate_series(1, 300000) AS g WHERE g % 299999 = 1 ORDER BY g"


def measured(service: Service, text: str) -> dict[str, str | None]:
    return next((row for row in service.console("SHOW SHAPES MEASURED") if text in (row["text"] or "")), {})


def test_what_takes_long_on_replicas_is_tried_there_and_the_faster_side_gets_it(
    serve: Serve, fleet: Fleet, database: str
) -> None:
    it = Standby(serve, fleet, database, {"analytic_time": 0.001})
    it.ready()
    assert it.ran(SLOW) == "replica1"
    assert eventually(lambda: it.ran(SLOW) == "replica2", 20)

    def decided() -> bool:
        it.ran(SLOW)
        row = measured(it.service, "generate_series")
        return int(row.get("columnar_runs") or 0) >= 3

    assert eventually(decided, 20)
    row = measured(it.service, "generate_series")
    faster = float(row["columnar_ms"] or 0) <= float(row["replica_ms"] or 0)
    assert row["class"] == ("analytic" if faster else "read")
    where = "replica2" if faster else "replica1"
    assert ["node", where] in it.client.rows(f"EXPLAIN (ROUTE) {SLOW}")
    # A hint has the last word.
    assert it.ran(f"/* pgtrident: route=replica */ {SLOW}") == "replica1"
    assert it.service.console("FORGET SHAPES")
    assert not measured(it.service, "generate_series")
    assert eventually(lambda: it.ran(SLOW) == "replica1", 10)


def test_what_costs_little_by_the_planner_is_an_ordinary_read(serve: Serve, fleet: Fleet, database: str) -> None:
    it = Standby(serve, fleet, database, {"analytic_cost": 100})
    small, large = "SELECT count(*) FROM region", "SELECT count(*) FROM generate_series(1, 100000) a, region"
    assert eventually(lambda: "replica2" in it.nodes(large), 20)
    assert eventually(lambda: it.nodes(small) == {"replica1"}, 20)
    assert eventually(lambda: measured(it.service, "generate_series").get("class") == "analytic", 10)
    row = measured(it.service, "FROM region")
    assert row["class"] == "read" and 0 < float(row["cost"] or 0) < 100
    assert it.ran(large) == "replica2"


def test_what_runs_while_a_node_is_away_teaches_nothing(serve: Serve, fleet: Fleet, database: str) -> None:
    it = Standby(serve, fleet, database, {"analytic_time": 0.001}, others={"away": {"host": "127.0.0.1", "port": 1}})
    assert eventually(lambda: it.ran(SLOW) == "replica1", 20)
    for _ in range(10):
        assert it.ran(SLOW) == "replica1"
    # Once a second what was measured is told ahead of the counts.
    assert eventually(lambda: sum(routes(it.service).values()) >= it.runs)
    assert not measured(it.service, "generate_series")
