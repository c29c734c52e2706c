"""P01: clients that share servers use the same names for their prepared statements."""

from __future__ import annotations

import time

import pytest

from ..support.rawpg import B, C, D, E, P, Q, S
from ..support.target import Target


def test_names_are_per_client(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    assert one.ask(P("s1", "SELECT 'one'"), S) == "1 ZI"
    assert two.ask(P("s1", "SELECT 'two'"), S) == "1 ZI"
    assert one.ask(B("", "s1"), E(), S) == "2 D[one] C[SELECT 1] ZI"
    assert two.ask(B("", "s1"), E(), S) == "2 D[two] C[SELECT 1] ZI"
    assert one.ask(B("", "s1"), E(), S) == "2 D[one] C[SELECT 1] ZI"


def test_own_second_use_is_a_duplicate(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    assert one.ask(P("s1", "SELECT 1"), S) == "1 ZI"
    assert two.ask(P("s1", "SELECT 2"), S) == "1 ZI"
    assert one.ask(P("s1", "SELECT 3"), S) == "E[42P05] ZI"
    assert one.ask(P("s1", "SELECT 1"), S) == "E[42P05] ZI"
    assert one.ask(B("", "s1"), E(), S) == "2 D[1] C[SELECT 1] ZI"
    # In one batch as well, whatever comes after is skipped.
    assert one.ask(P("d", "SELECT 4"), P("d", "SELECT 5"), B("", "d"), E(), S) == "1 E[42P05] ZI"
    assert one.ask(B("", "d"), E(), S) == "2 D[4] C[SELECT 1] ZI"


def test_unnamed_statement_is_replaced(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    assert one.ask(P("", "SELECT 4"), P("", "SELECT 5"), B(), E(), S) == "1 1 2 D[5] C[SELECT 1] ZI"
    assert two.ask(P("", "SELECT 'other'"), S) == "1 ZI"
    # The unnamed statement lives on, for each client its own.
    assert one.ask(B(), E(), S) == "2 D[5] C[SELECT 1] ZI"
    assert two.ask(B(), E(), S) == "2 D[other] C[SELECT 1] ZI"
    assert one.ask(D("S"), S) == "t[] T[?column?] ZI"
    # A simple query takes it away.
    assert one.query("SELECT 6") == "T[?column?] D[6] C[SELECT 1] ZI"
    assert one.ask(B(), E(), S) == "E[26000] ZI"
    assert two.ask(B(), E(), S) == "2 D[other] C[SELECT 1] ZI"


@pytest.mark.parametrize("how", ["same batch", "other batch"])
def test_unnamed_statement_of_another_client_is_never_run(target: Target, how: str) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    assert one.ask(P("", "SELECT 'of one'"), S) == "1 ZI"
    if how == "same batch":
        assert two.ask(B(), E(), S) == "E[26000] ZI"
    else:
        assert two.query("SELECT 2") == "T[?column?] D[2] C[SELECT 1] ZI"
        assert two.ask(D("S"), S) == "E[26000] ZI"
    assert one.ask(B(), E(), S) == "2 D[of one] C[SELECT 1] ZI"


def test_a_new_connection_starts_with_no_names(target: Target) -> None:
    one = target.client(pool=1)
    assert one.ask(P("s1", "SELECT 1"), S) == "1 ZI"
    one.close()
    again = target.client(pool=1)
    assert again.ask(B("", "s1"), E(), S) == "E[26000] ZI"
    assert again.ask(P("s1", "SELECT 6"), B("", "s1"), E(), S) == "1 2 D[6] C[SELECT 1] ZI"


def test_same_text_with_other_types(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    assert one.ask(P("t1", "SELECT $1", [23]), D("S", "t1"), S) == "1 t[23] T[?column?] ZI"
    assert two.ask(P("t1", "SELECT $1", [25]), D("S", "t1"), S) == "1 t[25] T[?column?] ZI"
    assert one.ask(D("S", "t1"), S) == "t[23] T[?column?] ZI"
    assert one.ask(B("", "t1", ["x"]), E(), S) == "E[22P02] ZI"
    assert two.ask(B("", "t1", ["x"]), E(), S) == "2 D[x] C[SELECT 1] ZI"
    # One client, two names, the same text.
    assert two.ask(P("t2", "SELECT $1", [23]), D("S", "t2"), D("S", "t1"), S) == (
        "1 t[23] T[?column?] t[25] T[?column?] ZI"
    )
    binary = B("", "t2", [b"\0\0\0\7"], param_formats=[1], formats=[1])
    assert two.send(binary, E(), S).until()[1].values == [b"\0\0\0\7"]


def test_close_frees_only_ones_own(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    for client in (one, two):
        assert client.ask(P("s", "SELECT 'same text'"), S) == "1 ZI"
    assert one.ask(C("S", "s"), S) == "3 ZI"
    assert one.ask(B("", "s"), E(), S) == "E[26000] ZI"
    assert two.ask(B("", "s"), E(), S) == "2 D[same text] C[SELECT 1] ZI"
    assert one.ask(P("s", "SELECT 'new'"), B("", "s"), E(), S) == "1 2 D[new] C[SELECT 1] ZI"


def gone(target: Target, pid: str, seconds: float = 10) -> bool:
    """Whether the proxy has seen within so many seconds that the node ended a server: that sends no event."""
    watch = target.open()
    watch.login({"user": "pool1", "database": "pgtrident"})
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        servers = [row for row in watch.send(Q("SHOW SERVERS")).until() if row.kind == "D"]
        if all(pid.encode() not in row.values for row in servers):
            return True
        time.sleep(0.02)
    return False


def test_works_after_the_server_was_replaced(target: Target) -> None:
    if not target.pooled:
        target.compare = False
        return
    target.compare = False
    one = target.client(pool=1)
    assert one.ask(P("s1", "SELECT 'kept', pg_backend_pid()"), B("", "s1"), D("P"), E(), S).startswith("1 2 T")
    pid = one.value("SELECT pg_backend_pid()")
    admin = target.admin()
    assert admin.value(f"SELECT pg_terminate_backend({pid}, 5000)") == "t"
    assert gone(target, pid)
    replies = one.send(B("", "s1"), E(), S).until()
    assert [r.kind for r in replies] == ["2", "D", "C", "Z"]
    assert replies[1].values[0] == b"kept"
    assert replies[1].values[1] != str(pid).encode()


def test_many_names_over_several_servers(target: Target) -> None:
    """More clients than servers, each with statements of its own under common names."""
    clients = [target.client(pool=2) for _ in range(6)]
    for number, client in enumerate(clients):
        for name in range(5):
            assert client.ask(P(f"S_{name}", f"SELECT {number}, {name}, $1::int"), S) == "1 ZI"
    for round_ in range(3):
        for client in clients:
            for name in range(5):
                client.send(B("", f"S_{name}", [str(round_)]), E(), S)
        for number, client in enumerate(clients):
            for name in range(5):
                assert client.ask() == f"2 D[{number},{name},{round_}] C[SELECT 1] ZI"


def test_in_a_transaction_and_after(target: Target) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert one.ask(P("s1", "SELECT count(*) FROM item"), S) == "1 ZI"
    assert one.query("BEGIN") == "C[BEGIN] ZT"
    assert two.query("BEGIN") == "C[BEGIN] ZT"
    for client in (one, two):
        assert client.ask(P("x", "SELECT 'tx'"), B("", "x"), E(), S) == "1 2 D[tx] C[SELECT 1] ZT"
    assert one.ask(B("", "s1"), E(), S) == "2 D[20] C[SELECT 1] ZT"
    assert one.ask(Q("COMMIT"), B("", "x"), E(), S, times=2) == "C[COMMIT] ZI 2 D[tx] C[SELECT 1] ZI"
    assert two.query("ROLLBACK") == "C[ROLLBACK] ZI"
    assert two.ask(B("", "x"), E(), S) == "2 D[tx] C[SELECT 1] ZI"
