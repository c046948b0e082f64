"""Conversion of Open Inference Protocol bodies to arrays and back.

A body is JSON alone, or JSON followed by raw little-endian tensors. In the second case, the header
``Inference-Header-Content-Length`` is the length of the JSON. Memory for numbers is only allocated
once the shape, multiplied in Python integers, is known to match the bytes received.
"""

from __future__ import annotations

import reprlib
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from calibrators.segments import Segments
from service.concurrency.thread_pools import parsing_turn
from service.errors import Malformed, TooLarge, Unsupported
from service.http import json_answer
from service.http.json_body import check_cost, check_depth
from service.serving.apply_map import JSON_BYTES, Prediction, check_answer, check_call_cost
from service.serving.inference_protocol import fields
from service.serving.inference_protocol.inputs import read_inputs
from service.serving.map_cache import Served

LENGTH_HEADER = "Inference-Header-Content-Length"
OUTPUT = "probabilities"


@dataclass(frozen=True)
class InferLimits:
    """Size limits in bytes: ``body`` on bodies, packed and unpacked, and ``json`` on their JSON."""

    body: int
    json: int


@dataclass(frozen=True)
class InferRequest:
    """Values (n, columns), their segments and model, and the format and size of the response."""

    id: str | None
    values: NDArray[Any]
    segments: NDArray[Any] | Segments | None
    binary: bool
    model: str | None
    only_warn: bool
    answer_size: int


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """Decompress a body with ``Content-Encoding`` gzip or deflate, to at most ``limit`` bytes."""
    if encoding not in ("gzip", "deflate"):
        raise Unsupported(
            "unsupported_encoding",
            f"Content-Encoding must be gzip, deflate or absent, got {reprlib.repr(encoding)}",
        )
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise Malformed("bad_encoding", f"the body is not valid {encoding}") from error
    if len(unpacked) > limit:
        raise TooLarge(
            "body_too_large", f"the body unpacks to more than {limit} bytes: send fewer rows"
        )
    if not unpacker.eof or unpacker.unused_data:
        raise Malformed("bad_encoding", f"the body must be exactly one complete {encoding} stream")
    return unpacked


def decode(
    body: bytes, header_length: int | None, served: Served, limits: InferLimits
) -> InferRequest:
    """Decode an infer request; ``header_length`` is the length of its JSON, None if that is all."""
    length = len(body) if header_length is None else header_length
    if length > len(body):
        raise Malformed(
            "bad_tensor_length",
            f"{LENGTH_HEADER} is {length}, but the body has only {len(body)} bytes",
        )
    if length > limits.json:
        raise TooLarge(
            "body_too_large",
            f"the JSON has {length} bytes, but at most {limits.json} are allowed: use binary "
            "tensors",
        )
    with parsing_turn(length):
        document = _parse(memoryview(body)[:length])
    parameters = fields.parameters(document, "parameters")
    binary = _wants_binary(document, parameters)

    def answer_size(values: NDArray[Any]) -> int:
        number = 4 if values.dtype in (np.float32, np.float16) else 8
        return len(values) * served.map.k * (number if binary else JSON_BYTES[number])

    def check(values: NDArray[Any]) -> None:
        check_call_cost(served, values)
        advice = "send fewer rows" if binary else "send fewer rows, or set binary_data_output"
        check_answer(answer_size(values), limits.body if binary else limits.json, advice)

    values, segments = read_inputs(document, memoryview(body)[length:], served, check)
    return InferRequest(
        fields.optional(document, "id", str),
        values,
        segments,
        binary,
        fields.optional(parameters, "parameters.model", str),
        _only_warns(parameters),
        answer_size(values),
    )


def encode(request: InferRequest, found: Prediction, served: Served) -> tuple[bytes, int]:
    """Return the body of the response, and the length of its JSON in bytes."""
    probabilities = found.probabilities
    array = np.ascontiguousarray(probabilities, probabilities.dtype.newbyteorder("<"))
    output: dict[str, Any] = {
        "name": OUTPUT,
        "datatype": "FP32" if array.itemsize == 4 else "FP64",
        "shape": list(array.shape),
    }
    if request.binary:
        output["parameters"] = {"binary_data_size": array.nbytes}
    parameters = {"calibrator_version": served.number, "sha256": served.sha256}
    if found.warnings:  # the protocol's clients do not show headers
        parameters["warning"] = "\n".join(found.warnings)
    document = {
        "model_name": served.calibrator,
        "model_version": str(served.number),
        "parameters": parameters,
    }
    if request.id is not None:
        document["id"] = request.id
    if request.binary:
        text = orjson.dumps({**document, "outputs": [output]})
        return b"".join((text, array.data)), len(text)
    output_json = json_answer.write(output, data=json_answer.blocks(array.ravel()))
    text = orjson.dumps({**document, "outputs": [orjson.Fragment(output_json)]})
    return text, len(text)


def _parse(text: memoryview) -> dict[str, Any]:
    check_cost(text)
    check_depth(text)
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed(
            "malformed_json",
            f"the request's JSON cannot be read: {error.msg} at character {error.pos} (NaN and "
            "Infinity are not JSON: send -inf in a binary tensor)",
        ) from error
    if type(document) is not dict:
        raise Malformed(
            "malformed_json", "the request's JSON must be an object with a list of inputs"
        )
    return document


def _only_warns(parameters: dict[str, Any]) -> bool:
    """Return whether a model mismatch is a warning rather than an error."""
    choice = fields.optional(parameters, "parameters.fingerprint", str) or "refuse"
    if choice not in ("refuse", "warn"):
        raise Malformed(
            "bad_field",
            f"parameters.fingerprint must be refuse or warn, got {reprlib.repr(choice)}",
        )
    return choice == "warn"


def _wants_binary(document: dict[str, Any], parameters: dict[str, Any]) -> bool:
    binary = fields.optional(parameters, "parameters.binary_data_output", bool) or False
    outputs = fields.optional(document, "outputs", list) or []
    if len(outputs) > 1 or any(type(one) is not dict for one in outputs):
        raise Malformed(
            "wrong_outputs",
            f"outputs must be a list of at most one object, named {OUTPUT!r}, "
            f"got {len(outputs)} entries",
        )
    for output in outputs:
        name = fields.required(output, "outputs[0].name", str)
        if name != OUTPUT:
            raise Malformed(
                "unknown_output", f"the only output is {OUTPUT!r}, got {reprlib.repr(name)}"
            )
        parameters = fields.parameters(output, "outputs[0].parameters")
        chosen = fields.optional(parameters, "outputs[0].parameters.binary_data", bool)
        if chosen is not None:
            binary = chosen
    return binary
