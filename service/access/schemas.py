"""Request and response schemas for keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from service.access.keys import LONGEST_NAME, MAX_DAYS, MAX_GRACE_HOURS, NewKey
from service.http.schemas import KEY_ID, Body, RequestBody, When, when
from service.storage import records

ScopeName = Literal["predict", "fit", "promote", "admin"]


class KeyIn(RequestBody):
    """A key to create."""

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, examples=["ci"])]
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=4, examples=[["predict"]])]
    days: Annotated[float, Field(ge=1e-9, le=MAX_DAYS)] | None = Field(default=None, examples=[90])


class RotateIn(RequestBody):
    """The time for which the old key stays valid."""

    grace_hours: Annotated[float, Field(ge=0, le=MAX_GRACE_HOURS, examples=[24])] = 24.0


class KeyOut(Body):
    """A key, without its secret."""

    id: str = Field(examples=[KEY_ID])
    name: str = Field(examples=["ci"])
    scopes: list[str] = Field(examples=[["predict"]])
    created_at: When
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    @classmethod
    def of(cls, key: records.Key) -> KeyOut:
        """Return the response body for a key."""
        return cls(
            id=key.id,
            name=key.name,
            scopes=key.scopes,
            created_at=when(key.created_at),
            expires_at=when(key.expires_at),
            revoked_at=when(key.revoked_at),
            last_used_at=when(key.last_used_at),
        )


class NewKeyOut(Body):
    """A new key; ``token`` is shown only once."""

    key: KeyOut
    token: str = Field(examples=["cal_<id>_<secret>"])

    @classmethod
    def of(cls, new: NewKey) -> NewKeyOut:
        """Return the response body for a new key."""
        return cls(key=KeyOut.of(new.key), token=new.token)
