"""Bodies of the Open Inference Protocol to arrays and back.

A body is JSON alone, or JSON followed by raw little-endian tensors; then the header
``Inference-Header-Content-Length`` says where the JSON ends. Nothing is allocated before the shape,
multiplied out in Python integers, is known to agree with the bytes that came.
"""

from __future__ import annotations

import reprlib
import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from calibrators.blocks import Floats
from service.api.applying import JSON_BYTES, check_answer
from service.api.inference_protocol.tensors import DATATYPES, from_bytes, from_json
from service.core.serving import Served
from service.errors import Invalid, Malformed, TooLarge, Unsupported

LENGTH_HEADER = "Inference-Header-Content-Length"
OUTPUT = "probabilities"
ANSWERED_IN_FP32 = ("FP32", "FP16", "BF16")
NOUNS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
    bool: "true or false",
}

Value = TypeVar("Value")


@dataclass(frozen=True)
class InferLimits:
    """The most bytes of a request (as sent, unpacked, and answered), and of its JSON."""

    body: int
    json: int


@dataclass(frozen=True)
class InferRequest:
    """The input's values (n, columns), whose they are, and how the answer is wanted."""

    id: str | None
    values: NDArray[Any]
    binary: bool
    model: str | None
    only_warn: bool


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """The body behind a ``Content-Encoding`` of gzip or deflate, of at most ``limit`` bytes."""
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
        raise Malformed("bad_encoding", f"the body is not one whole {encoding} stream")
    return unpacked


def decode(
    body: bytes, header_length: int | None, served: Served, limits: InferLimits
) -> InferRequest:
    """Read an infer request for a map; ``header_length`` is where its JSON ends, None if alone."""
    length = len(body) if header_length is None else header_length
    if length > len(body):
        raise Malformed(
            "wrong_length",
            f"{LENGTH_HEADER} says {length} bytes, the body has {len(body)}",
        )
    if length > limits.json:
        raise TooLarge(
            "body_too_large",
            f"the JSON has {length} bytes, at most {limits.json} are read: send binary tensors",
        )
    document = _parse(memoryview(body)[:length])
    tensor = _only_input(document, served)
    datatype = _datatype(tensor)
    shape = _shape(tensor, served)
    values = _values(tensor, datatype, shape, memoryview(body)[length:])
    parameters = _parameters(document, "parameters")
    binary = _wants_binary(document, parameters)
    number = 4 if datatype in ANSWERED_IN_FP32 else 8
    size = shape[0] * served.map.k * (number if binary else JSON_BYTES[number])
    advice = "send fewer rows" if binary else "send fewer rows, or ask for binary_data_output"
    check_answer(size, limits.body, advice)
    return InferRequest(
        _field(document, "id", str),
        values.reshape(shape),
        binary,
        _field(parameters, "parameters.model", str),
        _only_warns(parameters),
    )


def encode(request: InferRequest, probabilities: Floats, served: Served) -> tuple[bytes, int]:
    """The answer's body, and how much of it is JSON."""
    array = np.ascontiguousarray(probabilities, probabilities.dtype.newbyteorder("<"))
    output: dict[str, Any] = {
        "name": OUTPUT,
        "datatype": "FP32" if array.itemsize == 4 else "FP64",
        "shape": list(array.shape),
    }
    if request.binary:
        output["parameters"] = {"binary_data_size": array.nbytes}
    else:
        output["data"] = array.ravel()
    document = {
        "model_name": served.calibrator,
        "model_version": str(served.number),
        "parameters": {"calibrator_version": served.number, "sha256": served.sha256},
        "outputs": [output],
    }
    if request.id is not None:
        document["id"] = request.id
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join((text, array.data)) if request.binary else text), len(text)


def _parse(text: memoryview) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed(
            "malformed_json",
            f"the request's JSON cannot be read, {error.msg} at character {error.pos} (NaN and "
            "Infinity are not JSON: -inf can be sent in a binary tensor only)",
        ) from error
    if type(document) is not dict:
        raise Malformed(
            "malformed_json", "the request's JSON must be an object with a list of inputs"
        )
    return document


def _only_input(document: dict[str, Any], served: Served) -> dict[str, Any]:
    expected = served.map.kind
    inputs = _required(document, "inputs", list)
    if len(inputs) != 1 or type(inputs[0]) is not dict:
        raise Malformed(
            "wrong_inputs",
            f"inputs must be a list of one tensor named {expected!r}, got {len(inputs)} entries",
        )
    tensor: dict[str, Any] = inputs[0]
    name = _required(tensor, "inputs[0].name", str)
    if name != expected:
        raise Malformed(
            "unknown_input",
            f"calibrator {served.calibrator!r} version {served.number} has one input, "
            f"{expected!r}, got {reprlib.repr(name)}",
        )
    return tensor


def _datatype(tensor: dict[str, Any]) -> str:
    datatype = _required(tensor, "inputs[0].datatype", str)
    if datatype not in DATATYPES:
        raise Malformed(
            "bad_datatype",
            f"inputs[0].datatype must be one of {', '.join(DATATYPES)}, "
            f"got {reprlib.repr(datatype)}",
        )
    return datatype


def _shape(tensor: dict[str, Any], served: Served) -> tuple[int, int]:
    shape, k = _required(tensor, "inputs[0].shape", list), served.map.k
    if len(shape) != 2 or any(type(one) is not int or one < 1 for one in shape):
        raise Malformed(
            "bad_shape",
            f"inputs[0].shape must be [n, {k}] with n at least 1, got {reprlib.repr(shape)}",
        )
    rows, columns = shape
    if columns != k and not (columns == 1 and k == 2):
        raise Invalid(
            "wrong_classes",
            f"calibrator {served.calibrator!r} version {served.number} was fitted on {k} classes, "
            f"got {columns} columns: inputs[0].shape must be [n, {k}]",
        )
    return rows, columns


def _values(
    tensor: dict[str, Any], datatype: str, shape: tuple[int, int], tail: memoryview
) -> NDArray[Any]:
    parameters = _parameters(tensor, "inputs[0].parameters")
    size = _field(parameters, "inputs[0].parameters.binary_data_size", int)
    if size is None:
        if tail:
            raise Malformed(
                "wrong_length",
                f"{len(tail)} bytes follow the JSON, but no input has the parameter "
                "binary_data_size",
            )
        return from_json(_required(tensor, "inputs[0].data", list), datatype, shape)
    if tensor.get("data") is not None:
        raise Malformed("bad_field", "an input has either data or binary_data_size, not both")
    count = shape[0] * shape[1]
    expected = count * DATATYPES[datatype].itemsize
    if not size == expected == len(tail):
        raise Malformed(
            "wrong_length",
            f"{count} values of {datatype} are {expected} bytes, but binary_data_size is {size} "
            f"and {len(tail)} bytes follow the JSON ({LENGTH_HEADER} says where it ends)",
        )
    return from_bytes(tail, datatype)


def _only_warns(parameters: dict[str, Any]) -> bool:
    """Whether another model than the map's is warned of, and not refused."""
    choice = _field(parameters, "parameters.fingerprint", str) or "refuse"
    if choice not in ("refuse", "warn"):
        raise Malformed(
            "bad_field",
            f"parameters.fingerprint must be refuse or warn, got {reprlib.repr(choice)}",
        )
    return choice == "warn"


def _wants_binary(document: dict[str, Any], parameters: dict[str, Any]) -> bool:
    binary = _field(parameters, "parameters.binary_data_output", bool) or False
    outputs = _field(document, "outputs", list) or []
    if len(outputs) > 1 or any(type(one) is not dict for one in outputs):
        raise Malformed(
            "wrong_outputs",
            f"outputs must be a list of one object that names {OUTPUT!r}, "
            f"got {len(outputs)} entries",
        )
    for output in outputs:
        name = _required(output, "outputs[0].name", str)
        if name != OUTPUT:
            raise Malformed(
                "unknown_output", f"the only output is {OUTPUT!r}, got {reprlib.repr(name)}"
            )
        parameters = _parameters(output, "outputs[0].parameters")
        chosen = _field(parameters, "outputs[0].parameters.binary_data", bool)
        if chosen is not None:
            binary = chosen
    return binary


def _parameters(owner: dict[str, Any], path: str) -> dict[str, Any]:
    """The parameters of a tensor or request; unknown ones are ignored, as the protocol has it."""
    parameters = _field(owner, path, dict) or {}
    for name in ("shared_memory_region", "classification"):
        if name in parameters:
            raise Malformed(
                "not_offered", f"{path}.{name} belongs to an extension that is not offered here"
            )
    return parameters


def _field(owner: dict[str, Any], path: str, kind: type[Value]) -> Value | None:
    """The value at the end of a path, None if it is absent or null."""
    value = owner.get(path.rpartition(".")[2])
    if value is not None and type(value) is not kind:
        raise Malformed("bad_field", f"{path} must be {NOUNS[kind]}, got {reprlib.repr(value)}")
    return value


def _required(owner: dict[str, Any], path: str, kind: type[Value]) -> Value:
    value = _field(owner, path, kind)
    if value is None:
        raise Malformed("missing_field", f"{path} is missing: it must be {NOUNS[kind]}")
    return value
