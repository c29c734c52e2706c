"""P10: the COPY sub-protocol, with failures, pauses, early Syncs and clients that vanish."""

from __future__ import annotations

import time

import pytest

from ..support.rawpg import COPY_DONE, EOF, B, D, E, H, P, Q, S, Wire, copy_data, copy_fail
from ..support.target import THROUGH_PROXY, Target

COPY_IN = "COPY ct FROM STDIN"
ALIVE = "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.fixture
def one(target: Target) -> Wire:
    client = target.client()
    client.run("CREATE TABLE ct(a int)")
    return client


def eventually(client: Wire, sql: str, want: str, seconds: float = 10) -> None:
    """Wait for a value that other processes bring about."""
    deadline = time.monotonic() + seconds
    while (got := client.value(sql)) != want:
        assert time.monotonic() < deadline, f"{sql}: {got}, not {want}"
        time.sleep(0.02)


def test_extended_copy_in_eats_the_early_sync(one: Wire) -> None:
    assert one.ask(P("", COPY_IN), B(), E(), S, until="G") == "1 2 G"
    # The server flushes nothing before a Sync that it doesn't eat.
    one.send(copy_data(b"3\n"), COPY_DONE)
    assert one.silence()
    assert one.ask(S) == "C[COPY 1] ZI"
    assert one.value("SELECT a FROM ct") == "3"


def test_extended_copy_in_all_at_once(one: Wire) -> None:
    assert one.ask(P("", COPY_IN), B(), E(), copy_data(b"4\n"), COPY_DONE, S) == "1 2 G C[COPY 1] ZI"
    # Two Syncs, one of them eaten in copy mode.
    assert one.ask(P("", COPY_IN), B(), E(), S, copy_data(b"5\n"), H, S, COPY_DONE, S) == "1 2 G C[COPY 1] ZI"
    assert one.query("SELECT 1") == ALIVE
    assert one.value("SELECT count(*) FROM ct") == "2"


def test_extended_copy_in_fails(one: Wire) -> None:
    assert one.ask(P("", COPY_IN), B(), E(), copy_fail("stop"), S) == "1 2 G E[57014] ZI"
    assert one.ask(P("", COPY_IN), B(), E(), S, copy_data(b"zz\n"), COPY_DONE, S) == "1 2 G E[22P02] ZI"
    assert one.query("SELECT 1") == ALIVE


def test_batch_goes_on_behind_copy(one: Wire) -> None:
    batch = (P("", COPY_IN), B(), E(), copy_data(b"6\n"), COPY_DONE, P("", "SELECT count(*) FROM ct"), B(), E(), S)
    assert one.ask(*batch) == "1 2 G C[COPY 1] 1 2 D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("first", ["CREATE TABLE made(a int)", "SET work_mem = '1MB'", "SELECT 1"])
def test_copies_among_statements(one: Wire, first: str) -> None:
    """Data goes to the copies while what the other statements do to the session is still to be found out."""
    one.run("DROP TABLE IF EXISTS made")
    several = f"{first}; {COPY_IN}; SELECT a FROM ct; {COPY_IN}; SET extra_float_digits = 2"
    assert one.ask(Q(several), until="G").endswith("G")
    assert one.ask(copy_data(b"1\n"), COPY_DONE, until="G") == "C[COPY 1] T[a] D[1] C[SELECT 1] G"
    # A Query behind the data waits for its own turn.
    assert one.ask(copy_data(b"2\n3\n"), COPY_DONE, Q("SHOW extra_float_digits")) == "C[COPY 2] C[SET] ZI"
    assert one.ask() == "T[extra_float_digits] D[2] C[SHOW] ZI"
    assert one.value("SELECT count(*) FROM ct") == "3"


@pytest.mark.parametrize("first", ["CREATE TABLE made(a int)", "SELECT 1"])
def test_copies_among_statements_whose_data_come_early(one: Wire, first: str) -> None:
    one.run("DROP TABLE IF EXISTS made")
    several = f"{first}; {COPY_IN}; {COPY_IN}; SELECT count(*) FROM ct"
    one.send(Q(several), copy_data(b"1\n"), COPY_DONE)
    assert one.ask(copy_data(b"2\n"), COPY_DONE).endswith("G C[COPY 1] G C[COPY 1] T[count] D[2] C[SELECT 1] ZI")
    one.send(Q(several.removeprefix(first + "; ")), copy_data(b"1\n"), COPY_DONE, copy_fail("enough"))
    assert one.ask() == "G C[COPY 1] G E[57014] ZI"
    assert one.query("SELECT 1") == ALIVE
    assert one.value("SELECT count(*) FROM ct") == "2"
    # In the second copy Sync and Flush mean nothing, though the data of the first had come before it was asked for.
    one.send(Q("SELECT 1; " + several.removeprefix(first + "; ")), copy_data(b"1\n"), COPY_DONE)
    assert one.ask(until="G").endswith("C[SELECT 1] G")
    assert one.ask(until="G") == "C[COPY 1] G"
    assert one.ask(S, H, copy_data(b"2\n"), COPY_DONE) == "C[COPY 1] T[count] D[4] C[SELECT 1] ZI"
    assert one.query("SELECT 1") == ALIVE


def test_extended_copy_in_a_transaction_that_has_set_something(one: Wire) -> None:
    one.run("BEGIN", "SET work_mem = '9MB'")
    batch = (P("", COPY_IN), B(), E(), copy_data(b"6\n"), COPY_DONE, P("", "SELECT count(*) FROM ct"), B(), E(), S)
    assert one.ask(*batch) == "1 2 G C[COPY 1] 1 2 D[1] C[SELECT 1] ZT"
    one.run("COMMIT")


@pytest.mark.parametrize("extended", [False, True])
def test_what_is_parsed_behind_a_copy_that_changed_the_path(target: Target, extended: bool) -> None:
    """It is parsed by the new search_path, and never given to somebody who has another one."""
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("CREATE TABLE ct(a int)")
    setting, copy = "SET search_path = tenant_a", "COPY public.ct FROM STDIN"
    behind = (copy_data(b"1\n"), COPY_DONE, *([S] if extended else []), P("s", "SELECT x FROM w"), S)
    if extended:
        one.ask(P("", setting), B(), E(), P("", copy), B(), E(), S, until="G")
    else:
        one.ask(Q(f"{setting}; {copy}"), until="G")
    one.send(*behind)
    assert one.ask() == "C[COPY 1] ZI"
    assert one.ask() == "1 ZI"
    assert two.ask(P("t", "SELECT x FROM w"), B("", "t"), E(), S) == "E[42P01] ZI"
    assert one.ask(B("", "s"), E(), S) == "2 D[1] C[SELECT 1] ZI"


def test_copy_fail(one: Wire) -> None:
    assert one.ask(Q(COPY_IN), until="G") == "G"
    assert one.ask(copy_data(b"1\n"), copy_fail("stop")) == "E[57014] ZI"
    assert one.value("SELECT count(*) FROM ct") == "0"


def test_empty_copy(one: Wire) -> None:
    assert one.ask(Q(COPY_IN), COPY_DONE) == "G C[COPY 0] ZI"


def test_bad_row_then_much_data(one: Wire) -> None:
    assert one.ask(Q(COPY_IN), until="G") == "G"
    one.send(copy_data(b"zz\n"))
    for _ in range(80):
        one.send(copy_data(b"12345\n" * 10_000))
    assert one.ask(COPY_DONE) == "E[22P02] ZI"
    assert one.silence()
    assert one.query("SELECT 1") == ALIVE


def test_stray_copy_messages(one: Wire) -> None:
    one.send(copy_data(b"1\n"), COPY_DONE, copy_fail("no"))
    assert one.silence()
    assert one.query("SELECT 1") == ALIVE
    assert one.ask(Q("BEGIN"), copy_data(b"1\n"), COPY_DONE, Q("COMMIT"), times=2) == "C[BEGIN] ZT C[COMMIT] ZI"


def test_copy_inside_a_string(one: Wire) -> None:
    assert one.ask(Q(f"SELECT 1; {COPY_IN}; SELECT 2"), until="G") == "T[?column?] D[1] C[SELECT 1] G"
    assert one.ask(copy_data(b"9\n"), COPY_DONE) == "C[COPY 1] T[?column?] D[2] C[SELECT 1] ZI"
    assert one.ask(Q(f"{COPY_IN}; {COPY_IN}"), until="G") == "G"
    assert one.ask(copy_data(b"10\n"), COPY_DONE, until="G") == "C[COPY 1] G"
    assert one.ask(copy_data(b"11\n"), COPY_DONE) == "C[COPY 1] ZI"
    assert one.value("SELECT count(*) FROM ct") == "3"


def test_in_and_out_in_a_string(one: Wire) -> None:
    assert one.ask(Q(f"{COPY_IN}; COPY ct TO STDOUT; SELECT 2"), until="G") == "G"
    assert one.ask(copy_data(b"9\n"), COPY_DONE) == ("C[COPY 1] H d[9\n] c C[COPY 1] T[?column?] D[2] C[SELECT 1] ZI")


def test_query_in_copy_mode(one: Wire) -> None:
    assert one.ask(Q(COPY_IN), until="G") == "G"
    assert one.ask(Q("SELECT 1"), until=EOF) == "E[08P01] E[FATAL 08P01] EOF"


@pytest.mark.parametrize(
    "intruder", [P("", "SELECT 1"), B(), D("S"), E()], ids=["parse", "bind", "describe", "execute"]
)
def test_extended_message_in_copy_mode(one: Wire, intruder: bytes) -> None:
    assert one.ask(Q(COPY_IN), until="G") == "G"
    assert one.ask(intruder, S, until=EOF) == "E[08P01] E[FATAL 08P01] EOF"


def test_pause_in_copy_mode(target: Target, one: Wire) -> None:
    """The server stays this client's own while it thinks; others are served by the pool's other one."""
    assert one.ask(Q(COPY_IN), until="G") == "G"
    one.send(copy_data(b"1"))
    others = [target.client() for _ in range(3)]
    for other in others:
        assert other.query("SELECT 1") == ALIVE
    assert one.silence(0.5)
    assert one.ask(copy_data(b"7\n"), COPY_DONE) == "C[COPY 1] ZI"
    assert one.value("SELECT a FROM ct") == "17"


@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_data_cut_anywhere(one: Wire, width: int) -> None:
    """Both the messages and the rows inside are cut: the stream has no boundaries."""
    rows = b"".join(b"%d\n" % n for n in range(60))
    stream = b"".join(copy_data(rows[at : at + width]) for at in range(0, len(rows), width))
    assert one.ask(Q(COPY_IN), until="G") == "G"
    for at in range(len(stream)):
        one.send(stream[at : at + 1])
    assert one.ask(COPY_DONE) == "C[COPY 60] ZI"
    assert one.value("SELECT sum(a) FROM ct") == "1770"


def test_one_huge_message(one: Wire) -> None:
    rows = b"123456789\n" * 2_000_000
    assert one.ask(Q(COPY_IN), copy_data(rows), COPY_DONE, timeout=60) == "G C[COPY 2000000] ZI"
    assert one.query("SELECT 1") == ALIVE


def test_tiny_messages(one: Wire) -> None:
    one.send(Q(COPY_IN), *[copy_data(b"1\n")] * 50_000, COPY_DONE)
    assert one.ask(timeout=30) == "G C[COPY 50000] ZI"


def test_copy_out(one: Wire) -> None:
    assert one.query("COPY (SELECT * FROM item ORDER BY id LIMIT 2) TO STDOUT") == (
        "H d[1\titem1\t1\n] d[2\titem2\t2\n] c C[COPY 2] ZI"
    )
    assert one.ask(P("", "COPY (SELECT 1) TO STDOUT"), B(), D("P"), E(), S) == "1 2 n H d[1\n] c C[COPY 1] ZI"
    assert one.query("COPY (SELECT 1/(3 - n) FROM generate_series(1, 5) n) TO STDOUT") == "H d[0\n] d[1\n] E[22012] ZI"
    assert one.query("COPY nowhere TO STDOUT") == "E[42P01] ZI"


def test_binary_copy(one: Wire) -> None:
    out = one.send(Q("COPY (SELECT 5) TO STDOUT (FORMAT binary)")).until()
    data = b"".join(r.body for r in out if r.kind == "d")
    assert data.startswith(b"PGCOPY\n\xff\r\n\0")
    assert one.ask(Q("COPY ct FROM STDIN (FORMAT binary)"), copy_data(data), COPY_DONE) == "G C[COPY 1] ZI"
    assert one.value("SELECT a FROM ct") == "5"


def test_in_a_transaction(one: Wire) -> None:
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert one.ask(Q(COPY_IN), copy_data(b"1\n"), COPY_DONE) == "G C[COPY 1] ZT"
    assert one.ask(Q(COPY_IN), copy_fail("no")) == "G E[57014] ZE"
    assert one.query(COPY_IN) == "E[25P02] ZE"
    assert one.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert one.value("SELECT count(*) FROM ct") == "0"


def test_client_leaves_in_copy_out(target: Target, one: Wire) -> None:
    target.compare = False
    one.run("INSERT INTO ct SELECT generate_series(1, 300000)")
    leaver = target.client(pool=1)
    one_more = target.client(pool=1)
    leaver.send(Q("COPY ct TO STDOUT")).until("d")
    leaver.reset()
    assert one_more.query("SELECT 1") == ALIVE
    assert one_more.query("SELECT count(*) FROM item") == "T[count] D[20] C[SELECT 1] ZI"


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("extended", [False, True])
def test_client_leaves_in_copy_in(target: Target, one: Wire, how: str, extended: bool) -> None:
    """No row of it may stay, and the next client gets a clean server."""
    target.compare = False
    leaver = target.client(pool=1)
    start = (P("", COPY_IN), B(), E(), S) if extended else (Q(COPY_IN),)
    leaver.send(*start).until("G")
    leaver.send(copy_data(b"1\n2\n3\n"))
    leaver.close() if how == "close" else leaver.reset()
    other = target.client(pool=1)
    assert other.query("SELECT 1") == ALIVE
    admin = target.admin()
    eventually(admin, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY ct%'", "0")
    assert admin.value("SELECT count(*) FROM ct") == "0"


@THROUGH_PROXY
def test_nobody_else_gets_the_server(target: Target) -> None:
    one = target.client(pool=1)
    one.run("CREATE TABLE ct(a int)")
    two = target.client(pool=1)
    assert one.ask(Q(COPY_IN), until="G") == "G"
    two.send(Q("INSERT INTO ct VALUES (5)"))
    assert two.silence(0.5)
    assert one.ask(copy_data(b"1\n"), COPY_DONE) == "C[COPY 1] ZI"
    assert two.ask() == "C[INSERT 0 1] ZI"
