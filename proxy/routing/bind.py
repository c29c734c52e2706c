"""What a classification means for this session: Bound = class after the session's context.

A client encoding in which ASCII bytes occur inside characters, or standard_conforming_strings off,
makes a text mean something else than the classifier read, so nothing of it is believed. The
catalogue joins here later.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..sql.model import Class, Classification, Effect

_UNSAFE_ENCODINGS = frozenset(("SJIS", "BIG5", "GBK", "UHC", "GB18030", "JOHAB", "SHIFT_JIS_2004"))

UNREADABLE = Classification(
    Class.WRITE,
    "unreadable_encoding",
    effects=Effect.UNKNOWN_CODE | Effect.SET_ANY | Effect.DISCARD,
)
"""Stands for any text that can't be read safely: the primary, and the session is looked at afterwards."""


def readable(parameters: Mapping[str, str]) -> bool:
    """Whether texts of a session with these reported parameters may be classified."""
    if parameters.get("standard_conforming_strings") == "off":
        return False
    return parameters.get("client_encoding", "UTF8").upper() not in _UNSAFE_ENCODINGS
