"""R04: advisory locks are one for all clients, and belong to who took them until he leaves."""

from __future__ import annotations

import time

from ..support.target import Target
from ..support.witness import ON_POSTGRES_AND_SPLIT, Witness


@ON_POSTGRES_AND_SPLIT
def test_lock_and_unlock(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert witness.on_primary(one, "SELECT pg_advisory_lock(777)") == "T[pg_advisory_lock] D[] C[SELECT 1] ZI"
    for _ in range(3):
        assert "D[f]" in witness.on_primary(two, "SELECT pg_try_advisory_lock(777)")
        # Other work between the two, which may run anywhere, changes nothing.
        assert "D[20]" in witness.on_one(one, "SELECT count(*) FROM item")
    unlock = "SELECT pg_advisory_unlock(777)"
    assert witness.on_primary(one, unlock) == "T[pg_advisory_unlock] D[t] C[SELECT 1] ZI"
    assert "D[t]" in witness.on_primary(two, "SELECT pg_try_advisory_lock(777)")
    # Not one's own any more.
    assert witness.on_primary(one, unlock) == "T[pg_advisory_unlock] N[WARNING 01000] D[f] C[SELECT 1] ZI"


@ON_POSTGRES_AND_SPLIT
def test_until_the_transaction_ends(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    one.run("BEGIN")
    witness.on_primary(one, "SELECT pg_advisory_xact_lock(5)")
    assert "D[f]" in witness.on_primary(two, "SELECT pg_try_advisory_xact_lock(5)")
    one.run("COMMIT")
    assert "D[t]" in witness.on_primary(two, "SELECT pg_try_advisory_xact_lock(5)")


@ON_POSTGRES_AND_SPLIT
def test_free_when_its_owner_leaves(target: Target, witness: Witness) -> None:
    target.compare = False
    one, two = target.client(pool=2), target.client(pool=2)
    witness.on_primary(one, "SELECT pg_advisory_lock(777)")
    one.close()
    deadline = time.monotonic() + 10
    # PostgreSQL's own session takes a moment to end.
    while "D[t]" not in witness.on_primary(two, "SELECT pg_try_advisory_lock(777)"):
        assert time.monotonic() < deadline
