"""What the controller keeps for the next run: JSON files in the runtime directory, each written whole.

Owns how they are read and written. A file that can't be read is worth no failure: what is in it is found out anew.
Called by `shapes`, `measured`, `seen` and `homes`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from ..log import get_logger

T = TypeVar("T")

_log = get_logger("controller")


def read(path: Path, kind: type[T]) -> T | None:
    """What is in a file; None if there is none, or nothing of that kind."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("kept_file_unreadable", file=path.name, error=str(error))
        return None


def write(path: Path, content: object) -> bool:
    """Whether it could be written."""
    new = path.with_suffix(".new")
    try:
        new.write_bytes(msgspec.json.encode(content))
        os.replace(new, path)
    except OSError as error:
        _log.warning("file_not_kept", file=path.name, error=str(error))
        return False
    return True
