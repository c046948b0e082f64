"""The kinds of errors: where the trouble is, or the status that the service answered with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CalibrdError(Exception):
    """Base of all errors of the SDK; ``hint`` says what can be done, if that is known."""

    hint: str = ""
    # whether the request had been sent before, and may have been done then
    repeated: bool = False

    def __str__(self) -> str:
        return self._with_hint(super().__str__())

    def _with_hint(self, sentence: str) -> str:
        return f"{sentence}\nhint: {self.hint}" if self.hint else sentence

    def __reduce__(self) -> tuple[Any, ...]:
        # as it is: made again from its sentence it would lack the rest
        return _rebuilt, (type(self), self.args), dict(vars(self))


def _rebuilt(kind: type[CalibrdError], args: tuple[Any, ...]) -> CalibrdError:
    made = kind.__new__(kind)
    made.args = args
    return made


class ServiceAway(CalibrdError, ConnectionError):
    """It cannot be reached, or was not ready in all the time that was given."""

    hint = "is the service running, and is CALIBRD_URL right?"


class MaybeDone(ServiceAway):
    """The answer was lost of something that must not be sent twice: it may have been done."""

    hint = ""


class StoreAway(CalibrdError, ConnectionError):
    """A store that parts are sent straight to does not take them."""


class NotCalibrd(CalibrdError):
    """Something answers at this URL, but not a calibrd service."""

    hint = "what runs at CALIBRD_URL, or at the url that the client was given?"


FIT_HINTS = {
    "dataset_gone": "its dataset was deleted meanwhile: fit(name, logits, labels) sends it again",
    "device_unavailable": "fit(..., device='cpu') needs no GPU",
    "too_few_rows": "a fit needs more rows than this to be judged",
    "blob_missing": "upload the data again: the service has lost its bytes",
    "blob_corrupt": "upload the data again: the service's copy is damaged",
}


class FitFailed(CalibrdError):
    """A fit ended without a version: ``code`` says why, ``fit`` is its id."""

    def __init__(self, code: str, message: str, fit: str) -> None:
        super().__init__(f"fit {fit} failed: {message} ({code})")
        self.code = code
        self.fit = fit
        self.hint = FIT_HINTS.get(code, "")


class FitWasCancelled(CalibrdError):
    """Somebody cancelled the fit that was waited for."""

    def __init__(self, fit: str) -> None:
        super().__init__(f"fit {fit} was cancelled")
        self.fit = fit


def going_on(fit: str) -> str:
    """How to come back to a fit that is waited for no longer."""
    return f"client.wait({fit!r}) waits for it again, client.cancel({fit!r}) stops it"


class WaitedTooLong(CalibrdError, TimeoutError):
    """The time given to ``wait`` is over; the fit goes on."""

    def __init__(self, fit: str, seconds: float) -> None:
        super().__init__(f"fit {fit} is not finished after {seconds:g} s; it goes on")
        self.fit = fit
        self.hint = going_on(fit)


class MapDamaged(CalibrdError):
    """Bytes of a map that do not have the hash they should have."""


class InputMismatch(CalibrdError):
    """An alias has moved to a version that takes other input than the loaded one before."""

    hint = (
        "load it again where the program sends what that version takes, or roll the alias back: "
        "client.rollback(name)"
    )


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
        return self._with_hint(f"{self.detail} ({self.code}{asked})")


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
    """A part of the service is down, or it has too much to do; it can be tried again."""


class NoSpace(ServerTrouble):
    """There is no room to write; reading goes on."""

    hint = "the service's disk is full: delete_dataset makes room, or its owner can"


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
    429: Unavailable,
    431: TooLarge,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: NoSpace,
}


def kind_of(status: int) -> type[Refused]:
    """The class of problems that answer with this status."""
    return BY_STATUS.get(status, ServerTrouble if status >= 500 else Refused)
