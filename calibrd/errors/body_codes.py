"""Codes about the form of what was sent; the SDK sends what can be read, so they are rare."""

from __future__ import annotations

from calibrd.errors.kinds import Invalid, Malformed, NotAcceptable, TooLarge, TooSlow, Unsupported


class EmptyBody(Malformed):
    """Nothing was sent."""


class TruncatedBody(Malformed):
    """It ends too early."""


class TrailingBytes(Malformed, Invalid):
    """Something follows after its end."""


class MalformedJson(Malformed):
    """It is not JSON."""


class MalformedCsv(Malformed):
    """It is not CSV."""


class BadColumns(Invalid):
    """The columns of a CSV file are not those of classes and labels."""

    hint = "name them logit_0, logit_1, ... (or p_0, ...) and label"


class InvalidContentLength(Malformed):
    """Content-Length is no length."""


class BodyTimeout(TooSlow):
    """The body did not arrive in time."""

    hint = "is the line slow? Client(..., part_bytes=1 << 20) uploads in smaller parts"


class BodyTooSlow(TooSlow):
    """The body arrives too slowly."""

    hint = "is the line slow? Client(..., part_bytes=1 << 20) uploads in smaller parts"


class BodyTooLong(TooSlow):
    """The body took longer than the service waits for one."""

    hint = "Client(..., part_bytes=1 << 24) uploads in parts"


class TooManyValues(TooLarge):
    """JSON of more values than are read at once."""

    hint = "send arrays as npy, npz or safetensors, as the SDK does"


class OrderTooLarge(TooLarge):
    """The methods of a fit and their parameters are too long."""

    hint = "name each candidate once, and order further methods with another fit"


class TooManyColumns(TooLarge):
    """A CSV row of too many cells."""


class TooDeep(Invalid):
    """JSON whose lists and objects lie too deep inside each other."""


class NoWebsockets(Malformed):
    """A WebSocket was asked for; there are none."""


class BodyTooLarge(TooLarge):
    """More bytes than the service takes."""

    hint = "its owner sets the limit; fewer rows may do for a fit"


class UnsupportedEncoding(Unsupported):
    """A compression that is not read there."""


class UnsupportedMediaType(Unsupported):
    """A format that is not read there."""


class JsonOnly(NotAcceptable):
    """This answer is given as JSON only."""


class OneArrayOnly(NotAcceptable):
    """npy holds one array, and this has more."""


class BadHeader(Malformed):
    """The header of the array format is broken."""


class BadOffsets(Malformed):
    """The header does not describe the bytes that follow."""


class BadType(Invalid):
    """The numbers have a type that is not taken."""

    hint = "float16, float32 and float64 are taken for values, integers for labels"


class NotNpy(Malformed):
    """It is not npy."""


class UnknownVersion(Malformed):
    """A version of npy that is not read there."""


class BadZip(Malformed):
    """The npz cannot be read."""


class BadCompression(Malformed):
    """A member of the npz cannot be unpacked."""


class Encrypted(Malformed):
    """The npz is encrypted."""


class DuplicateNames(Malformed):
    """The npz has two members of one name."""


class TooManyMembers(Malformed):
    """The npz has too many members."""


class BadBase64(Invalid):
    """The map is not base64."""


class NotANumber(Invalid):
    """Something among the values is no number."""


class NotAnArray(Invalid):
    """What should be an array is none."""


class Ragged(Invalid):
    """Rows have different lengths."""


class UnknownArray(Invalid):
    """There is an array of a name that is not known."""


class NotAnArchive(Invalid):
    """The bytes are no map."""

    hint = "register takes what a fit has given, or calibrators.archive.load"


class UnknownFormat(Invalid):
    """The map has another format than the service reads."""

    hint = "the service is older than the calibrd that wrote the map, or newer"


class WrongFields(Invalid):
    """Fields of the map are missing, unknown or break a rule."""


class WrongHash(Invalid):
    """The map's bytes do not match its hash."""

    hint = "it was damaged on its way: make it again"


class WrongLength(Invalid):
    """The map's header does not describe its bytes."""
