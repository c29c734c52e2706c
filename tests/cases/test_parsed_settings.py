"""What a text means when it is parsed depends on settings: it is shared only by those who have the same."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, C, D, E, P, S, Wire
from ..support.target import THROUGH_PROXY, Target

SELECT = "SELECT * FROM twin"
HERE, THERE = "t[] T[a]", "t[] T[b,c]"


def twins(target: Target) -> tuple[Wire, Wire]:
    """Two clients that share a server, and two tables of one name."""
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("CREATE TABLE tenant_a.twin(b text, c text)", "CREATE TABLE twin(a int)")
    return one, two


LOCAL = {
    "set": (P("", "SET LOCAL search_path = tenant_a"), B(), E()),
    "function": (P("", "SELECT set_config('search_path', 'tenant_a', true)"), B(), E()),
    "parameters": (P("", "SELECT set_config($1, $2, true)"), B("", "", ["search_path", "tenant_a"]), E()),
}


@pytest.mark.parametrize("first", ["inside", "outside"])
@pytest.mark.parametrize("form", LOCAL)
def test_setting_of_a_transaction(target: Target, form: str, first: str) -> None:
    one, two = twins(target)
    if first == "outside":
        assert two.ask(P("s", SELECT), D("S", "s"), S) == f"1 {HERE} ZI"
    one.run("BEGIN")
    one.ask(*LOCAL[form], S)
    assert one.ask(P("s", SELECT), D("S", "s"), S) == f"1 {THERE} ZT"
    assert one.ask(P("", SELECT), D("S"), S) == f"1 {THERE} ZT"
    assert one.ask(B("", "s"), E(), S) == "2 C[SELECT 0] ZT"
    one.run("COMMIT")
    if first == "inside":
        assert two.ask(P("s", SELECT), D("S", "s"), S) == f"1 {HERE} ZI"
    assert two.ask(B("", "s"), E(), S) == "2 C[SELECT 0] ZI"
    # The text is read anew where the path is another; it has other columns then.
    assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"
    assert one.ask(C("S", "s"), P("s", SELECT), D("S", "s"), S) == f"3 1 {HERE} ZI"


def test_path_set_after_the_parse(target: Target) -> None:
    one, two = target.client(), target.client()
    one.run("CREATE TABLE tenant_a.twin(b text, c text)", "CREATE TABLE twin(a int)")
    assert one.ask(P("s", SELECT), D("S", "s"), S) == f"1 {HERE} ZI"
    one.run("SET search_path = tenant_a")
    two.run("BEGIN")
    assert one.ask(B("", "s"), E(), S) == "E[0A000] ZI"
    one.run("RESET search_path")
    assert one.ask(B("", "s"), E(), S) == "2 C[SELECT 0] ZI"
    two.run("COMMIT")


@pytest.mark.parametrize(
    "change",
    ["SET search_path = tenant_a", "CREATE TEMP TABLE twin(b text, c text)", "ALTER TABLE twin RENAME TO gone"],
)
def test_change_in_the_same_batch(target: Target, change: str) -> None:
    one, two = twins(target)
    assert two.ask(P("s", SELECT), D("S", "s"), S) == f"1 {HERE} ZI"
    tag = " ".join(change.split()[: 1 if change.startswith("SET") else 2]).replace("CREATE TEMP", "CREATE TABLE")
    batch = P("", change), B(), E(), P("s", SELECT), D("S", "s"), B("", "s"), E(), S
    if "gone" in change:
        assert one.ask(*batch) == f"1 2 C[{tag}] E[42P01] ZI"
    else:
        assert one.ask(*batch) == f"1 2 C[{tag}] 1 {THERE} 2 C[SELECT 0] ZI"
    if "SET" in change:
        assert two.ask(B("", "s"), D("P"), E(), S) == "2 T[a] C[SELECT 0] ZI"


LITERALS = [
    ("DateStyle", "ISO, DMY", "SELECT '01/02/2020'::date::text"),
    ("TimeZone", "Japan", "SELECT extract(epoch FROM '2020-01-01 00:00'::timestamptz)::int"),
    ("IntervalStyle", "sql_standard", "SELECT extract(epoch FROM '-1 10:00:00'::interval)::int"),
    ("array_nulls", "off", "SELECT ('{NULL}'::text[])[1] IS NULL"),
    ("transform_null_equals", "on", "SELECT coalesce(NULL::text = NULL, false)"),
]


@pytest.mark.parametrize("how", ["set", "startup", "local"])
@pytest.mark.parametrize("setting, value, sql", LITERALS)
def test_literals_are_read_when_parsed(target: Target, setting: str, value: str, sql: str, how: str) -> None:
    one = target.client(pool=1)
    two = target.client(pool=1, **({setting: value} if how == "startup" else {}))
    assert one.ask(P("s", sql), S) == "1 ZI"
    here = one.ask(B("", "s"), E(), S)
    if how == "set":
        two.run(f"SET {setting} = {value}")
    elif how == "local":
        two.run("BEGIN", f"SET LOCAL {setting} = {value}")
    assert two.ask(P("s", sql), S).startswith("1 ")
    assert two.ask(B("", "s"), E(), S).replace("ZT", "ZI") != here
    if how == "local":
        two.run("COMMIT")
    assert one.ask(B("", "s"), E(), S) == here


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_temporary_table_that_hides_another(target: Target, request: pytest.FixtureRequest, mode: str) -> None:
    """Also the second one, when the client has its server already."""
    if mode == "session" and target.pooled:
        target.address = request.getfixturevalue("proxies")({"pool": {"mode": "session"}}).address
    one, _ = twins(target)
    assert one.ask(P("s", SELECT), D("S", "s"), C("S", "s"), S) == f"1 {HERE} 3 ZI"
    one.run("CREATE TEMP TABLE nothing()")
    assert one.ask(P("s", SELECT), D("S", "s"), C("S", "s"), S) == f"1 {HERE} 3 ZI"
    one.run("CREATE TEMP TABLE twin(b text, c text)")
    assert one.ask(P("s", SELECT), D("S", "s"), C("S", "s"), S) == f"1 {THERE} 3 ZI"
    one.run("DROP TABLE twin", "SET search_path = tenant_a")
    assert one.ask(P("s", SELECT), D("S", "s"), C("S", "s"), S) == f"1 {THERE} 3 ZI"
    one.run("RESET search_path")
    assert one.ask(P("s", SELECT), D("S", "s"), C("S", "s"), S) == f"1 {HERE} 3 ZI"


def test_temporary_table_of_a_transaction(target: Target) -> None:
    one, two = twins(target)
    assert two.ask(P("s", SELECT), D("S", "s"), S) == f"1 {HERE} ZI"
    for _ in range(2):
        one.run("BEGIN", "CREATE TEMP TABLE twin(b text, c text) ON COMMIT DROP")
        assert one.ask(P("s", SELECT), D("S", "s"), B("", "s"), E(), C("S", "s"), S) == f"1 {THERE} 2 C[SELECT 0] 3 ZT"
        one.run("COMMIT")
        assert one.ask(P("s", SELECT), D("S", "s"), C("S", "s"), S) == f"1 {HERE} 3 ZI"


@THROUGH_PROXY
def test_literals_of_a_text_that_goes_to_another_server(target: Target) -> None:
    """A client that has changed its settings since the Parse does not change what others read."""
    target.compare = False
    one, two, other = (target.client() for _ in range(3))
    sql = "SELECT '01/02/2020'::date::text"
    for client in (one, two):
        assert client.ask(P("s", sql), D("S", "s"), S) == "1 t[] T[text] ZI"
    one.run("SET DateStyle = ISO, DMY")
    other.run("BEGIN")
    one.ask(B("", "s"), E(), S)
    assert two.ask(B("", "s"), E(), S) == "2 D[2020-01-02] C[SELECT 1] ZI"
    other.run("COMMIT")
