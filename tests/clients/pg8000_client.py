"""pg8000: pure Python, text format, unnamed and named statements, COPY by streams."""

from __future__ import annotations

import io

import pg8000.dbapi
import pg8000.native

from .transcript import TYPES, address, attempt, say


def main() -> None:
    at = address()
    where = {"host": at.host, "port": at.port, "user": at.user, "database": at.database}
    native = pg8000.native.Connection(**where, application_name="pg8000")
    say("types", native.run(TYPES))
    say("columns", [(c["name"], c["type_oid"]) for c in native.columns])
    for value in (1, 2**40, 1.5, "text", b"\xff", None, True, [1, 2]):
        say("parameter", native.run("SELECT :v", v=value))
    for statement in ("SELEC", "SELECT 1/0", "SELECT * FROM nowhere", "INSERT INTO item VALUES (1)"):
        attempt(statement, lambda statement=statement: native.run(statement))
    prepared = native.prepare("SELECT label FROM item WHERE id = :id")
    say("prepared", [prepared.run(id=n) for n in range(1, 5)])
    prepared.close()
    native.run("START TRANSACTION")
    native.run("SAVEPOINT a")
    attempt("savepoint", lambda: native.run("SELECT 1/0"))
    native.run("ROLLBACK TO SAVEPOINT a")
    say("inside", native.run("INSERT INTO trail(item_id) VALUES (1) RETURNING id, item_id"))
    native.run("COMMIT")
    say("several", native.run("SELECT 1; SELECT 2"))
    out = io.BytesIO()
    native.run("COPY (SELECT * FROM item WHERE id < 3 ORDER BY id) TO STDOUT", stream=out)
    say("copy out", out.getvalue())
    native.run("COPY trail(item_id) FROM STDIN", stream=io.BytesIO(b"5\n6\n"))
    attempt("bad copy", lambda: native.run("COPY trail(item_id) FROM STDIN", stream=io.BytesIO(b"zz\n")))
    say("copied", native.run("SELECT item_id FROM trail ORDER BY item_id"))
    native.run("LISTEN pg8000")
    native.run("NOTIFY pg8000, 'payload'")
    native.run("SELECT 1")
    say("notified", [(channel, payload) for _, channel, payload in native.notifications])
    native.run("UNLISTEN *")
    native.run("DO $$ BEGIN RAISE NOTICE 'hello'; END $$")
    say("notices", [notice[b"M"] for notice in native.notices])
    say("application", native.run("SHOW application_name"))
    say("status", native.parameter_statuses.get("client_encoding"))
    native.close()

    connection = pg8000.dbapi.connect(**where)
    cursor = connection.cursor()
    cursor.execute("SELECT id, label FROM item WHERE id < %s ORDER BY id", (4,))
    say("dbapi", cursor.fetchall())
    cursor.executemany("INSERT INTO trail(item_id) VALUES (%s)", [(n,) for n in range(10, 20)])
    connection.rollback()
    cursor.execute("SELECT count(*) FROM trail")
    say("rolled back", cursor.fetchone())
    connection.close()


main()
