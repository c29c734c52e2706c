"""R23: what speaks about one node, or acts on it, means the primary."""

from __future__ import annotations

from ..support.rawpg import Q, show
from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness

ONE_NODES = (
    ("SELECT count(*) FROM pg_stat_replication", "D[2]"),
    ("SELECT count(*) FROM pg_stat_wal_receiver", "D[0]"),
    ("SELECT sum(n_tup_ins) > 0 FROM pg_stat_user_tables", "D[t]"),
    ("SELECT count(*) > 0 FROM pg_locks", "D[t]"),
    ("SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = pg_backend_pid()", "D[t]"),
    ("SELECT pg_current_wal_lsn() IS NULL", "D[f]"),
    ("SELECT pg_walfile_name(pg_current_wal_lsn()) IS NULL", "D[f]"),
    ("SELECT pg_last_wal_replay_lsn() IS NULL", "D[t]"),
    ("SELECT txid_current() > 0", "D[t]"),
    ("SELECT pg_current_snapshot() IS NULL", "D[f]"),
    ("SELECT pg_cancel_backend(0)", "D[f]"),
    ("SELECT pg_reload_conf()", "D[t]"),
    ("SELECT pg_stat_reset()", "D[]"),
)


@ON_POSTGRES_AND_SPLIT
def test_functions_and_views_of_one_node(target: Target, witness: Witness) -> None:
    target.compare = False
    client = target.client()
    admin = target.admin()
    for form in FORMS:
        # Statistics are told from time to time; this session's at once.
        admin.run("INSERT INTO trail(item_id) VALUES (1)", "SELECT pg_stat_force_next_flush()", "SELECT 1")
        for sql, value in ONE_NODES:
            replies = witness.on_primary(client, sql, form)
            assert value in replies and replies.endswith("C[SELECT 1] ZI"), (sql, replies)


@ON_POSTGRES_AND_SPLIT
def test_a_snapshot_is_handed_over(target: Target, witness: Witness) -> None:
    target.compare = False
    one, two, three = target.client(pool=3), target.client(pool=3), target.client(pool=3)
    witness.ready()
    one.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    snapshot = one.value("SELECT pg_export_snapshot()")
    three.run("INSERT INTO item VALUES (901, 'n', 1)")
    two.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert witness.on_primary(two, f"SET TRANSACTION SNAPSHOT '{snapshot}'") == "C[SET] ZT"
    assert "D[20]" in witness.on_primary(two, "SELECT count(*) FROM item")
    assert three.value("SELECT count(*) FROM item") == "21"
    for client in (one, two):
        client.run("COMMIT")
    assert two.value("SELECT count(*) FROM item") == "21"


@ON_POSTGRES_AND_SPLIT
def test_a_backend_is_ended_by_its_number(target: Target, witness: Witness) -> None:
    target.compare = False
    one, two = target.client(), target.client()
    witness.on_replica(one, "SELECT count(*) FROM item")
    one.run("BEGIN")
    pid = one.value("SELECT pg_backend_pid()")
    assert "D[t]" in witness.on_primary(two, f"SELECT pg_terminate_backend({pid})")
    assert show(one.send(Q("SELECT 1")).until("EOF")) == "E[FATAL 57P01] EOF"
