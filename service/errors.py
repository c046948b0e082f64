"""Errors of the service.

ServiceError
├── Malformed          bytes that are not valid in the stated format
├── Invalid            well-formed input with invalid values
├── Unauthenticated    no key, or one that is invalid or revoked
├── Forbidden          a valid key without the required scope
├── NotFound           no such object, or not in this workspace
├── Conflict           the request conflicts with what is stored
├── Stale              the object has changed since the caller last read it
├── TooLarge           more bytes, rows or classes than allowed
├── TooSlow            the body did not arrive in time
├── TooMany            one caller uses more than its share; try again
├── Unsupported        a format that the service does not read
├── NotAcceptable      the response is not available in the requested format
├── Unavailable        a part of the service is down; try again
│   ├── NoSpace        there is no room to write
│   └── DatabaseDamaged  the file of the embedded database is damaged
├── Unusable           a stored map that does not yield valid probabilities
└── Damaged            stored bytes are missing or differ from what was written
    ├── BlobMissing
    └── BlobCorrupt

Each error has a stable ``code`` for programs, a sentence for people, and plain ``details``
(numbers and names, never data, paths or secrets). The status of a code is in
calibrators/error_codes.py; the classes exist for ``except`` clauses.
"""

from __future__ import annotations

from typing import Any

from calibrators.error_codes import status_of

LONGEST_MESSAGE = 2000


class ServiceError(Exception):
    """Base class of all errors that are reported to clients; long messages are truncated."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        message = message[:LONGEST_MESSAGE]
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return status_of(self.code, unknown=500)


class Malformed(ServiceError):
    """Bytes that are not valid in the stated format."""


class Invalid(ServiceError):
    """Well-formed input with invalid values."""


class Unauthenticated(ServiceError):
    """No key, or one that is invalid or revoked."""


class Forbidden(ServiceError):
    """A valid key without the required scope."""


class NotFound(ServiceError):
    """No such object, or not in this workspace."""


class Conflict(ServiceError):
    """The request conflicts with what is stored."""


class Stale(ServiceError):
    """The object has changed since the caller last read it."""


class TooLarge(ServiceError):
    """More bytes, rows or classes than allowed."""


class TooSlow(ServiceError):
    """The body did not arrive in time."""


class TooMany(ServiceError):
    """One caller has more requests, waits or bytes in flight than its share; try again."""


class Unsupported(ServiceError):
    """A format that the service does not read."""


class NotAcceptable(ServiceError):
    """The response is not available in the requested format."""


class Unavailable(ServiceError):
    """A component of the service is down; try again."""


class NoSpace(Unavailable):
    """There is no room to write; reads still work."""


class DatabaseDamaged(Unavailable):
    """The file of the embedded database is damaged; queries of undamaged pages still work."""


class Unusable(ServiceError):
    """A stored map that does not yield valid probabilities: its parameters are out of range."""


class Damaged(ServiceError):
    """Stored bytes are missing or differ from what was written."""


class BlobMissing(Damaged):
    """A row refers to a blob that is not in the store."""


class BlobCorrupt(Damaged):
    """A blob's bytes do not match the SHA-256 in its row."""
