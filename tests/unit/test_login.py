"""Both login machines: against each other, against transcripts, and cut at every byte."""

from __future__ import annotations

import struct

import pytest

from proxy.errors import LoginError, NodeRefused, ProtocolViolation, TridentError, Unsupported
from proxy.wire import auth, build, codes
from proxy.wire.auth import Credentials, ScramKeys
from proxy.wire.login import (
    CancelRequest,
    ClientEvent,
    ClientLogin,
    DeriveKeys,
    NodeLogin,
    NodeReady,
    Password,
    Proved,
    Send,
    Startup,
    WrongPassword,
)

GOOD = "open sesame"
KEYS = auth.derive_keys(GOOD, b"0123456789abcdef", 1)
SECRET = auth.secret_of(KEYS)
READY = (
    build.AUTHENTICATION_OK
    + build.parameter_status("server_version", "15.20")
    + build.parameter_status("TimeZone", "UTC")
    + build.backend_key(4711, b"\1\2\3\4")
    + build.ready(codes.IDLE)
)


def node_login(credentials: Credentials | None = None, **options: object) -> NodeLogin:
    return NodeLogin(credentials or Credentials("ada", GOOD), {"database": "shop"}, nonce="cn", **options)  # type: ignore[arg-type]


def authentication(method: int, body: bytes = b"") -> bytes:
    return build.message(b"R", struct.pack("!i", method) + body)


def dialogue(node: NodeLogin, method: str, *, step: int = 1_000_000, stored: str = GOOD) -> NodeReady:
    """Log the node machine in at the client machine, in pieces of `step` bytes; ends with NodeReady."""
    client = ClientLogin()
    to_client = node.start()
    to_node = b""
    while True:
        chunk, to_client = to_client[:step], to_client[step:]
        for event in client.feed(chunk) if chunk else []:
            match event:
                case Startup():
                    to_node += {
                        "trust": client.ask_nothing,
                        "password": client.ask_password,
                        "md5": lambda: client.ask_md5(auth.md5_hash(stored, "ada"), b"salt"),
                        "scram": lambda: client.ask_scram(SECRET, "sn", None),
                    }[method]()
                    to_node += READY if method == "trust" else b""
                case Send(data):
                    to_node += data
                case Password(text):
                    assert text == stored
                    to_node += READY
                case Proved():
                    to_node += client.final() + READY
                case WrongPassword():
                    raise AssertionError("wrong password")
        chunk, to_node = to_node[:step], to_node[step:]
        for said in node.feed(chunk) if chunk else []:
            match said:
                case Send(data):
                    to_client += data
                case DeriveKeys(salt, iterations):
                    to_client += node.use_keys(auth.derive_keys(GOOD, salt, iterations))
                case NodeReady():
                    return said


@pytest.mark.parametrize("method", ["trust", "password", "md5", "scram"])
@pytest.mark.parametrize("step", [1, 2, 7, 1_000_000])
def test_both_sides(method: str, step: int) -> None:
    ready = dialogue(node_login(), method, step=step)
    assert ready.parameters == {"server_version": "15.20", "TimeZone": "UTC"}
    assert (ready.pid, ready.key, ready.leftover) == (4711, b"\1\2\3\4", b"")


def test_with_keys_instead_of_a_password() -> None:
    assert dialogue(node_login(Credentials("ada", scram_keys=KEYS)), "scram").pid == 4711


def test_with_an_md5_hash_instead_of_a_password() -> None:
    assert dialogue(node_login(Credentials("ada", md5_hash=auth.md5_hash(GOOD, "ada"))), "md5").pid == 4711


def test_a_password_stands_in_for_keys_that_do_not_fit() -> None:
    other = auth.derive_keys(GOOD, b"another", 1)
    assert dialogue(node_login(Credentials("ada", GOOD, other)), "scram").pid == 4711


@pytest.mark.parametrize("method", ["password", "md5", "scram"])
@pytest.mark.parametrize(
    "credentials", [Credentials("ada"), Credentials("ada", scram_keys=auth.derive_keys(GOOD, b"another", 1))]
)
def test_nothing_that_serves(method: str, credentials: Credentials) -> None:
    with pytest.raises(NodeRefused) as caught:
        dialogue(node_login(credentials), method)
    assert caught.value.fields["C"] == "28000"


# ---------------------------------------------------------------------------------- to a node


def test_startup_message() -> None:
    packet = NodeLogin(Credentials("ada"), {"database": "shop", "application_name": "x"}, nonce="n").start()
    assert packet == build.startup({"user": "ada", "database": "shop", "application_name": "x"}, codes.PROTOCOL_3_0)


def test_leftover_and_notices() -> None:
    notice = build.error_fields({"S": "WARNING", "M": "hello"}, b"N")
    (ready,) = node_login().feed(notice + READY[:-6] + notice + READY[-6:] + b"A\0\0")
    assert isinstance(ready, NodeReady)
    assert ready.leftover == b"A\0\0"


def test_a_node_without_cancel_keys() -> None:
    (ready,) = node_login().feed(build.AUTHENTICATION_OK + build.ready(codes.IDLE))
    assert ready == NodeReady({}, 0, b"", b"")


def test_negotiation_is_accepted() -> None:
    assert node_login().feed(build.negotiate_version(codes.PROTOCOL_3_0, ()) + READY)


def test_refusal_keeps_the_nodes_fields() -> None:
    fields = {"S": "FATAL", "C": "3D000", "M": 'database "shop" does not exist'}
    with pytest.raises(NodeRefused) as caught:
        node_login().feed(build.error_fields(fields))
    assert (caught.value.fields, caught.value.sqlstate) == (fields, "3D000")


@pytest.mark.parametrize(
    "data",
    [
        b"Z\0\0\0\5I",
        build.parameter_status("a", "b"),
        build.backend_key(1, b"abcd"),
        b"T\0\0\0\6\0\0",
        b"R\0\0\0\3",
        b"R\x7f\0\0\0",
        build.AUTHENTICATION_OK + build.AUTHENTICATION_OK,
        build.AUTHENTICATION_OK + b"D\0\0\0\6\0\0",
        build.AUTHENTICATION_OK + b"S\0\0\0\5a",
        authentication(codes.AUTH_SASL_CONTINUE, b"r=x,s=eA==,i=1"),
        authentication(codes.AUTH_SASL_FINAL, b"v=eA=="),
    ],
)
def test_nonsense_from_a_node(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        node_login().feed(data)


@pytest.mark.parametrize("method", [2, 6, 7, 9, 99])
def test_methods_that_are_not_supported(method: int) -> None:
    with pytest.raises(NodeRefused, match=f"authentication method {method}"):
        node_login().feed(authentication(method))


SASL = authentication(codes.AUTH_SASL, b"SCRAM-SHA-256\0\0")
SASL_PLUS = authentication(codes.AUTH_SASL, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")


@pytest.mark.parametrize("then", [build.AUTHENTICATION_OK, authentication(codes.AUTH_CLEARTEXT)])
def test_a_node_that_leaves_scram_half_way(then: bytes) -> None:
    """It would have learnt the password without knowing it, or pass for a node that knows it."""
    login = node_login()
    login.feed(SASL)
    with pytest.raises(ProtocolViolation):
        login.feed(then)


def test_a_node_with_a_wrong_signature() -> None:
    login = node_login(Credentials("ada", scram_keys=KEYS))
    login.feed(SASL)
    login.feed(authentication(codes.AUTH_SASL_CONTINUE, b"r=cnsn,s=MDEyMzQ1Njc4OWFiY2RlZg==,i=1"))
    with pytest.raises(ProtocolViolation, match="does not know the password"):
        login.feed(authentication(codes.AUTH_SASL_FINAL, b"v=" + b"A" * 43 + b"="))


@pytest.mark.parametrize("answer", [build.AUTHENTICATION_OK, authentication(3), authentication(5, b"salt"), SASL])
def test_channel_binding_required(answer: bytes) -> None:
    with pytest.raises(NodeRefused, match="channel binding is required"):
        node_login(channel_binding="require").feed(answer)


def test_choice_of_channel_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "certificate_hash", lambda der: b"h" * 32)

    def first(offer: bytes, **options: object) -> bytes:
        (sent,) = node_login(**options).feed(offer)
        assert isinstance(sent, Send)
        return sent.data[5:]

    assert first(SASL_PLUS, certificate=b"x").startswith(b"SCRAM-SHA-256-PLUS\0")
    assert b"p=tls-server-end-point,," in first(SASL_PLUS, certificate=b"x", channel_binding="require")
    assert b"n,," in first(SASL_PLUS, certificate=b"x", channel_binding="disable")
    assert b"n,," in first(SASL_PLUS), "no TLS"
    assert b"y,," in first(SASL, certificate=b"x"), "a downgrade would be seen"


# ---------------------------------------------------------------------------------- from a client


def started(*more: bytes, version: int = codes.PROTOCOL_3_0, **params: str) -> ClientLogin:
    login = ClientLogin()
    (first,) = login.feed(build.startup({"user": "ada", **params}, version) + b"".join(more))
    assert isinstance(first, Startup)
    return login


def answer(text: bytes) -> bytes:
    return build.message(b"p", text)


def test_cancel_request() -> None:
    assert ClientLogin().feed(build.cancel(5, b"long key")) == [CancelRequest(5, b"long key")]


def test_encryption_asked_for_too_late() -> None:
    for code in (codes.SSL_REQUEST, codes.GSSENC_REQUEST):
        with pytest.raises(Unsupported, match=r"1234\.56"):
            ClientLogin().feed(build.request(code))


def test_negotiation_is_sent_once_and_first() -> None:
    login = started(version=codes.PROTOCOL_3_0 + 9999, **{"_pq_.grease": "1"})
    owed = build.negotiate_version(codes.PROTOCOL_3_2, ["_pq_.grease"])
    assert login.ask_password() == owed + authentication(codes.AUTH_CLEARTEXT)
    assert login.negotiation() == b""
    assert started(version=codes.PROTOCOL_3_2).ask_nothing() == b""


def test_what_a_client_sends_too_early_is_kept() -> None:
    login = started(b"Q\0\0\0\x0dSELECT 1\0")
    login.ask_nothing()
    login.feed(b"more")
    assert login.take_leftover() == b"Q\0\0\0\x0dSELECT 1\0more"


def test_leftover_behind_a_password() -> None:
    login = started()
    login.ask_password()
    assert login.feed(answer(b"x\0") + b"Qrest") == [Password("x")]
    assert login.take_leftover() == b"Qrest"


def test_an_answer_that_came_before_the_question() -> None:
    login = started(answer(b"x\0"))
    login.ask_password()
    assert login.feed(b"") == [Password("x")]


def ask_md5(login: ClientLogin, stored: str | None) -> list[ClientEvent]:
    login.ask_md5(stored, b"salt")
    return login.feed(answer(auth.md5_response(auth.md5_hash(GOOD, "ada"), b"salt").encode() + b"\0"))


def test_md5() -> None:
    assert ask_md5(started(), auth.md5_hash(GOOD, "ada")) == [Proved(None)]
    assert ask_md5(started(), auth.md5_hash("else", "ada")) == [WrongPassword()]
    assert ask_md5(started(), None) == [WrongPassword()]


@pytest.mark.parametrize("body", [b"", b"abc", b"a\0b\0", b"a\0b"])
def test_password_layout(body: bytes) -> None:
    login = started()
    login.ask_password()
    with pytest.raises(ProtocolViolation, match="invalid password packet size"):
        login.feed(answer(body))


def test_empty_password() -> None:
    login = started()
    login.ask_password()
    with pytest.raises(LoginError, match="empty password") as caught:
        login.feed(answer(b"\0"))
    assert caught.value.sqlstate == "28P01"


def test_passwords_in_other_encodings_fit_nothing() -> None:
    login = started()
    login.ask_password()
    assert login.feed(answer(b"\xff\0")) == [WrongPassword()]


@pytest.mark.parametrize("data", [b"Q\0\0\0\5\0", b"X\0\0\0\4", b"p\0\0\0\3", b"p\0\1\0\1", b"p\xff\xff\xff\xff"])
def test_other_messages_during_login(data: bytes) -> None:
    login = started()
    login.ask_password()
    with pytest.raises(ProtocolViolation):
        login.feed(data)


@pytest.mark.parametrize("body", [b"", b"SCRAM-SHA-256", b"SCRAM-SHA-256\0\0\0", b"SCRAM-SHA-256\0\0\0\0\x0an,,n=,r=x"])
def test_sasl_layout(body: bytes) -> None:
    login = started()
    login.ask_scram(SECRET, "sn", None)
    with pytest.raises(ProtocolViolation):
        login.feed(answer(body))


def scram_transcript(keys: ScramKeys) -> tuple[ClientLogin, bytes, bytes]:
    """A login and the two messages that a client with these keys sends."""
    client = auth.ScramClient("cn")
    first = client.first()
    initial = answer(build.cstr("SCRAM-SHA-256") + struct.pack("!i", len(first)) + first)
    login = started()
    login.ask_scram(SECRET, "sn", None)
    client.challenge(b"r=cnsn,s=MDEyMzQ1Njc4OWFiY2RlZg==,i=1")
    return login, initial, answer(client.final(keys))


def test_scram_cut_at_every_byte() -> None:
    _, first, second = scram_transcript(KEYS)
    for cut in range(len(first + second)):
        login, _, _ = scram_transcript(KEYS)
        events = login.feed((first + second)[:cut]) + login.feed((first + second)[cut:])
        assert [type(e) for e in events] == [Send, Proved]
        assert events[-1] == Proved(KEYS)


def test_scram_wrong_password() -> None:
    login, first, second = scram_transcript(auth.derive_keys("wrong", KEYS.salt, KEYS.iterations))
    assert login.feed(first + second)[-1] == WrongPassword()
    assert login.final() == b""


def test_changed_bytes_give_errors_and_nothing_else() -> None:
    _, first, second = scram_transcript(KEYS)
    good = first + second
    for at in range(len(good)):
        for value in (0, 0x41, 0xFF):
            if good[at] == value:
                continue
            login, _, _ = scram_transcript(KEYS)
            try:
                events = login.feed(good[:at] + bytes((value,)) + good[at + 1 :])
            except TridentError:
                continue
            assert not any(isinstance(e, Proved) for e in events) or good[at : at + 1] in b"=", at
