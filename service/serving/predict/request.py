"""The request of a predict call: its query, its headers and the format of the response."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import numpy as np

from calibrators.data import Kind
from calibrators.metrics.estimates import MAX_LEVEL
from service.datasets.formats import Arrays, Format, media_types
from service.errors import Invalid, Malformed, NotAcceptable
from service.serving.apply_map import model_in_header

DTYPES: dict[str, type[np.floating[Any]]] = {"float32": np.float32, "float64": np.float64}
LONGEST_ACCEPT = 500

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class PredictRequest:
    """The query of a predict call; ``values`` is only set for a GET."""

    dtype: type[np.floating[Any]] | None = None
    top: int | None = None
    model: str | None = None
    only_warn: bool = False
    interval: float | None = None
    values: Arrays | None = None


@dataclass(slots=True)
class SentHeaders:
    """The headers of a predict call."""

    content_type: str | None = None
    accept: str = ""
    models: tuple[str, ...] = ()


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> SentHeaders:
    """Return the request headers that predict uses."""
    sent = SentHeaders()
    for name, value in headers:
        if name == b"content-type":
            sent.content_type = value.decode("latin-1")
        elif name == b"accept":
            sent.accept += ("," if sent.accept else "") + value.decode("latin-1")
        elif name == b"calibrd-model":
            sent.models += (model_in_header(value),)
    return sent


NOTHING = PredictRequest()


def read_query(query: bytes, *, with_values: bool) -> PredictRequest:
    """Parse a query string; unknown and repeated parameters raise Invalid."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise Malformed("bad_query", "the query string must be percent-encoded UTF-8") from error
    request, seen = NOTHING, set()
    for name, value in pairs:
        if name in seen:
            raise Invalid("bad_parameter", f"the parameter {name[:40]!r} occurs twice")
        seen.add(name)
        match name:
            case "dtype":
                request = replace(request, dtype=_choice(name, value, DTYPES))
            case "top":
                request = replace(request, top=_count(name, value))
            case "interval":
                request = replace(request, interval=_level(name, value))
            case "model":
                request = replace(request, model=value)
            case "fingerprint":
                choices = {"refuse": False, "warn": True}
                request = replace(request, only_warn=_choice(name, value, choices))
            case "logits" | "probabilities" if with_values:
                if request.values is not None:
                    raise Invalid(
                        "logits_or_probabilities", "send either logits or probabilities, not both"
                    )
                request = replace(request, values=_one_row(name, value))
            case _:
                raise _unknown(name, with_values=with_values)
    if with_values and request.values is None:
        raise Invalid(
            "missing_parameter",
            "the row is missing: send logits=2.1,0.3,-1.0 or probabilities=0.8,0.1,0.1",
        )
    return request


@lru_cache(maxsize=128)
def answer_format(accept: str, default: Format) -> Format:
    """Return the format that the Accept header prefers; ``default`` for wildcards.

    >>> answer_format("application/json;q=0.5, application/x-npy", Format.JSON).value
    'npy'
    """
    if not accept or accept == "*/*":
        return default
    best, chosen = 0.0, None
    for item in accept[:LONGEST_ACCEPT].split(","):
        media_type, *parameters = (part.strip().lower() for part in item.split(";"))
        any_format = media_type in ("*/*", "application/*")
        found = default if any_format else media_types().get(media_type)
        quality = _quality(parameters)
        if found is not None and found.codec.encode and quality > best:
            best, chosen = quality, found
    if chosen is None:
        known = ", ".join(one.media_type for one in Format if one.codec.encode)
        raise NotAcceptable(
            "not_acceptable",
            f"responses are available as {known}, but the Accept header allows none of these",
        )
    return chosen


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0


def _choice(name: str, value: str, choices: dict[str, Choice]) -> Choice:
    if value not in choices:
        raise Invalid("bad_parameter", f"{name} must be {' or '.join(choices)}, got {value[:40]!r}")
    return choices[value]


def _count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value)):
        raise Invalid("bad_parameter", f"{name} must be a positive integer, got {value[:40]!r}")
    return int(value)


def _level(name: str, value: str) -> float:
    try:
        level = float(value[:40])
    except ValueError:
        level = math.nan
    if not 0 < level <= MAX_LEVEL:
        raise Invalid(
            "bad_parameter",
            f"{name} must be greater than 0 and at most 1 - 1e-9, got {value[:40]!r}",
        )
    return level


def _one_row(kind: Kind, value: str) -> Arrays:
    numbers = []
    for place, text in enumerate(value.split(",")):
        try:
            numbers.append(float(text.replace("_", "?")))
        except ValueError as error:
            raise Invalid(
                "not_a_number",
                f"{kind} must contain only numbers: element {place} is {text[:40]!r}",
            ) from error
    return Arrays(np.array([numbers]), declared=kind)


def _unknown(name: str, *, with_values: bool) -> Invalid:
    known = ["dtype", "fingerprint", "interval", "model", "top"]
    known += ["logits", "probabilities"] if with_values else []
    return Invalid(
        "unknown_parameter",
        f"unknown parameter {name[:40]!r}: use one of {', '.join(sorted(known))}",
        known=sorted(known),
    )
