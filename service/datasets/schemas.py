"""What requests and answers on datasets look like."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.datasets.part_uploads import MOST_PARTS, SignedPart
from service.http.schemas import KindName, RequestBody, when
from service.storage import records

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PartOut(BaseModel):
    """A part that has arrived."""

    number: int
    bytes: int
    sha256: str


class DatasetOut(BaseModel):
    """Logits or probabilities with labels."""

    id: str
    status: Literal["uploading", "ready"]
    kind: KindName | None
    sha256: str | None
    format: str | None
    bytes: int | None
    rows: int | None
    classes: int | None
    segments: Annotated[int | None, Field(description="how many segments its rows are of")]
    delete_after_fit: bool
    expires_at: datetime | None
    created_at: datetime | None
    parts: list[PartOut] | None = None

    @classmethod
    def of(cls, dataset: records.Dataset, parts: list[records.Part] | None = None) -> DatasetOut:
        """The answer for a dataset."""
        return cls(
            id=dataset.id,
            status="ready" if dataset.is_ready else "uploading",
            kind=dataset.kind,
            sha256=dataset.sha256,
            format=dataset.format,
            bytes=dataset.bytes,
            rows=dataset.rows,
            classes=dataset.classes,
            segments=dataset.segments,
            delete_after_fit=dataset.delete_after_fit,
            expires_at=when(dataset.expires_at),
            created_at=when(dataset.created_at),
            parts=None if parts is None else [part_out(part) for part in parts],
        )


def part_out(part: records.Part) -> PartOut:
    """The answer for a part."""
    return PartOut(number=part.number, bytes=part.bytes, sha256=part.sha256)


class PartIn(RequestBody):
    """What a part will be."""

    number: Annotated[int, Field(ge=1, le=MOST_PARTS)]
    bytes: Annotated[int, Field(ge=1, le=2**53)]
    sha256: Sha256


class PartsIn(RequestBody):
    """The parts to be sent straight to the store."""

    parts: Annotated[list[PartIn], Field(min_length=1, max_length=1000)]


class PartUrlOut(BaseModel):
    """Where a part can be sent, and until when."""

    number: int
    url: str
    method: Literal["PUT"] = "PUT"
    expires_at: datetime | None


class PartUrlsOut(BaseModel):
    """A URL for each part, in the order they were asked for."""

    parts: list[PartUrlOut]

    @classmethod
    def of(cls, signed: list[SignedPart]) -> PartUrlsOut:
        """The answer for signed parts."""
        return cls(
            parts=[
                PartUrlOut(number=part.number, url=part.url, expires_at=when(part.expires_at))
                for part in signed
            ]
        )


class CommitIn(RequestBody):
    """What the parts should make; all of it is optional."""

    parts: Annotated[int, Field(ge=1, le=MOST_PARTS)] | None = None
    sha256: Sha256 | None = None
    content_type: Annotated[str, Field(max_length=100)] | None = None
