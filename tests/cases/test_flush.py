"""Batches in pieces: drivers that Flush after Parse and Describe, and send the rest when they know the types."""

from __future__ import annotations

import pytest

from ..support.rawpg import COPY_DONE, B, C, D, E, H, P, Q, S, copy_data
from ..support.target import Target

STATEMENTS = [
    ("SELECT 5", "T[?column?]", "D[5] C[SELECT 1] ZI"),
    ("SET jit = on", "n", "C[SET] ZI"),
    ("SET LOCAL jit = on", "n", "N[WARNING 25P01] C[SET] ZI"),
    ("SELECT set_config('jit', 'on', false)", "T[set_config]", "D[on] C[SELECT 1] ZI"),
    ("LISTEN x", "n", "C[LISTEN] ZI"),
    ("CREATE TEMP TABLE x(a int)", "n", "C[CREATE TABLE] ZI"),
    ("DROP TABLE trail", "n", "C[DROP TABLE] ZI"),
    ("BEGIN", "n", "C[BEGIN] ZT"),
    ("INSERT INTO trail(item_id) VALUES (1)", "n", "C[INSERT 0 1] ZI"),
    ("SELECT pg_advisory_lock(1)", "T[pg_advisory_lock]", "D[] C[SELECT 1] ZI"),
    ("DEALLOCATE ALL", "n", "C[DEALLOCATE ALL] ZI"),
    ("PREPARE p AS SELECT 1", "n", "C[PREPARE] ZI"),
    ("DO $$ BEGIN END $$", "n", "C[DO] ZI"),
    ("SHOW jit", "T[jit]", "D[on] C[SHOW] ZI"),
    ("", "n", "I ZI"),
]


@pytest.mark.parametrize("name", ["", "named"])
@pytest.mark.parametrize(("sql", "columns", "replies"), STATEMENTS)
def test_parse_describe_flush_then_execute(target: Target, sql: str, columns: str, replies: str, name: str) -> None:
    one = target.client()
    assert one.ask(P(name, sql), D("S", name), H, until=columns[0]) == f"1 t[] {columns}"
    if sql == "DEALLOCATE ALL" and name:
        assert one.ask(B("", name), E(), S) == f"2 {replies}"
        assert one.ask(B("", name), E(), S) == "E[26000] ZI"
        return
    assert one.ask(B("", name), E(), S) == f"2 {replies}"
    end = "T[?column?] D[1] C[SELECT 1] " + replies[-2:]
    assert one.query("SELECT 1") == end


@pytest.mark.parametrize(("sql", "columns", "replies"), STATEMENTS)
def test_only_prepared(target: Target, sql: str, columns: str, replies: str) -> None:
    """Parse with Flush and Sync in one write, nothing executed."""
    one = target.client()
    assert one.ask(P("x", sql), H, S) == "1 ZI"
    assert one.ask(P("y", sql), D("S", "y"), H, S) == f"1 t[] {columns} ZI"
    assert one.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("sql", ["COPY (SELECT 1) TO STDOUT", "COPY trail(item_id) FROM STDIN"])
def test_copy_only_prepared(target: Target, sql: str) -> None:
    one = target.client()
    assert one.ask(P("", sql), H, S) == "1 ZI"
    assert one.ask(P("", sql), D("S"), H, S) == "1 t[] n ZI"
    assert one.ask(P("", sql), S) == "1 ZI"
    assert one.ask(D("S"), S) == "t[] n ZI"
    if "TO" in sql:
        assert one.ask(B(), E(), S) == "2 H d[1\n] c C[COPY 1] ZI"
    else:
        assert one.ask(B(), E(), H, until="G") == "2 G"
        assert one.ask(copy_data(b"1\n"), COPY_DONE, S) == "C[COPY 1] ZI"
    assert one.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


def test_settings_by_parameters(target: Target) -> None:
    one = target.client()
    first = P("s", "SELECT set_config('jit', $1, false)"), D("S", "s"), H
    assert one.ask(*first, until="T") == "1 t[25] T[set_config]"
    assert one.ask(B("", "s", ["off"]), E(), S) == "2 D[off] C[SELECT 1] ZI"
    assert one.value("SHOW jit") == "off"


def test_every_message_flushed(target: Target) -> None:
    one = target.client()
    assert one.ask(P("a", "SELECT $1::int"), H, until="1") == "1"
    assert one.ask(D("S", "a"), H, until="T") == "t[23] T[int4]"
    assert one.ask(B("p", "a", ["7"]), H, until="2") == "2"
    assert one.ask(D("P", "p"), H, until="T") == "T[int4]"
    assert one.ask(E("p"), H, until="C") == "D[7] C[SELECT 1]"
    assert one.ask(C("P", "p"), H, until="3") == "3"
    assert one.ask(C("S", "a"), H, until="3") == "3"
    assert one.ask(S) == "ZI"
    assert one.ask(B("", "a", ["1"]), E(), S) == "E[26000] ZI"


def test_flush_and_sync_alone(target: Target) -> None:
    one = target.client()
    assert one.ask(S) == "ZI"
    assert one.ask(H, S) == "ZI"
    assert one.ask(H, H, S, S, H, times=2) == "ZI ZI"
    assert one.ask(Q("BEGIN"), S, H, S, times=3) == "C[BEGIN] ZT ZT ZT"
    one.send(H)
    assert one.silence(0.1)
    assert one.query("COMMIT") == "C[COMMIT] ZI"


def test_close_in_a_flushed_batch(target: Target) -> None:
    one = target.client()
    assert one.ask(P("o", "SELECT 1"), S) == "1 ZI"
    assert one.ask(P("s", "DROP TABLE trail"), D("S", "s"), H, until="n") == "1 t[] n"
    assert one.ask(C("S", "o"), S) == "3 ZI"
    assert one.ask(B("", "s"), E(), S) == "2 C[DROP TABLE] ZI"
    assert one.ask(P("t", "SELECT 2"), H, until="1") == "1"
    assert one.ask(C("S", "unknown"), C("P", "unknown"), S) == "3 3 ZI"


@pytest.mark.parametrize("ending", ["sync", "query", "terminate", "close"])
def test_error_in_a_flushed_batch(target: Target, ending: str) -> None:
    one = target.client(pool=1)
    assert one.ask(P("s", "SELEC"), D("S", "s"), H, until="E") == "E[42601]"
    match ending:
        case "sync":
            assert one.ask(B("", "s"), E(), S) == "ZI"
        case "query":
            one.send(Q("SELECT 1"))
            assert one.silence(0.2)
            assert one.ask(S) == "ZI"
        case "terminate":
            one.send(b"X\0\0\0\4").close()
        case _:
            one.close()
    assert target.client(pool=1).query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
