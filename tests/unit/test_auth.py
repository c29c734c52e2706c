"""SCRAM, md5 and channel binding against published vectors, PostgreSQL's forms and each other."""

from __future__ import annotations

import datetime
import hashlib
from base64 import b64decode, b64encode

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import NameOID

from proxy.errors import LoginError, ProtocolViolation, TridentError, Unsupported
from proxy.wire import auth
from proxy.wire.auth import ScramClient, ScramKeys, ScramServer

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEYS = auth.derive_keys("pencil", SALT, 4096)
BINDING = b"b" * 32

# RFC 7677, section 3.
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def server(binding: bytes | None = None) -> ScramServer:
    return ScramServer(auth.secret_of(KEYS), SERVER_NONCE, binding)


def exchange(client: ScramClient, server: ScramServer, keys: ScramKeys = KEYS) -> bool:
    """Both sides' verdict."""
    client.challenge(server.first(client.mechanism, client.first()))
    reply = server.final(client.final(keys))
    return reply is not None and client.verify(reply)


def test_rfc_7677_server() -> None:
    scram = server()
    assert scram.first("SCRAM-SHA-256", FIRST) == SERVER_FIRST
    assert scram.final(FINAL) == SERVER_FINAL


def test_rfc_7677_client_signature() -> None:
    """Ours sends the user name empty, as libpq does, so only its parts can be compared."""
    client = ScramClient(CLIENT_NONCE)
    assert client.first() == f"n,,n=,r={CLIENT_NONCE}".encode()
    assert client.challenge(SERVER_FIRST) == (SALT, 4096)
    client._bare = f"n=user,r={CLIENT_NONCE}"
    assert client.final(KEYS) == FINAL
    assert client.verify(SERVER_FINAL)
    assert not client.verify(b"v=" + b64encode(bytes(32)))
    assert not client.verify(b"e=other-error")


def test_the_client_key_comes_out_of_the_proof() -> None:
    scram = server()
    scram.first("SCRAM-SHA-256", FIRST)
    scram.final(FINAL)
    assert scram.keys == KEYS
    assert scram.keys is not None
    assert scram.keys.fits(SALT, 4096)
    assert not scram.keys.fits(SALT, 4097)
    assert exchange(ScramClient("abc"), server(), scram.keys), "it logs in elsewhere without the password"


@pytest.mark.parametrize("user", ["", "user", "=2C=3D", "J\xf6rg"])
def test_the_user_name_inside_is_ignored(user: str) -> None:
    client = ScramClient("abc")
    client._bare = f"n={user},r=abc"
    scram = server()
    client.challenge(scram.first("SCRAM-SHA-256", f"n,,n={user},r=abc".encode("latin-1")))
    reply = scram.final(client.final(KEYS))
    assert reply is not None
    assert client.verify(reply)


@pytest.mark.parametrize("iterations", [1, 100, 4096, 100_000])
def test_any_iteration_count(iterations: int) -> None:
    keys = auth.derive_keys("x", b"salt", iterations)
    assert exchange(ScramClient("abc"), ScramServer(auth.secret_of(keys), "def"), keys)


def test_wrong_password() -> None:
    assert not exchange(ScramClient("abc"), server(), auth.derive_keys("pen", SALT, 4096))


def test_nothing_fits_a_mock_secret() -> None:
    mock = auth.mock_secret("nobody", b"nonce")
    assert mock.salt == auth.mock_secret("nobody", b"nonce").salt != auth.mock_secret("else", b"nonce").salt
    scram = ScramServer(mock, "def")
    assert not exchange(ScramClient("abc"), scram, auth.derive_keys("", mock.salt, mock.iterations))
    assert scram.keys is None


def test_channel_binding() -> None:
    assert server().mechanisms == ("SCRAM-SHA-256",)
    assert server(BINDING).mechanisms == ("SCRAM-SHA-256-PLUS", "SCRAM-SHA-256")
    assert exchange(ScramClient("abc", BINDING), server(BINDING))
    assert exchange(ScramClient("abc"), server(BINDING)), "a client that can't bind"
    assert exchange(ScramClient("abc", could_bind=True), server()), "flag y where PLUS was not offered"


def test_another_certificate_in_between() -> None:
    with pytest.raises(LoginError, match="channel binding check failed") as caught:
        exchange(ScramClient("abc", b"c" * 32), server(BINDING))
    assert caught.value.sqlstate == "28000"


def test_downgrade_is_seen() -> None:
    with pytest.raises(LoginError, match="negotiation error") as caught:
        server(BINDING).first("SCRAM-SHA-256", b"y,,n=,r=abc")
    assert caught.value.sqlstate == "28000"


@pytest.mark.parametrize(
    ("mechanism", "data", "error"),
    [
        ("SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,n=,r=abc", ProtocolViolation),
        ("SCRAM-SHA-1", b"n,,n=,r=abc", ProtocolViolation),
        ("SCRAM-SHA-256", b"p=tls-server-end-point,,n=,r=abc", ProtocolViolation),
        ("SCRAM-SHA-256", b"x,,n=,r=abc", ProtocolViolation),
        ("SCRAM-SHA-256", b"n,a=root,n=,r=abc", Unsupported),
        ("SCRAM-SHA-256", b"n,b,n=,r=abc", ProtocolViolation),
        ("SCRAM-SHA-256", b"n,,m=ext,n=,r=abc", Unsupported),
        ("SCRAM-SHA-256", b"n,,n=,r=", ProtocolViolation),
        ("SCRAM-SHA-256", b"n,,n=,r=a\x01b", ProtocolViolation),
        ("SCRAM-SHA-256", b"n,,n=,r=abc\0", ProtocolViolation),
        ("SCRAM-SHA-256", b"n,,n=", ProtocolViolation),
        ("SCRAM-SHA-256", b"", ProtocolViolation),
        ("SCRAM-SHA-256", b"\xff\xfe", ProtocolViolation),
    ],
)
def test_bad_first_messages(mechanism: str, data: bytes, error: type[TridentError]) -> None:
    with pytest.raises(error):
        server().first(mechanism, data)


@pytest.mark.parametrize("data", [b"n,,n=,r=abc", b"p=tls-unique,,n=,r=abc"])
def test_plus_needs_binding_of_the_certificate(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        server(BINDING).first("SCRAM-SHA-256-PLUS", data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        FINAL.replace(b"p=dHzb", b"p=!!!!"),
        FINAL.replace(b"p=dHzb", b"p="),
        FINAL.replace(b"r=rOpr", b"r=rOps"),
        FINAL.replace(b"c=biws,", b""),
        FINAL.replace(b"c=biws", b"c=\xff"),
        FINAL.replace(b"r=rOpr", b"r=\xff"),
        FINAL.split(b",p=")[0],
    ],
)
def test_bad_final_messages(data: bytes) -> None:
    scram = server()
    scram.first("SCRAM-SHA-256", FIRST)
    with pytest.raises(ProtocolViolation):
        scram.final(data)
    assert scram.keys is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"r=abc,s=c2FsdA==,i=1",
        b"r=abX1,s=c2FsdA==,i=1",
        b"r=abc1,s=!,i=1",
        b"r=abc1,s=c2FsdA==,i=0",
        b"r=abc1,s=c2FsdA==,i=-1",
        b"r=abc1,s=c2FsdA==,i=99999999999",
        b"r=abc1,s=c2FsdA==",
        b"e=unknown-user",
    ],
)
def test_bad_server_first_messages(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        ScramClient("abc").challenge(data)


def test_stored_form() -> None:
    text = str(auth.secret_of(KEYS))
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert auth.parse_secret(text) == auth.secret_of(KEYS)
    stored, server_key = text.split("$")[2].split(":")
    for bad in (
        "secret",
        "SCRAM-SHA-256$x:c2FsdA==$a:b",
        f"SCRAM-SHA-256$0:c2FsdA==${stored}:{server_key}",
        f"SCRAM-SHA-256$4096:c2FsdA==${stored[:8]}:{server_key}",
        f"SCRAM-SHA-1$4096:c2FsdA==${stored}:{server_key}",
    ):
        assert auth.parse_secret(bad) is None


def test_md5() -> None:
    stored = auth.md5_hash("secret", "ada")
    assert auth.is_md5(stored)
    assert not auth.is_md5("md5" + "x" * 32)
    assert not auth.is_md5("md5abc")
    inner = hashlib.md5(b"secretada").hexdigest()
    assert auth.md5_response(stored, b"salt") == "md5" + hashlib.md5(inner.encode() + b"salt").hexdigest()


@pytest.mark.parametrize(
    ("given", "prepared"),
    [
        ("pencil \x01", "pencil \x01"),  # ASCII is left alone
        ("I\u00adX", "IX"),  # RFC 4013, section 3
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0031", "\u0627\u0031"),  # forbidden: raw
        ("a\u0007\u00e9", "a\u0007\u00e9"),
        ("\u00ad", "\u00ad"),
    ],
)
def test_saslprep(given: str, prepared: str) -> None:
    assert auth.saslprep(given) == prepared


def certificate(key: object, algorithm: hashes.HashAlgorithm | None, pss: bool = False) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = datetime.datetime(2025, 1, 1)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))  # type: ignore[attr-defined]
    )
    scheme = padding.PSS(padding.MGF1(algorithm), 32) if pss and algorithm else None
    return builder.sign(key, algorithm, rsa_padding=scheme).public_bytes(serialization.Encoding.DER)  # type: ignore[arg-type]


RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(
    ("key", "algorithm", "pss", "name"),
    [
        (RSA, hashes.SHA256(), False, "sha256"),
        (RSA, hashes.SHA384(), False, "sha384"),
        (RSA, hashes.SHA512(), False, "sha512"),
        (RSA, hashes.SHA256(), True, "sha256"),
        (RSA, hashes.SHA512(), True, "sha512"),
        (EC, hashes.SHA256(), False, "sha256"),
        (EC, hashes.SHA384(), False, "sha384"),
    ],
)
def test_certificate_hash(key: object, algorithm: hashes.HashAlgorithm, pss: bool, name: str) -> None:
    der = certificate(key, algorithm, pss)
    assert auth.certificate_hash(der) == hashlib.new(name, der).digest()


def test_certificates_without_a_hash() -> None:
    assert auth.certificate_hash(certificate(ed25519.Ed25519PrivateKey.generate(), None)) is None
    der = certificate(EC, hashes.SHA256())
    for end in range(0, len(der), 7):
        assert auth.certificate_hash(der[:end]) is None


def test_nothing_secret_in_a_repr() -> None:
    shown = repr([auth.Credentials("ada", "pencil", KEYS, auth.md5_hash("pencil", "ada")), auth.secret_of(KEYS), KEYS])
    assert "pencil" not in shown
    assert "md5" not in shown.replace("md5_hash", "")
    for part in (KEYS.client_key, KEYS.server_key):
        assert repr(part) not in shown
