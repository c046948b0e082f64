"""The route that compares two versions of a calibrator on the same rows."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from service.access.permissions import Principal, Scope
from service.comparisons import service as comparing
from service.comparisons.service import Comparison, Pair
from service.dependencies import Joined, Parts
from service.errors import Invalid, Unavailable
from service.http import openapi
from service.http.callers import Caller
from service.http.middleware.request_limits import waiting
from service.http.schemas import Body
from service.http.strict_route import StrictRoute
from service.registry import service as versions
from service.storage.records import Dataset
from service.storage.store import Store

router = APIRouter(
    prefix="/v1/calibrators/{name}/compare", tags=["calibrators"], route_class=StrictRoute
)

LONGEST_WAIT = 25.0

Number = Annotated[int, Query(ge=1, lt=2**31)]


class ComparisonOut(Body):
    """A comparison of two versions; in the report, `before` is the first and `after` the second."""

    calibrator: str = Field(examples=["fashion"])
    first: int = Field(examples=[2])
    second: int = Field(examples=[3])
    dataset: Annotated[
        str | None, Field(description="id of the dataset; null if judged rows were used")
    ]
    rows: int = Field(
        description="number of rows on which the versions were compared", examples=[2000]
    )
    verdict: str | None = Field(examples=["improved"])
    no_verdict: Annotated[str | None, Field(description="reason why there is no verdict")]
    report: dict[str, Any] = Field(examples=[{"verdict": "improved", "n": 2000}])

    @classmethod
    def of(cls, pair: Pair, found: Comparison) -> ComparisonOut:
        """Return the response body of a comparison."""
        return cls(
            calibrator=pair.calibrator,
            first=pair.first.number,
            second=pair.second.number,
            dataset=found.dataset,
            rows=found.report.n,
            verdict=found.report.verdict,
            no_verdict=found.no_verdict or None,
            report=found.report.to_dict(),
        )


@router.get(
    "",
    summary="Compare two versions on the same rows",
    response_model=ComparisonOut,
    responses=openapi.errors({409: "There are no rows for the comparison: no_common_rows"}),
)
async def compare_versions(
    request: Request,
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    first: Number,
    second: Number,
    dataset: Annotated[str | None, Query(pattern=openapi.ID_PATTERN)] = None,
) -> Response:
    """Compare two versions on the held-out rows that both were judged on, or on a `dataset`.

    Without a `dataset`, versions that have no judged rows in common are compared on the evaluation
    dataset of one of them, if that dataset still exists; otherwise the response is 409
    `no_common_rows`. There is no verdict if a version was fitted on the rows; `no_verdict` then
    gives the reason. Choosing a dataset requires the `fit` scope.
    """
    pair, data = await joined.executors.query.run(
        caller.workspace, _pair_and_dataset, joined, caller, name, (first, second), dataset
    )
    future = asyncio.wrap_future(joined.comparisons.start(caller, pair, data))
    future.add_done_callback(lambda one: one.cancelled() or one.exception())  # else asyncio logs it
    async with waiting(request.scope, joined.settings.max_waits_per_key):
        done, _ = await asyncio.wait([future], timeout=LONGEST_WAIT)
    joined.keys.check(caller)
    if not done:
        raise Unavailable("comparing", "the comparison is still running: repeat the request")
    content = await joined.executors.query.run(caller.workspace, _content, pair, future.result())
    return Response(content, media_type="application/json")


def _content(pair: Pair, found: Comparison) -> bytes:
    """Return the response body, encoded once for all requests for this comparison."""
    if not found.content:
        found.content.append(ComparisonOut.of(pair, found).model_dump_json(by_alias=True).encode())
    return found.content[0]


def pair_of(store: Store, caller: Principal, name: str, numbers: tuple[int, int]) -> Pair:
    """Return the two versions to compare."""
    if numbers[0] == numbers[1]:
        raise Invalid("same_version", f"choose two different versions: both are {numbers[0]}")
    calibrator = versions.calibrator_named(store, caller, name)
    return Pair(name, *(versions.version_of(store, calibrator, one) for one in numbers))


def _pair_and_dataset(
    joined: Parts, caller: Principal, name: str, numbers: tuple[int, int], dataset: str | None
) -> tuple[Pair, Dataset | None]:
    """Return the two versions and the dataset to use, or None for their common judged rows."""
    with joined.database.read() as store:
        pair = pair_of(store, caller, name, numbers)
        if dataset is not None:
            return pair, comparing.chosen_dataset(store, caller, pair, dataset)
        if pair.has_judged_rows:
            return pair, None
        data = comparing.default_dataset(store, caller, pair) if caller.may(Scope.FIT) else None
        if data is None:
            raise comparing.no_common_rows(pair)
        return pair, data
