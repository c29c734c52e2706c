"""A small client for many connections: log in (SCRAM, optionally inside TLS), ask once, stay or leave.

Written against the protocol's description (PostgreSQL manual, chapter 55; RFC 5802) and not with the
proxy's own code, so that it also is an independent witness. The slow part of SCRAM, PBKDF2, is done
once for a salt: it would be the client's cost and not the proxy's.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import ssl
import struct
from functools import cache

SSL_REQUEST = struct.pack("!II", 8, 80877103)
TERMINATE = b"X\0\0\0\4"


class LoginFailed(Exception):
    """The server said no, or something that does not fit."""


class Connection:
    """One client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def query(self, sql: str) -> None:
        """Run and discard the result. Raises LoginFailed with an ErrorResponse's message."""
        self._send(b"Q", sql.encode() + b"\0")
        await self._until(b"Z")

    def close(self) -> None:
        self._writer.write(TERMINATE)
        self._writer.close()

    # -- login

    async def log_in(self, user: str, password: str, database: str) -> None:
        """From the startup message to the first ReadyForQuery."""
        pairs = f"user\0{user}\0database\0{database}\0\0".encode()
        self._writer.write(struct.pack("!II", len(pairs) + 8, 196608) + pairs)
        body = await self._until(b"R")
        if body[:4] != struct.pack("!I", 10):
            raise LoginFailed(f"expected SCRAM, was asked for method {int.from_bytes(body[:4], 'big')}")
        bare = "n=,r=" + secrets.token_urlsafe(18)
        first = f"n,,{bare}".encode()
        self._send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!I", len(first)) + first)
        server_first = (await self._until(b"R"))[4:].decode()
        fields = dict(part.split("=", 1) for part in server_first.split(","))
        client_key = _client_key(password, fields["s"], int(fields["i"]))
        without_proof = f"c=biws,r={fields['r']}"
        message = f"{bare},{server_first},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._send(b"p", f"{without_proof},p={base64.b64encode(proof).decode()}".encode())
        await self._until(b"Z")

    # -- messages

    def _send(self, kind: bytes, body: bytes) -> None:
        self._writer.write(kind + struct.pack("!I", len(body) + 4) + body)

    async def _until(self, wanted: bytes) -> bytes:
        """The body of the first message of that kind."""
        while True:
            kind, length = struct.unpack("!cI", await self._reader.readexactly(5))
            body = await self._reader.readexactly(length - 4)
            if kind == b"E":
                raise LoginFailed(body.decode(errors="replace").replace("\0", " "))
            if kind == wanted:
                return bytes(body)


async def connect(port: int, user: str, password: str, database: str, tls: ssl.SSLContext | None) -> Connection:
    """A client that has logged in. Raises OSError, LoginFailed or IncompleteReadError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=8192)
    try:
        if tls:
            writer.write(SSL_REQUEST)
            if await reader.readexactly(1) != b"S":
                raise LoginFailed("TLS was refused")
            await writer.start_tls(tls)
        connection = Connection(reader, writer)
        await connection.log_in(user, password, database)
    except BaseException:
        writer.close()
        raise
    return connection


def any_certificate() -> ssl.SSLContext:
    """TLS that asks no questions: what is measured is the handshake."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@cache
def _client_key(password: str, salt: str, iterations: int) -> bytes:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), iterations)
    return hmac.digest(salted, b"Client Key", "sha256")
