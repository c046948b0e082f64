"""Codes about keys, requests as such, and troubles of the service itself."""

from __future__ import annotations

from calibrd.errors.kinds import (
    Conflict,
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    Refused,
    ServerTrouble,
    TooLarge,
    TooSlow,
    Unauthenticated,
    Unavailable,
)


class KeyRequired(Unauthenticated, Forbidden):
    """The service is asked without a key, and needs one."""


class InvalidKey(Unauthenticated):
    """The key is not known there."""

    hint = (
        "is it the key of this service? client.create_key or python -m service keys create "
        "make new ones"
    )


class KeyHasEnded(Unauthenticated, Invalid):
    """The key was revoked or has expired."""

    hint = "client.create_key, with a key of the scope admin, makes a new one"


class MissingScope(Forbidden):
    """The key may not do this; ``details['scope']`` is what it lacks."""

    hint = "use a key with that scope: create_key(name, scopes) makes one"


class ForeignHost(Forbidden):
    """Without keys, only this machine's own names are answered."""

    hint = "make a key on the service, or use http://127.0.0.1"


class ForeignOrigin(Forbidden):
    """Pages of other sites may use neither a session nor a service without keys."""


class FirstKeyNeedsAdmin(Conflict):
    """The first key ends access without keys, so it must be able to make others."""

    hint = "create_key(name, ['admin']) first"


class LastAdminKey(Conflict):
    """Without this key nobody could manage the keys of the workspace over HTTP."""

    hint = "make another key with the scope admin first"


class NoSuchKey(NotFound):
    """There is no key with this id."""

    hint = "client.keys() lists them"


class NoScopes(Invalid):
    """A key needs at least one scope."""

    hint = "scopes are predict, fit, promote and admin"


class BadDays(Invalid):
    """A key is valid for more than 0 days."""


class BadGrace(Invalid):
    """The time that a rotated key works on is out of range."""


class NoSuchRoute(NotFound):
    """The service has no such path."""

    hint = "is the url without /v1, and is the service as new as this SDK?"


class MethodNotAllowed(Refused):
    """The path takes other methods."""

    hint = "is the service as new as this SDK?"


class MalformedRequest(Malformed):
    """What arrived is no HTTP request."""


class RequestHeaderFieldsTooLarge(TooLarge):
    """The headers are too large."""


class HeadersTimeout(TooSlow):
    """The headers did not end in time."""


class InvalidRequest(Invalid):
    """A field breaks a rule; ``details['errors']`` says which."""


class UnknownParameter(Invalid):
    """There is no such parameter: of the request, or of the method."""

    hint = "client.methods() tells the parameters of each method"


class BadParameter(Invalid):
    """A parameter breaks its rule."""

    hint = "client.methods() tells the parameters of each method and their limits"


class MissingParameter(Invalid):
    """A parameter is missing."""


class BadQuery(Malformed):
    """The query of the URL cannot be read."""


class BadCursor(Invalid):
    """This is no cursor of a list."""


class BadCondition(Invalid):
    """If-Match must be a revision."""

    hint = "promote(..., expected=) takes the revision of client.get_alias, or 0"


class BadIdempotencyKey(Invalid):
    """An Idempotency-Key is one short line."""


class IdempotencyKeyInUse(Conflict):
    """An equal request was answered meanwhile."""


class IdempotencyKeyReused(Invalid):
    """The Idempotency-Key came with another request before."""


class InternalError(ServerTrouble):
    """Something nobody expected: it is in the service's log."""

    hint = "its owner finds it in the service's log under the id of the request"


class BlobMissing(ServerTrouble):
    """The service has lost bytes that it should have."""

    hint = "its owner can ask python -m service doctor; upload sends a lost dataset again"


class BlobCorrupt(ServerTrouble):
    """Bytes of the service are damaged."""

    hint = "its owner can ask python -m service doctor; upload sends a damaged dataset again"


class MapNotFinite(ServerTrouble):
    """The version's map gives probabilities that are not finite: it cannot be used."""

    hint = "client.promote(name, version) points the alias at another version; or fit it again"


class BlobsUnavailable(Unavailable):
    """The service does not reach its store."""


class TooManyRequests(Unavailable):
    """The key has too many requests under way."""

    hint = "send fewer at the same time, or use several keys"


class TooManyUnfinishedRequests(Unavailable):
    """Too many requests of an address have not sent their headers yet."""

    hint = "open fewer connections at the same time"


class TooManyWaits(Unavailable):
    """The key has too many event streams and waiting requests open."""


class TooManyKeys(Conflict):
    """The workspace has as many valid keys as it may have."""

    hint = "client.keys() lists them; client.revoke_key ends one"


class TooManyFits(Unavailable):
    """The workspace has too many fits that wait or run."""

    hint = "client.fits() lists them; wait for some to finish, or cancel some"


class TooMuchInFlight(Unavailable):
    """Large calls hold all memory that the service sets aside for them."""

    hint = "send fewer large calls at once, or smaller ones"


class ReportNotDrawn(Unavailable):
    """A report could not be drawn in the time allowed."""

    hint = "ask for report.json, and draw it with Report.from_dict(...).save(...)"


class DatabaseBusy(Unavailable):
    """The service's database has too much to do."""


class DatabaseUnavailable(Unavailable):
    """The service does not reach its database."""


class NotReady(Unavailable):
    """The service is starting."""

    hint = "client.ready() says which part it waits for"


class PausedTooLong(Unavailable):
    """The service was stopped while it worked on this."""


class ShuttingDown(Unavailable):
    """The service is shutting down."""
