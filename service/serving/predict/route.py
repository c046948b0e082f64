"""The predict route: raw ASGI, to keep its overhead small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from service.access.permissions import Principal, Scope
from service.datasets.formats import (
    Arrays,
    Format,
    Limits,
    encode,
    format_of,
    read_arrays,
)
from service.errors import NotAcceptable, Unsupported
from service.http import json_answer
from service.http.callers import check_scope
from service.http.middleware.body_memory import end_work, hold_unpacked, read_body
from service.http.middleware.fair_turns import take_turn
from service.names import check_name
from service.serving.apply_map import (
    INLINE_BYTES,
    INLINE_JSON_BYTES,
    INLINE_QUERY_BYTES,
    JSON_BYTES,
    Find,
    LargeCalls,
    Load,
    Prediction,
    check_answer,
    check_calculation,
    check_call_cost,
    check_evaluable,
    check_model,
    evaluation,
    is_quick,
    predict,
    top_classes,
    warning_header,
)
from service.serving.map_cache import Served
from service.serving.predict.request import (
    NOTHING,
    PredictRequest,
    SentHeaders,
    answer_format,
    read_headers,
    read_query,
)

PATH = "/v1/calibrators/{name}@{ref}/predict"
HEAD_BYTES = 64
# a block is serialised in about a millisecond
TOP_ROWS_BLOCK = 1 << 10
CLASS_BYTES = 8
TOP_ROW_BYTES = len('{"classes":[],"probabilities":[]},')

Headers = list[tuple[bytes, bytes]]


def predict_route(find: Find, load: Load, limits: Limits, large: LargeCalls) -> Route:
    """Return the route that applies maps.

    ``find`` looks up a map in memory; ``load`` is called if it is not there. The middleware must
    set ``scope["principal"]`` and limit bodies to ``limits.bytes``.
    """
    return Route(PATH, Predict(find, load, limits, large), methods=["GET", "POST"], name="predict")


@dataclass(frozen=True, eq=False)
class Predict:
    """An ASGI application for predict calls."""

    find: Find
    load: Load
    limits: Limits
    large: LargeCalls

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Respond with calibrated probabilities; errors are handled by the enclosing app."""
        check_scope(scope["principal"], Scope.PREDICT)
        headers, body = await self._answer(scope, receive)
        end_work(scope)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: AsgiScope, receive: Receive) -> tuple[Headers, bytes]:
        """Return the headers and the body of the response.

        The map is looked up after the body has arrived, and is released before the response is
        sent, so slow clients do not keep maps in memory.
        """
        is_post = scope["method"] == "POST"
        content = await _whole_body(receive) if is_post else b""
        served = await self._served(scope)
        query, sent = scope["query_string"], read_headers(scope["headers"])
        if not is_post and len(query) > INLINE_QUERY_BYTES:
            return await self.large.run(
                scope["principal"], self._respond_to_long_query, served, query, sent
            )
        request = NOTHING if is_post and not query else read_query(query, with_values=not is_post)
        mismatch = _mismatch(served, request, sent)
        if request.values is not None:
            headers, body = await self._respond(scope, served, request.values, request, sent)
        else:
            headers, body = await self._respond_to_body(scope, served, content, request, sent)
        if mismatch is not None:
            headers.append(warning_header(mismatch))
        return headers, body

    async def _served(self, scope: AsgiScope) -> Served:
        principal: Principal = scope["principal"]
        place = scope["path_params"]
        name, ref = place["name"], place["ref"]
        served = self.find(principal, name, ref)
        if served is not None:
            return served
        check_name(name, "a calibrator")
        check_name(ref, "a version or an alias")
        return await self.load(principal, name, ref)

    async def _respond_to_body(
        self,
        scope: AsgiScope,
        served: Served,
        body: bytes,
        request: PredictRequest,
        sent: SentHeaders,
    ) -> tuple[Headers, bytes]:
        principal: Principal = scope["principal"]
        await take_turn(scope)
        format = format_of(sent.content_type, body[:HEAD_BYTES])
        if format.codec.encode is None:
            raise Unsupported(
                "unsupported_media_type",
                f"{format} is for datasets only: send JSON, npy, npz or safetensors",
            )
        limit = self.limits.of(format)
        if format.codec.unpacked_size is not None and body:
            await hold_unpacked(scope, format.codec.unpacked_size(body, limit))

        async def read() -> Arrays:
            if _is_read_quickly(format, body):
                return read_arrays(format, body, limit=limit)
            return await self.large.run(principal, read_arrays, format, body, limit=limit)

        arrays = await read_body(
            scope, read, lambda found: self._checked_size(served, found, request, sent, format)
        )
        return await self._respond(scope, served, arrays, request, sent, format)

    async def _respond(
        self,
        scope: AsgiScope,
        served: Served,
        arrays: Arrays,
        request: PredictRequest,
        sent: SentHeaders,
        format: Format = Format.JSON,
    ) -> tuple[Headers, bytes]:
        """Respond on the event loop if that is quick, otherwise on another thread."""
        is_long = (
            arrays.labels is not None
            or arrays.segments is not None
            or arrays.features is not None
            or request.interval is not None
        )
        # Accept may request JSON: assuming that it does is cheaper than parsing the header
        writes_json = format is Format.JSON or bool(sent.accept) or request.top is not None
        if is_long or not is_quick(served, arrays.values, writes_json=writes_json, top=request.top):
            return await self.large.run(
                scope["principal"], self._response, served, arrays, request, sent, format
            )
        return self._response(served, arrays, request, sent, format)

    def _respond_to_long_query(
        self, served: Served, query: bytes, sent: SentHeaders
    ) -> tuple[Headers, bytes]:
        """Respond to a GET request with a long row."""
        request = read_query(query, with_values=True)
        mismatch = _mismatch(served, request, sent)
        assert request.values is not None  # noqa: S101 - read_query raises otherwise
        headers, body = self._response(served, request.values, request, sent, Format.JSON)
        if mismatch is not None:
            headers.append(warning_header(mismatch))
        return headers, body

    def _checked_size(
        self,
        served: Served,
        arrays: Arrays,
        request: PredictRequest,
        sent: SentHeaders,
        format: Format,
    ) -> int:
        """Return the approximate response size in bytes; raise TooLarge if it exceeds the limit."""
        k = served.map.k
        check_call_cost(served, arrays.values)
        output_format = _output_format(arrays, request, sent, format)
        if arrays.labels is not None:
            check_evaluable(len(arrays.values) if arrays.values.ndim > 1 else 1, k)
        is_choice = output_format is Format.JSON and arrays.labels is None
        advice = "send fewer rows, or accept npy or npz" if is_choice else "send fewer rows"
        size = answer_size(k, arrays, request, output_format)
        check_answer(size, self.limits.of(output_format), advice)
        if request.top is not None:  # all classes are computed before most are dropped
            check_calculation(
                answer_size(k, arrays, replace(request, top=None), Format.NPY), self.limits.bytes
            )
        return size

    def _response(
        self,
        served: Served,
        arrays: Arrays,
        request: PredictRequest,
        sent: SentHeaders,
        format: Format,
    ) -> tuple[Headers, bytes]:
        """Return the headers and body of the response to values sent in ``format``."""
        output_format = _output_format(arrays, request, sent, format)
        found = predict(served.map, arrays, request.dtype, request.interval)
        probabilities = found.probabilities
        if request.dtype is not None:
            probabilities = probabilities.astype(request.dtype, copy=False)
        answer = {"probabilities": probabilities}
        if request.top is not None:
            classes, probabilities = top_classes(probabilities, request.top)
            answer = {"classes": classes, "probabilities": probabilities}
        if found.band is not None and output_format is not Format.JSON:
            answer |= dict(zip(("low", "high"), found.band, strict=True))
        if output_format is not Format.JSON:
            body = encode(output_format, answer)
        else:
            body = _document(served, answer, arrays, found, request.interval)
        return _headers(served, found, output_format, len(body)), body


def _mismatch(served: Served, request: PredictRequest, sent: SentHeaders) -> str | None:
    models = sent.models if request.model is None else (*sent.models, request.model)
    return check_model(served, models, only_warn=request.only_warn)


def _is_read_quickly(format: Format, body: bytes) -> bool:
    """Return whether a body is decoded faster on the event loop than on another thread."""
    is_small = len(body) <= INLINE_BYTES and format.codec.unpacked_size is None
    return is_small and format.codec.parsed_size(body) <= INLINE_JSON_BYTES


async def _whole_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        if not message.get("more_body", False):
            return b"".join([*parts, part]) if parts else part
        parts.append(part)


def answer_size(
    classes: int, arrays: Arrays, request: PredictRequest, output_format: Format
) -> int:
    """Return the approximate size of the response in bytes, for values that fit the map."""
    values = arrays.values
    # rows for a map of two classes have one number or two
    rows = len(values) if classes == 2 else values.size // classes
    if request.dtype is not None:
        number = 4 if request.dtype is np.float32 else 8
    else:
        number = 4 if values.dtype.kind == "f" and values.itemsize < 8 else 8
    in_json = output_format is Format.JSON
    if in_json:
        number = JSON_BYTES[number]
    band = 0 if request.interval is None else 2 * rows * (JSON_BYTES[8] if in_json else 8)
    if request.top is None:
        return rows * classes * number + band
    row = min(request.top, classes) * (CLASS_BYTES + number)
    return rows * (row + TOP_ROW_BYTES if in_json else row) + band


def _output_format(
    arrays: Arrays, request: PredictRequest, sent: SentHeaders, format: Format
) -> Format:
    is_several = request.top is not None or request.interval is not None
    in_json = arrays.labels is not None or (is_several and not format.codec.is_named)
    output_format = answer_format(sent.accept, Format.JSON if in_json else format)
    if arrays.labels is not None and output_format is not Format.JSON:
        raise NotAcceptable(
            "json_only", f"calls with labels return a JSON report: accept {Format.JSON.media_type}"
        )
    if is_several and not output_format.codec.is_named:
        raise NotAcceptable(
            "one_array_only",
            f"{output_format} holds only one array, but top and interval need several: accept npz, "
            "safetensors or JSON",
        )
    return output_format


def _document(
    served: Served,
    answer: dict[str, Any],
    arrays: Arrays,
    found: Prediction,
    level: float | None,
) -> bytes:
    document: dict[str, Any] = {
        "calibrator": served.calibrator,
        "version": served.number,
        "sha256": served.sha256,
    }
    if found.band is not None:
        low, high = found.band
        document["interval"] = {"level": level, "low": low, "high": high}
    if arrays.labels is not None:
        document["evaluation"] = evaluation(found.probabilities, arrays.labels, arrays.segments)
    probabilities = answer["probabilities"]
    if "classes" not in answer:
        return json_answer.write(document, probabilities=json_answer.blocks(probabilities))
    return json_answer.write(document, top=_top_rows(answer["classes"], probabilities))


def _top_rows(
    classes: NDArray[Any], probabilities: NDArray[Any]
) -> Iterator[list[dict[str, NDArray[Any]]]]:
    """Yield blocks of the response's rows, each with its most probable classes."""
    for start in range(0, len(classes), TOP_ROWS_BLOCK):
        block = slice(start, start + TOP_ROWS_BLOCK)
        rows = zip(classes[block], probabilities[block], strict=True)
        yield [{"classes": one, "probabilities": shares} for one, shares in rows]


def _headers(served: Served, found: Prediction, format: Format, length: int) -> Headers:
    headers = [
        (b"content-length", b"%d" % length),
        *_same_headers(served.calibrator, served.number, served.sha256, format),
    ]
    if found.warnings:
        headers += map(warning_header, found.warnings)
    return headers


@lru_cache(maxsize=256)
def _same_headers(calibrator: str, number: int, sha256: str, format: Format) -> Headers:
    """Return the headers shared by all responses of a version in one format."""
    return [
        (b"content-type", format.media_type.encode()),
        (b"calibrd-version", f"{calibrator}@{number}".encode()),
        (b"calibrd-map", f"sha256:{sha256}".encode()),
    ]
