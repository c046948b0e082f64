"""Routes for calibrators and their versions."""

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
from service.access.permissions import Principal, Scope
from service.dependencies import Joined, Parts
from service.errors import Invalid, NotFound
from service.fits.schemas import MethodOut
from service.http import openapi
from service.http.callers import Caller, needs
from service.http.downloads import blob_response
from service.http.etags import is_known
from service.http.paging import (
    Cursor,
    Limit,
    Page,
    json_response,
    name_place,
    number_place,
    paged,
)
from service.http.strict_route import StrictRoute
from service.registry import service as versions
from service.registry.registration import Registration, register
from service.registry.schemas import CalibratorOut, NotesIn, RegisterIn, VersionOut
from service.storage.blob_keys import map_key, onnx_key
from service.storage.records import Version
from service.storage.repository import page_length

router = APIRouter(prefix="/v1", tags=["calibrators"], route_class=StrictRoute)

# reports can have more than 15,000 values; reports/limits.py limits them further
MAX_REGISTERED_COST = 400_000
MAX_ALIASES = 2000  # per page of calibrators
_methods_lock = threading.Lock()
FOREVER = "private, max-age=31536000, immutable"


@router.get("/methods", summary="List the methods and their parameters")
def list_methods() -> list[MethodOut]:
    """List the methods that can be fitted, each with a JSON schema of its parameters."""
    with _methods_lock:  # the first call takes a second
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
            needs_features=recipe.needs_features,
            needs_head=recipe.needs_head,
            parameters=TypeAdapter(recipe).json_schema(),
        )
        for name, recipe in sorted(all_methods().items())
    ]


@router.get("/calibrators", summary="List calibrators by name", response_model=Page[CalibratorOut])
def list_calibrators(
    joined: Joined, caller: Caller, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List the calibrators of the caller's workspace, with their aliases."""
    with joined.database.read() as store:
        found = store.calibrators.page(caller.workspace, limit + 1, name_place(cursor))
        counts = store.aliases.counts([one.id for one in found])
        shown = min(limit, page_length((counts.get(one.id, 0) for one in found), MAX_ALIASES))
        aliases = store.aliases.by_calibrator([one.id for one in found[:shown]])
    listed = paged(
        found[: shown + 1],
        shown,
        lambda one: CalibratorOut.of(one, aliases.get(one.id, [])),
        lambda one: one.name,
    )
    return json_response(listed)


@router.get("/calibrators/{name}", summary="Get a calibrator and its aliases")
def get_calibrator(joined: Joined, caller: Caller, name: openapi.Name) -> CalibratorOut:
    """Return the newest version of a calibrator, and its aliases."""
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
    """List the versions of a calibrator."""
    before = number_place(cursor)
    with joined.database.read() as store:
        calibrator = versions.calibrator_named(store, caller, name)
        shown = store.calibrators.affordable_versions(calibrator.id, limit, before)
        found = store.calibrators.versions(calibrator.id, shown + 1, before)
    listed = paged(found, shown, lambda one: VersionOut.of(name, one), lambda one: one.number)
    return json_response(listed)


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
    """Register a map that was fitted elsewhere. Send only the map and its report, not the data."""
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


register_version.most_body_cost = MAX_REGISTERED_COST  # type: ignore[attr-defined]


@router.get("/calibrators/{name}/versions/{number}", summary="Get a version")
def get_version(
    joined: Joined, caller: Caller, name: openapi.Name, number: openapi.Number
) -> VersionOut:
    """Return a version: method, parameters, data, model, libraries, verdict and map hash."""
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
    """Change the tags or description of a version; its other fields never change."""
    joined.quota.check_notes(joined.database, caller.workspace, body.tags, body.description)
    with joined.database.write() as store:
        changed = versions.annotate(
            store, caller, name, number, tags=body.tags, description=body.description
        )
    return VersionOut.of(name, changed)


@router.get(
    "/calibrators/{name}/versions/{number}/map",
    summary="Download the map",
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
    """Return the map as an archive for `calibrators.archive.load`; the ETag is its SHA-256."""
    with joined.database.read() as store:
        found = versions.find(store, caller, name, number)
    key = map_key(caller.workspace, found.id, found.map_sha256)
    return _blob(joined, caller, key, found.map_sha256, if_none_match)


@router.get(
    "/calibrators/{name}/versions/{number}/onnx",
    summary="Download the map as an ONNX model",
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
    """Return an ONNX model that maps float32 logits (n, k) to probabilities (n, k).

    Its output was checked against the map's when the version was fitted.
    """
    with joined.database.read() as store:
        found = versions.find(store, caller, name, number)
    sha256 = found.onnx_sha256
    if sha256 is None:
        why = versions.why_no_onnx(found)
        raise NotFound("no_onnx", f"version {number} of {name} has no ONNX model: {why}")
    key = onnx_key(caller.workspace, found.id, sha256)
    return _blob(joined, caller, key, sha256, if_none_match)


def _blob(
    joined: Parts, caller: Principal, key: str, sha256: str, if_none_match: str | None
) -> Response:
    """Return immutable bytes, or 304 if the caller already has them."""
    headers = {"ETag": f'"{sha256}"', "Cache-Control": FOREVER}
    if is_known(if_none_match, sha256):
        return Response(status_code=304, headers=headers)
    run = joined.executors.download.of(caller.workspace)
    return blob_response(joined.blobs, key, sha256, headers, run)


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise Invalid("bad_base64", f"{name} must be base64-encoded") from error
