"""The tables that a text names, and its shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.sql.classify import MAX_PARSED
from proxy.sql.facts import shape, tables


@pytest.mark.parametrize(
    ("sql", "want"),
    [
        ("SELECT 1", ""),
        ("SELECT * FROM shop.Orders o JOIN \"Lines\" USING (id)", "shop.orders Lines"),
        ("INSERT INTO a SELECT * FROM b", "a b"),
        ("UPDATE a SET x = 1 FROM b WHERE a.id IN (SELECT id FROM c)", "a b c"),
        ("MERGE INTO a USING b ON true WHEN MATCHED THEN DELETE", "a b"),
        ("WITH w AS (DELETE FROM a RETURNING *) SELECT * FROM w", "a w"),
        ("TRUNCATE a, b", "a b"),
        ("LOCK TABLE a", "a"),
        ("COPY a TO STDOUT", "a"),
        ("ALTER TABLE a ADD x int", "a"),
        ("EXPLAIN ANALYZE DELETE FROM a", "a"),
        ("PREPARE p AS SELECT * FROM a", "a"),
        ("SELECT * FROM a; DELETE FROM b", "a b"),
        ("DROP TABLE a", ""),
        ("SELECT * FROM", ""),
        ("SELECT * FROM a\0", ""),
        ("SELECT " + "(" * 300 + "1" + ")" * 300 + " FROM a", ""),
        ("SELECT * FROM a WHERE x = '" + "x" * MAX_PARSED + "'", ""),
    ],
)  # fmt: skip
def test_tables(sql: str, want: str) -> None:
    assert {".".join(filter(None, name)) for name in tables(sql.encode())} == set(want.split())


def test_shape() -> None:
    assert shape(b"SELECT a FROM t WHERE b = 1") == shape(b"select a from t where b = 22 -- x") != ""
    assert shape(b"DELETE FROM t WHERE b = 1") not in ("", shape(b"SELECT a FROM t WHERE b = 1"))


@pytest.mark.parametrize(
    "sql", ["", "SELECT FROM WHERE", "SELECT 1\0", "SELECT " + "(" * 5000, "SELECT " + "1+" * 3000]
)
def test_no_shape(sql: str) -> None:
    assert shape(sql.encode()) == ""


@given(st.binary())
def test_nothing_makes_it_raise(sql: bytes) -> None:
    tables(sql)
    tables(b"SELECT * FROM " + sql)
    shape(sql)
