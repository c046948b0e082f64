"""An app with only the predict route, a caller, and maps in a dictionary."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import httpx
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from calibrators import CalibrationMap, DataError
from calibrators.error_codes import status_of
from calibrators.methods.additive import AdditiveMap
from calibrators.methods.segmented import SegmentedMap
from calibrators.methods.temperature import TemperatureMap
from helpers.large_calls import large_calls
from service.access.permissions import Principal, Scope
from service.datasets.formats import Limits
from service.errors import NotFound, ServiceError
from service.serving.map_cache import Served
from service.serving.predict import predict_route

SHA256 = "ab" * 32
MODEL = "resnet50:v1"
LIMITS = Limits(bytes=8 << 20, json_bytes=1 << 20, classes=1000)
CALLER = Principal("default", "tester", frozenset({Scope.PREDICT}))
LOGITS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
THREE = TemperatureMap(k=3, temperature=1.5)
MAPS: dict[str, CalibrationMap] = {
    "three": THREE,
    "two": TemperatureMap(k=2, temperature=2.0),
    "shares": TemperatureMap(k=3, temperature=1.5, kind="probabilities"),
    "two-shares": TemperatureMap(k=2, temperature=2.0, kind="probabilities"),
    "banded": AdditiveMap(
        k=3,
        base_temperature=1.5,
        rest_temperature=1.2,
        nodes=np.tile(np.linspace(-1, 4, 5), (3, 1)),
        heights=np.linspace(-0.5, 0.5, 15).reshape(3, 5),
        covariance=0.05 * np.eye(15),
    ),
    "wide": TemperatureMap(k=1000, temperature=1.5),
    "segments": SegmentedMap(
        k=3, base=THREE, segments=("app", "web"), temperatures=np.array([0.5, 2.0])
    ),
}


class Registry:
    """Maps in a dictionary; once loaded, they are found in memory."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Served] = {}
        self.loads = 0

    def find(self, principal: Principal, name: str, ref: str) -> Served | None:
        return self.found.get((name, ref))

    async def load(self, principal: Principal, name: str, ref: str) -> Served:
        self.loads += 1
        if name not in MAPS or ref not in ("production", "3"):
            raise NotFound("no_such_calibrator", f"there is no calibrator {name!r}")
        model = MODEL if name == "three" else None
        self.found[name, ref] = Served(name, 3, MAPS[name], SHA256, model)
        return self.found[name, ref]


def make_app(registry: Registry, caller: Principal = CALLER) -> Any:
    def refuse(request: Request, error: Any) -> Response:
        told = {"code": error.code, "detail": str(error)}
        return JSONResponse(told, status_of(error.code, unknown=422))

    app = Starlette(
        routes=[predict_route(registry.find, registry.load, LIMITS, large_calls())],
        exception_handlers={ServiceError: refuse, DataError: refuse},
    )

    async def with_caller(scope: Any, receive: Any, send: Any) -> None:
        scope["principal"] = caller
        await app(scope, receive, send)

    return with_caller


def call(method: str, path: str, *, caller: Principal = CALLER, **more: Any) -> httpx.Response:
    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(Registry(), caller))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, f"/v1/calibrators/{path}", **more)

    return asyncio.run(once())


def post(body: bytes, path: str = "three@production/predict", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call("POST", path, content=body, headers=named)


def read_npy(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.load(io.BytesIO(answer.content), allow_pickle=False)
