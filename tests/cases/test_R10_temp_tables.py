"""R10: temporary tables shadow real ones, for their client only, and are gone with it."""

from __future__ import annotations

import pytest

from ..support.rawpg import B, E, P, S
from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness

COUNT = "SELECT count(*) FROM item"


@pytest.mark.parametrize(
    "create",
    [
        "CREATE TEMP TABLE item(a int)",
        "CREATE LOCAL TEMPORARY TABLE item(a int)",
        "CREATE TABLE pg_temp.item(a int)",
        "SELECT 1 AS a INTO TEMP item WHERE false",
        "CREATE TEMP TABLE item AS SELECT 1 AS a WHERE false",
        "CREATE TEMP VIEW item AS SELECT 1 AS a WHERE false",
        "DO $$ BEGIN CREATE TEMP TABLE item(a int); END $$",
        "BEGIN; CREATE TEMP TABLE item(a int); COMMIT",
    ],
)
@pytest.mark.parametrize("how", ["simple", "extended"])
def test_shadows_the_real_one(target: Target, create: str, how: str) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert one.value(COUNT) == "20"
    if how == "simple" or ";" in create.split("$$")[0]:
        one.run(create)
    else:
        assert not any(r.kind == "E" for r in one.send(P("", create), B(), E(), S).until())
    for _ in range(3):
        assert one.value(COUNT) == "0"
        assert two.value(COUNT) == "20"
    assert one.ask(P("", COUNT), B(), E(), S) == "1 2 D[0] C[SELECT 1] ZI"
    assert two.ask(P("", COUNT), B(), E(), S) == "1 2 D[20] C[SELECT 1] ZI"
    one.close()
    three = target.client(pool=2)
    assert three.value(COUNT) == "20"
    assert three.query("CREATE TEMP TABLE item(a int)") == "C[CREATE TABLE] ZI"
    assert three.value(COUNT) == "0"


def test_select_into(target: Target) -> None:
    one = target.client(pool=2)
    one.run("SELECT 5 AS k INTO TEMP t5")
    assert one.value("SELECT * FROM t5") == "5"
    assert one.query("DROP TABLE t5") == "C[DROP TABLE] ZI"
    assert one.query("SELECT * FROM t5") == "E[42P01] ZI"


def test_on_commit_drop(target: Target) -> None:
    """Nothing is left after the transaction, so the only server is free again."""
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("BEGIN", "CREATE TEMP TABLE x(a int) ON COMMIT DROP")
    assert one.value("SELECT count(*) FROM x") == "0"
    one.run("COMMIT")
    assert one.query("SELECT * FROM x") == "E[42P01] ZI"
    assert two.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("end", ["DISCARD TEMP", "DISCARD ALL", "DROP TABLE t"])
def test_freed_by_discard(target: Target, end: str) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("CREATE TEMP TABLE t(a int)", end)
    assert two.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
    assert one.query("SELECT * FROM t") == "E[42P01] ZI"


def test_rolled_back(target: Target) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("BEGIN", "CREATE TEMP TABLE item(a int)", "ROLLBACK")
    assert two.value(COUNT) == "20"
    assert one.value(COUNT) == "20"


@ON_POSTGRES_AND_SPLIT
def test_no_replica_is_asked_for_it(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert "D[20]" in witness.on_replica(one, COUNT)
    witness.on_primary(one, "CREATE TEMP TABLE item(a int)")
    for form in FORMS:
        assert "D[0]" in witness.on_primary(one, COUNT, form)
        assert "D[20]" in witness.on_replica(two, COUNT, form)
        assert "D[1]" in witness.on_primary(one, "SELECT 1", form)
    one.run("DROP TABLE item")
    assert "D[20]" in witness.on_replica(one, COUNT)


@pytest.mark.settings({"pool": {"mode": "session"}})
@ON_POSTGRES_AND_SPLIT
def test_session_pooling(target: Target) -> None:
    one, two = target.client(pool=2), target.client(pool=2)
    assert one.value(COUNT) == "20"
    one.run("CREATE TEMP TABLE item(a int)", "SELECT 5 AS k INTO TEMP t5")
    assert (one.value(COUNT), two.value(COUNT), one.value("SELECT * FROM t5")) == ("0", "20", "5")
    one.close()
    three = target.client(pool=2)
    assert three.query("CREATE TEMP TABLE item(a int)") == "C[CREATE TABLE] ZI"
    assert three.value(COUNT) == "0"
    assert three.query("SELECT * FROM t5") == "E[42P01] ZI"
