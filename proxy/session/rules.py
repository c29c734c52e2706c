"""What ties a client to its server, and the SQL by which session state is carried and looked at.

State is never guessed from the text of a statement: the text only says *what to look at*. Once the
session is idle again the server itself is asked (the audit), and its answer is the state. This holds
under errors, savepoints, rollbacks, functions and DO blocks alike, where bookkeeping by text does not.

Pure: SQL out, rows in. Called by `dataplane.client`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..sql.model import Effect

PIN_TEMP = "temp"
PIN_LISTEN = "listen"
PIN_HOLD = "hold"
PIN_PREPARE = "prepare"
PIN_ADVISORY = "advisory"
PIN_LOAD = "load"
PIN_UNKNOWN = "unknown"
PIN_SEQUENCE = "sequence"
"""It reads currval() or lastval(): only its own server knows them. Until DISCARD SEQUENCES or ALL."""
PIN_NAMES = "names"
"""It has listed its prepared statements: they are on its server under its own names. Until DISCARD ALL."""
PIN_SESSION = "session"
"""Session pooling: tied until the client goes."""
NO_PINS: frozenset[str] = frozenset()
SESSION_PINS = frozenset((PIN_SESSION,))

_QUESTIONS: tuple[tuple[Effect, str, str], ...] = (
    (
        Effect.TEMP,
        PIN_TEMP,
        "SELECT 'temp', '', '' WHERE EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = "
        "pg_catalog.pg_my_temp_schema()) OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace = "
        "pg_catalog.pg_my_temp_schema())",
    ),
    (Effect.LISTEN, PIN_LISTEN, "(SELECT 'listen', '', '' FROM pg_catalog.pg_listening_channels() LIMIT 1)"),
    (Effect.HOLD, PIN_HOLD, "(SELECT 'hold', '', '' FROM pg_catalog.pg_cursors WHERE is_holdable LIMIT 1)"),
    (
        Effect.PREPARE,
        PIN_PREPARE,
        "SELECT 'prepare', name, '' FROM pg_catalog.pg_prepared_statements WHERE from_sql",
    ),
    (
        Effect.ADVISORY,
        PIN_ADVISORY,
        "(SELECT 'advisory', '', '' FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted "
        "AND pid = pg_catalog.pg_backend_pid() LIMIT 1)",
    ),
)

_ANYTHING = Effect.SET_ANY | Effect.ROLE | Effect.TEMP | Effect.LISTEN | Effect.HOLD | Effect.PREPARE | Effect.ADVISORY

_AUTHORIZATION = "session_authorization"
_ROLE = "role"
IDENTITY = frozenset((_AUTHORIZATION, _ROLE))
"""Settings that decide who the session is; RESET ALL leaves them alone."""

_CLEAN = (
    "RESET SESSION AUTHORIZATION",
    "RESET ROLE",
    "RESET ALL",
    "CLOSE ALL",
    "UNLISTEN *",
    "SELECT pg_catalog.pg_advisory_unlock_all()",
    "DISCARD TEMP",
)
"""DISCARD ALL without DEALLOCATE ALL: that would cost all clients their plans."""

_CUSTOM_IN_FUNCTIONS = (
    "SELECT 'set', n, pg_catalog.current_setting(n, true) FROM (SELECT DISTINCT pg_catalog.lower(m[1]) AS n "
    "FROM pg_catalog.pg_proc p, "
    "pg_catalog.regexp_matches(p.prosrc, '\\m([a-z_][a-z0-9_]*[.][a-z_][a-z0-9_]*)', 'gi') m "
    "WHERE p.oid >= 16384 AND p.prosrc ~* '(set_config|\\mset\\M)') AS named "
    "WHERE pg_catalog.current_setting(n, true) IS NOT NULL"
)
"""Custom settings can't be listed, so those that a function's text may set are asked for by name."""

_NOT_SESSION = frozenset(
    ("transaction_isolation", "transaction_read_only", "transaction_deferrable", "seed", "is_superuser")
)
"""Settings that end with their transaction, or can't be read back."""


def literal(text: str) -> str:
    """An SQL string literal that means the same whatever standard_conforming_strings says."""
    quoted = text.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in quoted else "'" + quoted + "'"


def identifier(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def renamed(sql: bytes, span: tuple[int, int], name: bytes) -> bytes:
    """A text whose name at `span` (characters) is replaced by a server's own."""
    text = sql.decode("utf-8", "surrogateescape")
    new = text[: span[0]] + identifier(name.decode()) + text[span[1] :]
    return new.encode("utf-8", "surrogateescape")


def set_sql(values: Mapping[str, str]) -> str:
    """One SELECT of set_config calls; empty for no values."""
    if not values:
        return ""
    calls = (f"pg_catalog.set_config({literal(name)}, {literal(value)}, false)" for name, value in values.items())
    return "SELECT " + ", ".join(calls)


def sync_sql(server: Mapping[str, str], client: Mapping[str, str]) -> str:
    """The string that brings a server with `server` settings to `client` settings.

    One simple Query, so it takes effect whole or not at all. Identities are dropped first and taken
    on last, since other settings may need the rights of the login role.
    """
    steps: list[str] = []
    if _AUTHORIZATION in server:
        steps.append("RESET SESSION AUTHORIZATION")
    if _ROLE in server:
        steps.append("RESET ROLE")
    steps.extend(f"RESET {_qualified(name)}" for name in server if name not in client and name not in IDENTITY)
    changed = {name: value for name, value in client.items() if server.get(name) != value and name not in IDENTITY}
    if changed:
        steps.append(set_sql(changed))
    if _AUTHORIZATION in client:
        steps.append("SET SESSION AUTHORIZATION " + literal(client[_AUTHORIZATION]))
    if _ROLE in client:
        steps.append("SET ROLE " + literal(client[_ROLE]))
    return "; ".join(steps)


def clean_sql(client: Mapping[str, str]) -> str:
    """The string that rids a server of whatever unseen code may have left in its session, but for prepared
    statements, and brings it to `client` settings."""
    return "; ".join(filter(None, (*_CLEAN, sync_sql({}, client))))


def _qualified(name: str) -> str:
    return ".".join(identifier(part) for part in name.split("."))


def audited(effects: Effect) -> Effect:
    """What must be looked at after `effects`: unseen code may have done anything."""
    return effects | _ANYTHING if effects & (Effect.UNKNOWN_CODE | Effect.DISCARD) else effects


def audit_sql(effects: Effect, settings: Iterable[str], login: str) -> str:
    """The question that a server is asked after `effects`; rows are (kind, name, value).

    `settings` are the names touched, `login` the user that the server is logged in as (its own
    session_authorization is no setting of the client's).
    """
    parts: list[str] = []
    names = sorted(set(settings) - _NOT_SESSION - IDENTITY)
    if effects & Effect.UNKNOWN_CODE:
        parts.append(_CUSTOM_IN_FUNCTIONS)
    if effects & Effect.SET_ANY:
        parts.append(
            "SELECT 'set', name, pg_catalog.current_setting(name, true) FROM pg_catalog.pg_settings "
            "WHERE source = 'session' AND name NOT IN "
            "('transaction_isolation', 'transaction_read_only', 'transaction_deferrable', 'seed')"
        )
        names = [name for name in names if "." in name]
    if names:
        listed = ", ".join(literal(name) for name in names)
        parts.append(f"SELECT 'set', n, pg_catalog.current_setting(n, true) FROM pg_catalog.unnest(ARRAY[{listed}]) n")
    if effects & (Effect.ROLE | Effect.SET_ANY):
        parts.append("SELECT 'set', 'role', pg_catalog.current_setting('role')")
        parts.append(
            f"SELECT 'set', 'session_authorization', session_user::text WHERE session_user <> {literal(login)}"
        )
    parts.extend(sql for effect, _, sql in _QUESTIONS if effects & effect)
    return " UNION ALL ".join(parts)


class Audit:
    """What an audit answered, against what was known before."""

    __slots__ = ("pins", "prepared", "values")

    def __init__(self, values: dict[str, str], pins: frozenset[str], prepared: set[str]) -> None:
        self.values = values
        self.pins = pins
        self.prepared = prepared


def read_audit(
    rows: Iterable[tuple[str, str, str | None]], effects: Effect, before: Mapping[str, str], pins: Iterable[str]
) -> Audit:
    """The state and pins after an audit with these `effects`.

    `before` and `pins` are those known until now: what was not asked about stays as it was.
    """
    values = dict(before)
    if effects & Effect.SET_ANY:
        # Only custom settings (with a dot) can't be listed; those stay unless they were asked for.
        values = {name: value for name, value in values.items() if "." in name}
    if effects & (Effect.ROLE | Effect.SET_ANY):
        values.pop(_ROLE, None)
        values.pop(_AUTHORIZATION, None)
    asked = {pin for effect, pin, _ in _QUESTIONS if effects & effect}
    found = {pin for pin in pins if pin not in asked}
    prepared: set[str] = set()
    for kind, name, value in rows:
        if kind == "set":
            if value is None or (name == _ROLE and value == "none"):
                values.pop(name, None)
            else:
                values[name] = value
        else:
            found.add(kind)
            if kind == PIN_PREPARE:
                prepared.add(name)
    return Audit(values, frozenset(found), prepared)
