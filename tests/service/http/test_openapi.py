"""The OpenAPI document is complete: operations have names and docs, and examples are valid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from service.app import create_app
from service.settings import Settings

Plain = dict[str, Any]

WITHOUT_BODY = {
    "DELETE /v1/datasets/{id}": "204",
    "HEAD /v1/datasets/{id}": "200",
    "GET /v1/calibrators/{name}/versions/{number}/map": "304",
    "GET /v1/calibrators/{name}/versions/{number}/onnx": "304",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    folder: Path = tmp_path_factory.mktemp("document")
    return create_app(Settings(data_dir=folder, workers=0)).openapi()


def operations(document: Plain) -> Iterator[tuple[str, Plain]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield f"{method.upper()} {path}", operation


def contents(document: Plain) -> Iterator[tuple[str, str, Plain]]:
    """Yield each body and each response except errors, by operation and media type."""
    for label, operation in operations(document):
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            yield f"{label} body", media_type, content
        for status, answer in operation["responses"].items():
            if status < "4" and status != "304" and WITHOUT_BODY.get(label) != status:
                assert answer.get("content"), f"{label} {status} shows nothing"
                for media_type, content in answer["content"].items():
                    yield f"{label} {status}", media_type, content


def examples_of(document: Plain, content: Plain) -> list[Any]:
    if "example" in content:
        return [content["example"]]
    if "examples" in content:
        return [one["value"] for one in content["examples"].values()]
    return list(examples_in(document, content["schema"]))


def examples_in(document: Plain, schema: Plain) -> Iterator[Any]:
    """Return the examples of a schema, of the schemas it refers to, or of its items."""
    if "items" in schema:
        yield from ([one] for one in examples_in(document, schema["items"]))
    for choice in schema.get("anyOf", [schema]):
        name = choice.get("$ref", "").rpartition("/")[2]
        yield from document["components"]["schemas"].get(name, {}).get("examples", [])


def test_every_operation_has_a_name_a_summary_and_a_description(document: Plain) -> None:
    found = dict(operations(document))
    assert len({one["operationId"] for one in found.values()}) == len(found) > 40
    for label, operation in found.items():
        assert operation["summary"], label
        assert operation["tags"], label


def test_only_public_operations_need_no_key(document: Plain) -> None:
    without = {label for label, one in operations(document) if not one.get("security")}
    assert without == {
        "GET /healthz",
        "GET /readyz",
        "GET /v2",
        "GET /v2/health/live",
        "GET /v2/health/ready",
    }


def test_every_body_and_response_has_an_example_that_obeys_its_schema(document: Plain) -> None:
    for label, media_type, content in contents(document):
        assert content.get("schema"), (label, media_type)
        if content["schema"].get("format") == "binary":
            continue
        shown = examples_of(document, content)
        assert shown, (label, media_type)
        if media_type == "application/json":
            whole = {**content["schema"], "components": document["components"]}
            for example in shown:
                jsonschema_rs.validate(whole, example)


def test_every_error_is_described(document: Plain) -> None:
    for label, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status > "4" and not (label == "GET /readyz" and status == "503"):
                kind = "application/json" if " /v2" in label else "application/problem+json"
                assert list(answer["content"]) == [kind], (label, status)


def test_one_app_does_not_change_the_document_of_the_next(tmp_path: Path, document: Plain) -> None:
    assert create_app(Settings(data_dir=tmp_path, workers=0)).openapi() == document
