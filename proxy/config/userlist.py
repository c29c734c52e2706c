"""A userlist file in PgBouncer's form: text in, stored passwords by user out.

Owns the form; it must not open files. Called by `dataplane.authenticate`. A line is `"user" "password"`,
a quote inside is doubled; `;` and `#` begin a comment line; what follows the password is ignored.
"""

from __future__ import annotations

import re

from ..errors import ConfigError

_LINE = re.compile(r'\s*"((?:[^"]|"")*)"\s+"((?:[^"]|"")*)"')


def parse(text: str, source: str) -> dict[str, str]:
    """Stored passwords (plain, `md5...` or `SCRAM-SHA-256$...`) by user; the first line of a user counts.

    Raises ConfigError naming file and line, never what stands there.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in ";#":
            continue
        found = _LINE.match(line)
        if found is None:
            raise ConfigError(f'{source} line {number}: expected "user" "password"')
        user, password = (part.replace('""', '"') for part in found.groups())
        users.setdefault(user, password)
    return users
