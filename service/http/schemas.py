"""What the requests and answers of all features share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

Seconds = float | None
MOST_UNKNOWN_FIELDS = 100
LONGEST_LIST = 100
KindName = Literal["logits", "probabilities"]


def _check_width(value: Any) -> Any:
    """Refuse an object of very many fields at once: each would be an error of its own."""
    if isinstance(value, dict) and len(value) > MOST_UNKNOWN_FIELDS:
        # a ValueError would be kept with its frame, and so with the whole body
        raise PydanticCustomError(
            "too_many_fields",
            "must have at most {most} fields, got {count}",
            {"most": MOST_UNKNOWN_FIELDS, "count": len(value)},
        )
    return value


TagMap = Annotated[dict[str, str], BeforeValidator(_check_width)]


class RequestBody(BaseModel):
    """A request's body: unknown fields are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _narrow = model_validator(mode="before")(_check_width)


def when(seconds: Seconds) -> datetime | None:
    """A time of the database for people."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
