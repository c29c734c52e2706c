"""What a client sends, cut into messages and units. Sans-I/O.

Owns the rules of framing towards clients: which message types exist, how long they may be, and what
an extended message names. Must not know pools, servers or routing. Called by `dataplane.client`.
"""

from __future__ import annotations

from typing import Final

from ..errors import ProtocolViolation
from .codes import MAX_MESSAGE

QUERY: Final = 0x51
PARSE: Final = 0x50
BIND: Final = 0x42
DESCRIBE: Final = 0x44
EXECUTE: Final = 0x45
CLOSE: Final = 0x43
SYNC: Final = 0x53
FLUSH: Final = 0x48
FUNCTION: Final = 0x46
COPY_DATA: Final = 0x64
COPY_DONE: Final = 0x63
COPY_FAIL: Final = 0x66
TERMINATE: Final = 0x58

EXTENDED: Final = frozenset((PARSE, BIND, DESCRIBE, EXECUTE, CLOSE))
COPY: Final = frozenset((COPY_DATA, COPY_DONE, COPY_FAIL))
KNOWN: Final = EXTENDED | COPY | {QUERY, SYNC, FLUSH, FUNCTION, TERMINATE}

_BARE: Final = frozenset((SYNC, FLUSH, TERMINATE, COPY_DONE))
"""These have no body."""
_SMALL: Final = frozenset((DESCRIBE, EXECUTE, CLOSE, SYNC, FLUSH, TERMINATE, COPY_DONE, COPY_FAIL))
"""PostgreSQL holds these to 10,000 bytes (PQ_SMALL_MESSAGE_LIMIT)."""

BATCH_LIMIT: Final = 64 * 1024
"""A batch, or a statement, longer than this is routed before it is whole and streamed."""


def check_header(kind: int, length: int) -> None:
    """Refuse what PostgreSQL would refuse on seeing a header (`SocketBackend` in postgres.c)."""
    if kind not in KNOWN:
        raise ProtocolViolation(f"invalid frontend message type {kind}")
    if length != 4 and kind in _BARE:
        raise ProtocolViolation("invalid message format")
    if length < 4 or length - 4 > (10_000 if kind in _SMALL else MAX_MESSAGE):
        raise ProtocolViolation("invalid message length")


class Op:
    """One extended message.

    Attributes:
        kind: the message type.
        raw: the whole message (for a streamed one, what has come of it so far).
        target: for Describe and Close `S` or `P` as an int; else 0.
        name: the statement named (Parse, Bind, Describe S, Close S), else b"".
        portal: the portal named (Bind, Execute, Describe P, Close P), else b"".
        rest: position in `raw` just behind the names.
        sql, oids: for Parse, the text and the raw tail of parameter types.
        moved: whether something before it in its batch may change what a Parse finds.
    """

    __slots__ = ("kind", "moved", "name", "oids", "portal", "raw", "rest", "sql", "statement", "target")

    def __init__(self, kind: int, raw: bytes) -> None:
        self.kind = kind
        self.raw = raw
        self.target = 0
        self.name = b""
        self.portal = b""
        self.rest = 5
        self.sql = b""
        self.oids = b""
        self.statement: object = None
        self.moved = False


def read_op(raw: bytes) -> Op:
    """Read an extended message; ProtocolViolation when its strings do not fit (as PostgreSQL: an
    ERROR for the batch, 08P01; the connection lives)."""
    kind = raw[0]
    op = Op(kind, raw)
    if kind == PARSE:
        op.name, pos = _string(raw, 5)
        op.sql, pos = _string(raw, pos)
        op.oids = raw[pos:]
        if len(op.oids) < 2 or len(op.oids) != 2 + 4 * int.from_bytes(op.oids[:2], "big"):
            raise _malformed()
        op.rest = pos
    elif kind == BIND:
        op.portal, pos = _string(raw, 5)
        op.name, op.rest = _string(raw, pos)
    elif kind == EXECUTE:
        op.portal, op.rest = _string(raw, 5)
        if len(raw) != op.rest + 4:
            raise _malformed()
    else:
        if len(raw) < 7:
            raise _malformed()
        op.target = raw[5]
        name, op.rest = _string(raw, 6)
        if op.rest != len(raw):
            raise _malformed()
        if op.target == 0x53:
            op.name = name
        elif op.target == 0x50:
            op.portal = name
        else:
            verb = "CLOSE" if kind == CLOSE else "DESCRIBE"
            raise _error(f"invalid {verb} message subtype {op.target}")
    return op


def _string(raw: bytes, pos: int) -> tuple[bytes, int]:
    end = raw.find(b"\0", pos)
    if end < 0:
        raise _malformed()
    return raw[pos:end], end + 1


def _malformed() -> ProtocolViolation:
    return _error("invalid message format")


def _error(text: str) -> ProtocolViolation:
    error = ProtocolViolation(text)
    error.severity = "ERROR"
    return error


def query_text(raw: bytes) -> bytes:
    """The text of a Query. A malformed one may have none: compiled, raw[5:-1] would then raise SystemError."""
    return raw[5:-1] if len(raw) > 5 else b""
