"""Text into statements."""

from __future__ import annotations

import pytest

from proxy.admin.language import split, take_name
from proxy.errors import TridentError


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("", []),
        (" ;; -- nothing\n ; /* a /* nested */ b */", []),
        ("SHOW POOLS", [("show", "pools")]),
        ("show Pools;", [("show", "pools")]),
        ("/* hi */ show -- why\n pools ; select 1;", [("show", "pools"), ("select", "1")]),
        ("set a = 'x;--y'; SHOW stats", [("set", "a", "=", "'x;--y'"), ("show", "stats")]),
        ('set "A""b" to 1', [("set", '"A""b"', "to", "1")]),
        ("select 'it''s'", [("select", "'it''s'")]),
        ("show größe", [("show", "größe")]),
        ("a-b", [("a", "-", "b")]),
    ],
)
def test_split(sql: str, words: list[tuple[str, ...]]) -> None:
    assert [statement.words for statement in split(sql)] == words


@pytest.mark.parametrize("sql", ["show 'pools", 'show "pools', "show /* pools", "/* /* */"])
def test_open_ends_are_syntax_errors(sql: str) -> None:
    with pytest.raises(TridentError) as caught:
        split(sql)
    assert caught.value.sqlstate == "42601"
    assert "SHOW HELP" in caught.value.hint


@pytest.mark.parametrize(
    ("sql", "name", "rest"),
    [
        ("pg-1", "pg-1", ()),
        ("pg-1 30 s", "pg-1", ("30", "s")),
        ("PG", "Pg", ()),
        ("pg", "Pg", ()),
        ('"pg-1" 5s', "pg-1", ("5s",)),
        ("'a \"b\"'", 'a "b"', ()),
        ('"a ""b"""', 'a "b"', ()),
    ],
)
def test_names(sql: str, name: str, rest: tuple[str, ...]) -> None:
    (statement,) = split(sql)
    assert take_name(statement.words, ["Pg", "pg-1", 'a "b"'], "node") == (name, rest)


@pytest.mark.parametrize("sql", ["pg-2", "'PG'", "'", "x 30s"])
def test_unknown_names(sql: str) -> None:
    with pytest.raises(TridentError) as error:
        take_name(tuple(sql.split()), ["Pg", "pg-1"], "node")
    assert error.value.sqlstate == "42704"
