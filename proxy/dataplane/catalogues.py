"""What a worker knows of what names mean: a binding for each database, and another one for clients whose reads are
split.

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
ASK_RARELY = 10.0
"""The same where it has never been read, and no read waits for it."""


class Catalogues:
    """Of one worker."""

    def __init__(self, worker: Worker, board: Board | None) -> None:
        """`board` tells of DDL that went through other workers; None where there are none."""
        self._worker = worker
        self._board = board
        self._bindings: dict[tuple[str, bool], Binding] = {}
        self._versions: dict[str, int] = {}
        self._changed_ns: dict[str, int] = {}
        self._columns: dict[str, memoryview] = {}
        """When DDL last ended, by each worker. Kept, since every read looks there (0.4 us less)."""
        self._arrived: list[tuple[Client, bytes]] = []
        """Clients that wait at the door, and what they have sent."""

    def binding(self, database: str, split: bool) -> Binding:
        """What statements are in a database, which is asked for when its first client comes. Only where reads are
        `split` a client waits for that."""
        binding = self._bindings.get((database, split))
        if binding is None:
            worker = self._worker
            until = worker.clock.now() + PATIENCE if split else 0.0
            binding = Binding(database, worker.config.routing.cache_entries, until, split=split)
            binding.asked = worker.clock.now()
            self._bindings[database, split] = binding
            if self._board is not None:
                self._columns[database] = self._board.column(slot_of(f"{database} schema"))
            worker.send(NeedCatalogue(database, worker.clock.boot_ns(), split=split))
        return binding

    def _of(self, database: str) -> list[Binding]:
        return [known for split in (True, False) if (known := self._bindings.get((database, split))) is not None]

    def version(self, database: str) -> int:
        """Rises whenever DDL has passed through this worker to a database."""
        return self._versions.get(database, 0)

    def changed(self, database: str) -> None:
        """DDL has ended: no catalogue that was read before is believed any more, by any worker."""
        self._versions[database] = self._versions.get(database, 0) + 1
        now = self._changed_ns[database] = self._worker.clock.boot_ns()
        if self._board is not None:
            self._board.note(slot_of(f"{database} schema"), now)
        for binding in self._of(database):
            binding.doubt(now)
            self._worker.send(NeedCatalogue(database, now, binding.version, binding.split))

    def believed(self, binding: Binding, *, dry: bool = False) -> bool:
        """Whether what is known of the names in a database still holds; if not, it is being read again, unless that is
        only asked for (`dry`)."""
        changed_ns = self._latest(binding.database)
        if binding.read_ns > changed_ns:
            return True
        if dry:
            return False
        binding.doubt(changed_ns)
        now = self._worker.clock.now()
        if now - binding.asked >= (ASK_INTERVAL if binding.split or binding.version else ASK_RARELY):
            binding.asked = now
            self._worker.send(NeedCatalogue(binding.database, max(changed_ns, 1), binding.version, binding.split))
        return False

    def _latest(self, database: str) -> int:
        """When DDL last ended in a database, through any worker."""
        column = self._columns.get(database)
        if column is not None:
            latest: int = max(column)
            return latest
        return self._changed_ns.get(database, 0)

    def learn(self, database: str, read_ns: int, catalogue: Catalogue | None) -> None:
        """The controller's word. Who has waited for it is let in."""
        bindings = self._of(database)
        for binding in bindings:
            binding.learn(catalogue, read_ns)
        if bindings:
            self._open_door()

    def refused(self, client: Client, unit: Unit) -> None:
        """The primary has answered what a standby had refused: its like is not tried there again."""
        single = unit.single_text()
        binding = client.binding
        if single is None or binding is None or not binding.split or unit.refused == CONFLICT:
            return
        shape = binding.refuse(single[0], unit.refused)
        if shape:
            text = normalized(single[0].decode("utf-8", "replace"))
            self._worker.send(Learned(binding.database, shape, unit.refused, text))

    def told(self, database: str, refused: dict[str, str]) -> None:
        """The controller's word on what standbys refuse, learned by any worker and not forgotten since."""
        binding = self._bindings.get((database, True))
        if binding is not None:
            binding.refusals(refused)

    def told_classes(self, database: str, classes: dict[str, str]) -> None:
        """The controller's word on which reads are analytic, by experience."""
        binding = self._bindings.get((database, True))
        if binding is not None:
            binding.learned(classes)

    def arrive(self, client: Client, leftover: bytes) -> None:
        """A client has logged in, and has sent this already; it begins once its database is known, or late enough."""
        self._arrived.append((client, leftover))
        self._open_door()

    def upkeep(self) -> None:
        """See to DDL that went through other workers, which the fast way doesn't look for. Let those in who have
        waited long enough: their reads stay on the primary until more is known."""
        if self._board is not None:
            for binding in self._bindings.values():
                binding.doubt(self._latest(binding.database))
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
