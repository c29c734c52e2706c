"""R19: currval and lastval are the client's own or an error, never another client's."""

from __future__ import annotations

from ..support.rawpg import Q, show
from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness

INSERT = "INSERT INTO trail(item_id) VALUES (1) RETURNING id"
CURRENT = "SELECT currval(pg_get_serial_sequence('trail', 'id'))"


def test_own_value_or_a_clear_error(target: Target) -> None:
    target.compare = False
    one, two = target.client(pool=2), target.client(pool=2)
    for _ in range(10):
        mine = one.value(INSERT)
        two.run(INSERT, INSERT)
        for sql in ("SELECT lastval()", CURRENT):
            replies = one.send(Q(sql)).until()
            if replies[0].kind == "T":
                assert show(replies[1:2]) in ([f"D[{mine}]"] + ["E[55000]"] * target.pooled)
            else:
                assert target.pooled
                assert show(replies).startswith(("E[55000]", "E[0A000]"))
            two.run(INSERT)


def test_not_yet_defined(target: Target) -> None:
    """A client that never called nextval gets no number, though its server has seen some. The error may be
    the proxy's own."""
    target.compare = False
    one, two = target.client(pool=1), target.client(pool=1)
    two.run(INSERT)
    assert one.query("SELECT lastval()").removeprefix("T[lastval] ") == "E[55000] ZI"
    assert one.query(CURRENT).removeprefix("T[currval] ") == "E[55000] ZI"
    two.close()
    assert one.query("SELECT lastval()").removeprefix("T[lastval] ") == "E[55000] ZI"
    three = target.client(pool=1)
    assert three.query("SELECT lastval()").removeprefix("T[lastval] ") == "E[55000] ZI"


def test_in_a_transaction(target: Target) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    for _ in range(5):
        one.run("BEGIN")
        mine = one.value(INSERT)
        two.run(INSERT)
        assert one.value("SELECT lastval()") == mine
        assert one.value(CURRENT) == mine
        one.run("COMMIT")


def test_in_one_string_and_one_batch(target: Target) -> None:
    one = target.client(pool=2)
    rows = one.rows(f"{INSERT}; SELECT lastval()")
    assert rows[0] == rows[1]


@ON_POSTGRES_AND_SPLIT
def test_no_replica_is_asked(target: Target, witness: Witness) -> None:
    """In a block, and outside where the answer may be an error of the proxy's."""
    target.compare = False
    one = target.client(pool=2)
    for form in FORMS:
        mine = one.value(INSERT)
        for sql in ("SELECT lastval()", CURRENT):
            witness.ready()
            replies, nodes = witness.ran(one, sql, form)
            assert (f"D[{mine}]" in replies or "E[" in replies) and nodes <= {"primary"}
        one.run("BEGIN")
        mine = one.value(INSERT)
        for sql in ("SELECT lastval()", CURRENT):
            assert f"D[{mine}]" in witness.on_primary(one, sql, form)
        one.run("COMMIT")
