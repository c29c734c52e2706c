"""The copied tables inside DuckDB: made, filled, changed, and how far they are.

Owns the tables of the copy and the schema `columnar`, where position and shapes are kept: both move in one
DuckDB transaction with the rows, so that a restart goes on where the last one stopped. Readers see whole
transactions of the source only. Called by `follow`, from its one thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from . import types
from .engine import Engine
from .pgoutput import UNCHANGED, Relation, Row, Value, lsn_number, lsn_text

MAX_PENDING = 50_000
"""Changed rows of a table that are kept in memory before they go to DuckDB (inside the open transaction)."""


class CannotHold(Exception):
    """A table has a value that DuckDB's types can't hold; it must be withdrawn."""

    def __init__(self, table: Table, reason: str) -> None:
        super().__init__(f"table {table.schema}.{table.name}: {reason}")
        self.table = table


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the source. `duck` is its type here; None is left out of the copy."""

    name: str
    oid: int
    typmod: int

    @property
    def duck(self) -> str | None:
        return types.column_type(self.oid, self.typmod)


@dataclass(slots=True)
class Table:
    """A copied table. `key` are positions of the columns that tell rows apart in the stream."""

    relid: int
    schema: str
    name: str
    columns: list[TableColumn]
    key: tuple[int, ...] = ()
    whole_rows: bool = False
    """Replica identity FULL: rows may be equal to each other, and are told apart by all their columns."""
    inserts: list[Row] = field(default_factory=list)
    """Rows to insert, in order, where there is no key."""
    changed: dict[Row, Row | None] = field(default_factory=dict)
    """By key: the row as it is now, or None if it is gone."""

    @property
    def path(self) -> str:
        return f"{_quoted(self.schema)}.{_quoted(self.name)}"

    @property
    def held(self) -> list[int]:
        """Positions of the columns that the copy has."""
        return [i for i, column in enumerate(self.columns) if column.duck]

    @property
    def left_out(self) -> list[str]:
        return [column.name for column in self.columns if not column.duck]

    def matches(self, relation: Relation) -> bool:
        """Whether the stream's description is what was copied."""
        shape = [(column.name, column.oid, column.typmod) for column in self.columns]
        told = [(column.name, column.oid, column.typmod) for column in relation.columns]
        return (self.schema, self.name, shape) == (relation.schema, relation.name, told)


class Copies:
    """All copied tables. Methods raise CannotHold and duckdb.Error; after either call `roll_back`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection = engine.connect()
        self._open = False
        self._applied = 0
        self.tables: dict[int, Table] = {}
        self._run("CREATE TABLE IF NOT EXISTS columnar.position (slot VARCHAR, lsn VARCHAR)")
        self._run("CREATE TABLE IF NOT EXISTS columnar.tables (relid BIGINT, shape VARCHAR)")
        self._run("CREATE TABLE IF NOT EXISTS columnar.withdrawn (path VARCHAR)")
        self._load()
        engine.applied_lsn = lambda: lsn_text(self._applied)

    @property
    def applied(self) -> int:
        """All that the source committed before this LSN is visible here; 0 is no copy yet."""
        return self._applied

    def caught_up(self, lsn: int) -> None:
        """The source says that there was nothing for us up to `lsn`."""
        assert not self._open
        self._applied = max(self._applied, lsn)

    def forget_position(self) -> None:
        """The stream can't go on from here: a whole copy is needed, also after a restart. What there is stays
        readable until then."""
        self._run("DELETE FROM columnar.position")
        self._applied = 0

    def withdrawn(self) -> set[str]:
        return {row[0] for row in self._run("SELECT path FROM columnar.withdrawn")}

    # -- transactions

    def begin(self) -> None:
        """Nothing is seen by readers until `commit`."""
        if not self._open:
            self._run("BEGIN TRANSACTION")
            self._open = True

    def commit(self, slot: str, lsn: int) -> None:
        self.flush()
        self._run("DELETE FROM columnar.position")
        self._run("INSERT INTO columnar.position VALUES ($1, $2)", [slot, lsn_text(lsn)])
        self._run("COMMIT")
        self._open = False
        self._applied = max(self._applied, lsn)

    def roll_back(self) -> None:
        """Back to what is visible; the stream has to begin again at `applied`."""
        if self._open:
            self._open = False
            self._run("ROLLBACK")
        self._load()

    # -- tables

    def replace_all(self, tables: Iterable[Table]) -> None:
        """Forget the copy, and make these tables, empty. Inside a transaction."""
        for table in self.tables.values():
            self._run(f"DROP TABLE IF EXISTS {table.path}")
        self._run("DELETE FROM columnar.tables")
        self.tables = {}
        for table in tables:
            self.add(table)

    def add(self, table: Table) -> None:
        columns = ", ".join(f"{_quoted(table.columns[i].name)} {table.columns[i].duck}" for i in table.held)
        self._run(f"CREATE SCHEMA IF NOT EXISTS {_quoted(table.schema)}")
        self._run(f"DROP TABLE IF EXISTS {table.path}")
        self._run(f"CREATE TABLE {table.path} ({columns})")
        shape = {
            **{"schema": table.schema, "name": table.name},
            "columns": [[column.name, column.oid, column.typmod] for column in table.columns],
        }
        self._run("INSERT INTO columnar.tables VALUES ($1, $2)", [table.relid, json.dumps(shape)])
        self.tables[table.relid] = table
        self._declare()

    def withdraw(self, table: Table) -> None:
        """Take a table out for good; statements on it are refused with 42P01."""
        self.begin()
        self._run(f"DROP TABLE IF EXISTS {table.path}")
        self._run("DELETE FROM columnar.tables WHERE relid = $1", [table.relid])
        self._run("INSERT INTO columnar.withdrawn VALUES ($1)", [table.path])
        self._run("COMMIT")
        self._open = False
        self._load()

    def describe(self, table: Table, relation: Relation) -> None:
        """What identifies rows, as the stream says it."""
        self.flush_table(table)
        table.key = tuple(i for i, column in enumerate(relation.columns) if column.is_key and table.columns[i].duck)
        table.whole_rows = relation.identity == "f"

    # -- rows

    def load(self, table: Table, rows: pa.Table) -> None:
        """Append rows of the held columns as PostgreSQL's text, named c0, c1 ..."""
        self._insert(table, rows)

    def insert(self, table: Table, row: Row) -> None:
        if table.key and not table.whole_rows:
            table.changed[_key(table, row)] = row
        else:
            table.inserts.append(row)
        self._bound(table)

    def update(self, table: Table, old: Row | None, row: Row) -> None:
        if UNCHANGED in row:
            row = self._completed(table, old, row)
        if table.whole_rows and old is not None:
            self._delete_one(table, old)
            self.insert(table, row)
            return
        if old is not None and _key(table, old) != _key(table, row):
            table.changed[_key(table, old)] = None
        self.insert(table, row)

    def delete(self, table: Table, old: Row) -> None:
        if table.whole_rows:
            self._delete_one(table, old)
        else:
            table.changed[_key(table, old)] = None
            self._bound(table)

    def truncate(self, table: Table) -> None:
        table.inserts.clear()
        table.changed.clear()
        self._run(f"DELETE FROM {table.path}")

    def flush(self) -> None:
        for table in self.tables.values():
            self.flush_table(table)

    def flush_table(self, table: Table) -> None:
        """Bring pending rows into DuckDB, inside the open transaction."""
        if table.changed:
            self._delete_keys(table, list(table.changed))
            self._insert(table, _arrow(table.held, [row for row in table.changed.values() if row is not None]))
            table.changed = {}
        if table.inserts:
            self._insert(table, _arrow(table.held, table.inserts))
            table.inserts = []

    # -- inner

    def _bound(self, table: Table) -> None:
        if len(table.changed) + len(table.inserts) >= MAX_PENDING:
            self.flush_table(table)

    def _insert(self, table: Table, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        casts = ", ".join(self._cast(table, i, f"c{n}") for n, i in enumerate(table.held))
        self._with_rows(table, rows, f"INSERT INTO {table.path} SELECT {casts} FROM incoming")

    def _delete_keys(self, table: Table, keys: Sequence[Row]) -> None:
        same = " AND ".join(
            f"t.{_quoted(table.columns[i].name)} = {self._cast(table, i, f'k.c{n}')}" for n, i in enumerate(table.key)
        )
        rows = _arrow(range(len(table.key)), keys)
        self._with_rows(table, rows, f"DELETE FROM {table.path} t USING incoming k WHERE {same}")

    def _delete_one(self, table: Table, old: Row) -> None:
        """Delete one of possibly several equal rows."""
        self.flush_table(table)
        same = " AND ".join(
            f"t.{_quoted(table.columns[i].name)} IS NOT DISTINCT FROM {self._cast(table, i, f'k.c{n}')}"
            for n, i in enumerate(table.held)
        )
        self._with_rows(
            table,
            _arrow(table.held, [old]),
            f"DELETE FROM {table.path} WHERE rowid = "
            f"(SELECT min(t.rowid) FROM {table.path} t, incoming k WHERE {same})",
        )

    def _completed(self, table: Table, old: Row | None, row: Row) -> Row:
        """`row` with its unchanged values from the old row: the one sent, the pending one, or the one in DuckDB."""
        known: Sequence[Value] | None = old if table.whole_rows else table.changed.get(_key(table, old or row))
        if known is None:
            known = self._stored(table, old or row)
        return tuple(known[i] if value is UNCHANGED else value for i, value in enumerate(row))

    def _stored(self, table: Table, key_row: Row) -> list[Value]:
        same = " AND ".join(
            f"t.{_quoted(table.columns[i].name)} = {self._cast(table, i, f'k.c{n}')}" for n, i in enumerate(table.key)
        )
        texts = ", ".join(
            types.column_text(table.columns[i].oid, "t." + _quoted(table.columns[i].name)) for i in table.held
        )
        found = self._with_rows(
            table,
            _arrow(range(len(table.key)), [_key(table, key_row)]),
            f"SELECT {texts} FROM {table.path} t, incoming k WHERE {same}",
        )
        if not found:
            raise CannotHold(table, "an update leaves out a value of a row that is not here")
        values: list[Value] = [None] * len(table.columns)
        for i, value in zip(table.held, found[0], strict=True):
            values[i] = value
        return values

    def _with_rows(self, table: Table, rows: pa.Table, sql: str) -> list[Any]:
        self._connection.register("incoming", rows)  # in place of the one before
        try:
            return self._run(sql)
        except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException) as error:
            raise CannotHold(table, str(error).split("\n", 1)[0]) from error

    def _cast(self, table: Table, position: int, column: str) -> str:
        held = table.columns[position]
        return types.column_cast(held.oid, held.duck or "", column)

    def _run(self, sql: str, params: Sequence[object] | None = None) -> list[Any]:
        return list(self._connection.execute(sql, params).fetchall())

    def _load(self) -> None:
        self.tables = {}
        for relid, shape in self._run("SELECT relid, shape FROM columnar.tables"):
            known = json.loads(shape)
            columns = [TableColumn(*column) for column in known["columns"]]
            self.tables[relid] = Table(relid, known["schema"], known["name"], columns)
        position = self._run("SELECT lsn FROM columnar.position")
        self._applied = max(self._applied, lsn_number(position[0][0])) if position else 0
        self._declare()

    def _declare(self) -> None:
        """Tell the engine which names are varchar everywhere."""
        oids: dict[str, set[int]] = {}
        for table in self.tables.values():
            for column in table.columns:
                oids.setdefault(column.name, set()).add(column.oid)
        self._engine.declared = {name: types.VARCHAR for name, found in oids.items() if found == {types.VARCHAR}}


def _key(table: Table, row: Row) -> Row:
    return tuple(row[i] for i in table.key)


def _arrow(positions: Iterable[int], rows: Sequence[Row]) -> pa.Table:
    """Rows as text columns c0, c1 ..."""
    arrays = [pa.array([row[i] for row in rows], pa.string()) for i in positions]
    return pa.table(arrays, names=[f"c{n}" for n in range(len(arrays))])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
