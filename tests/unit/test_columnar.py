"""What columnar nodes are asked, and how: the pure parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.schema import Config, Node
from proxy.dataplane.capability import Capabilities, Lasting
from proxy.dataplane.worker import Worker
from proxy.routing.columnar import KNOWN, LACKING, Engine, lesson
from proxy.sql.analyze import Rewrite, rewritten
from proxy.sql.classify import classify
from proxy.sql.transpile import Column, fixes, transpiled

LEAVE = Rewrite("", "")


@pytest.mark.parametrize(
    "settings, sql, missing",
    [
        ({}, "SELECT count(*) FROM a", ""),
        ({}, "SELECT to_char(d, 'YYYY'), count(*) FROM a GROUP BY 1", "its answer may be another one there"),
        ({"dialect": "postgres"}, "SELECT to_char(d, 'YYYY'), count(*) FROM a GROUP BY 1", ""),
        ({"dialect": "duckdb"}, "SELECT round(x) FROM a", "its answer may be another one there"),
        ({"dialect": "duckdb"}, "SELECT extract(month FROM d) FROM a", ""),
        ({"dialect": "duckdb"}, "SELECT extract(second FROM d) FROM a", "its answer may be another one there"),
        ({"dialect": "duckdb"}, "SELECT date_part('milliseconds', d) FROM a", "its answer may be another one there"),
        ({"dialect": "duckdb"}, "SELECT date_part(f, d) FROM a", "its answer may be another one there"),
        ({"lacks": ("corr", "regr_*")}, "SELECT corr(x, y) FROM a", "it lacks corr"),
        ({"lacks": ("corr", "regr_*")}, "SELECT regr_count(x, y) FROM a", "it lacks regr_count"),
        ({"lacks": ("corr", "regr_*")}, "SELECT count(*) FROM corr", ""),
        ({"lacks": ("/",)}, "SELECT sum(x) / 2 FROM a", "it lacks /"),
        ({"tables": ("a*", "s.b")}, "SELECT count(*) FROM a, abc, s.b", ""),
        ({"tables": ("a*", "s.b")}, "SELECT count(*) FROM a JOIN b USING (id)", "it hasn't b"),
        ({"tables": ("a",)}, "WITH b AS (SELECT 1 FROM a) SELECT count(*) FROM b", ""),
        ({"tables": ("a",)}, "WITH b AS (SELECT 1 FROM a) SELECT count(*) FROM s.b", "it hasn't b"),
        ({"tables": ("a",)}, "SELECT 1", ""),
    ],
)
def test_what_is_for_a_node(settings: dict, sql: str, missing: str) -> None:
    assert Engine(Node(host="h", role="columnar", **settings)).missing(classify(sql.encode()), False) == missing


@pytest.mark.parametrize(
    "sqlstate, taught",
    [
        *((state, (True, LACKING)) for state in ("42883", "42704", "42601", "0A000")),
        *((state, (False, KNOWN)) for state in ("42P01", "42703", "42501", "22012", "22P02")),
        *((state, (False, 0.0)) for state in ("53200", "53300", "08006", "57P01", "57P03", "58030", "40001", "XX000")),
    ],
)
def test_only_errors_of_ability_teach(sqlstate: str, taught: tuple[bool, float]) -> None:
    assert lesson(sqlstate) == taught


@pytest.mark.parametrize(
    "sql, columns, wanted",
    [
        ("select count(*) from t", (), "SELECT COUNT(*) FROM t"),
        ("select a from t where b=$1 and c in ($2,$3)", (), "SELECT a FROM t WHERE b = $1 AND c IN ($2, $3)"),
        ("select a from t order by a", (), "SELECT a FROM t ORDER BY a"),
        ("select a from t order by a desc", (), "SELECT a FROM t ORDER BY a DESC NULLS FIRST"),
        ("select s ~ 'x' from t", [Rewrite("?column?", "")], "SELECT REGEXP_MATCHES(s, 'x') AS \"?column?\" FROM t"),
        (
            "select extract(year from d), count(*) from t group by 1",
            [Rewrite("extract", "numeric(38, 0)"), LEAVE],
            'SELECT CAST(EXTRACT(YEAR FROM d) AS DECIMAL(38, 0)) AS "extract", COUNT(*) FROM t GROUP BY 1',
        ),
        (
            "select extract(year from d) as y from t group by y",
            [Rewrite("y", "numeric(38, 0)")],
            'SELECT CAST(EXTRACT(YEAR FROM d) AS DECIMAL(38, 0)) AS "y" FROM t GROUP BY y',
        ),
        # A name that means something else in it, a star, a union, another number of columns.
        ("select extract(year from d) from t where extract > 1", [Rewrite("extract", "int4")], None),
        ("select d from t where d > 1", [Rewrite("d", "timestamptz")], None),
        ("select *, x from t", [Rewrite("a", "int4"), LEAVE], None),
        ("select a from t union select b from u", [Rewrite("a", "int4")], None),
        ("select a from t", [Rewrite("b", "int4"), LEAVE], None),
        ("select frob(a for b) fron t", (), None),
        ("delete from t", (), None),
        ("select '" + "x" * 3000 + "' from t", (), None),
    ],
)
def test_another_dialect(sql: str, columns: list[Rewrite], wanted: str | None) -> None:
    assert rewritten(sql, "duckdb", columns) == wanted


@given(st.text(max_size=60))
def test_any_text_can_be_refused(text: str) -> None:
    rewritten(f"select {text}", "duckdb", [Rewrite("x", "int4")])
    transpiled(f"select {text}".encode("utf-8", "surrogatepass"), "duckdb")


@pytest.mark.parametrize(
    "given, wanted, made",
    [
        ([Column("a", 20)], [Column("a", 20)], [LEAVE]),
        ([Column("a", 20)], [Column("a", 1700)], [Rewrite("a", "numeric(38, 0)")]),
        ([Column("x", 20), Column("b", 25)], [Column("a", 23), Column("b", 25)], [Rewrite("a", "int4"), LEAVE]),
        ([Column("a", 1114)], [Column("a", 1184)], [Rewrite("a", "timestamptz")]),
        ([Column("a", 701)], [Column("a", 1700)], None),
        ([Column("a", 1700)], [Column("a", 20)], None),
        ([Column("a", 25)], [Column("a", 1043)], None),
        ([Column("a", 20)], [Column("a", 20), Column("b", 20)], None),
    ],
)
def test_only_exact_casts(given: list[Column], wanted: list[Column], made: list[Rewrite] | None) -> None:
    assert fixes(given, wanted) == made


def test_a_node_with_the_simple_protocol_only() -> None:
    engine = Engine(Node(host="h", role="columnar", protocol="simple"))
    found = classify(b"SELECT count(*) FROM a")
    assert (engine.missing(found, False), bool(engine.missing(found, True))) == ("", True)


def test_a_node_that_comes_into_service_is_known_anew() -> None:
    worker = SimpleNamespace(config=Config(nodes={"c": Node(host="h"), "d": Node(host="i")}))
    known = Capabilities(cast(Worker, worker))
    for node in "cd":
        known._forms.put((node, ("", b"SELECT 1", b"")), None, 10.0)
        known._lacking.put((node, "db", "shape"), True, 10.0)
    known.came(["c"])
    assert [key[0] for key in known._forms] == ["d"] and [key[0] for key in known._lacking] == ["d"]


def test_answers_are_bounded_and_end() -> None:
    kept: Lasting[int, str] = Lasting(2)
    for key in range(3):
        kept.put(key, "x", 10.0)
    assert list(kept) == [1, 2]
    assert kept.get(1, 9.9) and not kept.get(1, 10.0)
