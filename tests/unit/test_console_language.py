"""Text into statements."""

from __future__ import annotations

import pytest

from proxy.admin.language import split
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
