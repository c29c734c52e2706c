"""R13: a block or a session that begins with a read can write."""

from __future__ import annotations

import pytest

from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness

INSERT = ("INSERT INTO trail(item_id) VALUES (2)", "C[INSERT 0 1]")
BLOCK = (("BEGIN", "C[BEGIN]"), ("SELECT count(*) FROM item", "D[20] C[SELECT 1]"), INSERT, ("COMMIT", "C[COMMIT]"))
SESSION = (
    ("SELECT 1", "D[1] C[SELECT 1]"),
    ("CREATE SCHEMA s1", "C[CREATE SCHEMA]"),
    ("SELECT 1", "D[1] C[SELECT 1]"),
    INSERT,
    ("SELECT count(*) > 0 FROM trail", "D[t] C[SELECT 1]"),
    ("DROP SCHEMA s1", "C[DROP SCHEMA]"),
)


@ON_POSTGRES_AND_SPLIT
def test_transaction_pooling(target: Target, witness: Witness) -> None:
    for form in FORMS:
        client = target.client()
        for steps in (BLOCK, SESSION):
            witness.on_replica(client, "SELECT count(*) FROM item", form)
            for sql, end in steps:
                witness.ready()
                replies, nodes = witness.ran(client, sql, form)
                assert replies[:-3].endswith(end) and len(nodes) == 1, (sql, replies, nodes)


@pytest.mark.settings({"pool": {"mode": "session"}})
@ON_POSTGRES_AND_SPLIT
def test_session_pooling(target: Target, witness: Witness) -> None:
    """Whether such a client has a replica too, or all goes to the primary: no write meets 25006."""
    for form in FORMS:
        client = target.client()
        for sql, end in (*SESSION, *BLOCK):
            replies, nodes = witness.ran(client, sql, form)
            assert replies[:-3].endswith(end) and len(nodes) == 1, (sql, replies, nodes)
