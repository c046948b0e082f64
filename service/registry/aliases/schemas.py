"""Request and response bodies for aliases and their moves."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from service.http.schemas import AFTER, Actor, Body, RequestBody, when
from service.registry.aliases.service import LONGEST_REASON
from service.storage import records

REASON = "lower ECE on last week's traffic"
# PostgreSQL cannot store NUL in text
Reason = Annotated[str, Field(max_length=LONGEST_REASON, pattern=r"^[^\x00]*$")]


class AliasOut(Body):
    """An alias and its version; ``revision`` counts its moves and is its ETag."""

    name: str = Field(examples=["production"])
    version: int = Field(examples=[3])
    revision: int = Field(examples=[2])
    moved_at: datetime | None = Field(examples=[AFTER])
    warning: str | None = Field(default=None, examples=[None])

    @classmethod
    def of(cls, alias: records.Alias, warning: str | None = None) -> AliasOut:
        """Return the response body of an alias."""
        return cls(
            name=alias.name,
            version=alias.version,
            revision=alias.revision,
            moved_at=when(alias.moved_at),
            warning=warning,
        )


class MoveOut(Body):
    """A move of an alias: who made it, when, from and to which version, and why."""

    revision: int = Field(examples=[2])
    from_version: int | None = Field(examples=[2])
    to_version: int = Field(examples=[3])
    moved_by: Actor
    moved_at: datetime | None = Field(examples=[AFTER])
    reason: str = Field(examples=[REASON])
    forced: bool
    rollback: bool

    @classmethod
    def of(cls, move: records.AliasMove) -> MoveOut:
        """Return the response body of a move."""
        return cls(
            revision=move.revision,
            from_version=move.from_version,
            to_version=move.to_version,
            moved_by=move.moved_by,
            moved_at=when(move.moved_at),
            reason=move.reason,
            forced=move.forced,
            rollback=move.rollback,
        )


class MoveIn(RequestBody):
    """The version to point an alias at, and the reason."""

    version: Annotated[int, Field(ge=1, examples=[3])]
    reason: Reason = Field(default="", examples=[REASON])
    force: bool = False


class RollbackIn(RequestBody):
    """The reason for a rollback."""

    reason: Reason = Field(default="", examples=["more complaints since noon"])
