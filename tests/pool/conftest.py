"""What tests of the pool need: a proxy with some settings, seen from its clients, its console and the nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..conftest import StartProxy
from ..support.fleet import Fleet
from ..support.proxy import Proxy, Settings, merged
from ..support.rawpg import Q, Wire
from ..support.waiting import eventually as eventually

CONSOLE_USER = "console"


class Service:
    """A proxy as one test sees it: a database of its own, its clients, and what the nodes say of its servers."""

    def __init__(self, proxy: Proxy, database: str, fleet: Fleet) -> None:
        self.proxy = proxy
        self.database = database
        self.fleet = fleet
        self._admin: Wire | None = None
        self._console: Wire | None = None

    def open(self) -> Wire:
        """A connection on which nothing has been sent yet."""
        return Wire(self.proxy.address)

    def client(self, *, pool: int = 2, user: str = "", database: str = "", **params: str) -> Wire:
        """A logged-in client on a pool of `pool` servers; `params` are startup parameters (`__` is a dot)."""
        client = self.open()
        more = {key.replace("__", "."): value for key, value in params.items()}
        client.login({"user": user or f"pool{pool}", "database": database or self.database, **more})
        last = client.log[-1]
        assert last.kind == "Z", f"login failed: {client.log[-2:]} {client.log[-2].body!r}"
        return client

    @property
    def admin(self) -> Wire:
        """A client of the primary itself."""
        if self._admin is None:
            self._admin = Wire(("127.0.0.1", self.fleet.primary.port))
            self._admin.login({"user": "postgres", "database": self.database})
        return self._admin

    def forget_connections(self) -> None:
        """All connections were closed: the admin's and the console's are opened anew when needed."""
        self._admin = self._console = None

    def servers(self, user: str = "") -> list[int]:
        """Process ids of the proxy's servers to this database on the primary, as the primary tells."""
        sql = f"SELECT pid FROM pg_stat_activity WHERE datname = '{self.database}' AND usename <> 'postgres'"
        rows = self.admin.rows(sql + (f" AND usename = '{user}'" if user else ""))
        return [int(row[0] or 0) for row in rows]

    def reached(self, marker: str) -> set[str]:
        """Names of the nodes whose servers ran a text with this marker last."""
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND usename <> 'postgres'"
        sql += " AND strpos(query, %s) > 0"
        nodes = (self.fleet.primary, *self.fleet.replicas)
        return {node.name for node in nodes if node.ask(sql, self.database, marker)[0][0]}

    def console(self, command: str) -> list[dict[str, str | None]]:
        """Rows of a console command, by column."""
        if self._console is None:
            self._console = Wire(self.proxy.address)
            self._console.login({"user": CONSOLE_USER, "database": "pgtrident"})
        replies = self._console.send(Q(command)).until()
        names = next(r for r in replies if r.kind == "T").columns
        return [
            {column[0]: None if v is None else v.decode() for column, v in zip(names, r.values, strict=True)}
            for r in replies
            if r.kind == "D"
        ]

    def shown(self, client: Wire) -> dict[str, str | None]:
        """The line of SHOW CLIENTS that speaks of a client."""
        port = str(client.socket.getsockname()[1])
        return next(row for row in self.console("SHOW CLIENTS") if row["port"] == port)

    def pin(self, client: Wire) -> str | None:
        """Why a client is tied to its server, as the console tells; None when it is not."""
        return self.shown(client)["pin"]


Serve = Callable[..., Service]


def backend(client: Wire) -> int:
    """The server process that answers a client."""
    return int(client.value("SELECT pg_backend_pid()") or 0)


@pytest.fixture
def serve(fleet: Fleet, database: str, proxies: StartProxy, request: pytest.FixtureRequest) -> Serve:
    """Gives the proxy with these settings; with `own=True` one that no other test uses."""

    def start(over: Settings | None = None, *, own: bool = False) -> Service:
        settings: dict[str, Any] = merged({"admin": {"users": [CONSOLE_USER]}, "users": {CONSOLE_USER: {}}}, over or {})
        proxy = request.getfixturevalue("own_proxy")(settings) if own else proxies(settings)
        return Service(proxy, database, fleet)

    return start
