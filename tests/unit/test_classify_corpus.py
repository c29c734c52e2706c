"""Each row of tests/corpus/*.tsv: a statement, its class, and what it may do to the session."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.sql.classify import classify
from proxy.sql.command import described
from proxy.sql.model import Class

CORPUS = Path(__file__).parents[1] / "corpus"


def rows(name: str) -> list[list[str]]:
    """The rows of a corpus file below its head; \\n, \\t and \\\\ in a statement are undone."""
    lines = (CORPUS / f"{name}.tsv").read_text().splitlines()[1:]
    return [[unescaped(field) for field in line.split("\t")] for line in lines]


def unescaped(text: str) -> str:
    return text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")


@pytest.mark.parametrize(
    ("cls", "effects", "sql"), [row for name in ("reads", "analytic", "writes", "session") for row in rows(name)]
)
def test_corpus(cls: str, effects: str, sql: str) -> None:
    found = described(classify(sql.encode()))
    assert (found["class"], "|".join(found.get("effects", [])) or "-") == (cls, effects), found["reason"]


# Refused by a standby for what the text doesn't show: a view, and an unlogged table.
HIDDEN = {
    "SELECT n FROM ticket_view",
    "SELECT count(*) FROM scratch",
    "SELECT i.id FROM item i JOIN scratch s ON s.a = i.id",
}


@pytest.mark.parametrize(("case", "sql"), rows("standby"))
def test_cases(case: str, sql: str) -> None:
    """The statements of the routing cases: only those marked as plain reads may leave the primary."""
    plain = {
        "R01": ["WITH q AS (SELECT 1 AS a) SELECT * FROM q"],
        "R02": ["SELECT 'x FOR UPDATE' AS for_update FROM item WHERE label = 'FOR SHARE'"],
        "R06": ["TABLE item", "VALUES (1),(2)", "(SELECT 1) UNION ALL (SELECT 2)"],
        "R07": ["COPY item TO STDOUT", "COPY (SELECT id FROM item) TO STDOUT"],
        "R25": [sql],
    }
    reads = sql in HIDDEN or sql in plain.get(case, ())
    assert (classify(sql.encode()).cls in (Class.READ, Class.ANALYTIC)) == reads
