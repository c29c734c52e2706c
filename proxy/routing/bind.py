"""What a classification means for this session: in its database, and in its encoding.

A client encoding in which ASCII bytes occur inside characters, or standard_conforming_strings off,
makes a text mean something else than the classifier read, so nothing of it is believed.

Names mean what the database's catalogue says. A catalogue is believed for as long as no DDL has ended since it was
read; who routes asks for both moments.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..sql.catalogue import Catalogue, bind, resolved
from ..sql.grammar import shape
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


WRITES = "25006"
"""read_only_sql_transaction: what a standby says to a write."""
CONFLICT = "40001"
"""serialization_failure: what a standby says to a read that stands in the way of replay; another time it may run."""
MAX_REFUSED = 1000
"""Shapes that a worker remembers of one database."""


def shape_of(text: bytes) -> str:
    """The fingerprint of a text that was taken for a read; "" if it has none."""
    return shape(text.decode("utf-8", "replace"))


class Binding:
    """What statements are in one database, by the catalogue that was last read there.

    Attributes:
        read_ns: the moment (boot_ns) before which all DDL that had ended is in the catalogue; 0 is none.
        version: of the catalogue; "" while there is none.
        until: how long new clients wait for the first catalogue, in seconds of the clock.
        asked: when it was last asked for, in seconds of the clock.
        refused: shapes of reads that a standby has refused and the primary has answered, with the SQLSTATE.
    """

    __slots__ = ("_bound", "_catalogue", "_entries", "asked", "database", "read_ns", "refused", "until", "version")

    def __init__(self, database: str, entries: int, until: float) -> None:
        """Remembers at most `entries` statements."""
        self.database = database
        self.read_ns = 0
        self.version = ""
        self.until = until
        self.asked = 0.0
        self.refused: dict[str, str] = {}
        self._entries = entries
        self._catalogue: Catalogue | None = None
        self._bound: dict[Classification, Classification] = {}

    def learn(self, catalogue: Catalogue | None, read_ns: int) -> None:
        """Take a catalogue, or None if it is the same as before, and when it was read; 0 if it couldn't be."""
        if catalogue is not None and (self._catalogue is None or self._catalogue.version != catalogue.version):
            self._catalogue = catalogue
            self.version = catalogue.version
            self._bound.clear()
        self.read_ns = read_ns if self._catalogue is not None else 0
        self.until = 0.0

    def refuse(self, text: bytes, sqlstate: str) -> str:
        """Remember that reads of this text's shape belong on the primary, whatever the catalogue says. The shape, or
        "" if that is nothing new. Of more than MAX_REFUSED the oldest is forgotten."""
        shape = shape_of(text)
        if not shape or shape in self.refused:
            return ""
        if len(self.refused) >= MAX_REFUSED:
            del self.refused[next(iter(self.refused))]
        self.refused[shape] = sqlstate
        self._bound.clear()
        return shape

    def refusals(self, refused: dict[str, str]) -> None:
        """Take what is known of all workers instead."""
        if refused != self.refused:
            self.refused = refused
            self._bound.clear()

    def of(self, found: Classification) -> Classification:
        """What a statement is here. Found by the identity of what the classifier remembers. 0.1 us."""
        if found.uses is None:
            return found
        bound = self._bound.get(found)
        if bound is None:
            if len(self._bound) >= self._entries:
                self._bound.clear()
            catalogue = self._catalogue
            bound = bind(found, catalogue) if catalogue is not None else resolved(found, "no_catalogue")
            if self.refused and not bound.writes:
                sqlstate = self.refused.get(shape_of(found.text))
                if sqlstate == WRITES:
                    bound = resolved(found, "write_refused_by_standby", watched=True)
                elif sqlstate is not None:
                    bound = resolved(found, "refused_by_standby")
            self._bound[found] = bound
        return bound
