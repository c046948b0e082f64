"""Routes with large bodies. The bodies of all other routes are small JSON documents or forms.

Limits are chosen by the whole path: callers choose the names in it, so a run may be called "fits".
"""

from __future__ import annotations

import re
from enum import StrEnum

from starlette.types import Scope


class BodyKind(StrEnum):
    """The content of a request's body."""

    VALUES = "values"  # for a map
    DATASET = "dataset"
    PART = "part"  # of a dataset
    FIT = "fit"  # with or without a dataset
    VERSION = "version"  # with its map
    STATISTICS = "statistics"  # of a training run


_ROUTES = re.compile(
    r"(?P<values>(?:GET|HEAD|POST) /v1/calibrators/[^/@]+@[^/@]+/predict"
    r"|POST /v2/models/[^/]+(?:/versions/[^/]+)?/infer)"
    r"|(?P<dataset>POST /v1/datasets)"
    r"|(?P<part>PUT /v1/datasets/[^/]+/parts/\d+)"
    r"|(?P<fit>POST /v1/calibrators/[^/]+/fits)"
    r"|(?P<version>POST /v1/calibrators/[^/]+/versions)"
    r"|(?P<statistics>POST /v1/runs/[^/]+/steps/[^/]+/stats)"
)


def body_kind(scope: Scope) -> BodyKind | None:
    """Return the kind of a request's body; None for all other bodies.

    >>> body_kind({"method": "POST", "path": "/v1/calibrators/digits/fits"})
    <BodyKind.FIT: 'fit'>
    >>> body_kind({"method": "PATCH", "path": "/v1/runs/fits"}) is None
    True
    """
    found = _ROUTES.fullmatch(f"{scope['method']} {scope['path']}")
    return None if found is None else BodyKind(str(found.lastgroup))


def media_type(scope: Scope) -> str:
    """Return the media type of a request's body, see ``media_type_in``."""
    found = (value for name, value in scope["headers"] if name == b"content-type")
    return media_type_in(str(next(found, b""), "latin-1"))


def media_type_in(header: str | None) -> str:
    r"""Return the media type in a Content-Type header, in lower case and without parameters.

    Every decision about a body uses this function: limits that were chosen for another type than
    the one that the body is read as would be no limits. Only blanks and tabs are removed.

    >>> media_type_in(" Text/CSV ; charset=utf-8"), media_type_in("\xa0text/csv")
    ('text/csv', '\xa0text/csv')
    """
    return (header or "").partition(";")[0].strip(" \t").lower()
