"""What a worker knows of what names mean: a binding for each database whose reads are split.

Owns when a binding is believed, when the controller is asked, and who waits at the door for a database's first
catalogue. What a catalogue means for a statement is `routing.bind`. Called by `worker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ipc.board import Board, slot_of
from ..ipc.messages import Learned, NeedCatalogue
from ..routing.bind import CONFLICT, Binding
from ..sql.catalogue import Catalogue
from ..sql.grammar import normalized
from .unit import Unit

if TYPE_CHECKING:
    from .client import Client
    from .worker import Worker

PATIENCE = 1.0
"""Seconds that the first clients of a database wait until its catalogue is read; without it all their reads would go
to the primary."""
ASK_INTERVAL = 0.05
"""Seconds between two wishes for the same catalogue."""


class Catalogues:
    """Of one worker."""

    def __init__(self, worker: Worker, board: Board | None) -> None:
        """`board` tells of DDL that went through other workers; None where there are none."""
        self._worker = worker
        self._board = board
        self._bindings: dict[str, Binding] = {}
        self._versions: dict[str, int] = {}
        self._changed_ns: dict[str, int] = {}
        self._arrived: list[tuple[Client, bytes]] = []
        """Clients that wait at the door, and what they have sent."""

    def binding(self, database: str) -> Binding:
        """What statements are in a database, which is asked for when its first client comes."""
        binding = self._bindings.get(database)
        if binding is None:
            worker = self._worker
            until = worker.clock.now() + PATIENCE
            binding = self._bindings[database] = Binding(database, worker.config.routing.cache_entries, until)
            worker.send(NeedCatalogue(database, worker.clock.boot_ns()))
        return binding

    def version(self, database: str) -> int:
        """Rises whenever DDL has passed through this worker to a database."""
        return self._versions.get(database, 0)

    def changed(self, database: str) -> None:
        """DDL has ended: no catalogue that was read before is believed any more, by any worker."""
        self._versions[database] = self._versions.get(database, 0) + 1
        now = self._changed_ns[database] = self._worker.clock.boot_ns()
        if self._board is not None:
            self._board.note(slot_of(f"{database} schema"), now)
        binding = self._bindings.get(database)
        if binding is not None:
            self._worker.send(NeedCatalogue(database, now, binding.version))

    def believed(self, client: Client) -> bool:
        """Whether what is known of the names in a client's database still holds; if not, it is being read again."""
        binding = client.binding
        if binding is None:
            return True
        if self._board is not None:
            changed_ns = self._board.latest(slot_of(f"{binding.database} schema"))
        else:
            changed_ns = self._changed_ns.get(binding.database, 0)
        if binding.read_ns > changed_ns:
            return True
        now = self._worker.clock.now()
        if now - binding.asked >= ASK_INTERVAL:
            binding.asked = now
            self._worker.send(NeedCatalogue(binding.database, max(changed_ns, 1), binding.version))
        return False

    def learn(self, database: str, read_ns: int, catalogue: Catalogue | None) -> None:
        """The controller's word. Who has waited for it is let in."""
        binding = self._bindings.get(database)
        if binding is not None:
            binding.learn(catalogue, read_ns)
            self._open_door()

    def refused(self, client: Client, unit: Unit) -> None:
        """The primary has answered what a standby had refused: its like is not tried there again."""
        single = unit.single_text()
        binding = client.binding
        if single is None or binding is None or unit.refused == CONFLICT:
            return
        shape = binding.refuse(single[0], unit.refused)
        if shape:
            text = normalized(single[0].decode("utf-8", "replace"))
            self._worker.send(Learned(binding.database, shape, unit.refused, text))

    def told(self, database: str, refused: dict[str, str]) -> None:
        """The controller's word on what standbys refuse, learned by any worker and not forgotten since."""
        binding = self._bindings.get(database)
        if binding is not None:
            binding.refusals(refused)

    def arrive(self, client: Client, leftover: bytes) -> None:
        """A client has logged in, and has sent this already; it begins once its database is known, or late enough."""
        self._arrived.append((client, leftover))
        self._open_door()

    def expire(self) -> None:
        """Let those in who have waited long enough: their reads stay on the primary until more is known."""
        if self._arrived:
            self._open_door()

    def _open_door(self) -> None:
        now = self._worker.clock.now()
        arrived, self._arrived = self._arrived, []
        for client, leftover in arrived:
            if client.binding is not None and client.binding.until > now:
                self._arrived.append((client, leftover))
            else:
                self._worker.let_in(client, leftover)
