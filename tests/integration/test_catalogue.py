"""What the names of a database mean: its functions, views, policies, operators, casts and domains, read from a real
node; and what is called a read there against a real standby."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from proxy.sql.catalogue import Catalogue, bind
from proxy.sql.classify import classify
from proxy.sql.model import Class, Classification

from ..support.fleet import Fleet

OBJECTS = """
CREATE EXTENSION citext; CREATE EXTENSION "uuid-ossp"; CREATE EXTENSION dblink; CREATE EXTENSION tablefunc;
CREATE SCHEMA other; CREATE SCHEMA quiet; CREATE SCHEMA loud;
CREATE TABLE quiet.same (a int); CREATE UNLOGGED TABLE loud.same (a int);

CREATE FUNCTION sql_read(i int) RETURNS int LANGUAGE sql AS 'SELECT qty FROM item WHERE id = i';
CREATE FUNCTION sql_atomic(i int) RETURNS int LANGUAGE sql
 BEGIN ATOMIC SELECT 1; SELECT qty FROM item WHERE id = i; END;
CREATE FUNCTION sql_return(i int) RETURNS int LANGUAGE sql RETURN i + 1;
CREATE FUNCTION sql_write(i int) RETURNS int LANGUAGE sql AS
 'SELECT 1; UPDATE item SET qty = qty WHERE id = i RETURNING qty';
CREATE FUNCTION sql_return_write() RETURNS bigint LANGUAGE sql RETURN nextval('ticket');
CREATE FUNCTION sql_setting(t text) RETURNS text LANGUAGE sql STABLE AS $$ SELECT set_config('app.x', t, false) $$;
CREATE FUNCTION sql_lock() RETURNS boolean LANGUAGE sql STABLE AS 'SELECT pg_try_advisory_lock(1)';
CREATE FUNCTION sql_temp() RETURNS bigint LANGUAGE sql AS 'CREATE TEMP TABLE IF NOT EXISTS tt(a int); SELECT 1::bigint';
CREATE FUNCTION pl_read(i int) RETURNS int LANGUAGE plpgsql AS $$
 DECLARE x int := 0; r record;
 BEGIN
  FOR r IN SELECT id FROM item WHERE id <= i LOOP x := x + r.id; END LOOP;
  IF x > 3 THEN RAISE DEBUG 'x %', x; END IF;
  RETURN sql_read(i) + x;
 EXCEPTION WHEN division_by_zero THEN RETURN 0;
 END $$;
CREATE FUNCTION pl_set(i int) RETURNS SETOF item LANGUAGE plpgsql STABLE AS
 $$ BEGIN RETURN QUERY SELECT * FROM item WHERE id <= i; END $$;
CREATE FUNCTION pl_write_else(i int) RETURNS int LANGUAGE plpgsql STABLE AS
 $$ BEGIN IF i > 1000 THEN RETURN 1; ELSE PERFORM nextval('ticket'); END IF; RETURN 2; END $$;
CREATE FUNCTION pl_write_declare() RETURNS bigint LANGUAGE plpgsql STABLE AS
 $$ DECLARE x bigint := nextval('ticket'); BEGIN RETURN x; END $$;
CREATE FUNCTION pl_write_subscript() RETURNS int LANGUAGE plpgsql STABLE AS
 $$ DECLARE x int[] := '{}'; BEGIN x[nextval('ticket')] := 1; RETURN 1; END $$;
CREATE FUNCTION pl_dynamic(i int) RETURNS int LANGUAGE plpgsql STABLE AS
 $$ DECLARE x int; BEGIN EXECUTE 'SELECT ' || i INTO x; RETURN x; END $$;
CREATE FUNCTION pl_dynamic_rows() RETURNS SETOF int LANGUAGE plpgsql AS
 $$ BEGIN RETURN QUERY EXECUTE 'SELECT 1'; END $$;
CREATE FUNCTION pl_row(i int) RETURNS text LANGUAGE plpgsql AS $$
 DECLARE r item; s public.item%ROWTYPE; t "item"; n int;
 BEGIN
  SELECT * INTO r FROM item WHERE id = i; r.label := 'x'; s.id := i; t.qty := 1;
  DECLARE u item; BEGIN u.id := 2; END;
  RETURN r.label || s.id || t.qty;
 END $$;
CREATE FUNCTION pl_row_write(i int) RETURNS int LANGUAGE plpgsql AS
 $$ DECLARE r item; BEGIN r.id := nextval('ticket'); RETURN r.id; END $$;
CREATE FUNCTION recursive(i int) RETURNS int LANGUAGE plpgsql AS
 $$ BEGIN IF i <= 0 THEN RETURN 0; END IF; RETURN recursive(i - 1) + 1; END $$;
CREATE FUNCTION ping(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$;
CREATE FUNCTION pong(i int) RETURNS int LANGUAGE plpgsql AS
 $$ BEGIN IF i <= 0 THEN RETURN nextval('ticket'); END IF; RETURN ping(i - 1); END $$;
CREATE OR REPLACE FUNCTION ping(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN pong(i); END $$;
CREATE FUNCTION with_default(i int DEFAULT nextval('ticket')) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT i';
CREATE FUNCTION twice(i int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * i';
CREATE FUNCTION twice(t text) RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT nextval('ticket') $$;
CREATE FUNCTION other.once(i int) RETURNS int LANGUAGE sql AS 'SELECT i';
CREATE FUNCTION quiet.shout() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
CREATE FUNCTION loud.shout() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('public.ticket') $$;
CREATE FUNCTION lower(i item) RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT nextval('ticket') $$;
CREATE FUNCTION stamp(i item) RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT nextval('ticket') $$;
CREATE FUNCTION price(i item) RETURNS int LANGUAGE sql STABLE AS $$ SELECT i.qty * 2 $$;

CREATE FUNCTION sum_step(a int, b int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + b';
CREATE FUNCTION log_step(a int, b int) RETURNS int LANGUAGE sql AS $$ SELECT (a + nextval('ticket'))::int $$;
CREATE AGGREGATE my_sum(int) (SFUNC = sum_step, STYPE = int, INITCOND = '0');
CREATE AGGREGATE my_max(int) (SFUNC = int4larger, STYPE = int);
CREATE AGGREGATE log_sum(int) (SFUNC = log_step, STYPE = int, INITCOND = '0');

CREATE VIEW good_view AS SELECT id, upper(label) AS label FROM item;
CREATE VIEW view_of_view AS SELECT * FROM good_view WHERE sql_read(id) > 0;
CREATE VIEW scratch_view AS SELECT * FROM scratch;
CREATE VIEW view_of_ticket AS SELECT * FROM ticket_view;
CREATE VIEW activity AS SELECT pid FROM pg_stat_activity;
CREATE MATERIALIZED VIEW stored AS SELECT nextval('ticket') AS n;
CREATE TABLE parted (a int) PARTITION BY LIST (a);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE UNLOGGED TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
CREATE TABLE guarded (a int); INSERT INTO guarded VALUES (1);
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY p ON guarded USING (a = sql_write(a));
CREATE TABLE watched (a int); INSERT INTO watched VALUES (1);
ALTER TABLE watched ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON watched USING (a > 0 AND current_user IS NOT NULL);

CREATE FUNCTION op_good(a int, b int) RETURNS int LANGUAGE sql AS 'SELECT a + b';
CREATE FUNCTION op_bad(a int, b int) RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT nextval('ticket') $$;
CREATE OPERATOR <+> (LEFTARG = int, RIGHTARG = int, FUNCTION = op_good);
CREATE OPERATOR <*> (LEFTARG = int, RIGHTARG = int, FUNCTION = op_bad);
CREATE OPERATOR other.<+> (LEFTARG = text, RIGHTARG = text, FUNCTION = textcat);
CREATE OPERATOR quiet.### (LEFTARG = int, RIGHTARG = int, FUNCTION = int4pl);

CREATE TYPE money2 AS (v int);
CREATE FUNCTION differs(a int, b int) RETURNS boolean LANGUAGE plpgsql STABLE AS
 $$ BEGIN PERFORM nextval('ticket'); RETURN true; END $$;
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq, NEGATOR = !==);
CREATE OPERATOR !== (LEFTARG = int, RIGHTARG = int, FUNCTION = differs);
CREATE FUNCTION apart(a anyarray, b anyarray) RETURNS boolean LANGUAGE plpgsql STABLE AS
 $$ BEGIN PERFORM nextval('ticket'); RETURN true; END $$;
CREATE OPERATOR <!!> (LEFTARG = anyarray, RIGHTARG = anyarray, FUNCTION = apart, NEGATOR = @>);
CREATE TABLE prices (v money2); INSERT INTO prices VALUES (ROW(1));
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE colour AS ENUM ('red', 'green');
CREATE TYPE span AS RANGE (subtype = float8);
CREATE TYPE whole AS (v item);
CREATE DOMAIN boxed AS whole;
CREATE FUNCTION opened(b boxed) RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT nextval('ticket') $$;
CREATE TABLE boxes (b boxed); INSERT INTO boxes VALUES (ROW(NULL)::whole);
CREATE FUNCTION quoting() RETURNS text LANGUAGE sql SET standard_conforming_strings = off AS
 $f$ SELECT '\\' || nextval($q$ticket$q$) -- '
 $f$;
CREATE FUNCTION record_value() RETURNS int LANGUAGE plpgsql AS
 $$ DECLARE r record := ROW(nextval('ticket')); BEGIN RETURN 1; END $$;
"""

READS = """
SELECT count(*) FROM item
SELECT sql_read(1), sql_atomic(1), public.sql_return(1), pl_read(3), item_label(2)
SELECT * FROM pl_set(3)
SELECT pl_row(2)
SELECT recursive(3), other.once(1)
SELECT my_sum(qty), my_max(qty) FROM item
SELECT * FROM good_view
SELECT * FROM view_of_view WHERE id < 3
SELECT * FROM stored
SELECT 1 <+> 2, 3 OPERATOR(quiet.###) 4
SELECT 1::positive, 'red'::colour, span(1, 2)
SELECT (information_schema._pg_expandarray(ARRAY[7])).x
SELECT 'a'::citext = 'A'::citext
SELECT length(uuid_generate_v4()::text)
SELECT * FROM watched
WITH fresh AS (SELECT 1 AS a) SELECT * FROM fresh
SELECT i.price FROM item i WHERE id = 1
SELECT quiet.shout()
SELECT * FROM quiet.same
SELECT * FROM parted_1
COPY item TO STDOUT
EXPLAIN SELECT sql_read(1)
""".strip().splitlines()

KEPT = """
unknown_function	SELECT nowhere(1)
unknown_function	SELECT other.nowhere(1)
unknown_relation	SELECT * FROM nowhere
unknown_operator	SELECT 1 <<*>> 2
update	SELECT sql_write(1)
sequence	SELECT sql_return_write()
set_config	SELECT sql_setting('x')
advisory_lock	SELECT sql_lock()
temp	SELECT sql_temp()
sequence	SELECT pl_write_else(1)
sequence	SELECT pl_write_declare()
sequence	SELECT pl_row_write(1)
sequence	SELECT pl_write_subscript()
runs_sql	SELECT pl_dynamic(1)
runs_sql	SELECT * FROM pl_dynamic_rows()
sequence	SELECT ping(1)
sequence	SELECT pong(1)
sequence	SELECT with_default()
sequence	SELECT twice(1)
sequence	SELECT shout()
sequence	SELECT loud.shout()
sequence	SELECT lower('A')
sequence	SELECT i.stamp FROM item i
sequence	SELECT (i).stamp FROM item i
sequence	SELECT (1).twice
insert	SELECT n.add_trail FROM generate_series(1, 1) n
sequence	SELECT log_sum(qty) FROM item
sequence	SELECT NOT (ARRAY[qty] @> ARRAY[2]) FROM item
insert	SELECT add_trail(1)
insert	SELECT add_trail_mislabelled(1)
volatile_function	SELECT * FROM dblink('', 'SELECT 1') AS t(a int)
unknown_function	SELECT * FROM crosstab('SELECT 1, 2, 3') AS t(a int, b int)
sequence	SELECT * FROM ticket_view
sequence	SELECT * FROM view_of_ticket
unlogged	SELECT * FROM scratch
unlogged	SELECT * FROM scratch_view
unlogged	SELECT * FROM same
unlogged	SELECT * FROM parted
sequence	SELECT * FROM ticket
node_state	SELECT * FROM activity
update	SELECT * FROM guarded
sequence	SELECT 1 <*> 2
sequence	EXPLAIN SELECT twice(1)
sequence	SELECT NOT (n === 2) FROM generate_series(1, 2) n
sequence	SELECT (b).opened FROM boxes
unknown_function	SELECT quoting()
unknown_function	SELECT record_value()
""".strip().splitlines()


@pytest.fixture(scope="module")
def place(fleet: Fleet) -> Iterator[str]:
    """A database with all of OBJECTS."""
    name = fleet.take_database()
    fleet.primary.query(OBJECTS, dbname=name)
    fleet.caught_up()
    yield name
    fleet.primary.query(
        "DROP SCHEMA other, quiet, loud CASCADE; DROP EXTENSION citext, dblink, tablefunc CASCADE", dbname=name
    )
    fleet.primary.query('DROP EXTENSION "uuid-ossp" CASCADE', dbname=name)
    fleet.give_back_database(name)


def dsn(fleet: Fleet, database: str) -> str:
    return f"postgresql://postgres@127.0.0.1:{fleet.primary.port}/{database}"


def command(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proxy", *arguments], input=given, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def catalogue(fleet: Fleet, place: str) -> Catalogue:
    done = command("catalog", dsn(fleet, place))
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Catalogue)


def reads(found: Classification) -> bool:
    return found.cls in (Class.READ, Class.ANALYTIC)


@pytest.mark.parametrize("sql", READS)
def test_harmless_names_leave_a_read_a_read(catalogue: Catalogue, sql: str) -> None:
    found = bind(classify(sql.encode()), catalogue)
    assert reads(found), found.reason
    assert not found.effects


@pytest.mark.parametrize("row", KEPT)
def test_what_names_hide_goes_to_the_primary(catalogue: Catalogue, row: str) -> None:
    reason, sql = row.split("\t")
    found = bind(classify(sql.encode()), catalogue)
    assert not reads(found)
    assert found.reason == reason


HIDDEN = {
    "cast by a keyword": (
        "CREATE FUNCTION to_int(v money2) RETURNS int LANGUAGE sql AS $$ SELECT nextval('ticket')::int $$;"
        "CREATE CAST (money2 AS int) WITH FUNCTION to_int(money2)",
        "DROP CAST (money2 AS int); DROP FUNCTION to_int",
        "SELECT v::int FROM prices",
    ),
    "domain": (
        "CREATE DOMAIN counted AS int CHECK (always(VALUE)); CREATE TABLE counts (a counted, b counted[]);"
        "INSERT INTO counts VALUES (1, '{1}')",
        "DROP TABLE counts; DROP DOMAIN counted",
        "SELECT count(*) FROM counts WHERE b = '{5}'",
    ),
    "index expression": (
        "CREATE TABLE indexed (a int); CREATE INDEX ON indexed ((always(5) AND a > 1))",
        "DROP TABLE indexed",
        "SELECT * FROM indexed",
    ),
    "operator in an index expression": (
        "CREATE FUNCTION agree(a int, b int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT always(a)';"
        "CREATE OPERATOR <!> (LEFTARG = int, RIGHTARG = int, FUNCTION = agree);"
        "CREATE TABLE indexed (a int); CREATE INDEX ON indexed ((5 <!> 6 AND a > 1))",
        "DROP TABLE indexed; DROP FUNCTION agree CASCADE",
        "SELECT * FROM indexed",
    ),
    "operator class": (
        "CREATE FUNCTION cmp(a money2, b money2) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN PERFORM nextval('ticket'); RETURN 0; END $$;"
        "CREATE FUNCTION lt(a money2, b money2) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';"
        "CREATE OPERATOR <<<< (LEFTARG = money2, RIGHTARG = money2, FUNCTION = lt);"
        "CREATE OPERATOR ==== (LEFTARG = money2, RIGHTARG = money2, FUNCTION = lt);"
        "CREATE OPERATOR CLASS c DEFAULT FOR TYPE money2 USING btree AS OPERATOR 1 <<<<,"
        " OPERATOR 3 ====, FUNCTION 1 cmp(money2, money2);"
        "INSERT INTO prices VALUES (ROW(2))",
        "DROP OPERATOR FAMILY c USING btree CASCADE; DROP FUNCTION lt, cmp CASCADE",
        "SELECT v FROM prices ORDER BY v",
    ),
}
"""(created, dropped, read): code that is reached without a name."""
ALWAYS = """
CREATE FUNCTION always(i int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
 $$ BEGIN PERFORM nextval('ticket'); RETURN true; END $$;
"""


@pytest.mark.parametrize("what", HIDDEN)
def test_code_without_a_name_keeps_all_reads_on_the_primary(fleet: Fleet, place: str, what: str) -> None:
    created, dropped, sql = HIDDEN[what]
    fleet.primary.query(ALWAYS + created, dbname=place)
    try:
        done = command("catalog", dsn(fleet, place))
        assert done.returncode == 0, done.stderr
        found = msgspec.json.decode(done.stdout, type=Catalogue)
        before = fleet.primary.query("SELECT last_value FROM ticket", dbname=place)
        fleet.primary.query(sql, dbname=place)
        assert fleet.primary.query("SELECT last_value FROM ticket", dbname=place) != before
    finally:
        fleet.primary.query(f"{dropped}; DROP FUNCTION always", dbname=place)
    for text in (sql, "SELECT * FROM item"):
        assert bind(classify(text.encode()), found).reason == "sequence"


COMPARISONS = """
CREATE FUNCTION compared(a money2, b int) RETURNS boolean LANGUAGE plpgsql STABLE AS
 $$ BEGIN PERFORM nextval('ticket'); RETURN true; END $$;
CREATE OPERATOR = (LEFTARG = money2, RIGHTARG = int, FUNCTION = compared);
CREATE OPERATOR >= (LEFTARG = money2, RIGHTARG = int, FUNCTION = compared);
CREATE OPERATOR <= (LEFTARG = money2, RIGHTARG = int, FUNCTION = compared);
"""
COMPARED = (
    "SELECT v = 1 FROM prices",
    "SELECT v BETWEEN 1 AND 2 FROM prices",
    "SELECT v NOT BETWEEN SYMMETRIC 1 AND 2 FROM prices",
    "SELECT v IN (SELECT qty FROM item) FROM prices",
    "SELECT v IN (1, 2) FROM prices",
    "SELECT CASE v WHEN 1 THEN 2 END FROM prices",
    "SELECT 1 FROM prices JOIN (SELECT 1 AS v) x USING (v)",
    "SELECT 1 FROM prices NATURAL JOIN (SELECT 1 AS v) x",
)


def test_comparisons_that_are_not_written_as_such(fleet: Fleet, place: str) -> None:
    fleet.primary.query(COMPARISONS, dbname=place)
    try:
        found = msgspec.json.decode(command("catalog", dsn(fleet, place)).stdout, type=Catalogue)
    finally:
        fleet.primary.query("DROP FUNCTION compared CASCADE", dbname=place)
    assert [sql for sql in COMPARED if bind(classify(sql.encode()), found).reason != "sequence"] == []
    assert reads(bind(classify(b"SELECT * FROM prices WHERE v <> 1"), found))


def test_names_and_texts_in_no_encoding_can_be_read(fleet: Fleet) -> None:
    fleet.primary.query("CREATE DATABASE raw ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with fleet.primary.connect("raw") as connection:
            connection.execute(b'CREATE TABLE "caf\xe9" (a int)')
            connection.execute(b"CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$SELECT 'caf\xe9'$$")
            connection.execute(b"CREATE VIEW v AS SELECT text 'caf\xe9' AS x")
        done = command("catalog", dsn(fleet, "raw"))
        assert done.returncode == 0, done.stderr
        found = msgspec.json.decode(done.stdout, type=Catalogue)
        assert found.functions["f"]["public"] == found.relations["v"]["public"] == ""
    finally:
        fleet.primary.query("DROP DATABASE raw WITH (FORCE)")


def test_reads_are_answered_alike_by_a_standby(fleet: Fleet, place: str) -> None:
    """The truth of the two lists: a standby answers as the primary does, or not."""
    unlike = set()
    rows = [("", sql) for sql in READS] + [tuple(row.split("\t")) for row in KEPT]
    with fleet.primary.connect(place) as primary, fleet.replicas[0].connect(place) as standby:
        for reason, sql in rows:
            if sql.startswith(("COPY", "EXPLAIN")):
                continue
            here, there = _answer(primary, sql), _answer(standby, sql)
            if not reason:
                assert here[0] == there[0] == "", sql
                assert here[1] == there[1], sql
            elif here != there:
                unlike.add(sql)
    # The others are unknown, or have an effect that can't be seen in an answer.
    assert len(unlike) > 24


def _answer(connection: psycopg.Connection[Any], sql: str) -> tuple[str, list[Any]]:
    with connection.cursor() as cursor:
        try:
            cursor.execute(sql.encode())
            return "", cursor.fetchall()
        except psycopg.Error as error:
            return error.sqlstate or "", []


def test_the_command_line_takes_a_database_or_a_file(fleet: Fleet, place: str, tmp_path: Any) -> None:
    file = tmp_path / "catalogue.json"
    file.write_text(command("catalog", dsn(fleet, place)).stdout)
    given = json.dumps({"sql": "SELECT sql_read(1)"}) + "\n" + json.dumps({"sql": "SELECT sql_write(1)"}) + "\n"
    for known in (("--dsn", dsn(fleet, place)), ("--catalog", str(file))):
        done = command("classify", *known, given=given)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["class"] for line in done.stdout.splitlines()] == ["read", "write"]
    alone = command("classify", given=given)
    assert [json.loads(line)["class"] for line in alone.stdout.splitlines()] == ["write", "write"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dsn", "mysql://x@y/z"), "the DSN must look like"),
        (("--dsn", "postgresql://u@127.0.0.1:1/x"), "connection refused"),
        (("--catalog", "/nowhere/at-all"), "can't be read"),
        (("--catalog", "/dev/null"), "not a catalogue"),
    ],
)
def test_a_catalogue_that_cannot_be_had(arguments: tuple[str, str], said: str) -> None:
    done = command("classify", *arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
