"""Classification beyond class and effects: names, settings, transactions, several statements, odd input."""

from __future__ import annotations

import io
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.sql import lexical
from proxy.sql.analyze import Opinion, opinion, prepared
from proxy.sql.cache import TextCache
from proxy.sql.classify import MAX_PARSED, Classifier, classify
from proxy.sql.command import main
from proxy.sql.model import Class, Classification, Effect, names

from .test_classify_corpus import rows


def of(sql: str) -> Classification:
    return classify(sql.encode())


@pytest.mark.parametrize(
    ("sql", "kind", "name", "written"),
    [
        ("PREPARE a AS SELECT 1", "prepare", "a", "a"),
        ("prepare FooBar (int) as select $1", "prepare", "foobar", "FooBar"),
        ('PREPARE "Foo""Bar" AS SELECT 1', "prepare", 'Foo"Bar', '"Foo""Bar"'),
        ("/* x */ ;EXECUTE -- y\n é (1)", "execute", "é", "é"),
        ("EXECUTE U&\"d!0061t\" UESCAPE '!' (1)", "execute", "dat", "U&\"d!0061t\" UESCAPE '!'"),
        ("DEALLOCATE a;", "deallocate", "a", "a"),
        ("DEALLOCATE PREPARE a", "deallocate", "a", "a"),
        ("DEALLOCATE PREPARE", "deallocate", "prepare", "PREPARE"),
        ("DEALLOCATE prepare prepare", "deallocate", "prepare", "prepare"),
        ("DEALLOCATE ALL", "deallocate", "", None),
        ('DEALLOCATE "all"', "deallocate", "all", '"all"'),
        ("SELECT 1", "select", "", None),
    ],
)
def test_statement_name(sql: str, kind: str, name: str, written: str | None) -> None:
    found = of(sql)
    assert (found.kind, found.name) == (kind, name)
    assert (found.name_span and sql[slice(*found.name_span)]) == written


def test_name_span_counts_characters_of_invalid_text_too() -> None:
    sql = b"/* \xff\xe9\xc3\xa9 */ EXECUTE \xe9a"
    found = classify(sql)
    assert found.name_span is not None
    assert sql.decode("utf-8", "surrogateescape")[slice(*found.name_span)] == "\udce9a"


@pytest.mark.parametrize(
    ("sql", "names", "resets"),
    [
        ("SET TimeZone = 'UTC'", "timezone", False),
        ("SET TIME ZONE 'UTC'", "timezone", False),
        ("SET NAMES 'UTF8'", "client_encoding", False),
        ("SET SCHEMA 'x'", "search_path", False),
        ('SET "App"."Key" = 1', "app.key", False),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "default_transaction_read_only", False),
        (
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, DEFERRABLE",
            "default_transaction_deferrable default_transaction_isolation",
            False,
        ),
        ("SET x TO DEFAULT", "x", True),
        ("RESET x", "x", True),
        ("RESET ALL", "", True),
        ("DISCARD ALL", "", True),
        ("DISCARD PLANS", "", False),
        ("SET LOCAL x TO DEFAULT", "", False),
        ("RESET transaction_isolation", "", False),
        ("SET TRANSACTION READ ONLY", "", False),
        ("SELECT set_config('A.B', 'x', false), set_config('c', 'x', false)", "a.b c", False),
        ("SELECT set_config('a', 'x', true)", "", False),
        ("EXPLAIN SELECT set_config('a', 'x', false)", "", False),
        ("EXPLAIN ANALYZE SELECT set_config('a', 'x', false)", "a", False),
        ("SET a = 1; RESET b; SELECT 1", "a b", True),
    ],
)
def test_settings(sql: str, names: str, resets: bool) -> None:
    found = of(sql)
    assert (" ".join(sorted(found.settings)), found.resets) == (names, resets)


@pytest.mark.parametrize(
    ("sql", "kind", "starts", "ends", "read_only"),
    [
        ("BEGIN", "begin", True, False, False),
        ("BEGIN READ ONLY", "begin", True, False, True),
        ("BEGIN READ ONLY, READ WRITE", "begin", True, False, False),
        ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "begin", True, False, True),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY", "begin", True, False, False),
        ("START TRANSACTION READ ONLY", "start transaction", True, False, True),
        ("BEGIN READ ONLY; SELECT 1", "begin", True, False, False),
        ("COMMIT", "commit", False, True, False),
        ("END", "commit", False, True, False),
        ("COMMIT AND CHAIN", "commit", True, True, False),
        ("ABORT", "rollback", False, True, False),
        ("ROLLBACK TO a", "rollback to", False, False, False),
        ("SAVEPOINT a", "savepoint", False, False, False),
        ("RELEASE a", "release", False, False, False),
        ("PREPARE TRANSACTION 'x'", "prepare transaction", False, True, False),
        ("COMMIT PREPARED 'x'", "commit prepared", False, False, False),
        ("SELECT 1; BEGIN; COMMIT", "select", True, True, False),
    ],
)
def test_transactions(sql: str, kind: str, starts: bool, ends: bool, read_only: bool) -> None:
    found = of(sql)
    assert found.cls is Class.WRITE
    assert (found.kind, found.starts_transaction, found.ends_transaction) == (kind, starts, ends)
    assert found.read_only_transaction == read_only


@pytest.mark.parametrize(
    ("sql", "cls", "reason", "statements"),
    [
        ("", Class.READ, "empty", 0),
        (" ;; -- x\n /* y */", Class.READ, "empty", 0),
        ("SELECT 1;", Class.READ, "select", 1),
        ("SELECT 1; SELECT 2", Class.WRITE, "several_statements", 2),
        ("SELECT 1; SHOW x", Class.SESSION, "show", 2),
        ("SHOW x; INSERT INTO t VALUES (1); SELECT 2", Class.WRITE, "insert", 3),
        ("SELECT 1; SELECT count(*) FROM t; SELECT f(", Class.WRITE, "syntax", 1),
    ],
)
def test_several_statements(sql: str, cls: Class, reason: str, statements: int) -> None:
    found = of(sql)
    assert (found.cls, found.reason, found.statements) == (cls, reason, statements)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("FLARB the table", "syntax"),
        ("SELECT " + "(" * 250 + "1" + ")" * 250, "too_deep"),
        ("SELECT " + "1+" * 600 + "1", "too_deep"),
        ("SELECT " + "NOT " * 600 + "true", "too_deep"),
        ("SELECT 1" + " UNION SELECT 1" * 600, "too_deep"),
        ("SELECT " + "CASE WHEN true THEN " * 250 + "1" + " END" * 250, "too_deep"),
        ("SELECT 1" + "::int" * 300, "too_deep"),
        ("SELECT " + "(" * 4000 + "1" + ")" * 4000, "too_complex"),
        ("SELECT " + "a," * 4000 + "a", "too_complex"),
        ("SELECT * FROM t WHERE " + "a AND " * 2000 + "a", "too_complex"),
        ("SELECT '" + "x" * MAX_PARSED + "'", "too_long"),
        ("SELECT " + "(" * 1_500_000 + "1" + ")" * 1_500_000, "too_long"),
        ("SELECT 1\0; DELETE FROM t", "nul"),
    ],
)
def test_what_has_no_tree_goes_to_the_primary(sql: str, reason: str) -> None:
    found = of(sql)
    assert (found.cls, found.reason) == (Class.WRITE, reason)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT * FROM (SELECT * FROM t FOR SHARE) x", "for_update"),
        ("WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d", "modifying_cte"),
        ("SELECT 1 INTO x", "select_into"),
        ("SELECT nextval('s')", "sequence"),
        ("SELECT f(1)", "unknown_function"),
        ("SELECT pg_notify('a', 'b')", "acts"),
        ("SELECT query_to_xml('delete from t', true, true, '')", "runs_sql"),
        ("SELECT * FROM pg_stat_activity", "node_state"),
        ("VALUES (DEFAULT)", "unknown_node"),
        ("COPY t TO '/x'", "copy_file"),
        ("CREATE TEMP TABLE t AS SELECT 1", "temp"),
        ("CREATE TABLE t AS SELECT 1", "ddl"),
        ("SELECT count(*) FROM t", "aggregate"),
    ],
)
def test_reason(sql: str, reason: str) -> None:
    assert of(sql).reason == reason


def test_parts_in_strings_and_flat_lists_are_not_depth() -> None:
    assert of("SELECT '" + "((((" * 300 + "'").cls is Class.READ
    assert of("SELECT * FROM t WHERE " + "a AND " * 600 + "a").cls is Class.READ
    assert of("SELECT * FROM t WHERE id IN (" + ", ".join(map(str, range(1000))) + ")").cls is Class.READ


@pytest.mark.parametrize(
    ("sql", "present", "absent"),
    [
        ("INSERT INTO t VALUES ('{}')", Effect.UNKNOWN_CODE, Effect.SET_ANY | Effect.TEMP | Effect.LISTEN),
        ("SELECT set_config('x', '{}', false)", Effect.SET_ANY, Effect.TEMP),
        ("SELECT '{}' INTO TEMP x", Effect.TEMP, Effect.SET_ANY),
        ("SELECT pg_advisory_lock(length('{}'))", Effect.ADVISORY, Effect.SET_ANY),
        ("INSERT INTO t VALUES ('{}'); SET a = 1", Effect.SET_ANY | Effect.TEMP | Effect.LISTEN, Effect.NONE),
        ("SET a = '{}'", Effect.SET_ANY, Effect.NONE),
    ],
)
def test_effects_of_a_long_text(sql: str, present: Effect, absent: Effect) -> None:
    found = of(sql.format("x" * MAX_PARSED))
    assert found.reason == "too_long"
    assert found.effects & present == present
    assert not found.effects & absent


def test_a_long_string_of_statements_may_move_the_transaction() -> None:
    long = "INSERT INTO t VALUES ('" + "x" * MAX_PARSED + "')"
    assert not of(long).ends_transaction
    found = of(f"BEGIN; {long}; COMMIT")
    assert found.starts_transaction
    assert found.ends_transaction
    assert found.statements == 2


def test_other_encodings() -> None:
    assert classify("SELECT 'é' FROM é".encode("latin-1")).cls is Class.READ
    assert classify("SELECT é('x')".encode("latin-1")).reason == "unknown_function"


def test_fragile_and_retyped() -> None:
    plain = of("SELECT label, count(*), max(qty) FROM item GROUP BY label")
    assert plain.cls is Class.ANALYTIC
    assert not plain.fragile
    assert not plain.retyped
    assert of("SELECT label, avg(qty) FROM item GROUP BY label").retyped
    assert of("SELECT max(a / b) FROM item GROUP BY c").retyped
    for sql in (
        "SELECT count(*) FROM item i JOIN pg_class c ON true",
        "SELECT 'item'::regclass",
        "SELECT to_char(now(), 'YYYY')",
        "SELECT a -> 'b' FROM t",
        "SELECT a::jsonb FROM t",
        "SELECT xmlelement(name a) FROM t",
    ):
        assert of(sql).fragile, sql


@pytest.mark.parametrize(
    ("same", "other"),
    [
        ("round(a, 2)", "round(a)"),
        ("substr(a, 1, 2)", "substr(a, 0, 2)"),
        ("substring(a FROM 2)", "substring(a FROM b)"),
        ("a::int", "avg(a)::int"),
        ("sum(a)::int", "(a / 2)::int"),
        ("count(*)::int", "(a + b)::numeric(10, 2)"),
        ("'x'::text", "a::text"),
        ("trim(a)", "a || b"),
        ("max(a)", 'max(a COLLATE "C")'),
        ("t.a", "t"),
        ("i.a", "i"),
    ],
)
def test_what_has_another_value_on_a_columnar_node(same: str, other: str) -> None:
    assert not of(f"SELECT count(*), {same} FROM t JOIN item i ON i.k = t.k").fragile
    assert of(f"SELECT count(*), {other} FROM t JOIN item i ON i.k = t.k").fragile


# --- the second witness ------------------------------------------------------------------------------


def test_parameters_are_readable_for_the_witness() -> None:
    assert prepared("SELECT a FROM t WHERE b=$1AND c='$2,$3' -- $4,$5\n") == (
        "SELECT a FROM t WHERE b=$1 AND c='$2,$3' -- $4,$5\n"
    )
    assert opinion("SELECT count(*) FROM t WHERE a IN ($1,$2)") is Opinion.ANALYTIC


def test_the_witness_can_object() -> None:
    found = classify(b"SELECT 1", lambda text: Opinion.WRITE)
    assert (found.cls, found.reason) == (Class.WRITE, "disputed")


def test_analytic_needs_both() -> None:
    assert of("SELECT sum(a) FROM t").cls is Class.ANALYTIC
    for second in (Opinion.NONE, Opinion.READ):
        assert classify(b"SELECT sum(a) FROM t", lambda text, second=second: second).cls is Class.READ
    assert classify(b"SELECT a FROM t", lambda text: Opinion.ANALYTIC).cls is Class.READ


def test_a_long_text_is_never_analytic() -> None:
    assert of("SELECT sum(a) FROM t /* " + "x" * 2048 + " */").cls is Class.READ


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "array[" * 30 + "1" + "]" * 30,
        "SELECT " + "date(" * 20 + "a" + ")" * 20,
        'SELECT "date"(date(' + "a+" * 300 + "a))",
        "SELECT a" + "[1]" * 60,
        "SELECT " + "(" * 40 + "1" + ")" * 40,
    ],
)
def test_what_would_cost_the_witness_too_much_is_not_shown_to_it(sql: str) -> None:
    assert prepared(sql) is None
    assert of(sql).cls is Class.READ


@pytest.mark.parametrize("name", ["reads", "analytic"])
def test_the_witness_agrees_on_the_corpus(name: str) -> None:
    disputed = [row[2] for row in rows(name) if opinion(row[2]) is Opinion.WRITE and not row[2].startswith("COPY")]
    assert disputed == []


# --- no false read -----------------------------------------------------------------------------------

WRAPPERS = [
    "SELECT * FROM ({}) x",
    "WITH x AS ({}) SELECT * FROM x",
    "SELECT 1 WHERE EXISTS ({})",
    "SELECT ARRAY({})",
    "({}) UNION ALL SELECT 1",
    "EXPLAIN ANALYZE {}",
    "COPY ({}) TO STDOUT",
    "SELECT * FROM a, LATERAL ({}) x",
    "SELECT CASE WHEN true THEN ({}) END FROM a ORDER BY 1",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_nothing_hides_inside_a_read(wrapper: str) -> None:
    inner = [row[2] for row in rows("writes") + rows("session") if row[2].startswith(("SELECT", "VALUES", "WITH"))]
    assert len(inner) > 100
    for sql in inner:
        assert of(wrapper.format(sql)).cls not in (Class.READ, Class.ANALYTIC), sql


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes(sql: bytes) -> None:
    found = classify(sql)
    assert isinstance(found, Classification)
    assert found.reason


FRAGMENTS = sorted(
    names(
        """
        select from where ( ) , ; $1 $$ ' " -- /* */ a t * 1 = 'x' E'\\' as in and or not case when then end with values
        insert into delete update set returning for update nextval(' ') f( :: [ ] . + join on union prepare execute
        deallocate begin commit explain analyze copy to stdout U& x é $x$ count(*) group by
        """
    )
)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map(lambda words: " ".join(["select", *words])))
def test_any_mixture_of_sql(sql: str) -> None:
    found = of(sql)
    if found.cls in (Class.READ, Class.ANALYTIC):
        seen = [sql[start:end].lower() for _, start, end in lexical.tokens(sql)]
        assert ("nextval", "(") not in itertools.pairwise(seen)
        assert ("for", "update") not in itertools.pairwise(seen)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join))
def test_tokens_are_in_order_and_apart(sql: str) -> None:
    last = 0
    for _, start, end in lexical.tokens(sql):
        assert last <= start < end <= len(sql)
        last = end


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a--b\n c", ["a", "c"]),
        ("a/*b/*c*/d*/e", ["a", "e"]),
        ("a+-b", ["a", "+-", "b"]),
        ("a+--b", ["a", "+"]),
        ("'a''b' E'a\\'b' \"c\"\"d\"", ["'a''b'", "E'a\\'b'", '"c""d"']),
        ("$1,$2", ["$1", ",", "$2"]),
        ("$$a'b$$ $x$ $$ $x$ a$b$c", ["$$a'b$$", "$x$ $$ $x$", "a$b$c"]),
        ("U&'x' U&\"y\" b'1' n'z'", ["U&'x'", 'U&"y"', "b'1'", "n'z'"]),
        ("a 'open", ["a"]),
        ("a $x$ open", ["a"]),
        ("a /* open", ["a"]),
        ("a\xa0b", ["a\xa0b"]),
    ],
)
def test_tokens(sql: str, expected: list[str]) -> None:
    assert [sql[start:end] for _, start, end in lexical.tokens(sql)] == expected


# --- cache and command -------------------------------------------------------------------------------


def test_one_object_per_text() -> None:
    classifier = Classifier(100, 100_000)
    first = classifier.classify(b"SELECT 1")
    assert classifier.classify(b"SELECT " + b"1") is first
    assert classifier.classify(b"SELECT 2") is first, "only a number differs"
    assert classifier.classify(b"SELECT a") is not first
    assert (classifier.hits_exact, classifier.hits_folded, classifier.misses) == (0, 2, 2)


def test_the_cache_keeps_its_bounds_and_what_is_in_use() -> None:
    cache: TextCache[int] = TextCache(100, 100_000)
    for number in range(1000):
        cache.put(b"%d" % number, number)
        assert cache.get(b"0") == 0
        assert len(cache) <= 100
    assert cache.get(b"1") is None
    for number in range(1000):
        cache.put(b"%d" % number + b"x" * 1000, number)
        assert len(cache) <= 100
    cache.put(b"x" * 50_000, 1)
    assert cache.get(b"x" * 50_000) is None


def test_command() -> None:
    out = io.StringIO()
    lines = [
        '{"sql": "SELECT 1"}\n',
        "\n",
        '{"sql": "SET a = 1"}\n',
        "nonsense\n",
        '{"sql": 1}\n',
        '{"sql": "\\ud800"}\n',
    ]
    assert main(lines, out) == 1
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert answers[0] == {"class": "read", "reason": "select", "kind": "select", "statements": 1}
    assert answers[1]["effects"] == ["set"]
    assert answers[1]["settings"] == ["a"]
    assert "error" in answers[2]
    assert "error" in answers[3]
    assert answers[4]["class"] == "write"
    assert main(lines[:3], io.StringIO()) == 0
