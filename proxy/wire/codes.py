"""Numbers of the PostgreSQL frontend/backend protocol 3.0 and 3.2 (manual, chapters 54.7 and 54.8)."""

from __future__ import annotations

PROTOCOL_3_0 = 196608
PROTOCOL_3_2 = 196610
SSL_REQUEST = 80877103
GSSENC_REQUEST = 80877104
CANCEL_REQUEST = 80877102

MAX_STARTUP = 10_000
"""Bytes of a first packet (MAX_STARTUP_PACKET_LENGTH)."""
MAX_AUTH_MESSAGE = 65_536
MAX_PARAMETERS = 100
"""Parameters that one server may report by ParameterStatus; PostgreSQL 18 has 15. Each has at most
MAX_AUTH_MESSAGE bytes."""
MAX_MESSAGE = 0x3FFFFFFF
"""Bytes of one message: PostgreSQL's own limit of 1 GB less one (MaxAllocSize)."""

AUTH_OK = 0
AUTH_CLEARTEXT = 3
AUTH_MD5 = 5
AUTH_SASL = 10
AUTH_SASL_CONTINUE = 11
AUTH_SASL_FINAL = 12

UNASKED = b"SENA"
"""What a server may say at any time (manual, 55.2.7): ParameterStatus, ErrorResponse (a FATAL),
NoticeResponse, NotificationResponse."""

IDLE = 0x49
"""ReadyForQuery status `I`."""
IN_TRANSACTION = 0x54
"""ReadyForQuery status `T`."""
FAILED = 0x45
"""ReadyForQuery status `E`."""
