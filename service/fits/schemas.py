"""Requests and answers about fits and methods."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from calibrators.registry import DEFAULT_METHOD
from service.http.openapi_bodies import ID_PATTERN
from service.http.schemas import LONGEST_LIST, RequestBody, TagMap, when
from service.storage import records

DatasetName = Annotated[str, Field(pattern=ID_PATTERN, description="its id, or sha256:{hash}")]


class MethodIn(RequestBody):
    """A method and its parameters."""

    method: Annotated[str, Field(max_length=40)]
    params: dict[str, Any] = Field(default={})


class FitIn(RequestBody):
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
    tags: TagMap = Field(default={})
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


class MethodOut(BaseModel):
    """A method, its parameters as a JSON schema, and whether it can change the class.

    One that `needs_segments` is fitted on rows that name their segments.
    """

    name: str
    summary: str
    reference: str
    cost: str
    keeps_class: bool | None
    needs_segments: bool
    parameters: dict[str, Any]
