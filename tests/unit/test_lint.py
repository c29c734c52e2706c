"""Files and logs cut into statements, and which of them are worth telling."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.cli import main
from proxy.sql.catalogue import Catalogue
from proxy.sql.lint import Finding, lint, statements

FILE = """\
-- a comment; with a semicolon
SELECT 1;
\\connect other
SELECT ';', $q$;$q$
  FROM item; /* ; */ INSERT INTO item VALUES (1);;
CREATE FUNCTION f(i int) RETURNS int
BEGIN ATOMIC SELECT CASE WHEN i > 1 THEN 1 ELSE 2 END; SELECT i; END;
SELECT nextval('s')"""

LOG = """\
2026-11-30 20:00:00 UTC [7] LOG:  statement: SELECT 1
2026-11-30 20:00:00 UTC [7] LOG:  duration: 0.2 ms  execute <unnamed>: SELECT nextval('s'),
\t  2
2026-11-30 20:00:00 UTC [7] LOG:  checkpoint starting: time
2026-11-30 20:00:00 UTC [7] LOG:  statement: UPDATE item SET qty = 1
"""


def test_files_are_cut_at_their_statements() -> None:
    assert [(line, sql.split()[0], sql.split()[-1]) for line, sql in statements(FILE)] == [
        (2, "SELECT", "1"),
        (4, "SELECT", "item"),
        (5, "INSERT", "(1)"),
        (6, "CREATE", "END"),
        (8, "SELECT", "nextval('s')"),
    ]


def test_logs_are_cut_at_their_lines() -> None:
    assert list(statements(LOG)) == [
        (1, "SELECT 1"),
        (2, "SELECT nextval('s'),\n  2"),
        (5, "UPDATE item SET qty = 1"),
    ]


@given(st.text(alphabet="ab;'\"$()\\\n/*-BEGINATOMICENDselect ", max_size=80))
def test_no_text_makes_it_raise_or_lose_its_place(text: str) -> None:
    lines = text.count("\n") + 1
    assert all(1 <= line <= lines for line, _ in statements(text))
    list(lint(text))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT nextval('s')", "sequence"),
        ("SELECT mine(1)", "unknown_function"),
        ("COPY (SELECT pg_backend_pid()) TO STDOUT", "session_state"),
        ("SELECT 1 FROM", "syntax"),
        ("SELECT * FROM item", None),
        ("SELECT * FROM item FOR UPDATE", None),
        ("INSERT INTO item VALUES (1)", None),
        ("COPY item FROM STDIN", None),
        ("CREATE TABLE t (a int)", None),
        ("BEGIN", None),
    ],
)
def test_what_is_told(sql: str, reason: str | None) -> None:
    assert list(lint(sql)) == ([Finding(1, reason, sql)] if reason else [])


def test_a_catalogue_knows_more() -> None:
    known = Catalogue(version="1", functions={"mine": {"public": ""}}, relations={"scratch": {"public": "unlogged"}})
    assert [one.reason for one in lint("SELECT mine(1); SELECT * FROM scratch;", known)] == ["unlogged"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = tmp_path / "bad.sql", tmp_path / "good.sql"
    bad.write_text("SELECT 1;\n\nSELECT nextval('s'),\n  2;\n")
    good.write_text("SELECT 1;\nDELETE FROM item;\n")
    assert main(["lint", str(good)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["lint", str(good), str(bad)]) == 1
    assert capsys.readouterr().out == f"{bad}:3: sequence: SELECT nextval('s'), 2\n"
    bad.write_bytes(b"SELECT mine('\xe9\xff')")
    assert main(["lint", str(bad)]) == 1
    assert "unknown_function" in capsys.readouterr().out
    assert main(["lint", str(tmp_path / "none.sql")]) == 1
    assert "can't be read" in capsys.readouterr().err
