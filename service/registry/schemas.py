"""Request and response bodies for calibrators and their versions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from service.http.openapi import FIT_ID
from service.http.schemas import (
    MODEL,
    SHA256,
    TAGS,
    Actor,
    Body,
    KindName,
    RequestBody,
    TagMap,
    When,
    when,
)
from service.registry.aliases.schemas import AliasOut
from service.storage import records

SENTENCE = "calibration is better, and NLL, Brier score, accuracy and ranking are not worse"


class CalibratorOut(Body):
    """A named series of versions."""

    name: str = Field(examples=["fashion"])
    latest: int | None = Field(examples=[3])
    aliases: list[AliasOut]
    created_at: When

    @classmethod
    def of(cls, calibrator: records.CalibratorRow, aliases: list[records.Alias]) -> CalibratorOut:
        """Return the response body of a calibrator."""
        return cls(
            name=calibrator.name,
            latest=calibrator.last_version or None,
            aliases=[AliasOut.of(alias) for alias in aliases],
            created_at=when(calibrator.created_at),
        )


class VersionOut(Body):
    """A fitted map, its origin and its verdict."""

    calibrator: str = Field(examples=["fashion"])
    number: int = Field(examples=[3])
    method: str = Field(examples=["temperature"])
    params: dict[str, Any]
    seed: int | None = Field(examples=[0])
    kind: KindName = Field(examples=["logits"])
    classes: int = Field(examples=[10])
    model: str | None = Field(examples=[MODEL])
    dataset_sha256: str | None = Field(examples=[SHA256])
    rows: int | None = Field(examples=[10_000])
    verdict: str | None = Field(examples=["improved"])
    verdict_sentence: str | None = Field(examples=[SENTENCE])
    fit: str | None = Field(examples=[FIT_ID])
    fit_info: dict[str, Any] = Field(examples=[{"rows": 10_000}])
    libraries: dict[str, Any] = Field(examples=[{"numpy": "2.2.0"}])
    map_sha256: str = Field(examples=[SHA256])
    map_bytes: int = Field(examples=[612])
    has_onnx: bool = Field(examples=[True])
    has_judged_rows: bool = Field(examples=[True])
    tags: TagMap = Field(examples=[TAGS])
    description: str = Field(examples=["on the January test set"])
    created_by: Actor
    created_at: When

    @classmethod
    def of(cls, name: str, version: records.Version) -> VersionOut:
        """Return the response body of a version of the calibrator ``name``."""
        facts = vars(version) | {
            "calibrator": name,
            "has_onnx": version.onnx_sha256 is not None,
            "has_judged_rows": version.judged_sha256 is not None,
            "created_at": when(version.created_at),
        }
        for name in ("onnx_sha256", "judged_sha256", "judged_data"):
            del facts[name]
        return cls(**facts)


class NotesIn(RequestBody):
    """New tags or a new description; omitted fields stay unchanged."""

    tags: TagMap | None = Field(default=None, examples=[TAGS])
    description: str | None = None


class RegisterIn(RequestBody):
    """A map fitted elsewhere: its archive in base64, and its report."""

    map: Annotated[str, Field(max_length=1 << 24, examples=["Y2FsaWJyZAE="])]
    report: dict[str, Any] | None = None
    judged_rows: Annotated[
        str | None,
        Field(max_length=1 << 23, description="`JudgedRows.dump()` in base64, for comparisons"),
    ] = None
    model: str | None = Field(default=None, examples=[MODEL])
    tags: TagMap = Field(default={})
    description: str = ""
