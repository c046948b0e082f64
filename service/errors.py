"""Everything the service refuses with, and cannot do.

ServiceError
├── Malformed          bytes that cannot be read as what they claim to be
├── Invalid            readable, but it breaks a rule
├── Unauthenticated    no key, or one that is not (any longer) valid
├── Forbidden          a valid key without the scope
├── NotFound           there is no such thing, or not in this workspace
├── Conflict           it contradicts what is there
├── Stale              it has changed since the caller last saw it
├── TooLarge           more bytes, rows or classes than allowed
├── TooSlow            the body did not arrive in time
├── TooMany            one caller has more under way than its share; try again
├── Unsupported        a format that is not read here
├── NotAcceptable      an answer was asked for in a form it cannot have
├── Unavailable        a part of the service is down; try again
│   └── NoSpace        there is no room to write
├── Unusable           a stored map that gives no probabilities
└── Damaged            stored bytes are gone, or are not those that were written
    ├── BlobMissing
    └── BlobCorrupt

Each has a stable ``code`` for programs, a sentence for people, and plain ``details`` (numbers and
names, never data, paths or secrets). The status of a code is in calibrators/error_codes.py; the
classes are for those who catch them.
"""

from __future__ import annotations

from typing import Any

from calibrators.error_codes import status_of

LONGEST_MESSAGE = 2000


class ServiceError(Exception):
    """Base of all errors that a client is told about; long messages are cut."""

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
    """Bytes that cannot be read as what they claim to be."""


class Invalid(ServiceError):
    """Readable, but it breaks a rule."""


class Unauthenticated(ServiceError):
    """No key, or one that is not (any longer) valid."""


class Forbidden(ServiceError):
    """A valid key without the scope."""


class NotFound(ServiceError):
    """There is no such thing, or not in this workspace."""


class Conflict(ServiceError):
    """It contradicts what is there."""


class Stale(ServiceError):
    """It has changed since the caller last saw it."""


class TooLarge(ServiceError):
    """More bytes, rows or classes than allowed."""


class TooSlow(ServiceError):
    """The body did not arrive in time."""


class TooMany(ServiceError):
    """One caller has more requests, waits or bytes under way than its share; try again."""


class Unsupported(ServiceError):
    """A format that is not read here."""


class NotAcceptable(ServiceError):
    """An answer was asked for in a form it cannot have."""


class Unavailable(ServiceError):
    """A part of the service is down; try again."""


class NoSpace(Unavailable):
    """There is no room to write; reading goes on."""


class Unusable(ServiceError):
    """A stored map that gives no probabilities: its parameters are out of range."""


class Damaged(ServiceError):
    """Stored bytes are gone, or are not those that were written."""


class BlobMissing(Damaged):
    """A row names a blob that the store does not have."""


class BlobCorrupt(Damaged):
    """A blob's bytes are not those that its row names."""
