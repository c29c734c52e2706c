"""P21: a client vanishes in the middle of something: nothing of it reaches the next one, and the pool recovers."""

from __future__ import annotations

import time

import pytest

from ..support.rawpg import B, D, E, H, P, Q, S, Wire, X
from ..support.target import Target

ONE = "T[?column?] D[1] C[SELECT 1] ZI"
HOW = pytest.mark.parametrize("how", ["close", "reset", "terminate"])


def leave(client: Wire, how: str) -> None:
    if how == "terminate":
        client.send(X)
    if how == "reset":
        client.reset()
    else:
        client.close()


def eventually(client: Wire, sql: str, want: str, seconds: float = 10) -> None:
    """Wait for a value that other processes bring about."""
    deadline = time.monotonic() + seconds
    while (got := client.value(sql)) != want:
        assert time.monotonic() < deadline, f"{sql}: {got}, not {want}"
        time.sleep(0.02)


OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"


@HOW
@pytest.mark.parametrize("state", ["open", "failed"])
def test_in_a_transaction(target: Target, how: str, state: str) -> None:
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("BEGIN", "UPDATE item SET qty = 1 WHERE id = 1")
    if state == "failed":
        assert one.query("SELECT 1/0") == "E[22012] ZE"
    leave(one, how)
    assert two.query("UPDATE item SET qty = 2 WHERE id = 1") == "C[UPDATE 1] ZI"
    assert two.value("SELECT qty FROM item WHERE id = 1") == "2"
    eventually(target.admin(), OPEN, "0")


@pytest.mark.parametrize("extended", [False, True])
def test_terminate_in_the_same_write(target: Target, extended: bool) -> None:
    """The INSERT may run or not; its transaction was never committed."""
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("BEGIN")
    insert = "INSERT INTO trail(item_id) VALUES (5)"
    one.send(*((P("", insert), B(), E(), S) if extended else (Q(insert),)), X)
    one.close()
    assert two.value("SELECT count(*) FROM trail") == "0"
    eventually(target.admin(), OPEN, "0")


@pytest.mark.parametrize("how", ["close", "reset"])
def test_large_result_half_read(target: Target, how: str) -> None:
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    one.send(Q("SELECT generate_series(1, 1000000000)"))  # to its end it would take minutes
    one.until("D")
    leave(one, how)
    assert two.query("SELECT 1", timeout=30) == ONE


def test_autocommit_statement_completes_or_is_cancelled(target: Target) -> None:
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    one.send(Q("INSERT INTO trail SELECT 900, 900 FROM pg_sleep(1)"))
    time.sleep(0.2)
    one.close()
    assert two.query("SELECT 1") == ONE
    time.sleep(1.2)
    count = two.value("SELECT count(*) FROM trail")
    assert count == "1" if not target.pooled else count in ("0", "1")


@pytest.mark.parametrize("ending", [(), (H,)], ids=["nothing", "flush"])
@HOW
def test_batch_without_sync(target: Target, how: str, ending: tuple[bytes, ...]) -> None:
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    one.send(P("", "INSERT INTO trail(item_id) VALUES (7)"), B(), E(), *ending)
    if ending:
        one.until("C")
    leave(one, how)
    assert two.query("SELECT 1") == ONE
    assert two.value("SELECT count(*) FROM trail") == "0"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(P("", "SELECT 1")[:-3], id="half a message"),
        pytest.param(Q("SELECT 1")[:3], id="half a header"),
        pytest.param(P("", "SELECT 1") + B() + D("P")[:4], id="batch and half a message"),
        pytest.param(P("", "SELEC") + H, id="skipping until Sync"),
        pytest.param(Q("INSERT INTO trail(item_id) VALUES (1)")[:-1], id="all but one byte"),
    ],
)
@pytest.mark.parametrize("how", ["close", "reset"])
def test_inside_a_message(target: Target, how: str, sent: bytes) -> None:
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    one.send(sent)
    leave(one, how)
    assert two.query("SELECT 1") == ONE
    assert two.value("SELECT count(*) FROM trail") == "0"


def test_open_portal_and_pending_rows(target: Target) -> None:
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    assert one.ask(P("", "SELECT generate_series(1, 100)"), B("p"), E("p", 2), H, until="s") == "1 2 D[1] D[2] s"
    one.close()
    assert two.ask(B("p", ""), S) == "E[26000] ZI"
    assert two.ask(E("p"), S) == "E[34000] ZI"
    assert two.query("SELECT 1") == ONE


def test_state_is_gone_with_the_client(target: Target) -> None:
    """What ties a client to a server is undone before the next one gets that server, or the server is closed."""
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    one.run(
        "CREATE TEMP TABLE item(a int)",
        "SET work_mem = '7MB'",
        "SET search_path = tenant_a",
        "LISTEN jobs",
        "SELECT pg_advisory_lock(4242)",
        "PREPARE p AS SELECT 1",
        "SET SESSION AUTHORIZATION pool2",
        "BEGIN",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "COMMIT",
    )
    one.close()
    assert two.value("SELECT count(*) FROM item") == "20"
    assert two.value("SHOW work_mem") == "4MB"
    assert two.value("SHOW search_path") == '"$user", public'
    assert two.value("SELECT count(*) FROM pg_listening_channels()") == "0"
    assert two.value("SELECT pg_advisory_lock(4242)") == ""  # waits for PostgreSQL's own session to end
    assert two.query("EXECUTE p") == "E[26000] ZI"
    assert two.query("FETCH c") == "E[34000] ZI"
    assert two.value("SELECT session_user") == "pool1"


def test_at_the_moment_of_the_reply(target: Target) -> None:
    """Many clients that begin and go at once: no transaction stays open, and servers are not made anew each time."""
    target.compare = False
    rounds = 60 if target.cut else 200
    admin = target.admin()
    stays = target.client(pool=3)
    for number in range(rounds):
        one = target.client(pool=3)
        one.send(Q("BEGIN"))
        if number % 3:
            one.read()
        (one.reset if number % 2 else one.close)()
        if number % 20 == 0:
            assert stays.query("SELECT 1") == ONE
    eventually(admin, OPEN, "0")
    for _ in range(6):
        assert target.client(pool=3).query("SELECT 1") == ONE
    if target.pooled:
        servers = admin.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'pool3'")
        assert servers is not None
        assert int(servers) <= 3


@pytest.mark.full
def test_at_the_moment_of_the_reply_many_times(target: Target) -> None:
    target.compare = False
    for _ in range(1000):
        one = target.client(pool=3)
        one.send(Q("BEGIN"))
        one.close()
    eventually(target.admin(), OPEN, "0")
