"""Logging with structlog and the standard library: one line per event on stderr, no secrets."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

REDACTED = "[redacted]"
MAX_TEXT = 8192
MAX_ITEMS = 20
MAX_DEPTH = 4

# libraries that install their own handlers or log too much
_LIBRARY_LEVELS = {
    "uvicorn": logging.WARNING,
    "uvicorn.error": logging.WARNING,
    "alembic": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "httpx": logging.WARNING,
}
_MULTILINE_FIELDS = ("exception", "stack")
_SENSITIVE = r"(?:authorization|cookie|passw(?:or)?d|secret|token|api_?key|credential)"
_is_sensitive = re.compile(_SENSITIVE, re.IGNORECASE).search
_SECRETS_IN_TEXT = (
    (re.compile(r"cal_([A-Za-z0-9]{1,64})_[\w.~+/=-]+"), rf"cal_\1_{REDACTED}"),
    (re.compile(r"\b(bearer)\s{1,3}(?!cal_)[\w.~+/=-]+", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^/\s:@]{0,256}):[^/\s]*@"), rf"\1:{REDACTED}@"),
    (
        re.compile(
            rf"({_SENSITIVE}\w{{0,24}}(?:['\"]\s{{0,3}}[=:,]|\s{{0,3}}[=:])\s{{0,3}}(?:b?['\"])?)"
            r"(?:basic\s{1,3})?(?!bearer\b)[^\s'\",;&)}\[]+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
)


def configure(level: str, format: Literal["auto", "json", "console"]) -> None:
    """Send all logs of this process to stderr in one format; may be called again.

    "auto" is text on a terminal and JSON elsewhere. Libraries log at "warning" and above, unless
    ``level`` is "debug".

    Start uvicorn with ``log_config=None, access_log=False``; otherwise it restores its handlers.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name, library_level in _LIBRARY_LEVELS.items():
        library = logging.getLogger(name)
        # some libraries add a handler if they have none, so each is given this one
        library.handlers[:] = [handler]
        library.propagate = False
        library.setLevel(threshold if threshold <= logging.DEBUG else max(threshold, library_level))
    access = logging.getLogger("uvicorn.access")
    access.handlers[:] = []
    access.propagate = False
    logging.captureWarnings(True)
    structlog.configure(
        processors=[*_ORIGIN, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=False,
    )


# fields that this service's modules add to the events of standard-library loggers
EXTRA_FIELDS = ("code", "error", "from", "key", "reason", "to")


class PlainFormatter(logging.Formatter):
    """A formatter that puts an event on one line, for commands that do not configure logs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return an event as one line.

        >>> record = logging.LogRecord("a", 30, "a.py", 1, "blob_store_unavailable", (), None)
        >>> record.error = "password=hunter2"
        >>> PlainFormatter().format(record)
        'blob_store_unavailable error=password=[redacted]'
        """
        fields = ((name, getattr(record, name, None)) for name in EXTRA_FIELDS)
        shown = [f"{name}={value}" for name, value in fields if value not in (None, "")]
        return redact(" ".join([super().format(record), *shown]))


_ORIGIN: list[Processor] = [
    structlog.stdlib.add_logger_name,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _formatter(format: Literal["auto", "json", "console"]) -> logging.Formatter:
    rendering: list[Processor]
    if format == "json" or (format == "auto" and not sys.stderr.isatty()):
        rendering = [structlog.processors.JSONRenderer()]
    else:
        rendering = [
            without_control_characters,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_ORIGIN, structlog.stdlib.ExtraAdder(EXTRA_FIELDS)],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            without_data_and_secrets,
            *rendering,
        ],
    )


def without_data_and_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace data with sizes, and secrets with a marker; runs after tracebacks are formatted."""
    return {name: _loggable(name, value, MAX_DEPTH) for name, value in event.items()}


def without_control_characters(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control and unprintable characters; tracebacks keep their line breaks."""
    return {
        name: _escaped(value, keep="\n" if name in _MULTILINE_FIELDS else "")
        if isinstance(value, str)
        else value
        for name, value in event.items()
    }


def _escaped(text: str, keep: str) -> str:
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


def _loggable(name: str, value: Any, depth: int) -> Any:
    if _is_sensitive(name):
        return REDACTED
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return redact(_truncated(value))
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case np.ndarray():
            return f"<array of shape {value.shape}>"
        case Mapping() if depth and len(value) <= MAX_ITEMS:
            return {str(key): _loggable(str(key), item, depth - 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() if depth and len(value) <= MAX_ITEMS:
            return [_loggable("", item, depth - 1) for item in value]
        case Mapping() | list() | tuple() | set() | frozenset():
            return f"<{len(value)} items>"
        case _:
            return redact(_truncated(str(value)))


def redact(text: str) -> str:
    """Return the text without keys, passwords and other secrets.

    >>> redact("postgresql://calibrd:hunter2@db/calibrd")
    'postgresql://calibrd:[redacted]@db/calibrd'
    """
    for secret, mark in _SECRETS_IN_TEXT:
        text = secret.sub(mark, text)
    return text


def _truncated(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    # the end of a traceback matters more than its beginning
    head, tail = text[: MAX_TEXT // 4], text[-MAX_TEXT * 3 // 4 :]
    return f"{head} <{len(text) - len(head) - len(tail)} characters left out> {tail}"
