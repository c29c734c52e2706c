"""How the permits of one limit are split over workers: who may open how many servers.

A limit (`pool_size` of a pool, `max_connections` of a node, the total) holds over all workers.
Without a word exchanged each worker has its `first_share`. A starved worker asks; the broker grants
what is free, else lowers the grant of the one that holds most. A lowered grant frees a permit only
once its holder says that the socket is closed, so never more than the limit are open. When a reload
changes a limit, a worker takes its first share of the new one for the keys it never asked or was
granted anything for, and tells the broker the new limit (`ask` with a count of 0) for the others.

- Nobody is lowered under an equal part for another that has no less, unless it hasn't asked lately
  (then it has them idle: one that needs them asks again, and equal parts are restored).
- With fewer permits than hungry workers a permit goes round: who has had it for `TURN` passes it on.

Owns who holds what; must not open or close anything. Pure: the moment is an argument. Called by
`controlplane.publish` (Broker) and by the workers' pools (`first_share`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

HUNGRY_FOR = 1.0
"""Seconds that a wish counts."""
BUSY_FOR = 10.0
"""Seconds after its last wish in which a worker is taken to need all it holds."""
MAX_KEYS = 10_000
TURN = 0.25
"""Seconds after which the only permit is passed on to the next hungry worker."""


def first_share(key: str, limit: int, worker: int, workers: int) -> int:
    """What `worker` (0-based) may hold of `limit` before anything was asked or granted.

    The shares of all workers add up to the limit. Which of them get one more depends on the key, so that
    many small pools don't all land on the first worker.
    """
    whole, rest = divmod(limit, workers)
    return whole + (1 if (worker + crc32(key.encode())) % workers < rest else 0)


@dataclass(frozen=True, slots=True)
class Granted:
    """`worker` may hold `permits` under `key` from now on."""

    worker: int
    key: str
    permits: int


@dataclass(slots=True)
class _Holder:
    granted: int
    """What it was last told."""
    held: int
    """What it may still hold: `granted`, or more until it has given back."""
    wish: int = 0
    asked: float = -float("inf")
    since: float = -float("inf")
    """When its grant was last raised."""


@dataclass(slots=True)
class _Key:
    limit: int
    holders: dict[int, _Holder] = field(default_factory=dict)


class Broker:
    """The permits of all keys that any worker ever asked for.

    At most `MAX_KEYS`: what comes over that stays with its first shares.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._keys: dict[str, _Key] = {}
        self._reported: dict[int, dict[str, int]] = {}

    def join(self, worker: int, permits: Mapping[str, int] | None) -> dict[str, int]:
        """A worker has come. None: it is a new process, the sockets of the one before are closed; it gets
        what is free of each key that was ever shared. Else it is one that came back, and says what it
        holds. Returns what it may hold, for the keys where that isn't its first share."""
        if permits is not None:
            self._reported[worker] = dict(permits)
            for key, count in permits.items():
                if state := self._keys.get(key):
                    state.holders[worker] = _Holder(count, count)
            return dict(permits)
        self._reported.pop(worker, None)
        given: dict[str, int] = {}
        for key, state in self._keys.items():
            state.holders[worker] = _Holder(0, 0)
            mine = min(self._free(state), first_share(key, state.limit, worker, self._workers))
            state.holders[worker] = _Holder(mine, mine)
            given[key] = mine
        # Keys that another worker brought along from before a restart of the controller, whose limit
        # isn't known yet: nothing until this worker asks.
        for reported in self._reported.values():
            for key in reported:
                given.setdefault(key, 0)
        if given:
            self._reported[worker] = dict(given)
        return given

    def ask(self, worker: int, key: str, count: int, limit: int, now: float) -> list[Granted]:
        """A worker is starved of `count` permits, and says what the key's limit is."""
        if key not in self._keys and len(self._keys) >= MAX_KEYS:
            return []
        state = self._key(key, limit)
        holder = state.holders[worker]
        holder.wish = count
        if count:
            holder.asked = now
        return self._settle(key, state, now)

    def give_back(self, worker: int, key: str, holds: int, now: float) -> list[Granted]:
        """A worker still holds `holds`: the grant that it knew when it said so or, if more, its open servers."""
        state = self._keys.get(key)
        if state is None:
            return []
        holder = state.holders[worker]
        holder.held = max(holder.granted, min(holder.held, holds))
        return self._settle(key, state, now)

    def tick(self, now: float) -> list[Granted]:
        """Pass on what has had its turn. To be called every 50 ms while `hungry`."""
        return [grant for key, state in self._keys.items() for grant in self._settle(key, state, now)]

    def hungry(self, now: float) -> bool:
        """Whether any wish is open."""
        return any(self._starved(h, now) for state in self._keys.values() for h in state.holders.values())

    def held(self, key: str) -> dict[int, int]:
        """What each worker may hold now, at most; for console and tests."""
        state = self._keys.get(key)
        return {w: h.held for w, h in state.holders.items()} if state else {}

    def _key(self, key: str, limit: int) -> _Key:
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _Key(limit)
            for worker in range(self._workers):
                count = self._reported.get(worker, {}).get(key)
                if count is None:
                    count = first_share(key, limit, worker, self._workers)
                state.holders[worker] = _Holder(count, count)
        state.limit = limit
        return state

    @staticmethod
    def _free(state: _Key) -> int:
        return state.limit - sum(h.held for h in state.holders.values())

    @staticmethod
    def _starved(holder: _Holder, now: float) -> bool:
        return holder.wish > 0 and now - holder.asked < HUNGRY_FOR

    def _settle(self, key: str, state: _Key, now: float) -> list[Granted]:
        """Hand out what is free, ask back what is needed; returns the grants that changed."""
        before = {w: h.granted for w, h in state.holders.items()}
        self._shrink(state)
        hungry = sorted(
            (w for w, h in state.holders.items() if self._starved(h, now)),
            key=lambda w: (state.holders[w].granted, state.holders[w].since),
        )
        for place, worker in enumerate(hungry):
            holder = state.holders[worker]
            # The poorest may also keep what it was asked to give back and still has.
            kept = holder.held - holder.granted if place == 0 else 0
            raised = min(self._free(state) + kept, holder.wish)
            if raised > 0:
                holder.granted += raised
                holder.held = max(holder.held, holder.granted)
                holder.wish -= raised
                holder.since = now
        if hungry:
            self._ask_back(state, state.holders[hungry[0]], now)
        return [Granted(w, key, h.granted) for w, h in state.holders.items() if h.granted != before[w]]

    @staticmethod
    def _shrink(state: _Key) -> None:
        """After a lowered limit: lower the grants of those that hold most until they fit."""
        excess = sum(h.granted for h in state.holders.values()) - state.limit
        for _ in range(max(0, excess)):
            richest = max(state.holders.values(), key=lambda h: h.granted)
            richest.granted -= 1

    def _ask_back(self, state: _Key, asker: _Holder, now: float) -> None:
        """Lower the grants of others for the poorest. What was asked back before and isn't here yet is on
        its way to it."""
        coming = sum(h.held - h.granted for h in state.holders.values())
        while coming < asker.wish:
            donor = self._donor(state, asker, asker.granted + coming, now)
            if donor is None:
                return
            donor.granted -= 1
            coming += 1

    @staticmethod
    def _donor(state: _Key, asker: _Holder, will_have: int, now: float) -> _Holder | None:
        """Who gives one up for `asker`: first the one that has most of those that don't need it. These
        keep one for their next client, unless the asker would have none at all."""
        others = [h for h in state.holders.values() if h is not asker and h.granted > 0]
        idle = [h for h in others if now - h.asked >= BUSY_FOR and (h.granted > 1 or will_have == 0)]
        if idle:
            return max(idle, key=lambda h: h.granted)
        richer = [h for h in others if h.granted > will_have + 1]
        if richer:
            return max(richer, key=lambda h: h.granted)
        had_turn = [h for h in others if now - h.since >= TURN] if will_have == 0 else []
        return min(had_turn, key=lambda h: h.since, default=None)
