"""What the scripts of this directory share: where to connect, and one line of output a step.

A script is run as `python -m tests.clients.NAME HOST PORT USER DATABASE`; it prints all that an application
sees and nothing that differs from run to run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    user: str
    database: str

    @property
    def dsn(self) -> str:
        return f"host={self.host} port={self.port} user={self.user} dbname={self.database}"

    @property
    def url(self) -> str:
        """The part of a URL behind the scheme."""
        return f"//{self.user}@{self.host}:{self.port}/{self.database}"


def address() -> Address:
    """From the command line."""
    host, port, user, database = sys.argv[1:5]
    return Address(host, int(port), user, database)


def say(label: str, value: object = "") -> None:
    print(f"{label}: {value!r}", flush=True)


def sqlstate(error: BaseException) -> str:
    """The SQLSTATE that a driver's exception carries, wherever that driver keeps it."""
    seen: BaseException | None = error
    while seen is not None:
        for holder in (seen, getattr(seen, "orig", None)):
            for name in ("sqlstate", "pgcode"):
                code = getattr(holder, name, None)
                if code:
                    return str(code)
            arguments = getattr(holder, "args", ())
            if arguments and isinstance(arguments[0], dict) and "C" in arguments[0]:
                return str(arguments[0]["C"])
        seen = seen.__cause__
    return ""


def attempt(label: str, step: Callable[[], Any]) -> None:
    """Say what the step returns, or which error it raises."""
    try:
        say(label, step())
    except Exception as error:
        say(label, f"{type(error).__name__} {sqlstate(error)}")


TYPES = """
    SELECT 1::int2 AS a, -2::int4 AS b, 9007199254740993::int8 AS c, 1.5::float4 AS d, 0.1::float8 AS e,
        123456789.987654321::numeric AS f, 'NaN'::numeric AS g, true AS h, 'text'::text AS i, 'c'::char(3) AS j,
        'v'::varchar AS k, '\\x00ff'::bytea AS l, '2024-02-29'::date AS m, '12:34:56.789'::time AS n,
        '2024-02-29 12:34:56.789'::timestamp AS o, '2024-02-29 12:34:56+02'::timestamptz AS p,
        '1 year 2 mons 3 days 04:05:06'::interval AS q, '{"a": [1, null]}'::jsonb AS r, '[1, 2]'::json AS s,
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS t, ARRAY[1, NULL, 3] AS u, ARRAY['a', 'b c', NULL] AS v,
        '10.0.0.1'::inet AS w, NULL::int AS x, int4range(1, 5) AS y, ROW(1, 'x') AS z
"""
