"""Parts of the OpenAPI document shared by many operations: path parameters, files, errors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Path

from service.http.schemas import KEY_ID, ProblemOut

Answers = dict[int | str, dict[str, Any]]

NAME_PATTERN = "^[a-z0-9][a-z0-9._-]{0,63}$"
ID_PATTERN = "^[A-Za-z0-9_:-]{1,80}$"
DATASET_ID = "ds_4f2c9a1be07d8c3355aa"
FIT_ID = "fit_0c1d6f2ab9e84d7710cc"

Name = Annotated[str, Path(pattern=NAME_PATTERN, examples=["fashion"])]
Alias = Annotated[str, Path(pattern=NAME_PATTERN, examples=["production"])]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[1])]
DatasetId = Annotated[str, Path(pattern=ID_PATTERN, examples=[DATASET_ID])]
FitId = Annotated[str, Path(pattern=ID_PATTERN, examples=[FIT_ID])]
KeyId = Annotated[str, Path(pattern=ID_PATTERN, examples=[KEY_ID])]
IfNoneMatch = Annotated[
    str | None,
    Header(max_length=1000, description="ETags of cached copies; 304 if one of them matches"),
]

BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
PROBLEM = {
    "application/problem+json": {"schema": {"$ref": f"#/components/schemas/{ProblemOut.__name__}"}}
}


def errors(descriptions: dict[int | str, str]) -> Answers:
    """Return the error responses of an operation, by status."""
    return {
        status: {"description": text, "content": PROBLEM} for status, text in descriptions.items()
    }


ANY_ERROR = errors({"default": "An error"})


def file(media_type: str, description: str) -> Answers:
    """Return the 200 response of an operation that sends a file."""
    return {200: {"description": description, "content": {media_type: BINARY}}}


def known_file(media_type: str, description: str) -> Answers:
    """Return the responses of an operation that sends a file unless the caller already has it."""
    return {
        **file(media_type, description),
        304: {"description": "The caller has the current file"},
    }
