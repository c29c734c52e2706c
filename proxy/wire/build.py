"""Builders of protocol messages. Bytes out, nothing else. `error_response` is the one door by which
an error of the proxy becomes wire bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct

from ..errors import TridentError

_i32 = Struct("!i").pack
_i16 = Struct("!h").pack


def message(kind: bytes, body: bytes = b"") -> bytes:
    """One typed message: `kind` is one byte."""
    return kind + _i32(len(body) + 4) + body


def cstr(text: str | bytes) -> bytes:
    """A zero-terminated string."""
    return (text.encode() if isinstance(text, str) else text) + b"\0"


def startup(params: Mapping[str, str], version: int) -> bytes:
    """A StartupMessage."""
    body = _i32(version) + b"".join(cstr(k) + cstr(v) for k, v in params.items()) + b"\0"
    return _i32(len(body) + 4) + body


def request(code: int) -> bytes:
    """SSLRequest or GSSENCRequest."""
    return _i32(8) + _i32(code)


def cancel(pid: int, key: bytes, code: int = 80877102) -> bytes:
    """A CancelRequest; `key` is 4 bytes (3.0) or up to 256 (3.2)."""
    body = _i32(code) + pid.to_bytes(4, "big") + key
    return _i32(len(body) + 4) + body


def query(sql: str | bytes) -> bytes:
    return message(b"Q", cstr(sql))


def parse(name: bytes, sql: bytes, oids: bytes = b"\0\0") -> bytes:
    """Parse; `oids` is the raw tail: a 16-bit count and that many 32-bit OIDs."""
    return message(b"P", name + b"\0" + sql + b"\0" + oids)


def bind(portal: bytes, statement: bytes, params: Sequence[bytes | None] = ()) -> bytes:
    """Bind with text parameters and text results."""
    body = [cstr(portal), cstr(statement), _i16(0), _i16(len(params))]
    for value in params:
        body.append(_i32(-1) if value is None else _i32(len(value)) + value)
    body.append(_i16(0))
    return message(b"B", b"".join(body))


def describe(kind: bytes, name: bytes) -> bytes:
    return message(b"D", kind + name + b"\0")


def execute(portal: bytes = b"", rows: int = 0) -> bytes:
    return message(b"E", portal + b"\0" + _i32(rows))


def close(kind: bytes, name: bytes) -> bytes:
    return message(b"C", kind + name + b"\0")


SYNC = message(b"S")
FLUSH = message(b"H")
TERMINATE = message(b"X")
COPY_DONE = message(b"c")
PARSE_COMPLETE = message(b"1")
BIND_COMPLETE = message(b"2")
CLOSE_COMPLETE = message(b"3")
NO_DATA = message(b"n")
EMPTY_QUERY = message(b"I")
AUTHENTICATION_OK = message(b"R", _i32(0))


def copy_fail(reason: str) -> bytes:
    return message(b"f", cstr(reason))


def ready(status: int) -> bytes:
    """ReadyForQuery with a status byte (codes.IDLE ...)."""
    return b"Z\0\0\0\5" + bytes((status,))


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", cstr(name) + cstr(value))


def backend_key(pid: int, key: bytes) -> bytes:
    return message(b"K", pid.to_bytes(4, "big") + key)


def command_complete(tag: str) -> bytes:
    return message(b"C", cstr(tag))


def negotiate_version(version: int, unknown: Iterable[str]) -> bytes:
    """NegotiateProtocolVersion: the newest version served (the whole number, as PostgreSQL sends it, although
    its manual speaks of the minor alone) and the options not known."""
    names = list(unknown)
    return message(b"v", _i32(version) + _i32(len(names)) + b"".join(cstr(n) for n in names))


def row_description(columns: Sequence[tuple[str, int]], formats: Sequence[int] = ()) -> bytes:
    """RowDescription of columns: (name, type OID). `formats` are the format codes, one a column; without any
    all are text."""
    body = [_i16(len(columns))]
    for at, (name, oid) in enumerate(columns):
        code = formats[at] if formats else 0
        body.append(cstr(name) + _i32(0) + _i16(0) + _i32(oid) + _i16(-1) + _i32(-1) + _i16(code))
    return message(b"T", b"".join(body))


def data_row(values: Sequence[str | bytes | None]) -> bytes:
    body = [_i16(len(values))]
    for value in values:
        if value is None:
            body.append(_i32(-1))
        else:
            raw = value.encode() if isinstance(value, str) else value
            body.append(_i32(len(raw)) + raw)
    return message(b"D", b"".join(body))


def error_fields(fields: Mapping[str, str], kind: bytes = b"E") -> bytes:
    """ErrorResponse (or NoticeResponse with kind `N`) from field codes."""
    return message(kind, b"".join(k.encode() + cstr(v) for k, v in fields.items()) + b"\0")


def notice(text: str) -> bytes:
    """A NoticeResponse of the proxy's own."""
    return error_fields({"S": "NOTICE", "V": "NOTICE", "C": "00000", "M": text}, kind=b"N")


def error_response(error: TridentError, severity: str = "") -> bytes:
    """The ErrorResponse for an error of the proxy."""
    level = severity or error.severity
    fields = {"S": level, "V": level, "C": error.sqlstate, "M": error.message.replace("\0", " ")}
    if error.detail:
        fields["D"] = error.detail.replace("\0", " ")
    if error.hint:
        fields["H"] = error.hint.replace("\0", " ")
    return error_fields(fields)
