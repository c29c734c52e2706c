"""P19: replication connections go to the primary, one to one, and never into a pool."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from ..support.rawpg import B, E, P, Q, S, Wire, message, show
from ..support.target import Target


def replication(target: Target, kind: str, pool: int = 1) -> Wire:
    wire = target.open()
    params = target.params(pool=pool, replication=kind)
    assert wire.login(params).endswith("ZI"), show(wire.log[-2:])
    target.compare = False
    return wire


@pytest.mark.parametrize("kind", ["database", "true", "on", "yes", "1"])
def test_identify_system(target: Target, kind: str) -> None:
    wire = replication(target, kind)
    row = wire.rows("IDENTIFY_SYSTEM")[0]
    assert row[0] == target.admin().value("SELECT system_identifier FROM pg_control_system()")
    assert row[3] == (target.database if kind == "database" else None)
    assert wire.query("SHOW work_mem") == "T[work_mem] D[4MB] C[SHOW] ZI"


def test_sql_on_a_logical_connection(target: Target) -> None:
    wire = replication(target, "database")
    assert wire.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
    assert wire.query("SELECT pg_is_in_recovery()") == "T[pg_is_in_recovery] D[f] C[SELECT 1] ZI"
    assert wire.query("INSERT INTO trail(item_id) VALUES (1)") == "C[INSERT 0 1] ZI"


def test_extended_protocol_is_refused_by_the_server(target: Target) -> None:
    wire = replication(target, "database")
    replies = wire.send(P("", "SELECT 1"), S).until()
    assert show(replies) == "E[08P01] ZI"
    assert "replication" in replies[0].fields["M"]
    assert wire.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@pytest.mark.parametrize("kind", ["false", "off", "no", "0"])
def test_no_replication_after_all(target: Target, kind: str) -> None:
    wire = target.client(pool=1, replication=kind)
    assert wire.ask(P("", "SELECT 1"), B(), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
    assert wire.query("IDENTIFY_SYSTEM") == "E[42601] ZI"


def test_nonsense(target: Target) -> None:
    wire = target.open()
    assert wire.login(target.params(pool=1, replication="banana")).endswith("E[FATAL 22023] EOF")


def test_role_without_the_right(target: Target) -> None:
    target.compare = False
    admin = target.admin()
    admin.run("DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN")
    wire = target.open()
    assert wire.login({"user": "plain", "database": target.database, "replication": "database"}).endswith(
        "E[FATAL 42501] EOF"
    )
    admin.run("DROP ROLE plain")


@pytest.mark.parametrize("kind", ["true", "database"])
def test_stream(target: Target, kind: str) -> None:
    """CopyBoth in both directions, and a clean end by CopyDone."""
    admin = target.admin()
    wire = replication(target, kind)
    lsn = wire.rows("IDENTIFY_SYSTEM")[0][2]
    slot = f"slot_{target.database}"
    if kind == "database":
        wire.run(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL test_decoding")
        replies = wire.send(Q(f"START_REPLICATION SLOT {slot} LOGICAL 0/0")).until("W")
    else:
        replies = wire.send(Q(f"START_REPLICATION PHYSICAL {lsn}")).until("W")
    assert show(replies) == "W"
    admin.run("INSERT INTO trail(item_id) VALUES (4711)")
    found = b""
    while (b"4711" if kind == "database" else struct.pack("<i", 4711)) not in found:
        reply = wire.read()
        assert reply.kind == "d", str(reply)
        found += reply.body
    # A standby status update that asks for an answer: a keepalive comes back.
    status = message("d", b"r" + struct.pack("!QQQqB", 0, 0, 0, 0, 1))
    wire.send(status)
    while (reply := wire.read()).body[:1] != b"k":
        assert reply.kind == "d"
    replies = wire.send(message("c")).until()
    assert next(r.kind for r in replies if r.kind != "d") == "c"
    assert replies[-1].kind == "Z"
    assert wire.rows("IDENTIFY_SYSTEM")


@pytest.mark.parametrize("ended", ["terminated", "closed", "closed while streaming"])
def test_never_given_to_another_client(target: Target, ended: str) -> None:
    admin = target.admin()
    wire = replication(target, "database")
    if ended == "closed while streaming":
        lsn = wire.rows("IDENTIFY_SYSTEM")[0][2]
        wire.send(Q(f"START_REPLICATION PHYSICAL {lsn}")).until("W")
    if ended == "terminated":
        wire.send(message("X"))
    wire.close()
    for _ in range(3):
        client = target.client(pool=1)
        assert client.ask(P("", "SELECT 1"), B(), E(), S) == "1 2 D[1] C[SELECT 1] ZI"
        assert client.query("IDENTIFY_SYSTEM") == "E[42601] ZI"
        client.close()
    for _ in range(200):
        if (
            admin.value(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND usename = 'pool1' "
                "AND pid <> ALL (SELECT active_pid FROM pg_replication_slots WHERE active_pid IS NOT NULL)"
            )
            == "0"
        ):
            break
        admin.query("SELECT pg_sleep(0.05)")
    else:
        pytest.fail("the server of a replication client that has gone is still there")


def test_beside_a_full_pool(target: Target) -> None:
    """It takes none of the pool's servers."""
    one = target.client(pool=1)
    one.run("BEGIN")
    wire = replication(target, "database")
    assert wire.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"
    one.run("COMMIT")


def test_base_backup(target: Target, tmp_path: Path) -> None:
    target.compare = False
    cluster = target.fleet.cluster
    host, port = target.address
    done = subprocess.run(
        [
            *(str(cluster.tool("pg_basebackup")), "-h", host, "-p", str(port), "-U", "pool1"),
            *("-D", str(tmp_path / "backup"), "-X", "stream", "-c", "fast", "--no-sync"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "PGSSLMODE": "disable"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "backup" / "backup_manifest").exists()
