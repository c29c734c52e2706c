"""pgbouncer.ini -> our TOML; a DM client's dm_svc.conf is handed to `convert_dm`.

Owns what each PgBouncer setting becomes, and says of each that becomes nothing why. Where the two
products' defaults differ (pool mode, number of clients ...) PgBouncer's is written out, so that the
result behaves as before. Pure but for `%include`, which the caller reads. Called by `cli`. Source of
the meanings: pgbouncer.ini(5) of PgBouncer 1.18 to 1.25.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..errors import ConfigError
from . import convert_dm
from .converted import Output, Tree, node_name, whole, write

_SECONDS = {
    "server_connect_timeout": ("server", "connect_timeout"),
    "server_lifetime": ("pool", "lifetime"),
    "server_idle_timeout": ("pool", "idle_timeout"),
    "reserve_pool_timeout": ("pool", "reserve_timeout"),
    "query_timeout": ("pool", "query_timeout"),
    "query_wait_timeout": ("pool", "checkout_timeout"),
    "client_idle_timeout": ("pool", "client_idle_timeout"),
    "idle_transaction_timeout": ("pool", "idle_in_transaction_timeout"),
    "client_login_timeout": ("listen", "login_timeout"),
}
_COUNTS = {
    "listen_port": ("listen", "port"),
    "listen_backlog": ("listen", "backlog"),
    "max_client_conn": ("listen", "max_clients"),
    "default_pool_size": ("pool", "pool_size"),
    "min_pool_size": ("pool", "min_pool_size"),
    "reserve_pool_size": ("pool", "reserve"),
    "max_prepared_statements": ("pool", "max_prepared_statements"),
}
_TEXTS = {
    "pool_mode": ("pool", "mode"),
    "auth_file": ("auth", "userlist"),
    "auth_hba_file": ("auth", "hba_file"),
    "auth_user": ("auth", "query", "user"),
    "auth_query": ("auth", "query", "query"),
    "auth_dbname": ("auth", "query", "database"),
    "client_tls_sslmode": ("listen", "tls", "mode"),
    "client_tls_cert_file": ("listen", "tls", "cert"),
    "client_tls_key_file": ("listen", "tls", "key"),
    "client_tls_ca_file": ("listen", "tls", "ca"),
    "server_tls_sslmode": ("server", "tls"),
    "server_tls_cert_file": ("server", "cert"),
    "server_tls_key_file": ("server", "key"),
    "server_tls_ca_file": ("server", "ca"),
}
_DEFAULTS = {
    "listen_addr": "",
    "unix_socket_dir": "/tmp",
    "max_client_conn": "100",
    "pool_mode": "session",
    "server_connect_timeout": "15",
    "server_tls_sslmode": "prefer",
    "auth_type": "md5",
}
"""PgBouncer's defaults where ours differ. (`server_tls_sslmode` was "disable" until 1.20; "prefer" works with
the same nodes.)"""

_LOGGING = "lines go to standard error, for the service manager to keep"
_STATE = "a session's state follows its client and servers are reset as far as needed"
_TUNING = "there is nothing to tune"
_IGNORED = {
    **dict.fromkeys(("logfile", "syslog", "syslog_facility", "syslog_ident", "log_stats", "verbose"), _LOGGING),
    **dict.fromkeys(("log_disconnections", "log_pooler_errors"), "`log.connections` covers them"),
    "stats_period": "counters are sent once a second",
    "pidfile": "the service manager knows the process",
    "user": "start it as that user",
    "service_name": "start it as a service of any name",
    "job_name": "start it as a service of any name",
    "conffile": "name the file on the command line",
    **dict.fromkeys(("server_reset_query", "server_reset_query_always"), _STATE),
    "ignore_startup_parameters": "every startup parameter is taken and follows the client",
    "track_extra_parameters": "every parameter is followed",
    **dict.fromkeys(("server_check_query", "server_check_delay"), "nodes are probed by [health]"),
    "server_login_retry": "nodes are probed by [health]",
    "server_round_robin": "the server used last goes first",
    "server_fast_close": "a server is closed as soon as it is free",
    "application_name_add_host": "not supported",
    "disable_pqexec": "not supported",
    **dict.fromkeys(("max_db_connections", "max_user_connections"), "see `pool_size` and `nodes.NAME.max_connections`"),
    **dict.fromkeys(("max_db_client_connections", "max_user_client_connections"), "see `users.NAME.max_clients`"),
    "autodb_idle_timeout": "pools of databases that nobody uses go by themselves",
    "suspend_timeout": "not needed",
    "unix_socket_group": "use the directory's group",
    "so_reuseport": "set `workers` to use several cores",
    "peer_id": "set `workers` to use several cores",
    **dict.fromkeys(("pkt_buf", "sbuf_loopcnt", "tcp_defer_accept", "tcp_socket_buffer"), _TUNING),
    "max_packet_size": "messages of any size pass with bounded memory",
    **dict.fromkeys(("dns_max_ttl", "dns_zone_check_period", "dns_nxdomain_ttl", "resolv_conf"), "the system resolves"),
    **dict.fromkeys(("client_tls_protocols", "server_tls_protocols"), "TLS 1.2 and later"),
    **dict.fromkeys(("client_tls_ciphers", "server_tls_ciphers"), "OpenSSL's own choice"),
    **dict.fromkeys(("client_tls13_ciphers", "server_tls13_ciphers"), "OpenSSL's own choice"),
    **dict.fromkeys(("client_tls_dheparams", "client_tls_ecdhcurve"), "OpenSSL's own choice"),
    "auth_ident_file": "maps of user names aren't supported",
    "cancel_wait_timeout": "cancel requests never wait for a free server",
    "query_wait_notify": "not supported",
}
_TOGETHER = ("auth_type", "tcp_keepalive", "tcp_keepidle", "tcp_keepintvl", "tcp_keepcnt", "tcp_user_timeout")
"""Settings that are looked at together, after the others."""
_SERVER_SETTINGS = ("client_encoding", "datestyle", "timezone", "application_name", "connect_query")
_HBA_METHODS = {
    "any": "trust",
    "trust": "trust",
    "plain": "password",
    "md5": "md5",
    "scram-sha-256": "scram-sha-256",
    "cert": "cert",
}


@dataclass(slots=True)
class _Ini:
    """The file as it is: settings, and the parameters of each database and user."""

    settings: dict[str, str] = field(default_factory=dict)
    databases: dict[str, dict[str, str]] = field(default_factory=dict)
    users: dict[str, dict[str, str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def convert(text: str, include: Callable[[str], str]) -> str:
    """The TOML text, with a comment for everything that isn't carried over.

    `include` gives the text of a file named by `%include`. ConfigError names the line that can't be read.
    """
    if convert_dm.is_dm_svc(text):
        return convert_dm.convert(text)
    ini = _Ini()
    _parse(ini, text, include, depth=0)
    out = Output()
    for line in ini.unknown:
        out.notes.append(line)
    settings = _DEFAULTS | ini.settings
    for key, value in settings.items():
        _setting(out, key, value)
    _keepalive(out, settings)
    _auth(out, settings)
    nodes = _nodes(out, ini, settings)
    for name, parameters in ini.databases.items():
        _database(out, name, parameters, nodes)
    for name, parameters in ini.users.items():
        _user(out, name, parameters)
    return write(out, "a PgBouncer configuration")


def _parse(ini: _Ini, text: str, include: Callable[[str], str], depth: int) -> None:
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in ";#":
            continue
        if line.startswith("%include"):
            if depth >= 10:
                raise ConfigError(f"line {number}: files include each other more than ten deep")
            _parse(ini, include(line.removeprefix("%include").strip()), include, depth + 1)
        elif line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            if section not in ("pgbouncer", "databases", "users"):
                ini.unknown.append(f"[{section}]: there is no such section here")
        else:
            match = re.fullmatch(r'("(?:[^"]|"")*"|[^=\s]+)\s*=\s*(.*)', line)
            if match is None:
                raise ConfigError(f"line {number}: expected `key = value`")
            name = match[1][1:-1].replace('""', '"') if match[1].startswith('"') else match[1]
            if section == "pgbouncer":
                ini.settings[name] = match[2]
            elif section == "databases":
                ini.databases[name] = _parameters(match[2], number)
            elif section == "users":
                ini.users[name] = _parameters(match[2], number)


def _parameters(text: str, number: int) -> dict[str, str]:
    """A connection string: key=value pairs, values perhaps in single quotes (doubled inside)."""
    pair = re.compile(r"\s*(\w+)\s*=\s*(?:'((?:[^']|'')*)'|([^\s']*))(?:\s+|$)")
    parameters = {}
    position = 0
    while position < len(text):
        match = pair.match(text, position)
        if match is None:
            raise ConfigError(f"line {number}: expected key=value pairs separated by spaces")
        quoted = match[2]
        parameters[match[1]] = quoted.replace("''", "'") if quoted is not None else match[3]
        position = match.end()
    return parameters


def _setting(out: Output, key: str, value: str) -> None:
    if key in _SECONDS:
        out.set(_SECONDS[key], _number(key, value))
    elif key in _COUNTS:
        out.set(_COUNTS[key], whole(key, value))
    elif key in ("client_tls_sslmode", "server_tls_sslmode"):
        out.set(_TEXTS[key], _tls_mode(key, value))
    elif key in _TEXTS:
        if value:
            out.set(_TEXTS[key], value)
    elif key == "listen_addr":
        out.set(("listen", "host"), value)
    elif key == "unix_socket_dir":
        _unix_socket(out, value)
    elif key == "unix_socket_mode":
        out.set(("listen", "unix_socket_mode"), whole(key, value, base=8))
    elif key == "log_connections":
        out.set(("log", "connections"), value != "0")
    elif key in ("admin_users", "stats_users"):
        _admins(out, key, value)
    elif key not in _TOGETHER:
        out.notes.append(f"{key}: {_IGNORED.get(key, 'not known')}")


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"{key}: expected a number, not {value!r}") from None


def _tls_mode(key: str, value: str) -> str:
    if key == "client_tls_sslmode":
        return "allow" if value == "prefer" else value
    return "prefer" if value == "allow" else value


def _unix_socket(out: Output, value: str) -> None:
    if value.startswith("@"):
        out.notes.append("unix_socket_dir: sockets without a file aren't supported")
    else:
        out.set(("listen", "unix_socket_dir"), value)


def _admins(out: Output, key: str, value: str) -> None:
    names = [name.strip() for name in value.split(",") if name.strip()]
    admins = out.tree.setdefault("admin", {})
    admins["users"] = tuple(dict.fromkeys([*admins.get("users", ()), *names]))
    if key == "stats_users" and names:
        out.notes.append("stats_users: all users of the console have the same rights")


def _keepalive(out: Output, settings: dict[str, str]) -> None:
    """PgBouncer has one set for both sides; its 0 is the system's default, as here."""
    off = settings.get("tcp_keepalive", "1") == "0"
    for side in ("listen", "server"):
        for theirs, ours in (("keepidle", "idle"), ("keepintvl", "interval"), ("keepcnt", "count")):
            value = "0" if off else settings.get(f"tcp_{theirs}")
            if value is not None:
                out.set(
                    (side, f"keepalive_{ours}"),
                    whole(f"tcp_{theirs}", value) if ours == "count" else _number(f"tcp_{theirs}", value),
                )
        if "tcp_user_timeout" in settings:
            out.set((side, "user_timeout"), _number("tcp_user_timeout", settings["tcp_user_timeout"]) / 1000)


def _auth(out: Output, settings: dict[str, str]) -> None:
    method = settings["auth_type"]
    auth = out.tree.setdefault("auth", {})
    if method == "hba":
        if "hba_file" not in auth:
            out.notes.append("auth_type: hba needs `auth_hba_file`")
    else:
        if auth.pop("hba_file", None):
            out.notes.append(f"auth_hba_file: not used with auth_type {method}")
        if method in _HBA_METHODS:
            rule = _HBA_METHODS[method]
            auth["hba"] = (
                (f"hostssl all all all {rule}",)
                if rule == "cert"
                else tuple(f"{kind} {rule}" for kind in ("local all all", "host all all all"))
            )
        else:
            out.notes.append(f"auth_type: {method} isn't supported; the default is scram-sha-256")
        if method == "any":
            out.notes.append("auth_type: any became trust, with the user that the client names")
    query = auth.get("query", {})
    if query.get("user"):
        query["enabled"] = True
        out.notes.append(f"auth_user: set `password` or `password_file` in [auth.query], for {query['user']}")
    elif auth.pop("query", None):
        out.notes.append("auth_query: not used without auth_user")


def _nodes(out: Output, ini: _Ini, settings: dict[str, str]) -> dict[tuple[str, int], str]:
    """One node for each server that the databases name; gives its name by host and port."""
    nodes: dict[tuple[str, int], str] = {}
    for parameters in ini.databases.values():
        for address in _addresses(parameters, settings):
            if address not in nodes:
                nodes[address] = node_name(address, nodes.values())
                host, port = address
                out.set(("nodes", nodes[address]), {"host": host, "port": port})
    if len(nodes) > 1:
        out.notes.append(
            "[databases] names several servers: they are taken for one primary and its replicas, whose roles are "
            "found by asking; servers with different data need an instance each"
        )
    if not nodes:
        out.notes.append("[databases] names no server: add one under [nodes.NAME]")
    return nodes


def _addresses(parameters: dict[str, str], settings: dict[str, str]) -> Iterator[tuple[str, int]]:
    default = settings["unix_socket_dir"] or "/tmp"  # where PgBouncer looks when there is no host
    for host in parameters.get("host", default).split(","):
        yield host.strip() or default, whole("port", parameters.get("port", "5432"))


def _database(out: Output, name: str, parameters: dict[str, str], nodes: dict[tuple[str, int], str]) -> None:
    section: Tree = {}
    out.set(("databases", name), section)
    for key, value in parameters.items():
        match key:
            case "dbname" | "user" | "password" | "pool_mode":
                section[key] = value
            case "pool_size":
                section["pool_size"] = whole(f"{name}: pool_size", value)
            case "host" if len(nodes) > 1:
                out.notes.append(f"databases.{name}: host {value}: nodes are chosen by what a statement needs")
            case "host" | "port":
                pass
            case _ if key in _SERVER_SETTINGS:
                out.notes.append(f"databases.{name}: {key}: use ALTER DATABASE or ALTER ROLE ... SET on the primary")
            case "auth_user" | "auth_query" | "auth_dbname":
                out.notes.append(f"databases.{name}: {key}: there is one [auth.query] for all databases")
            case _:
                out.notes.append(f"databases.{name}: {key}: {_IGNORED.get(key, 'set for all pools in [pool]')}")
    if section.get("user") and not section.get("password"):
        out.notes.append(f"databases.{name}: set `password` or `password_file`, for {section['user']}")
    if section.get("password"):
        out.notes.append(f"databases.{name}: its password stands below; `password_file` would keep it out of here")


def _user(out: Output, name: str, parameters: dict[str, str]) -> None:
    section: Tree = {}
    for key, value in parameters.items():
        match key:
            case "pool_mode":
                section["pool_mode"] = value
            case "pool_size":
                section["pool_size"] = whole(f"{name}: pool_size", value)
            case "max_user_client_connections":
                section["max_clients"] = whole(f"{name}: {key}", value)
            case _:
                out.notes.append(f"users.{name}: {key}: {_IGNORED.get(key, 'set for all pools in [pool]')}")
    if section:
        out.set(("users", name), section)
