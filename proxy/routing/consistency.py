"""What a read has to see, and which copies hold that.

A session's token tells what it has written and what it has seen. Both are moments of the own clock (boot_ns):
that a copy has replayed all that was committed before a moment is found out by LSN (`controlplane.freshness`), so
no write needs a question of its own. What comes from elsewhere (`pgtrident.token`) is an LSN.

A read that ran on a copy has seen at most what that copy had replayed when it ended: the same copy may serve the
next one at any time, another one when it holds all that was committed before that end. A read of the primary
may have seen all that was committed before its end.

Pure. Called by `dataplane`; copies are looked at by `router`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..errors import TridentError
from ..topology.snapshot import Copy, Freshness

OWN_WRITES = "own_writes"
"""The level of analytic statements of which nothing else is said."""
LEVELS = ("eventual", "session", "key", "global", "strong")
OWN_LEVELS = frozenset(("eventual", "session"))
"""At these a read has to see nothing that other sessions do."""
MOVE_AFTER_NS = 100_000_000
"""Reads stay on the primary for so long after a write even where a copy has it: going over takes a wait."""
MOVE_WAIT = 0.05
"""Seconds that a read waits for the sample by which it may leave the primary without seeing older data."""
SPREAD_FIRST_NS = 4_000_000
SPREAD_LAST_NS = 100_000_000
"""A session that reads without a pause stays on one copy for so long, at first and in the end; then it waits for a
sample, by which others may serve it too. In the end it does so only where another copy has less to do: each wait costs
some milliseconds and a sample (64 clients of `pgbench -S` cost twice the CPU when they always did)."""
SPREAD_AGAIN_NS = 1_000_000_000
"""After a pause of so long it begins anew."""
SPREAD_WAIT = 0.05
"""Seconds that it waits at most."""
BEGIN_WAIT = 0.05
"""Seconds that the first read of a transaction whose BEGIN is held back waits for a copy that holds what was committed
before that; else the transaction begins on the primary."""
VAIN_NS = 1_000_000_000
"""After a wait in vain its session waits no more for so long: the copies are further behind than a wait helps."""
ANALYTIC_WAIT = 1.0
"""Seconds that an analytic statement waits for a columnar node that hasn't yet what its session wrote."""
GLOBAL_WAIT = 0.1
"""Seconds that a `global` read waits for a copy at least: it can't do without a sample."""
TOKEN_WAIT = 1.0
"""Seconds that a statement which may show its session's token waits until that is known."""
FREE_FALLBACKS = 100
"""Reads that may always go to the primary in a second."""


class Token:
    """What a read has to see at least.

    Attributes:
        wrote_ns: all that was committed before this moment; 0 is nothing.
        seen_ns, seen_node: what had been seen at this moment, on this node ("" is the primary).
        lsn: all that lies under this position.
        others: what others with the same key have seen: (moment, tag of the node, 0 is any).
    """

    __slots__ = ("lsn", "others", "seen_node", "seen_ns", "wrote_ns")

    def __init__(
        self,
        wrote_ns: int = 0,
        seen_ns: int = 0,
        seen_node: str = "",
        lsn: int = 0,
        others: list[tuple[int, int]] | None = None,
    ) -> None:
        self.wrote_ns = wrote_ns
        self.seen_ns = seen_ns
        self.seen_node = seen_node
        self.lsn = lsn
        self.others = others

    def of_writes(self) -> Token:
        """What its session wrote, and no more."""
        return Token(self.wrote_ns, lsn=self.lsn)

    def with_floor(self, moment_ns: int) -> Token:
        """The same with all that was committed before this moment."""
        return Token(max(self.wrote_ns, moment_ns), self.seen_ns, self.seen_node, self.lsn, self.others)

    def with_others(self, wrote_ns: int, others: list[tuple[int, int]]) -> Token:
        """The same with what others wrote and saw."""
        return Token(max(self.wrote_ns, wrote_ns), self.seen_ns, self.seen_node, self.lsn, others)

    def held_by(self, node: str, tag: int, copy: Copy) -> bool:
        """Whether a copy holds it. Nothing in particular is held by all; what was seen there is still held, unless it
        may have gone back since."""
        if self is ANY:
            return True
        fresh_ns = copy.fresh_ns
        if fresh_ns <= self.wrote_ns or copy.lsn < self.lsn:
            return False
        since_ns = copy.since_ns
        if fresh_ns <= self.seen_ns and (node != self.seen_node or since_ns >= self.seen_ns):
            return False
        if self.others is not None:
            for moment, seen_on in self.others:
                if fresh_ns <= moment and (not tag or tag != seen_on or since_ns >= moment):
                    return False
        return True


ANY = Token()
"""Nothing in particular: every copy will do."""


def doubted(freshness: Freshness, doubts: Mapping[str, int]) -> Freshness:
    """What is known where these copies may have gone back at these moments (boot_ns): one that holds what was
    committed after its moment has been read since; of another one nothing is known."""
    copies = dict(freshness.copies)
    for name, moment in doubts.items():
        copy = copies.get(name)
        if copy is not None and copy.since_ns < moment:
            fresh_ns = copy.fresh_ns if copy.fresh_ns > moment else 0
            copies[name] = msgspec.structs.replace(copy, fresh_ns=fresh_ns, since_ns=moment)
    return msgspec.structs.replace(freshness, copies=copies)


def patience(
    token: Token,
    level: str,
    causal_wait: float,
    now_ns: int,
    fresh_ns: int,
    vain_ns: int = 0,
    begins: bool = False,
) -> float:
    """Seconds that a read which no copy may serve yet waits for one. `fresh_ns`: of the copy that is furthest;
    `vain_ns`: when its session last waited in vain; `begins`: its transaction has to begin on the primary else.

    After a write its session reads on the primary, without any wait. Each of these reads raises what the next
    one has to see, so one that comes later has to wait for a moment, or the session would never leave.
    """
    if level == OWN_WRITES:
        return max(causal_wait, ANALYTIC_WAIT)
    if causal_wait:
        return max(causal_wait, GLOBAL_WAIT) if level == "global" else causal_wait
    if vain_ns and now_ns - vain_ns < VAIN_NS:
        return 0.0
    if begins:
        return BEGIN_WAIT
    if level == "global":
        return GLOBAL_WAIT
    if fresh_ns > token.wrote_ns and now_ns - token.wrote_ns > MOVE_AFTER_NS:
        return MOVE_WAIT
    return 0.0


class Fallbacks:
    """Reads that went to the primary because no copy could serve them, of all reads, in this second."""

    __slots__ = ("_fell", "_reads", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._reads = 0
        self._fell = 0

    def allows(self, fell: bool, share: int, now: float, *, dry: bool = False) -> bool:
        """Count a read at `now` (seconds), unless it is `dry`; False if it may not go to the primary. `share` in
        percent."""
        second = int(now)
        if dry:
            reads, before = (self._reads + 1, self._fell) if second == self._second else (1, 0)
            return not fell or before < FREE_FALLBACKS or 100 * before < share * reads
        if second != self._second:
            self._second = second
            self._reads = self._fell = 0
        self._reads += 1
        if not fell:
            return True
        if self._fell >= FREE_FALLBACKS and 100 * self._fell >= share * self._reads:
            self._reads -= 1
            return False
        self._fell += 1
        return True


def token_text(timeline: int, lsn: int) -> str:
    """A token that travels between sessions and instances: `TIMELINE:X/Y`. The timeline and not the epoch, which
    each instance counts for itself while there is no store that they share."""
    return f"{timeline}:{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def read_token(text: str) -> tuple[int, int]:
    """(timeline, LSN) of such a text; TridentError (22023) if it is none."""
    timeline, colon, lsn = text.partition(":")
    high, slash, low = lsn.partition("/")
    try:
        if not colon or not slash or not timeline.isdecimal() or len(text) > 40:
            raise ValueError
        return int(timeline), int(high, 16) << 32 | int(low, 16)
    except ValueError:
        raise TridentError(
            f'invalid consistency token: "{text[:40]}"',
            sqlstate="22023",
            hint="A token is what SHOW pgtrident.token says, for example 1:0/16B3748.",
        ) from None
