"""Clients are spread over workers, and a worker that dies takes only its own with it."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import pytest

from ..support.rawpg import Q, Wire, show
from .conftest import Serve, Service, eventually

ONE = "T[?column?] D[1] C[SELECT 1] ZI"


def spread(service: Service) -> Counter[str | None]:
    """Clients of the test by worker."""
    return Counter(row["worker"] for row in service.console("SHOW CLIENTS") if row["user"] != "console")


@pytest.mark.parametrize("workers", [2, 3])
def test_sixteen_clients(serve: Serve, workers: int) -> None:
    service = serve({"workers": workers}, own=True)
    for batch in range(2):
        clients = [service.client(pool=5) for _ in range(16)]
        found = spread(service)
        mean = sum(found.values()) / workers
        assert sum(found.values()) == 16
        assert len(found) == workers and all(abs(count - mean) <= 2.5 for count in found.values()), (batch, found)
        for client in clients:
            client.run("SELECT 1")
            client.close()
        assert eventually(lambda: not spread(service))


def test_all_at_once(serve: Serve) -> None:
    """Forty connections are there before the first one says a word."""
    service = serve({"workers": 2}, own=True)
    clients = []
    for _ in range(10):
        clients += [service.open() for _ in range(4)]
        spread(service)  # answered by all workers, so that none has fallen behind: a socket doesn't wait for long
    for client in clients:
        client.login({"user": "pool5", "database": service.database})
    assert all(18 <= count <= 22 for count in spread(service).values()), spread(service)
    for client in clients:
        client.send(Q("SELECT 1"))
    for client in clients:
        assert show(client.until(timeout=20)) == ONE


def test_the_limit_on_clients_holds_over_all_workers(serve: Serve) -> None:
    service = serve({"workers": 2, "listen": {"max_clients": 6}}, own=True)
    clients = [service.client(pool=5) for _ in range(6)]
    for _ in range(4):
        assert "53300]" in service.open().login({"user": "pool5", "database": service.database})
    clients.pop().close()
    assert eventually(lambda: service.open().login({"user": "pool5", "database": service.database}).endswith("ZI"))


def test_a_worker_killed_while_sockets_are_handed_over(serve: Serve) -> None:
    """Others lose nobody, and who comes afterwards is served."""
    service = serve({"workers": 3}, own=True)
    steady = [service.client(pool=20) for _ in range(12)]
    homes = {str(client.socket.getsockname()[1]): client for client in steady}
    rows = [row for row in service.console("SHOW CLIENTS") if row["port"] in homes]
    victim = rows[0]["worker"]
    doomed = [homes[row["port"] or ""] for row in rows if row["worker"] == victim]
    pid = int(service.proxy.wait_for("worker_started", worker=int(victim or 0))["pid"])
    stop = threading.Event()
    served = 0

    def come_and_go() -> None:
        nonlocal served
        while not stop.is_set():
            batch = [Wire(service.proxy.address) for _ in range(6)]
            for client in batch:
                try:
                    served += client.login({"user": "pool5", "database": service.database}).endswith("ZI")
                except OSError:
                    pass  # it was the victim's
                client.close()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    assert eventually(lambda: served > 30, 20)
    os.kill(pid, signal.SIGKILL)
    before = served
    assert eventually(lambda: served > before + 60, 20)
    stop.set()
    thread.join()
    for client in steady:
        if client not in doomed:
            assert show(client.send(Q("SELECT 1")).until()) == ONE
    assert doomed and len(doomed) < 12
    for client in doomed:
        assert client.until("EOF")[-1].kind == "EOF"
