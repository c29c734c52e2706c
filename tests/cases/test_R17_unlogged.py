"""R17: unlogged tables have no contents on standbys; a table that becomes one is noticed."""

from __future__ import annotations

from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, PRIMARY, Witness

COUNT = "SELECT count(*) FROM item"


@ON_POSTGRES_AND_SPLIT
def test_reads_of_an_unlogged_table(target: Target, witness: Witness) -> None:
    client = target.client()
    for form in FORMS:
        assert "D[2] C[SELECT 1] ZI" in witness.on_primary(client, "SELECT count(*) FROM scratch", form)
        joined = "SELECT i.id FROM item i JOIN scratch s ON s.a = i.id ORDER BY 1"
        assert "D[1] D[2] C[SELECT 2] ZI" in witness.on_primary(client, joined, form)
        assert "D[2] C[SELECT 1] ZI" in witness.on_primary(client, "SELECT (SELECT count(*) FROM scratch)", form)


@ON_POSTGRES_AND_SPLIT
def test_a_table_that_becomes_one(target: Target, witness: Witness) -> None:
    one, two = target.client(), target.client()
    for form in FORMS:
        one.run("ALTER TABLE item SET LOGGED")
        assert "D[20]" in witness.on_replica(two, COUNT, form)
        one.run("ALTER TABLE item SET UNLOGGED")
        for client in (one, two):
            replies, nodes = witness.ran(client, COUNT, form)
            assert "D[20]" in replies and nodes == PRIMARY, (replies, nodes)
            assert "D[20]" in witness.on_primary(client, COUNT, form)


@ON_POSTGRES_AND_SPLIT
def test_a_change_that_passes_by_the_proxy(target: Target, witness: Witness) -> None:
    """A standby may be asked once; what its client is told is the primary's answer."""
    client = target.client()
    # Of a shape that no other case has: it is remembered.
    sql = f"{COUNT} WHERE qty > 0 AND label <> 'passes by'"
    assert "D[20]" in witness.on_replica(client, sql)
    witness.elsewhere("ALTER TABLE item SET UNLOGGED")
    for form in FORMS:
        assert "D[20] C[SELECT 1] ZI" in witness.ran(client, sql, form)[0]
        assert "D[20] C[SELECT 1] ZI" in witness.on_primary(client, sql, form)
