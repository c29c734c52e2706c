"""R11: a transaction stays on one server, and reads in it see its writes, whatever replicas know."""

from __future__ import annotations

from ..support.rawpg import Wire
from ..support.target import Target
from ..support.witness import FORMS, ON_POSTGRES_AND_SPLIT, PRIMARY, Form, Witness


def steps(witness: Witness, client: Wire, form: Form, *statements: tuple[str, str]) -> None:
    """Statements of one transaction, with the end of their replies; all of them on the primary."""
    for sql, end in statements:
        replies, nodes = witness.ran(client, sql, form)
        assert replies.endswith(end) and nodes == PRIMARY, (sql, replies, nodes)


@ON_POSTGRES_AND_SPLIT
def test_one_transaction_one_server(target: Target, witness: Witness) -> None:
    one, two = target.client(pool=5), target.client(pool=5)
    for number, form in enumerate(FORMS):
        witness.ready()
        with target.fleet.paused():
            table = f"fresh{number}"
            steps(
                witness,
                one,
                form,
                ("BEGIN", "C[BEGIN] ZT"),
                (f"CREATE TABLE {table}(a int)", "C[CREATE TABLE] ZT"),
                (f"SELECT * FROM {table}", "C[SELECT 0] ZT"),
                (f"INSERT INTO {table} VALUES (1)", "C[INSERT 0 1] ZT"),
                (f"SELECT count(*) FROM {table}", "D[1] C[SELECT 1] ZT"),
                ("SAVEPOINT a", "C[SAVEPOINT] ZT"),
                ("SELECT count(*) FROM item", "D[20] C[SELECT 1] ZT"),
                ("COMMIT", "C[COMMIT] ZI"),
            )
            # And whoever comes afterwards sees what was committed.
            assert two.value(f"SELECT count(*) FROM {table}") == "1"
        target.fleet.caught_up()


@ON_POSTGRES_AND_SPLIT
def test_rolled_back(target: Target, witness: Witness) -> None:
    client = target.client(pool=5)
    for form in FORMS:
        witness.ready()
        with target.fleet.paused():
            steps(
                witness,
                client,
                form,
                ("BEGIN", "C[BEGIN] ZT"),
                ("INSERT INTO trail(item_id) VALUES (55)", "C[INSERT 0 1] ZT"),
                ("SELECT count(*) FROM trail WHERE item_id = 55", "D[1] C[SELECT 1] ZT"),
                ("ROLLBACK", "C[ROLLBACK] ZI"),
            )
            assert client.value("SELECT count(*) FROM trail WHERE item_id = 55") == "0"
        target.fleet.caught_up()
