"""What requests and answers look like."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from calibrators.registry import DEFAULT_METHOD
from service.http.openapi_bodies import ID_PATTERN
from service.registry.aliases.service import LONGEST_REASON
from service.storage import records

Seconds = float | None
MOST_UNKNOWN_FIELDS = 100
LONGEST_LIST = 100
KindName = Literal["logits", "probabilities"]
DatasetName = Annotated[str, Field(pattern=ID_PATTERN, description="its id, or sha256:{hash}")]
# PostgreSQL keeps no NUL in a text
Reason = Annotated[str, Field(max_length=LONGEST_REASON, pattern=r"^[^\x00]*$")]


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


class Asked(BaseModel):
    """A request's body: unknown fields are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _narrow = model_validator(mode="before")(_check_width)


def when(seconds: Seconds) -> datetime | None:
    """A time of the database for people."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


class MethodIn(Asked):
    """A method and its parameters."""

    method: Annotated[str, Field(max_length=40)]
    params: dict[str, Any] = {}


class FitIn(Asked):
    """What to fit; ``methods`` for several in one job, else ``method`` and ``params``."""

    dataset: DatasetName | None = None
    method: Annotated[
        str | None, Field(max_length=40, description=f"`{DEFAULT_METHOD}` if none is named")
    ] = None
    params: dict[str, Any] | None = None
    methods: Annotated[list[MethodIn], Field(max_length=LONGEST_LIST)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    model: str | None = None
    held_out: Annotated[float, Field(gt=0, le=0.9)] | None = None
    evaluation: DatasetName | None = None
    device: Literal["auto", "cpu", "gpu"] = "auto"
    tags: TagMap = {}
    description: str = ""


class FitError(BaseModel):
    """Why a fit failed: a stable code and a sentence."""

    code: str
    message: str


class RecommendationOut(BaseModel):
    """Which of the versions of a fit to use, and why; null if none of them."""

    version: int | None
    reason: str


class FitOut(BaseModel):
    """A fit job."""

    id: str
    calibrator: str
    status: records.FitStatus
    methods: list[dict[str, Any]]
    dataset: str
    evaluation: str | None
    seed: int
    held_out: float | None
    model: str | None
    progress: dict[str, Any] | None
    device: str | None
    attempt: int
    cancel_requested: bool
    versions: list[int]
    recommendation: RecommendationOut | None
    error: FitError | None
    created_by: str
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, fit: records.Fit) -> FitOut:
        """The answer for a fit."""
        return cls(
            id=fit.id,
            calibrator=fit.calibrator_name,
            status=fit.status,
            methods=fit.order["methods"],
            dataset=fit.dataset,
            evaluation=fit.evaluation,
            seed=fit.order["seed"],
            held_out=fit.order["held_out"],
            model=fit.order["model"],
            progress=fit.progress,
            device=fit.device,
            attempt=fit.attempt,
            cancel_requested=fit.cancel_requested,
            versions=fit.versions,
            recommendation=None
            if fit.recommendation is None
            else RecommendationOut(**fit.recommendation),
            error=None if fit.error is None else FitError(**fit.error),
            created_by=fit.created_by,
            created_at=when(fit.created_at),
            started_at=when(fit.started_at),
            finished_at=when(fit.finished_at),
        )


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


class MoveIn(Asked):
    """Where an alias shall point, and why."""

    version: Annotated[int, Field(ge=1)]
    reason: Reason = ""
    force: bool = False


class RollbackIn(Asked):
    """Why an alias goes back."""

    reason: Reason = ""


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


class NotesIn(Asked):
    """New tags or a new description; what is left out stays."""

    tags: TagMap | None = None
    description: str | None = None


class RegisterIn(Asked):
    """A map fitted elsewhere: its archive in base64, and the report made there."""

    map: Annotated[str, Field(max_length=1 << 24)]
    report: dict[str, Any] | None = None
    judged_rows: Annotated[
        str | None,
        Field(max_length=1 << 23, description="`JudgedRows.dump()` in base64, for comparisons"),
    ] = None
    model: str | None = None
    tags: TagMap = {}
    description: str = ""


class MethodOut(BaseModel):
    """A method, its parameters as a JSON schema, and whether it can change the class.

    One that `needs_groups` is fitted on rows that name their segments.
    """

    name: str
    summary: str
    reference: str
    cost: str
    keeps_class: bool | None
    needs_groups: bool
    parameters: dict[str, Any]
