"""Routes for operators: health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.routing import Route

from service.access.permissions import Scope
from service.dependencies import Joined
from service.errors import ServiceError
from service.fits.service import WORKER_IS_ALIVE
from service.http import openapi
from service.http.callers import needs
from service.http.schemas import Body
from service.http.strict_route import StrictRoute
from service.maintenance.readiness import OK, Probe, Readiness
from service.storage.database import Database

router = APIRouter(tags=["operations"], route_class=StrictRoute)


class Health(Body):
    """The status of the process."""

    status: str = Field(examples=["ok"])


def health_routes(probe: Probe) -> list[Route]:
    """Return the health routes, which bypass FastAPI because they are public and called often.

    ``/healthz`` depends on no other part of the service, not even on a thread that could be busy.
    """

    async def healthz(request: Request) -> Response:
        return Response(ALIVE, media_type="application/json")

    async def readyz(request: Request) -> Response:
        found = await probe.read_async()
        return JSONResponse(found.model_dump(), 200 if found.status == OK else 503)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


ALIVE = b'{"status":"ok"}'
# only describes the routes above for OpenAPI
described = APIRouter(tags=["operations"], responses=openapi.ANY_ERROR)


@described.get(
    "/healthz",
    operation_id="healthz",
    summary="Check that the process is alive",
    response_description="The process is alive",
)
def healthz() -> Health:
    """Respond at once, without using any other component of the service. Requires no key."""
    raise AssertionError("health_routes responds; this function only documents it")


@described.get(
    "/readyz",
    operation_id="readyz",
    summary="Check that all components work",
    response_description="All components work",
    responses={503: {"model": Readiness, "description": "At least one component does not work"}},
)
def readyz() -> Readiness:
    """Check the database, the blob store and the workers; 503 if one fails. Requires no key."""
    raise AssertionError("health_routes responds; this function only documents it")


@router.get(
    "/metrics",
    summary="Get Prometheus metrics",
    dependencies=needs(Scope.ADMIN),
    response_class=Response,
    responses=openapi.file("text/plain", "Metrics in the Prometheus text format"),
)
def metrics(joined: Joined) -> Response:
    """Return metrics of requests, latency, fits by status, queue depth and maps in memory."""
    content, content_type = joined.metrics.render()
    return Response(content, media_type=content_type)


def database_metrics(database: Database) -> Iterable[Metric]:
    """Yield metrics of fits, workers and runs, and whether the database could be read."""
    readable = GaugeMetricFamily(
        "calibrd_database_readable",
        "1 if the fit, worker and run metrics could be read from the database, else 0.",
    )
    try:
        with database.read() as store:
            counts = store.fits.counts()
            failures = store.fits.failures()
            alive = len(store.workers.alive(WORKER_IS_ALIVE))
            runs, open_statistics = store.runs.counts(), store.run_steps.waiting()
    except (SQLAlchemyError, ServiceError):
        readable.add_metric((), 0)
        yield readable
        return
    readable.add_metric((), 1)
    yield readable
    number = GaugeMetricFamily("calibrd_fits", "Fits by status.", labels=("status", "queue"))
    seconds = CounterMetricFamily(
        "calibrd_fit_seconds", "Total duration of finished fits.", labels=("status", "queue")
    )
    for (status, queue), (count, total) in counts.items():
        number.add_metric((status, queue), count)
        seconds.add_metric((status, queue), total)
    waiting = sum(count for (status, _), (count, _) in counts.items() if status == "queued")
    failed = GaugeMetricFamily(
        "calibrd_failed_fits", "Failed fits by error code.", labels=("code",)
    )
    for code, count in failures.items():
        failed.add_metric((code,), count)
    trainings = GaugeMetricFamily(
        "calibrd_runs", "Training runs that are not archived.", labels=("kind",)
    )
    for kind, count in runs.items():
        trainings.add_metric((kind,), count)
    yield trainings
    yield GaugeMetricFamily(
        "calibrd_waiting_statistics",
        "Run statistics that are waiting for other ranks or the previous step.",
        value=open_statistics,
    )
    yield number
    yield seconds
    yield failed
    yield GaugeMetricFamily("calibrd_queue_depth", "Fits waiting for a worker.", value=waiting)
    yield GaugeMetricFamily("calibrd_workers", "Live workers.", value=alive)
