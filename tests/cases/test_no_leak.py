"""Many clients on few servers, doing everything that clients do at once: each gets its own rows, its own state,
its own errors and its own notifications, and what was acknowledged is there."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from ..support.rawpg import COPY_DONE, B, C, D, E, H, P, Q, S, Wire, copy_data, copy_fail, show
from ..support.target import DIRECT, PROXY, SPLIT, Target, targets

CLIENTS = 30


class Actor:
    """One client with an id of its own: each step does something, and checks that all it sees is its own."""

    def __init__(self, number: int, target: Target, seed: int) -> None:
        self.number = number
        self.target = target
        self.random = random.Random(f"{seed}/{number}")
        self.steps = 0
        self.acknowledged: set[int] = set()
        self.denied: set[int] = set()
        self.unknown: set[int] = set()
        self.setting: str | None = None
        self.wire = self._connect()
        self._statements: dict[str, str] = {}
        self._actions: list[tuple[int, Callable[[], None]]] = [
            (10, self.simple),
            (10, self.named),
            (5, self.unnamed_over_batches),
            (8, self.pipeline),
            (6, self.failing_batch),
            (8, self.transaction),
            (5, self.write),
            (5, self.set_and_show),
            (3, self.cancelled),
            (3, self.timed_out),
            (3, self.copy),
            (2, self.copy_fails),
            (2, self.temp_table),
            (2, self.listen),
            (2, self.partial_portal),
            (2, self.role),
            (2, self.deallocate),
            (3, self.vanish),
        ]

    def _connect(self) -> Wire:
        target = self.target
        wire = Wire(target.address)
        replies = wire.login(target.params(pool=3, application_name=f"actor{self.number}"), timeout=30)
        assert replies.endswith("ZI"), replies
        self.setting = None
        self._statements = {}
        return wire

    def run(self, until: float) -> None:
        actions = [action for _, action in self._actions]
        weights = [weight for weight, _ in self._actions]
        while time.monotonic() < until:
            self.steps += 1
            action = self.random.choices(actions, weights)[0]
            try:
                action()
            except AssertionError as error:
                error.add_note(f"client {self.number}, step {self.steps}, {action.__name__}")
                raise
            self.wire.log.clear()
        self.wire.close()

    # what it expects

    def tag(self) -> str:
        return f"{self.number}-{self.steps}-{self.random.randrange(10**9)}"

    def expect(self, want: str, *messages: bytes, times: int = 1) -> None:
        got = self.wire.ask(*messages, times=times, timeout=30)
        assert got == want, f"got {got}, want {want} {[r.fields for r in self.wire.log if r.kind == 'E']}"

    # what it does

    def simple(self) -> None:
        tag = self.tag()
        self.expect(f"T[?column?] D[{tag}] C[SELECT 1] ZI", Q(f"SELECT '{tag}'"))

    def named(self) -> None:
        """All clients use the same few names, for texts that differ or are the same."""
        name, tag = f"s{self.random.randrange(4)}", self.tag()
        want = self._statements.get(name)
        if want is None:
            want = self._statements[name] = self.random.choice(["common", f"of {self.number}"])
            self.expect("1 ZI", P(name, f"SELECT '{want}', $1::text"), S)
        self.expect(f"2 D[{want},{tag}] C[SELECT 1] ZI", B("", name, [tag]), E(), S)
        if self.random.random() < 0.2:
            self.expect("t[25] T[?column?,text] 3 ZI", D("S", name), C("S", name), S)
            del self._statements[name]

    def unnamed_over_batches(self) -> None:
        tag = self.tag()
        self.expect("1 ZI", P("", f"SELECT '{tag}'"), S)
        self.expect(f"2 D[{tag}] C[SELECT 1] ZI", B(), E(), S)

    def pipeline(self) -> None:
        """Batches and queries in one write, some failing."""
        messages, want = list[bytes](), list[str]()
        count = self.random.randrange(2, 12)
        for _ in range(count):
            tag = self.tag()
            match self.random.randrange(4):
                case 0:
                    messages.append(Q(f"SELECT '{tag}'"))
                    want.append(f"T[?column?] D[{tag}] C[SELECT 1] ZI")
                case 1:
                    messages += [P("", "SELECT $1::text"), B("", "", [tag]), E(), S]
                    want.append(f"1 2 D[{tag}] C[SELECT 1] ZI")
                case 2:
                    messages += [P("", "SELEC"), B(), E(), S]
                    want.append("E[42601] ZI")
                case _:
                    messages.append(Q(f'SELECT 1/0 AS "{tag}"'))
                    want.append("E[22012] ZI")
        self.expect(" ".join(want), *messages, times=count)

    def failing_batch(self) -> None:
        tag = self.tag()
        self.expect(
            f"1 2 D[{tag}] C[SELECT 1] 1 E[22P02] ZI",
            *(P("", f"SELECT '{tag}'"), B(), E(), P("", "SELECT $1::int"), B("", "", [tag]), E(), S),
        )

    def transaction(self) -> None:
        tag, row = self.tag(), self.random.randrange(1 << 31)
        self.expect("C[BEGIN] ZT", Q("BEGIN"))
        self.expect("C[INSERT 0 1] ZT", Q(f"INSERT INTO log VALUES ({self.number}, {row})"))
        if self.random.random() < 0.5:
            self.expect("C[SAVEPOINT] ZT E[22012] ZE", Q("SAVEPOINT a"), Q("SELECT 1/0"), times=2)
            self.expect("C[ROLLBACK] ZT", Q("ROLLBACK TO a"))
        batch = (P("", f"SELECT '{tag}', count(*) FROM log WHERE row = {row}"), B(), E(), S)
        self.expect(f"1 2 D[{tag},1] C[SELECT 1] ZT", *batch)
        if self.random.random() < 0.5:
            self.expect("C[COMMIT] ZI", Q("COMMIT"))
            self.acknowledged.add(row)
        else:
            self.expect("C[ROLLBACK] ZI", Q("ROLLBACK"))
            self.denied.add(row)

    def write(self) -> None:
        row = self.random.randrange(1 << 31)
        self.expect("C[INSERT 0 1] ZI", Q(f"INSERT INTO log VALUES ({self.number}, {row})"))
        self.acknowledged.add(row)
        self.expect("T[count] D[1] C[SELECT 1] ZI", Q(f"SELECT count(*) FROM log WHERE row = {row}"))

    def set_and_show(self) -> None:
        show_it = "SELECT current_setting('app.me', true), current_setting('application_name')"
        if self.setting is None or self.random.random() < 0.5:
            self.setting = self.tag()
            self.expect("C[SET] ZI", Q(f"SET app.me = '{self.setting}'"))
        want = f"D[{self.setting},actor{self.number}] C[SELECT 1] ZI"
        self.expect(f"T[current_setting,current_setting] {want}", Q(show_it))
        self.expect(f"1 2 {want}", P("", show_it), B(), E(), S)

    def cancelled(self) -> None:
        """Only its own statement, and no later one."""
        self.wire.send(Q(f"SELECT '{self.number}' FROM pg_sleep(3)"))
        time.sleep(self.random.choice([0, 0.001, 0.05]))
        self.wire.cancel()
        got = show(self.wire.until(timeout=30))
        whole = f"T[?column?] D[{self.number}] C[SELECT 1] ZI"
        # A request that comes before the statement has begun is lost, in PostgreSQL as well.
        assert got in ("E[57014] ZI", "T[?column?] E[57014] ZI", whole), got
        self.simple()

    def timed_out(self) -> None:
        self.expect("C[BEGIN] ZT C[SET] ZT", Q("BEGIN"), Q("SET LOCAL statement_timeout = 20"), times=2)
        got = self.wire.query("SELECT pg_sleep(5)", timeout=30)
        assert got in ("T[pg_sleep] E[57014] ZE", "E[57014] ZE"), got
        self.expect("C[ROLLBACK] ZI", Q("ROLLBACK"))

    def copy(self) -> None:
        row = self.random.randrange(1 << 31)
        line = f"{self.number}\t{row}\n".encode()
        at = self.random.randrange(len(line))
        start = self.random.choice([(Q("COPY log FROM STDIN"),), (P("", "COPY log FROM STDIN"), B(), E())])
        end = () if len(start) == 1 else (S,)
        head = "" if len(start) == 1 else "1 2 "
        self.expect(f"{head}G C[COPY 1] ZI", *start, copy_data(line[:at]), copy_data(line[at:]), COPY_DONE, *end)
        self.acknowledged.add(row)
        tag = self.tag()
        self.expect(f"H d[{tag}\n] c C[COPY 1] ZI", Q(f"COPY (SELECT '{tag}') TO STDOUT"))

    def copy_fails(self) -> None:
        self.expect("G E[57014] ZI", Q("COPY log FROM STDIN"), copy_data(b"1\t2\n"), copy_fail("changed my mind"))
        self.expect("G E[22P02] ZI", Q("COPY log FROM STDIN"), copy_data(b"zz\t2\n"), copy_data(b"1\t2\n"), COPY_DONE)

    def temp_table(self) -> None:
        tag = self.tag()
        self.expect("C[SELECT 1] ZI", Q(f"CREATE TEMP TABLE mine AS SELECT '{tag}'::text AS tag"))
        self.expect(f"T[tag] D[{tag}] C[SELECT 1] ZI", Q("SELECT tag FROM mine"))
        self.expect("C[DROP TABLE] ZI", Q("DROP TABLE mine"))

    def listen(self) -> None:
        tag = self.tag()
        self.expect("C[LISTEN] ZI", Q(f"LISTEN ch{self.number}"))
        self.expect(f"C[NOTIFY] A[ch{self.number},{tag}] ZI", Q(f"NOTIFY ch{self.number}, '{tag}'"))
        self.expect("C[UNLISTEN] ZI", Q("UNLISTEN *"))

    def partial_portal(self) -> None:
        tag = self.tag()
        self.expect("C[BEGIN] ZT", Q("BEGIN"))
        sql = f"SELECT '{tag}', n FROM generate_series(1, 5) n"
        self.expect(f"1 2 D[{tag},1] D[{tag},2] s ZT", P("", sql), B("p"), E("p", 2), S)
        self.expect(f"D[{tag},3] D[{tag},4] s D[{tag},5] C[SELECT 1] 3 ZT", E("p", 2), E("p"), C("P", "p"), S)
        self.expect("C[COMMIT] ZI", Q("COMMIT"))

    def role(self) -> None:
        name = f"pool{self.random.choice([1, 2, 5])}"
        self.wire.send(Q(f"SET ROLE {name}"))
        assert "C[SET]" in show(self.wire.until(timeout=30))
        self.expect(
            f"T[current_user,session_user] D[{name},pool3] C[SELECT 1] ZI", Q("SELECT current_user, session_user")
        )
        self.wire.send(Q("RESET ROLE"))
        assert "C[RESET]" in show(self.wire.until(timeout=30))
        self.expect("T[current_user] D[pool3] C[SELECT 1] ZI", Q("SELECT current_user"))

    def deallocate(self) -> None:
        sql = self.random.choice(["DEALLOCATE ALL", "DISCARD ALL"])
        self.expect(f"C[{sql}] ZI", Q(sql))
        self._statements.clear()
        if sql == "DISCARD ALL":
            self.setting = None
        self.expect("E[26000] ZI", B("", "s0"), E(), S)

    def vanish(self) -> None:
        """Go away in the middle of something, and come again."""
        row = self.random.randrange(1 << 31)
        insert = f"INSERT INTO log VALUES ({self.number}, {row})"
        wire = self.wire
        match self.random.randrange(7):
            case 0:
                wire.send(P("", insert), B(), E())
                self.denied.add(row)
            case 1:
                wire.send(P("", insert), B(), E(), H).until("C", timeout=30)
                self.denied.add(row)
            case 2:
                wire.send(Q("BEGIN"), Q(insert)).until(times=2, timeout=30)
                self.denied.add(row)
            case 3:
                wire.send(Q(insert))
                self.unknown.add(row)
            case 4:
                wire.send(Q("SELECT repeat('x', 1000) FROM generate_series(1, 20000)")).until("D", timeout=30)
            case 5:
                wire.send(Q("COPY log FROM STDIN"), copy_data(f"{self.number}\t{row}\n".encode())).until(
                    "G", timeout=30
                )
                self.denied.add(row)
            case _:
                wire.send(Q(insert)[:-2])
                self.denied.add(row)
        (wire.reset if self.random.random() < 0.5 else wire.close)()
        self.wire = self._connect()


def stress(target: Target, seconds: float, seed: int) -> int:
    """Run all actors; the number of steps. Raises the first fault of each that failed."""
    target.compare = False
    admin = target.admin()
    admin.run("CREATE TABLE log(client int, row bigint)")
    actors = [Actor(number, target, seed) for number in range(CLIENTS)]
    faults: list[BaseException] = []

    def run(actor: Actor) -> None:
        try:
            actor.run(time.monotonic() + seconds)
        except BaseException as error:  # raised again in the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=run, args=(actor,), daemon=True) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
    assert not any(thread.is_alive() for thread in threads), "clients that never ended"
    if faults:
        raise BaseExceptionGroup(f"seed {seed}", faults[:5])
    # What a client left running may still commit or be rolled back.
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'pool3' AND state <> 'idle'"
    deadline = time.monotonic() + 10
    while admin.value(open_ones) != "0":
        assert time.monotonic() < deadline, "servers that are still busy"
        time.sleep(0.05)
    for actor in actors:
        there = {int(row or 0) for (row,) in admin.rows(f"SELECT row FROM log WHERE client = {actor.number}")}
        assert there >= actor.acknowledged, "an acknowledged row is not there"
        assert not there & actor.denied, "a row that was rolled back is there"
        assert not there - actor.acknowledged - actor.unknown, "a row that nobody wrote"
    return sum(actor.steps for actor in actors)


@targets(DIRECT, PROXY, SPLIT)
def test_each_client_sees_only_its_own(target: Target) -> None:
    assert stress(target, 8, seed=1) > 10 * CLIENTS


@pytest.mark.full
@targets(PROXY, SPLIT)
@pytest.mark.parametrize("seed", range(2, 12))
def test_each_client_sees_only_its_own_many_seeds(target: Target, seed: int) -> None:
    assert stress(target, 30, seed) > 10 * CLIENTS
