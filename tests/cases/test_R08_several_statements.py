"""R08: a string of several statements goes to one node in one piece, as one implicit transaction."""

from __future__ import annotations

from ..support.target import Target
from ..support.witness import ON_POSTGRES_AND_SPLIT, Witness


@ON_POSTGRES_AND_SPLIT
def test_results_in_order_and_one_end(target: Target, witness: Witness) -> None:
    client = target.client()
    both = witness.on_primary(client, "SELECT 1; INSERT INTO trail(item_id) VALUES (1)")
    assert both == "T[?column?] D[1] C[SELECT 1] C[INSERT 0 1] ZI"
    reads = witness.on_one(client, "SELECT ';INSERT'; SELECT 2;;")
    assert reads == "T[?column?] D[;INSERT] C[SELECT 1] T[?column?] D[2] C[SELECT 1] ZI"
    assert client.value("SELECT count(*) FROM trail") == "1"


@ON_POSTGRES_AND_SPLIT
def test_an_implicit_transaction(target: Target, witness: Witness) -> None:
    client = target.client()
    assert witness.on_primary(client, "INSERT INTO trail(item_id) VALUES (100); SELECT 1/0").endswith("E[22012] ZI")
    assert client.value("SELECT count(*) FROM trail WHERE item_id = 100") == "0"
    inner = "INSERT INTO trail(item_id) VALUES (101); COMMIT; SELECT 1/0"
    replies = witness.on_primary(client, inner)
    assert replies.startswith("C[INSERT 0 1] N[WARNING 25P01] C[COMMIT]") and replies.endswith("E[22012] ZI")
    assert client.value("SELECT count(*) FROM trail WHERE item_id = 101") == "1"
    assert witness.on_primary(client, "VACUUM item; SELECT 1") == "E[25001] ZI"


@ON_POSTGRES_AND_SPLIT
def test_a_transaction_that_stays_open(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert witness.on_primary(one, "BEGIN; SELECT 1") == "C[BEGIN] T[?column?] D[1] C[SELECT 1] ZT"
    assert witness.on_primary(one, "INSERT INTO trail(item_id) VALUES (2)") == "C[INSERT 0 1] ZT"
    assert "D[1]" in witness.on_primary(one, "SELECT count(*) FROM trail")
    assert two.value("SELECT count(*) FROM trail") == "0"
    assert witness.on_primary(one, "COMMIT") == "C[COMMIT] ZI"
    assert two.value("SELECT count(*) FROM trail") == "1"


@ON_POSTGRES_AND_SPLIT
def test_a_setting_and_what_needs_it(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert witness.on_primary(one, "SET search_path = tenant_a; SELECT x FROM w").endswith("T[x] D[1] C[SELECT 1] ZI")
    assert "D[1]" in witness.on_one(one, "SELECT x FROM w")
    assert two.query("SELECT x FROM w") == "E[42P01] ZI"
