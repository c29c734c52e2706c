"""Code that touches the session in secret: statements that do are watched, by the catalogue of a real node; and the
node itself is asked whether they do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from proxy.sql.catalogue import Catalogue, bind, near
from proxy.sql.classify import classify
from proxy.sql.model import Effect

from ..support.fleet import Fleet

OBJECTS = """
CREATE SCHEMA watching; SET search_path = watching, public;
CREATE FUNCTION touch() RETURNS int LANGUAGE plpgsql AS
 $$ BEGIN PERFORM set_config('work_mem', '7MB', false); RETURN 1; END $$;
CREATE FUNCTION touch_so(i int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT watching.touch() > 0 OR i = 0';
CREATE FUNCTION touched() RETURNS trigger LANGUAGE plpgsql AS
 $$ BEGIN PERFORM watching.touch(); RETURN coalesce(NEW, OLD); END $$;
CREATE FUNCTION tidy() RETURNS trigger LANGUAGE plpgsql AS
 $$ BEGIN NEW.label := upper(NEW.label); INSERT INTO trail(item_id) VALUES (NEW.id); RETURN NEW; END $$;

CREATE TABLE plain (id int PRIMARY KEY, label text DEFAULT lower('A'), at timestamptz DEFAULT now(), n bigserial,
 CHECK (length(label) > 0), fts tsvector GENERATED ALWAYS AS (to_tsvector('simple', label)) STORED);
CREATE TRIGGER tidy BEFORE INSERT OR UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION tidy();
CREATE TRIGGER same BEFORE UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE TABLE child (id int REFERENCES plain ON DELETE CASCADE);
CREATE TABLE off (a int);
CREATE TRIGGER t BEFORE INSERT ON off EXECUTE FUNCTION touched(); ALTER TABLE off DISABLE TRIGGER t;

CREATE TABLE each_row (id int PRIMARY KEY, a int); INSERT INTO each_row VALUES (1, 1);
CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON each_row FOR EACH ROW EXECUTE FUNCTION touched();
CREATE TABLE each_statement (a int);
CREATE TRIGGER t AFTER INSERT OR TRUNCATE ON each_statement EXECUTE FUNCTION touched();
CREATE TABLE deferred (a int);
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED
 FOR EACH ROW EXECUTE FUNCTION touched();
CREATE TABLE on_condition (a int); INSERT INTO on_condition VALUES (1);
CREATE TRIGGER t BEFORE UPDATE ON on_condition FOR EACH ROW WHEN (touch_so(NEW.a))
 EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE TABLE by_default (a int, b int DEFAULT touch());
CREATE TABLE by_own_default (a int, b text DEFAULT set_config('work_mem', '7MB', false));
CREATE TABLE generated (a int, b boolean GENERATED ALWAYS AS (touch_so(a)) STORED);
CREATE TABLE checked (a int CHECK (touch_so(a)));
CREATE TABLE ruled (a int); CREATE RULE r AS ON INSERT TO ruled DO ALSO SELECT touch();
CREATE TABLE redirected (a int); CREATE RULE r AS ON INSERT TO redirected DO INSTEAD INSERT INTO by_default VALUES (1);
CREATE TABLE parted (a int) PARTITION BY LIST (a); CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TRIGGER t BEFORE INSERT ON parted_1 FOR EACH ROW EXECUTE FUNCTION touched();
CREATE TABLE whole (a int) PARTITION BY LIST (a); CREATE TABLE whole_1 PARTITION OF whole FOR VALUES IN (1);
CREATE TRIGGER t BEFORE INSERT ON whole FOR EACH ROW EXECUTE FUNCTION touched();
CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1);
CREATE TABLE owned (id int REFERENCES parent ON DELETE CASCADE); INSERT INTO owned VALUES (1);
CREATE TRIGGER t BEFORE DELETE ON owned FOR EACH ROW EXECUTE FUNCTION touched();
CREATE VIEW read_view AS SELECT touch() AS a;
CREATE VIEW view_of_view AS SELECT a FROM read_view;
CREATE VIEW changed_view AS SELECT id, a FROM each_row;
CREATE VIEW instead_view AS SELECT 1 AS a;
CREATE TRIGGER t INSTEAD OF INSERT ON instead_view FOR EACH ROW EXECUTE FUNCTION touched();
CREATE OPERATOR <!> (RIGHTARG = int, FUNCTION = touch_so);
CREATE TABLE guarded (a int); INSERT INTO guarded VALUES (1); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON guarded USING (touch_so(a)); GRANT ALL ON guarded TO PUBLIC;
GRANT USAGE ON SCHEMA watching TO PUBLIC;
CREATE TABLE guarded_writes (a int); ALTER TABLE guarded_writes ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON guarded_writes FOR INSERT WITH CHECK (touch_so(a)); GRANT ALL ON guarded_writes TO PUBLIC;
"""
TOUCHES = """
SELECT touch()
SELECT <!> 1
SELECT * FROM read_view
SELECT * FROM watching.view_of_view
INSERT INTO plain (id) SELECT a FROM read_view
INSERT INTO each_row VALUES (2, 2)
UPDATE each_row SET a = 1
DELETE FROM each_row
MERGE INTO each_row e USING (SELECT 1 AS id) s ON e.id = s.id WHEN MATCHED THEN UPDATE SET a = 2
WITH w AS (INSERT INTO each_row VALUES (3, 3) RETURNING id) SELECT * FROM w
SELECT 1; INSERT INTO each_row VALUES (4, 4)
EXPLAIN ANALYZE UPDATE each_row SET a = 1
UPDATE changed_view SET a = 1
INSERT INTO instead_view VALUES (1)
INSERT INTO each_statement SELECT 1
TRUNCATE each_statement
INSERT INTO deferred VALUES (1)
UPDATE on_condition SET a = 2
INSERT INTO by_default (a) VALUES (1)
INSERT INTO by_own_default (a) VALUES (1)
INSERT INTO generated (a) VALUES (1)
INSERT INTO checked (a) VALUES (1)
INSERT INTO ruled (a) VALUES (1)
INSERT INTO redirected (a) VALUES (1)
INSERT INTO parted VALUES (1)
INSERT INTO parted_1 VALUES (1)
INSERT INTO whole VALUES (1)
INSERT INTO whole_1 VALUES (1)
DELETE FROM parent
""".strip().splitlines()
TOUCHES_FOR_OTHERS = """
SELECT * FROM guarded
UPDATE guarded SET a = 2
INSERT INTO guarded_writes VALUES (1)
""".strip().splitlines()
"""Policies, which are for those who are no superusers."""
LEAVES_ALONE = """
INSERT INTO plain (id, label) VALUES (2, 'b')
UPDATE plain SET label = 'c'
DELETE FROM plain
INSERT INTO child SELECT id FROM plain
INSERT INTO off VALUES (1)
SELECT * FROM each_row
SELECT * FROM changed_view
SELECT * FROM instead_view
INSERT INTO plain (id, label) SELECT id + 100, 'x' FROM each_row
UPDATE each_statement SET a = 1
DELETE FROM owned WHERE false
SELECT * FROM guarded_writes
COPY parted TO STDOUT
""".strip().splitlines()
STRICTER = ("UPDATE each_statement SET a = 1", "DELETE FROM owned WHERE false")
"""Watched all the same: what fires a trigger is not looked at."""


@pytest.fixture(scope="module")
def place(fleet: Fleet) -> Iterator[str]:
    name = fleet.take_database()
    fleet.primary.query(OBJECTS, dbname=name)
    yield name
    fleet.primary.query("DROP SCHEMA watching CASCADE", dbname=name)
    fleet.give_back_database(name)


def catalogue_of(fleet: Fleet, database: str) -> Catalogue:
    url = f"postgresql://postgres@127.0.0.1:{fleet.primary.port}/{database}"
    done = subprocess.run([sys.executable, "-m", "proxy", "catalog", url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Catalogue)


@pytest.fixture(scope="module")
def catalogue(fleet: Fleet, place: str) -> Catalogue:
    return catalogue_of(fleet, place)


def left(fleet: Fleet, database: str, sql: str, role: str = "") -> bool:
    """Whether it leaves something behind; nothing of what it did to tables stays."""
    with fleet.primary.connect(database) as connection:
        connection.autocommit = True
        connection.execute("SET search_path = watching, public")
        if role:
            connection.execute(f"SET ROLE {role}")
        connection.execute("BEGIN")
        try:
            connection.execute(sql.encode())
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            row = connection.execute("SHOW work_mem").fetchone()
        finally:
            connection.execute("ROLLBACK")
        return row == ("7MB",)


def is_watched(sql: str, catalogue: Catalogue) -> bool:
    """By either look, which must agree where no function is named."""
    text = classify(sql.encode())
    effects = near(text, catalogue).effects
    assert effects == bind(text, catalogue).effects
    return Effect.UNKNOWN_CODE in effects


@pytest.mark.parametrize("sql", TOUCHES)
def test_what_touches_the_session_is_watched(fleet: Fleet, place: str, catalogue: Catalogue, sql: str) -> None:
    assert left(fleet, place, sql)
    assert is_watched(sql, catalogue)


@pytest.mark.parametrize("sql", TOUCHES_FOR_OTHERS)
def test_what_touches_the_session_of_others_is_watched(
    fleet: Fleet, place: str, catalogue: Catalogue, sql: str
) -> None:
    assert left(fleet, place, sql, "pg_monitor")
    assert is_watched(sql, catalogue)


@pytest.mark.parametrize("sql", LEAVES_ALONE)
def test_what_leaves_the_session_alone_is_not_watched(fleet: Fleet, place: str, catalogue: Catalogue, sql: str) -> None:
    if not sql.startswith("COPY"):
        assert not left(fleet, place, sql)
    assert is_watched(sql, catalogue) == (sql in STRICTER)


HIDDEN = {
    "domain": "CREATE DOMAIN hides AS int CHECK (touch_so(VALUE)); CREATE TABLE uses (a hides)",
    "default of a domain": "CREATE DOMAIN hides AS int DEFAULT touch(); CREATE TABLE uses (a hides)",
    "index": "CREATE TABLE uses (a int); CREATE INDEX ON uses (touch_so(a))",
    "cast": "CREATE TABLE uses (a item); CREATE CAST (int AS item) WITH FUNCTION to_item AS ASSIGNMENT",
}
TO_ITEM = """
CREATE FUNCTION to_item(i int) RETURNS item LANGUAGE plpgsql AS
 $$ DECLARE r item; BEGIN PERFORM watching.touch(); RETURN r; END $$;
"""


@pytest.mark.parametrize("what", HIDDEN)
def test_code_without_a_name_makes_all_watched(fleet: Fleet, place: str, what: str) -> None:
    fleet.primary.query(f"SET search_path = watching, public; {TO_ITEM} {HIDDEN[what]}", dbname=place)
    try:
        found = catalogue_of(fleet, place)
        write = "INSERT INTO uses DEFAULT VALUES" if "default" in what else "INSERT INTO uses VALUES (1)"
        assert left(fleet, place, write)
    finally:
        drop = "SET search_path = watching, public; DROP FUNCTION to_item CASCADE; DROP TABLE uses;"
        fleet.primary.query(f"{drop} DROP DOMAIN IF EXISTS hides", dbname=place)
    for sql in (write, "SELECT * FROM item"):
        assert Effect.UNKNOWN_CODE in near(classify(sql.encode()), found).effects


def test_reading_gives_way_to_ddl(fleet: Fleet, place: str) -> None:
    """Printing a view's definition waits for who holds its table; whoever has both must not fail for it."""
    url = f"postgresql://postgres@127.0.0.1:{fleet.primary.port}/{place}"
    with fleet.primary.connect(place) as connection:
        connection.autocommit = False
        connection.execute("LOCK TABLE watching.each_row IN ACCESS EXCLUSIVE MODE")
        done = subprocess.run(
            [sys.executable, "-m", "proxy", "catalog", url], capture_output=True, text=True, check=False
        )
        connection.rollback()
    assert done.returncode == 1
    assert "lock timeout" in done.stderr
