"""psycopg 3: text and binary, server-side cursors, COPY, pipeline mode, cancel."""

from __future__ import annotations

import threading
import time

import psycopg
from psycopg import sql

from .transcript import TYPES, address, attempt, say


def types(connection: psycopg.Connection) -> None:
    for binary in (False, True):
        with connection.cursor(binary=binary) as cursor:
            row = cursor.execute(TYPES.replace(", ROW(1, 'x') AS z", "")).fetchone()
            say(f"types binary={binary}", row)
            say("oids", [(c.name, c.type_code) for c in cursor.description or ()])
    for value in (1, 2**40, 1.25, "text", b"\x00\xff", None, True, [1, 2], ["a", None]):
        say("parameter", connection.execute("SELECT %s AS v", (value,)).fetchone())
        row = connection.execute("SELECT %b AS v", (value,), binary=True).fetchone()
        say("binary parameter", row)


def errors(connection: psycopg.Connection) -> None:
    for statement in ("SELEC", "SELECT 1/0", "SELECT * FROM nowhere", "INSERT INTO item VALUES (1)", "SELECT 'x'::int"):
        attempt(statement, lambda statement=statement: connection.execute(statement).fetchall())
        say("status", connection.info.transaction_status.name)


def transactions(connection: psycopg.Connection) -> None:
    with connection.transaction() as outer:
        connection.execute("INSERT INTO trail(item_id) VALUES (1)")
        try:
            with connection.transaction():
                connection.execute("INSERT INTO trail(item_id) VALUES (2)")
                connection.execute("SELECT 1/0")
        except psycopg.Error as error:
            say("inner", error.sqlstate)
        say("inside", connection.execute("SELECT item_id FROM trail").fetchall())
        with connection.transaction():
            connection.execute("INSERT INTO trail(item_id) VALUES (3)")
        raise psycopg.Rollback(outer)
    say("after rollback", connection.execute("SELECT count(*) FROM trail").fetchone())
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with connection.transaction():
        say("isolation", connection.execute("SHOW transaction_isolation").fetchone())
    connection.isolation_level = None


def prepared(connection: psycopg.Connection) -> None:
    for number in range(8):
        row = connection.execute("SELECT label, %s::int FROM item WHERE id = %s", (number, number + 1)).fetchone()
        say("prepared by use", row)
    for number in range(3):
        say("prepared at once", connection.execute("SELECT %s::text || 'x'", (str(number),), prepare=True).fetchone())
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO trail(item_id) VALUES (%s) RETURNING item_id", [(n,) for n in range(20)], returning=True
        )
        rows = []
        while True:
            rows.append(cursor.fetchone())
            if not cursor.nextset():
                break
        say("executemany", rows)


def cursors(connection: psycopg.Connection) -> None:
    with connection.transaction(), connection.cursor(name="server side") as cursor:
        cursor.itersize = 3
        cursor.execute("SELECT id FROM item ORDER BY id")
        say("named cursor", [row[0] for row in cursor])
        cursor.scroll(5, mode="absolute")
        say("scrolled", cursor.fetchmany(2))
    with connection.transaction():
        held = connection.cursor(name="held", withhold=True, scrollable=True)
        held.execute("SELECT id FROM item ORDER BY id")
    say("held", held.fetchmany(4))
    held.scroll(-2)
    say("held back", held.fetchmany(2))
    held.close()


def copies(connection: psycopg.Connection) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE copied(a int, b text)")
        with cursor.copy("COPY copied FROM STDIN") as copy:
            for number in range(1000):
                copy.write_row((number, f"row\t{number}"))
        with cursor.copy("COPY copied(a) FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int4"])
            copy.write_row((-1,))
        say("copied", cursor.execute("SELECT count(*), sum(a) FROM copied").fetchone())
        try:
            with cursor.copy("COPY copied FROM STDIN") as copy:
                copy.write(b"zz\tx\n")
        except psycopg.Error as error:
            say("bad copy", error.sqlstate)
        try:
            with cursor.copy("COPY copied FROM STDIN") as copy:
                raise ValueError("mine")
        except ValueError as error:
            say("copy ended by the client", str(error))
        with cursor.copy("COPY (SELECT * FROM copied WHERE a < 3 ORDER BY a) TO STDOUT") as copy:
            say("copy out", list(copy.rows()))
        cursor.execute("DROP TABLE copied")


def pipelines(connection: psycopg.Connection) -> None:
    with connection.pipeline() as pipeline:
        results = [connection.execute("SELECT %s::int * 2", (number,)) for number in range(10)]
        pipeline.sync()
        say("pipeline", [cursor.fetchone() for cursor in results])
    try:
        with connection.pipeline():
            connection.execute("INSERT INTO trail(item_id) VALUES (1000)")
            connection.execute("SELECT 1/%s::int", (0,))
            connection.execute("SELECT 'skipped'")
    except psycopg.Error as error:
        # At which call it comes is a matter of time.
        say("failed", error.sqlstate)
    say("one transaction", connection.execute("SELECT count(*) FROM trail WHERE item_id = 1000").fetchone())
    with connection.pipeline(), connection.transaction():
        connection.execute("INSERT INTO trail(item_id) VALUES (100)")
        say("in a transaction", connection.execute("SELECT count(*) FROM trail WHERE item_id = 100").fetchone())


def cancel(connection: psycopg.Connection) -> None:
    timer = threading.Timer(0.3, connection.cancel)
    timer.start()
    attempt("cancelled", lambda: connection.execute("SELECT pg_sleep(20)"))
    timer.join()
    say("usable", connection.execute("SELECT 1").fetchone())
    timer = threading.Timer(0.3, connection.cancel_safe)
    timer.start()
    attempt("cancelled safely", lambda: connection.execute("SELECT pg_sleep(20)"))
    timer.join()
    say("usable", connection.execute("SELECT 1").fetchone())


def session(connection: psycopg.Connection) -> None:
    connection.execute("SET TIME ZONE 'Asia/Tokyo'")
    say("zone", connection.info.timezone.key)
    say("timestamp", connection.execute("SELECT '2024-01-01 00:00Z'::timestamptz").fetchone())
    connection.execute("SET search_path TO tenant_a")
    say("path", connection.execute("SELECT x FROM w").fetchone())
    connection.execute("RESET ALL")
    attempt("path", lambda: connection.execute("SELECT x FROM w").fetchone())
    say("encoding", connection.info.encoding)
    connection.execute("SELECT set_config('client_encoding', 'LATIN1', false)")
    say("encoding", connection.info.encoding)
    say("latin", connection.execute("SELECT 'é' || %s", ("ü",)).fetchone())
    connection.execute("RESET client_encoding")
    notices: list[str | None] = []
    connection.add_notice_handler(lambda diagnostic: notices.append(diagnostic.message_primary))
    connection.execute("DO $$ BEGIN RAISE NOTICE 'hello %', 1; END $$")
    say("notices", notices)


def notifications(connection: psycopg.Connection) -> None:
    connection.execute("LISTEN clients")
    with psycopg.connect(address().dsn, autocommit=True) as other:
        other.execute("NOTIFY clients, 'from the other one'")
        deadline = time.monotonic() + 10
        found: list[str] = []
        while not found and time.monotonic() < deadline:
            found = [note.payload for note in connection.notifies(timeout=0.5, stop_after=1)]
        say("notified", found)
    connection.execute("UNLISTEN *")


def main() -> None:
    with psycopg.connect(address().dsn, autocommit=True) as connection:
        say(
            "parameters",
            [connection.info.parameter_status(name) for name in ("server_encoding", "DateStyle", "TimeZone")],
        )
        for part in (types, errors, transactions, prepared, cursors, copies, pipelines, cancel, session, notifications):
            say("part", part.__name__)
            part(connection)
        say("composed", connection.execute(sql.SQL("SELECT {}").format(sql.Literal("it's"))).fetchone())
    with psycopg.connect(address().dsn, cursor_factory=psycopg.ClientCursor) as connection:
        say("simple protocol", connection.execute("SELECT %s, %s", (1, "x")).fetchone())
        say("several", connection.execute("SELECT 1; SELECT 2").fetchall())
        connection.commit()
        connection.read_only = True
        attempt("read only", lambda: connection.execute("INSERT INTO trail(item_id) VALUES (1)"))
        connection.rollback()


main()
