"""Readers of message bodies that the proxy looks into. Bytes in, plain values out.

All raise ProtocolViolation on a body that does not fit its own lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from ..errors import ProtocolViolation


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each whole message."""
    pos = 0
    while len(data) - pos >= 5:
        end = pos + 1 + int.from_bytes(data[pos + 1 : pos + 5], "big")
        if end < pos + 5:
            raise ProtocolViolation("a message is shorter than its length")
        yield data[pos], data[pos + 5 : end]
        pos = end


def error_fields(body: bytes) -> dict[str, str]:
    """Fields of an ErrorResponse or NoticeResponse by field code; undecodable bytes are replaced."""
    return {part[:1].decode("latin-1"): part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}


def parameter_status(body: bytes) -> tuple[str, str]:
    """Name and value."""
    parts = body.split(b"\0")
    if len(parts) != 3:
        raise ProtocolViolation("malformed ParameterStatus message")
    return parts[0].decode("utf-8", "replace"), parts[1].decode("utf-8", "replace")


def data_row(body: bytes) -> list[bytes | None]:
    """Column values of a DataRow."""
    count = int.from_bytes(body[:2], "big")
    pos = 2
    values: list[bytes | None] = []
    for _ in range(count):
        length = int.from_bytes(body[pos : pos + 4], "big", signed=True)
        pos += 4
        if length < 0:
            values.append(None)
            continue
        if pos + length > len(body):
            raise ProtocolViolation("malformed DataRow message")
        values.append(body[pos : pos + length])
        pos += length
    return values


def row_types(body: bytes) -> list[tuple[str, int]]:
    """(name, type OID) of each column of a RowDescription."""
    count = int.from_bytes(body[:2], "big")
    pos = 2
    columns = []
    for _ in range(count):
        end = body.find(b"\0", pos)
        if end < 0 or end + 19 > len(body):
            raise ProtocolViolation("malformed RowDescription message")
        columns.append((body[pos:end].decode("utf-8", "replace"), int.from_bytes(body[end + 7 : end + 11], "big")))
        pos = end + 19
    return columns


def row_shape(body: bytes) -> bytes:
    """A digest of what PostgreSQL holds a prepared statement's result to: name, type OID and modifier of each
    column. `body` is that of a RowDescription; b"" stands for NoData."""
    digest = blake2b(body[:2], digest_size=16)
    pos = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        end = body.find(b"\0", pos)
        if end < 0 or end + 19 > len(body):
            raise ProtocolViolation("malformed RowDescription message")
        digest.update(body[pos : end + 1])
        digest.update(body[end + 7 : end + 11])
        digest.update(body[end + 13 : end + 17])
        pos = end + 19
    return digest.digest()
