"""Requests and answers about calibrators and their versions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from service.http.schemas import KindName, RequestBody, TagMap, when
from service.registry.aliases.schemas import AliasOut
from service.storage import records


class CalibratorOut(BaseModel):
    """A named line of versions."""

    name: str
    latest: int | None
    aliases: list[AliasOut]
    created_at: datetime | None

    @classmethod
    def of(cls, calibrator: records.CalibratorRow, aliases: list[records.Alias]) -> CalibratorOut:
        """The answer for a calibrator."""
        return cls(
            name=calibrator.name,
            latest=calibrator.last_version or None,
            aliases=[AliasOut.of(alias) for alias in aliases],
            created_at=when(calibrator.created_at),
        )


class VersionOut(BaseModel):
    """A fitted map, where it came from and how it was judged."""

    calibrator: str
    number: int
    method: str
    params: dict[str, Any]
    seed: int | None
    kind: KindName
    classes: int
    model: str | None
    dataset_sha256: str | None
    rows: int | None
    verdict: str | None
    verdict_sentence: str | None
    fit: str | None
    fit_info: dict[str, Any]
    libraries: dict[str, Any]
    map_sha256: str
    map_bytes: int
    has_onnx: bool
    has_judged_rows: bool
    tags: TagMap
    description: str
    created_by: str
    created_at: datetime | None

    @classmethod
    def of(cls, name: str, version: records.Version) -> VersionOut:
        """The answer for a version of the calibrator ``name``."""
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
    """New tags or a new description; what is left out stays."""

    tags: TagMap | None = None
    description: str | None = None


class RegisterIn(RequestBody):
    """A map fitted elsewhere: its archive in base64, and the report made there."""

    map: Annotated[str, Field(max_length=1 << 24)]
    report: dict[str, Any] | None = None
    judged_rows: Annotated[
        str | None,
        Field(max_length=1 << 23, description="`JudgedRows.dump()` in base64, for comparisons"),
    ] = None
    model: str | None = None
    tags: TagMap = Field(default={})
    description: str = ""
