"""A .pgpass file and a pg_service.conf file: text in, what they say out.

Owns their two forms; it must not open files. Called where logins to nodes are put together. Sources:
PostgreSQL manual 34.16 (password file) and 34.17 (connection service file).
"""

from __future__ import annotations

from ..errors import ConfigError


def find_password(text: str, host: str, port: int, database: str, user: str) -> str | None:
    """The password of the first line `host:port:database:user:password` that fits; `*` fits all.

    `host` is "localhost" for a Unix socket in the default directory, else the socket's directory.
    """
    wanted = (host, str(port), database, user)
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        fields = _split(line)
        if len(fields) == 5 and all(have in ("*", want) for have, want in zip(fields[:4], wanted, strict=True)):
            return fields[4] or None
    return None


def _split(line: str) -> list[str]:
    """Up to five fields; a backslash takes the next character as it is, and the last field may hold colons."""
    fields = [""]
    characters = iter(line)
    for c in characters:
        if c == ":" and len(fields) < 5:
            fields.append("")
        else:
            fields[-1] += next(characters, "") if c == "\\" else c
    return fields


def find_service(text: str, name: str, source: str = "service file") -> dict[str, str] | None:
    """Parameters of the section `[name]`, or None without one. Raises ConfigError for a bad line in it."""
    found: dict[str, str] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            if found is not None:
                break
            if line == f"[{name}]":
                found = {}
        elif found is not None:
            key, equals, value = line.partition("=")
            if not equals:
                raise ConfigError(f"{source} line {number}: expected name=value")
            found.setdefault(key.strip(), value.strip())
    return found
