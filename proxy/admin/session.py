"""One client of the console after its login: messages in, bytes out.

Owns the client's prepared statements, portals and transaction status, which follow the rules of PostgreSQL
(manual, 55.2) though nothing here is transactional. Knows no sockets: `console` moves the bytes. The only
thing awaited is a command's own figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct

from ..errors import ProtocolViolation, TridentError
from ..log import get_logger
from ..wire import build, codes, frontend
from .answers import Answer, Who, answer, parameters
from .command import BOOL, FLOAT8, INT4, INT8, Action, Column, Command, Context, Value
from .language import split, syntax_error

MAX_STATEMENTS = 256
MAX_PORTALS = 16
ROWS_PER_TURN = 500
"""Rows encoded before the loop gets its turn: 20,000 clients take 150 ms in all."""

_log = get_logger("console")
_NO_PARAMETERS = build.message(b"t", b"\0\0")
_PORTAL_SUSPENDED = build.message(b"s")


@dataclass(slots=True)
class _Portal:
    answer: Answer | None
    """None for an empty statement."""
    formats: tuple[int, ...]
    rows: Iterator[bytes] | None = None
    """DataRows still to be sent, once it has run."""


class Session:
    """The dialogue with one client."""

    def __init__(self, who: Who, context: Context, commands: Mapping[str, Command | Action]) -> None:
        self._who = who
        self._context = context
        self._commands = commands
        self._statements: dict[bytes, Answer | None] = {}
        self._portals: dict[bytes, _Portal] = {}
        self._status = codes.IDLE
        self._skipping = False
        """An extended message failed: all until Sync is passed over."""

    def greeting(self) -> bytes:
        """What follows AuthenticationOk. There is nothing to cancel, so the key is zero."""
        settings = [build.parameter_status(name, value) for name, value in parameters(self._who).items()]
        return b"".join((*settings, build.backend_key(0, bytes(4)), build.ready(self._status)))

    async def handle(self, raw: bytes) -> bytes:
        """The reply to one whole message; ProtocolViolation of severity FATAL ends the connection."""
        kind = raw[0]
        if kind == frontend.SYNC:
            self._skipping = False
            return self._ready()
        if self._skipping or kind == frontend.FLUSH or kind in frontend.COPY:
            return b""  # outside COPY PostgreSQL passes over its messages too
        try:
            if kind == frontend.QUERY:
                return await self._query(raw)
            if kind in frontend.EXTENDED:
                return await self._extended(frontend.read_op(raw))
            raise TridentError("function calls are not supported by the console", sqlstate="0A000")
        except TridentError as error:
            reply = self._failed(error)
            if kind in frontend.EXTENDED:
                self._skipping = True
                return reply
            return reply + self._ready()

    async def _query(self, raw: bytes) -> bytes:
        self._statements.pop(b"", None)
        self._portals.pop(b"", None)
        if raw.find(0, 5) != len(raw) - 1:
            raise ProtocolViolation("invalid message format")
        replies: list[bytes] = []
        try:
            statements = split(_text(raw[5:-1]))
            for statement in statements:
                reply = self._allowed(answer(statement, self._who, self._commands))
                if reply.columns is not None:
                    replies.append(build.row_description(reply.columns))
                rows = await self._rows(reply, ())
                replies.extend(rows)
                replies.append(self._complete(reply, len(rows)))
            if not statements:
                replies.append(build.EMPTY_QUERY)
        except TridentError as error:
            replies.append(self._failed(error))
        replies.append(self._ready())
        return b"".join(replies)

    async def _extended(self, op: frontend.Op) -> bytes:
        if op.kind == frontend.PARSE:
            return self._parse(op)
        if op.kind == frontend.BIND:
            return self._bind(op)
        if op.kind == frontend.DESCRIBE:
            return self._describe(op)
        if op.kind == frontend.EXECUTE:
            return await self._execute(op)
        if op.target == ord("S"):
            self._statements.pop(op.name, None)
        else:
            self._portals.pop(op.portal, None)
        return build.CLOSE_COMPLETE

    def _parse(self, op: frontend.Op) -> bytes:
        statements = split(_text(op.sql))
        if len(statements) > 1:
            raise syntax_error("cannot insert multiple commands into a prepared statement")
        if op.name and op.name in self._statements:
            raise TridentError(f'prepared statement "{_text(op.name)}" already exists', sqlstate="42P05")
        if len(self._statements) >= MAX_STATEMENTS:
            raise TridentError("too many prepared statements on the console", sqlstate="53400")
        found = self._allowed(answer(statements[0], self._who, self._commands)) if statements else None
        self._statements[op.name] = found
        return build.PARSE_COMPLETE

    def _bind(self, op: frontend.Op) -> bytes:
        found = self._statement(op.name)
        formats = _read_bind(op.raw, op.rest, found)
        if found is not None:
            self._allowed(found)
        if op.portal and op.portal in self._portals:
            raise TridentError(f'cursor "{_text(op.portal)}" already exists', sqlstate="42P03")
        if len(self._portals) >= MAX_PORTALS:
            raise TridentError("too many portals on the console", sqlstate="53400")
        self._portals[op.portal] = _Portal(found, formats)
        return build.BIND_COMPLETE

    def _describe(self, op: frontend.Op) -> bytes:
        if op.target == ord("S"):
            return _NO_PARAMETERS + _described(self._statement(op.name), ())
        portal = self._portal(op.portal)
        return _described(portal.answer, portal.formats)

    async def _execute(self, op: frontend.Op) -> bytes:
        portal = self._portal(op.portal)
        found = portal.answer
        if found is None:
            return build.EMPTY_QUERY
        limit = int.from_bytes(op.raw[op.rest :], "big", signed=True)
        if portal.rows is None:
            self._allowed(found)
            portal.rows = iter(await self._rows(found, portal.formats))
        sent: list[bytes] = []
        for row in portal.rows:
            sent.append(row)
            if len(sent) == limit:
                return b"".join((*sent, _PORTAL_SUSPENDED))
        return b"".join((*sent, self._complete(found, len(sent))))

    async def _rows(self, found: Answer, formats: tuple[int, ...]) -> list[bytes]:
        """DataRows of an answer, which is computed now."""
        if found.columns is None or found.rows is None:
            return []
        try:
            rows = await found.rows(self._context)
        except TridentError:
            raise
        except Exception as error:  # a fault in one command must not end the client, let alone the controller
            _log.error("console_command_failed", exc_info=True)
            raise TridentError("the command failed inside the proxy", hint="Its log has the cause.") from error
        encoders = [_BINARY.get(oid, _as_text) if fmt else _as_text for oid, fmt in _formats(found.columns, formats)]
        encoded: list[bytes] = []
        for row in rows:
            fields = zip(encoders, row, strict=True)
            encoded.append(build.data_row([None if value is None else encode(value) for encode, value in fields]))
            if len(encoded) % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        return encoded

    def _complete(self, found: Answer, count: int) -> bytes:
        tag = found.tag
        if found.status is not None:
            if tag == "COMMIT" and self._status == codes.FAILED:
                tag = "ROLLBACK"
            if self._status != codes.IDLE or tag != "ROLLBACK":  # outside a transaction there is none to go back to
                self._status = found.status
        return build.command_complete(f"{tag} {count}" if tag == "SELECT" else tag)

    def _allowed(self, found: Answer) -> Answer:
        """The answer, unless the transaction has failed and this does not end it."""
        if self._status == codes.FAILED and found.status is None:
            raise TridentError(
                "current transaction is aborted, commands ignored until end of transaction block", sqlstate="25P02"
            )
        return found

    def _failed(self, error: TridentError) -> bytes:
        if error.severity == "FATAL":
            raise error
        if self._status == codes.IN_TRANSACTION:
            self._status = codes.FAILED
        return build.error_response(error, "ERROR")

    def _ready(self) -> bytes:
        if self._status == codes.IDLE:
            self._portals.clear()
        return build.ready(self._status)

    def _statement(self, name: bytes) -> Answer | None:
        if name not in self._statements:
            shown = f'prepared statement "{_text(name)}"' if name else "unnamed prepared statement"
            raise TridentError(f"{shown} does not exist", sqlstate="26000")
        return self._statements[name]

    def _portal(self, name: bytes) -> _Portal:
        if name not in self._portals:
            raise TridentError(f'portal "{_text(name)}" does not exist', sqlstate="34000")
        return self._portals[name]


def _described(found: Answer | None, formats: tuple[int, ...]) -> bytes:
    if found is None or found.columns is None:
        return build.NO_DATA
    return build.row_description(found.columns, tuple(fmt for _, fmt in _formats(found.columns, formats)))


def _formats(columns: tuple[Column, ...], formats: tuple[int, ...]) -> list[tuple[int, int]]:
    """(type OID, format code) of each column: no code is text for all, one code stands for all."""
    if len(formats) <= 1:
        formats = (formats[0] if formats else 0,) * len(columns)
    return [(oid, fmt) for (_, oid), fmt in zip(columns, formats, strict=True)]


def _read_bind(raw: bytes, pos: int, found: Answer | None) -> tuple[int, ...]:
    """The result formats of a Bind from behind its names on; there are no parameters to bind."""
    _, pos = _int16s(raw, pos)
    given = int.from_bytes(raw[pos : pos + 2], "big")
    if given:
        raise _malformed(f"bind message supplies {given} parameters, but prepared statement requires 0")
    formats, pos = _int16s(raw, pos + 2)
    if pos != len(raw) or any(code not in (0, 1) for code in formats):
        raise _malformed("invalid message format")
    columns = len(found.columns) if found is not None and found.columns is not None else 0
    if len(formats) > 1 and len(formats) != columns:
        raise _malformed(f"bind message has {len(formats)} result formats but query has {columns} columns")
    return formats


def _int16s(raw: bytes, pos: int) -> tuple[tuple[int, ...], int]:
    """A counted list of 16-bit numbers, and the position behind it (beyond the end if it is cut short)."""
    end = pos + 2 + 2 * int.from_bytes(raw[pos : pos + 2], "big")
    return tuple(int.from_bytes(raw[at : at + 2], "big") for at in range(pos + 2, end, 2)), end


def _malformed(text: str) -> ProtocolViolation:
    """08P01 for one batch; the connection lives, as with PostgreSQL."""
    error = ProtocolViolation(text)
    error.severity = "ERROR"
    return error


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise TridentError('invalid byte sequence for encoding "UTF8"', sqlstate="22021") from None


def _as_text(value: Value) -> bytes:
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return str(value).encode()


_BINARY: dict[int, Callable[[Value], bytes]] = {
    BOOL: lambda value: b"\1" if value else b"\0",
    INT4: Struct("!i").pack,
    INT8: Struct("!q").pack,
    FLOAT8: Struct("!d").pack,
}
"""Binary forms; that of text is its bytes."""
