"""Requests and answers about aliases and their moves."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from service.http.schemas import RequestBody, when
from service.registry.aliases.service import LONGEST_REASON
from service.storage import records

# PostgreSQL keeps no NUL in a text
Reason = Annotated[str, Field(max_length=LONGEST_REASON, pattern=r"^[^\x00]*$")]


class AliasOut(BaseModel):
    """Where an alias points; ``revision`` counts its moves and is its ETag."""

    name: str
    version: int
    revision: int
    moved_at: datetime | None
    warning: str | None = None

    @classmethod
    def of(cls, alias: records.Alias, warning: str | None = None) -> AliasOut:
        """The answer for an alias."""
        return cls(
            name=alias.name,
            version=alias.version,
            revision=alias.revision,
            moved_at=when(alias.moved_at),
            warning=warning,
        )


class MoveOut(BaseModel):
    """A move of an alias: who, when, from, to and why."""

    revision: int
    from_version: int | None
    to_version: int
    moved_by: str
    moved_at: datetime | None
    reason: str
    forced: bool
    rollback: bool

    @classmethod
    def of(cls, move: records.AliasMove) -> MoveOut:
        """The answer for a move."""
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
    """Where an alias shall point, and why."""

    version: Annotated[int, Field(ge=1)]
    reason: Reason = ""
    force: bool = False


class RollbackIn(RequestBody):
    """Why an alias goes back."""

    reason: Reason = ""
