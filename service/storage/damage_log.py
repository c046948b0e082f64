"""Stored bytes that are gone or not those that were written: said in the log, without the bytes."""

from __future__ import annotations

import structlog

from service.errors import Damaged
from service.storage.blob_keys import kind_of

_log = structlog.get_logger("calibrd.blobs")


def log_damage(key: str, error: Damaged) -> None:
    """Name a damaged blob."""
    _log.error("blob_damaged", code=error.code, blob=kind_of(key), key=key)
