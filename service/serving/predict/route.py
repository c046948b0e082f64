"""The predict route: raw ASGI, since every microsecond of it is a client's."""

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
# they are written in about a millisecond
TOP_ROWS_BLOCK = 1 << 10
CLASS_BYTES = 8
TOP_ROW_BYTES = len('{"classes":[],"probabilities":[]},')

Headers = list[tuple[bytes, bytes]]


def predict_route(find: Find, load: Load, limits: Limits, large: LargeCalls) -> Route:
    """The route that applies maps.

    ``find`` looks a map up in memory, ``load`` is asked when it has none. The caller is expected in
    ``scope["principal"]``, and a body of at most ``limits.bytes``.
    """
    return Route(PATH, Predict(find, load, limits, large), methods=["GET", "POST"], name="predict")


@dataclass(frozen=True, eq=False)
class Predict:
    """An ASGI application that answers one predict call."""

    find: Find
    load: Load
    limits: Limits
    large: LargeCalls

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer with calibrated probabilities; errors are left to the application."""
        served = await self._served(scope)
        is_post = scope["method"] == "POST"
        query = scope["query_string"]
        sent = read_headers(scope["headers"])
        if not is_post and len(query) > INLINE_QUERY_BYTES:
            principal: Principal = scope["principal"]
            headers, body = await self.large.run(principal, self._asked_row, served, query, sent)
        else:
            asked = NOTHING if is_post and not query else read_query(query, with_values=not is_post)
            mismatch = _mismatch(served, asked, sent)
            if asked.values is not None:
                headers, body = await self._answered(scope, served, asked.values, asked, sent)
            else:
                headers, body = await self._posted(served, asked, sent, scope, receive)
            if mismatch is not None:
                headers.append(warning_header(mismatch))
        end_work(scope)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _served(self, scope: AsgiScope) -> Served:
        principal: Principal = scope["principal"]
        check_scope(principal, Scope.PREDICT)
        place = scope["path_params"]
        name, ref = place["name"], place["ref"]
        served = self.find(principal, name, ref)
        if served is not None:
            return served
        check_name(name, "a calibrator")
        check_name(ref, "a version or an alias")
        return await self.load(principal, name, ref)

    async def _posted(
        self,
        served: Served,
        asked: PredictRequest,
        sent: SentHeaders,
        scope: AsgiScope,
        receive: Receive,
    ) -> tuple[Headers, bytes]:
        principal: Principal = scope["principal"]
        body = await _whole_body(receive)
        await take_turn(scope)
        format = format_of(sent.content_type, body[:HEAD_BYTES])
        if format.codec.encode is None:
            raise Unsupported(
                "unsupported_media_type",
                f"{format} is read for datasets only: send JSON, npy, npz or safetensors",
            )
        limit = self.limits.of(format)
        if format.codec.unpacked_size is not None and body:
            await hold_unpacked(scope, format.codec.unpacked_size(body, limit))

        async def read() -> Arrays:
            if _is_read_quickly(format, body):
                return read_arrays(format, body, limit=limit)
            return await self.large.run(principal, read_arrays, format, body, limit=limit)

        arrays = await read_body(
            scope, read, lambda found: self._checked_size(served, found, asked, sent, format)
        )
        return await self._answered(scope, served, arrays, asked, sent, format)

    async def _answered(
        self,
        scope: AsgiScope,
        served: Served,
        arrays: Arrays,
        asked: PredictRequest,
        sent: SentHeaders,
        format: Format = Format.JSON,
    ) -> tuple[Headers, bytes]:
        """Answer on the event loop if that is quick."""
        is_long = (
            arrays.labels is not None or arrays.segments is not None or asked.interval is not None
        )
        # what is accepted may ask for JSON: to look is dearer than to assume it
        writes_json = format is Format.JSON or bool(sent.accept) or asked.top is not None
        if is_long or not is_quick(served, arrays.values, writes_json=writes_json, top=asked.top):
            return await self.large.run(
                scope["principal"], self._answer, served, arrays, asked, sent, format
            )
        return self._answer(served, arrays, asked, sent, format)

    def _asked_row(self, served: Served, query: bytes, sent: SentHeaders) -> tuple[Headers, bytes]:
        """Answer a GET whose row is long."""
        asked = read_query(query, with_values=True)
        mismatch = _mismatch(served, asked, sent)
        assert asked.values is not None  # noqa: S101 - read_query has raised otherwise
        headers, body = self._answer(served, asked.values, asked, sent, Format.JSON)
        if mismatch is not None:
            headers.append(warning_header(mismatch))
        return headers, body

    def _checked_size(
        self,
        served: Served,
        arrays: Arrays,
        asked: PredictRequest,
        sent: SentHeaders,
        format: Format,
    ) -> int:
        """Return about how many bytes the answer will have; raise TooLarge if that is too much."""
        k = served.map.k
        check_call_cost(served, arrays.values)
        written = _written_format(arrays, asked, sent, format)
        if arrays.labels is not None:
            check_evaluable(len(arrays.values) if arrays.values.ndim > 1 else 1, k)
        is_choice = written is Format.JSON and arrays.labels is None
        advice = "send fewer rows, or accept npy or npz" if is_choice else "send fewer rows"
        size = answer_size(k, arrays, asked, written)
        check_answer(size, self.limits.of(written), advice)
        if asked.top is not None:  # all classes are calculated before most are left out
            check_calculation(
                answer_size(k, arrays, replace(asked, top=None), Format.NPY), self.limits.bytes
            )
        return size

    def _answer(
        self,
        served: Served,
        arrays: Arrays,
        asked: PredictRequest,
        sent: SentHeaders,
        format: Format,
    ) -> tuple[Headers, bytes]:
        """The headers and the body of the answer to values sent in ``format``."""
        written = _written_format(arrays, asked, sent, format)
        found = predict(served.map, arrays, asked.dtype, asked.interval)
        probabilities = found.probabilities
        if asked.dtype is not None:
            probabilities = probabilities.astype(asked.dtype, copy=False)
        answer = {"probabilities": probabilities}
        if asked.top is not None:
            classes, probabilities = top_classes(probabilities, asked.top)
            answer = {"classes": classes, "probabilities": probabilities}
        if found.band is not None and written is not Format.JSON:
            answer |= dict(zip(("low", "high"), found.band, strict=True))
        if written is not Format.JSON:
            body = encode(written, answer)
        else:
            body = _document(served, answer, arrays, found, asked.interval)
        return _headers(served, found, written, len(body)), body


def _mismatch(served: Served, asked: PredictRequest, sent: SentHeaders) -> str | None:
    models = sent.models if asked.model is None else (*sent.models, asked.model)
    return check_model(served, models, only_warn=asked.only_warn)


def _is_read_quickly(format: Format, body: bytes) -> bool:
    """Return whether a body is decoded in less time than a change of threads is worth."""
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


def answer_size(classes: int, arrays: Arrays, asked: PredictRequest, written: Format) -> int:
    """About how many bytes the answer will have, if the values are such as the map takes."""
    values = arrays.values
    # a map of two classes takes one number or two for a row
    rows = len(values) if classes == 2 else values.size // classes
    if asked.dtype is not None:
        number = 4 if asked.dtype is np.float32 else 8
    else:
        number = 4 if values.dtype.kind == "f" and values.itemsize < 8 else 8
    in_json = written is Format.JSON
    if in_json:
        number = JSON_BYTES[number]
    band = 0 if asked.interval is None else 2 * rows * (JSON_BYTES[8] if in_json else 8)
    if asked.top is None:
        return rows * classes * number + band
    row = min(asked.top, classes) * (CLASS_BYTES + number)
    return rows * (row + TOP_ROW_BYTES if in_json else row) + band


def _written_format(
    arrays: Arrays, asked: PredictRequest, sent: SentHeaders, format: Format
) -> Format:
    is_several = asked.top is not None or asked.interval is not None
    in_json = arrays.labels is not None or (is_several and not format.codec.is_named)
    written = answer_format(sent.accept, Format.JSON if in_json else format)
    if arrays.labels is not None and written is not Format.JSON:
        raise NotAcceptable(
            "json_only", f"with labels the answer is a report: accept {Format.JSON.media_type}"
        )
    if is_several and not written.codec.is_named:
        raise NotAcceptable(
            "one_array_only",
            f"{written} holds one array, top and interval need several: accept npz, safetensors or "
            "JSON",
        )
    return written


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
    """The rows of an answer with the most probable classes, in blocks."""
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
    """The headers that are the same for all answers of a version in one format."""
    return [
        (b"content-type", format.media_type.encode()),
        (b"calibrd-version", f"{calibrator}@{number}".encode()),
        (b"calibrd-map", f"sha256:{sha256}".encode()),
    ]
