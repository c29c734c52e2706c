"""Logging in, both ways, without I/O: `NodeLogin` (we log in to a node) and `ClientLogin` (a client to us).

Both take bytes and return what came of them; what is slow or needs a look-up (deriving keys, finding a
stored password) is asked of the caller and given back by a method. They must not choose a
method, read a clock or a socket. Called by `dataplane.connect` and `dataplane.authenticate`.
Source: PostgreSQL manual 55.2.1 and 55.3.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..errors import LoginError, NodeRefused, ProtocolViolation
from . import auth, build, codes, parse, startup
from .auth import Credentials, ScramClient, ScramKeys, ScramSecret, ScramServer
from .startup import CancelRequest, Startup

ChannelBinding = Literal["disable", "prefer", "require"]


@dataclass(frozen=True, slots=True)
class Send:
    """These bytes go to the peer now."""

    data: bytes


# ---------------------------------------------------------------------------------- to a node


@dataclass(frozen=True, slots=True)
class DeriveKeys:
    """Keys for this salt and count are needed; they go back by `NodeLogin.use_keys`."""

    salt: bytes
    iterations: int


@dataclass(frozen=True, slots=True)
class NodeReady:
    """The node is ready for queries. `leftover` is what came behind, if anything."""

    parameters: dict[str, str]
    pid: int
    key: bytes
    leftover: bytes


NodeEvent = Send | DeriveKeys | NodeReady


class NodeLogin:
    """We log in to a node. Its states: authenticating, (keys wanted), starting, ready.

    `params` are startup parameters other than `user`, which is the credentials'. `certificate` is the
    node's certificate in DER where the link is TLS. `nonce` is fresh, printable and has no commas.
    """

    def __init__(
        self,
        credentials: Credentials,
        params: Mapping[str, str],
        *,
        nonce: str,
        certificate: bytes | None = None,
        channel_binding: ChannelBinding = "prefer",
    ) -> None:
        self._credentials = credentials
        self._params = params
        self._nonce = nonce
        self._binding_wanted = channel_binding
        usable = certificate is not None and channel_binding != "disable"
        self._binding = auth.certificate_hash(certificate) if usable and certificate is not None else None
        self._scram: ScramClient | None = None
        self._verified = False
        self._authenticated = False
        self._frames = Frames()
        self._parameters: dict[str, str] = {}
        self._pid, self._key = 0, b""

    def start(self) -> bytes:
        """The StartupMessage."""
        return build.startup({"user": self._credentials.user, **self._params}, codes.PROTOCOL_3_0)

    def feed(self, data: bytes) -> list[NodeEvent]:
        """Bytes from the node; raises NodeRefused for its error and ProtocolViolation for nonsense."""
        out: list[NodeEvent] = []
        self._frames.add(data)
        for kind, body in self._frames:
            if (event := self._message(kind, body)) is not None:
                out.append(event)
        return out

    def use_keys(self, keys: ScramKeys) -> bytes:
        """The answer to DeriveKeys; the bytes to send."""
        assert self._scram is not None, "no keys were asked for"
        return build.message(b"p", self._scram.final(keys))

    def _message(self, kind: int, body: bytes) -> NodeEvent | None:
        if kind == 0x45:  # E
            raise NodeRefused(parse.error_fields(body))
        if kind == 0x4E:  # N: a notice at login concerns no client
            return None
        if not self._authenticated:
            if kind == 0x52 and len(body) >= 4:  # R
                return self._authentication(body)
            if kind == 0x76:  # v: 3.0 without options is all that we ask for
                return None
        elif kind == 0x53:  # S
            name, value = parse.parameter_status(body)
            self._parameters[name] = value
            if len(self._parameters) > codes.MAX_PARAMETERS:
                raise ProtocolViolation("the server reports too many parameters")
            return None
        elif kind == 0x4B and len(body) >= 8:  # K
            self._pid, self._key = int.from_bytes(body[:4], "big"), body[4:]
            return None
        elif kind == 0x5A and body == b"I":  # Z
            rest = self._frames.take_rest()
            if rest and rest[0] not in codes.UNASKED:
                raise ProtocolViolation("the server said more than its login")
            return NodeReady(self._parameters, self._pid, self._key, rest)
        raise ProtocolViolation(f"unexpected message {chr(kind)!r} from the server during login")

    def _authentication(self, body: bytes) -> Send | DeriveKeys | None:
        method, rest = int.from_bytes(body[:4], "big"), body[4:]
        if self._scram is not None and method not in (
            codes.AUTH_SASL_CONTINUE,
            codes.AUTH_SASL_FINAL,
            codes.AUTH_OK,
        ):
            raise ProtocolViolation("the server changed its authentication method during login")
        if method == codes.AUTH_SASL:
            return self._choose_scram(rest)
        if method in (codes.AUTH_SASL_CONTINUE, codes.AUTH_SASL_FINAL):
            return self._scram_step(method, rest)
        if self._scram is not None and not self._verified:
            raise ProtocolViolation("the server ended SCRAM without proving that it knows the password")
        if self._binding_wanted == "require" and (self._scram is None or self._scram.mechanism != auth.SCRAM_PLUS):
            raise _cannot("channel binding is required, and the server asks for no SCRAM-SHA-256-PLUS")
        if method == codes.AUTH_OK:
            self._authenticated = True
            return None
        if method == codes.AUTH_CLEARTEXT:
            if self._credentials.password is None:
                raise _cannot("the server asks for the password in clear, and none is known")
            return Send(build.message(b"p", build.cstr(self._credentials.password)))
        if method == codes.AUTH_MD5 and len(rest) == 4:
            stored = self._credentials.md5_hash
            if self._credentials.password is not None:
                stored = auth.md5_hash(self._credentials.password, self._credentials.user)
            if stored is None:
                raise _cannot("the server asks for an md5 password, and neither password nor hash is known")
            return Send(build.message(b"p", build.cstr(auth.md5_response(stored, rest))))
        raise _cannot(f"the server asks for authentication method {method}, which is not supported")

    def _choose_scram(self, rest: bytes) -> Send:
        offered = rest.rstrip(b"\0").decode("latin-1").split("\0")
        plus = auth.SCRAM_PLUS in offered and self._binding is not None
        if not plus and self._binding_wanted == "require":
            raise _cannot("channel binding is required, and the server offers no SCRAM-SHA-256-PLUS over TLS")
        if not plus and auth.SCRAM not in offered:
            raise _cannot("the server offers no SASL mechanism that is supported")
        if self._credentials.password is None and self._credentials.scram_keys is None:
            raise _cannot("the server asks for SCRAM, and neither password nor keys are known")
        # "y" accuses a server that offers PLUS of a downgrade, so it is for those that don't.
        could_bind = self._binding is not None and auth.SCRAM_PLUS not in offered
        self._scram = ScramClient(self._nonce, self._binding if plus else None, could_bind=could_bind)
        first = self._scram.first()
        head = build.cstr(self._scram.mechanism) + len(first).to_bytes(4, "big")
        return Send(build.message(b"p", head + first))

    def _scram_step(self, method: int, rest: bytes) -> Send | DeriveKeys | None:
        if self._scram is None:
            raise ProtocolViolation("the server goes on with SASL that was not begun")
        if method == codes.AUTH_SASL_FINAL:
            if not self._scram.verify(rest):
                raise ProtocolViolation("the server does not know the password: wrong SCRAM signature")
            self._verified = True
            return None
        salt, iterations = self._scram.challenge(rest)
        keys = self._credentials.scram_keys
        if keys is not None and keys.fits(salt, iterations):
            return Send(self.use_keys(keys))
        if self._credentials.password is None:
            raise _cannot(
                "the keys that the client proved don't fit this server's stored password",
                "Give the user the same SCRAM secret on all nodes, or a plain password in the configuration.",
            )
        return DeriveKeys(salt, iterations)


def _cannot(message: str, hint: str = "") -> NodeRefused:
    """A login that can't be done with what we have; like the node's own refusal it says nothing of its health."""
    fields = {"S": "FATAL", "V": "FATAL", "C": "28000", "M": message}
    return NodeRefused({**fields, "H": hint} if hint else fields)


# ---------------------------------------------------------------------------------- from a client


@dataclass(frozen=True, slots=True)
class Password:
    """The client sent its password in clear; the caller checks it."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Proved:
    """The client has proved the stored password (md5 or SCRAM). `keys` are what SCRAM gave away."""

    keys: ScramKeys | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class WrongPassword:
    """It has not. What to answer, and when, is the caller's."""


ClientEvent = Send | Startup | CancelRequest | Password | Proved | WrongPassword


class ClientLogin:
    """A client logs in to us. Its states: first packet, (method wanted), answering, ended.

    `feed` gives a CancelRequest or a Startup; then the caller calls one of `ask_*` (the bytes to send,
    NegotiateProtocolVersion in front where it is owed), and `feed` goes on until Password, Proved or
    WrongPassword. `leftover` is what came behind the last message.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._frames = Frames()
        self._started: Startup | None = None
        self._scram: ScramServer | None = None
        self._scram_chosen = False
        self._final: bytes | None = None
        self._md5: tuple[str | None, bytes] | None = None
        self._asked = self._ended = False

    def feed(self, data: bytes) -> list[ClientEvent]:
        """Bytes from the client. Raises ProtocolViolation, Unsupported or LoginError."""
        if self._started is None:
            return self._first_packet(data)
        self._frames.add(data)
        out: list[ClientEvent] = []
        if self._asked and not self._ended:
            for kind, body in self._frames:
                if kind != 0x70:  # p
                    raise ProtocolViolation(f"expected password response, got message type {kind}")
                event = self._response(body)
                out.append(event)
                if not isinstance(event, Send):
                    break
        return out

    def take_leftover(self) -> bytes:
        """What came behind the login and was not looked at."""
        return self._frames.take_rest()

    def negotiation(self) -> bytes:
        """The NegotiateProtocolVersion that is owed before anything else, at most once; else b""."""
        started = self._started
        assert started is not None, "no startup packet yet"
        if not started.negotiate or self._asked:
            return b""
        return build.negotiate_version(codes.PROTOCOL_3_0 + started.minor, started.unknown)

    def ask_nothing(self) -> bytes:
        """No password is asked for (trust, peer, cert)."""
        owed = self.negotiation()
        self._asked = self._ended = True
        return owed

    def ask_password(self) -> bytes:
        """AuthenticationCleartextPassword."""
        return self._ask(codes.AUTH_CLEARTEXT, b"")

    def ask_md5(self, stored: str | None, salt: bytes) -> bytes:
        """AuthenticationMD5Password. `stored` is the hash (None: nothing will fit), `salt` 4 fresh bytes."""
        self._md5 = (stored, salt)
        return self._ask(codes.AUTH_MD5, salt)

    def ask_scram(self, secret: ScramSecret, nonce: str, binding: bytes | None) -> bytes:
        """AuthenticationSASL; `binding` is the hash of our certificate where the client came over TLS."""
        self._scram = ScramServer(secret, nonce, binding)
        return self._ask(codes.AUTH_SASL, b"".join(map(build.cstr, self._scram.mechanisms)) + b"\0")

    def _ask(self, method: int, body: bytes) -> bytes:
        owed = self.negotiation()
        self._asked = True
        return owed + _authentication(method, body)

    def _first_packet(self, data: bytes) -> list[ClientEvent]:
        self._buffer += data
        if len(self._buffer) < 4:
            return []
        length = startup.packet_length(bytes(self._buffer[:4]))
        if len(self._buffer) < length:
            return []
        packet = bytes(self._buffer[:length])
        first = startup.parse_first(packet)
        if isinstance(first, CancelRequest):
            return [first]
        if not isinstance(first, Startup):
            # Encryption was dealt with before; asked for again, the request is a version that nobody knows.
            raise startup.unsupported_version(int.from_bytes(packet[4:8], "big"))
        self._started = first
        self._frames.add(bytes(self._buffer[length:]))
        self._buffer.clear()
        return [first]

    def _response(self, body: bytes) -> Send | Password | Proved | WrongPassword:
        if self._scram is not None:
            return self._scram_response(self._scram, body)
        self._ended = True
        if not body.endswith(b"\0") or b"\0" in body[:-1]:
            raise ProtocolViolation("invalid password packet size")
        if len(body) == 1:
            raise LoginError("empty password returned by client", sqlstate="28P01")
        if self._md5 is not None:
            stored, salt = self._md5
            fits = stored is not None and hmac.compare_digest(body[:-1], auth.md5_response(stored, salt).encode())
            return Proved(None) if fits else WrongPassword()
        try:
            return Password(body[:-1].decode())
        except UnicodeDecodeError:
            return WrongPassword()

    def _scram_response(self, scram: ScramServer, body: bytes) -> Send | Proved | WrongPassword:
        if not self._scram_chosen:
            self._scram_chosen = True
            end = body.find(b"\0")
            if end < 0 or len(body) < end + 5:
                raise ProtocolViolation("malformed SASLInitialResponse message")
            data = body[end + 5 :]
            if int.from_bytes(body[end + 1 : end + 5], "big") != len(data):
                raise ProtocolViolation("malformed SASLInitialResponse message")
            return Send(_authentication(codes.AUTH_SASL_CONTINUE, scram.first(body[:end].decode("latin-1"), data)))
        self._ended = True
        self._final = scram.final(body)
        return WrongPassword() if self._final is None else Proved(scram.keys)

    def final(self) -> bytes:
        """What goes before AuthenticationOk after Proved: AuthenticationSASLFinal for SCRAM, else b""."""
        if self._final is None:
            return b""
        return _authentication(codes.AUTH_SASL_FINAL, self._final)


def _authentication(method: int, body: bytes) -> bytes:
    return build.message(b"R", method.to_bytes(4, "big") + body)


class Frames:
    """Cuts a stream into messages of at most MAX_AUTH_MESSAGE bytes; for logins and small questions."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        self._buffer += data

    def take_rest(self) -> bytes:
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Whole messages as (type, body); what is incomplete stays. Raises ProtocolViolation."""
        buffer = self._buffer
        while len(buffer) >= 5:
            length = int.from_bytes(buffer[1:5], "big")
            if not 4 <= length <= codes.MAX_AUTH_MESSAGE:
                raise ProtocolViolation("invalid message length during login")
            if len(buffer) < length + 1:
                return
            kind, body = buffer[0], bytes(buffer[5 : length + 1])
            del buffer[: length + 1]
            yield kind, body
