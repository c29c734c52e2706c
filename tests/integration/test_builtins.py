"""The reviewed list of built-in functions, and the classes of statements, against a real hot standby."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from proxy.demo.postgres import Cluster
from proxy.sql import builtins
from proxy.sql.classify import classify
from proxy.sql.model import Class, names

from ..support.fleet import FIXTURE, Fleet
from ..unit.test_classify_corpus import rows

REFUSED = ("25006", "0A000", "55000")
"""What a standby answers because it is one (manual, 27.4.2)."""

# Values to call functions with, by argument type; a type that isn't here is given a null of itself.
VALUES = {
    "anyarray": "ARRAY[1, 2]",
    "anycompatible": "1",
    "anycompatiblearray": "ARRAY[1, 2]",
    "anycompatiblemultirange": "'{[1,2]}'::int4multirange",
    "anycompatiblerange": "'[1,2]'::int4range",
    "anyelement": "1",
    "anymultirange": "'{[1,2]}'::int4multirange",
    "anynonarray": "1",
    "anyrange": "'[1,2]'::int4range",
    '"any"': "1",
    "bigint": "1::bigint",
    "boolean": "true",
    "bytea": "'\\x61'::bytea",
    "double precision": "0.5::float8",
    "integer": "1",
    "interval": "'1 day'::interval",
    "json": """'{"a": 1}'::json""",
    "jsonb": """'{"a": 1}'::jsonb""",
    "jsonpath": "'$.a'::jsonpath",
    "name": "'a'::name",
    "numeric": "1.5::numeric",
    "oid": "1259::oid",
    "real": "0.5::real",
    "record": "ROW(1)",
    "regclass": "'pg_class'::regclass",
    "smallint": "1::smallint",
    "text": "'a'::text",
    "text[]": "ARRAY['a']",
    "tsquery": "'a'::tsquery",
    "tsvector": "'a:1'::tsvector",
    "timestamp with time zone": "'2020-01-01 00:00+00'::timestamptz",
    "timestamp without time zone": "'2020-01-01'::timestamp",
}
# Calls of functions that want more than any value of the type.
WRITTEN = """
acosh(1.5) array_fill(1, ARRAY[2]) convert('\\x61', 'UTF8', 'LATIN1') convert_from('\\x61', 'UTF8')
convert_to('a', 'UTF8') date_trunc('day', timestamp '2020-01-01')
 decode('61', 'hex') encode('a', 'hex') get_byte('a', 0) set_byte('ab', 0, 1)
has_any_column_privilege('item', 'SELECT') has_column_privilege('item', 'id', 'SELECT')
has_database_privilege(current_database(), 'CONNECT') has_function_privilege('item_label(int)', 'EXECUTE')
has_language_privilege('sql', 'USAGE') has_parameter_privilege('work_mem', 'SET')
has_schema_privilege('public', 'USAGE') has_sequence_privilege('ticket', 'USAGE')
has_table_privilege('item', 'SELECT') has_tablespace_privilege('pg_default', 'CREATE')
has_type_privilege('int', 'USAGE') pg_has_role('postgres', 'MEMBER') makeaclitem(10, 10, 'SELECT', false)
is_normalized('a') normalize('a') json_array_elements('[1]') json_array_elements_text('[1]')
json_array_length('[1]') jsonb_array_elements('[1]') jsonb_array_elements_text('[1]') jsonb_array_length('[1]')
jsonb_insert('{}', '{a}', '1') json_populate_record(NULL::item, '{"id": 1}')
jsonb_populate_record(NULL::item, '{"id": 1}') json_populate_recordset(NULL::item, '[]')
jsonb_populate_recordset(NULL::item, '[]') pg_collation_for('a') pg_get_object_address('table', '{item}', '{}')
pg_get_serial_sequence('trail', 'id') pg_sequence_parameters('ticket'::regclass) pg_size_bytes('1 MB')
regclass('item') to_number('1', '9') to_regoperator('+(int, int)') to_regprocedure('lower(text)')
ts_parse('default', 'a b') ts_token_type('default')
"""
CLOCKS = names(
    "age clock_timestamp gen_random_uuid mxid_age now random statement_timestamp timeofday transaction_timestamp"
)
"""Their answer is another one each time; mxid_age and age(xid) count from the newest transaction."""


def calls(connection: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    """(name, query) for each overload of each safe function of the server."""
    found = connection.execute(
        "SELECT proname, prokind::text, provariadic <> 0, proargtypes::regtype[]::text[], aggkind::text FROM pg_proc"
        " LEFT JOIN pg_aggregate ON aggfnoid = pg_proc.oid"
        " WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY(%s)"
        " AND NOT proargtypes::regtype[]::text[] && '{internal,cstring}'",
        (sorted(builtins.SAFE),),
    ).fetchall()
    queries = []
    for name, kind, variadic, types, aggregate in found:
        given = [VALUES.get(kind_of, f"NULL::{kind_of}") for kind_of in types]
        if variadic and types[-1] != '"any"':
            given[-1] = "VARIADIC " + given[-1]
        if aggregate in ("o", "h"):
            call = f'"{name}"({", ".join(given[:-1])}) WITHIN GROUP (ORDER BY {given[-1]})'
        else:
            call = f'"{name}"({", ".join(given)})'
        if kind == "w":
            call += " OVER ()"
        queries.append((name, f"SELECT pg_catalog.{call}"))
    written = re.split(r"\s+(?=\w+\()", WRITTEN.strip())
    return queries + [(call.partition("(")[0], f"SELECT {call}") for call in written]


def answer(connection: psycopg.Connection[Any], sql: str) -> tuple[str, list[Any]]:
    """(SQLSTATE or "", the rows as text) of one statement."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(sql.encode())
            return "", cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            return error.sqlstate or "", []


@pytest.fixture
def nodes(fleet: Fleet) -> Any:
    name = fleet.take_database()
    with fleet.primary.connect(name) as primary, fleet.replicas[0].connect(name) as standby:
        yield primary, standby
    fleet.give_back_database(name)


def test_safe_functions_answer_alike_on_a_standby(nodes: Any) -> None:
    primary, standby = nodes
    queries = calls(primary)
    for connection in nodes:
        # Texts are compared: the driver has no Python value for some (infinity, odd ranges).
        for oid in range(16, 6000):
            connection.adapters.register_loader(oid, psycopg.types.string.TextLoader)
    assert {name for name, _ in queries} >= builtins.SAFE - names("regclass extract"), "not all exist"
    worked = set()
    for name, sql in queries:
        here, there = answer(primary, sql), answer(standby, sql)
        assert (here[0] if name in CLOCKS else here) == (there[0] if name in CLOCKS else there), sql
        assert classify(sql.encode()).cls in (Class.READ, Class.ANALYTIC), sql
        if not here[0]:
            worked.add(name)
    # Most are really called, so that the comparison means something.
    assert len(worked) > 0.97 * len(builtins.SAFE), " ".join(sorted(builtins.SAFE - worked))


def test_volatile_functions_are_safe_only_by_review(nodes: Any) -> None:
    primary, _ = nodes
    volatile = {
        name
        for (name,) in primary.execute(
            "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile = 'v'"
        )
    }
    reviewed = names("clock_timestamp timeofday random gen_random_uuid pg_partition_ancestors pg_partition_tree")
    assert volatile & builtins.SAFE == reviewed


def test_no_function_of_the_catalogue_is_in_two_sets() -> None:
    sets = {name: value for name, value in vars(builtins).items() if isinstance(value, frozenset)}
    del sets["AGGREGATES"], sets["TIMED"]  # more is said of what is in another set
    everything = [name for group in sets.values() for name in group]
    assert len(everything) == len(set(everything))
    assert builtins.AGGREGATES <= builtins.SAFE


@pytest.fixture
def own_standby() -> Iterator[psycopg.Connection[Any]]:
    """A standby that no other test uses: statements like ALTER SYSTEM and pg_reload_conf() work there."""
    with Cluster() as cluster:
        primary = cluster.create()
        primary.query(FIXTURE.read_text())
        standby = cluster.replica("standby", primary)
        standby.wait_for_lsn(primary.lsn())
        with standby.connect() as connection:
            yield connection


def test_what_a_standby_refuses_is_no_read(own_standby: psycopg.Connection[Any]) -> None:
    """The statements of the routing cases and of the corpus, run on a standby one by one."""
    standby = own_standby
    hidden = names("ticket_view scratch")
    refused = 0
    for sql in [row[1] for row in rows("standby")] + [row[2] for row in rows("writes") + rows("reads")]:
        # Promoted, it would refuse nothing any more.
        if ";" in sql.rstrip("; ") or sql.startswith("COPY") or "pg_promote" in sql:
            continue
        state, _ = answer(standby, sql)
        standby.execute("ROLLBACK")
        if state in REFUSED:
            refused += 1
            if not any(name in sql for name in hidden):
                assert classify(sql.encode()).cls not in (Class.READ, Class.ANALYTIC), sql
    assert refused > 60
    assert answer(standby, "SELECT pg_is_in_recovery()")[1] == [(True,)]
