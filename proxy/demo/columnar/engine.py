"""DuckDB as this node uses it: opened with PostgreSQL's semantics, read-only for clients.

Owns the data base, its connections and the translation of statements, results and errors. It knows nothing
of messages. Called by `session` (clients) and `follow` (the copy).
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from . import shape, text, types
from .errors import StatementError, from_engine

_SEMANTICS = (
    "SET GLOBAL integer_division = true",  # 5 / 2 is 2
    "SET GLOBAL default_null_order = 'nulls_last_on_asc_first_on_desc'",
    "SET GLOBAL ieee_floating_point_ops = false",  # 1 / 0 is an error
    "SET GLOBAL enable_external_access = false",  # no file of this machine by read_text('...')
    "SET GLOBAL python_enable_replacements = false",  # no Python variable as a table
)
_FUNCTIONS = (
    "pg_is_in_recovery() AS true",
    "inet_server_port() AS CAST(getvariable('server_port') AS INTEGER)",
    "inet_server_addr() AS CAST(getvariable('server_addr') AS VARCHAR)",
    "pg_backend_pid() AS CAST(getvariable('pid') AS INTEGER)",
    "current_database() AS CAST(getvariable('database') AS VARCHAR)",
    "current_user() AS CAST(getvariable('user') AS VARCHAR)",
    "session_user() AS CAST(getvariable('user') AS VARCHAR)",
    "columnar_applied_lsn() AS CAST(getvariable('applied_lsn') AS VARCHAR)",
)
_BATCH_ROWS = 2048
_TREES_KEPT = 256


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result."""

    name: str
    type: types.Type
    declared: int = 0
    """OID that the column has in PostgreSQL where only that is told apart (varchar and text), or 0."""

    @property
    def oid(self) -> int:
        return self.declared or self.type.oid


@dataclass(slots=True)
class Result:
    """A bound statement: its columns are known, its rows come when asked for. Close it before the session's
    next statement (DuckDB has one open result a connection)."""

    columns: list[Column]
    _relation: Any
    _reader: Any = None

    def batches(self) -> Iterator[list[list[Any]]]:
        """Rows as columns of values, a batch at a time."""
        with _translated():
            self._reader = self._relation.to_arrow_reader(_BATCH_ROWS)
        while True:
            with _translated():
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    break
                values = [types.column_values(column) for column in batch.columns]
            yield values
        self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise from_engine(error) from error
    except OSError as error:  # Arrow wraps what DuckDB says while rows are read
        raise _from_arrow(error) from error


def _from_arrow(error: OSError) -> StatementError:
    said = str(error)
    if "INTERRUPT" in said or "Interrupted" in said:
        return StatementError("canceling statement due to user request", sqlstate="57014")
    for prefix, kind in (
        ("Conversion Error", duckdb.ConversionException),
        ("Out of Range Error", duckdb.OutOfRangeException),
        ("Out of Memory Error", duckdb.OutOfMemoryException),
    ):
        if prefix in said:
            return from_engine(kind(said[said.index(prefix) :]))
    return from_engine(duckdb.Error(said))


class Engine:
    """One DuckDB data base for the process."""

    def __init__(self, path: Path | None, *, memory_limit: str = "1GB", threads: int = 2) -> None:
        """`path` None keeps it in memory. Raises duckdb.IOException when another process has the file."""
        config: dict[str, Any] = {"memory_limit": memory_limit, "threads": threads}
        self._root = duckdb.connect(str(path) if path else ":memory:", config=config)
        self._root.execute("CREATE SCHEMA IF NOT EXISTS public")
        self._root.execute("CREATE SCHEMA IF NOT EXISTS columnar")
        for function in _FUNCTIONS:
            name, body = function.split("()", 1)
            self._root.execute(f'CREATE OR REPLACE MACRO public."{name}"(){body}')
        for setting in _SEMANTICS:
            self._root.execute(setting)
        self._lock = threading.Lock()
        self._trees: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.applied_lsn: Callable[[], str] = lambda: "0/0"
        """Replaced by `follow`: how far the copy is."""
        self.declared: dict[str, int] = {}
        """By column name: the OID that all copied columns of that name have in PostgreSQL. Replaced whole."""

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own, with PostgreSQL's search path."""
        with self._lock:
            connection = self._root.cursor()
        connection.execute("SET search_path = 'public'")
        return connection

    def session(self, variables: dict[str, str | int]) -> EngineSession:
        """For one client; `variables` are server_port, pid, database and user."""
        return EngineSession(self, self.connect(), variables)

    def close(self) -> None:
        with self._lock:
            self._root.close()

    def tree(self, sql: str, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        """DuckDB's tree of a statement; empty where it gives none. The last ones are kept."""
        with self._lock:
            if sql in self._trees:
                self._trees.move_to_end(sql)
                return self._trees[sql]
        rows = connection.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
        found: dict[str, Any] = json.loads(rows[0][0])
        if found.get("error"):
            found = {}
        with self._lock:
            self._trees[sql] = found
            if len(self._trees) > _TREES_KEPT:
                self._trees.popitem(last=False)
        return found


@dataclass(slots=True)
class EngineSession:
    """One client's connection to the engine; used by one thread, except for `interrupt`."""

    engine: Engine
    connection: duckdb.DuckDBPyConnection
    variables: dict[str, str | int]
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _busy: bool = False

    def __post_init__(self) -> None:
        for name, value in self.variables.items():
            literal = str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
            self.connection.execute(f"SET VARIABLE {name} = {literal}")

    def bind(self, sql: str, oids: Sequence[int], values: Sequence[Any], *, describe: bool = True) -> Result:
        """Bind a SELECT or EXPLAIN. `values` as `types.param_value` gives them; None where not known yet.

        Raises StatementError: 25006 for anything that is not reading.
        """
        with _translated():
            statements = self.connection.extract_statements(text.for_engine(sql, ()))
            kinds = {str(statement.type).rsplit(".", 1)[-1] for statement in statements}
            if not kinds <= {"SELECT", "EXPLAIN"}:
                kind = " ".join(text.words(sql, 1)) or "statement"
                raise StatementError(f"cannot execute {kind} in a read-only transaction", sqlstate="25006")
            if "columnar_applied_lsn" in sql:
                self.connection.execute(f"SET VARIABLE applied_lsn = '{self.engine.applied_lsn()}'")
            casts = [types.param_type(oid, value) for oid, value in zip(oids, values, strict=True)]
            relation = self.connection.sql(text.for_engine(sql, casts), params=list(values) or None)
            ducks = [str(kind) for kind in relation.types]
            columns = [
                Column(name, types.result_type(duck)) for name, duck in zip(relation.columns, ducks, strict=True)
            ]
            if describe and "EXPLAIN" not in kinds:
                columns = self._as_postgres(sql, columns, ducks, len(values))
        return Result(columns, relation)

    def begin(self) -> None:
        with _translated():
            self.connection.execute("BEGIN TRANSACTION READ ONLY")

    def end(self, *, commit: bool) -> None:
        with _translated():
            self.connection.execute("COMMIT" if commit else "ROLLBACK")

    def set_zone(self, name: str) -> None:
        with _translated():
            self.connection.execute(f"SET TimeZone = '{name.replace(chr(39), '')}'")

    @contextmanager
    def running(self) -> Iterator[None]:
        """While inside, `interrupt` reaches the statement."""
        with self._guard:
            self._busy = True
        try:
            yield
        finally:
            with self._guard:
                self._busy = False

    def interrupt(self) -> None:
        """Break off the running statement, if there is one. From any thread."""
        with self._guard:
            if self._busy:
                self.connection.interrupt()

    def close(self) -> None:
        self.connection.close()

    def _as_postgres(self, sql: str, columns: list[Column], ducks: list[str], params: int) -> list[Column]:
        """Names, and types where DuckDB's hide one of PostgreSQL's."""
        plain = text.for_engine(sql, ())
        tree = self.engine.tree(plain, self.connection)
        if text.words(sql, 1) == ["VALUES"]:
            names = [f"column{i + 1}" for i in range(len(columns))]
        else:
            names = shape.names(tree, plain, [column.name for column in columns])
        kinds = [column.type for column in columns]
        for at in self._integer_sums(tree, [i for i, duck in enumerate(ducks) if duck == "HUGEINT"], params):
            kinds[at] = types.INT8_TYPE
        declared = [
            self.engine.declared.get(name, 0) if kind.oid == types.TEXT else 0
            for name, kind in zip(names, kinds, strict=True)
        ]
        return [Column(*column) for column in zip(names, kinds, declared, strict=True)]

    def _integer_sums(self, tree: dict[str, Any], wanted: list[int], params: int) -> list[int]:
        probe = shape.summands(tree, wanted) if wanted else None
        if probe is None:
            return []
        try:
            rows = self.connection.execute("SELECT json_deserialize_sql($1)", [json.dumps(probe)]).fetchall()
            summed = self.connection.sql(rows[0][0], params=[None] * params or None).types
        except duckdb.Error:
            return []  # then they stay numeric, which is only less exact a type
        return [at for at, kind in zip(wanted, summed, strict=True) if str(kind) in ("TINYINT", "SMALLINT", "INTEGER")]
