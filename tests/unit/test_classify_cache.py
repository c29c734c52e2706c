"""The steps of the classification cache: whatever one of them answers is what a look at the text itself says."""

from __future__ import annotations

import io
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.run_witness import answer
from proxy.sql import facts, lexical
from proxy.sql.analyze import Opinion, opinion, patient_opinion
from proxy.sql.classify import MAX_PARSED, MAX_UNHEARD, Classifier, classify
from proxy.sql.model import Class, Classification, Uses

from .test_classify_corpus import rows

OWN = ("text", "foldable", "reads_wishes", "quick", "at_best", "uses")
"""Fields that belong to the cache, or are compared in their own way."""


def fields(found: Classification | None) -> object:
    """All that is said of a text, to compare."""
    if found is None:
        return None
    uses = found.uses and _values(found.uses)
    return _values(found), uses, fields(found.at_best)


def _values(of: Classification | Uses) -> list[tuple[str, object]]:
    known = [name for name in dir(of) if not name.startswith("_") and name not in OWN]
    return [(name, value) for name in known if not callable(value := getattr(of, name))]


def check(classifier: Classifier, sql: str) -> None:
    """What the cache says of a text is what it is.

    But one that PostgreSQL refuses for a literal may be anything; and the second witness, who reads the insides of some
    literals, is asked about one text of those that share an answer.
    """
    raw = sql.encode("utf-8", "surrogateescape")
    found = classifier.classify(raw)
    asked = found.text.decode("utf-8", "surrogateescape")
    fresh = classify(raw, lambda _: opinion(asked))
    if fresh.reason != "syntax":
        assert fields(found) == fields(fresh), sql
        assert found.reads_wishes == (b"pgtrident." in raw.lower()), sql
        if found.text != raw:
            assert facts.shape(found.text) == facts.shape(raw), sql


# --- by shape ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a FROM t WHERE b = 'x' AND c = 1.5", "SELECT a FROM t WHERE b = 'it''s' AND c = 20"),
        ("INSERT INTO t VALUES ('a', 1)", "INSERT INTO t VALUES ('', 12345678901234567890)"),
        ("UPDATE t SET a = 'x', b = now() WHERE k = 'y'", "UPDATE t SET a = '/*', b = now() WHERE k = '--'"),
        ("DELETE FROM t WHERE a IN ('a')", "DELETE FROM t WHERE a IN ('a','b', 3)"),
        ("SELECT a FROM t WHERE b in (1, 22, 3)", "SELECT a FROM t WHERE b in (4)"),
        ("SELECT 1 FROM t1_0 /*traceparent='00-1'*/", "SELECT 1 FROM t1_0 /*traceparent='00-2',x='\"'*/"),
        ("SELECT \"it's 5\" FROM t WHERE a = 'b'", "SELECT \"it's 5\" FROM t WHERE a = 'c'"),
        ("SELECT a -- it's\n FROM t WHERE a = 'b'", "SELECT a -- it's\n FROM t WHERE a = 'c'"),
        ("SELECT round(a, 2) FROM t GROUP BY 1", "SELECT round(a, 0) FROM t GROUP BY 20"),
        ("SELECT 'x' FROM é WHERE a = 'ü'", "SELECT 'y' FROM é WHERE a = 'abc'"),
    ],
)
def test_texts_that_share(one: str, other: str) -> None:
    classifier = Classifier(100, 100_000)
    first = classifier.classify(one.encode())
    assert classifier.classify(other.encode()) is first
    assert (classifier.hits_shape, classifier.misses) == (1, 1)
    assert classifier.classify(other.encode()) is first
    assert (classifier.hits_shape, classifier.hits_exact + classifier.hits_folded) == (1, 1), (
        "the text itself is known now"
    )
    check(Classifier(100, 100_000), one)
    check(classifier, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # One fingerprint, and another class, or other fields.
        ("SELECT count(*) FROM t WHERE a = 'x'", "SELECT count(*) FROM t WHERE a = true"),
        (
            "SELECT b, count(*) FROM t WHERE a = 'x' GROUP BY b",
            "SELECT b, count(*) FROM t, t c WHERE a = 'x' GROUP BY b",
        ),
        ("SELECT round(a) FROM t", "SELECT round(a, 2) FROM t"),
        ("SELECT a FROM t", "SELECT a FROM t a"),
        ("SELECT 'a'::text FROM t", "SELECT 'a'::regclass FROM t"),
        ("SELECT 'a' FROM t GROUP BY b", "SELECT 1 FROM t GROUP BY b"),
        # A value decides.
        ("SELECT set_config('a', 'b', true)", "SELECT set_config('a', 'c', false)"),
        ("SELECT substr(a, 1) FROM t GROUP BY b", "SELECT substr(a, 0) FROM t GROUP BY b"),
        ("SELECT substring(a FROM 1) FROM t GROUP BY b", "SELECT substring(a FROM 0) FROM t GROUP BY b"),
        ("SELECT date_part('day', a) FROM t GROUP BY b", "SELECT date_part('second', a) FROM t GROUP BY b"),
        ("SELECT a FROM t WHERE d > 'x'", "SELECT a FROM t WHERE d > 'today'"),
        ("SELECT a FROM t WHERE d > 'x'", "SELECT a FROM t WHERE d > E'x'"),
        ("SELECT current_setting('work_mem')", "SELECT current_setting('pgtrident.route')"),
        # Not known to be without effect, or no query at all.
        ("SELECT f('a')", "SELECT f('b')"),
        ("SET a = 'x'", "SET a = 'y'"),
        ("EXECUTE a('x')", "EXECUTE a('y')"),
        ("SELECT 'a' INTO TEMP x1", "SELECT 'b' INTO TEMP x1"),
        ("DO 'x'", "DO 'y'"),
        ("BEGIN; SELECT 'a'", "BEGIN; SELECT 'b'"),
        # What looks like a literal is none.
        ("SELECT $$'a'$$", "SELECT $$'b'$$"),
        ("SELECT /* /* */ 'a' */ 'b'", "SELECT /* /* */ 'a' */ 'c'"),
        ("SELECT 'a' FROM t1", "SELECT 'a' FROM t2"),
        ("SELECT 'a' FROM \"t 1\"", "SELECT 'a' FROM \"t 2\""),
        ("SELECT $1, 'a'", "SELECT $2, 'a'"),
        ("SELECT E'\\'a'", "SELECT E'\\'b'"),
        ("SELECT f(1)", "SELECT f(1, 2)"),
    ],
)
def test_texts_that_do_not_share(one: str, other: str) -> None:
    classifier = Classifier(100, 100_000)
    assert classifier.classify(one.encode()) is not classifier.classify(other.encode())
    for sql in (one, other):
        check(classifier, sql)


def test_what_was_not_looked_at_fully_answers_for_no_other() -> None:
    large = "SELECT a FROM t WHERE b = 'x' AND c IN ({})".format(", ".join("'y'" for _ in range(1000)))
    classifier = Classifier(100, 1_000_000)
    assert classifier.classify(large.encode()).unheard
    assert not classifier.classify(b"SELECT a FROM t WHERE b = 'z' AND c IN ('y')").unheard
    assert classifier.misses == 2


def long(head: str) -> bytes:
    """A text of that head that the second witness isn't asked about at once."""
    return f"{head} FROM t JOIN u USING (a) WHERE b NOT IN ({', '.join(['12345'] * 500)})".encode()


@pytest.mark.parametrize(
    ("second", "cls", "reason"),
    [
        (Opinion.ANALYTIC, Class.ANALYTIC, "aggregate"),
        (Opinion.READ, Class.READ, "select"),
        (Opinion.NONE, Class.READ, "select"),
        (Opinion.WRITE, Class.WRITE, "disputed"),
    ],
)
def test_a_long_text_is_a_read_until_the_second_witness_has_spoken(second: Opinion, cls: Class, reason: str) -> None:
    classifier = Classifier(100, 1_000_000)
    sql = long("SELECT count(*)")
    first = classifier.classify(sql)
    assert (first.cls, first.reason) == (Class.READ, "select")
    assert classifier.classify(sql) is first
    assert classifier.unheard.popitem() == (sql, first) and not classifier.unheard
    heard = classifier.hear(sql, second)
    assert (heard.cls, heard.reason, heard.unheard) == (cls, reason, False)
    assert (first.cls, first.reason) == (Class.READ, "select"), "what is in use doesn't change under its users"
    assert classifier.classify(sql) is heard
    assert classifier.classify(sql.replace(b"12345, ", b"1, ", 7)) is heard
    assert fields(heard) == fields(classify(sql, lambda _: second))
    assert not classifier.unheard and classifier.misses == 1


def test_only_long_reads_wait_and_not_too_many() -> None:
    classifier = Classifier(1000, 10_000_000)
    for sql in (b"SELECT count(*) FROM t", long("DELETE").replace(b"JOIN u USING (a) ", b""), b"SELECT " + b"(" * 3000):
        classifier.classify(sql)
    assert not classifier.unheard
    for number in range(2 * MAX_UNHEARD):
        classifier.classify(long(f"SELECT a{number}"))
    assert len(classifier.unheard) == MAX_UNHEARD


def test_the_second_witness_reads_long_texts_where_nobody_waits() -> None:
    text = long("SELECT count(*)").decode()
    assert (opinion(text), patient_opinion(text)) == (Opinion.LATER, Opinion.ANALYTIC)
    endless = "SELECT " + "date(" * 25 + "a" + ")" * 25 + " FROM t"
    assert (opinion(endless), patient_opinion(endless)) == (Opinion.LATER, Opinion.NONE)
    lines, out = (
        [json.dumps(text), json.dumps("SELECT \udce9"), json.dumps("INSERT\nINTO"), json.dumps(endless)],
        io.StringIO(),
    )
    answer(io.StringIO("\n".join(lines)), out)
    assert out.getvalue().split() == ["analytic", "read", "none", "none"]


@pytest.mark.parametrize(
    "sql",
    [
        b"SELECT '" + b"x" * MAX_PARSED + b"'",
        b"SELECT '\0'",
        b"SELECT '\xff' FROM \xe9",
    ],
)
def test_texts_without_a_shape(sql: bytes) -> None:
    classifier = Classifier(100, 1_000_000)
    classifier.classify(sql)
    classifier.classify(sql.replace(b"'", b"'y", 1))
    assert (classifier.hits_shape, classifier.misses) == (0, 2)


def test_the_cache_is_bounded_whatever_comes() -> None:
    classifier = Classifier(90, 90_000)
    for number in range(1000):
        text = f"SELECT {'a' * (number % 97)}{number} FROM t WHERE a = '{'y' * number}' AND b = {number}"
        classifier.classify(text.encode())
    for cache in (classifier._cache, classifier._folded, classifier._shapes):
        assert len(cache) <= 30


# --- no step says what the text doesn't --------------------------------------------------------------

LITERALS = [
    *(
        "'x'",
        "''",
        "'it''s'",
        "'today'",
        "'2024-01-01'",
        "'pg_temp'",
        "'pgtrident.route'",
        "'a/*b'",
        "'--'",
        "'\"'",
        "'$$'",
    ),
    *("0", "1", "12", "3.5", "99999999999", "5.", "'a' ", "E'x'", "'é'", "'\\'", "'%'", "'{}'", "'1 day'", "'[1,2]'"),
]
_LITERAL = re.compile(r"'(?:[^']|'')*'|(?<![\w$.\"])\d+(?:\.\d+)?(?![\w\"])")


def others(sql: str, random_: random.Random) -> str:
    """The text with other literals where it has some."""
    return _LITERAL.sub(lambda _: random_.choice(LITERALS), sql)


def test_no_step_says_what_the_text_does_not_over_the_corpus() -> None:
    choice = random.Random(1)
    classifier = Classifier(100_000, 100_000_000)
    files = ("reads", "analytic", "writes", "session", "standby")
    for sql in [row[-1] for name in files for row in rows(name)]:
        check(classifier, sql)
        for _ in range(8):
            check(classifier, others(sql, choice))
    assert classifier.hits_shape > 200
    assert classifier.hits_folded > 50


_WORDS = [
    *(
        "a",
        "b",
        "t",
        "t1_0",
        '"q"',
        "count(*)",
        "sum(a)",
        "substr(a, ",
        "round(a",
        "position(",
        "lower(",
        "now()",
        ")",
        "(",
    ),
    *(
        "=",
        "<>",
        ",",
        "+",
        "-",
        "/",
        "*",
        "IN (",
        "in(",
        "NOT IN (",
        "AND",
        "OR",
        "::text",
        "::date",
        "$1",
        "true",
        "NULL",
    ),
    *(
        "GROUP BY a",
        "ORDER BY",
        "LIMIT",
        "CASE WHEN",
        "THEN",
        "ELSE",
        "END",
        "FROM t",
        ", t b",
        "AS",
        "date",
        "interval",
    ),
    *(
        "/* c */",
        "/*x*/",
        "-- d\n",
        "\n",
        "$$",
        "$x$",
        "'",
        '"',
        "/*",
        "*/",
        "--",
        "\\",
        "U&",
        "E",
        "N",
        ";",
        "[",
        "]",
        ".",
        "é",
    ),
]
_TEXTS = st.builds(
    lambda head, parts: " ".join([head, *parts]),
    st.sampled_from(
        ["SELECT", "SELECT a FROM t WHERE", "UPDATE t SET a =", "INSERT INTO t VALUES (", "DELETE FROM t WHERE"]
    ),
    st.lists(st.sampled_from(_WORDS) | st.sampled_from(LITERALS), max_size=14),
)


@settings(max_examples=1500, deadline=None)
@given(_TEXTS, st.randoms(use_true_random=False))
def test_no_step_says_what_the_text_does_not(sql: str, choice: random.Random) -> None:
    classifier = Classifier(1000, 1_000_000)
    for text in [sql, *(others(sql, choice) for _ in range(3))]:
        check(classifier, text)


@settings(max_examples=1500, deadline=None)
@given(_TEXTS, st.data())
def test_one_skeleton_is_one_row_of_tokens(sql: str, data: st.DataObject) -> None:
    """Texts that were changed anywhere: if their skeletons are equal so are their tokens, but for literals' values."""
    place = data.draw(st.integers(0, len(sql)))
    other = (
        sql[:place] + data.draw(st.sampled_from([*_WORDS, *LITERALS, ""])) + sql[place + data.draw(st.integers(0, 3)) :]
    )
    if lexical.skeleton(sql.encode()) != lexical.skeleton(other.encode()):
        return
    if "syntax" in (classify(sql.encode()).reason, classify(other.encode()).reason):
        return
    assert _without_values(sql) == _without_values(other)


def _without_values(sql: str) -> list[str]:
    """The kinds of tokens, and their text where they are no literals; lists behind IN have one element."""
    found = [kind if kind in ("string", "number") else sql[start:end] for kind, start, end in lexical.tokens(sql)]
    kept: list[str] = []
    for i, token in enumerate(found):
        if token == "," and i + 1 < len(found) and found[i + 1] in ("string", "number") and _in_list(kept):
            continue
        if token in ("string", "number") and found[i - 1] == "," and _in_list(kept):
            continue
        kept.append(token)
    return kept


def _in_list(tokens: list[str]) -> bool:
    return (
        len(tokens) > 2 and [one.lower() for one in tokens[-3:-1]] == ["in", "("] and tokens[-1] in ("string", "number")
    )
