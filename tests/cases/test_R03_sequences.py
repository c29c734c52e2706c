"""R03: sequences are moved and read on the primary, wherever the call hides."""

from __future__ import annotations

from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness

STEPS = (
    ("SELECT nextval('ticket')", "1"),
    ("SELECT setval('ticket', 100)", "100"),
    ("SELECT n FROM ticket_view", "101"),
    ("SELECT pg_catalog.nextval('ticket'::regclass)", "102"),
    ("SELECT coalesce((SELECT nextval('ticket')), 0)", "103"),
    # Values are logged ahead: a standby would say 132.
    ("SELECT last_value FROM ticket", "103"),
    ("TABLE ticket", "103,"),
)


@ON_POSTGRES_AND_SPLIT
def test_sequences(target: Target, witness: Witness) -> None:
    client = target.client()
    for form in FORMS:
        client.run("ALTER SEQUENCE ticket RESTART")
        for sql, value in STEPS:
            replies = witness.on_primary(client, sql, form)
            assert f"D[{value}" in replies and replies.endswith("C[SELECT 1] ZI"), (sql, replies)


@ON_POSTGRES_AND_SPLIT
def test_a_view_that_has_changed_in_between(target: Target, witness: Witness) -> None:
    """What has just come to move a sequence, by DDL through the proxy, is never tried on a replica."""
    client = target.client()
    client.run("CREATE VIEW harmless AS SELECT 0::bigint AS n")
    assert "D[0]" in witness.on_replica(client, "SELECT n FROM harmless")
    client.run("CREATE OR REPLACE VIEW harmless AS SELECT nextval('ticket') AS n")
    replies, nodes = witness.ran(client, "SELECT n FROM harmless")
    assert "D[1]" in replies and nodes == {"primary"}
    assert "D[2]" in witness.on_primary(client, "SELECT n FROM harmless")
