"""The first packet of a connection, the `options` string in it, and the PROXY protocol header before it.

Owns how these bytes are read and what is refused; it must not decide who may log in. Called by
`wire.login` (which frames and feeds) and by `dataplane.accept` (preamble and PROXY header).
Sources: PostgreSQL manual 55.2.1, 55.2.11, 55.7; the PROXY protocol specification, version 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from ..errors import LoginError, ProtocolViolation, TridentError, Unsupported
from . import codes

NEWEST_MINOR = 2
"""The newest minor of protocol 3 that is granted."""
LONG_KEY_MINOR = 2
"""From this minor on a cancel key may be longer than 4 bytes."""
NAME_BYTES = 63
"""PostgreSQL cuts user and database names to this (NAMEDATALEN - 1)."""
PROXY_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
PROXY_FIXED = 16
"""Bytes of a PROXY v2 header before the part whose length it tells."""
MAX_PROXY = 4096
"""Bytes of that part; addresses need 36, the rest are extensions that are skipped."""

_SESSION_KEYS = frozenset(("user", "database", "options", "replication"))
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class SslRequest:
    """The client asks for TLS."""


@dataclass(frozen=True, slots=True)
class GssRequest:
    """The client asks for GSSAPI encryption."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The client asks to cancel what the session of `pid` and `key` is doing."""

    pid: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Startup:
    """A StartupMessage of protocol 3.

    `minor` is what was granted. `unknown` names the `_pq_.` options we don't know. `negotiate` says
    that a NegotiateProtocolVersion is owed before anything else. `settings` are the session settings,
    those out of `options` included; `replication` is "" for an ordinary session.
    """

    minor: int
    negotiate: bool
    unknown: tuple[str, ...]
    user: str
    database: str
    replication: str
    settings: dict[str, str]


FirstPacket = SslRequest | GssRequest | CancelRequest | Startup


def packet_length(head: bytes) -> int:
    """Length of a first packet from its first 4 bytes (or more), the 4 bytes included.

    Raises ProtocolViolation outside 8 .. MAX_STARTUP.
    """
    length = int.from_bytes(head[:4], "big")
    if not 8 <= length <= codes.MAX_STARTUP:
        raise ProtocolViolation("invalid length of startup packet")
    return length


def parse_first(packet: bytes) -> FirstPacket:
    """Read one whole first packet.

    Raises ProtocolViolation for a bad layout, Unsupported for another protocol version and LoginError
    for a startup that can't become a session (no user, bad `options`).
    """
    if packet_length(packet) != len(packet):
        raise ProtocolViolation("invalid length of startup packet")
    code = int.from_bytes(packet[4:8], "big")
    if code == codes.CANCEL_REQUEST:
        if not 4 <= len(packet) - 12 <= 256:
            raise ProtocolViolation("invalid length of cancel request")
        return CancelRequest(int.from_bytes(packet[8:12], "big"), packet[12:])
    if code == codes.SSL_REQUEST and len(packet) == 8:
        return SslRequest()
    if code == codes.GSSENC_REQUEST and len(packet) == 8:
        return GssRequest()
    return _startup(code, packet[8:])


def unsupported_version(code: int) -> Unsupported:
    """The error for a version (or a repeated request code), in PostgreSQL's words."""
    return Unsupported(f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}: server supports 3.0 to 3.2")


def _startup(version: int, body: bytes) -> Startup:
    if version >> 16 != 3:
        raise unsupported_version(version)
    asked = version & 0xFFFF
    raw = _pairs(body)
    unknown = tuple(_text(name, name) for name in raw if name.startswith(b"_pq_."))
    values = {_text(k, k): _text(v, k) for k, v in raw.items() if not k.startswith(b"_pq_.")}
    user = _name(values.get("user", ""))
    if not user:
        raise LoginError("no PostgreSQL user name specified in startup packet")
    settings = split_options(values.get("options", ""))
    settings.update((k, v) for k, v in values.items() if k not in _SESSION_KEYS)
    return Startup(
        minor=min(asked, NEWEST_MINOR),
        negotiate=asked > NEWEST_MINOR or bool(unknown),
        unknown=unknown,
        user=user,
        database=_name(values.get("database", "")) or user,
        replication=_replication(values.get("replication", "")),
        settings=settings,
    )


def _pairs(body: bytes) -> dict[bytes, bytes]:
    """Name and value pairs; the last byte of the packet must be the terminator and nothing may follow it."""
    parts = body.split(b"\0")
    # "a\0b\0\0" splits into a, b, "", "": pairs, the terminator, and what is behind the last zero.
    if len(parts) < 2 or len(parts) % 2 or parts[-1] or parts[-2] or b"" in parts[:-2:2]:
        raise ProtocolViolation("invalid startup packet layout: expected terminator as last byte")
    return dict(zip(parts[:-2:2], parts[1:-2:2], strict=True))


def _text(value: bytes, name: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        if name == b"application_name":  # PostgreSQL replaces what is not ASCII there
            return value.decode("ascii", "replace").replace("\ufffd", "?")
        shown = name.decode("ascii", "replace")
        raise LoginError(f'startup parameter "{shown}" is not valid UTF-8', sqlstate="22021") from None


def _name(value: str) -> str:
    return value.encode()[:NAME_BYTES].decode("utf-8", "ignore")


def _replication(value: str) -> str:
    """`database`, another true value as it came, or "" for false; prefixes count, as in PostgreSQL."""
    word = value.lower()
    if not word or word == "database":
        return word
    if word != "o":  # the only prefix of both "on" and "off"
        if any(true.startswith(word) for true in _TRUE):
            return value
        if any(false.startswith(word) for false in _FALSE):
            return ""
    raise LoginError(
        f'invalid value for parameter "replication": "{value}"',
        sqlstate="22023",
        hint='Valid values are: "false", 0, "true", 1, "database".',
    )


def split_options(text: str) -> dict[str, str]:
    """Settings of an `options` string: `-c name=value`, `--name=value`, `-e` and `-S kB`.

    White space separates, a backslash takes the next character as it is (manual, 34.1.2 `options`);
    in names `-` means `_`. Raises LoginError with PostgreSQL's SQLSTATE otherwise.
    """
    settings: dict[str, str] = {}
    words = iter(_words(text))
    for word in words:
        if word == "--":
            if (rest := next(words, None)) is not None:
                raise _bad_argument(rest)
        elif word.startswith("--"):
            name, value = _assignment(word[2:], word)
            settings[name] = value
        elif word.startswith("-c"):
            argument = word[2:] or next(words, None)
            if argument is None:
                raise _bad_argument(word)
            name, value = _assignment(argument, f"-c {argument}")
            settings[name] = value
        elif word == "-e":
            settings["datestyle"] = "euro"
        elif word.startswith("-S"):
            argument = word[2:] or next(words, None)
            if argument is None:
                raise _bad_argument(word)
            settings["work_mem"] = argument
        else:
            raise _bad_argument(word)
    return settings


def _words(text: str) -> list[str]:
    words: list[list[str]] = []
    between = True
    characters = iter(text)
    for c in characters:
        if c.isspace():
            between = True
            continue
        if between:
            words.append([])
            between = False
        words[-1].append(next(characters, "") if c == "\\" else c)
    return ["".join(word) for word in words]


def _assignment(text: str, shown: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise LoginError(f"{shown} requires a value", sqlstate="42601")
    name = name.replace("-", "_")
    # Such a name would be taken for a key of the startup packet when the settings go to a node.
    if not name or name in _SESSION_KEYS or name.startswith("_pq_."):
        raise LoginError(f'unrecognized configuration parameter "{name}"', sqlstate="42704")
    return name, value


def _bad_argument(word: str) -> TridentError:
    return LoginError(f"invalid command-line argument for server process: {word}", sqlstate="42601")


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A PROXY protocol v2 header: its whole length in bytes and the client's address.

    `address` is None for a connection of the proxy in front itself (command LOCAL) or an unknown family.
    """

    length: int
    address: tuple[str, int] | None


def proxy_length(fixed: bytes) -> int:
    """Length of a whole PROXY v2 header from its first 16 bytes; raises ProtocolViolation."""
    if fixed[:12] != PROXY_SIGNATURE or fixed[12] >> 4 != 2 or fixed[12] & 0xF > 1:
        raise ProtocolViolation("malformed PROXY protocol header")
    rest = int.from_bytes(fixed[14:16], "big")
    if rest > MAX_PROXY:
        raise ProtocolViolation("PROXY protocol header is too long")
    return PROXY_FIXED + rest


def parse_proxy(header: bytes) -> ProxyHeader:
    """Read a whole PROXY v2 header; extensions behind the addresses are skipped."""
    length = proxy_length(header)
    local = header[12] & 0xF == 0
    family, rest = header[13] >> 4, header[PROXY_FIXED:length]
    if local or family not in (1, 2):
        return ProxyHeader(length, None)
    if family == 1:
        if len(rest) < 12:
            raise ProtocolViolation("malformed PROXY protocol header")
        return ProxyHeader(length, (str(IPv4Address(rest[:4])), int.from_bytes(rest[8:10], "big")))
    if len(rest) < 36:
        raise ProtocolViolation("malformed PROXY protocol header")
    return ProxyHeader(length, (str(IPv6Address(rest[:16])), int.from_bytes(rest[32:34], "big")))
