"""The OpenAPI paths of the protocol, written by hand because its routes are plain Starlette."""

from __future__ import annotations

from typing import Any

from service.datasets.formats.segment_names import SEGMENTS
from service.serving.apply_map import MODEL_HEADER
from service.serving.inference_protocol.codec import LENGTH_HEADER
from service.serving.inference_protocol.tensors import DATATYPES, TEXT

Plain = dict[str, Any]

NAME = "resnet50-prod"
VERSION = "3"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

ERRORS = {
    "400": (
        "The request cannot be read: invalid JSON, field, datatype, name or number of bytes",
        "inputs[0].data must contain 6 values for the shape [2, 3], got 3",
    ),
    "401": ("The key is missing or invalid", "send a valid key"),
    "403": ("The key lacks the predict scope", "this needs a key with the predict scope"),
    "404": ("No such calibrator, alias or version", "there is no calibrator 'resnet50-prod'"),
    "408": ("The body did not arrive in time", "the body did not arrive in time"),
    "409": (
        "The map was fitted for another model",
        "resnet50-prod@3 was fitted for 'resnet50:v1', but the caller's model is 'resnet50:v2': "
        "send values from that version's model, or use fingerprint=warn",
    ),
    "413": (
        "The request is too large, or the response would be",
        "the body is larger than the 33554432 bytes allowed here",
    ),
    "415": (
        "The Content-Encoding is not supported",
        "Content-Encoding must be gzip, deflate or absent, got 'br'",
    ),
    "422": (
        "The values are invalid, or have the wrong number of classes",
        "logits must not be NaN (1 invalid row, first row 1)",
    ),
    "503": (
        "A component of the service is unavailable",
        "the database is not responding: try again",
    ),
}


def _object(*required: str, **properties: Plain) -> Plain:
    return {"type": "object", "properties": properties, "required": list(required)}


def _or_null(schema: Plain) -> Plain:
    return {**schema, "type": [schema["type"], "null"]}


def _list_of(items: Plain, **rules: int) -> Plain:
    return {"type": "array", "items": items, **rules}


STRING: Plain = {"type": "string"}
NUMBER: Plain = {"type": "number"}
CELL: Plain = {"type": ["number", "string"]}
BOOLEAN: Plain = {"type": "boolean"}
COUNT: Plain = {"type": "integer", "minimum": 0}
ERROR = _object("error", error=STRING)
DECLARED = _object(
    "name", "datatype", "shape", name=STRING, datatype=STRING, shape=_list_of({"type": "integer"})
)
INPUT = _object(
    "name",
    "datatype",
    "shape",
    name={"type": "string", "enum": ["logits", "probabilities", SEGMENTS]},
    datatype={"type": "string", "enum": [*DATATYPES, TEXT]},
    shape=_list_of({"type": "integer", "minimum": 1}, minItems=1, maxItems=2),
    parameters=_or_null(_object(binary_data_size=_or_null(COUNT))),
    data=_or_null(_list_of({"oneOf": [CELL, _list_of(CELL)]})),
)
OUTPUT = _object(
    "name",
    name={"type": "string", "enum": ["probabilities"]},
    parameters=_or_null(_object(binary_data=_or_null(BOOLEAN))),
)
REQUEST = _object(
    "inputs",
    id=_or_null(STRING),
    inputs=_list_of(INPUT, minItems=1, maxItems=2),
    outputs=_or_null(_list_of(OUTPUT, maxItems=1)),
    parameters=_or_null(
        _object(
            binary_data_output=_or_null(BOOLEAN),
            model=_or_null({"type": "string", "minLength": 1}),
            fingerprint={"type": ["string", "null"], "enum": ["refuse", "warn", None]},
        )
    ),
)
ANSWER = _object(
    "model_name",
    "model_version",
    "parameters",
    "outputs",
    id=STRING,
    model_name=STRING,
    model_version=STRING,
    parameters=_object(
        "calibrator_version",
        "sha256",
        calibrator_version={"type": "integer"},
        sha256=STRING,
        warning=STRING,
    ),
    outputs=_list_of(
        _object(
            "name",
            "datatype",
            "shape",
            name=STRING,
            datatype={"type": "string", "enum": ["FP32", "FP64"]},
            shape=_list_of(COUNT),
            data=_list_of(NUMBER),
            parameters=_object(binary_data_size=COUNT),
        )
    ),
)
MODEL = _object(
    "name",
    "versions",
    "platform",
    "inputs",
    "outputs",
    name=STRING,
    versions=_list_of(STRING),
    platform=STRING,
    inputs=_list_of(DECLARED),
    outputs=_list_of(DECLARED),
)

DATA_EXAMPLE = {
    "id": "42",
    "inputs": [{"name": "logits", "datatype": "FP32", "shape": [1, 3], "data": [[2.0, 0.5, -1.0]]}],
}
ANSWER_EXAMPLE = {
    "id": "42",
    "model_name": NAME,
    "model_version": VERSION,
    "parameters": {"calibrator_version": 3, "sha256": SHA256},
    "outputs": [
        {
            "name": "probabilities",
            "datatype": "FP32",
            "shape": [1, 3],
            "data": [0.66524094, 0.24472846, 0.09003057],
        }
    ],
}
MODEL_EXAMPLE = {
    "name": NAME,
    "versions": [VERSION],
    "platform": "calibrd",
    "inputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
    "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]}],
}
BINARY: Plain = {
    "schema": {"type": "string", "format": "binary"},
    "example": '{"inputs": [{"name": "logits", "datatype": "FP32", "shape": [1, 3], '
    '"parameters": {"binary_data_size": 12}}]}<12 bytes>',
}
INFER_DESCRIPTION = (
    "Send one input, named after the values that the calibrator was fitted on: `logits` or "
    "`probabilities`, of shape [n, k] (or [n, 1] if k is 2). The output is FP32 for FP32, FP16 and "
    "BF16 input, and FP64 for FP64 and integers. A tensor may follow the JSON as raw little-endian "
    f"bytes, with its `binary_data_size` and the header `{LENGTH_HEADER}`. To get such a response, "
    "set `binary_data_output`, or `binary_data` in an output. Content-Encoding may be gzip or "
    "deflate.\n\n"
    "A map of the method `segmented` accepts a second input, `segments`: the segment of each row, "
    "as BYTES or integers of shape [n] or [n, 1]. Without it, and for rows with unknown segments, "
    "the map for all rows is used. The header Calibrd-Warning and the response's parameter "
    "`warning` report the number of rows with unknown segments.\n\n"
    "The fingerprint of the model that produced the values may be sent as the header "
    f"`{MODEL_HEADER}` or as the request's parameter `model`. If the map was fitted for another "
    "model, the status is 409. If the parameter `fingerprint` is `warn`, the status is 200, and a "
    "Calibrd-Warning header is sent instead."
)


def _answers(description: str, schema: Plain, example: Plain, *errors: str) -> Plain:
    return {"200": _answer(description, schema, example)} | {
        status: _answer(ERRORS[status][0], ERROR, {"error": ERRORS[status][1]}) for status in errors
    }


def _answer(description: str, schema: Plain, example: Plain) -> Plain:
    content = {"application/json": {"schema": schema, "example": example}}
    return {"description": description, "content": content}


def _operation(operation_id: str, summary: str, responses: Plain, **more: Any) -> Plain:
    return {
        "operationId": operation_id,
        "summary": summary,
        "tags": ["open inference protocol"],
        "responses": responses,
        **more,
    }


def _path_parameter(name: str, description: str, example: str) -> Plain:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"},
        "example": example,
    }


def _infer(suffix: str, which: str) -> Plain:
    responses = _answers("The probabilities", ANSWER, ANSWER_EXAMPLE, *ERRORS)
    length = {"schema": {"type": "integer", "minimum": 0}}
    responses["200"]["headers"] = {
        LENGTH_HEADER: {
            "description": "Length of the JSON in bytes, if a raw tensor follows",
            **length,
        },
        "Calibrd-Warning": {"description": "A code and a message", "schema": STRING},
    }
    responses["200"]["content"]["application/octet-stream"] = BINARY
    return _operation(
        f"inferWith{suffix}",
        f"Calibrate with {which}",
        responses,
        description=INFER_DESCRIPTION,
        parameters=[
            {"name": LENGTH_HEADER, "in": "header", "required": False, "example": 107, **length},
            {
                "name": MODEL_HEADER,
                "in": "header",
                "required": False,
                "description": "Fingerprint of the model that produced the values, in UTF-8",
                "schema": {"type": "string", "minLength": 1},
            },
        ],
        requestBody={
            "required": True,
            "content": {
                "application/json": {"schema": REQUEST, "example": DATA_EXAMPLE},
                "application/octet-stream": BINARY,
            },
        },
    )


def _model_paths(prefix: str, suffix: str, which: str, parameters: list[Plain]) -> Plain:
    """Return the three paths of a model: metadata, readiness and infer."""
    refusals = ("401", "403", "404", "503")
    ready = _object("name", "ready", name=STRING, ready=BOOLEAN)
    operations = {
        prefix: {
            "get": _operation(
                f"describe{suffix}",
                f"Get the inputs and outputs of {which}",
                _answers("Metadata", MODEL, MODEL_EXAMPLE, *refusals),
            )
        },
        f"{prefix}/ready": {
            "get": _operation(
                f"is{suffix}Ready",
                f"Check whether {which} can be applied",
                _answers(
                    "The version can be applied", ready, {"name": NAME, "ready": True}, *refusals
                ),
            )
        },
        f"{prefix}/infer": {"post": _infer(suffix, which)},
    }
    return {path: {"parameters": parameters, **item} for path, item in operations.items()}


def _health(operation_id: str, summary: str, state: str) -> Plain:
    schema = _object(state, **{state: BOOLEAN})
    responses = _answers(f"The server is {state}", schema, {state: True})
    if state == "ready":
        responses["503"] = _answer("The server is not ready", schema, {state: False})
    return {"get": _operation(operation_id, summary, responses, security=[])}


_NAME = _path_parameter("name", "The name of the calibrator", NAME)
_VERSION = _path_parameter("version", "A version number or an alias", VERSION)
_SERVER = _object(
    "name", "version", "extensions", name=STRING, version=STRING, extensions=_list_of(STRING)
)

OPENAPI: Plain = {
    "/v2": {
        "get": _operation(
            "describeServer",
            "Get the name, version and extensions of the server",
            _answers(
                "Metadata",
                _SERVER,
                {"name": "calibrd", "version": "0.1.0", "extensions": ["binary_tensor_data"]},
            ),
            security=[],
        )
    },
    "/v2/health/live": _health("isServerLive", "Check whether the server is live", "live"),
    "/v2/health/ready": _health("isServerReady", "Check whether the server is ready", "ready"),
    **_model_paths("/v2/models/{name}", "Production", "the version in production", [_NAME]),
    **_model_paths(
        "/v2/models/{name}/versions/{version}",
        "Version",
        "a version given by number or alias",
        [_NAME, _VERSION],
    ),
}
