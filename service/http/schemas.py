"""Base schemas shared by the requests and responses of all features."""

from __future__ import annotations

from datetime import UTC, datetime
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

Seconds = float | None
MAX_UNKNOWN_FIELDS = 100
LONGEST_LIST = 100
KindName = Literal["logits", "probabilities"]

# examples that several bodies share
SHA256 = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
MODEL = "sha256:0f1e"
TAGS = {"team": "vision"}
BEFORE, AFTER = "2026-01-05T10:00:00Z", "2026-01-05T10:00:03Z"
KEY_ID = "1f0c22ab94de"

When = Annotated[datetime | None, Field(examples=[BEFORE])]
Actor = Annotated[str, Field(examples=[f"ci (key {KEY_ID})"])]


def _check_width(value: Any) -> Any:
    """Reject an object that has too many fields with a single error, not one per field."""
    if isinstance(value, dict) and len(value) > MAX_UNKNOWN_FIELDS:
        # a ValueError would keep its frame alive, and thereby the whole body
        raise PydanticCustomError(
            "too_many_fields",
            "must have at most {most} fields, got {count}",
            {"most": MAX_UNKNOWN_FIELDS, "count": len(value)},
        )
    return value


TagMap = Annotated[dict[str, str], BeforeValidator(_check_width)]


class Body(BaseModel):
    """A request or response body, whose example is composed of its fields' examples."""

    @classmethod
    def example(cls) -> dict[str, Any]:
        """Return the fields' examples, omitting optional fields without one.

        >>> class Pair(Body):
        ...     name: str = Field(examples=["web"])
        ...     size: int | None
        ...     note: str = ""
        >>> Pair.example()
        {'name': 'web', 'size': None}
        """
        shown = {
            name: field
            for name, field in cls.model_fields.items()
            if field.examples or field.is_required()
        }
        return {
            name: field.examples[0] if field.examples else _example(field.annotation)
            for name, field in shown.items()
        }


def _example(kind: Any) -> Any:
    """Return an example of a type: the example of a body, or an empty value."""
    if _is_body(kind):
        return kind.example()
    inner = get_args(kind)
    if get_origin(kind) is list:
        return [_example(inner[0])]
    if NoneType in inner:
        return _example(inner[0]) if _is_body(inner[0]) else None
    if kind is bool:
        return False
    if get_origin(kind) is dict:
        return {}
    raise LookupError(kind)


def _is_body(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Body)


class RequestBody(Body):
    """A request body: unknown fields are rejected, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _narrow = model_validator(mode="before")(_check_width)


def when(seconds: Seconds) -> datetime | None:
    """Return a database time as a datetime in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


class ProblemOut(Body):
    """An error (RFC 9457); `code` is stable, `detail` is a message for people."""

    type: str = Field(examples=["urn:calibrd:problem:no_such_calibrator"])
    title: str = Field(examples=["No such calibrator"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no calibrator 'fashon'"])
    code: str = Field(examples=["no_such_calibrator"])
    request_id: str | None = Field(default=None, examples=["8c1f0a2b6d3e-1f"])
