"""The schema as data: which settings there are, what each allows, how a value is read and shown.

Owns the meaning of the types and marks in `schema`; `load`, `diff`, `reference` and the console go
through it, so that a setting is described in one place. Pure.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from .schema import Config
from .units import format_duration, format_size, parse_duration, parse_size

NAME = "NAME"
"""Stands for a name of the user's choice in the key of a setting (`nodes.NAME.host`)."""

_SWITCH = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the schema."""

    name: str
    type: inspect.Type
    optional: bool
    """None means not set; TOML can't say it, so the key is left out."""
    required: bool
    default: Any
    unit: str
    """`seconds`, `bytes`, `mode` (access rights), `selector` or empty."""
    restart: bool
    """A reload doesn't apply it."""
    secret: bool
    path: str
    """`file`, `directory` or empty."""
    single: bool = False
    """A list of which one may be written without brackets."""

    def allowed(self) -> str:
        """What may be written, as the end of "expected ..."."""
        return ("a string or " if self.single else "") + _allowed(self.type, self.unit)

    def read(self, value: object) -> Any:
        """The value behind what TOML gave; ValueError says what was expected."""
        result = _read(self.type, self.unit, [value] if self.single and isinstance(value, str) else value)
        if result is None:
            raise ValueError(f"expected {self.allowed()}")
        return result

    def read_text(self, text: str) -> Any:
        """The same for the plain text of an environment variable or the command line; ValueError too."""
        match self.type:
            case inspect.StrType() | inspect.LiteralType():
                return self.read(text)
            case inspect.BoolType():
                return self.read(_SWITCH.get(text.lower(), text))
            case inspect.VarTupleType() if not text.startswith("["):
                return self.read([item.strip() for item in text.split(",") if item.strip()])
            case _ if self.unit and text[:2] != "0o":
                return self.read(text)
        try:
            values = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            values = {}
        # More than one value: the text had line ends and further keys in it.
        return self.read(values.get("value") if len(values) == 1 else None)

    def show(self, value: Any) -> str:
        """The value in TOML form; a secret as stars, None as nothing."""
        if value is None:
            return ""
        if self.secret and value:
            return '"***"'
        return toml(value, self.unit)


@dataclass(frozen=True, slots=True)
class Group:
    """A section: its settings and sub-sections by key."""

    name: str
    cls: type[msgspec.Struct]
    children: Mapping[str, Setting | Group | Named]


@dataclass(frozen=True, slots=True)
class Named:
    """A table of sections under names of the user's choice (`nodes`, `databases`, `users` ...)."""

    name: str
    item: Group


Entry = Setting | Group | Named


def toml(value: Any, unit: str = "") -> str:
    """A setting's value as TOML text."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if unit == "mode":
            return f"0o{value:o}"
        case int() if unit == "bytes":
            return f'"{format_size(value)}"'
        case int() | float() if unit == "seconds":
            return f'"{format_duration(value)}"'
        case int() | float():
            return str(value)
        case str():
            return value if unit == "selector" and value.isdecimal() else quote(value)
    return "[" + ", ".join(toml(item) for item in value) + "]"


def quote(text: str) -> str:
    """A TOML basic string (TOML 1.0, section String)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    plain = "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped)
    return f'"{plain}"'


def dotted(path: Sequence[str]) -> str:
    """A key as it is written in TOML: `nodes."db 1".host`."""
    return ".".join(part if _is_bare(part) else quote(part) for part in path)


def leaves(group: Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Every setting with its key, `NAME` standing for names, in the order of the schema."""
    for name, entry in group.children.items():
        here = (*path, name)
        if isinstance(entry, Setting):
            yield here, entry
        elif isinstance(entry, Group):
            yield from leaves(entry, here)
        else:
            yield from leaves(entry.item, (*here, NAME))


def values(config: Config) -> Iterator[tuple[tuple[str, ...], Setting, Any]]:
    """Every setting of a configuration: key, description and value (secrets as they are)."""
    yield from _values(ROOT, config, ())


def _values(
    group: Group, section: msgspec.Struct, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Setting, Any]]:
    for name, entry in group.children.items():
        value = getattr(section, name)
        here = (*path, name)
        if isinstance(entry, Setting):
            yield here, entry, value
        elif isinstance(entry, Group):
            yield from _values(entry, value, here)
        else:
            for item, content in value.items():
                yield from _values(entry.item, content, (*here, item))


def _is_bare(part: str) -> bool:
    return part != "" and part.isascii() and part.replace("-", "").replace("_", "").isalnum()


def _allowed(kind: inspect.Type, unit: str) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(f'"{value}"' for value in values)
        case inspect.VarTupleType(item_type=inspect.LiteralType(values=values)):
            return "a list of " + ", ".join(f'"{value}"' for value in values)
        case inspect.VarTupleType():
            return "a list of strings"
        case inspect.StrType():
            return '0, a number up to 999, "hash" or "spread"' if unit == "selector" else "a string"
    if unit == "seconds":
        return 'a duration such as "200ms", "5s", "10min", "1h", "7d" or a number of seconds'
    if unit == "bytes":
        return 'a size such as "64kB", "16MB" or a number of bytes'
    if unit == "mode":
        return "access rights such as 0o770"
    assert isinstance(kind, inspect.IntType)
    return (
        f"a whole number from {kind.ge} to {kind.le}" if kind.le is not None else f"a whole number, at least {kind.ge}"
    )


def _read(kind: inspect.Type, unit: str, value: object) -> Any:
    """The value, or None when it doesn't fit."""
    match kind, value:
        case inspect.BoolType(), bool():
            return value
        case inspect.StrType(pattern=str(pattern)), str() | int() if not isinstance(value, bool):
            return str(value) if re.fullmatch(pattern, str(value)) else None
        case inspect.StrType(), str():
            return value
        case inspect.LiteralType(values=allowed), str():
            return value if value in allowed else None
        case inspect.VarTupleType(item_type=inspect.LiteralType(values=allowed)), list():
            return tuple(value) if all(item in allowed for item in value) else None
        case inspect.VarTupleType(), list():
            return tuple(value) if all(isinstance(item, str) for item in value) else None
        case ((inspect.IntType() | inspect.FloatType()), str()) if unit:
            try:
                value = _from_text(unit, value)
            except ValueError:
                return None
    if isinstance(value, bool):
        return None
    if isinstance(kind, inspect.FloatType) and isinstance(value, int | float):
        return float(value) if 0 <= value < float("inf") else None
    if isinstance(kind, inspect.IntType) and isinstance(value, int):
        low, high = kind.ge or 0, kind.le
        return value if low <= value and (high is None or value <= high) else None
    return None


def _from_text(unit: str, text: str) -> float:
    if unit == "seconds":
        return parse_duration(text)
    return parse_size(text) if unit == "bytes" else int(text, 8)


def _group(name: str, kind: inspect.StructType) -> Group:
    return Group(name, kind.cls, {field.name: _entry(field) for field in kind.fields})


def _entry(field: inspect.Field) -> Entry:
    kind, extra = _strip(field.type)
    optional = isinstance(kind, inspect.UnionType)
    if isinstance(kind, inspect.UnionType):
        kind, extra = _strip(next(t for t in kind.types if not isinstance(t, inspect.NoneType)))
    if isinstance(kind, inspect.StructType):
        return _group(field.name, kind)
    if isinstance(kind, inspect.DictType):
        assert isinstance(kind.value_type, inspect.StructType)
        return Named(field.name, _group(NAME, kind.value_type))
    return Setting(
        name=field.name,
        type=kind,
        optional=optional,
        required=field.required,
        default=field.default,
        unit=extra.get("unit", ""),
        restart=extra.get("restart", False),
        secret=extra.get("secret", False),
        path=extra.get("path", ""),
        single=extra.get("single", False),
    )


def _strip(kind: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    return (kind.type, kind.extra or {}) if isinstance(kind, inspect.Metadata) else (kind, {})


def _schema() -> Group:
    kind = inspect.type_info(Config)
    assert isinstance(kind, inspect.StructType)
    return _group("", kind)


ROOT = _schema()
