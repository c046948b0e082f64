"""Everything the SDK raises about the service.

CalibrdError
├── ServiceAway            it cannot be reached, or was not ready in all the time that was given
├── StoreAway              a store that parts are sent straight to does not take them
├── NotCalibrd             something answers at this URL, but not a calibrd service
├── FitFailed              a fit ended without a version: ``code`` says why
├── FitWasCancelled        somebody cancelled it
├── WaitedTooLong          the time given to ``wait`` is over; the fit goes on
├── MapDamaged             bytes of a map that do not have the hash they should have
└── Refused                the service answered with a problem: ``code``, ``status``, ``request_id``
    ├── Malformed          400
    ├── Unauthenticated    401
    ├── Forbidden          403
    ├── NotFound           404
    ├── NotAcceptable      406
    ├── TooSlow            408
    ├── Conflict           409
    ├── Stale              412
    ├── TooLarge           413
    ├── Unsupported        415
    ├── Invalid            422
    └── ServerTrouble      5xx
        └── Unavailable    503, 502, 504
            └── NoSpace    507

Below these, each code of the service has a class of its own, named after it: ``no_such_alias`` is
``NoSuchAlias``, a NotFound (see ``calibrd/named_errors.py``). A code that is newer than this SDK is
raised as its status's class. Input that breaks a rule is found before anything is sent, and is a
DataError of ``calibrators``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class CalibrdError(Exception):
    """Base of all errors of the SDK; ``hint`` says what can be done, if that is known."""

    hint: ClassVar[str] = ""


class ServiceAway(CalibrdError, ConnectionError):
    """It cannot be reached, or was not ready in all the time that was given."""

    hint = "is the service running, and is CALIBRD_URL right?"


class StoreAway(CalibrdError, ConnectionError):
    """A store that parts are sent straight to does not take them."""


class NotCalibrd(CalibrdError):
    """Something answers at this URL, but not a calibrd service."""


class FitFailed(CalibrdError):
    """A fit ended without a version: ``code`` says why, ``fit`` is its id."""

    def __init__(self, code: str, message: str, fit: str) -> None:
        super().__init__(f"fit {fit} failed: {message} ({code})")
        self.code = code
        self.fit = fit


class FitWasCancelled(CalibrdError):
    """Somebody cancelled the fit that was waited for."""

    def __init__(self, fit: str) -> None:
        super().__init__(f"fit {fit} was cancelled")
        self.fit = fit


class WaitedTooLong(CalibrdError, TimeoutError):
    """The time given to ``wait`` is over; the fit goes on."""

    def __init__(self, fit: str, seconds: float) -> None:
        super().__init__(f"fit {fit} is not finished after {seconds:g} s; it goes on")
        self.fit = fit


class MapDamaged(CalibrdError):
    """Bytes of a map that do not have the hash they should have."""


class Refused(CalibrdError):
    """The service answered with a problem.

    ``code`` is stable and for programs, ``detail`` for people, ``details`` holds the numbers and
    names of the problem, ``request_id`` finds it in the service's log.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int,
        request_id: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.request_id = request_id
        self.details = dict(details or {})

    def __str__(self) -> str:
        asked = f", request {self.request_id}" if self.request_id else ""
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.detail} ({self.code}{asked}){hint}"


class Malformed(Refused):
    """Bytes that cannot be read as what they claim to be."""


class Unauthenticated(Refused):
    """No key, or one that is not (any longer) valid."""

    hint = "give api_key=, or set CALIBRD_API_KEY"


class Forbidden(Refused):
    """A valid key without the scope."""


class NotFound(Refused):
    """There is no such thing, or not in the workspace of this key."""


class NotAcceptable(Refused):
    """An answer was asked for in a form it cannot have."""


class TooSlow(Refused):
    """The body did not arrive in time."""


class Conflict(Refused):
    """It contradicts what is there."""


class Stale(Refused):
    """It has changed since it was last seen."""


class TooLarge(Refused):
    """More bytes, rows or classes than the service allows."""


class Unsupported(Refused):
    """A format that is not read there."""


class Invalid(Refused):
    """Readable, but it breaks a rule."""


class ServerTrouble(Refused):
    """The service met a trouble of its own."""


class Unavailable(ServerTrouble):
    """A part of the service is down; it can be tried again."""


class NoSpace(Unavailable):
    """There is no room to write; reading goes on."""


BY_STATUS: dict[int, type[Refused]] = {
    400: Malformed,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    406: NotAcceptable,
    408: TooSlow,
    409: Conflict,
    412: Stale,
    413: TooLarge,
    415: Unsupported,
    422: Invalid,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: NoSpace,
}


def kind_of(status: int) -> type[Refused]:
    """The class of problems that answer with this status."""
    return BY_STATUS.get(status, ServerTrouble if status >= 500 else Refused)
