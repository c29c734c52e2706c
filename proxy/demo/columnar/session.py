"""One client's conversation after login: messages in, statements run, messages out.

Owns the state of one session (transaction, prepared statements, portals, settings). Blocking, one thread a
session: DuckDB releases the interpreter while it works. Called by `server`. Protocol: manual, chapter 55.2.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...errors import ProtocolViolation
from ...wire import build, codes
from . import text, types
from .engine import Column, EngineSession, Result
from .errors import StatementError
from .settings import Settings

MAX_PREPARED = 1000
"""Named statements, and named portals, of one session."""

_WRITES = frozenset(
    [
        "INSERT",
        "UPDATE",
        "DELETE",
        "MERGE",
        "TRUNCATE",
        "CREATE",
        "ALTER",
        "DROP",
        "GRANT",
        "REVOKE",
        "COMMENT",
        "VACUUM",
        "ANALYZE",
        "REINDEX",
        "CLUSTER",
        "REFRESH",
        "IMPORT",
        "REASSIGN",
        "SECURITY",
        "CALL",
        "DO",
        "NOTIFY",
    ]
)
_ABSENT = frozenset(
    [
        "SAVEPOINT",
        "RELEASE",
        "PREPARE",
        "EXECUTE",
        "DECLARE",
        "FETCH",
        "MOVE",
        "CLOSE",
        "LISTEN",
        "UNLISTEN",
        "LOCK",
        "COPY",
        "LOAD",
        "CHECKPOINT",
        "ATTACH",
        "DETACH",
        "USE",
        "PRAGMA",
        "INSTALL",
        "EXPORT",
    ]
)
_ENDS = {"COMMIT": "COMMIT", "END": "COMMIT", "ROLLBACK": "ROLLBACK", "ABORT": "ROLLBACK"}
_SET_CONFIG = re.compile(
    r"""\s*SELECT\s+(?:pg_catalog\s*\.\s*)?(?:
        (?P<set>set_config)\s*\(\s*'(?P<name>[^']+)'\s*,\s*'(?P<value>(?:[^']|'')*)'\s*,\s*(?P<local>true|false)\s*\)
      | (?P<get>current_setting)\s*\(\s*'(?P<shown>[^']+)'\s*(?:,\s*(?P<missing>true|false)\s*)?\)
    )\s*(?:AS\s+"?(?P<alias>\w+)"?\s*)?;?\s*""",
    re.VERBOSE | re.IGNORECASE,
)
_SET = re.compile(
    r"""\s*SET\s+(?:(?P<scope>SESSION|LOCAL)\s+)?
    (?:TIME\s+ZONE\s+(?P<zone>.+?)|NAMES\s+(?P<names>.+?)|(?P<name>[\w.]+|"[^"]+")\s*(?:=|\bTO\b)\s*(?P<value>.+?))\s*;?\s*""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


class Stream(Protocol):
    """Where messages come from and go to; `server` has the real one."""

    def message(self) -> tuple[int, bytes]:
        """The next message as (type, body). Raises EOFError at the end."""
        ...

    def write(self, data: bytes) -> None: ...

    def flush(self) -> None: ...


@dataclass(slots=True)
class Statement:
    """A prepared statement. `columns` is None for what returns no rows."""

    sql: str
    oids: list[int]
    columns: list[Column] | None


@dataclass(slots=True)
class Portal:
    """A bound statement, and how far it has run."""

    statement: Statement
    formats: list[int]
    result: Result | None = None
    command: Command | None = None
    rows: Iterator[bytes] | None = None
    sent: int = 0
    tag: str | None = None
    """Its CommandComplete, once it has run to its end."""


@dataclass(slots=True)
class Command:
    """A statement that the session answers itself: its columns, and what runs it to (rows, tag)."""

    columns: list[Column] | None
    run: Callable[[], tuple[list[tuple[str | None, ...]], str]] = field(repr=False)


class Session:
    """A logged-in client. `run` returns when it has gone; `cancel` may come from another thread."""

    def __init__(
        self, stream: Stream, engine: EngineSession, settings: Settings, *, log: Callable[[str, Settings], None]
    ) -> None:
        """`log` is called with each statement that is run."""
        self._stream = stream
        self._engine = engine
        self._settings = settings
        self._log = log
        self._status = codes.IDLE
        self._skipping = False
        self._statements: dict[str, Statement] = {}
        self._portals: dict[str, Portal] = {}
        self._streaming: Portal | None = None
        self._timed_out = False
        self._engine.set_zone(settings.show("timezone"))

    def run(self) -> None:
        self._tell_settings()
        self._ready()
        handlers: dict[int, Callable[[bytes], None]] = {
            ord("P"): self._parse,
            ord("B"): self._bind,
            ord("D"): self._describe,
            ord("E"): self._execute,
            ord("C"): self._close,
        }
        while True:
            kind, body = self._stream.message()
            if kind == ord("X"):
                return
            if kind == ord("S"):
                self._sync()
            elif kind == ord("H"):
                if not self._skipping:
                    self._stream.flush()
            elif kind in (ord("d"), ord("c"), ord("f")):
                pass  # left over from a COPY that was refused (manual, 55.2.6)
            elif kind == ord("Q"):
                self._skipping = False
                self._query(_cstring(body, 0)[0])
            elif kind == ord("F"):
                self._error(StatementError("a columnar node has no function calls", sqlstate="0A000"))
                self._ready()
            elif kind in handlers:
                if not self._skipping:
                    self._extended(handlers[kind], body)
            else:
                raise ProtocolViolation(f"invalid frontend message type {kind}")

    def cancel(self) -> None:
        self._engine.interrupt()

    # -- simple protocol

    def _query(self, sql: str) -> None:
        pieces = text.split(sql)
        if not pieces:
            self._stream.write(build.EMPTY_QUERY)
        try:
            for piece in pieces:
                self._simple(piece)
        except StatementError as error:
            self._error(error)
        self._portals.pop("", None)
        self._ready()

    def _simple(self, sql: str) -> None:
        portal = Portal(Statement(sql, [], None), [])
        self._open(portal, [])
        columns = portal.statement.columns
        if columns is not None:
            self._stream.write(_row_description(columns, []))
        self._pull(portal, 0)

    # -- extended protocol

    def _extended(self, handler: Callable[[bytes], None], body: bytes) -> None:
        try:
            handler(body)
        except (struct.error, IndexError):
            raise ProtocolViolation("a message is shorter than its own counts say") from None
        except StatementError as error:
            self._skipping = True
            self._error(error)

    def _parse(self, body: bytes) -> None:
        name, at = _cstring(body, 0)
        sql, at = _cstring(body, at)
        (count,) = struct.unpack_from("!H", body, at)
        oids = list(struct.unpack_from(f"!{count}I", body, at + 2))
        if name and name in self._statements:
            raise StatementError(f'prepared statement "{name}" already exists', sqlstate="42P05")
        if len(self._statements) >= MAX_PREPARED:
            raise StatementError("too many prepared statements", sqlstate="53400")
        pieces = text.split(sql)
        if len(pieces) > 1:
            raise StatementError("cannot insert multiple commands into a prepared statement", sqlstate="42601")
        wanted = text.params(sql)
        oids = (oids + [0] * wanted)[: max(wanted, len(oids))]
        for number, cast in text.casts(sql).items():
            if 0 < number <= len(oids) and not oids[number - 1]:
                oids[number - 1] = types.OIDS_BY_NAME.get(cast, 0)
        statement = Statement(pieces[0] if pieces else "", oids, None)
        if statement.sql:
            command = self._command(statement.sql)
            if command is not None:
                statement.columns = command.columns
            else:
                self._refuse_when_failed()
                self._quiet()
                statement.columns = self._engine.bind(statement.sql, oids, [None] * len(oids)).columns
        self._statements[name] = statement
        self._stream.write(build.PARSE_COMPLETE)

    def _bind(self, body: bytes) -> None:
        portal_name, at = _cstring(body, 0)
        statement_name, at = _cstring(body, at)
        formats, at = _int16s(body, at)
        (count,) = struct.unpack_from("!H", body, at)
        at += 2
        raw: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from("!i", body, at)
            at += 4
            raw.append(None if length < 0 else body[at : at + length])
            at += max(length, 0)
            if at > len(body):
                raise ProtocolViolation("a parameter is longer than its message")
        result_formats, _ = _int16s(body, at)
        statement = self._statement(statement_name)
        if count != len(statement.oids):
            raise StatementError(
                f"bind message supplies {count} parameters, but prepared statement "
                f'"{statement_name}" requires {len(statement.oids)}',
                sqlstate="08P01",
            )
        if portal_name and portal_name in self._portals:
            raise StatementError(f'cursor "{portal_name}" already exists', sqlstate="42P03")
        if len(self._portals) >= MAX_PREPARED:
            raise StatementError("too many portals", sqlstate="53400")
        values = [
            types.param_value(value, oid, _format(formats, i) == 1)
            for i, (value, oid) in enumerate(zip(raw, statement.oids, strict=True))
        ]
        portal = Portal(statement, result_formats)
        if statement.sql:
            self._open(portal, values)
        self._portals[portal_name] = portal
        self._stream.write(build.BIND_COMPLETE)

    def _describe(self, body: bytes) -> None:
        name = _cstring(body, 1)[0]
        formats: list[int] = []
        if body[:1] == b"S":
            statement = self._statement(name)
            described = b"".join(struct.pack("!I", oid or types.TEXT) for oid in statement.oids)
            self._stream.write(build.message(b"t", struct.pack("!H", len(statement.oids)) + described))
        else:
            portal = self._portal(name)
            statement, formats = portal.statement, portal.formats
        if statement.columns is None:
            self._stream.write(build.NO_DATA)
        else:
            self._stream.write(_row_description(statement.columns, formats))

    def _execute(self, body: bytes) -> None:
        name, at = _cstring(body, 0)
        (limit,) = struct.unpack_from("!i", body, at)
        portal = self._portal(name)
        if not portal.statement.sql:
            self._stream.write(build.EMPTY_QUERY)
        else:
            self._pull(portal, max(limit, 0))

    def _close(self, body: bytes) -> None:
        name = _cstring(body, 1)[0]
        if body[:1] == b"S":
            self._statements.pop(name, None)
        else:
            portal = self._portals.pop(name, None)
            if portal is not None and portal is self._streaming:
                self._end_stream(keep=False)
        self._stream.write(build.CLOSE_COMPLETE)

    def _sync(self) -> None:
        self._skipping = False
        if self._status != codes.IN_TRANSACTION:
            self._drop_portals()
        self._ready()

    # -- running

    def _open(self, portal: Portal, values: list[Any]) -> None:
        """Bind: the portal gets its command, or its result with the columns."""
        statement = portal.statement
        portal.command = self._command(statement.sql)
        if portal.command is not None:
            statement.columns = portal.command.columns
            return
        self._refuse_when_failed()
        self._quiet()
        portal.result = self._engine.bind(statement.sql, statement.oids, values)
        if statement.columns is None:
            statement.columns = portal.result.columns
        elif [c.oid for c in statement.columns] != [c.oid for c in portal.result.columns]:
            raise StatementError("cached plan must not change result type", sqlstate="0A000")

    def _pull(self, portal: Portal, limit: int) -> None:
        """Send up to `limit` rows (0 is all), then CommandComplete or PortalSuspended."""
        if portal.tag is not None:
            self._stream.write(build.command_complete(portal.tag))
            return
        if portal.rows is None:
            self._log(portal.statement.sql, self._settings)
            if portal.command is not None:
                self._answer(portal)
                return
            self._quiet()
            portal.rows = self._rows(portal)
            self._streaming = portal
        count = 0
        with self._engine.running(), self._time_limit():
            for row in portal.rows:
                self._stream.write(row)
                count += 1
                if count == limit:
                    portal.sent += count
                    self._stream.write(build.message(b"s"))
                    return
        if self._streaming is portal:
            self._streaming = None
        portal.tag = f"SELECT {portal.sent + count}"
        self._stream.write(build.command_complete(portal.tag))

    def _answer(self, portal: Portal) -> None:
        assert portal.command is not None
        self._quiet()
        rows, portal.tag = portal.command.run()
        for row in rows:
            self._stream.write(build.data_row(row))
        self._tell_settings()
        self._stream.write(build.command_complete(portal.tag))

    def _rows(self, portal: Portal) -> Iterator[bytes]:
        assert portal.result is not None
        zone = self._settings.zone
        encoders: list[Callable[[Any], bytes]] = []
        for i, column in enumerate(portal.result.columns):
            if _format(portal.formats, i) == 1:
                encoders.append(column.type.binary)
            else:
                encoders.append(lambda value, text=column.type.text: text(value, zone).encode())  # type: ignore[misc]
        for batch in portal.result.batches():
            columns = [
                [None if value is None else encode(value) for value in values]
                for values, encode in zip(batch, encoders, strict=True)
            ]
            yield from map(build.data_row, zip(*columns, strict=True)) if columns else ()

    def _quiet(self) -> None:
        """DuckDB has one open result a connection: what is left of a suspended portal is read to memory."""
        if self._streaming is not None:
            self._end_stream(keep=True)

    def _end_stream(self, *, keep: bool) -> None:
        portal, self._streaming = self._streaming, None
        if portal is None or portal.rows is None or portal.result is None:
            return
        portal.rows = iter(list(portal.rows)) if keep else iter(())
        portal.result.close()

    def _time_limit(self) -> _TimeLimit:
        return _TimeLimit(self, self._settings.statement_timeout)

    def _drop_portals(self) -> None:
        self._end_stream(keep=False)
        self._portals.clear()

    # -- what the session answers itself

    def _command(self, sql: str) -> Command | None:
        """None for what DuckDB runs. Raises StatementError for what nobody runs here."""
        words = text.words(sql)
        first = words[0] if words else ""
        if first in ("BEGIN", "START"):
            return Command(None, lambda: self._begin(sql, first))
        if first in _ENDS and "TO" not in words and "PREPARED" not in words:
            return Command(None, lambda: self._end(_ENDS[first]))
        if first in ("SET", "RESET", "SHOW", "DISCARD", "DEALLOCATE"):
            self._refuse_when_failed()
        if first == "SET":
            return Command(None, lambda: self._set(sql, words))
        if first == "RESET":
            return Command(None, lambda: self._reset(words))
        if first == "SHOW":
            return self._show(sql, words)
        if first == "DISCARD":
            return Command(None, lambda: self._discard(words))
        if first == "DEALLOCATE":
            return Command(None, lambda: self._deallocate(sql, words))
        if first == "SELECT" and (found := _SET_CONFIG.fullmatch(sql)):
            self._refuse_when_failed()
            return self._setting_function(found)
        if first in _WRITES:
            self._refuse_when_failed()
            what = " ".join(words[:2]) if first in ("CREATE", "ALTER", "DROP") else first
            raise StatementError(f"cannot execute {what} in a read-only transaction", sqlstate="25006")
        if first in _ABSENT or first in _ENDS:
            self._refuse_when_failed()
            raise StatementError(f"a columnar node has no {first}", sqlstate="0A000")
        return None

    def _refuse_when_failed(self) -> None:
        if self._status == codes.FAILED:
            raise StatementError(
                "current transaction is aborted, commands ignored until end of transaction block", sqlstate="25P02"
            )

    def _begin(self, sql: str, first: str) -> tuple[list[tuple[str | None, ...]], str]:
        self._refuse_when_failed()
        if re.search(r"\bREAD\s+WRITE\b", sql, re.IGNORECASE):
            raise StatementError("cannot set transaction read-write mode on a columnar node", sqlstate="25006")
        if self._status == codes.IDLE:
            self._engine.begin()
            self._settings.begin()
            self._status = codes.IN_TRANSACTION
        else:
            self._notice("25001", "there is already a transaction in progress")
        return [], "START TRANSACTION" if first == "START" else "BEGIN"

    def _end(self, how: str) -> tuple[list[tuple[str | None, ...]], str]:
        if self._status == codes.IDLE:
            self._notice("25P01", "there is no transaction in progress")
            return [], how
        failed = self._status == codes.FAILED
        if failed:
            how = "ROLLBACK"
        else:
            self._engine.end(commit=how == "COMMIT")
        self._drop_portals()
        self._settings.end(committed=how == "COMMIT")
        self._engine.set_zone(self._settings.show("timezone"))
        self._status = codes.IDLE
        return [], how

    def _set(self, sql: str, words: list[str]) -> tuple[list[tuple[str | None, ...]], str]:
        if words[1:2] == ["TRANSACTION"] or words[1:3] == ["SESSION", "CHARACTERISTICS"]:
            if re.search(r"\bREAD\s+WRITE\b", sql, re.IGNORECASE):
                raise StatementError("cannot set transaction read-write mode on a columnar node", sqlstate="25006")
            return [], "SET"
        found = _SET.fullmatch(sql)
        if found is None:
            raise StatementError("syntax error in SET", sqlstate="42601")
        if found["zone"]:
            name, value = "TimeZone", found["zone"]
        elif found["names"]:
            name, value = "client_encoding", found["names"]
        else:
            name, value = found["name"].strip('"'), found["value"]
        local = (found["scope"] or "").upper() == "LOCAL"
        if value.upper() in ("DEFAULT", "LOCAL"):
            self._settings.reset(name)
        else:
            self._assign(name, _unquoted(value), local=local)
        return [], "SET"

    def _assign(self, name: str, value: str, *, local: bool) -> None:
        if local and self._status == codes.IDLE:
            self._notice("25P01", "SET LOCAL can only be used in transaction blocks")
            return
        self._settings.set(name, value, local=local)
        if name.lower() == "timezone":
            self._engine.set_zone(value)

    def _reset(self, words: list[str]) -> tuple[list[tuple[str | None, ...]], str]:
        self._settings.reset(words[1] if len(words) > 1 else "all")
        self._engine.set_zone(self._settings.show("timezone"))
        return [], "RESET"

    def _show(self, sql: str, words: list[str]) -> Command:
        if words[1:2] == ["ALL"]:
            columns = [_text_column(name) for name in ("name", "setting", "description")]
            rows = [(name, value, "") for name, value in self._settings.all().items()]
            return Command(columns, lambda: (list(rows), "SHOW"))
        name = re.sub(r'^\s*SHOW\s+|[\s;"]', "", sql, flags=re.IGNORECASE)
        name = {"TIMEZONE": "timezone", "TRANSACTIONISOLATIONLEVEL": "transaction_isolation"}.get(name.upper(), name)
        if name.lower() == "columnar.applied_lsn":
            return Command([_text_column(name)], lambda: ([(self._engine.engine.applied_lsn(),)], "SHOW"))
        self._settings.show(name)
        return Command([_text_column(name)], lambda: ([(self._settings.show(name),)], "SHOW"))

    def _setting_function(self, found: re.Match[str]) -> Command:
        def run() -> tuple[list[tuple[str | None, ...]], str]:
            if found["set"]:
                value = found["value"].replace("''", "'")
                self._assign(found["name"], value, local=found["local"].lower() == "true")
                return [(value,)], "SELECT 1"
            try:
                return [(self._settings.show(found["shown"]),)], "SELECT 1"
            except StatementError:
                if (found["missing"] or "").lower() != "true":
                    raise
                return [(None,)], "SELECT 1"

        return Command([_text_column(found["alias"] or (found["set"] or found["get"]).lower())], run)

    def _discard(self, words: list[str]) -> tuple[list[tuple[str | None, ...]], str]:
        what = words[1] if len(words) > 1 else "ALL"
        if what == "ALL":
            if self._status != codes.IDLE:
                raise StatementError("DISCARD ALL cannot run inside a transaction block", sqlstate="25001")
            self._reset(["RESET", "all"])
            self._statements.clear()
        return [], f"DISCARD {what}"

    def _deallocate(self, sql: str, words: list[str]) -> tuple[list[tuple[str | None, ...]], str]:
        if words[-1] == "ALL":
            self._statements.clear()
            return [], "DEALLOCATE ALL"
        name = re.sub(r"^\s*DEALLOCATE\s+(PREPARE\s+)?|[\s;]", "", sql, flags=re.IGNORECASE)
        name = name[1:-1] if name.startswith('"') else name.lower()
        if self._statements.pop(name, None) is None:
            raise StatementError(f'prepared statement "{name}" does not exist', sqlstate="26000")
        return [], "DEALLOCATE"

    # -- messages

    def _ready(self) -> None:
        self._stream.write(build.ready(self._status))
        self._stream.flush()

    def _error(self, error: StatementError) -> None:
        """Send it; an open transaction has failed with it."""
        if self._timed_out and error.sqlstate == "57014":
            error = StatementError("canceling statement due to statement timeout", sqlstate="57014")
        self._timed_out = False
        self._end_stream(keep=False)
        if self._status == codes.IN_TRANSACTION:
            self._status = codes.FAILED
            self._engine.end(commit=False)
        self._stream.write(build.error_response(error))
        self._stream.flush()

    def _notice(self, sqlstate: str, message: str) -> None:
        fields = {"S": "WARNING", "V": "WARNING", "C": sqlstate, "M": message}
        self._stream.write(build.error_fields(fields, b"N"))

    def _tell_settings(self) -> None:
        for name, value in self._settings.news():
            self._stream.write(build.parameter_status(name, value))

    def _statement(self, name: str) -> Statement:
        try:
            return self._statements[name]
        except KeyError:
            what = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise StatementError(f"{what} does not exist", sqlstate="26000") from None

    def _portal(self, name: str) -> Portal:
        try:
            return self._portals[name]
        except KeyError:
            raise StatementError(f'portal "{name}" does not exist', sqlstate="34000") from None


class _TimeLimit:
    """Interrupts the statement after `seconds` (0 is never)."""

    def __init__(self, session: Session, seconds: float) -> None:
        self._session = session
        self._timer = threading.Timer(seconds, self._fire) if seconds else None

    def _fire(self) -> None:
        self._session._timed_out = True
        self._session.cancel()

    def __enter__(self) -> None:
        if self._timer:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()


def _text_column(name: str) -> Column:
    return Column(name, types.result_type("VARCHAR"))


def _unquoted(value: str) -> str:
    """A SET value: quoted strings are opened, lists are joined by commas."""
    items = re.findall(r"'(?:[^']|'')*'|\"[^\"]*\"|[^\s,]+", value)
    return ", ".join(i[1:-1].replace("''", "'") if i[:1] == "'" else i.strip('"') for i in items)


def _row_description(columns: list[Column], formats: list[int]) -> bytes:
    body = [struct.pack("!H", len(columns))]
    for i, column in enumerate(columns):
        head = build.cstr(column.name) + struct.pack("!ih", 0, 0)
        body.append(head + struct.pack("!IhiH", column.oid, column.type.size, -1, _format(formats, i)))
    return build.message(b"T", b"".join(body))


def _format(formats: list[int], at: int) -> int:
    """Of column or parameter `at`, by the rule of Bind: none is text, one is for all."""
    if not formats:
        return 0
    return formats[0] if len(formats) == 1 else formats[at]


def _cstring(body: bytes, at: int) -> tuple[str, int]:
    end = body.find(b"\0", at)
    if end < 0:
        raise ProtocolViolation("invalid string in message")
    try:
        return body[at:end].decode(), end + 1
    except UnicodeDecodeError:
        raise StatementError('invalid byte sequence for encoding "UTF8"', sqlstate="22021") from None


def _int16s(body: bytes, at: int) -> tuple[list[int], int]:
    (count,) = struct.unpack_from("!H", body, at)
    return list(struct.unpack_from(f"!{count}H", body, at + 2)), at + 2 + 2 * count
