"""Logs: one line per event on stderr, from structlog and the standard library alike, no secrets."""

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

# these bring handlers of their own, or would say more than they should
_OTHERS = {
    "uvicorn": logging.WARNING,
    "uvicorn.error": logging.WARNING,
    "alembic": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "httpx": logging.WARNING,
}
_OF_SEVERAL_LINES = ("exception", "stack")
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
    """Send every log of this process to stderr in one form; may be called again.

    "auto" is text on a terminal and JSON elsewhere. Libraries are heard from "warning" on, unless
    ``level`` is "debug".

    Start uvicorn with ``log_config=None, access_log=False``, or it puts its own handlers back.
    """
    least = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(format))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(least)
    for name, usual in _OTHERS.items():
        other = logging.getLogger(name)
        # some add a handler wherever they find none, so each of them gets ours
        other.handlers[:] = [handler]
        other.propagate = False
        other.setLevel(least if least <= logging.DEBUG else max(least, usual))
    access = logging.getLogger("uvicorn.access")
    access.handlers[:] = []
    access.propagate = False
    logging.captureWarnings(True)
    structlog.configure(
        processors=[*_ORIGIN, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(least),
        cache_logger_on_first_use=False,
    )


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
        foreign_pre_chain=_ORIGIN,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            without_data_and_secrets,
            *rendering,
        ],
    )


def without_data_and_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace data by its size and secrets by a mark; a processor for after tracebacks are text."""
    return {name: _fit_to_log(name, value, MAX_DEPTH) for name, value in event.items()}


def without_control_characters(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape what a terminal would obey or could not show; tracebacks keep their lines."""
    return {
        name: _escaped(value, keep="\n" if name in _OF_SEVERAL_LINES else "")
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


def _fit_to_log(name: str, value: Any, depth: int) -> Any:
    if _is_sensitive(name):
        return REDACTED
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return redact(_shortened(value))
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case np.ndarray():
            return f"<array of shape {value.shape}>"
        case Mapping() if depth and len(value) <= MAX_ITEMS:
            return {str(key): _fit_to_log(str(key), item, depth - 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() if depth and len(value) <= MAX_ITEMS:
            return [_fit_to_log("", item, depth - 1) for item in value]
        case Mapping() | list() | tuple() | set() | frozenset():
            return f"<{len(value)} items>"
        case _:
            return redact(_shortened(str(value)))


def redact(text: str) -> str:
    """The text without keys, passwords and the like.

    >>> redact("postgresql://calibrd:hunter2@db/calibrd")
    'postgresql://calibrd:[redacted]@db/calibrd'
    """
    for secret, mark in _SECRETS_IN_TEXT:
        text = secret.sub(mark, text)
    return text


def _shortened(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    # the end of a traceback says more than its beginning
    head, tail = text[: MAX_TEXT // 4], text[-MAX_TEXT * 3 // 4 :]
    return f"{head} <{len(text) - len(head) - len(tail)} characters left out> {tail}"
