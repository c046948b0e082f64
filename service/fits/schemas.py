"""Request and response bodies for fits and methods."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from calibrators.registry import DEFAULT_METHOD
from service.datasets.schemas import ARRAYS, ROWS, array_bodies
from service.http.openapi import DATASET_ID, FIT_ID, ID_PATTERN
from service.http.schemas import (
    AFTER,
    LONGEST_LIST,
    MODEL,
    Actor,
    Body,
    RequestBody,
    TagMap,
    When,
    when,
)
from service.storage import records

REASON = "smart has the lowest NLL (0.2441) of the 2 that preserve accuracy and ranking"

DatasetName = Annotated[
    str, Field(pattern=ID_PATTERN, description="id of the dataset, or sha256:{hash}")
]


# fields of a fit that are read from the query if the body is not JSON
TEXTS = ("model", "device", "description", "evaluation")
NUMBERS = {"seed": int, "held_out": float}
DOCUMENTS = ("params", "tags")
TYPES = {int: "integer", float: "number", str: "string"}


class MethodIn(RequestBody):
    """A method and its parameters."""

    method: Annotated[str, Field(max_length=40)]
    params: dict[str, Any] = Field(default={})


def _add_arrays(schema: dict[str, Any]) -> None:
    schema["properties"] |= ARRAYS


class FitIn(RequestBody):
    """A fit: one ``method`` with ``params``, or several ``methods``."""

    model_config = ConfigDict(json_schema_extra=_add_arrays)

    dataset: DatasetName | None = Field(default=None, examples=[DATASET_ID])
    method: Annotated[
        str | None, Field(max_length=40, description=f"`{DEFAULT_METHOD}` by default")
    ] = Field(default=None, examples=["smart"])
    params: dict[str, Any] | None = None
    methods: Annotated[list[MethodIn], Field(max_length=LONGEST_LIST)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    model: str | None = None
    held_out: Annotated[float, Field(gt=0, le=0.9)] | None = None
    evaluation: DatasetName | None = None
    device: Literal["auto", "cpu", "gpu"] = "auto"
    tags: TagMap = Field(default={})
    description: str = ""


FIT_BODY: dict[str, Any] = {
    "parameters": [
        {
            "name": name,
            "in": "query",
            "schema": {"type": TYPES[NUMBERS.get(name, str)]},
            "description": f"{FitIn.model_fields[name].description or 'same as in a JSON body'}"
            f"{', encoded as JSON' * (name in DOCUMENTS)}"
            f"{'; may be repeated' * (name == 'method')}; "
            "used only if the body is not JSON",
        }
        for name in ("method", *NUMBERS, *DOCUMENTS, *TEXTS)
    ],
    "requestBody": {
        "required": True,
        "content": array_bodies(
            {"$ref": "#/components/schemas/FitIn"},
            dataset=FitIn.example(),
            in_one_call={**ROWS, "method": "temperature"},
            several_methods={
                "dataset": DATASET_ID,
                "methods": [
                    {"method": "temperature"},
                    {"method": "smart", "params": {"steps": 500}},
                ],
                "model": MODEL,
            },
        ),
    },
}


class FitError(Body):
    """The reason a fit failed: a stable code and a message."""

    code: str
    message: str


class RecommendationOut(Body):
    """The recommended version of a fit and the reason; `version` is null if there is none."""

    version: int | None = Field(examples=[4])
    reason: str = Field(examples=[REASON])


def _progress(fit: records.Fit) -> dict[str, Any] | None:
    """Return the last progress of a fit; if the fit succeeded, mark all of its methods as done."""
    if fit.progress is None or fit.status is not records.FitStatus.SUCCEEDED:
        return fit.progress
    return {**fit.progress, "methods_done": fit.progress.get("methods", 1)}


class FitOut(Body):
    """A fit."""

    id: str = Field(examples=[FIT_ID])
    calibrator: str = Field(examples=["fashion"])
    status: records.FitStatus = Field(examples=["succeeded"])
    methods: list[dict[str, Any]] = Field(
        examples=[[{"method": name, "params": {}} for name in ("temperature", "smart")]]
    )
    dataset: str = Field(examples=[DATASET_ID])
    evaluation: str | None
    seed: int = Field(examples=[0])
    held_out: float | None
    model: str | None = Field(examples=[MODEL])
    progress: dict[str, Any] | None
    device: str | None = Field(examples=["cpu"])
    attempt: int = Field(examples=[1])
    cancel_requested: bool
    versions: list[int] = Field(examples=[[3, 4]])
    recommendation: RecommendationOut | None
    error: FitError | None = Field(examples=[None])
    created_by: Actor
    created_at: When
    started_at: When
    finished_at: datetime | None = Field(examples=[AFTER])

    @classmethod
    def of(cls, fit: records.Fit) -> FitOut:
        """Return the response body of a fit."""
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
            progress=_progress(fit),
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


class MethodOut(Body):
    """A method, the JSON schema of its parameters, and whether it keeps the predicted class.

    `needs_segments`, `needs_features` and `needs_head` are true if a dataset must contain segments,
    features or the classification head, respectively.
    """

    name: str = Field(examples=["temperature"])
    summary: str = Field(examples=["One number that divides all logits."])
    reference: str = Field(examples=["Guo et al. 2017"])
    cost: str = Field(examples=["milliseconds"])
    keeps_class: bool | None = Field(examples=[True])
    needs_segments: bool
    needs_features: bool
    needs_head: bool
    parameters: dict[str, Any] = Field(examples=[{"type": "object", "properties": {}}])
