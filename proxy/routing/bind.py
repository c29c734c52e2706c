"""What a classification means for this session: in its database, and in its encoding.

A client encoding in which ASCII bytes occur inside characters, or standard_conforming_strings off,
makes a text mean something else than the classifier read, so nothing of it is believed.

Names mean what the database's catalogue says. A catalogue is believed for as long as no DDL has ended since it was
read; who routes asks for both moments.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..sql.catalogue import Catalogue, bind, is_timed, near, resolved
from ..sql.grammar import shape
from ..sql.model import Class, Classification, Effect
from .measured import ANALYTIC, READ

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
        split: whether it is for clients whose reads are split. For the others a catalogue only tells what is to be
            watched, and as long as there is none a statement is what its text tells.
        read_ns: the moment (boot_ns) before which all DDL that had ended is in the catalogue; 0 is none.
        changed_ns: the last moment at which DDL is known to have ended.
        version: of the catalogue; "" while there is none.
        until: how long new clients wait for the first catalogue, in seconds of the clock.
        asked: when it was last asked for, in seconds of the clock.
        refused: shapes of reads that a standby has refused and the primary has answered, with the SQLSTATE.
        classes: shapes of reads of which it was learned whether they are analytic (`routing.measured`).
    """

    __slots__ = (
        "_bound",
        "_catalogue",
        "_entries",
        "_known",
        "_unsure",
        "asked",
        "changed_ns",
        "classes",
        "database",
        "read_ns",
        "refused",
        "split",
        "until",
        "version",
    )

    def __init__(self, database: str, entries: int, until: float, *, split: bool = True) -> None:
        """Remembers at most `entries` statements, and as many again while it is not believed."""
        self.database = database
        self.split = split
        self.read_ns = 0
        self.changed_ns = 0
        self.version = ""
        self.until = until
        self.asked = 0.0
        self.refused: dict[str, str] = {}
        self.classes: dict[str, str] = {}
        self._entries = entries
        self._catalogue: Catalogue | None = None
        self._known: dict[Classification, Classification] = {}
        self._unsure: dict[Classification, Classification] = {}
        self._bound = self._known
        """One of the two: what holds now."""

    def learn(self, catalogue: Catalogue | None, read_ns: int) -> None:
        """Take a catalogue, or None if it is the same as before, and when it was read; 0 if it couldn't be."""
        if catalogue is not None and (self._catalogue is None or self._catalogue.version != catalogue.version):
            self._catalogue = catalogue
            self.version = catalogue.version
            self._known.clear()
        self.read_ns = read_ns if self._catalogue is not None else 0
        self.until = 0.0
        self._settle()

    def doubt(self, changed_ns: int) -> None:
        """DDL has ended at this moment. What was read before is not believed, and whatever is harmless by experience
        isn't any more."""
        if changed_ns > self.changed_ns:
            self.changed_ns = changed_ns
            self._unsure.clear()
            self._settle()

    def _settle(self) -> None:
        believed = self._catalogue is None or self.read_ns > self.changed_ns
        self._bound = self._known if believed else self._unsure

    def refuse(self, text: bytes, sqlstate: str) -> str:
        """Remember that reads of this text's shape belong on the primary, whatever the catalogue says. The shape, or
        "" if that is nothing new. Of more than MAX_REFUSED the oldest is forgotten."""
        shape = shape_of(text)
        if not shape or shape in self.refused:
            return ""
        if len(self.refused) >= MAX_REFUSED:
            del self.refused[next(iter(self.refused))]
        self.refused[shape] = sqlstate
        self._known.clear()
        return shape

    def refusals(self, refused: dict[str, str]) -> None:
        """Take what is known of all workers instead."""
        if refused != self.refused:
            self.refused = refused
            self._known.clear()

    def learned(self, classes: dict[str, str]) -> None:
        """Take what is known of reads' classes instead."""
        if classes != self.classes:
            self.classes = classes
            self._known.clear()

    def of(self, found: Classification) -> Classification:
        """What a statement is here. Found by the identity of what the classifier remembers. 0.1 us."""
        if found.uses is None:
            return found
        bound = self._bound.get(found)
        if bound is None:
            if self._bound is self._unsure:
                return self.unsure(found)
            bound = self._remember(self._known, found, self._bind(found))
        return bound

    def unsure(self, found: Classification) -> Classification:
        """What a statement is where DDL may just have changed the meaning of its names: watched, and on the primary.
        Where no catalogue is known, nothing is lost."""
        if found.uses is None or self._catalogue is None:
            return self.of(found)
        bound = self._unsure.get(found)
        if bound is None:
            watched = resolved(found, "catalogue_unread", watched=True) if self.split else found.watched()
            bound = self._remember(self._unsure, found, watched)
        return bound

    def tells_time(self, bound: Classification) -> bool:
        """Whether the answer of a statement, as bound, may tell when its transaction began, or which one it is."""
        if bound.timed:
            return True
        catalogue = self._catalogue
        return bound.uses is not None and (catalogue is None or is_timed(catalogue, bound.uses))

    @property
    def isolated(self) -> bool:
        """Whether sessions may begin with another isolation level than READ COMMITTED; so while nothing is known."""
        return self._catalogue is None or self._catalogue.isolated

    def _remember(
        self, known: dict[Classification, Classification], found: Classification, bound: Classification
    ) -> Classification:
        if len(known) >= self._entries:
            known.clear()
        known[found] = bound
        bound.text = bound.text or found.text
        return bound

    def _bind(self, found: Classification) -> Classification:
        catalogue = self._catalogue
        if not self.split:
            return near(found, catalogue) if catalogue is not None else found
        bound = bind(found, catalogue) if catalogue is not None else resolved(found, "no_catalogue")
        if self.refused and not bound.writes:
            sqlstate = self.refused.get(shape_of(found.text))
            if sqlstate == WRITES:
                return resolved(found, "write_refused_by_standby", watched=True)
            if sqlstate is not None:
                return resolved(found, "refused_by_standby")
        if self.classes and bound.kind == "select" and bound.statements == 1:
            cls = self.classes.get(shape_of(found.text))
            if cls == READ and bound.cls is Class.ANALYTIC:
                return bound.learned(Class.READ)
            if cls == ANALYTIC and bound.cls is Class.READ:
                return bound.learned(Class.ANALYTIC)
        return bound
