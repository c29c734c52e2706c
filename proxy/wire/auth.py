"""Passwords on the wire: SCRAM-SHA-256 and -PLUS (both sides), md5, and the forms in which they are stored.

Owns the exchanges as plain values: text in, text out. It holds no socket and no clock, never derives a
key by itself in an exchange (PBKDF2 is slow, so `salted_password` stands apart and its callers decide
where it runs), and never puts a password into an error. Called by `wire.login` and
`dataplane.authenticate`. Sources: RFC 5802, RFC 7677, RFC 5929 (channel binding), RFC 4013 (SASLprep),
PostgreSQL manual 55.3.
"""

from __future__ import annotations

import hashlib
import hmac
import stringprep
import unicodedata
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, field

from ..errors import LoginError, ProtocolViolation, Unsupported

SCRAM = "SCRAM-SHA-256"
SCRAM_PLUS = "SCRAM-SHA-256-PLUS"
DEFAULT_ITERATIONS = 4096
MAX_ITERATIONS = 10_000_000
"""More than this from a peer is taken for an attack on our CPU (about 2.5 s)."""
_BINDING = "tls-server-end-point"


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a login needs instead of the password, where salt and iterations are equal."""

    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    salt: bytes
    iterations: int

    def fits(self, salt: bytes, iterations: int) -> bool:
        """Whether a server with this salt and count accepts these keys."""
        return self.salt == salt and self.iterations == iterations


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to log in to a node: the user and what is known of the password.

    `md5_hash` is the stored form `md5` + 32 hexadecimal digits; it serves only nodes that ask for md5.
    """

    user: str
    password: str | None = field(default=None, repr=False)
    scram_keys: ScramKeys | None = field(default=None, repr=False)
    md5_hash: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ScramSecret:
    """The stored form: enough to check a client, too little to be one."""

    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __str__(self) -> str:
        salt, stored, server = (b64encode(x).decode() for x in (self.salt, self.stored_key, self.server_key))
        return f"{SCRAM}${self.iterations}:{salt}${stored}:{server}"


def parse_secret(text: str) -> ScramSecret | None:
    """`SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`, or None if it isn't of that form."""
    parts = text.split("$")
    if len(parts) != 3 or parts[0] != SCRAM:
        return None
    count, _, salt = parts[1].partition(":")
    stored, _, server = parts[2].partition(":")
    try:
        secret = ScramSecret(int(count), _decode(salt), _decode(stored), _decode(server))
    except (ValueError, ProtocolViolation):
        return None
    if secret.iterations < 1 or len(secret.stored_key) != 32 or len(secret.server_key) != 32:
        return None
    return secret


def is_md5(stored: str) -> bool:
    """Whether a stored password is an md5 hash, by PostgreSQL's rule."""
    return len(stored) == 35 and stored.startswith("md5") and not stored[3:].strip("0123456789abcdef")


def saslprep(password: str) -> str:
    """RFC 4013; where that forbids the text, the text as it is (PostgreSQL does the same)."""
    if password.isascii():
        return password
    mapped = "".join(" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    text = unicodedata.normalize("NFKC", mapped)
    if not text or any(_prohibited(c) for c in text):
        return password
    if any(stringprep.in_table_d1(c) for c in text) and (
        any(stringprep.in_table_d2(c) for c in text)
        or not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1]))
    ):
        return password
    return text


def _prohibited(c: str) -> bool:
    return (
        stringprep.in_table_a1(c)
        or stringprep.in_table_c12(c)
        or stringprep.in_table_c21_c22(c)
        or stringprep.in_table_c3(c)
        or stringprep.in_table_c4(c)
        or stringprep.in_table_c5(c)
        or stringprep.in_table_c6(c)
        or stringprep.in_table_c7(c)
        or stringprep.in_table_c8(c)
        or stringprep.in_table_c9(c)
    )


def derive_keys(password: str, salt: bytes, iterations: int) -> ScramKeys:
    """The slow part: PBKDF2 takes about 1 ms for 4,096 iterations and releases the GIL."""
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    return ScramKeys(_hmac(salted, b"Client Key"), _hmac(salted, b"Server Key"), salt, iterations)


def secret_of(keys: ScramKeys) -> ScramSecret:
    """The stored form of a password whose keys are known."""
    return ScramSecret(keys.iterations, keys.salt, hashlib.sha256(keys.client_key).digest(), keys.server_key)


def user_salt(user: str, nonce: bytes) -> bytes:
    """A salt of 16 bytes that stays the same for a user as long as `nonce` does."""
    return _hmac(nonce, user.encode())[:16]


def mock_secret(user: str, nonce: bytes) -> ScramSecret:
    """For a user who doesn't exist or has no password: looks like the others, and no proof fits it."""
    key = _hmac(nonce, b"no password " + user.encode())
    return ScramSecret(DEFAULT_ITERATIONS, user_salt(user, nonce), key, key)


class ScramServer:
    """The server's side of one exchange: `first`, then `final`.

    `binding` is the hash of our own certificate (see `certificate_hash`) where PLUS was offered, else
    None. `nonce` is printable ASCII without commas, fresh for each exchange.
    """

    def __init__(self, secret: ScramSecret, nonce: str, binding: bytes | None = None) -> None:
        self._secret = secret
        self._nonce = nonce
        self._binding = binding
        self._header = b""
        self._plus = False
        self._auth_message = ""
        self.keys: ScramKeys | None = None
        """After `final`: the keys that the client has proved."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return (SCRAM,) if self._binding is None else (SCRAM_PLUS, SCRAM)

    def first(self, mechanism: str, data: bytes) -> bytes:
        """client-first-message in, server-first-message out.

        Raises ProtocolViolation for a malformed one, LoginError when it says that we can't bind
        although PLUS was offered (a downgrade), Unsupported for authorization identities.
        """
        if mechanism not in self.mechanisms:
            raise ProtocolViolation("client selected an invalid SASL authentication mechanism")
        self._plus = mechanism == SCRAM_PLUS
        text = _text(data)
        flag, _, rest = text.partition(",")
        if flag.startswith("p="):
            if not self._plus:
                raise _malformed("The client selected a mechanism without channel binding but sends binding data.")
            if flag[2:] != _BINDING:
                raise ProtocolViolation("unsupported SCRAM channel-binding type")
        elif flag not in ("n", "y"):
            raise _malformed("Unexpected channel-binding flag.")
        elif self._plus:
            raise _malformed("The client selected channel binding but sends no binding data.")
        elif flag == "y" and self._binding is not None:
            raise LoginError(
                "SCRAM channel binding negotiation error",
                detail="The client supports SCRAM channel binding but thinks the server does not.",
            )
        identity, _, bare = rest.partition(",")
        if identity:
            if identity.startswith("a="):
                raise Unsupported("client uses authorization identity, but it is not supported")
            raise _malformed("Unexpected attribute in client-first-message.")
        if bare.startswith("m="):
            raise Unsupported("client requires an unsupported SCRAM extension")
        fields = bare.split(",")
        # The user name here is ignored: the startup packet names the user, and libpq sends it empty.
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise _malformed("User name or nonce is missing in client-first-message.")
        client_nonce = fields[1][2:]
        if not client_nonce or not all("!" <= c <= "~" for c in client_nonce):
            raise _malformed("The nonce has characters that are not printable.")
        self._header = f"{flag},,".encode()
        self._nonce = client_nonce + self._nonce
        reply = f"r={self._nonce},s={b64encode(self._secret.salt).decode()},i={self._secret.iterations}"
        self._auth_message = f"{bare},{reply}"
        return reply.encode()

    def final(self, data: bytes) -> bytes | None:
        """client-final-message in; server-final-message out, or None where the proof is wrong."""
        text = _text(data)
        without_proof, comma, proof = text.rpartition(",p=")
        fields = without_proof.split(",")
        if not comma or len(fields) < 2 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
            raise _malformed("An attribute is missing in client-final-message.")
        bound = self._header + (self._binding or b"" if self._plus else b"")
        if not hmac.compare_digest(_decode(fields[0][2:]), bound):
            raise LoginError("SCRAM channel binding check failed")
        if fields[1][2:] != self._nonce:
            raise ProtocolViolation("invalid SCRAM response", detail="Nonce does not match.")
        given = _decode(proof)
        if len(given) != 32:
            raise _malformed("The proof has a wrong length.")
        message = f"{self._auth_message},{without_proof}".encode("latin-1")
        client_key = _xor(given, _hmac(self._secret.stored_key, message))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._secret.stored_key):
            return None
        self.keys = ScramKeys(client_key, self._secret.server_key, self._secret.salt, self._secret.iterations)
        return b"v=" + b64encode(_hmac(self._secret.server_key, message))


class ScramClient:
    """The client's side of one exchange: `first`, `challenge`, `final`, `verify`.

    `binding` is the hash of the server's certificate where PLUS is to be used, else None.
    `could_bind` tells a server that offered no PLUS that we would have (flag `y`: it detects a
    downgrade).
    """

    def __init__(self, nonce: str, binding: bytes | None = None, *, could_bind: bool = False) -> None:
        self._nonce = nonce
        self._binding = binding
        self._header = f"p={_BINDING},," if binding is not None else "y,," if could_bind else "n,,"
        self._bare = f"n=,r={nonce}"
        self._server_first = ""
        self._signature = b""

    @property
    def mechanism(self) -> str:
        return SCRAM if self._binding is None else SCRAM_PLUS

    def first(self) -> bytes:
        return (self._header + self._bare).encode()

    def challenge(self, data: bytes) -> tuple[bytes, int]:
        """server-first-message in; the salt and iteration count to derive keys with."""
        self._server_first = _text(data)
        fields = self._server_first.split(",")
        if len(fields) < 3 or [f[:2] for f in fields[:3]] != ["r=", "s=", "i="]:
            raise _malformed("An attribute is missing in server-first-message.")
        nonce, salt, count = (f[2:] for f in fields[:3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ProtocolViolation("invalid SCRAM response", detail="Nonce does not match.")
        self._nonce = nonce
        if not count.isdecimal() or len(count) > 10 or not 1 <= int(count) <= MAX_ITERATIONS:
            raise _malformed("The iteration count is out of range.")
        return _decode(salt), int(count)

    def final(self, keys: ScramKeys) -> bytes:
        """client-final-message for keys that fit the challenge."""
        bound = b64encode(self._header.encode() + (self._binding or b"")).decode()
        without_proof = f"c={bound},r={self._nonce}"
        message = f"{self._bare},{self._server_first},{without_proof}".encode("latin-1")
        stored_key = hashlib.sha256(keys.client_key).digest()
        self._signature = _hmac(keys.server_key, message)
        proof = _xor(keys.client_key, _hmac(stored_key, message))
        return f"{without_proof},p={b64encode(proof).decode()}".encode("latin-1")

    def verify(self, data: bytes) -> bool:
        """Whether server-final-message proves that the server knows the password's keys."""
        text = _text(data)
        return text.startswith("v=") and hmac.compare_digest(_decode(text[2:].split(",")[0]), self._signature)


def md5_hash(password: str, user: str) -> str:
    """The stored form: `md5` and the digest of password and user name."""
    return "md5" + hashlib.md5(password.encode() + user.encode(), usedforsecurity=False).hexdigest()


def md5_response(stored: str, salt: bytes) -> str:
    """What a client answers to AuthenticationMD5Password with these 4 bytes of salt."""
    return "md5" + hashlib.md5(stored[3:].encode() + salt, usedforsecurity=False).hexdigest()


# Signature algorithms by the DER of their object identifier; md5 and SHA-1 count as SHA-256 (RFC 5929, 4.1).
_SIGNATURE_HASH = {
    bytes.fromhex("2a864886f70d010104"): "sha256",  # md5WithRSAEncryption
    bytes.fromhex("2a864886f70d010105"): "sha256",  # sha1WithRSAEncryption
    bytes.fromhex("2a864886f70d01010b"): "sha256",
    bytes.fromhex("2a864886f70d01010c"): "sha384",
    bytes.fromhex("2a864886f70d01010d"): "sha512",
    bytes.fromhex("2a864886f70d01010e"): "sha224",
    bytes.fromhex("2a8648ce3d0401"): "sha256",  # ecdsa-with-SHA1
    bytes.fromhex("2a8648ce3d040301"): "sha224",
    bytes.fromhex("2a8648ce3d040302"): "sha256",
    bytes.fromhex("2a8648ce3d040303"): "sha384",
    bytes.fromhex("2a8648ce3d040304"): "sha512",
}
_RSASSA_PSS = bytes.fromhex("2a864886f70d01010a")
_DIGEST = {
    bytes.fromhex("2b0e03021a"): "sha256",  # SHA-1
    bytes.fromhex("608648016503040201"): "sha256",
    bytes.fromhex("608648016503040202"): "sha384",
    bytes.fromhex("608648016503040203"): "sha512",
    bytes.fromhex("608648016503040204"): "sha224",
}


def certificate_hash(der: bytes) -> bytes | None:
    """Channel binding data `tls-server-end-point` (RFC 5929, 4) of a certificate in DER.

    None where the signature names no hash (Ed25519, Ed448) or the certificate can't be read: then
    there is no channel binding.
    """
    try:
        certificate = _der(der, 0)[1]
        signed_end = _der(certificate, 0)[2]
        algorithm = _der(certificate, signed_end)[1]
        _, oid, end = _der(algorithm, 0)
        name = _SIGNATURE_HASH.get(oid)
        if oid == _RSASSA_PSS:
            parameters = _der(algorithm, end)[1]
            if not parameters or parameters[0] != 0xA0:
                name = "sha256"  # the default is SHA-1, which counts as SHA-256
            else:
                name = _DIGEST.get(_der(_der(_der(parameters, 0)[1], 0)[1], 0)[1])
    except IndexError:
        return None
    return hashlib.new(name, der).digest() if name else None


def _der(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag, content and end of the DER element at `at`."""
    tag, length, start = data[at], data[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[start : start + size], "big"), start + size
    if start + length > len(data):
        raise IndexError
    return tag, data[start : start + length], start + length


def _text(data: bytes) -> str:
    """One character a byte: names may be in any encoding, and the signatures are over the bytes."""
    if b"\0" in data:
        raise _malformed("It contains a zero byte.")
    return data.decode("latin-1")


def _decode(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise _malformed("An attribute is not valid base64.") from None


def _malformed(detail: str) -> ProtocolViolation:
    return ProtocolViolation("malformed SCRAM message", detail=detail)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))
