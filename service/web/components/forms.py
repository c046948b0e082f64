"""Parsing of submitted forms."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request

from service.errors import Invalid, Malformed, Unsupported
from service.http.body_kinds import media_type
from service.http.callers import parse
from service.http.middleware.fair_turns import take_turn

FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 100
INLINE_BYTES = 1 << 13
TOKEN = "csrf"  # noqa: S105 - the name of a field


class Form:
    """The fields of a form, each with all its values."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """Return the text of a field without surrounding whitespace; empty if there is none.

        Line breaks become single characters: browsers send two, but count one towards maxlength.
        """
        return self._fields.get(name, [""])[0].replace("\r\n", "\n").strip()

    def chosen(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self._fields.get(name, [])

    def number(self, name: str, what: str) -> float | None:
        """Return the number in a field, or None if it is empty."""
        text = self.text(name)
        try:
            return float(text) if text else None
        except ValueError as error:
            raise Invalid("invalid_request", f"{what} must be a number") from error


async def read_form(request: Request) -> Form:
    """Return the form in the body of a request, which is empty if there is no body."""
    body = await request.body()
    if not body:
        return Form({})
    await take_turn(request.scope)
    if media_type(request.scope) != FORM:
        raise Unsupported("unsupported_media_type", f"forms must be sent as {FORM}")
    is_small = len(body) <= INLINE_BYTES
    return Form(_fields(body) if is_small else await parse(request, _fields, body))


def _fields(body: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(
            body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError as error:
        raise Malformed("malformed_form", "the form cannot be parsed") from error


def _sent(request: Request) -> Form:
    form: Form = request.state.form
    return form


Sent = Annotated[Form, Depends(_sent)]
"""Route parameter: the form, parsed and checked by the PageRoute."""
