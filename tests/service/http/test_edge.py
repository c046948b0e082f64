"""The middleware around every request: its id, response headers, counters, access log."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable
from time import perf_counter
from typing import Any

import httpx
import pytest
import structlog
from fastapi import APIRouter, FastAPI
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from service.access.permissions import Principal
from service.http.metrics import Metrics
from service.http.middleware.request_log import RequestLog
from service.http.problems import LastResort, install_problems


def observed(metrics: Metrics) -> RequestLog:
    app = FastAPI()
    install_problems(app)
    router = APIRouter(prefix="/v1")

    @router.get("/things/{name}")
    def thing(name: str, request: Request) -> str:
        request.scope["principal"] = Principal("w", "ana", frozenset())
        return name

    @router.post("/things/{name}/predict")
    def predict(name: str) -> str:
        return name

    app.include_router(router)
    app.add_api_route("/healthz", lambda: "ok")
    app.add_api_route("/page", lambda: HTMLResponse("<p>"))
    kept = {"cache-control": "max-age=9", "content-security-policy": "default-src 'self'"}
    app.add_api_route("/own", lambda: HTMLResponse("<p>", headers=kept))

    def plain(request: Request) -> Response:
        return JSONResponse(1)

    app.add_route("/starlette/{name}", plain)
    app.add_route("/again/{name}", plain)
    app.add_route("/once/{name}", lambda request: JSONResponse(1), methods=["POST"])
    return RequestLog(LastResort(app), metrics)


def ask(app: RequestLog, path: str, method: str = "GET", **headers: str) -> Response:
    async def call() -> Any:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test"
        ) as client:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, headers=named)

    return asyncio.run(call())


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def app(metrics: Metrics) -> RequestLog:
    return observed(metrics)


def counted(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "calibrd_requests_total"
    }


@pytest.mark.parametrize("given", ["abc-1.2_3", "x" * 64])
def test_a_callers_request_id_is_kept(app: RequestLog, given: str) -> None:
    assert ask(app, "/healthz", x_request_id=given).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a<b>", "a\tb"])
def test_other_request_ids_are_replaced(app: RequestLog, given: str) -> None:
    first = ask(app, "/healthz", x_request_id=given).headers["x-request-id"]
    second = ask(app, "/healthz", x_request_id=given).headers["x-request-id"]

    assert given not in (first, second)
    assert first != second


def test_headers_of_responses(app: RequestLog) -> None:
    plain, page, own = ask(app, "/healthz"), ask(app, "/page"), ask(app, "/own")

    assert {each.headers["x-content-type-options"] for each in (plain, page, own)} == {"nosniff"}
    assert plain.headers["cache-control"] == page.headers["cache-control"] == "no-store"
    assert "content-security-policy" not in plain.headers
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "script-src" not in page.headers["content-security-policy"]
    assert own.headers.get_list("cache-control") == ["max-age=9"]  # type: ignore[attr-defined]
    assert own.headers["content-security-policy"] == "default-src 'self'"


def test_requests_are_counted_by_the_routes_template(app: RequestLog, metrics: Metrics) -> None:
    for path in ("/v1/things/a", "/v1/things/b", "/starlette/c", "/again/c", "/nowhere/1"):
        ask(app, path)
    ask(app, "/once/c", "POST")
    ask(app, "/v1/things/a", "DELETE")
    ask(app, "/v1/things/a", "MADEUP")

    assert counted(metrics) == {
        ("/v1/things/{name}", "GET", "200"): 2,
        ("/starlette/{name}", "GET", "200"): 1,
        ("/again/{name}", "GET", "200"): 1,
        ("/once/{name}", "POST", "200"): 1,
        ("unmatched", "GET", "404"): 1,
        ("/v1/things/{name}", "DELETE", "405"): 1,
        ("/v1/things/{name}", "OTHER", "405"): 1,
    }


def test_one_access_line_without_the_query(app: RequestLog) -> None:
    with structlog.testing.capture_logs() as lines:
        ask(app, "/v1/things/a?logits=1,2", x_request_id="r1")

    assert lines[0].pop("milliseconds") >= 0
    assert lines == [
        {
            "event": "request",
            "log_level": "info",
            "method": "GET",
            "route": "/v1/things/{name}",
            "path": "/v1/things/a",
            "status": 200,
            "request_id": "r1",
            "client": "127.0.0.1",
            "actor": "ana",
        }
    ]


def test_predicts_and_health_checks_are_quiet_unless_they_fail(app: RequestLog) -> None:
    with structlog.testing.capture_logs() as lines:
        ask(app, "/healthz")
        ask(app, "/v1/things/a/predict", "POST")
        assert not [line for line in lines if line["log_level"] != "debug"]
        ask(app, "/v1/things/a/predict")

    assert [line["status"] for line in lines if line["log_level"] == "info"] == [405]


def test_a_reused_response_does_not_grow() -> None:
    start: Message = {"type": "http.response.start", "status": 200, "headers": []}

    async def raw(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    app = RequestLog(raw, Metrics())
    ask(app, "/")

    assert start["headers"] == []
    assert len(ask(app, "/").headers.get_list("x-request-id")) == 1  # type: ignore[attr-defined]


def test_the_layer_costs_microseconds() -> None:
    async def raw(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def discard(message: Message) -> None:
        return None

    async def seconds_per_request(app: Any, count: int = 2000) -> float:
        best = float("inf")
        for _ in range(5):
            began = perf_counter()
            for _ in range(count):
                headers = [(b"host", b"x"), (b"content-type", b"y"), (b"accept", b"z")]
                scope = {"type": "http", "method": "POST", "path": "/p", "headers": headers}
                scope["route"] = Route
                await app(scope, None, discard)
            best = min(best, (perf_counter() - began) / count)
        return best

    class Route:
        path = path_format = "/things/{name}/predict"

    alone = asyncio.run(seconds_per_request(raw))
    around = asyncio.run(seconds_per_request(RequestLog(raw, Metrics())))
    assert around - alone < 100e-6


def test_metrics_are_read_at_each_scrape(metrics: Metrics) -> None:
    depths = iter([3.0, 5.0])

    def queue() -> Iterable[Metric]:
        yield GaugeMetricFamily("calibrd_queue_depth", "Fits that wait.", value=next(depths))

    metrics.add_collector(queue)
    metrics.watch_map_cache(lambda: 7)
    metrics.map_cache_hit()
    first, content_type = metrics.render()
    second, _ = metrics.render()

    assert content_type.startswith("text/plain")
    assert b"calibrd_queue_depth 3.0" in first
    assert b"calibrd_queue_depth 5.0" in second
    assert b"calibrd_map_cache_size 7.0" in first
    assert b'calibrd_map_cache_lookups_total{result="hit"} 1.0' in first
    assert b"calibrd_process_resident_memory_bytes" in first


def test_two_services_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.recorder("/a", "GET", 200)(0.1)

    assert counted(one) == {("/a", "GET", "200"): 1}
    assert counted(other) == {}


def test_the_edge_does_not_load_torch() -> None:
    middleware = "service.http.middleware.request_log, service.http.middleware.body_limits"
    modules = f"service.http.problems, {middleware}, service.logs"
    script = f"import json, sys, {modules}; sys.stdout.write(json.dumps('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)

    assert json.loads(done.stdout) is False
