"""P17: SCRAM with and without channel binding. The proxy is the SCRAM server for its clients, bound to its
own certificate, and a SCRAM client of its nodes."""

from __future__ import annotations

import hashlib
import ssl
import time

import psycopg
import pytest

from ..support.proxy import Proxy
from ..support.rawpg import Reply, Scram, Wire, show, startup_message
from .conftest import DATABASE, PASSWORD, USER, Secure

Address = tuple[str, int]


@pytest.fixture(params=["direct", "proxy"])
def address(request: pytest.FixtureRequest, secure: Secure) -> Address:
    if request.param == "direct":
        return secure.address
    proxy: Proxy = request.getfixturevalue("secure_proxy")
    return proxy.address


def attempt(wire: Wire, scram: Scram, user: str = USER) -> list[Reply]:
    """One login with this SCRAM client, to ReadyForQuery or the end."""
    wire.send(startup_message({"user": user, "database": DATABASE}))
    replies: list[Reply] = []
    while True:
        reply = wire.read()
        replies.append(reply)
        if reply.kind == "R" and (answer := scram.answer(reply.body)):
            wire.send(answer)
        if reply.kind in ("Z", "EOF", "..."):
            return replies


def end_point(wire: Wire) -> bytes:
    """The `tls-server-end-point` data of this connection (the test's certificates are signed with SHA-256)."""
    assert isinstance(wire.socket, ssl.SSLSocket)
    certificate = wire.socket.getpeercert(binary_form=True)
    assert certificate
    return hashlib.sha256(certificate).digest()


def test_offers(address: Address, secure: Secure) -> None:
    scram = Scram(PASSWORD)
    wire = Wire(address, tls=secure.context())
    assert show(attempt(wire, scram)).startswith("R10 R11 R12 R0 ")
    assert scram.offered == ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]


def test_offers_without_tls(secure_proxy: Proxy) -> None:
    scram = Scram(PASSWORD)
    wire = Wire(secure_proxy.address)
    assert show(attempt(wire, scram)).startswith("R10 R11 R12 R0 ")
    assert scram.offered == ["SCRAM-SHA-256"]


def test_plus(address: Address, secure: Secure) -> None:
    wire = Wire(address, tls=secure.context())
    plus = {"mechanism": "SCRAM-SHA-256-PLUS", "gs2": "p=tls-server-end-point,,"}
    assert show(attempt(wire, Scram(PASSWORD, **plus, binding=end_point(wire)))).startswith("R10 R11 R12 R0 ")
    other = Wire(address, tls=secure.context())
    refused = attempt(other, Scram(PASSWORD, **plus, binding=b"x" * 32))
    assert show(refused) == "R10 R11 E[FATAL 28000] EOF"


def test_plus_with_the_nodes_certificate(secure_proxy: Proxy, secure: Secure) -> None:
    """A man in the middle that passed the exchange through would bind to the wrong certificate."""
    node = Wire(secure.address, tls=secure.context())
    wire = Wire(secure_proxy.address, tls=secure.context())
    assert end_point(node) != end_point(wire)
    scram = Scram(PASSWORD, mechanism="SCRAM-SHA-256-PLUS", gs2="p=tls-server-end-point,,", binding=end_point(node))
    assert show(attempt(wire, scram)) == "R10 R11 E[FATAL 28000] EOF"


def test_y_while_plus_was_offered(address: Address, secure: Secure) -> None:
    wire = Wire(address, tls=secure.context())
    assert show(attempt(wire, Scram(PASSWORD, gs2="y,,"))).endswith("E[FATAL 28000] EOF")


def test_y_without_tls(secure_proxy: Proxy) -> None:
    wire = Wire(secure_proxy.address)
    assert show(attempt(wire, Scram(PASSWORD, gs2="y,,"))).startswith("R10 R11 R12 R0 ")


@pytest.mark.parametrize("gs2", ["p=tls-server-end-point,,", "n,,"])
def test_plus_without_tls(secure_proxy: Proxy, gs2: str) -> None:
    wire = Wire(secure_proxy.address)
    scram = Scram(PASSWORD, mechanism="SCRAM-SHA-256-PLUS", gs2=gs2, binding=b"x" * 32)
    assert show(attempt(wire, scram)) == "R10 E[FATAL 08P01] EOF"


@pytest.mark.parametrize("gs2", ["n,a=other,", "x,,", "", "p=tls-unique,,"])
def test_odd_first_messages(address: Address, secure: Secure, gs2: str) -> None:
    wire = Wire(address, tls=secure.context())
    replies = attempt(wire, Scram(PASSWORD, gs2=gs2))
    assert replies[-1].kind == "EOF"
    assert str(replies[-2]) in ("E[FATAL 08P01]", "E[FATAL 0A000]", "E[FATAL 28000]")


def test_wrong_password_and_unknown_user(address: Address, secure: Secure) -> None:
    """The same messages, so that names can't be guessed."""
    seen = []
    for user, password in ((USER, "wrong"), ("nobody_at_all", PASSWORD)):
        wire = Wire(address, tls=secure.context())
        start = time.monotonic()
        replies = attempt(wire, Scram(password), user)
        seen.append((show(replies), replies[-2].fields["M"].replace(user, "?"), time.monotonic() - start))
    assert seen[0][:2] == seen[1][:2]
    assert seen[0][:2] == ("R10 R11 E[FATAL 28P01] EOF", 'password authentication failed for user "?"')
    assert abs(seen[0][2] - seen[1][2]) < 0.5


def test_salt_of_an_unknown_user_is_stable(address: Address, secure: Secure) -> None:
    salts = set()
    for _ in range(2):
        wire = Wire(address, tls=secure.context())
        first = attempt(wire, Scram("x"), "nobody_at_all")[1].body
        salts.add(first[4:].split(b",")[1])
    assert len(salts) == 1


@pytest.mark.parametrize("binding", ["disable", "prefer", "require"])
def test_libpq(address: Address, secure: Secure, binding: str) -> None:
    with psycopg.connect(
        host="localhost",
        hostaddr="127.0.0.1",
        port=address[1],
        user=USER,
        password=PASSWORD,
        dbname=DATABASE,
        sslmode="verify-full",
        sslrootcert=str(secure.ca),
        channel_binding=binding,
    ) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (USER,)


def test_libpq_requires_binding_without_tls(secure_proxy: Proxy) -> None:
    with pytest.raises(psycopg.OperationalError, match="channel binding"):
        psycopg.connect(
            host="127.0.0.1",
            port=secure_proxy.port,
            user=USER,
            password=PASSWORD,
            dbname=DATABASE,
            sslmode="disable",
            channel_binding="require",
        )
