"""PostgreSQL's types and DuckDB's: which is which, and how values travel in text and binary format.

Pure. A result says the type that the value has: `avg(int)` is float8 here and numeric in PostgreSQL, and
says so, since clients decode by the type that they are told. Called by `engine`, `session` and `copies`.
Formats: the output functions of PostgreSQL's types (manual, chapter 8), binary as its send functions do.
"""

from __future__ import annotations

import math
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import pyarrow as pa

from .errors import StatementError

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, BPCHAR, VARCHAR, DATE, TIME = 700, 701, 1042, 1043, 1082, 1083
TIMESTAMP, TIMESTAMPTZ, INTERVAL, NUMERIC, UUID, JSON, NAME = 1114, 1184, 1186, 1700, 2950, 114, 19
ARRAYS = {BOOL: 1000, INT2: 1005, INT4: 1007, TEXT: 1009, INT8: 1016, FLOAT4: 1021, FLOAT8: 1022, NUMERIC: 1231}
_ELEMENTS = {array: element for element, array in ARRAYS.items()} | {1015: VARCHAR}

_EPOCH_DAYS = 10_957
"""Days from 1970-01-01 to 2000-01-01, where PostgreSQL's binary dates begin."""
_EPOCH_US = _EPOCH_DAYS * 86_400_000_000
_FOREVER = (1 << 63) - 1
_FOREVER_DAYS = (1 << 31) - 1
_EPOCH = datetime(1970, 1, 1)
_DIGITS = 38
"""Most digits of a DuckDB DECIMAL."""


class BadValue(StatementError):
    """A parameter's value does not fit its type, or a value can't be shown."""

    sqlstate = "22P02"


@dataclass(frozen=True, slots=True)
class Type:
    """A result type: its OID, its size for RowDescription (-1 varies), its two formats."""

    oid: int
    size: int
    text: Callable[[Any, tzinfo], str]
    binary: Callable[[Any], bytes]


# -- text format


def _float_text(digits: str, scientific_from: int) -> str:
    """A shortest decimal as PostgreSQL prints it: an exponent below 1e-4 and from 10**scientific_from on."""
    number = Decimal(digits)
    if number == 0:
        return "-0" if digits.startswith("-") else "0"
    exponent = number.adjusted()
    if -5 < exponent < scientific_from:
        return format(number.normalize(), "f")
    sign, figures, _ = number.normalize().as_tuple()
    mantissa = "".join(map(str, figures))
    fraction = "." + mantissa[1:] if len(mantissa) > 1 else ""
    return f"{'-' if sign else ''}{mantissa[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def float8_text(value: float, _: tzinfo = UTC) -> str:
    return _float_text(repr(value), 15) if math.isfinite(value) else _special(value)


def float4_text(value: float, _: tzinfo = UTC) -> str:
    if not math.isfinite(value):
        return _special(value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == value:
            break
    return _float_text(text, 6)


def _clock_text(moment: datetime) -> str:
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}{fraction}"


def _moment(us: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        raise BadValue("a timestamp outside the years 1 to 9999 can't be shown", sqlstate="22008") from None


def timestamp_text(us: int, _: tzinfo = UTC) -> str:
    """`us` is microseconds from 1970."""
    if abs(us) == _FOREVER:
        return "infinity" if us > 0 else "-infinity"
    moment = _moment(us)
    return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d} {_clock_text(moment)}"


def timestamptz_text(us: int, zone: tzinfo = UTC) -> str:
    if abs(us) == _FOREVER:
        return timestamp_text(us)
    local = _moment(us).replace(tzinfo=UTC).astimezone(zone)
    offset = local.utcoffset() or timedelta()
    seconds = abs(int(offset.total_seconds()))
    text = f"{'-' if offset < timedelta() else '+'}{seconds // 3600:02d}"
    if seconds % 3600:
        text += f":{seconds // 60 % 60:02d}"
    if seconds % 60:
        text += f":{seconds % 60:02d}"
    return f"{local.year:04d}-{local.month:02d}-{local.day:02d} {_clock_text(local)}{text}"


def date_text(days: int, _: tzinfo = UTC) -> str:
    if abs(days) == _FOREVER_DAYS:
        return "infinity" if days > 0 else "-infinity"
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        raise BadValue("a date outside the years 1 to 9999 can't be shown", sqlstate="22008") from None


def time_text(us: int, _: tzinfo = UTC) -> str:
    return "24:00:00" if us == 86_400_000_000 else _clock_text(_moment(us))


def interval_text(value: Any, _: tzinfo = UTC) -> str:
    """IntervalStyle postgres; `value` is Arrow's MonthDayNano."""
    years, months = int(value.months / 12), math.fmod(value.months, 12)
    us = int(value.nanoseconds / 1000)
    parts: list[str] = []
    negative_before = False
    for amount, unit in ((years, "year"), (int(months), "mon"), (value.days, "day")):
        if amount:
            sign = "+" if negative_before and amount > 0 else ""
            parts.append(f"{sign}{amount} {unit}{'' if amount == 1 else 's'}")
            negative_before = amount < 0
    if us or not parts:
        hours, rest = divmod(abs(us), 3_600_000_000)
        minutes, rest = divmod(rest, 60_000_000)
        seconds, fraction = divmod(rest, 1_000_000)
        sign = "-" if us < 0 else "+" if negative_before else ""
        tail = f".{fraction:06d}".rstrip("0") if fraction else ""
        parts.append(f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{tail}")
    return " ".join(parts)


def _array_item(text: str) -> str:
    if text and text.upper() != "NULL" and not re.search(r'[{}",\\\s]', text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# -- binary format


def numeric_binary(value: Decimal | int) -> bytes:
    """numeric_send: groups of four decimal digits."""
    number = Decimal(value)
    sign, figures, exponent = number.as_tuple()
    assert isinstance(exponent, int), "DuckDB has no special DECIMAL"
    scale = max(-exponent, 0)
    whole = int("".join(map(str, figures))) * 10 ** max(exponent, 0)
    whole *= 10 ** (-scale % 4)
    groups: list[int] = []
    while whole:
        whole, group = divmod(whole, 10_000)
        groups.append(group)
    weight = len(groups) - 1 - (scale + 3) // 4
    groups.reverse()
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        weight, sign = 0, 0
    return struct.pack(f"!hhHH{len(groups)}H", len(groups), weight, 0x4000 if sign else 0, scale, *groups)


def _timestamp_binary(us: int) -> bytes:
    if abs(us) == _FOREVER:
        return struct.pack("!q", us if us > 0 else us - 1)
    return struct.pack("!q", us - _EPOCH_US)


def _date_binary(days: int) -> bytes:
    if abs(days) == _FOREVER_DAYS:
        return struct.pack("!i", days if days > 0 else days - 1)
    return struct.pack("!i", days - _EPOCH_DAYS)


def _interval_binary(value: Any) -> bytes:
    return struct.pack("!qii", int(value.nanoseconds / 1000), value.days, value.months)


def _packer(code: str) -> Callable[[Any], bytes]:
    return struct.Struct("!" + code).pack


def _plain(value: Any, _: tzinfo) -> str:
    return str(value)


def _decimal_text(value: Decimal | int, _: tzinfo) -> str:
    return format(Decimal(value), "f")


_TEXT = Type(TEXT, -1, _plain, lambda value: str(value).encode())
_NUMERIC = Type(NUMERIC, -1, _decimal_text, numeric_binary)
_INT2 = Type(INT2, 2, _plain, _packer("h"))
_INT4 = Type(INT4, 4, _plain, _packer("i"))
INT8_TYPE = Type(INT8, 8, _plain, lambda value: struct.pack("!q", int(value)))
_TYPES = {
    "BOOLEAN": Type(BOOL, 1, lambda value, _: "t" if value else "f", _packer("?")),
    "TINYINT": _INT2,
    "UTINYINT": _INT2,
    "SMALLINT": _INT2,
    "USMALLINT": _INT4,
    "INTEGER": _INT4,
    "UINTEGER": INT8_TYPE,
    "BIGINT": INT8_TYPE,
    "UBIGINT": _NUMERIC,
    "HUGEINT": _NUMERIC,
    "UHUGEINT": _NUMERIC,
    "FLOAT": Type(FLOAT4, 4, float4_text, _packer("f")),
    "DOUBLE": Type(FLOAT8, 8, float8_text, _packer("d")),
    "VARCHAR": _TEXT,
    "DATE": Type(DATE, 4, date_text, _date_binary),
    "TIME": Type(TIME, 8, time_text, _packer("q")),
    "TIMESTAMP": Type(TIMESTAMP, 8, timestamp_text, _timestamp_binary),
    "TIMESTAMP WITH TIME ZONE": Type(TIMESTAMPTZ, 8, timestamptz_text, _timestamp_binary),
    "INTERVAL": Type(INTERVAL, 16, interval_text, _interval_binary),
    "UUID": Type(UUID, 16, _plain, lambda value: uuid.UUID(str(value)).bytes),
    "BLOB": Type(BYTEA, -1, lambda value, _: "\\x" + value.hex(), bytes),
    "JSON": Type(JSON, -1, _plain, lambda value: str(value).encode()),
}


def _array_of(element: Type) -> Type:
    def text(values: Sequence[Any], zone: tzinfo) -> str:
        return "{" + ",".join("NULL" if v is None else _array_item(element.text(v, zone)) for v in values) + "}"

    def binary(values: Sequence[Any]) -> bytes:
        if not values:
            return struct.pack("!iii", 0, 0, element.oid)
        head = struct.pack("!iiiii", 1, int(None in values), element.oid, len(values), 1)
        items = [None if v is None else element.binary(v) for v in values]
        return head + b"".join(b"\xff" * 4 if i is None else struct.pack("!i", len(i)) + i for i in items)

    return Type(ARRAYS[element.oid], -1, text, binary)


def result_type(duck: str) -> Type:
    """The type of a DuckDB result column by DuckDB's name for it; what PostgreSQL doesn't have is text."""
    if duck.startswith("DECIMAL"):
        return _NUMERIC
    if duck.endswith("[]"):
        element = result_type(duck[:-2])
        if element.oid in ARRAYS and not duck[:-2].endswith("]"):
            return _array_of(element)
        return _TEXT
    return _TYPES.get(duck, _TEXT)


def column_values(array: pa.Array) -> list[Any]:
    """Python values of an Arrow column as the formats above take them: moments as integers, which also carry
    infinity and need no time zone data base."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return list(array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist())
    if pa.types.is_date32(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if pa.types.is_time64(kind):
        return list(array.cast(pa.int64()).to_pylist())
    return list(array.to_pylist())


# -- parameters

_PARAMS = {
    **{BOOL: "BOOLEAN", INT8: "BIGINT", INT2: "SMALLINT", INT4: "INTEGER", OID: "BIGINT", TEXT: "VARCHAR"},
    **{VARCHAR: "VARCHAR", BPCHAR: "VARCHAR", NAME: "VARCHAR", FLOAT4: "FLOAT", FLOAT8: "DOUBLE", DATE: "DATE"},
    **{TIME: "TIME", TIMESTAMP: "TIMESTAMP", TIMESTAMPTZ: "TIMESTAMPTZ", INTERVAL: "INTERVAL", UUID: "UUID"},
    **{BYTEA: "BLOB", JSON: "JSON"},
}
OIDS_BY_NAME = {
    **{"bool": BOOL, "boolean": BOOL, "smallint": INT2, "int2": INT2, "int": INT4, "integer": INT4, "int4": INT4},
    **{"bigint": INT8, "int8": INT8, "real": FLOAT4, "float4": FLOAT4, "float8": FLOAT8, "numeric": NUMERIC},
    **{"decimal": NUMERIC, "text": TEXT, "varchar": VARCHAR, "date": DATE, "time": TIME, "timestamp": TIMESTAMP},
    **{"timestamptz": TIMESTAMPTZ, "interval": INTERVAL, "uuid": UUID, "bytea": BYTEA},
}
"""What a parameter is that the statement casts at once."""
_BINARY_PARAMS: dict[int, Callable[[bytes], str]] = {
    BOOL: lambda raw: "true" if raw != b"\0" else "false",
    INT2: lambda raw: str(struct.unpack("!h", raw)[0]),
    INT4: lambda raw: str(struct.unpack("!i", raw)[0]),
    OID: lambda raw: str(struct.unpack("!I", raw)[0]),
    INT8: lambda raw: str(struct.unpack("!q", raw)[0]),
    FLOAT4: lambda raw: float8_text(struct.unpack("!f", raw)[0]),
    FLOAT8: lambda raw: float8_text(struct.unpack("!d", raw)[0]),
    DATE: lambda raw: date_text(struct.unpack("!i", raw)[0] + _EPOCH_DAYS),
    TIME: lambda raw: time_text(struct.unpack("!q", raw)[0]),
    TIMESTAMP: lambda raw: timestamp_text(struct.unpack("!q", raw)[0] + _EPOCH_US),
    TIMESTAMPTZ: lambda raw: timestamptz_text(struct.unpack("!q", raw)[0] + _EPOCH_US),
    UUID: lambda raw: str(uuid.UUID(bytes=raw)),
    NUMERIC: lambda raw: _numeric_from_binary(raw),  # noqa: PLW0108 (defined below)
}


def param_type(oid: int, value: Any = None) -> str:
    """The DuckDB type that a parameter is cast to; empty where it is left to DuckDB.

    numeric has no limit of digits in PostgreSQL; here it takes the digits that the value has.
    """
    if oid in _ELEMENTS:
        return param_type(_ELEMENTS[oid]) + "[]"
    if oid != NUMERIC:
        return _PARAMS.get(oid, "")
    if value is None:
        return f"DECIMAL({_DIGITS},6)"
    try:
        scale = Decimal(str(value)).as_tuple().exponent
    except ArithmeticError:
        scale = "n"
    if not isinstance(scale, int):
        raise BadValue("a numeric parameter has no value that this node can hold")
    return f"DECIMAL({_DIGITS},{min(max(-scale, 0), _DIGITS)})"


def param_value(raw: bytes | None, oid: int, binary: bool) -> Any:
    """A Bind parameter as DuckDB takes it: text to be cast, bytes, a list or None."""
    if raw is None:
        return None
    try:
        if oid in _ELEMENTS:
            return _array_from_binary(raw) if binary else _array_from_text(raw.decode())
        if oid == BYTEA:
            return raw if binary else bytes.fromhex(raw.decode().removeprefix("\\x"))
        if binary and oid in _BINARY_PARAMS:
            return _BINARY_PARAMS[oid](raw)
        return raw.decode()
    except (ValueError, struct.error, IndexError):
        raise BadValue(f"a parameter of type OID {oid} has a malformed value", sqlstate="22P03") from None


def _numeric_from_binary(raw: bytes) -> str:
    count, weight, sign, scale = struct.unpack_from("!hhHH", raw)
    if sign not in (0, 0x4000):
        raise ValueError("not a finite numeric")
    groups = struct.unpack_from(f"!{count}H", raw, 8)
    whole = 0
    for group in groups:
        whole = whole * 10_000 + group
    number = Decimal(whole).scaleb(4 * (weight + 1 - count)).quantize(Decimal(1).scaleb(-scale))
    return format(-number if sign else number, "f")


def _array_from_text(text: str) -> list[str | None]:
    """One dimension of array_in's format."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("malformed array")
    items: list[str | None] = []
    for quoted, bare in re.findall(r'"((?:[^"\\]|\\.)*)"|([^,{}"]+)', text[1:-1]):
        if bare:
            items.append(None if bare.strip().upper() == "NULL" else bare.strip())
        else:
            items.append(re.sub(r"\\(.)", r"\1", quoted))
    return items


def _array_from_binary(raw: bytes) -> list[str | None]:
    dimensions, _, element = struct.unpack_from("!iiI", raw)
    if dimensions == 0:
        return []
    if dimensions != 1:
        raise ValueError("more than one dimension")
    (count,) = struct.unpack_from("!i", raw, 12)
    position = 20
    items: list[str | None] = []
    for _ in range(count):
        (length,) = struct.unpack_from("!i", raw, position)
        position += 4
        if length < 0:
            items.append(None)
            continue
        value = raw[position : position + length]
        items.append(_BINARY_PARAMS[element](value) if element in _BINARY_PARAMS else value.decode())
        position += length
    return items


# -- columns of copied tables


def column_type(oid: int, typmod: int) -> str | None:
    """The DuckDB type that holds every value of a PostgreSQL column exactly, or None: then the column is
    left out of the copy, and statements that name it are refused rather than answered differently."""
    if oid == NUMERIC:
        if typmod < 4:
            return None
        precision = (typmod - 4) >> 16 & 0xFFFF
        scale = (typmod - 4) & 0x7FF
        return f"DECIMAL({precision},{scale})" if scale <= precision <= _DIGITS else None
    if oid in (OID, NAME, JSON):
        return None
    return _PARAMS.get(oid)


def column_cast(oid: int, duck: str, column: str) -> str:
    """SQL that makes a column's value from PostgreSQL's text of it."""
    if oid == BYTEA:
        return f"unhex(substr({column}, 3))"
    if oid == BPCHAR:
        return f"rtrim({column}, ' ')"  # char(n) comes padded, and PostgreSQL compares it without the padding
    return f"CAST({column} AS {duck})"


def column_text(oid: int, column: str) -> str:
    """SQL that makes PostgreSQL's text again, for the types that TOAST may leave out of an update."""
    return f"'\\x' || lower(hex({column}))" if oid == BYTEA else f"CAST({column} AS VARCHAR)"
