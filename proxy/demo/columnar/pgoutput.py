"""The messages of logical replication by the pgoutput plug-in, protocol version 1, values as text.

Pure: bytes in, values out. Called by `follow`. Source: manual, chapter 55.9 (logical replication messages) and
55.4 (what surrounds them in a replication connection).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from ...errors import ProtocolViolation

_EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970 to 2000."""


class Unchanged(Enum):
    """A value stored out of line (TOAST) that an update did not touch, and so does not repeat."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED
Value = str | None | Unchanged
Row = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """`lsn` is where the transaction will end."""

    lsn: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn` is just behind the commit record: all before it has been sent."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table looks like, before its first change and after it was altered. `identity` is its replica
    identity: `d` primary key, `f` the full row, `i` an index, `n` none."""

    relid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    relid: int
    row: Row


@dataclass(frozen=True, slots=True)
class Update:
    """`old` is the old key or row where it is sent: when the key changed or the identity is the full row."""

    relid: int
    old: Row | None
    row: Row


@dataclass(frozen=True, slots=True)
class Delete:
    relid: int
    old: Row


@dataclass(frozen=True, slots=True)
class Truncate:
    relids: tuple[int, ...]


Change = Begin | Commit | Relation | Insert | Update | Delete | Truncate


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from("!" + code, self._data, self._at)
        self._at += struct.calcsize("!" + code)
        return int(value)

    def byte(self) -> str:
        return chr(self.number("B"))

    def string(self) -> str:
        end = self._data.index(b"\0", self._at)
        value = self._data[self._at : end].decode()
        self._at = end + 1
        return value

    def text(self, length: int) -> str:
        end = self._at + length
        if end > len(self._data):
            raise ValueError("shorter than its own lengths say")
        value = self._data[self._at : end].decode()
        self._at = end
        return value

    def row(self) -> Row:
        values: list[Value] = []
        for _ in range(self.number("H")):
            kind = self.byte()
            if kind == "n":
                values.append(None)
            elif kind == "u":
                values.append(UNCHANGED)
            else:
                values.append(self.text(self.number("I")))
        return tuple(values)


def decode(data: bytes) -> Change | None:
    """One message; None for those that say nothing here (Origin, Type, logical messages)."""
    try:
        return _decode(_Reader(data))
    except (struct.error, ValueError) as error:
        raise ProtocolViolation(f"malformed replication message {data[:1]!r}: {error}") from error


def _decode(reader: _Reader) -> Change | None:
    kind = reader.byte()
    if kind == "B":
        return Begin(reader.number("Q"))
    if kind == "C":
        reader.number("B")
        reader.number("Q")
        return Commit(reader.number("Q"))
    if kind == "R":
        relid, schema, name, identity = reader.number("I"), reader.string(), reader.string(), reader.byte()
        columns = []
        for _ in range(reader.number("H")):
            is_key = bool(reader.number("B") & 1)
            columns.append(RelationColumn(reader.string(), reader.number("I"), reader.number("i"), is_key))
        return Relation(relid, schema or "pg_catalog", name, identity, tuple(columns))
    if kind == "I":
        relid = reader.number("I")
        reader.byte()
        return Insert(relid, reader.row())
    if kind == "U":
        relid, old = reader.number("I"), None
        if reader.byte() in "KO":
            old = reader.row()
            reader.byte()
        return Update(relid, old, reader.row())
    if kind == "D":
        relid = reader.number("I")
        reader.byte()
        return Delete(relid, reader.row())
    if kind == "T":
        count = reader.number("I")
        reader.number("B")
        return Truncate(tuple(reader.number("I") for _ in range(count)))
    return None


@dataclass(frozen=True, slots=True)
class Data:
    """XLogData: a part of the stream."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """How far the server has sent, and whether it wants to hear from us now."""

    sent: int
    wants_reply: bool


def unwrap(message: bytes) -> Data | Keepalive:
    """A CopyData message from the server."""
    if message[:1] == b"w" and len(message) >= 25:
        return Data(message[25:])
    if message[:1] == b"k" and len(message) >= 18:
        return Keepalive(int.from_bytes(message[1:9], "big"), message[17] == 1)
    raise ProtocolViolation(f"unexpected message {message[:1]!r} in a replication stream")


def status(applied: int, wall_us: int, *, wants_reply: bool = False) -> bytes:
    """Standby status update: written, flushed and applied up to `applied`. `wall_us` is Unix time in us."""
    return struct.pack("!cQQQqB", b"r", applied, applied, applied, wall_us - _EPOCH_US, wants_reply)


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)
