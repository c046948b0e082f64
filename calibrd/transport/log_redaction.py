"""Remove the query strings of presigned URLs, which are secret, from logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpx

_under_way: ContextVar[bool] = ContextVar("calibrd_signed_url", default=False)


@contextmanager
def unlogged() -> Iterator[None]:
    """Remove the query string from URLs that httpx logs within the block."""
    before = _under_way.set(True)
    try:
        yield
    finally:
        _under_way.reset(before)


def keep_out_of_logs() -> None:
    """Install the log filter that ``unlogged`` needs, because httpx logs all URLs."""
    logging.getLogger("httpx").addFilter(_without_query)


def _without_query(record: logging.LogRecord) -> bool:
    if _under_way.get() and isinstance(record.args, tuple):
        record.args = tuple(
            one.copy_with(query=None) if isinstance(one, httpx.URL) else one for one in record.args
        )
    return True
