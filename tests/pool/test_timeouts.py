"""Time-outs of servers and clients, each with a small value."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ..support.rawpg import B, E, P, Q, S, show, startup_message
from .conftest import Serve, backend, eventually

ONE = "T[?column?] D[1] C[SELECT 1] ZI"


def test_idle_servers_go(serve: Serve) -> None:
    service = serve({"pool": {"idle_timeout": 1.0}})
    clients = [service.client(pool=5) for _ in range(3)]
    for client in clients:
        client.run("BEGIN")
    assert len(service.servers("pool5")) == 3
    for client in clients[:2]:
        client.run("COMMIT")
    assert eventually(lambda: len(service.servers("pool5")) == 1)
    # A transaction is no idleness, however quiet.
    assert clients[2].query("COMMIT") == "C[COMMIT] ZI"
    assert eventually(lambda: not service.servers("pool5"))
    assert clients[0].query("SELECT 1") == ONE


def test_min_pool_size(serve: Serve) -> None:
    """A pool that has been used is kept at its minimum, also when servers are lost."""
    over = {"pool": {"min_pool_size": 2, "idle_timeout": 1.0}, "users": {"pool1": {"pool_size": 2}}}
    # Its own proxy: it would go on to keep servers in the databases of other tests.
    service = serve(over, own=True)
    clients = [service.client(pool=5) for _ in range(4)]
    for client in clients:
        client.run("BEGIN")
    for client in clients:
        client.run("COMMIT")
    assert eventually(lambda: len(service.servers("pool5")) == 2)
    service.admin.run(*(f"SELECT pg_terminate_backend({pid}, 5000)" for pid in service.servers("pool5")))
    assert eventually(lambda: len(service.servers("pool5")) == 2)


def test_lifetime(serve: Serve) -> None:
    """An old server is replaced once it is free, not in the middle of a transaction."""
    service = serve({"pool": {"lifetime": 1.0}})
    one = service.client(pool=1)
    one.run("BEGIN")
    first = backend(one)
    time.sleep(1.1)  # what is tested: time itself
    assert backend(one) == first
    one.run("COMMIT")
    assert eventually(lambda: first not in service.servers("pool1"))
    assert backend(one) != first
    # An idle one goes as well, without anybody's asking for it.
    assert eventually(lambda: not service.servers("pool1"))


QUERY = {"pool": {"query_timeout": 1.0}}


@pytest.mark.parametrize("how", ["simple", "extended", "in a transaction"])
def test_query_timeout(serve: Serve, how: str) -> None:
    service = serve(QUERY)
    one = service.client(pool=1)
    start = time.monotonic()
    match how:
        case "simple":
            assert one.query("SELECT pg_sleep(10)") == "T[pg_sleep] E[57014] ZI"
        case "extended":
            assert one.ask(P("", "SELECT pg_sleep(10)"), B(), E(), S) == "1 2 E[57014] ZI"
        case _:
            one.run("BEGIN", "SELECT pg_sleep(0.1)")
            assert one.query("SELECT pg_sleep(10)") == "T[pg_sleep] E[57014] ZE"
            one.run("ROLLBACK")
    assert time.monotonic() - start < 5
    assert one.query("SELECT 1") == ONE


def test_query_timeout_is_for_each_statement(serve: Serve) -> None:
    """A transaction that takes longer in all, and a client that thinks in between, are left alone."""
    service = serve(QUERY)
    one = service.client(pool=1)
    one.run("BEGIN")
    for _ in range(5):
        assert one.query("SELECT pg_sleep(0.5)") == "T[pg_sleep] D[] C[SELECT 1] ZT"
    one.run("COMMIT")
    # So are statements that are sent all at once: the time of each begins where the one before ends.
    one.send(*[Q("SELECT pg_sleep(0.5)")] * 5)
    for _ in range(5):
        assert show(one.until()) == "T[pg_sleep] D[] C[SELECT 1] ZI"


def test_checkout_timeout(serve: Serve) -> None:
    """Who waits too long is told so, in both protocols, and may go on; nobody else is hurt."""
    service = serve({"pool": {"checkout_timeout": 0.7}})
    holder, simple, extended = (service.client(pool=1) for _ in range(3))
    holder.run("BEGIN")
    start = time.monotonic()
    simple.send(Q("SELECT 1"))
    extended.send(P("", "SELECT 1"), B(), E(), S)
    for client in (simple, extended):
        assert show(client.until()) == "E[53300] ZI"
        assert 0.5 < time.monotonic() - start < 3
        assert "pool1" in client.log[-2].fields["M"]
    # A client whose login needs a server is refused by a FATAL.
    assert (
        service.open()
        .login({"user": "pool1", "database": service.database, "work_mem": "5MB"})
        .endswith("E[FATAL 53300] EOF")
    )
    assert holder.query("COMMIT") == "C[COMMIT] ZI"
    assert simple.query("SELECT 1") == ONE
    assert extended.ask(P("", "SELECT 1"), B(), E(), S) == "1 2 D[1] C[SELECT 1] ZI"


def test_idle_clients(serve: Serve) -> None:
    """Ended outside a transaction as PostgreSQL's own idle_session_timeout does; one at work is left alone."""
    service = serve({"pool": {"client_idle_timeout": 1.5}})
    idle, busy, waiting, holder = (service.client(pool=1) for _ in range(4))
    holder.run("BEGIN")
    waiting.send(Q("SELECT 1"))
    start = time.monotonic()
    assert show(idle.until("EOF")) == "E[FATAL 57P05] EOF"
    assert 1.0 < time.monotonic() - start < 4
    # In a transaction this limit does not hold, and neither does it for one that waits in the queue.
    assert holder.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZT"
    holder.run("COMMIT")
    assert show(waiting.until()) == ONE
    assert busy.until("EOF")[-1].kind == "EOF"


class Gate:
    """A way to the primary that some users' logins enter and never leave: accepted, and no answer.

    Probes and other users pass.
    """

    def __init__(self, port: int, shut_for: str) -> None:
        self._target = port
        self._shut_for = shut_for.encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            first = client.recv(10_000)
            if self._shut_for in first:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.append(server)
            server.sendall(first)
            threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
            self._copy(client, server)
        except OSError:
            return

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def gate(serve: Serve, request: pytest.FixtureRequest) -> Iterator[Gate]:
    gate = Gate(request.getfixturevalue("fleet").primary.port, "pool3")
    yield gate
    gate.close()


def test_connect_timeout(serve: Serve, gate: Gate) -> None:
    """A node that accepts and says nothing: the dial is given up in time and tried again, the waiter learns
    why it had to wait, and other pools do not notice."""
    over = {
        "nodes": {"primary": {"port": gate.port}},
        "server": {"connect_timeout": 0.5},
        "pool": {"checkout_timeout": 2.0},
    }
    service = serve(over, own=True)
    stuck = service.open()
    start = time.monotonic()
    stuck.send(startup_message({"user": "pool3", "database": service.database}))
    other = service.client(pool=2)
    while time.monotonic() - start < 1:
        assert other.query("SELECT 1") == ONE
    assert show(stuck.until("EOF")) == "E[FATAL 53300] EOF"
    assert 1.5 < time.monotonic() - start < 5
    assert "timed out" in stuck.log[-2].fields["D"] or "time" in stuck.log[-2].fields["D"], stuck.log[-2].fields
    failures = [json.loads(line) for line in service.proxy.lines if "server_connect_failed" in line]
    assert len(failures) >= 2, failures
    assert other.query("SELECT 1") == ONE


def test_login_timeout(serve: Serve) -> None:
    """A client that does not finish its login is closed, and takes no server."""
    service = serve({"listen": {"login_timeout": 1.0}})
    silent = [service.open() for _ in range(3)]
    silent[1].send(b"\0\0\0")
    silent[2].send(startup_message({"user": "pool1", "database": service.database})[:-3])
    start = time.monotonic()
    for client in silent:
        assert client.until("EOF", timeout=5)[-1].kind == "EOF"
    assert time.monotonic() - start < 4
    assert not service.servers()


def test_drain_timeout(serve: Serve) -> None:
    """What a vanished client left running may take so long to end; then the server goes."""
    service = serve({"pool": {"drain_timeout": 1.0}})
    one = service.client(pool=1)
    # A statement that may write is not cancelled but runs to its end, within the limit.
    one.send(Q("INSERT INTO trail(item_id) SELECT 1 FROM pg_sleep(20)"))
    assert eventually(lambda: service.shown(one)["state"] == "active")
    pid = service.servers("pool1")
    one.close()
    two = service.client(pool=1)
    start = time.monotonic()
    assert two.query("SELECT 1") == ONE
    assert time.monotonic() - start < 5
    assert backend(two) not in pid
