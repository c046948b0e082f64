"""Two workspaces in one service: neither can read, guess, change or disturb the other's data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from helpers.dashboard_pages import HTML, Shell, row_of
from helpers.live_service import NPZ, Local, npz, sample
from helpers.route_table import Call, calls_of
from helpers.workspace_contents import (
    ALIAS,
    CALIBRATOR,
    Things,
    dataset_body,
    fitted_elsewhere,
    make_one_of_each,
    order_fit,
)

from service.access import keys
from service.access.permissions import Scope
from service.runs.schemas import StatisticsIn

pytestmark = pytest.mark.both_backends

ROW = {"logits": [[1.0, 2.0, 3.0, 4.0, 5.0]]}
TENSOR = {"name": "logits", "datatype": "FP32", "shape": [1, 5], "data": ROW["logits"]}
BODIES: dict[str, Any] = {
    "PATCH /v1/calibrators/{name}/versions/{number}": {"description": "mine now"},
    "PUT /v1/calibrators/{name}/aliases/{alias}": {"version": 1, "force": True, "reason": "x"},
    "PATCH /v1/runs/{run}": {"description": "mine now"},
    "POST /v1/runs/{run}/steps/{step}/stats": StatisticsIn.example(),
    "POST /v1/calibrators/{name}@{ref}/predict": ROW,
    "POST /v2/models/{name}/infer": {"inputs": [TENSOR]},
    "POST /v2/models/{name}/versions/{version}/infer": {"inputs": [TENSOR]},
}
PART = {"number": 1, "bytes": 1, "sha256": "0" * 64}
# blobs lie in a folder here, so A is refused as well; test_presigned_parts.py has both
REFUSED: dict[str, Any] = {"POST /v1/datasets/{id}/parts/presigned": {"parts": [PART]}}
SHELL = "/runs/{name}"
MAKERS = {"POST /v1/calibrators/{name}/fits", "POST /v1/calibrators/{name}/versions"}


@dataclass(frozen=True)
class Neighbours:
    """Workspace A has one object of each kind; workspace B has none yet."""

    a: httpx.Client
    b: httpx.Client
    things: Things
    calls: list[Call]


@pytest.fixture
def neighbours(local: Local) -> Iterator[Neighbours]:
    parts = local.app.state.parts
    with parts.database.write() as store:
        tokens = [
            keys.create(
                store,
                keys.workspace_named(store, name, make=True).id,
                name=name,
                scopes=[Scope.ADMIN],
            ).token
            for name in ("a", "b")
        ]
    parts.keys.refresh()
    headers = [{"Authorization": f"Bearer {token}"} for token in tokens]
    with (
        httpx.Client(base_url=local.base_url, timeout=60, headers=headers[0]) as a,
        httpx.Client(base_url=local.base_url, timeout=60, headers=headers[1]) as b,
    ):
        calls = [call for call in calls_of(local.app) if not call.path.startswith("/help")]
        yield Neighbours(a, b, make_one_of_each(a), calls)


def places(call: Call, things: Things) -> Iterator[dict[str, Any]]:
    """Return path parameters that name A's objects, or nothing where A has none."""
    ids = {
        "/v1/datasets": [things.dataset, things.upload, f"sha256:{things.sha256}"],
        "/v1/fits": [things.fit],
        "/v1/keys": [things.key],
        "/jobs": [things.fit],
        "/keys": [things.key],
    }
    values = {"name": CALIBRATOR, "alias": ALIAS, "ref": ALIAS, "number": 1, "version": 1}
    values |= {"run": things.run, "step": 1, "file": "app.css"}
    if not call.parameters:
        return
    if "id" not in call.parameters:
        yield values
        return
    for id in next(found for prefix, found in ids.items() if call.path.startswith(prefix)):
        yield {**values, "id": id}


def snapshot(client: httpx.Client, things: Things) -> list[Any]:
    """Return everything that a workspace shows, except when its keys were used."""
    paths = (
        "/v1/datasets",
        f"/v1/datasets/{things.upload}",
        f"/v1/fits/{things.fit}",
        f"/v1/runs/{things.run}",
        f"/v1/runs/{things.run}/history",
        "/v1/calibrators",
        f"/v1/calibrators/{CALIBRATOR}/versions",
        f"/v1/calibrators/{CALIBRATOR}/aliases/{ALIAS}/history",
    )
    shown = [client.get(path).json() for path in paths]
    return [
        *shown,
        [{**key, "last_used_at": None} for key in client.get("/v1/keys").json()["items"]],
    ]


def query(call: Call, things: Things) -> dict[str, object] | None:
    """Return the query parameters that a call needs."""
    if call.path.endswith("/predict") and call.method == "GET":
        return {"logits": "1,2,3,4,5"}
    if call.path.startswith("/v1/") and call.path.endswith("/compare"):
        return {"first": 1, "second": 2, "dataset": things.dataset}
    return None


def test_nothing_of_one_workspace_is_visible_to_another(neighbours: Neighbours) -> None:
    a, b, things = neighbours.a, neighbours.b, neighbours.things
    before = snapshot(a, things)
    tried = set()
    for call in neighbours.calls:
        # a page without data is public
        if str(call) in MAKERS or call.need == "public" or call.path == SHELL:
            continue
        for values in places(call, things):
            body = (BODIES | REFUSED).get(str(call))
            answer = b.request(
                call.method, call.url(**values), json=body, params=query(call, things)
            )
            assert answer.status_code == 404, (str(call), answer.status_code, answer.text)
            tried.add(str(call))
    assert set(BODIES | REFUSED) <= tried
    assert snapshot(a, things) == before


def test_the_owner_may_do_what_another_workspace_is_denied(neighbours: Neighbours) -> None:
    # check the opposite as well, because wrong URLs would also give 404
    a, things = neighbours.a, neighbours.things
    # something to compare, and to roll back to
    made = a.post(f"/v1/calibrators/{CALIBRATOR}/versions", json=fitted_elsewhere())
    assert made.json()["number"] == 2
    a.put(f"/v1/calibrators/{CALIBRATOR}/aliases/{ALIAS}", json={"version": 2})
    for call in neighbours.calls:
        is_reading = call.method == "GET" and not call.path.endswith(("/events", "/onnx"))
        for values in places(call, things):
            if is_reading:
                answer = a.get(call.url(**values), params=query(call, things))
            elif str(call) in BODIES:
                answer = a.request(call.method, call.url(**values), json=BODIES[str(call)])
            else:
                continue
            assert answer.status_code == 200, (str(call), answer.text)


def test_lists_of_another_workspace_are_empty(neighbours: Neighbours) -> None:
    for path in ("/v1/datasets", "/v1/fits", "/v1/calibrators"):
        assert neighbours.a.get(path).json()["items"]
        assert neighbours.b.get(path).json() == {"items": [], "next": None}
    assert neighbours.b.get(f"/v1/fits?calibrator={CALIBRATOR}").json()["items"] == []
    assert [key["name"] for key in neighbours.b.get("/v1/keys").json()["items"]] == ["b"]


@pytest.mark.parametrize(
    ("path", "words"), [("/", CALIBRATOR), ("/jobs", CALIBRATOR), ("/keys", "spare")]
)
def test_pages_of_one_workspace_show_nothing_of_another(
    neighbours: Neighbours, path: str, words: str
) -> None:
    assert words in row_of(neighbours.a.get(path, headers=HTML).text, words)
    assert words not in Shell(neighbours.b.get(path, headers=HTML).text).words


def test_cursors_of_one_workspace_reveal_nothing_to_another(neighbours: Neighbours) -> None:
    a, b = neighbours.a, neighbours.b
    cursor = a.get("/v1/datasets?limit=1").json()["next"]
    assert a.get("/v1/datasets", params={"cursor": cursor}).json()["items"]
    assert b.get("/v1/datasets", params={"cursor": cursor}).json()["items"] == []


def test_hashes_of_one_workspace_reveal_nothing_to_another(neighbours: Neighbours) -> None:
    a, b, things = neighbours.a, neighbours.b, neighbours.things
    assert a.head(f"/v1/datasets/sha256:{things.sha256}").status_code == 200
    assert b.head(f"/v1/datasets/sha256:{things.sha256}").status_code == 404
    url = f"/v1/calibrators/{CALIBRATOR}/versions/1/map"
    tag = {"If-None-Match": a.get(url).headers["etag"]}
    assert a.get(url, headers=tag).status_code == 304
    assert b.get(url, headers=tag).status_code == 404
    move = {"version": 1, "force": True, "reason": "x"}
    alias = f"/v1/calibrators/{CALIBRATOR}/aliases/{ALIAS}"
    assert b.put(alias, json=move, headers={"If-Match": '"1"'}).status_code == 404


def test_one_workspace_cannot_fit_on_data_of_another(neighbours: Neighbours) -> None:
    b, things = neighbours.b, neighbours.things
    mine = b.post("/v1/datasets", content=npz(*sample(70)), headers=NPZ).json()["id"]
    url = f"/v1/calibrators/{CALIBRATOR}/fits"
    for theirs in (things.dataset, things.upload, f"sha256:{things.sha256}"):
        for order in ({"dataset": theirs}, {"dataset": mine, "evaluation": theirs}):
            answer = b.post(url, json={**order, "method": "temperature"})
            assert (answer.status_code, answer.json()["code"]) == (404, "no_such_dataset")
    assert b.get(f"/v1/calibrators/{CALIBRATOR}").status_code == 404


def test_another_workspace_may_use_the_same_name_bytes_and_key(neighbours: Neighbours) -> None:
    a, b, things = neighbours.a, neighbours.b, neighbours.things
    before = snapshot(a, things)
    sent = b.post("/v1/datasets", content=dataset_body(), headers=NPZ)
    assert sent.status_code == 201
    mine = sent.json()["id"]
    assert mine != things.dataset
    ordered = order_fit(b, mine)
    assert ordered["id"] != things.fit
    assert order_fit(b, mine)["id"] == ordered["id"]
    assert order_fit(a, f"sha256:{things.sha256}")["id"] == things.fit
    registered = b.post(f"/v1/calibrators/{CALIBRATOR}/versions", json=fitted_elsewhere())
    assert (registered.status_code, registered.json()["number"]) == (201, 1)
    assert b.delete(f"/v1/fits/{ordered['id']}").status_code == 200
    assert b.delete(f"/v1/datasets/{mine}").status_code == 204
    assert a.get(f"/v1/calibrators/{CALIBRATOR}/versions/1/map").status_code == 200
    assert snapshot(a, things) == before
