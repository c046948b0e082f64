"""What the OpenAPI document says beyond types: binary bodies, examples, path parameters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from service.core.formats import Format
from service.storage.records import FitStatus

Answers = dict[int | str, dict[str, Any]]

NAME_PATTERN = "^[a-z0-9][a-z0-9._-]{0,63}$"
ID_PATTERN = "^[A-Za-z0-9_:-]{1,80}$"

Name = Annotated[str, Path(pattern=NAME_PATTERN, examples=["fashion"])]
Alias = Annotated[str, Path(pattern=NAME_PATTERN, examples=["production"])]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[1])]
DatasetId = Annotated[str, Path(pattern=ID_PATTERN, examples=["ds_4f2c9a1be07d8c3355aa"])]
FitId = Annotated[str, Path(pattern=ID_PATTERN, examples=["fit_0c1d6f2ab9e84d7710cc"])]
KeyId = Annotated[str, Path(pattern=ID_PATTERN, examples=["1f0c22ab94de"])]

BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
ROWS = {"logits": [[2.1, 0.3, -1.0], [0.2, 1.7, 0.4]], "labels": [0, 1]}
DATASET = {
    "id": "ds_4f2c9a1be07d8c3355aa",
    "status": "ready",
    "kind": "logits",
    "sha256": "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
    "format": "npz",
    "bytes": 412_310,
    "rows": 10_000,
    "classes": 10,
    "delete_after_fit": False,
    "expires_at": None,
    "created_at": "2026-01-05T10:00:00Z",
}


def _binary_bodies(*formats: Format) -> dict[str, Any]:
    return {format.media_type: BINARY for format in formats}


def _json_body(example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": {"type": "object"}, "example": example}}


def _file(media_type: str, description: str) -> Answers:
    return {200: {"description": description, "content": {media_type: BINARY}}}


DATASET_BODY = {
    "requestBody": {
        "content": {**_binary_bodies(Format.NPZ, Format.SAFETENSORS), **_json_body(ROWS)},
        "description": "arrays `logits` or `probabilities`, and `labels`",
    }
}
DATASET_ANSWERS: Answers = {
    200: {"description": "These bytes were there already"},
    201: {"content": {"application/json": {"example": DATASET}}},
}
PART_BODY = {
    "requestBody": {"required": True, "content": {"application/octet-stream": BINARY}},
}
FIT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/FitIn"},
                "examples": {
                    "dataset": {"value": {"dataset": DATASET["id"], "method": "smart"}},
                    "in one call": {"value": {**ROWS, "method": "temperature"}},
                    "several methods": {
                        "value": {
                            "dataset": DATASET["id"],
                            "methods": [
                                {"method": "temperature"},
                                {"method": "smart", "params": {"steps": 500}},
                            ],
                            "model": "sha256:0f1e",
                        }
                    },
                },
            },
            **_binary_bodies(Format.NPZ, Format.SAFETENSORS),
        },
    }
}
FIT_ANSWERS: Answers = {
    201: {"description": "Finished while the caller waited"},
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
MAP_ANSWERS = {**_file("application/octet-stream", "The archive"), 304: {"description": "Known"}}
ONNX_ANSWERS = {**_file("application/octet-stream", "The model"), 304: {"description": "Known"}}
MOVE_ANSWERS: Answers = {
    409: {"description": "The version was judged worse or could not be judged: needs_force"},
    412: {"description": "The alias has moved since: alias_has_moved"},
}
REPORT_ANSWERS: Answers = {
    200: {"content": {"application/json": {"example": {"verdict": "improved", "n": 2000}}}}
}
HTML_ANSWERS = _file("text/html", "The page")
SVG_ANSWERS = _file("image/svg+xml", "The diagram")
PNG_ANSWERS = _file("image/png", "The diagram")
METRICS_ANSWERS = _file("text/plain", "Metrics in Prometheus's text format")
NOT_READY: Answers = {503: {"description": "A part does not work"}}
NEW_KEY_ANSWERS: Answers = {
    201: {
        "content": {
            "application/json": {
                "example": {
                    "key": {"id": "1f0c22ab94de", "name": "ci", "scopes": ["predict"]},
                    "token": "cal_<id>_<secret>",
                }
            }
        }
    }
}
