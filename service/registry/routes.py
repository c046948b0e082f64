"""Routes of calibrators and their versions."""

from __future__ import annotations

import base64
import binascii
import threading
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Header, Response
from pydantic import TypeAdapter

from calibrators import all_methods
from calibrators.registry import keeps_class
from service.access.idempotency import check_key
from service.access.permissions import Scope
from service.dependencies import Joined, Parts
from service.errors import Invalid, NotFound
from service.fits.schemas import MethodOut
from service.http import openapi
from service.http.callers import Caller, needs
from service.http.downloads import blob_answer
from service.http.etags import is_known
from service.http.paging import (
    Cursor,
    Limit,
    Page,
    affordable,
    name_place,
    number_place,
    paged,
    written,
)
from service.http.strict_route import StrictRoute
from service.registry import service as versions
from service.registry.registration import Registration, register
from service.registry.schemas import CalibratorOut, NotesIn, RegisterIn, VersionOut
from service.storage.blob_keys import map_key, onnx_key
from service.storage.records import Version

router = APIRouter(prefix="/v1", tags=["calibrators"], route_class=StrictRoute)

# reports have 15,000 values and more; their own limits are in core/report_limits.py
MOST_REGISTERED_COST = 400_000
MOST_ALIASES = 2000  # of a page of calibrators
_making_methods = threading.Lock()
FOREVER = "private, max-age=31536000, immutable"


@router.get("/methods", summary="The methods and their parameters")
def list_methods() -> list[MethodOut]:
    """What can be fitted: each with a JSON schema of its parameters."""
    with _making_methods:  # it takes a second, the first time
        return _methods()


@cache
def _methods() -> list[MethodOut]:
    return [
        MethodOut(
            name=name,
            summary=recipe.summary,
            reference=recipe.reference,
            cost=recipe.cost,
            keeps_class=keeps_class(name),
            needs_segments=recipe.needs_segments,
            parameters=TypeAdapter(recipe).json_schema(),
        )
        for name, recipe in sorted(all_methods().items())
    ]


@router.get("/calibrators", summary="List calibrators by name", response_model=Page[CalibratorOut])
def list_calibrators(
    joined: Joined, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Calibrators of the caller's workspace, with their aliases."""
    with joined.database.read() as store:
        found = store.calibrators.page(caller.workspace, limit + 1, name_place(cursor))
        counts = store.aliases.counts([one.id for one in found])
        shown = min(limit, affordable((counts.get(one.id, 0) for one in found), MOST_ALIASES))
        aliases = store.aliases.by_calibrator([one.id for one in found[:shown]])
    listed = paged(
        found[: shown + 1],
        shown,
        lambda one: CalibratorOut.of(one, aliases.get(one.id, [])),
        lambda one: one.name,
    )
    return written(listed)


@router.get("/calibrators/{name}", summary="A calibrator and its aliases")
def get_calibrator(joined: Joined, caller: Caller, name: openapi.Name) -> CalibratorOut:
    """Its newest version and where its aliases point."""
    with joined.database.read() as store:
        found = versions.calibrator_named(store, caller, name)
        return CalibratorOut.of(found, store.aliases.all_of(found.id))


@router.get(
    "/calibrators/{name}/versions",
    summary="List versions, newest first",
    response_model=Page[VersionOut],
)
def list_versions(
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Versions of a calibrator."""
    before = number_place(cursor)
    with joined.database.read() as store:
        calibrator = versions.calibrator_named(store, caller, name)
        shown = store.calibrators.affordable_versions(calibrator.id, limit, before)
        found = store.calibrators.versions(calibrator.id, shown + 1, before)
    listed = paged(found, shown, lambda one: VersionOut.of(name, one), lambda one: one.number)
    return written(listed)


@router.post(
    "/calibrators/{name}/versions",
    status_code=201,
    summary="Register a map that was fitted elsewhere",
    dependencies=needs(Scope.FIT),
)
async def register_version(
    response: Response,
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    body: RegisterIn,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> VersionOut:
    """For those whose logits may not leave: only the map and its report are sent."""
    key = check_key(idempotency_key)

    def registered() -> Version:
        sent = Registration(
            name,
            _decoded(body.map, "map"),
            body.report,
            None if body.judged_rows is None else _decoded(body.judged_rows, "judged_rows"),
            body.model,
            body.tags,
            body.description,
        )
        with joined.database.read() as store:
            joined.quota.check(store, caller.workspace, sent.bytes)
        return register(joined.database, joined.blobs, caller, sent, key=key)

    made = await joined.executors.inspect.run(caller.workspace, registered)
    response.headers["Location"] = f"/v1/calibrators/{name}/versions/{made.number}"
    return VersionOut.of(name, made)


register_version.most_body_cost = MOST_REGISTERED_COST  # type: ignore[attr-defined]


@router.get("/calibrators/{name}/versions/{number}", summary="A version")
def get_version(
    joined: Joined, caller: Caller, name: openapi.Name, number: openapi.Number
) -> VersionOut:
    """Its method, parameters, data, model, libraries, verdict and the hash of its map."""
    with joined.database.read() as store:
        return VersionOut.of(name, versions.find(store, caller, name, number))


@router.patch(
    "/calibrators/{name}/versions/{number}",
    summary="Change tags or description",
    dependencies=needs(Scope.PROMOTE),
)
def annotate_version(
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    number: openapi.Number,
    body: NotesIn,
) -> VersionOut:
    """Nothing else of a version ever changes."""
    with joined.database.write() as store:
        changed = versions.annotate(
            store, caller, name, number, tags=body.tags, description=body.description
        )
    return VersionOut.of(name, changed)


@router.get(
    "/calibrators/{name}/versions/{number}/map",
    summary="The map's bytes",
    response_class=Response,
    responses=openapi.known_file("application/octet-stream", "The archive"),
)
def get_map(
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    number: openapi.Number,
    if_none_match: openapi.IfNoneMatch = None,
) -> Response:
    """`calibrators.archive.load` reads them; the ETag is their SHA-256."""
    with joined.database.read() as store:
        found = versions.find(store, caller, name, number)
    key = map_key(caller.workspace, found.id, found.map_sha256)
    return _blob(joined, key, found.map_sha256, if_none_match)


@router.get(
    "/calibrators/{name}/versions/{number}/onnx",
    summary="The map as an ONNX model",
    response_class=Response,
    responses=openapi.known_file("application/octet-stream", "The model"),
)
def get_onnx(
    joined: Joined,
    caller: Caller,
    name: openapi.Name,
    number: openapi.Number,
    if_none_match: openapi.IfNoneMatch = None,
) -> Response:
    """float32 logits (n, k) to calibrated probabilities (n, k), proved equal to the map."""
    with joined.database.read() as store:
        found = versions.find(store, caller, name, number)
    sha256 = found.onnx_sha256
    if sha256 is None:
        why = versions.why_no_onnx(found)
        raise NotFound("no_onnx", f"version {number} of {name} has no ONNX form: {why}")
    return _blob(joined, onnx_key(caller.workspace, found.id, sha256), sha256, if_none_match)


def _blob(joined: Parts, key: str, sha256: str, if_none_match: str | None) -> Response:
    """Bytes that never change, unless the caller has them."""
    headers = {"ETag": f'"{sha256}"', "Cache-Control": FOREVER}
    if is_known(if_none_match, sha256):
        return Response(status_code=304, headers=headers)
    return blob_answer(joined.blobs, key, sha256, headers)


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise Invalid("bad_base64", f"{name} must be its bytes in base64") from error
