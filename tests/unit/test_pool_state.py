"""The bookkeeping of a pool: limits, order of waiters, which server is taken, and what holds at every moment."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.pool.state import Pool


def full(*servers: str, limit: int = 3, max_waiting: int = 10) -> Pool[str, str]:
    """A pool whose servers are all idle, the last named given back last."""
    pool: Pool[str, str] = Pool(limit, max_waiting)
    for server in servers:
        pool.give(server)
    return pool


def test_last_in_first_out() -> None:
    pool = full("a", "b", "c")
    assert [pool.take(), pool.take(), pool.take(), pool.take()] == ["c", "b", "a", None]


def test_the_preferred_one_if_it_is_free() -> None:
    pool = full("a", "b", "c")
    assert pool.take("a") == "a"
    assert pool.take("a") == "c"
    assert pool.take("gone") == "b"


def test_nobody_overtakes_a_waiter() -> None:
    """An idle server (just opened for somebody) is not taken by one that comes later."""
    pool = full("a")
    pool.wait("first", 0.0)
    assert pool.take() is None
    assert pool.give("a") == ("first", 0.0)


def test_first_come_first_served() -> None:
    pool = full("a", limit=1)
    assert pool.take() == "a"
    for number, waiter in enumerate(("x", "y", "z")):
        assert pool.wait(waiter, float(number))
    assert pool.oldest_wait() == 0.0
    assert pool.leave("y")
    assert not pool.leave("y")
    assert pool.give("a") == ("x", 0.0)
    assert pool.oldest_wait() == 2.0
    assert pool.give("a") == ("z", 2.0)
    assert pool.oldest_wait() is None
    assert pool.give("a") is None
    assert list(pool.idle) == ["a"]


def test_the_queue_is_bounded() -> None:
    pool = full(max_waiting=2)
    assert pool.wait("x", 0.0)
    assert pool.wait("y", 0.0)
    assert not pool.wait("z", 0.0)
    assert "z" not in pool.waiting


def test_one_dial_for_each_waiter_within_the_limit() -> None:
    pool = full(limit=2)
    for waiter in "xyz":
        pool.wait(waiter, 0.0)
    assert pool.should_open() == 2
    pool.opening += 1
    assert pool.should_open() == 1
    pool.opening += 1
    assert pool.should_open() == 0
    assert pool.should_open(reserve=1) == 1
    assert pool.should_open(reserve=5) == 1
    pool.opened()
    assert pool.should_open() == 1


def test_a_lowered_limit_names_the_oldest_idle_ones() -> None:
    pool = full("a", "b", "c")
    pool.limit = 1
    assert list(pool.surplus()) == ["a", "b"]
    pool.take()
    assert list(pool.surplus()) == ["a", "b"]
    pool.limit = 0
    assert list(pool.surplus()) == ["a", "b"]
    pool.limit = 3
    assert list(pool.surplus()) == []


def test_a_lost_server_leaves_no_trace() -> None:
    pool = full("a", "b")
    pool.take("a")
    pool.drop("a")
    pool.drop("b")
    pool.drop("b")
    assert pool.size == 0


class Life(RuleBasedStateMachine):
    """Clients come, wait, leave and finish; servers open, fail and die; the limit changes: in any order."""

    @initialize(limit=st.integers(1, 4))
    def begin(self, limit: int) -> None:
        self.pool: Pool[int, str] = Pool(limit, 5)
        self.serial = 0
        self.queue: list[str] = []
        self.using: dict[int, str] = {}

    def _grant(self, server: int, first: tuple[str, float] | None) -> None:
        if first is None:
            assert not self.queue
            return
        waiter, since = first
        assert waiter == self.queue.pop(0) == f"client{since:.0f}"
        self.using[server] = waiter

    @rule(prefer=st.integers(0, 8))
    def arrive(self, prefer: int) -> None:
        self.serial += 1
        name = f"client{self.serial}"
        server = self.pool.take(prefer)
        if server is not None:
            assert server not in self.using
            assert not self.queue
            self.using[server] = name
        elif self.pool.wait(name, float(self.serial)):
            self.queue.append(name)
        else:
            assert len(self.queue) == 5
        self.pool.opening += self.pool.should_open()

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.queue))
        assert self.pool.leave(name)
        self.queue.remove(name)

    @precondition(lambda self: self.using)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        server = data.draw(st.sampled_from(sorted(self.using)))
        del self.using[server]
        self._grant(server, self.pool.give(server))

    @precondition(lambda self: self.pool.opening)
    @rule(good=st.booleans())
    def dial_ends(self, good: bool) -> None:
        self.pool.opened()
        if good:
            self.serial += 1
            self._grant(self.serial, self.pool.give(self.serial))

    @precondition(lambda self: self.pool.size - self.pool.opening)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        server = data.draw(st.sampled_from([*self.pool.idle, *self.pool.taken]))
        self.pool.drop(server)
        self.using.pop(server, None)
        self.pool.opening += self.pool.should_open()

    @rule(limit=st.integers(0, 4))
    def resize(self, limit: int) -> None:
        self.pool.limit = limit
        for server in self.pool.surplus():
            assert server in self.pool.idle
            self.pool.drop(server)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        assert set(pool.taken) == set(self.using)
        assert not set(pool.idle) & set(pool.taken)
        assert list(pool.waiting) == self.queue
        # Nobody waits beside an idle server, and never is more asked for than there is room.
        assert not (pool.idle and pool.waiting)
        assert pool.should_open() <= max(0, pool.limit - pool.size)
        assert pool.size == len(pool.idle) + len(self.using) + pool.opening


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
