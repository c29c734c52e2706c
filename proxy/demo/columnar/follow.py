"""Follows a PostgreSQL data base: a first copy by an exported snapshot, then its stream of changes.

Owns the replication slot and the connections to the source, in one thread. It decides nothing about rows
(`copies` does) and nothing about messages (`pgoutput` does). Called by `__main__`. libpq speaks to the source.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Iterator

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import pq, sql
from psycopg.pq.abc import PGconn, PGresult

from ...errors import TridentError
from . import pgoutput
from .copies import CannotHold, Copies, Table, TableColumn
from .pgoutput import Begin, Commit, Delete, Insert, Relation, Truncate, Update

STATUS_SECONDS = 0.1
"""How often the source hears how far we are, and says how far it has sent. It bounds how long an idle copy
looks older than it is."""
_COMMIT_SECONDS = 0.05
"""Transactions of the source are joined into one of DuckDB for at most this long."""
_RETRY_SECONDS = 0.5
_CHUNK = 8 * 1024 * 1024
_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, a.attname, a.atttypid::int8, a.atttypmod
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
WHERE p.pubname = %s ORDER BY c.oid, a.attnum"""

log = logging.getLogger("columnar")


class CopyAgain(Exception):
    """The copy doesn't fit the source any more (a table was altered, the slot is gone)."""


class Follower(threading.Thread):
    """The thread. `ready` is set once there is a whole copy, which may be from before a restart."""

    def __init__(self, copies: Copies, source: str, publication: str, slot: str) -> None:
        """`source` is a libpq connection string; with several hosts and target_session_attrs=read-write it finds
        the primary."""
        super().__init__(name="follow", daemon=True)
        self._copies = copies
        self._source = source
        self._publication = publication
        self._slot = slot
        self._stopping = threading.Event()
        self._wake, self._waker = os.pipe()
        self.ready = threading.Event()
        if copies.applied:
            self.ready.set()

    def stop(self) -> None:
        """Ask it to end, and wait."""
        self._stopping.set()
        os.write(self._waker, b"x")
        self.join()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except CannotHold as error:
                log.warning("withdrawn from the copy: %s", error)
                self._copies.roll_back()
                self._copies.withdraw(error.table)
                continue
            except CopyAgain as error:
                log.warning("copying again: %s", error)
                self._copies.roll_back()
                self._copies.forget_position()
                continue
            except (psycopg.Error, duckdb.Error, TridentError, OSError) as error:
                log.warning("lost the source, trying again: %s", str(error).strip())
                self._copies.roll_back()
            self._stopping.wait(_RETRY_SECONDS)

    # -- the first copy

    def _follow(self) -> None:
        if not self._copies.applied:
            self._copy_all()
        self.ready.set()
        with self._replication() as connection:
            self._stream(connection)

    def _copy_all(self) -> None:
        """Make the slot and copy what its snapshot sees, all in one DuckDB transaction."""
        copies = self._copies
        withdrawn = copies.withdrawn()
        with self._replication() as link, psycopg.connect(self._source, client_encoding="utf8") as reader:
            exists = reader.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (self._slot,)).fetchone()
            reader.rollback()
            if exists:
                self._command(link, f'DROP_REPLICATION_SLOT "{self._slot}" WAIT')
            made = self._command(link, f'CREATE_REPLICATION_SLOT "{self._slot}" LOGICAL pgoutput EXPORT_SNAPSHOT')
            start = pgoutput.lsn_number(_cell(made, 1))
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reader.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(_cell(made, 2)))
            reader.execute("SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'postgres'")
            reader.execute(
                "SET LOCAL extra_float_digits = 1; SET LOCAL timezone = 'UTC'; SET LOCAL bytea_output = 'hex'"
            )
            tables = [table for table in self._tables(reader) if table.path not in withdrawn and table.held]
            copies.begin()
            copies.replace_all(tables)
            for table in tables:
                if table.left_out:
                    log.warning("table %s is copied without %s", table.path, ", ".join(table.left_out))
                for rows in _read(reader, table):
                    copies.load(table, rows)
            copies.commit(self._slot, start)
        log.info("copied %d tables as of %s", len(tables), pgoutput.lsn_text(start))

    def _tables(self, reader: psycopg.Connection[tuple[object, ...]]) -> list[Table]:
        tables: dict[int, Table] = {}
        for relid, schema, name, column, oid, typmod in reader.execute(_TABLES, (self._publication,)):
            table = tables.setdefault(int(str(relid)), Table(int(str(relid)), str(schema), str(name), []))
            table.columns.append(TableColumn(str(column), int(str(oid)), int(str(typmod))))
        return list(tables.values())

    # -- the stream

    def _stream(self, connection: PGconn) -> None:
        copies = self._copies
        begin = (
            f'START_REPLICATION SLOT "{self._slot}" LOGICAL {pgoutput.lsn_text(copies.applied)} '
            f"(proto_version '1', publication_names '\"{self._publication}\"')"
        )
        result = connection.exec_(begin.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            if result.error_field(pq.DiagnosticField.SQLSTATE) == b"42704":
                raise CopyAgain(f"replication slot {self._slot} is gone")
            raise psycopg.OperationalError(result.get_error_message())
        pending = 0  # end of the last whole transaction that DuckDB has not committed, or 0
        oldest = 0.0
        inside = False
        next_status = 0.0
        while not self._stopping.is_set():
            payload = _next(connection)
            now = time.monotonic()
            if pending and not inside and (payload is None or now - oldest > _COMMIT_SECONDS):
                copies.commit(self._slot, pending)
                pending = 0
                next_status = 0.0
            if now >= next_status:
                self._tell(connection)
                next_status = now + STATUS_SECONDS
            if payload is None:
                select.select([connection.socket, self._wake], [], [], max(next_status - now, 0.0))
                connection.consume_input()
                continue
            message = pgoutput.unwrap(payload)
            if isinstance(message, pgoutput.Keepalive):
                if not inside and not pending:
                    copies.caught_up(message.sent)
                if message.wants_reply:
                    next_status = 0.0
                continue
            change = pgoutput.decode(message.payload)
            if isinstance(change, Begin):
                inside = True
                copies.begin()
                oldest = oldest if pending else now
            elif isinstance(change, Commit):
                inside = False
                pending = change.end_lsn
            elif change is not None:
                self._apply(change)

    def _apply(self, change: Relation | Insert | Update | Delete | Truncate) -> None:
        copies = self._copies
        if isinstance(change, Relation):
            self._relation(change)
            return
        if isinstance(change, Truncate):
            for relid in change.relids:
                if relid in copies.tables:
                    copies.truncate(copies.tables[relid])
            return
        table = copies.tables.get(change.relid)
        if table is None:
            return  # withdrawn
        if isinstance(change, Insert):
            copies.insert(table, change.row)
        elif isinstance(change, Update):
            copies.update(table, change.old, change.row)
        else:
            copies.delete(table, change.old)

    def _relation(self, relation: Relation) -> None:
        copies = self._copies
        columns = [TableColumn(column.name, column.oid, column.typmod) for column in relation.columns]
        shown = Table(relation.relid, relation.schema, relation.name, columns)
        if shown.path in copies.withdrawn() or not shown.held:
            return
        table = copies.tables.get(relation.relid)
        if table is None or not table.matches(relation):
            # Rows of before a table was altered or joined the publication are not in the stream.
            raise CopyAgain(f"table {shown.path} is new or was altered")
        if any(column.is_key and not columns[i].duck for i, column in enumerate(relation.columns)):
            raise CannotHold(table, "its key has a column that is not copied")
        copies.describe(table, relation)

    def _tell(self, connection: PGconn) -> None:
        connection.put_copy_data(pgoutput.status(self._copies.applied, time.time_ns() // 1000, wants_reply=True))
        connection.flush()

    # -- the connection

    @contextlib.contextmanager
    def _replication(self) -> Iterator[PGconn]:
        connection = psycopg.connect(
            self._source,
            autocommit=True,
            replication="database",
            client_encoding="utf8",
            options="-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC",
            application_name=self._slot,
        )
        try:
            yield connection.pgconn
        finally:
            connection.close()  # whatever it was streaming

    @staticmethod
    def _command(connection: PGconn, command: str) -> PGresult:
        result = connection.exec_(command.encode())
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            raise psycopg.OperationalError(result.get_error_message())
        return result


def _cell(result: PGresult, column: int) -> str:
    return (result.get_value(0, column) or b"").decode()


def _next(connection: PGconn) -> bytes | None:
    """The next CopyData that has arrived, or None. Raises OperationalError at the end of the stream."""
    length, data = connection.get_copy_data(1)
    if length == 0:
        return None
    if length < 0:
        raise psycopg.OperationalError("the source ended the replication stream")
    return bytes(data)


def _read(reader: psycopg.Connection[tuple[object, ...]], table: Table) -> Iterator[pa.Table]:
    """A table's rows as text, some megabytes at a time."""
    columns = sql.SQL(", ").join(sql.Identifier(table.columns[i].name) for i in table.held)
    source = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        columns, sql.Identifier(table.schema, table.name)
    )
    names = [f"c{n}" for n in range(len(table.held))]
    with reader.cursor() as cursor, cursor.copy(source) as copy:
        chunk: list[bytes] = []
        size = 0
        for row in copy:  # PostgreSQL sends each row as one message
            chunk.append(bytes(row))
            size += len(row)
            if size >= _CHUNK:
                yield _parse(chunk, names)
                chunk, size = [], 0
        if chunk:
            yield _parse(chunk, names)


def _parse(chunk: list[bytes], names: list[str]) -> pa.Table:
    data = b"".join(chunk)
    return pa.csv.read_csv(
        pa.BufferReader(data),
        read_options=pa.csv.ReadOptions(column_names=names, block_size=max(len(data), 1)),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types={name: pa.string() for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
