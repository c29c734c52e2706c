"""R14: who asks whether this is a primary is told so, whatever node answered the last read."""

from __future__ import annotations

import psycopg
import pytest

from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, Witness

INSERT = "INSERT INTO trail(item_id) VALUES (1)"
READ_WRITE = ("SET transaction_read_only = 0", "SET transaction_read_only = off", "SET TRANSACTION READ WRITE")
PROBES = (
    ("SHOW transaction_read_only", "off"),
    ("SHOW default_transaction_read_only", "off"),
    ("SHOW in_hot_standby", "off"),
    ("SELECT pg_catalog.pg_is_in_recovery()", "f"),
    ("SELECT NOT pg_is_in_recovery() AS writable", "t"),
    ("SELECT current_setting('transaction_read_only')", "off"),
    ("SELECT setting FROM pg_settings WHERE name = 'transaction_read_only'", "off"),
)


@ON_POSTGRES_AND_SPLIT
def test_probes(target: Target, witness: Witness) -> None:
    client = target.client()
    for form in FORMS:
        for sql, value in PROBES:
            witness.on_replica(client, "SELECT count(*) FROM item", form)
            assert f"D[{value}] " in witness.on_primary(client, sql, form), sql
    assert client.status["in_hot_standby"] == "off"
    assert client.status["default_transaction_read_only"] == "off"


@ON_POSTGRES_AND_SPLIT
def test_setting_read_write(target: Target, witness: Witness) -> None:
    client = target.client()
    for form in FORMS:
        for setting in (
            "SET transaction_read_only = 0",
            "SET transaction_read_only = off",
            "SET TRANSACTION READ WRITE",
        ):
            witness.on_replica(client, "SELECT count(*) FROM item", form)
            witness.ready()
            for sql, end in (
                ("BEGIN", "C[BEGIN] ZT"),
                (setting, "C[SET] ZT"),
                (INSERT, "C[INSERT 0 1] ZT"),
                ("COMMIT", "C[COMMIT] ZI"),
            ):
                assert witness.ran(client, sql, form)[0].endswith(end), (setting, sql)
    assert client.value("SELECT count(*) FROM trail") == "6"


@ON_POSTGRES_AND_SPLIT
def test_a_clients_own_default(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    one.run("SET default_transaction_read_only = on")
    assert one.value("SHOW transaction_read_only") == "on"
    assert witness.on_primary(one, INSERT) == "E[25006] ZI"
    assert witness.on_primary(two, INSERT) == "C[INSERT 0 1] ZI"
    assert two.value("SHOW transaction_read_only") == "off"
    one.run("RESET default_transaction_read_only")
    assert witness.on_primary(one, INSERT) == "C[INSERT 0 1] ZI"


@ON_POSTGRES_AND_SPLIT
def test_target_session_attrs(target: Target, witness: Witness) -> None:
    """As libpq finds its server among two hosts: here both are the same."""
    host, port = target.address
    dsn = f"host={host},{host} port={port},{port} user=pool2 dbname={target.database}"
    target.compare = False
    for wanted in ("any", "read-write", "primary", "prefer-standby"):
        witness.ready()
        with psycopg.connect(dsn, target_session_attrs=wanted, autocommit=True) as connection:
            assert connection.execute("SELECT count(*) FROM item").fetchone() == (20,)
            connection.execute(INSERT)
    for wanted in ("read-only", "standby"):
        witness.ready()
        with pytest.raises(psycopg.OperationalError, match=r"not read-only|not in hot standby"):
            psycopg.connect(dsn, target_session_attrs=wanted)
