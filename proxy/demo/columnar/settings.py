"""A session's settings, as SHOW and SET see them. Any name is taken, as PostgreSQL takes its own; those that
would change how values look are only taken where this node shows values that way.

Pure. Called by `session`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .errors import StatementError

REPORTED = (
    *("application_name", "client_encoding", "DateStyle", "default_transaction_read_only", "in_hot_standby"),
    *("integer_datetimes", "IntervalStyle", "is_superuser", "server_encoding", "server_version"),
    *("session_authorization", "standard_conforming_strings", "TimeZone"),
)
"""What ParameterStatus tells (manual, 55.2.7)."""

_DEFAULTS = {
    "application_name": "",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "client_min_messages": "notice",
    "datestyle": "ISO, MDY",
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "extra_float_digits": "1",
    "in_hot_standby": "on",
    "integer_datetimes": "on",
    "intervalstyle": "postgres",
    "is_superuser": "off",
    "max_identifier_length": "63",
    "search_path": '"$user", public',
    "server_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "timezone": "UTC",
    "transaction_isolation": "repeatable read",
    "transaction_read_only": "on",
}
_READ_ONLY = frozenset(
    {"server_version", "server_version_num", "server_encoding", "in_hot_standby", "integer_datetimes", "is_superuser"}
)
_SHOWN_ONE_WAY = {
    "bytea_output": "hex",
    "client_encoding": r"\W*(utf\W*8|unicode)\W*",  # PostgreSQL looks at letters and digits only
    "datestyle": r"iso(\s*,\s*\w+)?|\w+\s*,\s*iso",
    "intervalstyle": "postgres",
    "standard_conforming_strings": "on|true|yes|1",
}
_UNITS = {"": 0.001, "us": 1e-6, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Settings:
    """Values by lower-case name, with what SET LOCAL and a rolled-back SET undo."""

    def __init__(self, fixed: Mapping[str, str], startup: Mapping[str, str]) -> None:
        """`fixed` comes from the node (server_version, session_authorization ...), `startup` from the client."""
        self._values = {**_DEFAULTS, **fixed}
        for name, value in startup.items():
            self._values[name.lower()] = self._checked(name.lower(), value)
        self._startup = dict(self._values)
        self._session = dict(self._values)
        self._at_begin: dict[str, str] | None = None
        self._told: dict[str, str] = {}

    def show(self, name: str) -> str:
        """Raises StatementError 42704 for a name that was never set."""
        try:
            return self._values[name.lower()]
        except KeyError:
            raise StatementError(f'unrecognized configuration parameter "{name}"', sqlstate="42704") from None

    def all(self) -> dict[str, str]:
        return dict(sorted(self._values.items()))

    def set(self, name: str, value: str, *, local: bool = False) -> None:
        name = name.lower()
        value = self._checked(name, value)
        self._values[name] = value
        if not local:
            self._session[name] = value

    def reset(self, name: str) -> None:
        """`all` resets every one."""
        if name.lower() == "all":
            self._values = dict(self._startup)
            self._session = dict(self._startup)
        else:
            self.show(name)
            self.set(name, self._startup.get(name.lower(), ""))

    def begin(self) -> None:
        self._at_begin = dict(self._session)

    def end(self, *, committed: bool) -> None:
        """A transaction ended: SET LOCAL is undone, and SET too when it was rolled back."""
        if not committed and self._at_begin is not None:
            self._session = self._at_begin
        self._values = dict(self._session)
        self._at_begin = None

    def news(self) -> list[tuple[str, str]]:
        """Reported settings that the client hasn't been told yet."""
        fresh = [(name, self._values.get(name.lower(), "")) for name in REPORTED]
        fresh = [(name, value) for name, value in fresh if self._told.get(name) != value]
        self._told.update(fresh)
        return fresh

    @property
    def zone(self) -> tzinfo:
        return _zone(self._values["timezone"])

    @property
    def statement_timeout(self) -> float:
        """Seconds; 0 is none."""
        found = re.fullmatch(r"\s*(\d+)\s*(us|ms|s|min|h|d)?\s*", self._values["statement_timeout"])
        return int(found[1]) * _UNITS[found[2] or ""] if found else 0.0

    def _checked(self, name: str, value: str) -> str:
        if name in _READ_ONLY:
            raise StatementError(f'parameter "{name}" cannot be changed', sqlstate="55P02")
        if name == "timezone":
            _zone(value)
        wanted = _SHOWN_ONE_WAY.get(name)
        if wanted and not re.fullmatch(wanted, value.strip(), re.IGNORECASE):
            raise StatementError(f'a columnar node has no "{name}" but "{_DEFAULTS[name]}"', sqlstate="0A000")
        return _DEFAULTS[name] if wanted else value


def _zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "GMT", "ETC/UTC"):
        return UTC  # also where the machine has no time zone data base
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise StatementError(f'invalid value for parameter "TimeZone": "{name}"', sqlstate="22023") from None
