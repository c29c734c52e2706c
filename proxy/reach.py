"""How commands reach a server: by a URL, or a running proxy and its console by the proxy's configuration.

Owns what a URL may say and which of a proxy's addresses is taken. It asks and prints nothing of its own. Called by
`cli`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, cast, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from .config.schema import Config, ServerLink, ServerTlsMode
from .controlplane.link import NodeLink, Opened, Rows
from .controlplane.resolve import Resolver
from .dataplane.connect import dial
from .errors import ConfigError
from .ipc.paths import RuntimePaths
from .topology.snapshot import Address, NodeView
from .wire.auth import Credentials

CONSOLE = "pgtrident"
"""The console's database."""
_ALL = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""A listening address that stands for all, and one of those."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Target:
    """A database on a server, and who asks."""

    host: str
    port: int
    user: str
    password: str | None
    database: str
    mode: ServerTlsMode = "prefer"
    ca: str = ""
    socket: str = ""
    """Path of a Unix socket, instead of host and port."""


def from_url(url: str) -> Target:
    """What a URL says; ConfigError if it can't be used."""
    parts = urlsplit(url)
    try:
        port = parts.port or 5432
    except ValueError:
        port = 0
    if parts.scheme not in ("postgresql", "postgres") or not parts.username or not port:
        raise ConfigError("the DSN must look like postgresql://user:password@host:port/database")
    options = dict(parse_qsl(parts.query))
    mode = options.get("sslmode", "prefer")
    if mode not in get_args(ServerTlsMode):
        raise ConfigError(f"sslmode is one of {', '.join(get_args(ServerTlsMode))}")
    user = unquote(parts.username)
    return Target(
        host=options.get("host") or unquote(parts.hostname or "localhost"),
        port=port,
        user=user,
        password=unquote(parts.password) if parts.password else os.environ.get("PGPASSWORD"),
        database=unquote(parts.path.removeprefix("/")) or user,
        mode=cast(ServerTlsMode, mode),
        ca=options.get("sslrootcert", ""),
    )


def of_proxy(config: Config, user: str, database: str) -> Target:
    """The proxy that runs with this configuration, on this machine; ConfigError if its port isn't known."""
    listen = config.listen
    host = next((one.strip() for one in listen.host.split(",") if one.strip()), "") or listen.unix_socket_dir
    if not listen.port or not host:
        raise ConfigError("the configuration names no port to connect to", hint="Use --dsn.")
    return Target(_ALL.get(host, host), listen.port, user, os.environ.get("PGPASSWORD"), database)


def of_console(config: Config) -> Target:
    """The console of the proxy that runs with this configuration, for those who may read its private directory."""
    if not config.runtime_dir:
        raise ConfigError("the configuration names no runtime_dir, where the console is", hint="Use --dsn.")
    user = next(iter(config.admin.users), CONSOLE)
    path = str(RuntimePaths(config.runtime_dir).console)
    return Target("console", 0, user, None, CONSOLE, mode="disable", socket=path)


async def _open(target: Target) -> Opened:
    link = ServerLink(ca=target.ca)
    resolver = Resolver()
    loop = asyncio.get_running_loop()
    try:
        if target.socket:
            addresses: tuple[Address, ...] = (Address(target.socket),)
        else:
            addresses = await resolver.resolve(target.host, target.port, link.connect_timeout)
        node = NodeView(name=target.host, host=target.host, port=target.port, addresses=addresses)
        params = {"database": target.database, "application_name": "pgtrident"}
        deadline = loop.time() + link.connect_timeout
        credentials = Credentials(target.user, target.password)
        return await dial(node, link, target.mode, credentials, params, loop=loop, deadline=deadline)
    finally:
        resolver.stop()


def use(target: Target, work: Callable[[str, Opened], Awaitable[Result]]) -> Result:
    """What `work` makes of an open connection, which it closes; TridentError if there is none."""

    async def run() -> Result:
        return await work(target.host, await _open(target))

    return asyncio.run(run())


def ask(target: Target, sql: str) -> Rows:
    """The rows of one statement, as text; TridentError for a refusal."""

    async def query(name: str, opened: Opened) -> Rows:
        link = NodeLink(name, opened)
        try:
            return await link.query(sql)
        finally:
            link.close()

    return use(target, query)
