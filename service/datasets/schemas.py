"""Request and response schemas for datasets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from service.datasets.formats import Format, all_codecs
from service.datasets.part_uploads import MAX_PARTS, SignedPart
from service.http.openapi import BINARY, DATASET_ID
from service.http.schemas import AFTER, SHA256, Body, KindName, RequestBody, When, when
from service.storage import records

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=[SHA256])]


class PartOut(Body):
    """An uploaded part."""

    number: int = Field(examples=[1])
    bytes: int = Field(examples=[8_388_608])
    sha256: str = Field(examples=[SHA256])


class DatasetOut(Body):
    """A dataset: logits or probabilities, with labels."""

    id: str = Field(examples=[DATASET_ID])
    status: Literal["uploading", "ready"] = Field(examples=["ready"])
    kind: KindName | None = Field(examples=["logits"])
    sha256: str | None = Field(examples=[SHA256])
    format: str | None = Field(examples=["npz"])
    bytes: int | None = Field(examples=[412_310])
    rows: int | None = Field(examples=[10_000])
    classes: int | None = Field(examples=[10])
    segments: Annotated[int | None, Field(description="number of distinct segments")]
    features: Annotated[int | None, Field(description="number of features per row")]
    has_head: Annotated[bool, Field(description="true if it contains the classification head")]
    delete_after_fit: bool
    expires_at: datetime | None
    created_at: When
    parts: list[PartOut] | None = None

    @classmethod
    def of(cls, dataset: records.Dataset, parts: list[records.Part] | None = None) -> DatasetOut:
        """Return the response body for a dataset."""
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
            features=dataset.features,
            has_head=bool(dataset.has_head),
            delete_after_fit=dataset.delete_after_fit,
            expires_at=when(dataset.expires_at),
            created_at=when(dataset.created_at),
            parts=None if parts is None else [part_out(part) for part in parts],
        )


def part_out(part: records.Part) -> PartOut:
    """Return the response body for a part."""
    return PartOut(number=part.number, bytes=part.bytes, sha256=part.sha256)


class PartIn(RequestBody):
    """A part to be uploaded."""

    number: Annotated[int, Field(ge=1, le=MAX_PARTS, examples=[1])]
    bytes: Annotated[int, Field(ge=1, le=2**53, examples=[8_388_608])]
    sha256: Sha256


class PartsIn(RequestBody):
    """Parts to be uploaded directly to the store."""

    parts: Annotated[list[PartIn], Field(min_length=1, max_length=1000)]


class PartUrlOut(Body):
    """Upload URL of a part, and when it expires."""

    number: int = Field(examples=[1])
    url: str = Field(
        examples=[f"https://store.example/calibrd/{DATASET_ID}/1?X-Amz-Signature=0f1e"]
    )
    method: Literal["PUT"] = Field(default="PUT", examples=["PUT"])
    expires_at: datetime | None = Field(examples=[AFTER])


class PartUrlsOut(Body):
    """Upload URLs, one for each part, in the order of the request."""

    parts: list[PartUrlOut]

    @classmethod
    def of(cls, signed: list[SignedPart]) -> PartUrlsOut:
        """Return the response body for signed parts."""
        return cls(
            parts=[
                PartUrlOut(number=part.number, url=part.url, expires_at=when(part.expires_at))
                for part in signed
            ]
        )


class CommitIn(RequestBody):
    """Expected properties of the joined parts; all fields are optional."""

    parts: Annotated[int, Field(ge=1, le=MAX_PARTS)] | None = Field(default=None, examples=[3])
    sha256: Sha256 | None = Field(default=None, examples=[SHA256])
    content_type: Annotated[str, Field(max_length=100)] | None = None


# bodies with arrays are streamed, so no pydantic model ever contains them
NUMBERS = {"type": "array", "items": {"type": ["number", "array"], "items": {"type": "number"}}}
ARRAYS: dict[str, Any] = {
    "logits": {**NUMBERS, "description": "(n, k), or (n,) for two classes"},
    "probabilities": {**NUMBERS, "description": "alternative to `logits`, in the same shape"},
    "values": {
        **NUMBERS,
        "description": "alternative to `logits` and `probabilities`; requires `kind`",
    },
    "labels": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "segments": {
        "type": "array",
        "items": {"type": ["string", "integer"]},
        "description": "(n,), the segment of each row, for methods that calibrate by segment",
    },
    "features": {
        **NUMBERS,
        "description": "(n, d), the input to the model's last layer, for methods that need it",
    },
    "head_weight": {**NUMBERS, "description": "(k, d), the weight of the last layer"},
    "head_bias": {**NUMBERS, "description": "(k,), the bias of that layer"},
}
ROWS = {"logits": [[2.1, 0.3, -1.0], [0.2, 1.7, 0.4]], "labels": [0, 1]}
# JSON has its own schema
ARRAY_BODIES = {
    one.media_types[0]: BINARY
    if one.example is None
    else {"schema": {"type": "string"}, "example": one.example}
    for one in all_codecs().values()
    if one.is_named and one.format is not Format.JSON
}


def array_bodies(schema: dict[str, Any], **examples: Any) -> dict[str, Any]:
    """Return the OpenAPI content of a body with arrays; ``schema`` describes the JSON."""
    shown = {name.replace("_", " "): {"value": one} for name, one in examples.items()}
    return {Format.JSON.media_type: {"schema": schema, "examples": shown}, **ARRAY_BODIES}


DATASET_BODY = {
    "requestBody": {
        "content": array_bodies(
            {
                "type": "object",
                "properties": ARRAYS,
                "required": ["labels"],
                "additionalProperties": False,
            },
            logits=ROWS,
            with_segments={**ROWS, "segments": ["web", "app"]},
        ),
        "description": "arrays `logits` or `probabilities`, `labels`, and optionally `segments`, "
        "`features`, `head_weight` and `head_bias`",
    }
}
