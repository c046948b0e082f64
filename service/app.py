"""Assemble the ASGI app from its parts; importing this module starts nothing."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib import metadata

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Scope

from service.access import routes as keys
from service.access.keys import KeyRing
from service.access.permissions import Principal
from service.access.quota import Quota
from service.access.sessions import Sessions
from service.comparisons import routes as comparisons
from service.comparisons.service import Comparisons
from service.concurrency.memory_budget import CallMemory
from service.concurrency.temporary_files import downloads, remove_left_behind
from service.concurrency.thread_pools import Executors
from service.datasets import routes as datasets
from service.datasets.formats import Limits, all_codecs
from service.datasets.part_uploads import PartUploads, UploadLimits
from service.datasets.service import Datasets
from service.datasets.spool import Spool
from service.dependencies import Parts
from service.errors import BlobMissing, Damaged
from service.fits import routes as fits
from service.fits.service import FitWatcher
from service.http import openapi
from service.http.body_kinds import BodyKind, body_kind, media_type
from service.http.metrics import Metrics
from service.http.middleware.auth import Guard
from service.http.middleware.body_limits import BodyGuard
from service.http.middleware.body_memory import BodyMemory
from service.http.middleware.csrf import is_page
from service.http.middleware.paced_responses import PacedResponses
from service.http.middleware.request_limits import RequestLimits, ThreadLimits
from service.http.middleware.request_log import RequestLog
from service.http.problems import LastResort, install_problems
from service.maintenance import routes as operations
from service.maintenance.readiness import OK, Probe
from service.openapi import complete_document
from service.registry import routes as calibrators
from service.registry.aliases import routes as aliases
from service.registry.reports import routes as reports
from service.registry.reports.renderer import Renderer
from service.runs import routes as runs
from service.runs.watcher import RunWatcher
from service.serving import inference_protocol, predict
from service.serving.apply_map import LargeCalls
from service.serving.map_cache import Maps, Served
from service.settings import Settings
from service.storage.blobs import Blobs, log_damage
from service.storage.database import Database
from service.storage.notifications import CHANGES, FITS_DONE, NotificationListener
from service.web.components import static_files
from service.web.components.layout import refuse_as_page
from service.web.pages import page_routers
from service.worker.supervisor import WorkerSupervisor

MIN_PAUSE = 0.05  # between refreshes, so that a burst of alias moves causes only one
MAX_FORM_BYTES = 1 << 16
MAX_SMALL_JSON_BYTES = 1 << 21  # bodies without arrays or maps; statistics take up to a megabyte
MAX_PASTED_BYTES = 1 << 18  # a row of 30,000 classes
TEXT_TYPES = {name for one in all_codecs().values() if one.is_text for name in one.media_types}
ROUTERS = (
    datasets,
    fits,
    aliases,
    calibrators,
    comparisons,
    reports,
    runs,
    keys,
    operations,
    static_files,
)


def create_app(settings: Settings) -> FastAPI:
    """Return the ASGI app of the service; the database must be prepared.

    The parts of the service are started by the app's lifespan.
    """
    parts = build_parts(settings)
    app = FastAPI(
        title="calibrd",
        version=metadata.version("calibrd"),
        summary="Calibrated probabilities as a versioned, tested contract.",
        lifespan=_lifespan,
        docs_url=None,
        openapi_url=None,
        generate_unique_id_function=lambda route: route.name,
        redoc_url=None,
        responses=openapi.ANY_ERROR,
        # slash redirects echo the Host header, which the client controls
        redirect_slashes=False,
        # /metrics and the log replace FastAPI's telemetry
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.parts = parts
    predicting, others = _plain_routes(parts)
    app.router.routes[:0] = [predicting, *others, *operations.health_routes(parts.probe)]
    for router in (*(module.router for module in ROUTERS), *page_routers()):
        app.include_router(router)
    plain_paths = {**predict.OPENAPI, **inference_protocol.OPENAPI}
    complete_document(app, plain_paths, operations.described.routes)
    install_problems(app)
    app.add_exception_handler(HTTPException, refuse_as_page)
    app.add_middleware(predict.Shortcut, route=predicting)
    app.add_middleware(ThreadLimits)
    app.add_middleware(BodyMemory, memory=parts.call_memory)
    app.add_middleware(
        BodyGuard,
        limit_of=_body_limit(settings),
        timeout=settings.body_timeout,
        least_rate=settings.body_least_rate,
        most_seconds=settings.body_seconds,
        check_caller=parts.keys.check,
    )
    app.add_middleware(RequestLimits, most_requests=settings.max_requests_per_key)
    app.add_middleware(
        Guard,
        keys=parts.keys,
        sessions=parts.sessions,
        threads=parts.executors.session,
        is_loopback=settings.is_loopback,
    )
    app.add_middleware(LastResort)
    app.add_middleware(PacedResponses)
    app.add_middleware(RequestLog, metrics=parts.metrics)
    return app


def build_parts(settings: Settings) -> Parts:
    """Build the parts of a service from its settings."""
    metrics = Metrics()

    def note_damage(key: str, error: Damaged) -> None:
        is_missing = isinstance(error, BlobMissing)
        (metrics.blob_missing if is_missing else metrics.blob_corrupt)()
        log_damage(key, error)

    database = Database(settings.database, seconds=settings.database_seconds, leaves_room=True)
    blobs = Blobs(settings.blobs, on_damage=note_damage, sign_endpoint=settings.sign_endpoint)
    limits = Limits(settings.max_upload_bytes, settings.max_json_bytes, settings.max_classes)
    quota = Quota(settings.max_workspace_bytes, blobs.folder)
    datasets = Datasets(database, blobs, limits, quota)
    maps = Maps(database, blobs, settings.map_cache_bytes)
    metrics.watch_map_cache(lambda: len(maps))
    metrics.add_collector(functools.partial(operations.database_metrics, database))
    return Parts(
        settings=settings,
        database=database,
        blobs=blobs,
        keys=KeyRing(database),
        sessions=Sessions(database),
        maps=maps,
        comparisons=Comparisons(blobs),
        watcher=FitWatcher(database),
        run_watcher=RunWatcher(database),
        datasets=datasets,
        quota=quota,
        part_uploads=PartUploads(
            database,
            blobs,
            datasets,
            UploadLimits(
                bytes=settings.max_upload_bytes,
                part_bytes=settings.max_part_bytes,
                open_uploads=settings.max_open_uploads,
                open_bytes=settings.max_open_upload_bytes or 4 * settings.max_upload_bytes,
            ),
        ),
        executors=Executors(),
        spool=Spool(settings.data_dir / "uploads"),
        call_memory=CallMemory(settings.body_memory_bytes),
        renderer=Renderer(settings.data_dir / "rendered", seconds=settings.render_seconds),
        metrics=metrics,
        probe=Probe(database, blobs),
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    await asyncio.to_thread(remove_left_behind, parts.spool.folder)
    await asyncio.to_thread(remove_left_behind, downloads())
    await asyncio.to_thread(parts.refresh)
    refreshing = asyncio.create_task(_keep_fresh(parts))
    workers = WorkerSupervisor(parts.settings, parts.settings.workers)
    workers.start()
    try:
        yield
    finally:
        refreshing.cancel()
        await asyncio.gather(refreshing, return_exceptions=True)
        await parts.watcher.close()
        await parts.run_watcher.close()
        parts.comparisons.close()
        parts.executors.close()
        parts.renderer.close()
        await asyncio.to_thread(workers.stop)
        parts.database.close()


async def _keep_fresh(parts: Parts) -> None:
    """Pick up changes made by other processes, on dedicated threads that nothing else blocks.

    Keys have a separate thread, so that revoking one never waits for maps to load.
    """
    loop = asyncio.get_running_loop()
    refreshes = (parts.refresh_keys_if_possible, parts.refresh_maps_if_possible)
    changes = [asyncio.Event() for _ in refreshes]

    def wake_refresh() -> None:
        for changed in changes:
            loop.call_soon_threadsafe(changed.set)

    def wake_watcher() -> None:
        loop.call_soon_threadsafe(parts.watcher.wake)

    calls = {CHANGES: wake_refresh, FITS_DONE: wake_watcher}
    listener = NotificationListener(parts.database.unlimited, calls)
    with ThreadPoolExecutor(len(refreshes), thread_name_prefix="refresh") as threads, listener:

        async def repeat(refresh: Callable[[], None], changed: asyncio.Event) -> None:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), parts.settings.refresh_seconds)
                changed.clear()
                await loop.run_in_executor(threads, refresh)
                await asyncio.sleep(MIN_PAUSE)

        await asyncio.gather(*map(repeat, refreshes, changes))


def _plain_routes(parts: Parts) -> tuple[Route, list[Route]]:
    """Return the predict route and the /v2 routes, which bypass FastAPI for speed."""

    def find(principal: Principal, name: str, ref: str) -> Served | None:
        served = parts.maps.find(principal, name, ref)
        (parts.metrics.map_cache_miss if served is None else parts.metrics.map_cache_hit)()
        return served

    async def load(principal: Principal, name: str, ref: str) -> Served:
        return await parts.executors.load.run(
            principal.workspace, parts.maps.load, principal, name, ref
        )

    async def is_ready() -> bool:
        found = await parts.probe.read_async()
        return found.database == found.blobs == OK

    settings = parts.settings
    limits = Limits(settings.max_predict_bytes, settings.max_json_bytes, settings.max_classes)
    large = LargeCalls(parts.executors.apply)
    predicting = predict.predict_route(find, load, limits, large)
    others = inference_protocol.inference_routes(
        find,
        load,
        metadata.version("calibrd"),
        settings.max_predict_bytes,
        is_ready,
        large,
        settings.max_json_bytes,
    )
    return predicting, others


def _body_limit(settings: Settings) -> Callable[[Scope], int]:
    """Return a function that maps a request to the size limit of its body in bytes."""

    def limit(scope: Scope) -> int:
        path: str = scope["path"]
        if is_page(path):  # pages take small forms; large bodies go to the API
            return MAX_PASTED_BYTES if path.endswith("/try") else MAX_FORM_BYTES
        match body_kind(scope):
            case BodyKind.VALUES:
                return settings.max_predict_bytes
            case BodyKind.PART:
                return settings.max_part_bytes
            case BodyKind.VERSION:
                return settings.max_json_bytes
            case BodyKind.DATASET | BodyKind.FIT if media_type(scope) in TEXT_TYPES:
                return settings.max_json_bytes
            case BodyKind.DATASET | BodyKind.FIT:
                return settings.max_upload_bytes
        return min(settings.max_json_bytes, MAX_SMALL_JSON_BYTES)

    return limit
