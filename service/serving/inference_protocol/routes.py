"""The routes under /v2: plain Starlette, to keep the overhead of infer small."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.access.permissions import Principal, Scope
from service.datasets.formats import Arrays
from service.datasets.formats.npz import HIGHEST_RATIO
from service.datasets.formats.segment_names import SEGMENTS
from service.errors import Malformed
from service.http.callers import check_scope
from service.http.middleware.body_memory import end_work, hold_unpacked, read_body
from service.http.middleware.fair_turns import take_turn
from service.serving.apply_map import (
    INLINE_BYTES,
    INLINE_JSON_BYTES,
    MODEL_HEADER,
    Find,
    LargeCalls,
    Load,
    check_model,
    is_quick,
    model_in_header,
    predict,
    warning_header,
)
from service.serving.inference_protocol.codec import (
    LENGTH_HEADER,
    OUTPUT,
    InferLimits,
    InferRequest,
    decode,
    encode,
    unpack,
)
from service.serving.inference_protocol.tensors import TEXT
from service.serving.map_cache import Served
from service.settings import MEGABYTE
from service.storage.records import PRODUCTION

JSON = "application/json"
WHOLE_NUMBER = re.compile("[0-9]{1,15}")


def inference_routes(
    find: Find,
    load: Load,
    server_version: str,
    limit_bytes: int,
    is_ready: Callable[[], Awaitable[bool]],
    large: LargeCalls,
    limit_json_bytes: int = 16 * MEGABYTE,
) -> list[Route]:
    """Return all routes of the protocol.

    ``find`` looks up a map in memory; ``load`` is called if it is not there. The middleware must
    limit bodies to ``limit_bytes`` and set ``scope["principal"]``, except for /v2 and /v2/health,
    which are public.
    """
    limits = InferLimits(limit_bytes, min(limit_bytes, limit_json_bytes))
    protocol = _Protocol(find, load, server_version, limits, is_ready, large)
    routes = [
        Route("/v2", protocol.server),
        Route("/v2/health/live", protocol.live),
        Route("/v2/health/ready", protocol.ready),
    ]
    for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        routes += [
            Route(model, protocol.model),
            Route(f"{model}/ready", protocol.model_ready),
            Route(f"{model}/infer", protocol.infer, methods=["POST"]),
        ]
    return routes


@dataclass(frozen=True)
class _Protocol:
    find: Find
    load: Load
    server_version: str
    limits: InferLimits
    is_ready: Callable[[], Awaitable[bool]]
    large: LargeCalls

    async def server(self, request: Request) -> Response:
        return _json(
            {
                "name": "calibrd",
                "version": self.server_version,
                "extensions": ["binary_tensor_data"],
            }
        )

    async def live(self, request: Request) -> Response:
        return _json({"live": True})

    async def ready(self, request: Request) -> Response:
        ready = await self.is_ready()
        return _json({"ready": ready}, 200 if ready else 503)

    async def model(self, request: Request) -> Response:
        served = await self.served(request)
        shape = [-1, served.map.k]
        inputs = [{"name": served.map.kind, "datatype": "FP32", "shape": shape}]
        if served.map.has_segments:
            inputs.append({"name": SEGMENTS, "datatype": TEXT, "shape": [-1]})
        return _json(
            {
                "name": served.calibrator,
                "versions": [str(served.number)],
                "platform": "calibrd",
                "inputs": inputs,
                "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": shape}],
            }
        )

    async def model_ready(self, request: Request) -> Response:
        served = await self.served(request)
        return _json({"name": served.calibrator, "ready": True})

    async def infer(self, request: Request) -> Response:
        principal: Principal = request.scope["principal"]
        check_scope(principal, Scope.PREDICT)
        header_length = _header_length(request)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        body = await request.body()
        served = await self.served(request)  # not before: slow clients must not keep maps in memory
        await take_turn(request.scope)
        if encoding != "identity":
            unpacked_bytes = min(self.limits.body, HIGHEST_RATIO * len(body))
            await hold_unpacked(request.scope, unpacked_bytes)
        json_length = len(body) if header_length is None else header_length
        # a small compressed body may unpack to a large one
        is_small = (
            len(body) <= INLINE_BYTES
            and json_length <= INLINE_JSON_BYTES
            and encoding == "identity"
        )

        async def read() -> InferRequest:
            if is_small:
                return decode(body, header_length, served, self.limits)
            return await self.large.run(
                principal, self._read, body, encoding, header_length, served
            )

        models = _models(request)
        infer_request = await read_body(request.scope, read, lambda found: found.answer_size)
        is_plain = is_small and infer_request.segments is None
        writes_json = not infer_request.binary
        if is_plain and is_quick(served, infer_request.values, writes_json=writes_json):
            response = _response(infer_request, served, models)
        else:
            response = await self.large.run(principal, _response, infer_request, served, models)
        end_work(request.scope)
        return response

    def _read(
        self, body: bytes, encoding: str, header_length: int | None, served: Served
    ) -> InferRequest:
        if encoding != "identity":
            body = unpack(body, encoding, self.limits.body)
        return decode(body, header_length, served, self.limits)

    async def served(self, request: Request) -> Served:
        principal: Principal = request.scope["principal"]
        check_scope(principal, Scope.PREDICT)
        name = request.path_params["name"]
        ref = request.path_params.get("version", PRODUCTION)
        return self.find(principal, name, ref) or await self.load(principal, name, ref)


def _response(infer_request: InferRequest, served: Served, models: list[str]) -> Response:
    stated = [*models, *([] if infer_request.model is None else [infer_request.model])]
    mismatch = check_model(served, stated, only_warn=infer_request.only_warn)
    found = predict(served.map, Arrays(infer_request.values, segments=infer_request.segments))
    content, json_length = encode(infer_request, found, served)
    if infer_request.binary:
        response = Response(content, media_type="application/octet-stream")
        response.headers[LENGTH_HEADER] = str(json_length)
    else:
        response = Response(content, media_type=JSON)
    response.raw_headers += map(warning_header, found.warnings)
    if mismatch is not None:
        response.raw_headers.append(warning_header(mismatch))
    return response


def _models(request: Request) -> list[str]:
    name = MODEL_HEADER.lower().encode()
    return [model_in_header(value) for key, value in request.headers.raw if key == name]


def _header_length(request: Request) -> int | None:
    text = request.headers.get(LENGTH_HEADER)
    if text is None:
        return None
    if not WHOLE_NUMBER.fullmatch(text):
        raise Malformed("bad_header", f"{LENGTH_HEADER} must be a non-negative integer")
    return int(text)


def _json(document: dict[str, object], status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type=JSON)
