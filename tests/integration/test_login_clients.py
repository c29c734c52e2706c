"""Clients log in to us: libpq through psycopg, and raw bytes where libpq would not do such a thing."""

from __future__ import annotations

import os
import pwd
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import psycopg
import pytest
import trustme

from proxy.config.schema import Config
from proxy.errors import ConfigError
from proxy.wire import auth, build, codes
from proxy.wire.auth import Credentials
from proxy.wire.startup import PROXY_SIGNATURE

from ..support.front import Front

PASSWORD = "open sesame é"
KEYS = auth.derive_keys(PASSWORD, b"salt of the node", 4096)
SECRET = str(auth.secret_of(KEYS))
ME = pwd.getpwuid(os.getuid()).pw_name
SSL = build.request(codes.SSL_REQUEST)
GSS = build.request(codes.GSSENC_REQUEST)


class Certificates:
    """A CA with the proxy's certificate and one of a client."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ca = trustme.CA()
        other = trustme.CA()
        self.ca = self._write("ca.pem", ca.cert_pem.bytes())
        server = ca.issue_cert("localhost", "127.0.0.1")
        self.cert = self._write("server.pem", b"".join(blob.bytes() for blob in server.cert_chain_pems))
        self.key = self._write("server.key", server.private_key_pem.bytes())
        self.client = self._client(ca, "ada")
        self.stranger = self._client(other, "stranger")

    def _client(self, ca: trustme.CA, name: str) -> tuple[str, str]:
        issued = ca.issue_cert(f"{name}@example.com", common_name="ada")
        return (
            self._write(f"{name}.pem", issued.cert_chain_pems[0].bytes()),
            self._write(f"{name}.key", issued.private_key_pem.bytes()),
        )

    def _write(self, name: str, data: bytes) -> str:
        path = self.directory / name
        path.write_bytes(data)
        path.chmod(0o600)
        return str(path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


Start = Callable[..., Front]


@pytest.fixture
def start(tmp_path: Path, certificates: Certificates) -> Iterator[Start]:
    """A front by its configuration; `tls` is a mode, other sections are dicts."""
    with ExitStack() as stack:

        def begin(*, tls: str = "disable", listen: dict[str, Any] | None = None, **sections: Any) -> Front:
            files = {"cert": certificates.cert, "key": certificates.key, "ca": certificates.ca}
            config = config_of(
                listen={**(listen or {}), "tls": {"mode": tls, **(files if tls != "disable" else {})}}, **sections
            )
            front = stack.enter_context(Front(config, tmp_path))
            stack.callback(Raw.close_all)
            return front

        yield begin


def config_of(**sections: Any) -> Config:
    defaults: dict[str, Any] = {
        "users": {"ada": {"password": PASSWORD}, "sam": {"password": SECRET}},
        "auth": {"failure_delay": 0.0},
    }
    merged = {**defaults, **sections}
    merged["auth"] = {**defaults["auth"], **merged["auth"]}
    return msgspec.convert(merged, Config)


def log_in(front: Front, **params: Any) -> psycopg.Connection:
    known = {
        "host": "127.0.0.1",
        "port": front.port,
        "user": "ada",
        "password": PASSWORD,
        "dbname": "shop",
        "sslmode": "prefer",
        "connect_timeout": 10,
        "passfile": "/nonexistent",
    }
    return psycopg.connect(**{**known, **params})


def refused(front: Front, **params: Any) -> str:
    with pytest.raises(psycopg.OperationalError) as caught, log_in(front, **params):
        pass
    return str(caught.value)


class Raw:
    """A socket that speaks the protocol by hand. `close_all` ends those of a test."""

    _open: ClassVar[list[Raw]] = []

    @classmethod
    def close_all(cls) -> None:
        while cls._open:
            cls._open.pop().sock.close()

    def __init__(self, front: Front, *, unix: bool = False) -> None:
        if unix:
            self.sock: socket.socket = socket.socket(socket.AF_UNIX)
            self.sock.connect(str(front.directory / f".s.PGSQL.{front.port}"))
        else:
            self.sock = socket.create_connection(("127.0.0.1", front.port))
        self.sock.settimeout(10)
        self._open.append(self)

    def send(self, *data: bytes) -> Raw:
        self.sock.sendall(b"".join(data))
        return self

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (part := self.sock.recv(count - len(data))):
            data += part
        return data

    def rest(self) -> bytes:
        """All until the other side closes."""
        data = b""
        try:
            while part := self.sock.recv(65536):
                data += part
        except ConnectionResetError:
            pass
        return data

    def message(self) -> tuple[bytes, bytes]:
        head = self.take(5)
        return head[:1], self.take(int.from_bytes(head[1:], "big") - 4)

    def error(self) -> dict[str, str]:
        """An ErrorResponse and then the end."""
        kind, body = self.message()
        assert kind == b"E"
        assert self.rest() == b""
        self.sock.close()
        return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}


def startup(version: int = codes.PROTOCOL_3_0, **params: str) -> bytes:
    return build.startup({"user": "ada", "database": "shop", **params}, version)


TRUST = {"hba": ["local all all trust", "host all all all trust"]}


# ---------------------------------------------------------------------------------- methods


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("method", ["scram-sha-256", "md5", "password"])
@pytest.mark.parametrize("stored", [PASSWORD, SECRET, auth.md5_hash(PASSWORD, "ada")])
def test_passwords(start: Start, method: str, stored: str, tls: bool) -> None:
    front = start(
        tls="allow" if tls else "disable",
        users={"ada": {"password": stored}},
        auth={"hba": [f"host all all all {method}"]},
    )
    if method == "scram-sha-256" and auth.is_md5(stored):
        assert 'password authentication failed for user "ada"' in refused(front)
        return
    log_in(front).close()
    found = front.adopted.get(timeout=5)
    assert (found.user, found.database, found.tls, found.authenticated_by) == ("ada", "shop", tls, method)
    if method == "password" or stored == PASSWORD:
        assert found.credentials == Credentials("ada", PASSWORD)
    elif stored == SECRET:
        assert found.credentials == Credentials("ada", scram_keys=KEYS), "the keys that the client proved"
    else:
        assert found.credentials == Credentials("ada", md5_hash=stored)
    for wrong in ("wrong", PASSWORD + " "):
        assert 'FATAL:  password authentication failed for user "ada"' in refused(front, password=wrong)
    for unknown in ("eve", "ada2"):
        assert f'FATAL:  password authentication failed for user "{unknown}"' in refused(front, user=unknown)
    assert front.counters.logins_failed >= 4
    assert front.adopted.empty()


def test_passthrough_can_be_switched_off(start: Start) -> None:
    front = start(auth={"passthrough": False})
    log_in(front, user="sam").close()
    assert front.adopted.get(timeout=5).credentials == Credentials("sam")


@pytest.mark.parametrize("binding", ["disable", "prefer", "require"])
@pytest.mark.parametrize("user", ["ada", "sam"])
def test_channel_binding(start: Start, binding: str, user: str) -> None:
    front = start(tls="allow")
    log_in(front, user=user, sslmode="require", channel_binding=binding, require_auth="scram-sha-256").close()
    assert front.adopted.get(timeout=5).tls


def test_channel_binding_without_tls(start: Start) -> None:
    assert "channel binding" in refused(start(), channel_binding="require", sslmode="disable")


def test_verify_full_and_direct_tls(start: Start, certificates: Certificates) -> None:
    front = start(tls="require")
    for negotiation in ("postgres", "direct"):
        log_in(
            front,
            host="localhost",
            hostaddr="127.0.0.1",
            sslmode="verify-full",
            sslrootcert=certificates.ca,
            sslnegotiation=negotiation,
            channel_binding="require",
        ).close()
        assert front.adopted.get(timeout=5).tls


def test_direct_tls_needs_the_protocols_name(start: Start, certificates: Certificates) -> None:
    front = start(tls="allow")
    context = ssl.create_default_context(cafile=certificates.ca)
    for names, adopted in ((["h2"], False), ([], False), (["h2", "postgresql"], True)):
        if names:
            context.set_alpn_protocols(names)
        with socket.create_connection(("127.0.0.1", front.port), timeout=10) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="localhost") as tls:
                    tls.sendall(startup())
                    assert (tls.recv(1) == b"R") is adopted
            except (ssl.SSLError, ConnectionError):
                assert not adopted


def test_certificate(start: Start, certificates: Certificates) -> None:
    front = start(tls="allow", auth={"hba": ["hostssl all all all cert"]})
    cert, key = certificates.client
    log_in(front, sslcert=cert, sslkey=key, sslmode="require", password=None).close()
    assert front.adopted.get(timeout=5).authenticated_by == "cert"
    says = 'certificate authentication failed for user "bob"'
    assert says in refused(front, sslcert=cert, sslkey=key, sslmode="require", user="bob")
    assert "connection requires a valid client certificate" in refused(front, sslmode="require")
    stranger, its_key = certificates.stranger
    refused(front, sslcert=stranger, sslkey=its_key, sslmode="require")
    assert "no pg_hba.conf entry" in refused(front, sslmode="disable")


def test_a_certificate_beside_the_password(start: Start, certificates: Certificates) -> None:
    front = start(
        tls="allow", auth={"hba": ["hostssl all sam all scram-sha-256 clientcert=verify-full", "host all all all md5"]}
    )
    cert, key = certificates.client
    assert "certificate authentication failed" in refused(
        front, user="sam", sslcert=cert, sslkey=key, sslmode="require"
    )
    log_in(front, sslcert=cert, sslkey=key, sslmode="require").close()


def test_mode_verify_ca_wants_certificates(start: Start, certificates: Certificates) -> None:
    front = start(tls="verify-ca")
    cert, key = certificates.client
    log_in(front, sslcert=cert, sslkey=key, sslmode="require").close()
    refused(front, sslmode="require")
    assert "requires TLS" in refused(front, sslmode="disable")


def test_peer_and_unix_sockets(start: Start) -> None:
    front = start(tls="require", auth={"hba": ["local all all peer"]})
    log_in(front, host=str(front.directory), user=ME).close()
    assert front.adopted.get(timeout=5).peer == f"unix:{os.getpid()}"
    assert 'Peer authentication failed for user "ada"' in refused(front, host=str(front.directory))


def test_trust_needs_no_user(start: Start) -> None:
    front = start(auth=TRUST)
    log_in(front, user="nobody-knows", password=None).close()
    assert front.adopted.get(timeout=5).credentials is None
    log_in(front).close()
    assert front.adopted.get(timeout=5).credentials == Credentials("ada", PASSWORD)


def test_rules_speak_like_postgresql(start: Start) -> None:
    front = start(auth={"hba": ["host shop eve all reject", "host till all all trust"]})
    says = 'no pg_hba.conf entry for host "127.0.0.1", user "ada", database "shop", no encryption'
    assert says in refused(front, sslmode="disable")
    says = 'pg_hba.conf rejects connection for host "127.0.0.1", user "eve", database "shop", no encryption'
    assert says in refused(front, user="eve")
    assert 'no pg_hba.conf entry for host "[local]"' in refused(front, host=str(front.directory))
    says = 'no pg_hba.conf entry for replication connection from host "127.0.0.1", user "ada", no encryption'
    assert says in refused(front, dbname="till", replication="true")
    log_in(front, dbname="till", replication="database").close()
    assert front.adopted.get(timeout=5).replication == "database"


def test_userlist_comes_after_users(start: Start, tmp_path: Path) -> None:
    listed = tmp_path / "users.txt"
    listed.write_text(f'"ada" "else"\n"bob" "{SECRET}"\n')
    front = start(auth={"userlist": str(listed)})
    log_in(front).close()
    log_in(front, user="bob").close()
    assert "password authentication failed" in refused(front, user="bob", password="else")


def test_a_new_configuration_counts_at_once_and_a_bad_one_not_at_all(start: Start, tmp_path: Path) -> None:
    front = start()
    log_in(front).close()
    front.reconfigure(config_of(users={"ada": {"password": "new"}}))
    refused(front)
    log_in(front, password="new").close()
    front.reconfigure(config_of(auth={"hba": ["nonsense"]}, listen={"tls": {"mode": "allow", "cert": "/none"}}))
    log_in(front, password="new").close()


def test_a_bad_configuration_at_start(start: Start) -> None:
    with pytest.raises(ConfigError, match=r"auth\.hba line 1"):
        start(auth={"hba": ["host all all all ident"]})
    with pytest.raises(ConfigError, match=r"listen\.proxy_protocol_trusted"):
        start(listen={"proxy_protocol": True, "proxy_protocol_trusted": ["somewhere"]})


# ---------------------------------------------------------------------------------- P12, P15, P17, P18


def test_startup_parameters(start: Start) -> None:
    front = start(auth=TRUST)
    log_in(front, options=r"-c search_path=a,\ b --work-mem=6MB", application_name="till").close()
    params = front.adopted.get(timeout=5).params
    assert params["search_path"] == "a, b"
    assert (params["work_mem"], params["application_name"]) == ("6MB", "till")
    assert not {"user", "database", "options", "replication"} & params.keys()
    assert "-c nonsense requires a value" in refused(front, options="-c nonsense")


def test_no_user(start: Start) -> None:
    error = Raw(start()).send(build.startup({"database": "x"}, codes.PROTOCOL_3_0)).error()
    assert (error["S"], error["C"]) == ("FATAL", "28000")


@pytest.mark.parametrize("tls", ["disable", "allow"])
@pytest.mark.parametrize("unix", [False, True])
def test_requests_for_encryption_are_declined_once_each(start: Start, tls: str, unix: bool) -> None:
    front = start(tls=tls, auth=TRUST)
    offers = tls == "allow" and not unix
    assert Raw(front, unix=unix).send(GSS).take(1) == b"N"
    raw = Raw(front, unix=unix).send(GSS)
    assert raw.take(1) == b"N"
    assert raw.send(SSL).take(1) == (b"S" if offers else b"N")
    if not offers:
        assert raw.send(startup()).message() == (b"R", bytes(4))
        raw = Raw(front, unix=unix).send(SSL)
        assert raw.take(1) == b"N"
        assert raw.send(GSS).take(1) == b"N"
        assert raw.send(startup()).message() == (b"R", bytes(4))
        raw = Raw(front, unix=unix).send(SSL)
        assert raw.take(1) == b"N"
        error = raw.send(SSL).error()
        assert (error["C"], error["M"]) == (
            "0A000",
            "unsupported frontend protocol 1234.5679: server supports 3.0 to 3.2",
        )
    raw = Raw(front, unix=unix).send(GSS)
    assert raw.take(1) == b"N"
    assert "1234.5680" in raw.send(GSS).error()["M"]


def test_clear_text_behind_a_request_for_tls(start: Start) -> None:
    error = Raw(start(tls="allow")).send(SSL, startup()).error()
    assert (error["C"], error["M"]) == ("08P01", "received unencrypted data after SSL request")


def test_tls_required(start: Start) -> None:
    error = Raw(start(tls="require")).send(startup()).error()
    assert (error["S"], error["C"]) == ("FATAL", "28000")


def test_tls_twice(start: Start, certificates: Certificates) -> None:
    raw = Raw(start(tls="allow")).send(SSL)
    assert raw.take(1) == b"S"
    raw.sock = ssl.create_default_context(cafile=certificates.ca).wrap_socket(raw.sock, server_hostname="localhost")
    assert raw.send(SSL).error()["C"] == "0A000"


@pytest.mark.parametrize(
    "packet",
    [
        struct.pack("!ii", 20_000, codes.PROTOCOL_3_0),
        struct.pack("!ii", -1, codes.PROTOCOL_3_0),
        struct.pack("!ii", 7, codes.PROTOCOL_3_0),
        struct.pack("!ii", 18, codes.PROTOCOL_3_0) + b"user\0ada\0\0"[:-1] + b"x",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\r\nhello, is anybody there?",
    ],
)
def test_bad_first_packets(start: Start, packet: bytes) -> None:
    front = start()
    error = Raw(front).send(packet).error()
    assert (error["S"], error["C"]) == ("FATAL", "08P01")
    assert front.counters.protocol_errors == 1
    log_in(front).close()


def test_every_byte_on_its_own(start: Start) -> None:
    front = start(auth=TRUST)
    raw = Raw(front)
    raw.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in SSL:
        raw.send(bytes((byte,)))
    assert raw.take(1) == b"N"
    for byte in startup():
        raw.send(bytes((byte,)))
    assert raw.message() == (b"R", bytes(4))


def test_what_comes_behind_the_startup_packet_is_kept(start: Start) -> None:
    front = start(auth=TRUST)
    raw = Raw(front).send(startup(), build.query("SELECT 1"))
    assert raw.message() == (b"R", bytes(4))
    assert front.received.get(timeout=5) == build.query("SELECT 1")


def test_silent_and_slow_clients_are_dropped(start: Start) -> None:
    front = start(tls="allow", listen={"login_timeout": 0.3})
    begun = time.monotonic()
    idlers = [Raw(front), Raw(front).send(b"\0"), Raw(front).send(SSL[:7]), Raw(front).send(SSL)]
    asked = Raw(front).send(startup())
    assert idlers[3].take(1) == b"S"
    assert asked.message()[0] == b"R"
    for idler in [*idlers, asked]:
        assert idler.rest() == b""
    assert 0.2 < time.monotonic() - begun < 5
    assert front.counters.logins_failed == 5
    assert front.call(lambda: front.counters.logins_current) == 0


def test_half_open_logins_are_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.dataplane.accept.MAX_HALF_OPEN", 5)
    front = start()
    silent = [Raw(front) for _ in range(20)]
    for raw in silent[:15]:
        assert raw.rest() == b"", "the oldest gives way"
    log_in(front).close()
    assert front.counters.clients_refused >= 15


def test_cancel_requests(start: Start, certificates: Certificates) -> None:
    front = start(tls="allow")
    for key in (b"key!", b"k" * 32, b"k" * 256):
        assert Raw(front).send(build.cancel(7, key)).rest() == b""
        assert front.cancels.get(timeout=5) == (7, key)
    raw = Raw(front).send(SSL)
    assert raw.take(1) == b"S"
    raw.sock = ssl.create_default_context(cafile=certificates.ca).wrap_socket(raw.sock, server_hostname="localhost")
    raw.send(build.cancel(8, b"key!"))
    assert front.cancels.get(timeout=5) == (8, b"key!")
    assert front.counters.cancels == 4
    assert front.adopted.empty()


def test_cancel_by_a_driver(start: Start) -> None:
    front = start(tls="allow", auth=TRUST)
    with log_in(front, sslmode="require", autocommit=True) as connection:
        connection.cancel_safe(timeout=5)
        assert front.cancels.get(timeout=5) == (1, b"key!")


@pytest.mark.parametrize(
    ("version", "option", "reply"),
    [
        (codes.PROTOCOL_3_0, "", None),
        (codes.PROTOCOL_3_2, "", None),
        (codes.PROTOCOL_3_0 + 9999, "_pq_.grease", build.negotiate_version(codes.PROTOCOL_3_2, ["_pq_.grease"])),
        (codes.PROTOCOL_3_0, "_pq_.foo", build.negotiate_version(codes.PROTOCOL_3_0, ["_pq_.foo"])),
    ],
)
@pytest.mark.parametrize("rules", [TRUST, {}])
def test_negotiation(start: Start, version: int, option: str, reply: bytes | None, rules: dict[str, Any]) -> None:
    front = start(auth=rules)
    raw = Raw(front).send(startup(version, **({option: "1"} if option else {})))
    if reply is not None:
        assert raw.take(len(reply)) == reply
    assert raw.message()[0] == b"R"
    if rules:
        found = front.adopted.get(timeout=5)
        assert found.minor == (0 if version == codes.PROTOCOL_3_0 else 2)
        assert not any(name.startswith("_pq_.") for name in found.params)


def test_protocol_3_2_by_libpq(start: Start) -> None:
    front = start()
    with log_in(front, min_protocol_version="3.2", max_protocol_version="latest"):
        assert front.adopted.get(timeout=5).minor == 2


@pytest.mark.parametrize("version", [4 << 16, 2 << 16])
def test_other_protocols(start: Start, version: int) -> None:
    assert Raw(start()).send(startup(version)).error()["C"] == "0A000"


def scram_first(mechanism: str, first: bytes) -> bytes:
    return build.message(b"p", build.cstr(mechanism) + struct.pack("!i", len(first)) + first)


def test_downgrade_and_plus_without_tls(start: Start, certificates: Certificates) -> None:
    front = start(tls="allow")
    raw = Raw(front).send(startup())
    assert raw.message() == (b"R", struct.pack("!i", 10) + b"SCRAM-SHA-256\0\0")
    raw.send(scram_first("SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,n=,r=x"))
    assert raw.error()["C"] == "08P01"
    raw = Raw(front).send(SSL)
    assert raw.take(1) == b"S"
    raw.sock = ssl.create_default_context(cafile=certificates.ca).wrap_socket(raw.sock, server_hostname="localhost")
    raw.send(startup())
    assert raw.message() == (b"R", struct.pack("!i", 10) + b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")
    assert raw.send(scram_first("SCRAM-SHA-256", b"y,,n=,r=x")).error()["C"] == "28000"


def challenge(front: Front, user: str) -> bytes:
    raw = Raw(front).send(startup(user=user))
    raw.message()
    kind, body = raw.send(scram_first("SCRAM-SHA-256", b"n,,n=,r=x")).message()
    raw.sock.close()
    assert kind == b"R"
    return body[body.index(b"s=") :]


def test_unknown_users_look_like_others(start: Start, tmp_path: Path) -> None:
    front = start()
    assert challenge(front, "eve") == challenge(front, "eve") != challenge(front, "mallory")
    assert len(challenge(front, "eve")) == len(challenge(front, "ada"))
    before = challenge(front, "eve")
    front.reconfigure(config_of())
    assert challenge(front, "eve") == before, "another worker gives the same answer"


# ---------------------------------------------------------------------------------- limits


def test_too_many_clients(start: Start) -> None:
    front = start(listen={"max_clients": 3})
    front.clients = 3
    assert "sorry, too many clients already" in refused(front)
    assert front.counters.clients_refused == 1
    assert Raw(front).send(build.cancel(7, b"key!")).rest() == b"", "a cancel is still taken"
    assert front.cancels.get(timeout=5)


def test_wrong_passwords_are_delayed_and_paced(start: Start) -> None:
    front = start(auth={"failure_delay": 0.2, "failures_per_second": 20})
    answered = []

    def attempt() -> Raw:
        raw = Raw(front).send(startup())
        raw.message()
        raw.send(scram_first("SCRAM-SHA-256", b"n,,n=,r=x"))
        _, body = raw.message()
        nonce = body[6 : body.index(b",s=")]
        raw.send(build.message(b"p", b"c=biws,r=" + nonce + b",p=" + b"A" * 43 + b"="))
        return raw

    begun = time.monotonic()
    flood = [attempt() for _ in range(10)]
    log_in(front).close()
    assert time.monotonic() - begun < 0.65, "the right password is not slowed"
    for raw in flood:
        assert raw.error()["C"] == "28P01"
        answered.append(time.monotonic() - begun)
    assert answered[0] >= 0.2
    assert answered[-1] >= 0.2 + 9 / 20


def test_a_client_that_goes_away(start: Start) -> None:
    front = start(tls="allow")
    for data in (b"", SSL[:4], SSL, startup()[:20], startup()):
        raw = Raw(front).send(data)
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.sock.close()
    log_in(front).close()
    front.adopted.get(timeout=5)
    assert front.adopted.empty()
    assert front.counters.protocol_errors == 0


# ---------------------------------------------------------------------------------- PROXY protocol


def proxy_header(host: str, port: int, command: int = 1) -> bytes:
    body = socket.inet_aton(host) + socket.inet_aton("10.0.0.1") + struct.pack("!HH", port, 6432)
    return PROXY_SIGNATURE + bytes((0x20 | command, 0x11)) + struct.pack("!H", len(body)) + body


BEHIND = {"proxy_protocol": True, "proxy_protocol_trusted": ["127.0.0.0/8"]}


def test_proxy_protocol(start: Start, certificates: Certificates) -> None:
    front = start(tls="allow", listen=BEHIND, auth={"hba": ["host all all 203.0.113.9/32 trust"]})
    raw = Raw(front).send(proxy_header("203.0.113.9", 4711), startup())
    assert raw.message() == (b"R", bytes(4))
    assert front.adopted.get(timeout=5).peer == "203.0.113.9:4711"
    assert "203.0.113.8" in Raw(front).send(proxy_header("203.0.113.8", 1), startup()).error()["M"]
    assert "127.0.0.1" in Raw(front).send(startup()).error()["M"]
    assert "127.0.0.1" in Raw(front).send(proxy_header("203.0.113.9", 1, command=0), startup()).error()["M"]
    raw = Raw(front).send(proxy_header("203.0.113.9", 4712), SSL)
    assert raw.take(1) == b"S"
    raw.sock = ssl.create_default_context(cafile=certificates.ca).wrap_socket(raw.sock, server_hostname="localhost")
    assert raw.send(startup()).message() == (b"R", bytes(4))
    found = front.adopted.get(timeout=5)
    assert (found.peer, found.tls) == ("203.0.113.9:4712", True)


@pytest.mark.parametrize(
    "listen", [{}, {"proxy_protocol": True}, {"proxy_protocol": True, "proxy_protocol_trusted": ["10.0.0.0/8"]}]
)
def test_proxy_protocol_is_for_trusted_addresses_only(start: Start, listen: dict[str, Any]) -> None:
    front = start(listen=listen, auth=TRUST)
    assert Raw(front).send(proxy_header("203.0.113.9", 4711), startup()).error()["C"] == "08P01"
