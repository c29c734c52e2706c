"""Permits: never more than the limit, idle ones go where they are needed, nobody starves."""

from __future__ import annotations

import pytest

from proxy.pool.permits import BUSY_FOR, MAX_KEYS, TURN, Broker, Granted, first_share
from proxy.testing import SeededRng

KEY = "n1/app/joe"


class Holder:
    """A worker as the broker sees it: holds up to its grant, and more only until those are free."""

    def __init__(self, number: int, permits: int) -> None:
        self.number = number
        self.permits = permits
        self.busy = 0

    @property
    def holds(self) -> int:
        return max(self.permits, self.busy)


class Fleet:
    def __init__(self, workers: int, limit: int) -> None:
        self.limit = limit
        self.broker = Broker(workers)
        self.now = 0.0
        self.workers = []
        for n in range(workers):
            assert self.broker.join(n, None) == {}
            self.workers.append(Holder(n, first_share(KEY, limit, n, workers)))

    def apply(self, grants: list[Granted]) -> None:
        for g in grants:
            self.workers[g.worker].permits = g.permits
        for g in grants:
            self.tell(g.worker)

    def tell(self, n: int) -> None:
        self.apply(self.broker.give_back(n, KEY, self.workers[n].holds, self.now))

    def ask(self, n: int, count: int) -> None:
        self.apply(self.broker.ask(n, KEY, count, self.limit, self.now))

    def permits(self) -> list[int]:
        return [w.permits for w in self.workers]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("limit", [0, 1, 2, 5, 20, 100])
def test_first_shares_add_up(workers: int, limit: int) -> None:
    shares = [first_share(KEY, limit, n, workers) for n in range(workers)]
    assert sum(shares) == limit
    assert max(shares) - min(shares) <= 1


def test_small_pools_do_not_all_land_on_one_worker() -> None:
    lucky = {n for i in range(50) for n in range(2) if first_share(f"n1/db{i}/u", 1, n, 2)}
    assert lucky == {0, 1}


def test_one_worker_has_everything() -> None:
    fleet = Fleet(1, 20)
    assert fleet.permits() == [20]
    fleet.ask(0, 5)
    assert fleet.permits() == [20]


def test_idle_permits_go_to_the_starved() -> None:
    fleet = Fleet(2, 20)
    fleet.ask(0, 5)
    assert fleet.permits() == [15, 5]
    fleet.ask(0, 100)
    assert fleet.permits() == [19, 1]


def test_a_used_permit_moves_only_after_it_was_given_back() -> None:
    fleet = Fleet(2, 10)
    fleet.workers[1].busy = 5
    fleet.ask(0, 3)
    assert fleet.permits() == [5, 2]
    assert sum(fleet.broker.held(KEY).values()) == 10
    fleet.workers[1].busy = 3
    fleet.tell(1)
    assert fleet.permits() == [7, 2]


def test_two_hungry_workers_end_equal() -> None:
    fleet = Fleet(2, 20)
    fleet.ask(0, 100)
    for _ in range(5):
        fleet.now += 0.1
        fleet.ask(1, 100)
        fleet.ask(0, 100)
    assert fleet.permits() == [10, 10]


def test_fewer_permits_than_workers_circulate() -> None:
    fleet = Fleet(3, 1)
    seen = set()
    for _ in range(30):
        fleet.now += 0.1
        for n in range(3):
            fleet.ask(n, 1)
        assert sum(fleet.permits()) <= 1
        seen |= {n for n, p in enumerate(fleet.permits()) if p}
    assert seen == {0, 1, 2}


def test_a_turn_lasts() -> None:
    fleet = Fleet(2, 1)
    holder = fleet.permits().index(1)
    fleet.ask(1 - holder, 1)
    assert fleet.permits()[1 - holder] == 1
    fleet.now += TURN / 2
    fleet.ask(holder, 1)
    fleet.ask(1 - holder, 1)
    assert fleet.permits()[1 - holder] == 1
    fleet.now += TURN
    fleet.apply(fleet.broker.tick(fleet.now))
    assert fleet.permits()[holder] == 1


def test_wishes_are_forgotten() -> None:
    fleet = Fleet(2, 2)
    fleet.ask(0, 1)
    fleet.ask(1, 1)
    assert fleet.broker.hungry(fleet.now)
    fleet.now += BUSY_FOR
    assert not fleet.broker.hungry(fleet.now)
    assert fleet.broker.tick(fleet.now) == []


def test_a_new_worker_process_gets_what_is_free() -> None:
    fleet = Fleet(2, 20)
    fleet.ask(0, 8)
    assert fleet.permits() == [18, 2]
    assert fleet.broker.join(1, None) == {KEY: 2}
    assert fleet.broker.join(0, None) == {KEY: 10}


def test_a_restarted_controller_learns_what_is_held() -> None:
    fleet = Fleet(2, 20)
    fleet.ask(0, 8)
    broker = Broker(2)
    assert broker.join(0, {KEY: 18}) == {KEY: 18}
    # A new process at the same time: nothing until the limit is known, since the other holds more.
    assert broker.join(1, None) == {KEY: 0}
    assert broker.ask(1, KEY, 1, 20, 0.0) == [Granted(1, KEY, 1)]
    assert broker.held(KEY) == {0: 18, 1: 1}


def test_a_changed_limit() -> None:
    fleet = Fleet(2, 20)
    fleet.ask(0, 0)
    fleet.limit = 10
    fleet.ask(0, 0)
    assert fleet.permits() == [5, 5]
    fleet.limit = 30
    fleet.ask(1, 20)
    assert fleet.permits() == [5, 25]


def test_keys_are_bounded() -> None:
    broker = Broker(2)
    for n in range(MAX_KEYS):
        broker.ask(0, f"n1/app/user{n}", 0, 2, 0.0)
    assert broker.ask(0, KEY, 1, 2, 0.0) == []
    assert broker.held(KEY) == {}
    assert broker.ask(0, "n1/app/user1", 1, 20, 0.0) == [Granted(0, "n1/app/user1", 2)]


@pytest.mark.parametrize("seed", range(60))
def test_never_more_open_than_the_limit(seed: int) -> None:
    rng = SeededRng(seed)
    fleet = Fleet(rng.randint(1, 4), rng.randint(1, 12))
    for _ in range(300):
        fleet.now += rng.random() * 0.3
        worker = rng.choice(fleet.workers)
        action = rng.random()
        if action < 0.4:
            fleet.ask(worker.number, rng.randint(1, 10))
        elif action < 0.7:
            worker.busy = rng.randint(0, worker.holds)
        elif action < 0.9:
            worker.busy = 0
            fleet.tell(worker.number)
        else:
            fleet.apply(fleet.broker.tick(fleet.now))
        assert sum(w.holds for w in fleet.workers) <= fleet.limit, rng
        assert sum(fleet.broker.held(KEY).values()) <= fleet.limit, rng


def test_word_from_before_a_lower_grant_frees_nothing() -> None:
    fleet = Fleet(2, 10)
    assert fleet.broker.ask(0, KEY, 3, 10, 0.0) == [Granted(1, KEY, 2)]
    # Worker 1 has not read its grant of 2 yet, and may still open up to 5.
    assert fleet.broker.give_back(1, KEY, 5, 0.0) == []
    assert fleet.broker.give_back(1, KEY, 2, 0.0) == [Granted(0, KEY, 8)]
