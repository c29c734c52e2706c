"""Durations and sizes as people write them.

The units are those of postgresql.conf (PostgreSQL manual, section 20.1.1): a kB is 1024 bytes, and
letters count (MB, not mb). Pure; called by `settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_DURATIONS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_SIZES = {"TB": 1 << 40, "GB": 1 << 30, "MB": 1 << 20, "kB": 1 << 10, "B": 1}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds of "200ms", "1.5h" or a bare number of seconds; ValueError otherwise."""
    return round(_parse(text, _DURATIONS, "s"), 6)


def parse_size(text: str) -> int:
    """Bytes of "64kB", "1.5GB" or a bare number of bytes; ValueError otherwise."""
    return round(_parse(text, _SIZES, "B"))


def format_duration(seconds: float) -> str:
    """With the largest unit that needs no fraction: 0.5 is "500ms", 3600 "1h", 90 "90s"."""
    return _format(seconds, _DURATIONS, "s")


def format_size(size: int) -> str:
    """With the largest unit that needs no fraction: 33554432 is "32MB"."""
    return _format(size, _SIZES, "B")


def _parse(text: str, units: Mapping[str, float], bare: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or (match[2] or bare) not in units:
        raise ValueError("not a number with a known unit")
    return float(match[1]) * units[match[2] or bare]


def _format(value: float, units: Mapping[str, float], bare: str) -> str:
    for unit, factor in units.items():
        count = round(value / factor, 6)
        if count >= 1 and count.is_integer():
            return f"{count:.0f}{unit}"
    return f"{value:g}{bare}"
