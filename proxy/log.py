"""Log lines: one event a line, as JSON or for people, on standard error.

Owns the form of a line, the level and the rule that no secret gets into one. Names of events are
past tense or states ("client_connected"); what varies is in fields. It must not open files or rotate
them: that is the job of whoever runs the process. Every process calls `configure` at its start and
after a reload; loggers made before follow, so modules may make theirs at import.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SECRET = frozenset({"password", "passwd", "secret", "token", "key", "params", "parameters", "value", "values", "keys"})
_SECRET_ENDS = ("_password", "_secret", "_token", "_key")
HIDDEN = "***"


class Logger(structlog.BoundLoggerBase):
    """A component's logger. `bind(**fields)` gives one that adds fields to all its lines.

    A line below the level costs one comparison, and so may stand on the fast path.
    """

    def debug(self, event: str, **fields: Any) -> None:
        if _settings.level <= 10:
            self._proxy_to_logger("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        if _settings.level <= 20:
            self._proxy_to_logger("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        if _settings.level <= 30:
            self._proxy_to_logger("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """`exc_info=True` adds the traceback: for our own faults only, never for what a peer sent."""
        self._proxy_to_logger("error", event, **fields)


class _Settings:
    """What `configure` sets; the only mutable state here."""

    def __init__(self) -> None:
        self.level = _LEVELS["info"]
        self.common: Mapping[str, Any] = {}
        self.stream: TextIO | None = None  # None is the standard error of the moment
        self.render: Processor = structlog.processors.JSONRenderer(ensure_ascii=False)


_settings = _Settings()


class _Sink:
    """Writes finished lines, one write each so that lines of several processes don't mix."""

    def write(self, line: str) -> None:
        stream = _settings.stream or sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # a full disk or a closed pipe must not end the service

    debug = info = warning = error = write


def _complete(_: WrappedLogger, level: str, event: EventDict) -> EventDict:
    event["level"] = level
    for name, value in _settings.common.items():
        event.setdefault(name, value)
    return event


def hide_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Blanks fields that are named like a secret or like parameter values, in nested dicts too."""
    for name, value in event.items():
        if name in _SECRET or name.endswith(_SECRET_ENDS):
            event[name] = HIDDEN
        elif isinstance(value, dict):
            event[name] = hide_secrets(_, __, dict(value))
    return event


def _one_line(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escapes control characters, lest a client's name forge a line of its own."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable() and name != "exception":
            event[name] = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return event


def _render(logger: WrappedLogger, name: str, event: EventDict) -> Any:
    return _settings.render(logger, name, event)


_PROCESSORS: list[Processor] = [
    _complete,
    hide_secrets,
    structlog.processors.format_exc_info,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    _one_line,
    _render,
]


def get_logger(component: str) -> Logger:
    """The logger of a component, whose name is in each of its lines."""
    return Logger(_Sink(), _PROCESSORS, {"component": component})


class _Bridge(logging.Handler):
    """Brings what libraries say through `logging` into the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        log = get_logger(record.name)
        getattr(log, level)(record.getMessage(), **({"exc_info": record.exc_info} if record.exc_info else {}))


def configure(format: str, level: str, stream: TextIO | None = None, common: Mapping[str, Any] | None = None) -> None:
    """Sets form ("json", "console"), least level and the fields of every line (process, worker ...).

    `stream` is for tests; None is standard error. May be called again at any time.
    """
    _settings.level = _LEVELS[level]
    _settings.common = dict(common or {})
    _settings.stream = stream
    if format == "json":
        _settings.render = structlog.processors.JSONRenderer(ensure_ascii=False)
    else:
        colors = (stream or sys.stderr).isatty()
        _settings.render = structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time", pad_event_to=24)
    root = logging.getLogger()
    if not any(isinstance(handler, _Bridge) for handler in root.handlers):
        root.addHandler(_Bridge(level=logging.WARNING))
