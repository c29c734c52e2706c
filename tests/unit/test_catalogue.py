"""The catalogue without a server: names to reasons, and what a worker believes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.routing.bind import Binding
from proxy.sql import inventory
from proxy.sql.catalogue import Catalogue, Watched, bind, near
from proxy.sql.classify import classify
from proxy.sql.model import Class, Effect

NONE: dict[str, Any] = {name: [] for name in inventory.QUERIES}
ITEM = ["public", "item", "r", "p", None]


def function(name: str, body: str, language: str = "sql", **more: str | None) -> list[str | None]:
    """A row of QUERIES["functions"]."""
    row = {"schema": "public", "kind": "f", "volatile": "v", "extension": None, "defaults": None, "field": "f"}
    row |= {"settings": None} | more
    return [
        row["schema"],
        name,
        row["kind"],
        row["volatile"],
        language,
        row["extension"],
        body if language in ("sql", "plpgsql") else None,
        row["defaults"],
        row["field"],
        None,
        row["settings"],
    ]


def plpgsql(body: str) -> str:
    return f"CREATE FUNCTION f(i integer) RETURNS integer LANGUAGE plpgsql AS $function$\n{body}\n$function$"


def functions(*rows: list[str | None]) -> dict[str, dict[str, str]]:
    return inventory.catalogue_of({**NONE, "relations": [ITEM], "functions": list(rows)}).functions


@given(st.text(max_size=60), st.sampled_from(["sql", "plpgsql", "c"]))
def test_no_body_makes_it_raise(body: str, language: str) -> None:
    functions(function("f", body, language))
    functions(function("f", plpgsql(f"BEGIN {body} END"), "plpgsql"), function("g", "SELECT 1", defaults=body))


@pytest.mark.parametrize("depth", [100, 1000, 3000])
@pytest.mark.parametrize(
    ("before", "after"), [("BEGIN ", "END; "), ("IF true THEN ", "END IF; "), ("PERFORM ((", "))")]
)
def test_deep_bodies_need_the_primary_or_are_read(depth: int, before: str, after: str) -> None:
    body = plpgsql(f"BEGIN {before * depth} {after * depth} END")
    assert "public" in functions(function("f", body, "plpgsql"))["f"]


@pytest.mark.parametrize(
    ("language", "volatile", "extension", "reason"),
    [
        ("c", "i", "anything", ""),
        ("c", "s", "hstore", ""),
        ("internal", "i", "citext", ""),
        ("c", "s", "anything", "unknown_function"),
        ("c", "v", "hstore", "volatile_function"),
        ("c", "i", None, "unknown_function"),
        ("plpython3u", "i", "anything", "unknown_function"),
    ],
)
def test_marks_are_believed_of_extensions_alone(
    language: str, volatile: str, extension: str | None, reason: str
) -> None:
    assert functions(function("f", "", language, volatile=volatile, extension=extension)) == {"f": {"public": reason}}


@pytest.mark.parametrize(
    "statement",
    [
        "OPEN c FOR SELECT 1",
        "EXECUTE 'SELECT 1'",
        "FOR r IN EXECUTE 'SELECT 1' LOOP NULL; END LOOP",
        "CALL p()",
        "COMMIT",
        "x[nextval('s')] := 1",
        "x := nextval('s')",
        "x = nextval('s')",
        "RAISE NOTICE '%', nextval('s')",
        "SET LOCAL work_mem = '1MB'",
        "FOREACH x IN ARRAY ARRAY[1] LOOP DELETE FROM item; END LOOP",
    ],
)
def test_what_plpgsql_may_not_do(statement: str) -> None:
    declared = "DECLARE x int; r record; c refcursor;"
    good = functions(function("f", plpgsql(f"{declared} BEGIN x := 1; RETURN x; END"), "plpgsql"))
    assert good["f"]["public"] == ""
    bad = functions(function("f", plpgsql(f"{declared} BEGIN {statement}; RETURN 1; END"), "plpgsql"))
    assert bad["f"]["public"] != ""


def test_what_uses_it_needs_the_primary_too_whatever_the_order() -> None:
    rows = [
        function("a", "SELECT b()"),
        function("b", "SELECT c()"),
        function("c", "SELECT a(), d()"),
        function("d", "SELECT nextval('s')"),
        function("e", "SELECT e()"),
    ]
    for order in (rows, rows[::-1]):
        found = functions(*order)
        assert [found[name]["public"] for name in "abcde"] == ["sequence"] * 4 + [""]


def test_equal_rows_have_an_equal_version() -> None:
    rows = [function("a", "SELECT 1"), function("b", "SELECT 2")]
    first = inventory.catalogue_of({**NONE, "functions": rows})
    assert first.version == inventory.catalogue_of({**NONE, "functions": rows[::-1]}).version
    assert first.version != inventory.catalogue_of({**NONE, "functions": rows[:1]}).version


@pytest.mark.parametrize(
    "hidden",
    [
        {"implied": [["public", "counts", "v"]]},
        {"domains": [["(public.counts() > 0)"]]},
        {"domains": [["nextval('s')"]]},
    ],
)
def test_what_needs_no_name_keeps_every_read_on_the_primary(hidden: dict[str, Any]) -> None:
    rows = [function("counts", "SELECT nextval('s')")]
    found = inventory.catalogue_of({**NONE, "relations": [ITEM], "functions": rows, **hidden})
    assert bind(classify(b"SELECT * FROM item"), found).reason == "sequence"
    assert bind(classify(b"SELECT 1"), found).cls is Class.READ  # no name, nothing to cast


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("search_path=public", ""),
        ("work_mem=1MB\nstandard_conforming_strings=off", "unknown_function"),
        ("transaction_read_only=off", "unknown_function"),
    ],
)
def test_settings_of_a_function(settings: str, reason: str) -> None:
    assert functions(function("f", "SELECT 1", settings=settings))["f"]["public"] == reason


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("r record;", ""),
        ("r record := ROW(1);", "unknown_function"),
        ("r CONSTANT record = ROW(1);", "unknown_function"),
        ("r record NOT NULL DEFAULT ROW(1);", "unknown_function"),
        ("r RECORD /* x */ :=ROW(1);", "unknown_function"),
        ("records int := 1; r int := 1;", ""),
    ],
)
def test_values_of_records_are_not_in_the_tree(declared: str, reason: str) -> None:
    body = plpgsql(f"DECLARE {declared} BEGIN RETURN 1; END")
    assert functions(function("f", body, "plpgsql"))["f"]["public"] == reason


SETS = "PERFORM set_config('work_mem', '7MB', false)"
LEAVES = [
    SETS,
    "SET work_mem = '7MB'",
    "PERFORM set_config(x, 'a', false)",
    "PERFORM set_config('work_mem', 'a', local)",
    "PERFORM pg_advisory_lock(1)",
    "PERFORM pg_catalog.pg_try_advisory_lock_shared(1)",
    "LISTEN jobs",
    "CREATE TEMP TABLE t (a int)",
    "DROP TABLE t",
    "EXECUTE 'SELECT 1'",
    "FOR r IN EXECUTE x LOOP NULL; END LOOP",
    "OPEN c FOR EXECUTE x",
    "CALL p()",
    "PERFORM query_to_xml(x, true, true, '')",
    "PERFORM setter()",
    "PERFORM 1 <!> 2",
    "SELECT * INTO r FROM setting_view",
    "INSERT INTO fires VALUES (1)",
    "WITH w AS (DELETE FROM public.fires RETURNING 1) SELECT * INTO r FROM w",
    "TRUNCATE fires",
    "x := set_config('work_mem', '7MB', false)",
    "nonsense ((",
]
LEAVES_NOTHING = [
    "SET LOCAL work_mem = '7MB'",
    "PERFORM set_config('work_mem', '7MB', true)",
    "PERFORM pg_advisory_xact_lock(1), pg_notify('a', 'b'), nextval('s'), currval('s')",
    "CREATE TEMP TABLE t (a int) ON COMMIT DROP",
    "INSERT INTO item VALUES (1); UPDATE item SET a = 1; DELETE FROM item",
    "SELECT * INTO r FROM fires",
    "OPEN c FOR SELECT 1; FETCH c INTO x; CLOSE c",
    "NOTIFY jobs",
    "PERFORM some_function_of_postgresql()",
    "PERFORM f(1)",
]
AROUND: dict[str, Any] = {
    "relations": [
        ITEM,
        ["public", "fires", "r", "p", None],
        ["public", "setting_view", "v", "p", "SELECT public.setter() AS a"],
    ],
    "triggers": [["public", "fires", "public", "setter", None]],
    "operators": [["public", "<!>", "public", "setter", "v"]],
}


@pytest.mark.parametrize("kind", ["i integer", "trigger"])
@pytest.mark.parametrize(
    ("body", "watched"), [*((body, True) for body in LEAVES), *((body, False) for body in LEAVES_NOTHING)]
)
def test_what_is_watched_of_a_body(body: str, watched: bool, kind: str) -> None:
    text = plpgsql(f"DECLARE x text; local bool; r record; c refcursor; BEGIN {body}; RETURN NULL; END")
    if kind == "trigger":
        text = text.replace("(i integer) RETURNS integer", "() RETURNS trigger")
    setter = function("setter", plpgsql(f"BEGIN {SETS}; RETURN 1; END"), "plpgsql")
    found = inventory.catalogue_of({**NONE, **AROUND, "functions": [function("f", text, "plpgsql"), setter]})
    assert ("f" in found.watched.functions) == watched
    assert found.watched.functions["setter"] == ["public"]


@pytest.mark.parametrize(
    ("language", "more", "watched"),
    [
        ("c", {"volatile": "i", "extension": "anything"}, False),
        ("c", {"volatile": "s", "extension": "anything"}, False),
        ("c", {"volatile": "v", "extension": "pg_trgm"}, True),
        ("c", {"volatile": "i"}, True),
        ("plpython3u", {"volatile": "i"}, True),
        ("sql", {}, False),
        ("sql", {"settings": "search_path=public, pg_temp"}, False),
        ("sql", {"settings": "search_path=pg_temp, public"}, True),
        ("sql", {"settings": "standard_conforming_strings=off"}, True),
        ("sql", {"defaults": "1, set_config('a.b', 'c', false)"}, True),
    ],
)
def test_what_is_watched_of_a_function(language: str, more: dict[str, str], watched: bool) -> None:
    found = inventory.catalogue_of({**NONE, "functions": [function("f", "SELECT 1", language, **more)]})
    assert ("f" in found.watched.functions) == watched


WHEN = "CREATE TRIGGER t BEFORE UPDATE ON public.item FOR EACH ROW WHEN (public.setter() > 0) EXECUTE FUNCTION "
RULE = "CREATE RULE r AS ON INSERT TO public.item DO ALSO "
CODE_OF_WRITES: dict[str, dict[str, Any]] = {
    "trigger": {"triggers": [["public", "item", "public", "setter", None]]},
    "condition of a trigger": {"triggers": [["public", "item", "pg_catalog", "own", WHEN + "own()"]]},
    "rule": {"rules": [["public", "item", RULE + "SELECT public.setter()"]]},
    "write of a rule": {"rules": [["public", "item", RULE + "INSERT INTO public.fires VALUES (1)"]]},
    "unreadable rule": {"rules": [["public", "item", RULE + "(("]]},
    "default": {"expressions": [["public", "item", "public.setter()"]]},
    "default that sets": {"expressions": [["public", "item", "set_config('a.b'::text, 'c'::text, false)"]]},
    "check": {"expressions": [["public", "item", "((a > 0) AND (public.setter() > a))"]]},
    "cascade": {"cascades": [["public", "item", "public", "fires"]]},
    "cascades": {"cascades": [["public", "item", "public", "middle"], ["public", "middle", "public", "fires"]]},
}


@pytest.mark.parametrize("what", CODE_OF_WRITES)
def test_writes_that_run_code_are_watched_and_reads_are_not(what: str) -> None:
    setter = function("setter", plpgsql(f"BEGIN {SETS}; RETURN 1; END"), "plpgsql")
    rows: dict[str, Any] = {**NONE, **AROUND, "functions": [setter]}
    rows["relations"] = [*rows["relations"], ["public", "above", "v", "p", "SELECT a FROM public.item"]]
    quiet = inventory.catalogue_of(rows)
    rows |= {name: rows[name] + more for name, more in CODE_OF_WRITES[what].items()}
    found = inventory.catalogue_of(rows)
    for write in (
        "INSERT INTO item SELECT 1",
        "UPDATE public.item SET a = 1",
        "DELETE FROM above",
        "MERGE INTO item USING fires ON true WHEN MATCHED THEN DELETE",
        "COPY item FROM STDIN",
        "TRUNCATE item",
        "WITH w AS (UPDATE item SET a = 1 RETURNING a) SELECT * FROM w",
        "SELECT 1; INSERT INTO item VALUES (1)",
        "EXPLAIN ANALYZE INSERT INTO item VALUES (1)",
        "BEGIN; DELETE FROM item; COMMIT",
    ):
        text = classify(write.encode())
        assert not bind(text, quiet).effects and near(text, quiet) is text, write
        for bound in (bind(text, found), near(text, found)):
            assert bound.effects == Effect.UNKNOWN_CODE, write
            assert (bound.cls, bound.reason, bound.kind) == (text.cls, text.reason, text.kind)
            assert (bound.statements, bound.ends_transaction) == (text.statements, text.ends_transaction)
    for read in ("SELECT * FROM item", "SELECT * FROM above", "COPY item TO STDOUT", "INSERT INTO other TABLE item"):
        text = classify(read.encode())
        assert near(text, found) is text, read
        assert not bind(text, found).effects, read


def test_reads_that_run_code_are_watched() -> None:
    setter = function("setter", plpgsql(f"BEGIN {SETS}; RETURN 1; END"), "plpgsql", field="t")
    rows: dict[str, Any] = {
        **NONE,
        **AROUND,
        "functions": [setter],
        "policies": [["public", "item", "public.setter()"]],
    }
    found = inventory.catalogue_of(rows)
    for text in map(
        classify,
        (
            b"SELECT * FROM item",
            b"SELECT a FROM public.setting_view",
            b"INSERT INTO other SELECT a FROM setting_view",
            b"SELECT 1 <!> 2",
            b"SELECT o.setter FROM other o",
            b"SELECT setter()",
        ),
    ):
        assert bind(text, found).effects == near(text, found).effects == Effect.UNKNOWN_CODE, text.text
        assert near(text, found).cls is text.cls


@pytest.mark.parametrize(
    "hidden",
    [
        {"implied": [["public", "setter", "i"]]},
        {"domains": [["(public.setter() > 0)"]]},
        {"expressions": [[None, None, "public.setter()"]]},
    ],
)
def test_code_without_a_name_makes_all_watched(hidden: dict[str, Any]) -> None:
    setter = function("setter", plpgsql(f"BEGIN {SETS}; RETURN 1; END"), "plpgsql")
    for body, watched in ((setter, True), (function("setter", "SELECT nextval('s')"), False)):
        found = inventory.catalogue_of({**NONE, "relations": [ITEM], "functions": [body], **hidden})
        assert (Effect.UNKNOWN_CODE in near(classify(b"DELETE FROM item"), found).effects) == watched


def test_what_was_made_anew_in_the_same_string_is_not_believed() -> None:
    known = Catalogue(version="1", functions={"f": {"public": ""}}, relations={"item": {"public": ""}})
    assert not bind(classify(b"SELECT f(); INSERT INTO item VALUES (f())"), known).effects
    for text in (
        b"CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 2'; SELECT f()",
        b"CREATE TRIGGER t BEFORE INSERT ON item EXECUTE FUNCTION g(); INSERT INTO item VALUES (1)",
    ):
        assert bind(classify(text), known).effects == Effect.UNKNOWN_CODE
    assert not bind(classify(b"TRUNCATE item; INSERT INTO item VALUES (1)"), known).effects


def test_code_of_a_write_that_is_known_need_not_be_watched() -> None:
    known = Catalogue(version="1", functions={"f": {"public": ""}}, relations={"item": {"public": ""}})
    write = classify(b"INSERT INTO item VALUES (f(1))")
    assert write.effects == Effect.UNKNOWN_CODE
    assert bind(write, known).effects == Effect.NONE
    assert bind(write, Catalogue(version="2")) is write


class TestBinding:
    def test_before_a_catalogue_nothing_leaves_the_primary(self) -> None:
        binding = Binding("db", 10, 1.0)
        assert binding.of(classify(b"SELECT 1")).cls is Class.READ
        found = binding.of(classify(b"SELECT * FROM item"))
        assert (found.cls, found.reason, found.effects) == (Class.WRITE, "no_catalogue", Effect.NONE)

    def test_a_new_catalogue_is_believed_at_once_and_one_like_it_changes_nothing(self) -> None:
        binding = Binding("db", 10, 1.0)
        text = classify(b"SELECT f()")
        assert binding.of(text).writes
        binding.learn(Catalogue(version="1", functions={"f": {"public": ""}}), 5)
        first = binding.of(text)
        assert (first.cls, binding.read_ns, binding.version) == (Class.READ, 5, "1")
        binding.learn(None, 9)
        assert (binding.of(text), binding.read_ns) == (first, 9)
        binding.learn(Catalogue(version="2", functions={"f": {"public": "sequence"}}), 12)
        assert binding.of(text).reason == "sequence"

    def test_one_that_cannot_be_read_any_more_is_not_believed(self) -> None:
        binding = Binding("db", 10, 1.0)
        binding.learn(Catalogue(version="1"), 5)
        binding.learn(None, 0)
        assert binding.read_ns == 0

    def test_it_remembers_no_more_than_it_may(self) -> None:
        binding = Binding("db", 10, 1.0)
        binding.learn(Catalogue(version="1", relations={f"t{n}": {"public": ""} for n in range(99)}), 5)
        for n in range(99):
            assert binding.of(classify(b"SELECT * FROM t%d" % n)).cls is Class.READ
            assert len(binding._bound) <= 10

    def test_without_split_reads_only_what_is_watched_counts(self) -> None:
        binding = Binding("db", 10, 0.0, split=False)
        texts = [classify(text) for text in (b"SELECT * FROM item", b"SELECT f()", b"INSERT INTO item VALUES (1)")]
        for text in texts:
            assert binding.of(text) is binding.unsure(text) is text
        binding.doubt(3)  # of a catalogue that nobody has
        assert [binding.of(text) for text in texts] == texts
        watched = Watched(written={"item": ["public"]})
        binding.learn(Catalogue(version="1", functions={"f": {"public": ""}}, watched=watched), 5)
        bound = [binding.of(text) for text in texts]
        assert bound[:2] == texts[:2]  # unseen code that is named stays that
        assert bound[2].effects == Effect.UNKNOWN_CODE
        assert bound[2] is binding.of(texts[2])

    @pytest.mark.parametrize("split", [False, True])
    def test_after_ddl_all_that_has_names_is_watched_until_it_is_read_again(self, split: bool) -> None:
        binding = Binding("db", 10, 0.0, split=split)
        names = {"item": {"public": ""}}
        binding.learn(Catalogue(version="1", functions={"f": {"public": ""}}, relations=names), 5)
        texts = [classify(text) for text in (b"SELECT * FROM item", b"SELECT f()", b"DELETE FROM item")]
        before = [binding.of(text) for text in texts]
        binding.doubt(7)
        first = [binding.of(text) for text in texts]
        assert all(bound.effects == Effect.UNKNOWN_CODE for bound in first)
        assert not split or all(bound.writes for bound in first)
        assert [binding.of(text) for text in texts] == first
        assert binding.of(classify(b"SELECT 1")).effects == Effect.NONE
        binding.doubt(7)
        assert binding.of(texts[0]) is first[0]
        binding.doubt(8)  # what was harmless since then, need not be any more
        assert all(binding.of(text) is not bound for text, bound in zip(texts, first, strict=True))
        binding.learn(None, 8)
        assert binding.of(texts[0]).effects == Effect.UNKNOWN_CODE
        binding.learn(None, 9)
        assert [binding.of(text) for text in texts] == before

    def test_it_remembers_no_more_than_it_may_while_it_is_not_believed(self) -> None:
        binding = Binding("db", 10, 1.0)
        binding.learn(Catalogue(version="1"), 5)
        binding.doubt(6)
        for n in range(99):
            binding.of(classify(b"SELECT * FROM t%d" % n))
            assert len(binding._unsure) <= 10


COLLATED = inventory.catalogue_of(
    {
        **NONE,
        "relations": [ITEM],
        "collations": [["label", "false"], ["alike", "true"], ["", "false"]],
    }
)


@pytest.mark.parametrize(
    ("sql", "collated"),
    [
        ("SELECT qty, count(*) FROM item GROUP BY qty ORDER BY qty", False),
        ("SELECT label, count(*) FROM item GROUP BY label", False),
        ("SELECT count(*) FROM item WHERE label = 'a' OR label LIKE 'b%'", False),
        ("SELECT CASE WHEN qty = 1 THEN 'a' ELSE 'B' END AS k, count(*) FROM item GROUP BY 1", False),
        ("SELECT date_trunc('day', d), count(*) FROM item WHERE k <> 'x' GROUP BY 1 ORDER BY 1", False),
        ("SELECT label, count(*) FROM item GROUP BY label ORDER BY label", True),
        ("SELECT label AS l, count(*) FROM item GROUP BY 1 ORDER BY l", True),
        ("SELECT count(*) FROM item WHERE label > 'a'", True),
        ("SELECT count(*) FROM item WHERE label BETWEEN 'a' AND 'b'", True),
        ("SELECT count(*), max(label) FROM item", True),
        ("SELECT count(*), greatest(max(qty), 1), sum(length(label)) FROM item", True),
        ("SELECT string_agg(label, ',' ORDER BY label) FROM item", True),
        ("SELECT qty, rank() OVER (ORDER BY label) FROM item", True),
        ("SELECT upper(label), count(*) FROM item GROUP BY 1", True),
        ("SELECT CASE WHEN qty = 1 THEN 'a' ELSE 'B' END AS k, count(*) FROM item GROUP BY 1 ORDER BY 1", True),
        ("SELECT 'a' AS k, count(*) FROM item UNION ALL SELECT 'B', count(*) FROM item ORDER BY 1", True),
        ("SELECT *, count(*) OVER () FROM item ORDER BY 2", True),
        ("SELECT l, count(*) FROM item AS i(l) GROUP BY l ORDER BY l", True),
        ("SELECT count(*) FROM item WHERE alike <> 'a'", True),
        ("SELECT count(*) FROM (SELECT DISTINCT * FROM item) s", True),
    ],
)
def test_what_depends_on_a_collation_is_for_postgresql_only(sql: str, collated: bool) -> None:
    found = classify(sql.encode())
    bound = bind(found, inventory.catalogue_of({**NONE, "relations": [ITEM]}))
    assert (bound.cls, bound.fragile) == (Class.ANALYTIC, False)
    bound = bind(found, COLLATED)
    assert (bound.cls, bound.fragile) == (Class.ANALYTIC, collated)


def test_a_plain_read_may_depend_on_a_collation_too() -> None:
    """A hint may want it on a columnar node."""
    assert bind(classify(b"SELECT label FROM item ORDER BY label"), COLLATED).fragile
    assert not bind(classify(b"SELECT label FROM item"), COLLATED).fragile


def test_a_collation_hides_no_time() -> None:
    timed = classify(b"SELECT max(label) FROM item WHERE made < now() GROUP BY qty")
    bound = bind(timed, COLLATED)
    assert timed.timed and bound.timed and bound.fragile
