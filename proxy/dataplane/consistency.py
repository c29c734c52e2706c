"""A worker's part in what reads are sure to see: what copies hold as of now, and what others wrote.

Owns the latest word on copies (`Freshness`, with this worker's own doubts), the marks on the board that all workers
share, and the asking for newer samples. What a read has to see, and which copy holds it, is `routing.consistency`.
Called by `routes`, `client`, `server`, `pools` and `worker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ipc.board import Board, slot_of, user_slot
from ..ipc.messages import NeedFreshness
from ..routing.consistency import ANY, OWN_WRITES, Token, doubted, token_text
from ..topology.snapshot import Freshness
from .server import Owed, Server

if TYPE_CHECKING:
    from .client import Client
    from .worker import Worker

NEED_INTERVAL = 0.005
"""Seconds between two messages about what has been written, while nobody waits for it."""
SILENT = 1.0
"""Seconds without news of copies after which the controller may be away."""


class Consistency:
    """Of one worker."""

    def __init__(self, worker: Worker, board: Board | None) -> None:
        self._worker = worker
        self._clock = worker.clock
        self._board = board
        self.freshness = Freshness()
        self._heard = 0.0
        """When the controller last told it."""
        self._doubts: dict[str, int] = {}
        """When copies may have gone back (boot_ns), as far as this worker saw it."""
        self._asked = 0.0
        self._needed_ns = 0

    # ---- what copies hold

    def told(self, freshness: Freshness) -> None:
        """The controller's word on copies."""
        self._heard = self._clock.now()
        self.freshness = doubted(freshness, self._doubts) if self._doubts else freshness

    def doubt(self, node: str) -> None:
        """A copy has broken a connection: it may have been restarted, and go on before where it was. The controller
        sees that too, but it may be away."""
        if node not in self.freshness.copies:
            return
        self._doubts = {name: ns for name, ns in self._doubts.items() if name in self._worker.snapshot.nodes}
        self._doubts[node] = self._clock.boot_ns()
        self.freshness = doubted(self.freshness, self._doubts)
        self._worker.copy_doubted(node)

    def first_seen(self, node: str) -> None:
        """This worker has a connection to a node again. Without one it would not have seen that restarted, nor been
        told if the controller was away."""
        silent = self._clock.now() - self._heard
        if silent > max(SILENT, 3 * self._worker.config.health.sample_interval):
            self.doubt(node)

    def need(self, moment_ns: int, *, waits: bool = False) -> None:
        """Reads are to go to copies that hold what was committed before this moment; the controller looks faster
        while it is asked. Those that don't wait for it yet are told of now and then only."""
        if moment_ns <= self._needed_ns:
            return
        now = self._clock.now()
        if waits or now - self._asked >= NEED_INTERVAL:
            self._asked = now
            self._needed_ns = moment_ns
            self._worker.send(NeedFreshness(moment_ns, waits))

    # ---- what sessions have written and seen

    def key_slot(self, client: Client, key: str) -> int:
        """The board's slot of a consistency key; -1 where there is no board, or others share the fleet: what they
        write is not on it."""
        if self._board is None or self._worker.config.routing.instances > 1:
            return -1
        return slot_of(f"{client.settings.dbname}\0{key}")

    def wrote(self, slot: int) -> None:
        """A unit that may have written has ended; `slot` is its user's. To be said before its client can know, who may
        connect again."""
        if self._board is not None:
            self._board.note(slot, self._clock.boot_ns())

    def begun_with(self, database: str, user: str) -> int:
        """What a new session has to see, as a moment: what sessions of the same user wrote before. It may be one that
        has connected again."""
        return self._board.latest(user_slot(database, user)) if self._board is not None else 0

    def answers(self, server: Server, owed: Owed) -> None:
        """Some of the answer to a unit under a consistency key has come. To be said before its client can know,
        whose next read may go through another worker."""
        board = self._board
        if board is None:
            return
        now = self._clock.boot_ns()
        if owed.wrote:
            board.note(owed.key, now)
        node = "" if server.pool.is_primary() else server.pool.node
        copy = self.freshness.copies.get(node)
        board.note_read(owed.key, now, self._worker.router.tags.get(node, 0), copy.fresh_ns if copy is not None else 0)

    def token(self, client: Client, level: str, mark: int, slot: int) -> Token:
        """What a read of this client has to see; `slot` of the consistency key."""
        if level == "session":
            return client.token
        if level == "key":
            if slot >= 0 and self._board is not None:
                return client.token.with_others(self._board.latest(slot), self._board.reads(slot))
            return client.token.with_others(mark, [])
        if level == "global":
            return client.token.with_others(mark, [])
        return client.token.of_writes() if level == OWN_WRITES else ANY

    def token_text(self, token: Token, mark_ns: int) -> str:
        """What has been written and seen with this token, and before this moment, for another session to go by; ""
        while it isn't known."""
        freshness = self.freshness
        if freshness.sampled_ns <= max(token.wrote_ns, token.seen_ns, mark_ns):
            return ""
        return token_text(freshness.timeline, max(token.lsn, freshness.sampled_lsn))
