"""What the OpenAPI document says beyond types: binary bodies, examples, path parameters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Path

from calibrators.registry import DEFAULT_METHOD
from service.datasets.formats import Format, all_codecs
from service.http.openapi_examples import DATASET_ID, FIT_ID, KEY_ID
from service.storage.records import FitStatus

Answers = dict[int | str, dict[str, Any]]

NAME_PATTERN = "^[a-z0-9][a-z0-9._-]{0,63}$"
ID_PATTERN = "^[A-Za-z0-9_:-]{1,80}$"

Name = Annotated[str, Path(pattern=NAME_PATTERN, examples=["fashion"])]
Alias = Annotated[str, Path(pattern=NAME_PATTERN, examples=["production"])]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[1])]
DatasetId = Annotated[str, Path(pattern=ID_PATTERN, examples=[DATASET_ID])]
FitId = Annotated[str, Path(pattern=ID_PATTERN, examples=[FIT_ID])]
KeyId = Annotated[str, Path(pattern=ID_PATTERN, examples=[KEY_ID])]
IfNoneMatch = Annotated[
    str | None,
    Header(max_length=1000, description="ETags of what the caller has: 304 if it is known"),
]

PROBLEM = {
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
}
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
NUMBERS = {"type": "array", "items": {"type": ["number", "array"], "items": {"type": "number"}}}
ARRAYS = {
    "logits": {**NUMBERS, "description": "(n, k), or (n,) for two classes"},
    "probabilities": {**NUMBERS, "description": "the same; one of the two"},
    "values": {**NUMBERS, "description": "the same, if `kind` says which they are"},
    "labels": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "segments": {
        "type": "array",
        "items": {"type": ["string", "integer"]},
        "description": "(n,), the segment of each row, for methods that calibrate by segments",
    },
}
ARRAYS_SCHEMA = {
    "type": "object",
    "properties": ARRAYS,
    "required": ["labels"],
    "additionalProperties": False,
}
ROWS = {"logits": [[2.1, 0.3, -1.0], [0.2, 1.7, 0.4]], "labels": [0, 1]}
ROWS_OF_SEGMENTS = {**ROWS, "segments": ["web", "app"]}

# JSON has a schema of its own
ARRAY_BODIES = {
    one.media_types[0]: BINARY
    if one.example is None
    else {"schema": {"type": "string"}, "example": one.example}
    for one in all_codecs().values()
    if one.is_named and one.format is not Format.JSON
}


def _in_query(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A field of a fit, in the query because the body holds arrays."""
    text = f"{description}; only if the body is not JSON"
    return {"name": name, "in": "query", "schema": schema, "description": text}


def _json_answer(schema: str) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _file(media_type: str, description: str) -> Answers:
    return {200: {"description": description, "content": {media_type: BINARY}}}


def _known_file(media_type: str, description: str) -> Answers:
    return {**_file(media_type, description), 304: {"description": "The caller has it"}}


DATASET_BODY = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": ARRAYS_SCHEMA,
                "examples": {
                    "logits": {"value": ROWS},
                    "with segments": {"value": ROWS_OF_SEGMENTS},
                },
            },
            **ARRAY_BODIES,
        },
        "description": "arrays `logits` or `probabilities`, `labels`, and perhaps `segments`",
    }
}
DATASET_ANSWERS: Answers = {
    200: {"description": "These bytes were there already", **_json_answer("DatasetOut")},
    201: {"description": "Kept, or an upload opened"},
}
PART_BODY = {
    "requestBody": {"required": True, "content": {"application/octet-stream": BINARY}},
}
PRESIGNED_ANSWERS: Answers = {
    409: {"description": "The store takes no uploads: no_presigned_uploads", **PROBLEM},
}
FIT_BODY = {
    "parameters": [
        _in_query(
            "method",
            f"the method, `{DEFAULT_METHOD}` without one; several times for several",
            {"type": "string"},
        ),
        _in_query("params", "the method's parameters as JSON", {"type": "string"}),
        _in_query("seed", "as in JSON", {"type": "integer"}),
        _in_query("held_out", "as in JSON", {"type": "number"}),
        _in_query("evaluation", "as in JSON", {"type": "string"}),
        _in_query("model", "as in JSON", {"type": "string"}),
        _in_query("device", "as in JSON", {"type": "string"}),
        _in_query("tags", "as in JSON, and written as JSON", {"type": "string"}),
        _in_query("description", "as in JSON", {"type": "string"}),
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/FitIn"},
                "examples": {
                    "dataset": {"value": {"dataset": DATASET_ID, "method": "smart"}},
                    "in one call": {"value": {**ROWS, "method": "temperature"}},
                    "several methods": {
                        "value": {
                            "dataset": DATASET_ID,
                            "methods": [
                                {"method": "temperature"},
                                {"method": "smart", "params": {"steps": 500}},
                            ],
                            "model": "sha256:0f1e",
                        }
                    },
                },
            },
            **ARRAY_BODIES,
        },
    },
}
FIT_ANSWERS: Answers = {
    201: {"description": "Finished while the caller waited", **_json_answer("FitOut")},
    202: {"description": "Accepted; Location says where to look"},
}
EVENT = {
    "type": "object",
    "description": "One event of the stream; its data is the fit as JSON",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string", "enum": list(FitStatus)},
        "data": {"type": "string"},
    },
}
EVENT_ANSWERS: Answers = {
    200: {
        "description": "One event for each change",
        "content": {
            "text/event-stream": {
                "schema": EVENT,
                "example": 'event: running\ndata: {"progress": {"step": 420}}\n\n',
            }
        },
    }
}
OPEN_RUN_ANSWERS: Answers = {
    200: {"description": "A session of a run that was there", **_json_answer("OpenedRunOut")},
    201: {"description": "A new run and its first session"},
}
MAP_ANSWERS = _known_file("application/octet-stream", "The archive")
ONNX_ANSWERS = _known_file("application/octet-stream", "The model")
MOVE_ANSWERS: Answers = {
    409: {
        "description": "The version was judged worse, could not be judged, takes other input "
        "than the one the alias points at, or measurably loses accuracy: needs_force",
        **PROBLEM,
    },
    412: {"description": "The alias has moved since: alias_has_moved", **PROBLEM},
}
COMPARE_ANSWERS: Answers = {
    409: {"description": "Nothing to compare them on: no_common_rows", **PROBLEM},
}
REPORT_ANSWERS: Answers = {
    200: {"content": {"application/json": {"example": {"verdict": "improved", "n": 2000}}}}
}
HTML_ANSWERS = _known_file("text/html", "The page")
SVG_ANSWERS = _known_file("image/svg+xml", "The diagram")
PNG_ANSWERS = _known_file("image/png", "The diagram")
METRICS_ANSWERS = _file("text/plain", "Metrics in Prometheus's text format")
READY_ANSWERS: Answers = {
    503: {"description": "A part does not work", **_json_answer("Readiness")},
}
