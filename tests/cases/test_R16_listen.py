"""R16: LISTEN binds a client to its server; notifications reach it, also while it is idle, and nobody else."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, E, P, Q, S, show
from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness


@pytest.mark.parametrize("how", ["simple", "extended", "in a transaction"])
def test_listen_and_notify(target: Target, how: str) -> None:
    one, two, three = target.client(pool=2), target.client(pool=2), target.client(pool=2)
    match how:
        case "simple":
            assert one.query("LISTEN jobs") == "C[LISTEN] ZI"
        case "extended":
            assert one.ask(P("", "LISTEN jobs"), B(), E(), S) == "1 2 C[LISTEN] ZI"
        case "in a transaction":
            one.run("BEGIN", "LISTEN jobs", "COMMIT")
    assert two.query("NOTIFY jobs, 'one'") == "C[NOTIFY] ZI"
    assert two.query("SELECT pg_notify('jobs', 'two')") == "T[pg_notify] D[] C[SELECT 1] ZI"
    two.run("BEGIN", "NOTIFY jobs, 'three'", "ROLLBACK")
    assert show([one.read(5), one.read(5)]) == "A[jobs,one] A[jobs,two]"
    assert one.silence()
    # One's own, and at its place in front of ReadyForQuery.
    assert one.query("NOTIFY jobs, 'own'") == "C[NOTIFY] A[jobs,own] ZI"
    assert one.query("SELECT pg_listening_channels()") == "T[pg_listening_channels] D[jobs] C[SELECT 1] ZI"
    for other in (two, three):
        assert other.query("SELECT pg_listening_channels()") == "T[pg_listening_channels] C[SELECT 0] ZI"
        assert other.silence(0.1)
    assert one.query("UNLISTEN jobs") == "C[UNLISTEN] ZI"
    assert two.query("NOTIFY jobs, 'four'") == "C[NOTIFY] ZI"
    assert one.silence()
    assert one.query("SELECT pg_listening_channels()") == "T[pg_listening_channels] C[SELECT 0] ZI"


@pytest.mark.parametrize("end", ["UNLISTEN *", "UNLISTEN jobs", "DISCARD ALL"])
def test_server_is_free_afterwards(target: Target, end: str) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("LISTEN jobs", end)
    assert two.query("NOTIFY jobs, 'x'") == "C[NOTIFY] ZI"
    assert two.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
    assert one.silence()
    assert one.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


def test_listener_leaves(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("LISTEN jobs")
    one.close()
    assert two.query("NOTIFY jobs, 'x'") == "C[NOTIFY] ZI"
    assert two.query("SELECT pg_listening_channels()") == "T[pg_listening_channels] C[SELECT 0] ZI"


def test_rolled_back_listen(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("BEGIN", "LISTEN jobs", "ROLLBACK")
    assert two.query("NOTIFY jobs, 'x'") == "C[NOTIFY] ZI"
    assert one.silence()


def test_many_listeners(target: Target) -> None:
    listeners = [target.client(pool=20) for _ in range(6)]
    for number, listener in enumerate(listeners):
        listener.run(f"LISTEN ch{number % 2}")
    sender = target.client(pool=2)
    for number in range(4):
        sender.run(f"NOTIFY ch{number % 2}, 'n{number}'")
    for number, listener in enumerate(listeners):
        mine = [f"A[ch{number % 2},n{k}]" for k in range(4) if k % 2 == number % 2]
        assert show([listener.read(5) for _ in mine]) == " ".join(mine)
        assert listener.silence(0.05)


@pytest.mark.parametrize("pool", [2, 20])
def test_notifications_tell_who_sent_them(target: Target, pool: int) -> None:
    """By the process id that the sender was told at login: drivers drop by that what is their own."""
    clients = [target.client(pool=pool) for _ in range(4)]
    assert len({client.pid for client in clients}) == len(clients)
    one = clients[0]
    one.run("LISTEN jobs")
    for client in clients:
        client.run("NOTIFY jobs", "BEGIN", "NOTIFY jobs", "SELECT 1", "COMMIT")
        assert client.ask(P("", "NOTIFY jobs"), B(), E(), S).startswith("1 2 C[NOTIFY] ")
        while sum(reply.kind == "A" for reply in one.log) < 3:
            one.read(5)
        assert [int.from_bytes(reply.body[:4], "big") for reply in one.log if reply.kind == "A"] == [client.pid] * 3
        one.log.clear()


def test_notification_before_the_session_is_looked_at(target: Target) -> None:
    """Each SET has the proxy ask the server what has become of the session; what comes with that answer counts."""
    one, two = target.client(pool=2), target.client(pool=2)
    one.run("LISTEN jobs")
    for number in range(50):
        one.send(Q(f"SET lock_timeout = {number}"))
        assert two.query("NOTIFY jobs") == "C[NOTIFY] ZI"
        one.until()
    while sum(reply.kind == "A" for reply in one.log) < 50:
        assert one.read(5).kind == "A"
    target.compare = False


@ON_POSTGRES_AND_SPLIT
def test_no_replica_is_asked(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    for form in FORMS:
        assert witness.on_primary(one, "LISTEN jobs", form).endswith("C[LISTEN] ZI")
        assert witness.on_primary(two, "NOTIFY jobs, 'one'", form).endswith("C[NOTIFY] ZI")
        assert witness.on_primary(two, "SELECT pg_notify('jobs', 'two')", form).endswith("C[SELECT 1] ZI")
        assert show([one.read(5), one.read(5)]) == "A[jobs,one] A[jobs,two]"
