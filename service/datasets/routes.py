"""Dataset routes: uploads in one body and in parts."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from service.access.permissions import Scope
from service.datasets import service as datasets
from service.datasets.part_uploads import MAX_PARTS
from service.datasets.schemas import (
    DATASET_BODY,
    CommitIn,
    DatasetOut,
    PartOut,
    PartsIn,
    PartUrlsOut,
    part_out,
)
from service.datasets.service import Retention
from service.datasets.spool import spool
from service.dependencies import Joined
from service.errors import Invalid
from service.http import openapi
from service.http.callers import Caller, needs
from service.http.paging import Cursor, Limit, Page, json_response, paged, time_place
from service.http.schemas import KindName
from service.http.strict_route import StrictRoute
from service.storage.records import Dataset

router = APIRouter(
    prefix="/v1/datasets",
    tags=["datasets"],
    dependencies=needs(Scope.FIT),
    route_class=StrictRoute,
)

Kind = Annotated[
    KindName | None,
    Query(description="kind of the values; by default, it is taken from the array name"),
]
DeleteAfterFit = Annotated[
    bool, Query(description="delete the dataset once all fits on it have ended")
]
Days = Annotated[
    float | None,
    Query(
        ge=1e-9,
        le=36500,
        description="number of days to keep the dataset; `dataset_days` by default",
    ),
]


@router.post(
    "",
    status_code=201,
    summary="Upload a dataset, or open an upload in parts",
    openapi_extra=DATASET_BODY,
    responses={200: {"model": DatasetOut, "description": "The bytes were already stored"}},
    response_description="The dataset was stored, or an upload was opened",
)
async def create_dataset(
    request: Request,
    response: Response,
    joined: Joined,
    caller: Caller,
    kind: Kind = None,
    upload: Annotated[Literal["parts"] | None, Query(description="`parts` opens an upload")] = None,
    delete_after_fit: DeleteAfterFit = False,
    days: Days = None,
) -> DatasetOut:
    """Check the body and store it under its SHA-256.

    Send the arrays `logits` (or `probabilities`) and `labels` in any format except npy. Optional
    arrays: `segments`, the segment of each row (an integer in safetensors); `features`, the input
    to the model's last layer; `head_weight` and `head_bias`, that layer's weight and bias.
    Identical content is stored only once: sending it again returns 200 and the existing dataset.
    """
    retention = Retention(delete_after_fit, days or joined.settings.dataset_days or None)
    if upload == "parts":
        async for piece in request.stream():
            if piece:
                raise Invalid("no_body_yet", "an upload in parts must be opened without a body")
        opened = await joined.executors.query.run(
            caller.workspace, joined.part_uploads.open, caller, kind, retention
        )
        response.headers["Location"] = f"/v1/datasets/{opened.id}"
        return DatasetOut.of(opened, parts=[])
    async with joined.spool.receive(caller.workspace) as arrived:
        await spool(request, arrived, joined.executors.store.of(caller.workspace))
        content_type = request.headers.get("content-type")
        added = await joined.executors.inspect.run(
            caller.workspace,
            joined.datasets.add,
            caller,
            arrived,
            content_type,
            kind,
            retention,
        )
    response.status_code = 201 if added.is_new else 200
    response.headers["Location"] = f"/v1/datasets/{added.dataset.id}"
    return DatasetOut.of(added.dataset)


@router.get("", summary="List datasets, newest first")
def list_datasets(
    joined: Joined, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Page[DatasetOut]:
    """List the datasets of the caller's workspace."""
    with joined.database.read() as store:
        found = store.datasets.page(caller.workspace, limit + 1, time_place(cursor))
    return paged(found, limit, DatasetOut.of, _place)


@router.get(
    "/{id}", summary="Get a dataset by its id or by sha256:{hash}", response_model=DatasetOut
)
def get_dataset(joined: Joined, caller: Caller, id: openapi.DatasetId) -> Response:
    """Return a dataset; if it is an open upload in parts, also list the parts that have arrived."""
    with joined.database.read() as store:
        found = datasets.find(store, caller, id)
        parts = store.datasets.parts_of(found.id)
    arrived = None if found.is_ready else joined.part_uploads.arrived(found, parts)
    return json_response(DatasetOut.of(found, arrived))


@router.head("/{id}", summary="Check whether a dataset exists", response_class=Response)
def head_dataset(joined: Joined, caller: Caller, id: openapi.DatasetId) -> Response:
    """Check whether a dataset exists, for example by `sha256:{hash}` before sending its bytes."""
    with joined.database.read() as store:
        found = datasets.find(store, caller, id)
    return Response(headers={"Location": f"/v1/datasets/{found.id}"})


@router.delete("/{id}", status_code=204, summary="Delete a dataset")
def delete_dataset(joined: Joined, caller: Caller, id: openapi.DatasetId) -> None:
    """Delete a dataset; versions fitted on it are kept.

    Returns 409 while an unfinished fit needs the dataset.
    """
    joined.datasets.remove(caller, id)


@router.put(
    "/{id}/parts/{number}",
    summary="Send a part",
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/octet-stream": openapi.BINARY}}
    },
)
async def put_part(
    request: Request,
    joined: Joined,
    caller: Caller,
    id: openapi.DatasetId,
    number: Annotated[int, Path(ge=1, le=MAX_PARTS)],
) -> PartOut:
    """Store a part. Parts may be sent in any order and repeatedly; they are joined by number."""
    async with joined.spool.receive(caller.workspace) as arrived:
        await spool(request, arrived, joined.executors.store.of(caller.workspace))
        part = await joined.executors.store.run(
            caller.workspace, joined.part_uploads.put, caller, id, number, arrived
        )
    return part_out(part)


@router.post(
    "/{id}/parts/presigned",
    summary="Get URLs for sending parts directly to the store",
    responses=openapi.errors({409: "The store does not support signed URLs: no_presigned_uploads"}),
)
def presign_parts(
    joined: Joined, caller: Caller, id: openapi.DatasetId, body: PartsIn
) -> PartUrlsOut:
    """Return a URL for each part: PUT its bytes there within 15 minutes, without an API key.

    Other parts of the same upload may be sent through the service. The commit checks all hashes.
    """
    announced = [(part.number, part.bytes, part.sha256) for part in body.parts]
    return PartUrlsOut.of(joined.part_uploads.sign(caller, id, announced))


@router.post(
    "/{id}/commit",
    summary="Join the parts and check the dataset",
)
async def commit_dataset(
    response: Response,
    joined: Joined,
    caller: Caller,
    id: openapi.DatasetId,
    body: CommitIn | None = None,
) -> DatasetOut:
    """Join the parts and check the dataset; committing again returns the same dataset.

    If identical content was already stored, the existing dataset is returned.
    """
    expected = body or CommitIn()
    added = await joined.executors.inspect.run(
        caller.workspace,
        joined.part_uploads.commit,
        caller,
        id,
        joined.spool,
        parts=expected.parts,
        sha256=expected.sha256,
        content_type=expected.content_type,
    )
    response.headers["Location"] = f"/v1/datasets/{added.dataset.id}"
    return DatasetOut.of(added.dataset)


def _place(dataset: Dataset) -> tuple[float, str]:
    return dataset.created_at, dataset.id
