"""P12: startup parameters are the client's session defaults, on every server it gets and on no other's."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, E, P, Q, S, startup_message
from ..support.target import Target

NULL, EMPTY = (f"T[current_setting] D[{value}] C[SELECT 1] ZI" for value in ("null", ""))


def test_search_path_per_client(target: Target) -> None:
    one = target.client(pool=1, options="-c search_path=tenant_a -c statement_timeout=5s")
    two = target.client(pool=1, search_path="tenant_b")
    three = target.client(pool=1)
    for _ in range(2):
        assert one.value("SHOW search_path") == "tenant_a"
        assert one.value("SHOW statement_timeout") == "5s"
        assert one.value("SELECT x FROM w") == "1"
        assert two.value("SELECT x FROM w") == "2"
        assert two.value("SHOW statement_timeout") == "0"
        assert three.query("SELECT x FROM w") == "E[42P01] ZI"
        assert three.value("SHOW search_path") == '"$user", public'
    for client, x in ((one, 1), (two, 2)):
        assert client.ask(P("s", "SELECT x FROM w"), B("", "s"), E(), S) == f"1 2 D[{x}] C[SELECT 1] ZI"
    assert one.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize(
    "options, want",
    [
        (r"-c search_path=a,\ b --work-mem=6MB", {"search_path": "a, b", "work_mem": "6MB"}),
        (r"-csearch_path=c -c work_mem=7MB", {"search_path": "c", "work_mem": "7MB"}),
        (r"--work_mem=8MB  -c  statement_timeout=7s ", {"work_mem": "8MB", "statement_timeout": "7s"}),
        (r"-c work_mem=5MB -c work_mem=6MB", {"work_mem": "6MB"}),
        (r"-c my.setting=a\\b", {"my.setting": r"a\b"}),
        (r"-c my.setting=it's\ \"", {"my.setting": "it's \""}),
        (r"-c my.setting=", {"my.setting": ""}),
        ("", {"work_mem": "4MB"}),
    ],
)
def test_options_spelling(target: Target, options: str, want: dict[str, str]) -> None:
    target.compare = False
    one, two = target.client(pool=1, options=options), target.client(pool=1)
    for name, value in want.items():
        assert one.value(f"SHOW {name}") == value
    assert two.value("SHOW work_mem") == "4MB"
    # On a server that has seen the name it is empty: PostgreSQL keeps the name after RESET.
    assert two.query("SELECT current_setting('my.setting', true)") in (NULL, EMPTY)


def test_more_settings(target: Target) -> None:
    target.compare = False
    other = target.client(pool=1)
    one = target.client(pool=1, extra_float_digits="0")
    assert one.value("SELECT 0.1::float8 + 0.2::float8") == "0.3"
    assert other.value("SELECT 0.1::float8 + 0.2::float8") == "0.30000000000000004"
    two = target.client(pool=1, my__tenant="1")
    assert two.value("SHOW my.tenant") == "1"
    assert other.value("SELECT current_setting('my.tenant', true)") in (None, "")


@pytest.mark.parametrize(
    "params, code",
    [
        ({"nonsense": "1"}, "42704"),
        ({"options": "-c work_mem=banana"}, "22023"),
        ({"work_mem": "banana"}, "22023"),
        ({"options": "-c nonsense=1"}, "42704"),
        ({"options": "-c search_path"}, "42601"),
        ({"client_encoding": "nonsense"}, "22023"),
        ({"DateStyle": "nonsense"}, "22023"),
    ],
)
def test_refused(target: Target, params: dict[str, str], code: str) -> None:
    """With PostgreSQL's code, at login (before or after AuthenticationOk); a later client is not hurt."""
    target.compare = False
    one = target.open()
    one.login(target.params(pool=1, **params))
    assert [str(r) for r in one.log[-2:]] == [f"E[FATAL {code}]", "EOF"]
    assert target.client(pool=1).value("SELECT 1") == "1"


def test_reset_goes_back_to_them(target: Target) -> None:
    one = target.client(pool=1, search_path="tenant_a", work_mem="5MB")
    other = target.client(pool=1)
    for reset in ("RESET search_path", "RESET ALL", "DISCARD ALL", "SET search_path TO DEFAULT"):
        one.run("SET search_path = tenant_b")
        assert one.value("SELECT x FROM w") == "2"
        assert other.query("SELECT x FROM w") == "E[42P01] ZI"
        one.run(reset)
        assert one.value("SHOW search_path") == "tenant_a"
        assert one.value("SHOW work_mem") == "5MB"


def test_without_user(target: Target) -> None:
    one = target.open()
    one.send(startup_message({"database": target.database}))
    replies = one.until("EOF")
    assert [str(r) for r in replies] == ["E[FATAL 28000]", "EOF"]


def test_database_defaults_to_user(target: Target) -> None:
    admin = target.admin()
    admin.run("DROP DATABASE IF EXISTS pool3", "CREATE DATABASE pool3")
    target.fleet.caught_up()
    one = target.open()
    one.login({"user": "pool3"})
    assert one.value("SELECT current_database()") == "pool3"
    one.close()
    admin.run("DROP DATABASE pool3 WITH (FORCE)")


def test_unknown_database(target: Target) -> None:
    target.compare = False
    one = target.open()
    assert one.login({"user": "pool1", "database": "nowhere"}).endswith("E[FATAL 3D000] EOF")


def test_long_and_odd_values(target: Target) -> None:
    # PostgreSQL sends a notice that the name is cut.
    target.compare = False
    one = target.client(pool=1, application_name="n" * 100, client_encoding="LATIN1", TimeZone="Asia/Tokyo")
    other = target.client(pool=1)
    assert one.status["application_name"] == "n" * 63
    assert one.status["client_encoding"] == "LATIN1"
    assert one.status["TimeZone"] == "Asia/Tokyo"
    assert one.value("SHOW application_name") == "n" * 63
    assert one.value("SHOW client_encoding") == "LATIN1"
    assert one.value("SHOW timezone") == "Asia/Tokyo"
    replies = one.send(Q(b"SELECT '\xe9'")).until()
    assert replies[1].values == [b"\xe9"]
    assert other.value("SHOW client_encoding") == "UTF8"
    assert other.value("SHOW timezone") != "Asia/Tokyo"
    assert other.value("SHOW application_name") == ""


def test_parameter_statuses_at_login(target: Target) -> None:
    """All that PostgreSQL reports, and of the primary's view (compared with the direct run)."""
    one = target.client(pool=1)
    assert one.status["in_hot_standby"] == "off"
    assert one.status["default_transaction_read_only"] == "off"
    assert one.status["server_encoding"] == "UTF8"
    assert {"server_version", "integer_datetimes", "DateStyle", "IntervalStyle", "is_superuser"} <= one.status.keys()
    assert one.status["session_authorization"] == "pool1"


def test_inside_a_transaction_and_on_every_server(target: Target) -> None:
    one, two = target.client(pool=2, search_path="tenant_a"), target.client(pool=2, search_path="tenant_b")
    for client, x in ((one, "1"), (two, "2"), (one, "1")):
        client.run("BEGIN")
        assert client.value("SELECT x FROM w") == x
    for client in (one, two):
        client.run("COMMIT")
    for client, x in ((two, "2"), (one, "1")):
        assert client.ask(P("", "SELECT x FROM w"), B(), E(), S) == f"1 2 D[{x}] C[SELECT 1] ZI"
