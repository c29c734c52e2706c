"""A05: a read behind a write of one's own finds it, though no replica has replayed it."""

from __future__ import annotations

from ..support.rawpg import B, E, P, S
from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, PRIMARY, Form, Witness, copying, simple

WRITES: dict[str, tuple[tuple[str, Form], ...]] = {
    "insert": tuple(("INSERT INTO trail(item_id) VALUES (1000)", form) for form in FORMS),
    "transaction": (("BEGIN", simple), ("INSERT INTO trail(item_id) VALUES (1000)", simple), ("COMMIT", simple)),
    "string": (("BEGIN; INSERT INTO trail(item_id) VALUES (1000); COMMIT", simple),),
    "function": (("SELECT add_trail(1000)", simple), ("SELECT add_trail_mislabelled(1000)", simple)),
    "view": (("SELECT r FROM trail_view", simple), ("UPDATE trail SET item_id = 1000", simple)),
    "procedure": (("CALL log_item(1000)", simple),),
    "block": (("DO $$ BEGIN PERFORM add_trail(1000); END $$", simple),),
    "cte": (("WITH w AS (INSERT INTO trail(item_id) VALUES (1000) RETURNING id) SELECT * FROM w", simple),),
    "copy": (("COPY trail(item_id) FROM STDIN", copying("1000")),),
    "prepared": (
        ("PREPARE w AS INSERT INTO trail(item_id) VALUES (1000)", simple),
        ("EXECUTE w", simple),
        ("DEALLOCATE w", simple),
    ),
}
FOUND = "SELECT count(*) > 0 FROM trail WHERE item_id = 1000"


@ON_POSTGRES_AND_SPLIT
def test_in_the_same_session(target: Target, witness: Witness) -> None:
    client = target.client(pool=5)
    for how, statements in WRITES.items():
        client.run("TRUNCATE trail")
        target.fleet.caught_up()
        witness.ready()
        assert "D[f]" in witness.on_replica(client, FOUND)
        with target.fleet.paused():
            for sql, form in statements:
                replies = client.ask(*form(sql))
                assert "E[" not in replies and "EOF" not in replies, (how, replies)
            for form in FORMS:
                replies, nodes = witness.ran(client, FOUND, form)
                assert "D[t]" in replies and nodes == PRIMARY, (how, replies, nodes)


@ON_POSTGRES_AND_SPLIT
def test_in_one_pipeline(target: Target, witness: Witness) -> None:
    """The read is on its way before the write is answered."""
    client = target.client(pool=5)
    witness.ready()
    with target.fleet.paused():
        batches = (P("", "INSERT INTO trail(item_id) VALUES (1000)"), B(), E(), S, P("", FOUND), B(), E(), S)
        assert client.ask(*batches, times=2).endswith("C[INSERT 0 1] ZI 1 2 D[t] C[SELECT 1] ZI")


@ON_POSTGRES_AND_SPLIT
def test_after_a_new_login(target: Target, witness: Witness) -> None:
    """What one knew of one's write is not tied to the connection; others see it now or later."""
    target.compare = False
    one, other = target.client(pool=5), target.client(pool=3)
    witness.ready()
    with target.fleet.paused():
        one.run("INSERT INTO trail(item_id) VALUES (1000)")
        one.close()
        again = target.client(pool=5)
        assert again.value(FOUND) == "t"
        assert other.value(FOUND) in ("t", "f")
    target.fleet.caught_up()
    for client in (again, other):
        assert "D[t]" in witness.on_replica(client, FOUND)
