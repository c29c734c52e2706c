"""R01: what begins with SELECT or WITH and writes."""

from __future__ import annotations

from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness

WRITES = (
    "WITH d AS (DELETE FROM item WHERE id = 19 RETURNING id) SELECT * FROM d",
    "WITH q AS (SELECT 1 AS a) INSERT INTO trail(item_id) SELECT a FROM q",
    "SELECT 1 AS a INTO new_tab{n}",
    "SELECT 1 AS a INTO TEMP new_tmp{n}",
)
NESTED = "WITH a AS (WITH b AS (UPDATE item SET qty = qty WHERE id = 1 RETURNING 1) SELECT * FROM b) SELECT 1"


@ON_POSTGRES_AND_SPLIT
def test_writes_behind_a_first_word_that_reads(target: Target, witness: Witness) -> None:
    for number, form in enumerate(FORMS):
        for sql in WRITES:
            # What makes a temporary table ties its client to the primary.
            replies = witness.on_primary(target.client(pool=5), sql.format(n=number), form)
            assert replies.endswith(" ZI") and "E[" not in replies, (sql, replies)
        # PostgreSQL's own refusal.
        assert witness.on_primary(target.client(), NESTED, form).endswith("E[0A000] ZI")
    client = target.client()
    assert client.value("SELECT count(*) FROM item") == "19"
    assert client.value("SELECT count(*) FROM trail") == "2"
    assert client.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'new!_tab%' ESCAPE '!'") == "2"


@ON_POSTGRES_AND_SPLIT
def test_a_with_that_only_reads(target: Target, witness: Witness) -> None:
    client = target.client()
    for form in FORMS:
        assert "D[1] C[SELECT 1] ZI" in witness.on_replica(client, "WITH q AS (SELECT 1 AS a) SELECT * FROM q", form)
