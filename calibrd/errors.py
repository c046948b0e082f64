"""Errors that the SDK raises about the service.

CalibrdError
├── ServiceAway            unreachable, or no response before the deadline
│   └── MaybeDone          no response to a call that is not retried, but may have succeeded
├── StoreAway              the object store does not accept the parts sent directly to it
├── NotCalibrd             something responds at this URL, but it is not a calibrd service
├── FitFailed              the fit failed: ``code`` gives the reason
├── FitWasCancelled        the fit was cancelled
├── WaitedTooLong          the timeout of ``wait`` has passed; the fit continues
├── MapDamaged             the bytes of a map do not have the expected hash
├── InputMismatch          the alias has moved to a version that takes different input
└── Refused                the service responded with a problem: ``status``, ``request_id``
    ├── Invalid            400, 405, 406, 413, 414, 415, 422, 431: correct the request
    ├── Unauthenticated    401: use a valid key
    ├── Forbidden          403: use a key with the required scope
    ├── NotFound           404
    ├── TooSlow            408: send smaller parts
    ├── Conflict           409, 412: the request conflicts with the current state
    └── ServerError        5xx: contact the operator of the service
        └── Unavailable    429, 502, 503, 504: try again later

Each error has a stable ``code`` for programs and a ``hint`` for people, from
calibrators/error_codes.py. Invalid data raises a DataError of ``calibrators`` before anything is
sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrators.error_codes import hint_of


class CalibrdError(Exception):
    """Base class of the SDK's errors; ``hint`` explains how to fix the problem, if known."""

    code: str
    # True if an earlier attempt at the same request may have succeeded
    repeated: bool = False

    @property
    def hint(self) -> str:
        """Advice on how to fix the problem; empty if there is none."""
        return hint_of(self.code)

    def __str__(self) -> str:
        return self._with_hint(super().__str__())

    def _with_hint(self, sentence: str) -> str:
        return f"{sentence}\nhint: {self.hint}" if self.hint else sentence

    def __reduce__(self) -> tuple[Any, ...]:
        # keep all attributes; the default would restore only the message
        return _rebuilt, (type(self), self.args), dict(vars(self))


def _rebuilt(kind: type[CalibrdError], args: tuple[Any, ...]) -> CalibrdError:
    made = kind.__new__(kind)
    made.args = args
    return made


class ServiceAway(CalibrdError, ConnectionError):
    """The service is unreachable, or did not respond before the deadline."""

    code = "service_away"


class MaybeDone(ServiceAway):
    """A call that is not safe to retry got no response; it may have succeeded."""

    code = "maybe_done"


class StoreAway(CalibrdError, ConnectionError):
    """The object store does not accept the parts that are sent directly to it."""

    code = "store_away"


class NotCalibrd(CalibrdError):
    """Something responds at this URL, but it is not a calibrd service."""

    code = "not_calibrd"


class FitFailed(CalibrdError):
    """The fit failed; ``code`` gives the reason, and ``fit`` is its id."""

    def __init__(self, code: str, message: str, fit: str) -> None:
        super().__init__(f"fit {fit} failed: {message} ({code})")
        self.code = code
        self.fit = fit


class FitWasCancelled(CalibrdError):
    """The fit was cancelled."""

    code = "fit_was_cancelled"

    def __init__(self, fit: str) -> None:
        super().__init__(f"fit {fit} was cancelled")
        self.fit = fit


def resume_hint(fit: str) -> str:
    """Return a hint on how to resume waiting for a fit or cancel it."""
    return f"client.wait({fit!r}) resumes waiting; client.cancel({fit!r}) cancels the fit"


class WaitedTooLong(CalibrdError, TimeoutError):
    """The timeout of ``wait`` has passed; the fit continues."""

    code = "waited_too_long"

    def __init__(self, fit: str, seconds: float) -> None:
        super().__init__(f"fit {fit} has not finished after {seconds:g} s; it continues")
        self.fit = fit

    @property
    def hint(self) -> str:
        """Advice on how to resume waiting for the fit or cancel it."""
        return resume_hint(self.fit)


class MapDamaged(CalibrdError):
    """The bytes of a map do not have the expected hash."""

    code = "map_damaged"


class InputMismatch(CalibrdError):
    """The alias has moved to a version with a different kind of input or number of classes."""

    code = "input_mismatch"


class Refused(CalibrdError):
    """The service responded with a problem.

    ``code`` is stable and meant for programs; ``detail`` is meant for people. ``details`` holds the
    numbers and names from the message. ``request_id`` identifies the request in the service's log.
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
        request = f", request {self.request_id}" if self.request_id else ""
        return self._with_hint(f"{self.detail} ({self.code}{request})")


class Invalid(Refused):
    """The request is malformed, invalid or too large."""


class Unauthenticated(Refused):
    """The key is missing, invalid, expired or revoked."""


class Forbidden(Refused):
    """The key is valid but lacks the required scope."""


class NotFound(Refused):
    """The object does not exist in the workspace of this key."""


class TooSlow(Refused):
    """The body did not arrive in time."""


class Conflict(Refused):
    """The request conflicts with the current state, which may have changed since it was read."""


class ServerError(Refused):
    """The service failed."""


class Unavailable(ServerError):
    """A component of the service is down or overloaded; try again later."""


_BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: TooSlow,
    409: Conflict,
    412: Conflict,
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def kind_of(status: int) -> type[Refused]:
    """Return the error class of an HTTP status.

    >>> kind_of(413).__name__, kind_of(412).__name__, kind_of(507).__name__
    ('Invalid', 'Conflict', 'ServerError')
    """
    return _BY_STATUS.get(status, ServerError if status >= 500 else Invalid)
