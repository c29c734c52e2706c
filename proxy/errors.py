"""The error tree: whose fault it is, and what the client is told.

Owns every error that the proxy itself may answer with. Each carries a SQLSTATE (PostgreSQL manual,
appendix A), a severity and whether trying again may help. Turning one into wire bytes is done at one
door only, `wire.build.error_response`. An error text never holds a password, a parameter value or
another client's data.
"""

from __future__ import annotations


class TridentError(Exception):
    """Base of all errors of the proxy.

    `message` is one sentence: what happened, on which node. `hint` says what to do.
    """

    sqlstate = "XX000"
    severity = "ERROR"
    retryable = False

    def __init__(self, message: str, *, hint: str = "", detail: str = "", sqlstate: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail
        if sqlstate:
            self.sqlstate = sqlstate


class ProtocolViolation(TridentError):
    """The peer broke the protocol: it gets a FATAL and is closed."""

    sqlstate = "08P01"
    severity = "FATAL"


class ConfigError(TridentError):
    """The configuration can't be used; the message names file, line, key and what is allowed."""

    sqlstate = "F0000"
    severity = "FATAL"


class LoginError(TridentError):
    """A client may not log in (28000, 28P01, 3D000 ...)."""

    sqlstate = "28000"
    severity = "FATAL"


class Unsupported(TridentError):
    """A feature that PostgreSQL has and the proxy refuses, or an unknown protocol version."""

    sqlstate = "0A000"
    severity = "FATAL"


class NodeFailure(TridentError):
    """A node could not be reached, or broke off."""

    sqlstate = "08006"
    retryable = True


class NodeRefused(NodeFailure):
    """A node answered a login with an ErrorResponse; the client gets that error as it is.

    `fields` are the node's own error fields, keyed by field code (`S`, `C`, `M` ...).
    """

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(fields.get("M", "login refused"), sqlstate=fields.get("C", "08004"))
        self.fields = fields


class NoServer(TridentError):
    """No server connection became free in time, or the queue for one is full."""

    sqlstate = "53300"
    retryable = True


class NoNode(TridentError):
    """No node may serve this class of statement now."""

    sqlstate = "57P03"
    retryable = True


class Moved(TridentError):
    """The client's service was moved off a node that has failed; the client asked to be told. Its session goes on."""

    sqlstate = "40001"
    retryable = True


class CannotFollow(TridentError):
    """State of the client's session can't be carried to the server that it needs."""

    sqlstate = "0A000"


class Aborted(TridentError):
    """The client's transaction has failed and has not been ended yet; PostgreSQL's own words."""

    sqlstate = "25P02"

    def __init__(self) -> None:
        super().__init__("current transaction is aborted, commands ignored until end of transaction block")


class Rejected(TridentError):
    """A rule of the configuration says that such a statement is not to run."""

    sqlstate = "42501"


class Terminated(TridentError):
    """The proxy ends this client (shutdown, time-out, administrator)."""

    sqlstate = "57P01"
    severity = "FATAL"
