"""`pgtrident classify`: statements in, classes out, one JSON object a line; needs no config and no server.

With a catalogue it says what statements are in that database, without one what their text alone tells.

Owns the format of those lines only. Called by the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO

from .analyze import patient_opinion
from .catalogue import Catalogue, bind
from .classify import classify
from .model import Classification, Effect


def main(lines_in: Iterable[str], lines_out: TextIO, catalogue: Catalogue | None = None) -> int:
    """Answer each {"sql": "..."} line with one line; returns the exit status, 1 if a line was no such object."""
    status = 0
    for line in lines_in:
        if not line.strip():
            continue
        answer: dict[str, Any]
        try:
            sql = json.loads(line)["sql"]
            found = classify(sql.encode("utf-8", "surrogatepass"), patient_opinion)
            answer = described(found if catalogue is None else bind(found, catalogue))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            status = 1
            answer = {"error": 'expected one JSON object a line: {"sql": "..."}'}
        lines_out.write(json.dumps(answer) + "\n")
    return status


def described(found: Classification) -> dict[str, Any]:
    """Return a classification as plain data; what is false or empty is left out."""
    answer: dict[str, Any] = {
        "class": str(found.cls),
        "reason": found.reason,
        "kind": found.kind,
        "statements": found.statements,
    }
    optional: dict[str, Any] = {
        "effects": [effect.name.lower() for effect in Effect if effect in found.effects and effect.name],
        "settings": sorted(found.settings),
        "name": found.name,
        "resets": found.resets,
        "starts_transaction": found.starts_transaction,
        "ends_transaction": found.ends_transaction,
        "read_only_transaction": found.read_only_transaction,
        "fragile": found.fragile,
        "retyped": found.retyped,
    }
    if found.uses is not None:
        optional["tables"] = sorted({_dotted(one) for one in found.uses.relations if one[1] not in found.uses.ctes})
        optional["functions"] = sorted({_dotted(one) for one in found.uses.functions})
    answer.update((key, value) for key, value in optional.items() if value)
    return answer


def _dotted(name: tuple[str, str]) -> str:
    return ".".join(part for part in name if part)
