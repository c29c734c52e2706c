"""Shapes seen: counted where units are sent, folded, summed, kept, and made a rules file of."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from proxy.config.labels import Seen as Line
from proxy.config.labels import form, labelled, unlabelled
from proxy.controlplane.seen import SeenShapes
from proxy.errors import ConfigError
from proxy.routing.bind import Binding
from proxy.sql.catalogue import Catalogue
from proxy.sql.classify import Classifier
from proxy.sql.facts import shape
from proxy.sql.seen import Group, Seen
from proxy.testing import FakeClock

classifier = Classifier(1000, 1_000_000)


def note(group: Group, *texts: str) -> None:
    for text in texts:
        group.note(classifier.classify(text.encode()))


def counts(seen: Seen) -> dict[str, int]:
    seen.fold()
    return {row["text"]: row["count"] for row in seen.take()}


def test_texts_of_one_shape_are_counted_together() -> None:
    seen = Seen()
    app, cron = seen.group("shop", "app", "session", "eventual"), seen.group("shop", "cron", "session", "eventual")
    assert seen.group("shop", "app", "session", "eventual") is app
    note(app, "SELECT a FROM t WHERE b = 1", "SELECT a FROM t WHERE b = 22", "SELECT a FROM t WHERE b = 'x'")
    note(cron, "select a from t where b = 3")
    note(seen.group("other", "app", "global", "global"), "SELECT a FROM t WHERE b = 1")
    seen.fold()
    first, second = seen.take()
    assert first == {
        "database": "shop",
        "shape": shape(b"SELECT a FROM t WHERE b = 1"),
        "count": 4,
        "tables": ["t"],
        "text": first["text"],
        "class": "read",
        "consistency": "session",
        "user": "cron",
    }
    assert "$1" in first["text"] and "22" not in first["text"] and "'x'" not in first["text"]
    assert (second["database"], second["count"], second["consistency"]) == ("other", 1, "global")
    assert seen.take() == []
    note(app, "SELECT a FROM t WHERE b = 1")
    assert list(counts(seen).values()) == [1]


@pytest.mark.parametrize(
    ("sql", "cls", "consistency"),
    [
        ("SELECT a FROM t", "read", "session"),
        ("SELECT a, count(*) FROM t GROUP BY a", "analytic", "eventual"),
        ("UPDATE s.t SET a = 1", "write", ""),
        ("BEGIN", None, None),
        ("SET a.b = 1", None, None),
        ("nonsense", None, None),
        ("SELECT 1; SELECT 2", None, None),
        ("EXPLAIN (ROUTE) SELECT 1", None, None),
    ],
)
def test_what_is_listed(sql: str, cls: str | None, consistency: str | None) -> None:
    seen = Seen()
    note(seen.group("d", "u", "session", "eventual"), sql)
    seen.fold()
    found = [(row["class"], row["consistency"]) for row in seen.take()]
    assert found == ([(cls, consistency)] if cls is not None else [])


def test_what_a_statement_is_in_its_database_has_a_text_too() -> None:
    binding = Binding("d", 100, 0.0)
    binding.learn(Catalogue(version="v", relations={"u": {"public": "unlogged"}}), 1)
    seen = Seen()
    for text in (b"SELECT a FROM u", b"SELECT f(a) FROM u", b"SELECT a FROM unknown"):
        seen.group("d", "u", "session", "session").note(binding.of(classifier.classify(text)))
    assert len(counts(seen)) == 3


def test_bounds() -> None:
    few = Seen(shapes=4, noted=6, groups=2)
    group = few.group("d", "u", "session", "session")
    note(group, *(f"SELECT c{'x' * n} FROM t" for n in range(9)))
    assert len(group.counts) == 6
    seen = Seen(shapes=4)
    group = seen.group("d", "u", "session", "session")
    note(group, *["SELECT often FROM t"] * 9, *(f"SELECT c{'x' * n} FROM t" for n in range(9)))
    found = counts(seen)
    assert len(found) <= 4 and found["SELECT often FROM t"] == 9
    few.group("d", "v", "session", "session")
    nowhere = few.group("d", "w", "session", "session")
    note(nowhere, "SELECT 1")
    assert nowhere.counts == {} and nowhere is few.group("e", "w", "session", "session")


def test_what_takes_too_long_stays_for_the_next_second() -> None:
    seen = Seen()
    group = seen.group("d", "u", "session", "session")
    note(group, *(f"SELECT c{'x' * n} FROM t" for n in range(9)))
    seen.fold(300)
    assert 0 < len(group.counts) < 9
    for _ in range(9):
        seen.fold(300)
    assert group.counts == {} and len(seen.take()) == 9


# --- the controller's sum --------------------------------------------------------------------------------------


def row(shape: str, count: int = 1, **more: Any) -> dict[str, Any]:
    given = {"database": "d", "tables": ["t"], "text": "SELECT $1", "class": "read", "consistency": "session"}
    return {**given, "shape": shape, "count": count, "user": "app", **more}


def summed(path: Path, rounds: list[list[dict[str, Any]]], most: int = 100) -> SeenShapes:
    async def report(kind: str) -> list[dict[str, Any]]:
        assert kind == "shapes"
        return rounds.pop(0) if rounds else []

    return SeenShapes(path, report, FakeClock(), most)


async def test_the_sum_outlives_workers_and_controllers(tmp_path: Path) -> None:
    first, second = [row("a", 2), row("b", 5, user="one")], [row("a", 4, user="two"), row("a", 1, database="e")]
    seen = summed(tmp_path / "x", [first, second])
    await seen.gather()
    await seen.gather()
    found = [(one.database, one.shape, one.count, one.user) for one in seen.all()]
    assert found == [("d", "a", 6, "two"), ("d", "b", 5, "one"), ("e", "a", 1, "app")]
    seen.keep()
    after = summed(tmp_path / "x", [[row("b", 2)]])
    after.load()
    assert after.all() == seen.all()
    await after.gather()
    assert after.all()[0].count == 7


async def test_the_least_counted_go(tmp_path: Path) -> None:
    seen = summed(tmp_path / "x", [[row(str(n), n + 1) for n in range(4)], [row("new")]], most=4)
    await seen.gather()
    await seen.gather()
    assert [one.shape for one in seen.all()] == ["3", "2", "1", "new"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]"])
async def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    seen = summed(tmp_path / "x", [[row("a")]])
    seen.load()
    await seen.gather()
    assert [one.count for one in seen.all()] == [1]


# --- the rules file --------------------------------------------------------------------------------------------

EVIL = 'evil"\n[rules.x]\nroute = "replica"'
LINES = [
    Line("shop", "0af3", "12", "read", "cart, item", "session", "app", "", "SELECT *\nFROM cart"),
    Line("shop", "1bc4", "3", "write", "", "", EVIL, "", "DELETE FROM t\r[rules.y]\x85[rules.z]"),
]


def test_a_form_labels_nothing_until_it_is_filled_in() -> None:
    text = form(LINES)
    assert tomllib.loads(text) == {} and labelled(text) == set()
    assert len(unlabelled(LINES, labelled(text))) == 2
    filled = text.replace("#[rules.NAME]\n#shape", "[rules.cart]\nshape", 1)
    assert tomllib.loads(filled) == {"rules": {"cart": {"shape": ["0af3"]}}}
    assert unlabelled(LINES, labelled(filled)) == [
        '1bc4: write, 3 times in shop, last by evil" [rules.x] route = "replica": DELETE FROM t [rules.y] [rules.z]'
    ]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", set()),
        ("[nodes.a]\nhost = 'x'", set()),
        ("[rules.a]\nshape = '1'\n[rules.b]\nshape = ['2', '3']\n[rules.c]\ntable = 't'", {"1", "2", "3"}),
    ],
)
def test_labels(text: str, known: set[str]) -> None:
    assert labelled(text) == known


@pytest.mark.parametrize("text", ["rules = 1", "[rules]\na = 1", "[rules.a]\nshape = 1", "[rules.a]\nshape = [1]", "["])
def test_no_rules_file(text: str) -> None:
    with pytest.raises(ConfigError):
        labelled(text)
