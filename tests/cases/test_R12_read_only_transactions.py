"""R12: transactions that say that they only read: as PostgreSQL answers them, on whichever node."""

from __future__ import annotations

from ..support.rawpg import Wire
from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, PRIMARY, Form, Witness

INSERT = "INSERT INTO trail(item_id) VALUES (1)"
ANYWHERE = {
    "begin": ("BEGIN READ ONLY", "SELECT count(*) FROM item", "COMMIT"),
    "start": ("START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", "SELECT 1", "SELECT 2", "COMMIT"),
    "set": ("BEGIN", "SET TRANSACTION READ ONLY", "SELECT 1", "TABLE item", "COMMIT"),
    "a write": ("BEGIN READ ONLY", INSERT, "SELECT 1", "ROLLBACK"),
    "a write after a read": ("BEGIN READ ONLY", "SELECT 1", INSERT, "ROLLBACK"),
    "too late": ("BEGIN READ ONLY", "SELECT 1", "SET TRANSACTION READ WRITE", "ROLLBACK"),
}
"""What the primary and a standby answer alike."""
PRIMARY_ONLY = {
    "turns": ("BEGIN READ ONLY", "SET TRANSACTION READ WRITE", INSERT, "SELECT count(*) FROM trail", "ROLLBACK"),
    "serializable": ("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE", "SELECT 1", "COMMIT"),
    "notifies": ("BEGIN READ ONLY", "SELECT 1", "SELECT pg_notify('c', 'x')", "COMMIT"),
    "id": ("BEGIN READ ONLY", "SELECT txid_current() > 0", "COMMIT"),
    "id after a read": ("BEGIN READ ONLY", "SELECT 1", "SELECT txid_current() > 0", "COMMIT"),
}
"""What a standby refuses, or would have refused had the transaction begun there."""


def played(witness: Witness, client: Wire, statements: tuple[str, ...], form: Form) -> tuple[str, frozenset[str]]:
    """Codes of all errors, and the nodes that were given anything but BEGIN and the end."""
    witness.ready()
    nodes: frozenset[str] = frozenset()
    errors = ""
    for number, sql in enumerate(statements):
        replies, ran = witness.ran(client, sql, form)
        errors += "".join(word for word in replies.split() if word.startswith("E["))
        if 0 < number < len(statements) - 1:
            nodes |= ran
    return errors, nodes


@ON_POSTGRES_AND_SPLIT
def test_where_any_node_will_do(target: Target, witness: Witness) -> None:
    client = target.client()
    wanted = {"a write": "E[25006]E[25P02]", "a write after a read": "E[25006]", "too late": "E[25001]"}
    for form in FORMS:
        for name, statements in ANYWHERE.items():
            errors, nodes = played(witness, client, statements, form)
            assert errors == wanted.get(name, ""), (name, errors)
            # What may not follow a read is refused by the primary, wherever that ran.
            assert len(nodes) == 1 or name in ("too late", "a write after a read"), (name, nodes)
    assert client.value("SELECT count(*) FROM trail") == "0"


@ON_POSTGRES_AND_SPLIT
def test_where_only_the_primary_will_do(target: Target, witness: Witness) -> None:
    client = target.client()
    for form in FORMS:
        for name, statements in PRIMARY_ONLY.items():
            assert played(witness, client, statements, form)[0] == "", name
        assert played(witness, client, PRIMARY_ONLY["serializable"], form)[1] == PRIMARY
    assert client.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@ON_POSTGRES_AND_SPLIT
def test_a_read_only_session_is_its_clients_own(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=1), target.client(pool=1)
    for sql in (
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET default_transaction_read_only = on",
        "SELECT set_config('default_transaction_read_only', 'on', false)",
    ):
        one.run(sql)
        for _ in range(2):
            assert witness.on_primary(two, INSERT) == "C[INSERT 0 1] ZI"
            assert one.query(INSERT) == "E[25006] ZI"
            assert "D[20]" in witness.on_one(one, "SELECT count(*) FROM item")
        # What it was refused for its own sake is not remembered of others' statements.
        assert one.query("SELECT nextval('ticket')").endswith("E[25006] ZI")
        assert "D[20]" in witness.on_replica(two, "SELECT count(*) FROM item")
        one.run("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE")
        assert witness.on_primary(one, INSERT) == "C[INSERT 0 1] ZI"
