"""We log in to nodes: real PostgreSQL with every method and TLS mode, and nodes that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from proxy.config.schema import Config, ServerLink
from proxy.dataplane.connect import Dialled, LoginStream, cancel, dial, tls_mode, with_passfile
from proxy.demo.postgres import Cluster, Server
from proxy.errors import NodeFailure, NodeRefused
from proxy.topology.model import Role
from proxy.topology.snapshot import Address, NodeView
from proxy.wire import auth, build
from proxy.wire.auth import Credentials

from ..support.front import Front
from .test_login_clients import Certificates, config_of, log_in, refused

PASSWORD = "open sesame é"
ADA = Credentials("ada", PASSWORD)
METHODS = ("scram", "md5", "clear", "trust")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[Server]:
    """A primary with TLS whose databases are named after the method that they ask for."""
    hba = [
        "host scram all 127.0.0.1/32 scram-sha-256",
        "host md5 all 127.0.0.1/32 md5",
        "host clear all 127.0.0.1/32 password",
        "host trust all 127.0.0.1/32 trust",
        "hostssl cert all 127.0.0.1/32 cert",
        "hostssl tls all 127.0.0.1/32 scram-sha-256",
        "hostnossl plain all 127.0.0.1/32 scram-sha-256",
        "local scram all scram-sha-256",
        "host postgres all 127.0.0.1/32 scram-sha-256",
    ]
    with Cluster() as cluster:
        server = cluster.create(hba=hba)
        server.enable_tls(Path(certificates.cert), Path(certificates.key), Path(certificates.ca))
        for name in ("scram", "md5", "clear", "trust", "cert", "tls", "plain"):
            server.query(f"CREATE DATABASE {name}")
        server.query(
            f"CREATE ROLE ada LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE nopass LOGIN;"
            "SET password_encryption = md5; "
            f"CREATE ROLE old LOGIN PASSWORD '{PASSWORD}'"
        )
        server.query(f"CREATE ROLE late LOGIN PASSWORD '{PASSWORD}' VALID UNTIL '2001-01-01'")
        server.query(f"CREATE ROLE asker LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        yield server


def view(*ports: int, host: str = "localhost") -> NodeView:
    addresses = tuple(Address("127.0.0.1", port) for port in ports)
    return NodeView(name="one", host=host, port=ports[-1], addresses=addresses, role=Role.PRIMARY)


def on_uvloop(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    with warnings.catch_warnings():
        # A failing test leaves connections open; raised while uvloop closes them, the warning would hang it.
        warnings.simplefilter("ignore", ResourceWarning)
        uvloop.run(run())


async def reach(
    node: NodeView, credentials: Credentials = ADA, database: str = "scram", mode: Any = "disable", **link: Any
) -> Dialled:
    loop = asyncio.get_running_loop()
    settings = ServerLink(**link)
    deadline = loop.time() + settings.connect_timeout
    return await dial(node, settings, mode, credentials, {"database": database}, loop=loop, deadline=deadline)


@contextlib.asynccontextmanager
async def talking(dialled: Dialled) -> AsyncIterator[LoginStream]:
    """Take a server over as its next owner would."""
    stream = LoginStream()
    stream.connection_made(dialled.transport)
    dialled.transport.set_protocol(stream)
    dialled.transport.resume_reading()
    yield stream
    dialled.transport.abort()
    await asyncio.sleep(0)


async def first_value(dialled: Dialled, sql: str) -> str:
    async with talking(dialled) as stream:
        stream.write(build.query(sql))
        data = b""
        while not data.endswith(b"I"):
            data += await stream.read()
    at = data.index(b"D")
    length = int.from_bytes(data[at + 7 : at + 11], "big")
    return data[at + 11 : at + 11 + length].decode()


WHO = "SELECT current_user || ' ' || current_database() || ' ' || ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.mark.parametrize("mode", ["disable", "prefer", "require"])
def test_methods(server: Server, mode: str) -> None:
    async def work() -> None:
        for method in METHODS:
            dialled = await reach(view(server.port), database=method, mode=mode)
            assert dialled.parameters["server_version"]
            assert dialled.pid > 0
            assert len(dialled.key) == 4
            assert dialled.address.port == server.port
            tls = "false" if mode == "disable" else "true"
            assert await first_value(dialled, WHO) == f"ada {method} {tls}"
        dialled = await reach(view(server.port), Credentials("old", md5_hash=auth.md5_hash(PASSWORD, "old")), "md5")
        assert (await first_value(dialled, WHO)).startswith("old")

    on_uvloop(work)


def test_channel_binding(server: Server, certificates: Certificates) -> None:
    async def work() -> None:
        for binding in ("disable", "prefer", "require"):
            dialled = await reach(
                view(server.port),
                database="tls",
                mode="verify-full",
                ca=certificates.ca,
                channel_binding=binding,
            )
            assert await first_value(dialled, WHO) == "ada tls true"
        with pytest.raises(NodeRefused, match="channel binding is required"):
            await reach(view(server.port), mode="disable", channel_binding="require")
        with pytest.raises(NodeRefused, match="channel binding is required"):
            await reach(view(server.port), database="trust", mode="require", channel_binding="require")

    on_uvloop(work)


def test_verification(server: Server, certificates: Certificates, tmp_path: Path) -> None:
    other = Certificates(tmp_path)

    async def work() -> None:
        for mode, ca, host, works in (
            ("verify-full", certificates.ca, "localhost", True),
            ("verify-full", certificates.ca, "127.0.0.1", True),
            ("verify-full", certificates.ca, "example.com", False),
            ("verify-ca", certificates.ca, "example.com", True),
            ("verify-ca", other.ca, "localhost", False),
            ("verify-full", "", "localhost", False),
            ("require", other.ca, "localhost", False),
            ("require", "", "example.com", True),
            ("prefer", other.ca, "example.com", True),
        ):
            node = view(server.port, host=host)
            if works:
                (await reach(node, mode=mode, ca=ca)).transport.abort()
            else:
                with pytest.raises(NodeFailure, match=r'node "one" .*certificate is not accepted'):
                    await reach(node, mode=mode, ca=ca)

    on_uvloop(work)


def test_client_certificate(server: Server, certificates: Certificates) -> None:
    async def work() -> None:
        cert, key = certificates.client
        dialled = await reach(view(server.port), Credentials("ada"), "cert", "require", cert=cert, key=key)
        assert await first_value(dialled, WHO) == "ada cert true"
        with pytest.raises(NodeRefused) as caught:
            await reach(view(server.port), Credentials("ada"), "cert", "require")
        assert caught.value.sqlstate == "28000"

    on_uvloop(work)


def test_the_nodes_own_errors(server: Server) -> None:
    async def work() -> None:
        for credentials, database, sqlstate in (
            (Credentials("ada", "wrong"), "scram", "28P01"),
            (Credentials("eve", "x"), "scram", "28P01"),
            (ADA, "nope", "28000"),
            (Credentials("eve"), "trust", "28000"),
            (Credentials("ada"), "scram", "28000"),
        ):
            with pytest.raises(NodeRefused) as caught:
                await reach(view(server.port), credentials, database)
            assert caught.value.sqlstate == sqlstate
            assert caught.value.fields["C"] == sqlstate
        with pytest.raises(NodeRefused) as caught:
            await reach(view(server.port), mode="disable", database="tls")
        assert "no pg_hba.conf entry" in caught.value.message

    on_uvloop(work)


def test_startup_parameters_and_unix_socket(server: Server) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        path = f"{server.socket_dir}/.s.PGSQL.{server.port}"
        node = NodeView(name="one", host=str(server.socket_dir), port=server.port, addresses=(Address(path),))
        params = {"database": "scram", "application_name": "till", "search_path": "a, b"}
        dialled = await dial(node, ServerLink(), "verify-full", ADA, params, loop=loop, deadline=loop.time() + 5)
        assert dialled.parameters["application_name"] == "till"
        assert await first_value(dialled, "SHOW search_path") == "a, b"

    on_uvloop(work)


def test_keepalive_is_set(server: Server) -> None:
    async def work() -> None:
        dialled = await reach(view(server.port), user_timeout=7.5, keepalive_idle=11)
        sock = dialled.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 11
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7500
        dialled.transport.abort()
        await asyncio.sleep(0)

    on_uvloop(work)


@contextlib.contextmanager
def listening(answer: bytes | None = None) -> Iterator[int]:
    """A node that takes connections and says `answer` to the first bytes, or never anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if answer is None:
            yield port
            return

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        sock.recv(8)
                        sock.sendall(answer)
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(4096):
                            pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield port
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_addresses_are_tried_in_order_within_one_deadline(server: Server) -> None:
    async def work() -> None:
        with listening() as silent:
            begun = time.monotonic()
            dialled = await reach(view(closed_port(), silent, server.port), connect_timeout=1.0)
            assert dialled.address.port == server.port
            dialled.transport.abort()
            with pytest.raises(NodeFailure, match=r'node "one" \(localhost, port \d+\): no answer in time'):
                await reach(view(silent, silent), connect_timeout=0.4)
            assert time.monotonic() - begun < 3
        with pytest.raises(NodeFailure, match="refused"):
            await reach(view(closed_port()))
        with pytest.raises(NodeFailure, match="not been resolved"):
            await reach(NodeView(name="one", host="nowhere", port=1))

    on_uvloop(work)


HALF = build.message(b"R", struct.pack("!i", 10) + b"SCRAM-SHA-256\0\0")


@pytest.mark.parametrize("mode", ["disable", "prefer", "require"])
@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"R\0\0", HALF[:9], b"\0" * 64, b"N", b"S", b"Sgarbage that is no TLS"],
)
def test_nonsense_for_an_answer(mode: str, answer: bytes) -> None:
    async def work() -> None:
        with pytest.raises(NodeFailure, match='node "one"'):
            await reach(view(port), mode=mode, connect_timeout=3.0)

    with listening(answer) as port:
        on_uvloop(work)


def test_prefer_falls_back(server: Server) -> None:
    server.configure({"ssl": "off"})
    server.reload()
    try:

        async def work() -> None:
            dialled = await reach(view(server.port), mode="prefer")
            assert await first_value(dialled, WHO) == "ada scram false"
            with pytest.raises(NodeFailure, match="does not support TLS"):
                await reach(view(server.port), mode="require")

        on_uvloop(work)
    finally:
        server.configure({"ssl": "on"})
        server.reload()


def until_sleeping(server: Server, pid: int) -> None:
    while not server.query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = %s", pid):
        time.sleep(0.01)


@pytest.mark.parametrize("mode", ["disable", "require"])
def test_cancel(server: Server, mode: Any) -> None:
    async def work() -> None:
        node = view(server.port)
        dialled = await reach(node, mode=mode)
        async with talking(dialled) as stream:
            stream.write(build.query("SELECT pg_sleep(30)"))
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, until_sleeping, server, dialled.pid)
            await cancel(node, ServerLink(), mode, dialled.pid, dialled.key, loop=loop, address=dialled.address)
            data = b""
            while not data.endswith(b"I"):
                data += await asyncio.wait_for(stream.read(), 5)
            assert b"C57014\0" in data
        with listening() as silent, pytest.raises(NodeFailure, match="in time"):
            await cancel(view(silent), ServerLink(connect_timeout=0.2), "disable", 1, b"abcd", loop=loop)

    on_uvloop(work)


def test_direct_tls(tmp_path: Path, certificates: Certificates, server: Server) -> None:
    """PostgreSQL speaks it from 17 on; our own front does too."""
    files = {"cert": certificates.cert, "key": certificates.key}
    config = config_of(listen={"tls": {"mode": "require", **files}})

    async def work() -> None:
        dialled = await reach(
            view(front.port), mode="verify-full", ca=certificates.ca, tls_direct=True, channel_binding="require"
        )
        assert dialled.parameters["server_version"] == "15.0"
        dialled.transport.abort()
        with pytest.raises(NodeFailure):
            await reach(view(server.port), mode="require", tls_direct=True)

    with Front(config, tmp_path) as front:
        on_uvloop(work)


def test_direct_tls_with_a_server_of_another_protocol(certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)

    async def work() -> None:
        with pytest.raises(NodeFailure, match="did not agree to direct TLS"):
            await reach(view(port), mode="require", tls_direct=True)

    def serve() -> None:
        sock, _ = listener.accept()
        with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
            tls.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        on_uvloop(work)
        thread.join(10)


def test_tls_mode_and_passfile() -> None:
    config = msgspec.convert(
        {"server": {"tls": "require"}, "nodes": {"a": {"host": "a", "tls": "disable"}, "b": {"host": "b"}}}, Config
    )
    assert [tls_mode(config, name) for name in ("a", "b", "c")] == ["disable", "require", "require"]
    node = view(5432)
    text = "localhost:5432:shop:ada:from the file"
    assert with_passfile(Credentials("ada"), text, node, "shop").password == "from the file"
    assert with_passfile(Credentials("ada"), text, node, "till").password is None
    assert with_passfile(ADA, text, node, "shop") is ADA


# ---------------------------------------------------------------------------------- both sides


def test_the_keys_of_a_client_open_the_node(server: Server, tmp_path: Path) -> None:
    """No plain password anywhere: the stored secret is the node's own."""
    secret = server.query("SELECT rolpassword FROM pg_authid WHERE rolname = 'ada'")[0][0]
    with Front(config_of(users={"ada": {"password": secret}}), tmp_path) as front:
        log_in(front).close()
        found = front.adopted.get(timeout=5).credentials
    assert found is not None
    assert found.password is None

    async def work() -> None:
        assert await first_value(await reach(view(server.port), found), WHO) == "ada scram false"

    on_uvloop(work)


def asking(server: Server, **more: Any) -> Config:
    query = {"enabled": True, "user": "asker", "password": PASSWORD, **more}
    return config_of(users={}, auth={"query": query, "failure_delay": 0.0}, databases={"shop": {"dbname": "scram"}})


def askers(server: Server) -> list[int]:
    return [
        pid
        for (pid,) in server.query(
            "SELECT pid FROM pg_stat_activity WHERE usename = 'asker' AND backend_type ~ 'client'"
        )
    ]


def test_users_are_looked_up(server: Server, tmp_path: Path) -> None:
    with Front(asking(server), tmp_path, view(server.port)) as front:
        log_in(front).close()
        found = front.adopted.get(timeout=5).credentials
        assert found is not None
        assert found.scram_keys is not None
        (pid,) = askers(server)
        for wrong in ({"password": "wrong"}, {"user": "eve"}, {"user": "nopass"}, {"user": "late"}, {"user": "old"}):
            assert "password authentication failed for user" in refused(front, **wrong)
        for name in ("'; DROP TABLE x; --", 'a"b', "$1"):
            assert "password authentication failed for user" in refused(front, user=name)
        assert askers(server) == [pid], "all over one connection"
        for _ in range(3):
            log_in(front).close()
        server.query("SELECT pg_terminate_backend(%s)", pid)
        assert "password authentication failed" in refused(front, user="mallory"), "a new connection is made"
        assert len(askers(server)) == 1


def test_answers_are_cached_and_serve_while_the_primary_is_away(server: Server, tmp_path: Path) -> None:
    with Front(asking(server, cache=0.0), tmp_path, view(server.port)) as front:
        log_in(front).close()
        front.primary = view(closed_port())
        log_in(front).close()
        assert "users can't be looked up on node" in refused(front, user="eve")
        front.primary = None
        log_in(front).close()
        assert "there is no primary" in refused(front, user="eve")


def test_a_changed_password_counts_after_forgetting(server: Server, tmp_path: Path) -> None:
    server.query("CREATE ROLE bob LOGIN PASSWORD 'first'")
    with Front(asking(server), tmp_path, view(server.port)) as front:
        log_in(front, user="bob", password="first").close()
        server.query("ALTER ROLE bob PASSWORD 'second'")
        log_in(front, user="bob", password="first").close()
        front.call(front.acceptor.forget_users)
        refused(front, user="bob", password="first")
        log_in(front, user="bob", password="second").close()


def test_look_ups_are_limited(server: Server, tmp_path: Path) -> None:
    with Front(asking(server, max_per_second=3), tmp_path, view(server.port)) as front:
        says = [refused(front, user=f"nobody{n}") for n in range(6)]
        assert sum("too many users are being looked up" in text for text in says) >= 2
        assert sum("password authentication failed" in text for text in says) >= 3


def test_a_flood_of_one_user_is_one_look_up(server: Server, tmp_path: Path) -> None:
    async def flood() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, lambda: log_in(front).close()) for _ in range(20)))

    with Front(asking(server, max_per_second=1), tmp_path, view(server.port)) as front:
        on_uvloop(flood)


def test_a_query_that_fails(server: Server, tmp_path: Path) -> None:
    for query in ("SELECT nonsense WHERE $1 = ''", "SELECT $1::text"):
        with Front(asking(server, query=query), tmp_path, view(server.port)) as front:
            assert "users can't be looked up on node" in refused(front)


def test_search_path_of_the_look_up(server: Server, tmp_path: Path) -> None:
    """A function of somebody else's in `public` must not get into the query."""
    server.query("CREATE FUNCTION public.lower(name) RETURNS text LANGUAGE sql AS $$ SELECT 'trap' $$", dbname="scram")
    query = "SELECT rolname, rolpassword FROM pg_authid WHERE lower(rolname) = $1"
    try:
        with Front(asking(server, query=query), tmp_path, view(server.port)) as front:
            log_in(front).close()
    finally:
        server.query("DROP FUNCTION public.lower(name)", dbname="scram")
