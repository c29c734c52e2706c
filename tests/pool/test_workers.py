"""Sizes hold over all workers: a pool of N has N servers, however many processes share it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict

import pytest

from ..support.rawpg import Q, Wire, show
from .conftest import Serve, Service, backend, eventually

WORKERS = {"workers": 3, "pool": {"checkout_timeout": 20.0}}
ONE = "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(WORKERS)


def by_worker(service: Service, count: int, pool: int) -> list[list[Wire]]:
    """Idle clients of each worker, in lists as long as they come; at least one for each worker."""
    clients = {}
    for _ in range(count):
        client = service.client(pool=pool)
        clients[str(client.socket.getsockname()[1])] = client
    found: dict[str | None, list[Wire]] = defaultdict(list)
    for row in service.console("SHOW CLIENTS"):
        if (port := row["port"] or "") in clients:
            found[row["worker"]].append(clients[port])
    assert len(found) == 3
    return list(found.values())


EXIT = 0.25
"""Seconds that a server process may take to end once its connection is closed."""


class Watch:
    """Counts the servers that PostgreSQL sees, over and over while it is open, but for each one's last moment."""

    def __init__(self, service: Service, user: str) -> None:
        self._lives: dict[str, tuple[float, float]] = {}
        self._sql = f"SELECT pid FROM pg_stat_activity WHERE datname = '{service.database}' AND usename = '{user}'"
        self._wire = Wire(("127.0.0.1", service.fleet.primary.port))
        self._wire.login({"user": "postgres", "database": "postgres"})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            now = time.monotonic()
            for (pid,) in self._wire.rows(self._sql):
                self._lives[pid or ""] = (self._lives.get(pid or "", (now, now))[0], now)

    @property
    def most(self) -> int:
        """The most at one time."""
        lives = [(first, max(first, last - EXIT)) for first, last in self._lives.values()]
        return max(sum(first <= moment <= last for first, last in lives) for moment, _ in lives)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_never_more_servers_than_the_pool_has(service: Service) -> None:
    """Thirty clients over three workers, on a pool of five that is always wanted by all."""
    clients = [service.client(pool=5) for _ in range(30)]
    with Watch(service, "pool5") as watch:
        for _ in range(5):
            for number, client in enumerate(clients):
                client.send(Q(f"SELECT {number}, pg_sleep(0.02)"))
            for number, client in enumerate(clients):
                replies = client.until(timeout=20)
                assert [r.kind for r in replies] == ["T", "D", "C", "Z"], show(replies)
                assert replies[1].values[0] == str(number).encode()
    assert 1 < watch.most <= 5
    assert sum(int(row["sv_active"] or 0) + int(row["sv_idle"] or 0) for row in pools(service, "pool5")) <= 5


def pools(service: Service, user: str) -> list[dict[str, str | None]]:
    return [row for row in service.console("SHOW POOLS") if (row["database"], row["user"]) == (service.database, user)]


def test_the_console_shows_one_pool(service: Service) -> None:
    """One line over all workers, asked through whichever worker."""
    for clients in by_worker(service, 12, 3):
        clients[0].run("SELECT 1")
    (row,) = pools(service, "pool3")
    assert row["pool_mode"] == "transaction"
    assert int(row["sv_active"] or 0) + int(row["sv_idle"] or 0) == len(service.servers("pool3"))


def test_idle_permits_go_where_they_are_needed(service: Service) -> None:
    """Each worker has had its part of the pool; one of them may use nearly all while the others rest."""
    groups = by_worker(service, 24, 20)
    for clients in groups:
        for client in clients[:6]:
            client.send(Q("SELECT pg_sleep(0.05)"))
        for client in clients[:6]:
            assert client.until()[-1].kind == "Z"
    busy = max(groups, key=len)
    with Watch(service, "pool20") as watch:
        start = time.monotonic()
        more = list(busy)
        while len(more) < 14:
            client = service.client(pool=20)
            if service.shown(client)["worker"] == service.shown(busy[0])["worker"]:
                more.append(client)
        start = time.monotonic()
        for client in more[:14]:
            client.send(Q("BEGIN"))
        for client in more[:14]:
            assert show(client.until()) == "C[BEGIN] ZT"
        assert time.monotonic() - start < 5
    assert watch.most <= 20
    assert len({backend(client) for client in more[:14]}) == 14


def test_one_permit_for_three_workers(service: Service) -> None:
    """Fewer permits than workers go round: nobody starves."""
    groups = by_worker(service, 12, 1)
    with Watch(service, "pool1") as watch:
        for _ in range(3):
            for clients in groups:
                clients[0].send(Q("SELECT 1"))
            for clients in groups:
                assert show(clients[0].until(timeout=10)) == ONE
        # A holder for long is waited for; then the others come.
        groups[0][0].run("BEGIN")
        groups[1][0].send(Q("SELECT 1"))
        assert groups[1][0].silence(0.5)
        groups[0][0].run("COMMIT")
        assert show(groups[1][0].until(timeout=10)) == ONE
    assert watch.most == 1


def test_a_worker_that_dies_gives_its_permits_back(serve: Serve) -> None:
    service = serve(WORKERS, own=True)
    groups = by_worker(service, 12, 3)
    for clients in groups:
        clients[0].run("BEGIN")
    assert len(service.servers("pool3")) == 3
    victim = groups[0][0]
    pid = service.proxy.wait_for("worker_started", worker=int(service.shown(victim)["worker"] or 0))["pid"]
    os.kill(int(pid), signal.SIGKILL)
    assert victim.until("EOF")[-1].kind == "EOF"
    for clients in groups[1:]:
        clients[0].run("COMMIT")
    assert eventually(lambda: service.open().login({"user": "pool3", "database": service.database}).endswith("ZI"), 10)
    clients = [service.client(pool=3) for _ in range(9)]
    with Watch(service, "pool3") as watch:
        for client in clients:
            client.send(Q("SELECT pg_sleep(0.1)"))
        for client in clients:
            assert client.until(timeout=20)[-1].kind == "Z"
    assert watch.most <= 3


RUNNING = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(10)' AND wait_event = 'PgSleep'"


def test_cancel_reaches_its_client_in_any_worker(service: Service) -> None:
    for clients in by_worker(service, 12, 20):
        client, other = clients[0], clients[1] if len(clients) > 1 else None
        client.send(Q("SELECT pg_sleep(10)"))
        if other is not None:
            other.send(Q("SELECT pg_sleep(0.3)"))
        # PostgreSQL ignores a cancel that comes before its statement.
        assert eventually(lambda: service.admin.value(RUNNING) == "1")
        client.cancel()
        assert show(client.until()) == "T[pg_sleep] E[57014] ZI"
        if other is not None:
            assert show(other.until()) == "T[pg_sleep] D[] C[SELECT 1] ZI"
