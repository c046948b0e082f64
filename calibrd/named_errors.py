"""A class for each code that the service answers with, with what can be done about it."""

from __future__ import annotations

from calibrd.errors import (
    Conflict,
    NotFound,
    Refused,
)

NAMED: dict[str, type[Refused]] = {}


def _named(code: str, kind: type[Refused], hint: str = "") -> type[Refused]:
    """The class of a code: ``no_such_alias`` becomes NoSuchAlias."""
    name = "".join(word.capitalize() for word in code.split("_"))
    members = {"__doc__": f"The service's code ``{code}``.", "__module__": __name__}
    NAMED[code] = type(name, (kind,), members | ({"hint": hint} if hint else {}))
    return NAMED[code]


ModelMismatch = _named(
    "model_mismatch",
    Conflict,
    "apply the map of the model that runs here, or promote a version fitted for it",
)
NoSuchAlias = _named("no_such_alias", NotFound, "client.promote(name, version) makes an alias")
NoPresignedUploads = _named("no_presigned_uploads", Conflict)
