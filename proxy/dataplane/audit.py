"""What a client's units have done to its session, and how that is found out.

Owns what is to be looked at and the questions put to the server (`session.rules` has their texts). State is
never guessed: a unit's effects say what to ask, and once the session is idle its server's answer is the
state. Must not route or send units. Called by `client` and `batch` (effects in, units done).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ProtocolViolation
from ..session import rules
from ..session.wishes import divide
from ..sql.model import Classification, Effect
from ..wire.codes import FAILED, IDLE
from .server import Owed, Server

if TYPE_CHECKING:
    from .client import Client

_NOT_SETTINGS = frozenset(
    (
        "in_hot_standby",
        "is_superuser",
        "server_version",
        "server_encoding",
        "integer_datetimes",
        "session_authorization",
    )
)
"""Reported parameters that no SET of the client's made."""


_CANCELLED = "57014"


class Audit:
    """Of one client."""

    __slots__ = ("_cancelled", "_client", "_names", "_unseen", "touched", "untracked")

    def __init__(self, client: Client) -> None:
        self._client = client
        self.touched = Effect.NONE
        """What is to be looked at; NONE while the session is known."""
        self._names: frozenset[str] = frozenset()
        """Settings that are to be looked at."""
        self._unseen: tuple[Classification, ...] = ()
        self._cancelled = False
        """The question was cancelled, and has been asked once more."""
        self.untracked = False
        """A setting whose name can't be told was set."""

    # ---- what may have changed

    def note(self, effects: Effect, settings: frozenset[str]) -> None:
        """A text with these effects is sent."""
        self.touched |= effects
        self._names |= settings

    def note_unseen(self, classification: Classification) -> None:
        """Code is sent that can't be seen: what it leaves behind decides whether it is looked after next time."""
        self._unseen += (classification,)

    def note_parameter(self, name: str) -> None:
        """A ParameterStatus came with an answer."""
        if name == "session_authorization" or name == "is_superuser":
            self.touched |= Effect.ROLE
        elif name not in _NOT_SETTINGS:
            self.note(Effect.SET, frozenset((name.lower(),)))

    def _known(self) -> None:
        self.touched = Effect.NONE
        self._names = frozenset()

    # ---- finding out

    def unit_done(self, server: Server, owed: Owed, status: int) -> None:
        """A unit of a touched session has ended: put back what the client's startup asked for, and once
        the session is idle look at what it has become."""
        client = self._client
        unit = owed.unit
        if unit is not None and unit.effects:
            if not owed.failed and unit.is_discard_all:
                self._discarded(server)
                return
            if unit.resets and not owed.failed and status != FAILED and client.startup:
                names = client.startup if Effect.SET_ANY in unit.effects else unit.settings.intersection(client.startup)
                values = {name: client.startup[name] for name in names}
                if values:
                    self._names |= frozenset(values)
                    client.ask(server, rules.set_sql(values), self._put_back)
                    return
        if status == IDLE and client.settled(server):
            self._look(server)

    def _put_back(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        client = self._client
        if client.answered(server):
            if server.status == IDLE and not server.owed:
                self._look(server)
            client.proceed(server)

    def _discarded(self, server: Server) -> None:
        """DISCARD ALL succeeded: the session is as after login, which for this client is its startup."""
        client = self._client
        server.state = client.worker.states.empty
        server.unseen_by = None
        client.state = client.startup_state
        client.wish(client.startup_wishes)
        client.pins &= rules.SESSION_PINS
        client.names.own = False
        self._known()
        self._unseen = ()
        if client.pins and client.startup:
            client.ask(server, rules.sync_sql({}, client.state.values), self._reapplied)

    def _reapplied(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        client = self._client
        if client.answered(server):
            server.state = client.state
            client.proceed(server)

    def _look(self, server: Server) -> None:
        """Ask the server what has become of the session."""
        client = self._client
        if rules.PIN_SESSION in client.pins:
            self._known()
            client.forget_meaning()
            return
        effects = rules.audited(self.touched)
        names = self._names
        if Effect.SET_ANY in effects:
            names |= {name for name in (*client.state.values, *client.wishes) if "." in name}
        sql = rules.audit_sql(effects, names, server.pool.user)
        if Effect.LOAD in effects:
            client.pins |= {rules.PIN_LOAD}
        if self.untracked:
            # A custom setting may be among them, and those can't be listed.
            self.untracked = False
            client.pins |= {rules.PIN_UNKNOWN}
        if not sql:
            self._known()
            return
        client.worker.counters.audits += 1
        client.ask(server, sql, self._looked)

    def _looked(self, server: Server, rows: list[list[bytes | None]], error: dict[str, str] | None) -> None:
        client = self._client
        if not client.answered(server):
            return
        if error is not None and error.get("C") == _CANCELLED and not self._cancelled:
            self._cancelled = True  # by what was meant for the statement before
            self._look(server)
            return
        self._cancelled = False
        effects = rules.audited(self.touched)
        unseen = self._unseen
        self._known()
        self._unseen = ()
        if error is not None:
            # What the session is can't be told: the client keeps this server, nobody else gets it.
            client.pins |= {rules.PIN_UNKNOWN}
            client.proceed(server)
            return
        worker = client.worker
        before = {**client.state.values, **client.wishes} if client.wishes else client.state.values
        answer = rules.read_audit((_texts(row) for row in rows), effects, before, client.pins)
        values, wishes = divide(answer.values)
        state = worker.states.intern(values)
        client.wish(wishes)
        clean = state is client.state and answer.pins == client.pins
        for classification in unseen:
            worker.trust.note((client.settings.dbname, classification), clean)
        if answer.pins and not client.pins:
            worker.counters.pins += 1
        client.state = server.state = state
        client.pins = answer.pins
        client.forget_meaning()
        if Effect.PREPARE in effects:
            client.names.sql = frozenset(name.encode("utf-8", "surrogateescape") for name in answer.prepared)
        client.proceed(server)


def _texts(row: list[bytes | None]) -> tuple[str, str, str | None]:
    if len(row) < 3:
        raise ProtocolViolation("a node's answer to a question of the proxy has another shape")
    kind, name, value = (None if v is None else v.decode("utf-8", "replace") for v in row[:3])
    return kind or "", name or "", value
