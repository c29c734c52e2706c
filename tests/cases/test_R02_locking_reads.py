"""R02: reads that lock rows, however they are written."""

from __future__ import annotations

from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness

LOCKING = (
    "SELECT * FROM item WHERE id = 2 FOR UPDATE",
    "SELECT * FROM item ORDER BY id LIMIT 1 FOR NO KEY\nUPDATE OF item SKIP LOCKED",
    "SELECT * FROM item WHERE id = 2 FOR SHARE",
    "SELECT * FROM item WHERE id = 2 FOR KEY SHARE NOWAIT",
    "SELECT * FROM (SELECT * FROM item FOR UPDATE) s",
    "WITH j AS (SELECT id FROM item FOR UPDATE SKIP LOCKED LIMIT 1) SELECT * FROM j",
)
ONLY_WORDS = "SELECT 'x FOR UPDATE' AS for_update FROM item WHERE label = 'FOR SHARE'"


@ON_POSTGRES_AND_SPLIT
def test_locks_are_taken_on_the_primary(target: Target, witness: Witness) -> None:
    client = target.client()
    for form in FORMS:
        for sql in LOCKING:
            replies = witness.on_primary(client, sql, form)
            assert "D[" in replies and replies.endswith(" ZI") and "E[" not in replies, (sql, replies)


@ON_POSTGRES_AND_SPLIT
def test_the_words_alone_lock_nothing(target: Target, witness: Witness) -> None:
    client = target.client()
    for form in FORMS:
        assert witness.on_replica(client, ONLY_WORDS, form).endswith("C[SELECT 0] ZI")
