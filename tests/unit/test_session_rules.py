"""The SQL by which session state is carried and looked at: as text, and by what PostgreSQL makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.session import rules
from proxy.session.state import States
from proxy.sql.model import Effect

from ..support.fleet import Fleet

LOGINS = ("ann", "O'Neil \\ co")
ROLES = ("guest", 'a "role"; \\ of\'s')
EVERYTHING = rules.audited(Effect.UNKNOWN_CODE)


def test_equal_states_are_one_object() -> None:
    states = States()
    one = states.intern({"a": "1", "b": "2"})
    assert states.intern({"b": "2", "a": "1"}) is one
    assert states.intern({"a": "1"}) is not one
    assert states.intern({}) is states.empty
    assert len(states) == 2
    del one
    assert len(states) == 1


def test_a_state_does_not_show_its_values() -> None:
    assert "hush" not in repr(States().intern({"app.password": "hush"}))


def test_nothing_to_do_is_no_statement() -> None:
    assert rules.sync_sql({}, {}) == ""
    assert rules.sync_sql({"work_mem": "7MB"}, {"work_mem": "7MB"}) == ""
    assert rules.set_sql({}) == ""
    assert rules.audit_sql(Effect.NONE, (), "joe") == ""


def test_identities_go_first_and_come_last() -> None:
    server = {"role": "a", "session_authorization": "b", "work_mem": "5MB"}
    client = {"role": "c", "session_authorization": "d", "app.x": "1"}
    steps = rules.sync_sql(server, client).split("; ")
    assert steps[:2] == ["RESET SESSION AUTHORIZATION", "RESET ROLE"]
    assert steps[2] == 'RESET "work_mem"'
    assert steps[-2:] == ["SET SESSION AUTHORIZATION 'd'", "SET ROLE 'c'"]


def test_unseen_code_is_asked_about_everything() -> None:
    for effect in Effect:
        asked_for_elsewhere = Effect.UNKNOWN_CODE | Effect.DISCARD | Effect.SET | Effect.SEQUENCE
        asked_for_elsewhere |= Effect.LOAD | Effect.LOCAL | Effect.OWN_NAMES
        if effect not in asked_for_elsewhere:
            assert effect in EVERYTHING
            assert rules.audited(effect) == effect


def test_what_was_not_asked_about_stays() -> None:
    before = {"work_mem": "7MB", "role": "r", "app.x": "1"}
    answer = rules.read_audit([], Effect.LISTEN, before, {"temp", "listen"})
    assert (answer.values, answer.pins) == (before, {"temp"})
    answer = rules.read_audit([("set", "work_mem", None)], Effect.SET, before, {"temp"})
    assert (answer.values, answer.pins) == ({"role": "r", "app.x": "1"}, {"temp"})
    answer = rules.read_audit([("set", "role", "none")], Effect.ROLE, before, ())
    assert answer.values == {"work_mem": "7MB", "app.x": "1"}
    answer = rules.read_audit([("prepare", "p", ""), ("prepare", "q", "")], Effect.PREPARE, {}, ())
    assert (answer.pins, answer.prepared) == ({"prepare"}, {"p", "q"})


# ---- as PostgreSQL reads it


@pytest.fixture(scope="module")
def session(fleet: Fleet) -> Iterator[psycopg.Connection[tuple[str | None, ...]]]:
    """A superuser's session, in which each of the logins may become each of the roles."""
    logins, roles = (", ".join(map(rules.identifier, names)) for names in (LOGINS, ROLES))
    with fleet.primary.connect() as connection:
        connection.prepare_threshold = None
        for name in (*LOGINS, *ROLES):
            connection.execute(f"CREATE ROLE {rules.identifier(name)}".encode())
        connection.execute(f"GRANT {roles} TO {logins}".encode())
        yield connection
        connection.execute(b"DISCARD ALL")
        connection.execute(f"DROP ROLE {logins}, {roles}".encode())


@pytest.fixture
def fresh(session: psycopg.Connection[tuple[str | None, ...]]) -> psycopg.Connection[tuple[str | None, ...]]:
    session.execute("DISCARD ALL")
    return session


SETTINGS: dict[str, st.SearchStrategy[str]] = {
    "work_mem": st.sampled_from(["64kB", "4MB", "7MB", "2GB"]),
    "search_path": st.sampled_from(["", '""', '"$user", public', "pg_catalog", '"we; ird""x", public']),
    "TimeZone": st.sampled_from(["UTC", "Asia/Tokyo", "<-08>+08"]),
    "DateStyle": st.sampled_from(["ISO, MDY", "German, DMY"]),
    "application_name": st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
    "app.tenant": st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30),
    "app.other": st.text("'\\;-$ \n", max_size=10),
    "standard_conforming_strings": st.sampled_from(["on", "off"]),
    "role": st.sampled_from(ROLES),
    "session_authorization": st.sampled_from(LOGINS),
}
STATES = st.fixed_dictionaries({}, optional=SETTINGS)


def looked_at(connection: psycopg.Connection[tuple[str | None, ...]], names: Mapping[str, str]) -> dict[str, str]:
    """The state as an audit of everything finds it; `names` are the custom ones, which can't be listed."""
    sql = rules.audit_sql(EVERYTHING, names, "postgres")
    rows = [(row[0] or "", row[1] or "", row[2]) for row in connection.execute(sql.encode())]
    return rules.read_audit(rows, EVERYTHING, {}, ()).values


@settings(max_examples=150, deadline=None)
@given(server=STATES, client=STATES)
def test_a_server_comes_from_any_state_to_any_other(
    session: psycopg.Connection[tuple[str | None, ...]], server: dict[str, str], client: dict[str, str]
) -> None:
    """In one string, whatever quotes and switches are in the way; and the audit finds just that state."""
    session.execute("DISCARD ALL")
    # Only the superuser may become somebody else, and may do so first.
    for before, after in (({}, server), (server, client)):
        if sql := rules.sync_sql(before, after):
            session.execute(sql.encode())
    found = looked_at(session, {**server, **client})
    for name in server.keys() | client.keys():
        want = client.get(name)
        if want is None:
            # A custom setting that was reset is empty; any other is not the session's any longer.
            assert not found.get(name)
        elif name == "role":
            assert found.get(name, "none") == want
        else:
            assert found[name] == want
    session.execute("RESET SESSION AUTHORIZATION")


def test_a_failed_sync_changes_nothing(fresh: psycopg.Connection[tuple[str | None, ...]]) -> None:
    sql = rules.sync_sql({}, {"work_mem": "7MB", "role": "nobody_here"})
    with pytest.raises(psycopg.Error):
        fresh.execute(sql.encode())
    assert looked_at(fresh, {}) == {}


@pytest.mark.parametrize(
    "sql, effect, pin",
    [
        ("CREATE TEMP TABLE t(a int)", Effect.TEMP, "temp"),
        ("CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1", Effect.TEMP, "temp"),
        ("CREATE TEMP SEQUENCE s", Effect.TEMP, "temp"),
        ("LISTEN a", Effect.LISTEN, "listen"),
        ("BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT", Effect.HOLD, "hold"),
        ("PREPARE p AS SELECT 1", Effect.PREPARE, "prepare"),
        ("SELECT pg_advisory_lock(1)", Effect.ADVISORY, "advisory"),
        ("SELECT pg_advisory_lock_shared(1, 2)", Effect.ADVISORY, "advisory"),
    ],
)
def test_questions(fresh: psycopg.Connection[tuple[str | None, ...]], sql: str, effect: Effect, pin: str) -> None:
    """Each finds its kind of state and no other, alone and among all."""
    for effects in (effect, EVERYTHING):
        assert _pins(fresh, effects) == set()
    fresh.execute(sql.encode())
    for effects in (effect, EVERYTHING):
        assert _pins(fresh, effects) == {pin}
    assert _pins(fresh, EVERYTHING & ~effect) == set()
    fresh.execute("DISCARD ALL")
    assert _pins(fresh, EVERYTHING) == set()


def _pins(connection: psycopg.Connection[tuple[str | None, ...]], effects: Effect) -> set[str]:
    answer = connection.execute(rules.audit_sql(effects, (), "postgres").encode())
    return rules.read_audit([(r[0] or "", r[1] or "", r[2]) for r in answer], effects, {}, ()).pins


def test_other_sessions_are_not_looked_at(fresh: psycopg.Connection[tuple[str | None, ...]], fleet: Fleet) -> None:
    with fleet.primary.connect() as other:
        other.execute("SELECT pg_advisory_lock(1)")
        other.execute("CREATE TEMP TABLE t(a int)")
        other.execute("LISTEN a")
        other.execute("SET work_mem = '7MB'")
        assert _pins(fresh, EVERYTHING) == set()
        assert looked_at(fresh, {}) == {}


def test_the_audit_needs_no_search_path(fresh: psycopg.Connection[tuple[str | None, ...]]) -> None:
    """Functions and tables of the same names in front of the path are not called."""
    fresh.execute("CREATE TEMP TABLE pg_locks(a int)")
    fresh.execute("CREATE FUNCTION pg_temp.current_setting(text) RETURNS text LANGUAGE sql RETURN 'forged'")
    fresh.execute("SET search_path = pg_temp, pg_catalog")
    assert _pins(fresh, EVERYTHING) == {"temp"}
    assert looked_at(fresh, {"app.x": ""}) == {"search_path": "pg_temp, pg_catalog"}
