"""The OpenAPI path of predict, written by hand because its route is raw ASGI."""

from __future__ import annotations

from typing import Any

from calibrators.metrics.estimates import MAX_LEVEL
from service.datasets.formats import Format, all_codecs
from service.http.openapi import BINARY, Answers, errors
from service.serving.apply_map import EVALUATED_ROWS, MODEL_HEADER

Plain = dict[str, Any]

NAME = "resnet50-prod"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
BINARY_BODIES: Plain = {
    one.media_types[0]: BINARY for one in all_codecs().values() if one.encode and not one.is_text
}
ROW: Plain = {"type": "array", "items": {"type": "number"}}
ROWS: Plain = {"type": "array", "items": ROW}
VALUES: Plain = {"anyOf": [ROWS, ROW], "description": "(n, k), or one row (k,) if k > 2"}
LABELS: Plain = {"type": "array", "items": {"type": "integer", "minimum": 0}}
SEGMENTS: Plain = {
    "type": "array",
    "items": {"type": ["string", "integer"]},
    "description": "The segment of each row, for maps with segments",
}

FEATURES: Plain = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "number"}},
    "description": "The inputs to the model's last layer (n, d), for maps that need features",
}
UNUSED: Plain = {
    "type": "array",
    "description": "Ignored; accepted because datasets may contain it",
}

ERRORS: dict[int | str, str] = {
    "400": "The body, a header or the query cannot be read",
    "401": "The key is missing or invalid",
    "403": "The key lacks the predict scope",
    "404": "No such calibrator, version or alias",
    "406": "The response is not available in any accepted format",
    "409": "The map was fitted for another model (`model_mismatch`)",
    "413": "The body (as sent or unpacked) or the response is too large, or has too many rows",
    "415": "The body's format is not supported",
    "422": "Invalid values, parameters or names: NaN, wrong number of classes, wrong kind",
    "503": "A component of the service is unavailable",
    "default": "An error",
}


def _parameter(name: str, place: str, schema: Plain, description: str, **more: Any) -> Plain:
    return {"name": name, "in": place, "schema": schema, "description": description, **more}


REFERENCE = [
    _parameter("name", "path", {"type": "string"}, "The calibrator", required=True, example=NAME),
    _parameter(
        "ref",
        "path",
        {"type": "string"},
        "An alias or a version number",
        required=True,
        example="production",
    ),
]
OPTIONS = [
    _parameter(
        "dtype",
        "query",
        {"type": "string", "enum": ["float32", "float64"]},
        "Type of the probabilities; by default float32 for float32 and float16 values, otherwise "
        "float64. With float64, they are also computed in float64",
    ),
    _parameter(
        "top",
        "query",
        {"type": "integer", "minimum": 1, "maximum": 999_999_999},
        "Return only this many classes per row, the most probable ones",
    ),
    _parameter(
        "interval",
        "query",
        {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_LEVEL, "example": 0.9},
        "Also return a credible interval at this level for the confidence of each row; only for "
        "maps of the method additive, which auto fits by default",
    ),
    _parameter(
        "model",
        "query",
        {"type": "string", "minLength": 1},
        "Fingerprint of the model that produced the values; must equal the header "
        f"{MODEL_HEADER} if both are sent",
    ),
    _parameter(
        "fingerprint",
        "query",
        {"type": "string", "enum": ["refuse", "warn"], "default": "refuse"},
        "What to do if the map was fitted for another model: respond with 409 (`refuse`), or only "
        "add a Calibrd-Warning header (`warn`)",
    ),
    _parameter(
        MODEL_HEADER,
        "header",
        {"type": "string", "minLength": 1},
        "Fingerprint of the model that produced the values, in UTF-8",
    ),
]

DOCUMENT: Plain = {
    "type": "object",
    "required": ["calibrator", "version", "sha256"],
    "properties": {
        "calibrator": {"type": "string"},
        "version": {"type": "integer", "minimum": 1},
        "sha256": {"type": "string"},
        "probabilities": ROWS,
        "top": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["classes", "probabilities"],
                "properties": {"classes": LABELS, "probabilities": ROW},
            },
        },
        "interval": {
            "type": "object",
            "description": "With `interval`: bounds on the probability that the predicted class is "
            "correct",
            "required": ["level", "low", "high"],
            "properties": {"level": {"type": "number"}, "low": ROW, "high": ROW},
        },
        "evaluation": {
            "type": "object",
            "description": "With `labels`: metrics, noise floor, intervals and reliability tables",
        },
    },
}
ABOUT = {"calibrator": NAME, "version": 3, "sha256": SHA256}
ANSWER: Plain = {
    "description": "Calibrated probabilities (n, k), every row summing to 1",
    "headers": {
        "Calibrd-Version": {
            "schema": {"type": "string"},
            "description": "The version that was applied, e.g. resnet50-prod@3",
        },
        "Calibrd-Map": {
            "schema": {"type": "string"},
            "description": "The hash of the map's bytes, e.g. sha256:9f86d081...",
        },
        "Calibrd-Warning": {
            "schema": {"type": "string"},
            "description": "A code and a message; one header per warning",
        },
    },
    "content": {
        Format.JSON.media_type: {
            "schema": DOCUMENT,
            "examples": {
                "probabilities": {"value": {**ABOUT, "probabilities": [[0.75, 0.17, 0.08]]}},
                "top": {
                    "value": {**ABOUT, "top": [{"classes": [0, 1], "probabilities": [0.75, 0.17]}]}
                },
            },
        },
        **BINARY_BODIES,
    },
}
BODY: Plain = {
    "required": True,
    "content": {
        Format.JSON.media_type: {
            "schema": {
                "anyOf": [
                    *(
                        {
                            "type": "object",
                            "properties": {
                                name: VALUES,
                                "labels": LABELS,
                                "segments": SEGMENTS,
                                "features": FEATURES,
                                "head_weight": UNUSED,
                                "head_bias": UNUSED,
                            },
                            "required": [name],
                            "additionalProperties": False,
                        }
                        for name in ("logits", "probabilities", "values")
                    ),
                    ROWS,
                    ROW,
                ]
            },
            "examples": {
                "logits": {"value": {"logits": [[2.1, 0.3, -1.0]]}},
                "with labels": {"value": {"logits": [[2.1, 0.3, -1.0]], "labels": [0]}},
                "with segments": {"value": {"logits": [[2.1, 0.3, -1.0]], "segments": ["web"]}},
                "one row": {"value": [2.1, 0.3, -1.0]},
            },
        },
        **BINARY_BODIES,
    },
}
RESPONSES: Answers = {
    "200": ANSWER,
    **errors(ERRORS),
}
OPENAPI: Plain = {
    "/v1/calibrators/{name}@{ref}/predict": {
        "parameters": REFERENCE,
        "post": {
            "operationId": "predict",
            "tags": ["predict"],
            "summary": "Calibrate logits or probabilities",
            "description": (
                "Send an array (n, k) as npy, npz, safetensors or JSON. In npz, safetensors and "
                "JSON objects, name it `logits` or `probabilities`, whichever the map was fitted "
                "on, or `values` to skip that check. A one-dimensional array of k numbers is one "
                "row. A map of two classes rejects such an array (`ambiguous_row`): it accepts "
                "(n, 2), or (n, 1) with the logit or probability of class 1. The response has the "
                "same format as the request, unless Accept names another.\n\n"
                "With `labels` (n,), the response is JSON with an `evaluation`: ECE with its "
                "noise floor, NLL, Brier score and reliability tables, for at most "
                f"{EVALUATED_ROWS} rows.\n\n"
                "With `segments` (n,), which are names or integers, a map of the method "
                "`segmented` calibrates each row for its segment. Rows with unknown segments use "
                "the map for all rows, and a Calibrd-Warning header reports their number. Other "
                "maps reject segments (`no_segments`), unless labels are sent as well: the "
                "evaluation then also covers each segment (`by_segment`).\n\n"
                "A map of a method that needs features, such as `feature_clipping`, takes them as "
                "`features` (n, d); a call without them is rejected (`missing_features`). Other "
                "maps reject features (`no_features`)."
            ),
            "parameters": OPTIONS,
            "requestBody": BODY,
            "responses": RESPONSES,
        },
        "get": {
            "operationId": "predict_one_row",
            "tags": ["predict"],
            "summary": "Calibrate one row",
            "description": "Calibrate one row passed in the query string, for quick tests. "
            "Pass either `logits` or `probabilities`.",
            "parameters": [
                _parameter(
                    "logits",
                    "query",
                    {"type": "string"},
                    "Comma-separated numbers",
                    example="2.1,0.3,-1.0",
                ),
                _parameter("probabilities", "query", {"type": "string"}, "Comma-separated numbers"),
                *OPTIONS,
            ],
            "responses": RESPONSES,
        },
    }
}
