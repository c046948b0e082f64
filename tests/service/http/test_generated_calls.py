"""Calls made up by schemathesis from the document; `make fuzz` makes thousands of them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from helpers.call_generator import WANTED, Generated
from helpers.live_service import in_process

from service.access import keys
from service.access.permissions import Scope

# maps that were registered have no ONNX form, there is no worker here, and blobs lie in a folder
NEVER_SUCCEED = {
    "GET /v1/calibrators/{name}/versions/{number}/onnx",
    "GET /readyz",
    "POST /v1/datasets/{id}/parts/presigned",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with in_process(tmp_path_factory.mktemp("generated")) as local:
        parts = local.app.state.parts
        with parts.database.write() as store:
            workspace = keys.workspace_named(store, keys.DEFAULT_WORKSPACE).id
            made = keys.create(store, workspace, name="generator", scopes=[Scope.ADMIN])
        parts.keys.refresh()
        local.headers["Authorization"] = f"Bearer {made.token}"
        yield local


def test_generated_calls_are_answered_as_documented(client: httpx.Client) -> None:
    generated = Generated(client, client.get("/openapi.json").json())
    generated.run(WANTED)
    assert not generated.failures, "\n\n".join(
        f"{label}\n{told}" for label, told in generated.failures.items()
    )
    assert generated.count >= WANTED
    # were they all refused, this would show little
    assert {label for label, times in generated.succeeded.items() if not times} <= NEVER_SUCCEED
