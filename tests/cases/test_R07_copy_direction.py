"""R07: COPY goes where its direction and its query belong."""

from __future__ import annotations

from ..support.target import Target
from ..support.witness import ON_POSTGRES_AND_SPLIT, Witness, copying


@ON_POSTGRES_AND_SPLIT
def test_what_is_copied_in(target: Target, witness: Witness) -> None:
    client = target.client()
    assert witness.on_primary(client, "COPY trail(item_id) FROM STDIN", copying("7")) == "G C[COPY 1] ZI"
    assert client.value("SELECT count(*) FROM trail WHERE item_id = 7") == "1"


@ON_POSTGRES_AND_SPLIT
def test_what_is_copied_out(target: Target, witness: Witness) -> None:
    client = target.client()
    for sql in ("COPY item TO STDOUT", "COPY (SELECT id FROM item) TO STDOUT", "COPY (VALUES (1)) TO STDOUT"):
        assert witness.on_replica(client, sql).startswith("H d[")


@ON_POSTGRES_AND_SPLIT
def test_queries_that_write_or_lock(target: Target, witness: Witness) -> None:
    client = target.client()
    for sql, end in (
        ("COPY (DELETE FROM item WHERE id = 18 RETURNING id) TO STDOUT", "d[18\n] c C[COPY 1] ZI"),
        ("COPY (SELECT id FROM item FOR UPDATE) TO STDOUT", "c C[COPY 19] ZI"),
        ("COPY (SELECT nextval('ticket')) TO STDOUT", "d[1\n] c C[COPY 1] ZI"),
        ("COPY (WITH w AS (UPDATE item SET qty = 0 RETURNING 1) SELECT 1) TO STDOUT", "d[1\n] c C[COPY 1] ZI"),
        ("COPY scratch TO STDOUT", "d[1\n] d[2\n] c C[COPY 2] ZI"),
    ):
        assert witness.on_primary(client, sql).endswith(end), sql
