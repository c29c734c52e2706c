"""What each statement of the console is answered with: a command, or what drivers ask on their own.

Drivers send SET, BEGIN, SELECT 1 and the like without being asked; these get plausible answers and do
nothing, so that any client can be used. Everything else is 42601. Called by `session`; does no I/O itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from .. import __version__
from ..wire import codes
from .command import BOOL, INT4, TEXT, Action, Column, Command, Context, Value
from .language import Statement, syntax_error

SERVER_VERSION = f"15.0 (pgtrident {__version__})"
"""Drivers choose their own queries by it; nothing older than 14 and nothing newer than they may know."""

Rows = Sequence[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Answer:
    """How to answer one statement. Without columns it returns no rows."""

    tag: str
    """Of CommandComplete; for a SELECT the number of rows is added."""
    columns: tuple[Column, ...] | None = None
    rows: Callable[[Context], Awaitable[Rows]] | None = None
    status: int | None = None
    """Transaction status afterwards, if the statement changes it."""


@dataclass(frozen=True, slots=True)
class Who:
    """What a client said of itself at startup."""

    user: str
    database: str
    parameters: Mapping[str, str]


_TRANSACTION: dict[str, Answer] = {
    "begin": Answer("BEGIN", status=codes.IN_TRANSACTION),
    "start": Answer("START TRANSACTION", status=codes.IN_TRANSACTION),
    "commit": Answer("COMMIT", status=codes.IDLE),
    "end": Answer("COMMIT", status=codes.IDLE),
    "rollback": Answer("ROLLBACK", status=codes.IDLE),
    "abort": Answer("ROLLBACK", status=codes.IDLE),
}

_WITHOUT_EFFECT: dict[str, str] = {
    "set": "SET",
    "reset": "RESET",
    "discard": "DISCARD ALL",
    "deallocate": "DEALLOCATE ALL",
    "unlisten": "UNLISTEN",
    "savepoint": "SAVEPOINT",
    "release": "RELEASE",
}

_SETTINGS: dict[str, str] = {
    "transaction_isolation": "read committed",
    "default_transaction_isolation": "read committed",
    "transaction_read_only": "off",
    "search_path": '"$user", public',
    "max_identifier_length": "63",
    "lc_collate": "C",
    "ssl": "off",
}


def parameters(who: Who) -> dict[str, str]:
    """The settings announced by ParameterStatus, as PostgreSQL 15 announces its own."""
    return {
        "application_name": who.parameters.get("application_name", ""),
        "client_encoding": "UTF8",
        "DateStyle": "ISO, MDY",
        "default_transaction_read_only": "off",
        "in_hot_standby": "off",
        "integer_datetimes": "on",
        "IntervalStyle": "postgres",
        "is_superuser": "off",
        "server_encoding": "UTF8",
        "server_version": SERVER_VERSION,
        "session_authorization": who.user,
        "standard_conforming_strings": "on",
        "TimeZone": "UTC",
    }


def answer(statement: Statement, who: Who, commands: Mapping[str, Command | Action]) -> Answer:
    """The answer; TridentError 42601 for what is not understood."""
    words = statement.words
    first = words[0]
    if first == "show":
        return _show(statement, who, commands)
    if first == "select":
        return _select(statement, who)
    action = commands.get(first)
    if isinstance(action, Action):
        return Answer(first.upper(), action.columns, _acting(action, statement, who))
    if first == "rollback" and "to" in words:
        return Answer("ROLLBACK", status=codes.IN_TRANSACTION)
    if first in _TRANSACTION:
        return _TRANSACTION[first]
    if first in _WITHOUT_EFFECT:
        return Answer(_WITHOUT_EFFECT[first])
    if words == ("close", "all"):
        return Answer("CLOSE CURSOR ALL")
    raise _unknown(statement)


def _acting(action: Action, statement: Statement, who: Who) -> Callable[[Context], Awaitable[Rows]]:
    async def rows(context: Context) -> Rows:
        done = await action.run(context, statement.words[1:])
        context.view.commanded(statement.text, who.user)
        return done

    return rows


def _show(statement: Statement, who: Who, commands: Mapping[str, Command | Action]) -> Answer:
    name = "_".join(statement.words[1:])
    command = commands.get(name)
    if isinstance(command, Command):
        return Answer("SHOW", command.columns, command.rows)
    name = {"transaction_isolation_level": "transaction_isolation", "time_zone": "timezone"}.get(name, name)
    known = {key.lower(): (key, value) for key, value in {**_SETTINGS, **parameters(who)}.items()}
    if name not in known:
        raise _unknown(statement)
    column, value = known[name]
    return Answer("SHOW", ((column, TEXT),), _fixed(value))


def _select(statement: Statement, who: Who) -> Answer:
    expression = "".join(statement.words[1:]).removeprefix("pg_catalog.")
    known: dict[str, tuple[Column, Value]] = {
        "version()": (("version", TEXT), f"PostgreSQL {SERVER_VERSION}"),
        "current_user": (("current_user", TEXT), who.user),
        "session_user": (("session_user", TEXT), who.user),
        "current_database()": (("current_database", TEXT), who.database),
        "current_schema()": (("current_schema", TEXT), "public"),
        "current_schema": (("current_schema", TEXT), "public"),
        "pg_is_in_recovery()": (("pg_is_in_recovery", BOOL), False),
        "pg_advisory_unlock_all()": (("pg_advisory_unlock_all", TEXT), ""),
    }
    if expression in known:
        column, value = known[expression]
    elif expression.isdecimal() and len(expression) < 10:
        column, value = ("?column?", INT4), int(expression)
    elif expression.startswith("'") and expression.endswith("'") and len(statement.words) == 2:
        column, value = ("?column?", TEXT), expression[1:-1].replace("''", "'")
    else:
        raise _unknown(statement)
    return Answer("SELECT", (column,), _fixed(value))


def _fixed(value: Value) -> Callable[[Context], Awaitable[Rows]]:
    async def rows(_: Context) -> Rows:
        return [[value]]

    return rows


def _unknown(statement: Statement) -> Exception:
    shown = " ".join(statement.words[:3])[:60]
    return syntax_error(f'invalid command "{shown}"')
