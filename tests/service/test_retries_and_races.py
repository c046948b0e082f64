"""Operations that are repeated, concurrent, or in the wrong order."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import raw_blobs as stored
from helpers.live_service import NPZ, npz, sample
from helpers.registration import temperature_registration

from service.access import keys
from service.access.permissions import Scope
from service.errors import Invalid

pytestmark = pytest.mark.both_backends


def at_once(count: int, call):
    """Make this many concurrent calls."""
    start = threading.Barrier(count)

    def one(number: int):
        start.wait(10)
        return call(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def test_identical_concurrent_uploads_are_one_dataset(local):
    body = npz(*sample(2000))
    answers = at_once(8, lambda _: local.post("/v1/datasets", content=body, headers=NPZ))
    assert sorted(one.status_code for one in answers) == [200] * 7 + [201]
    assert len({one.json()["id"] for one in answers}) == 1
    assert len(stored.keys(local.app.state.parts.blobs)) == 1


def test_concurrent_commits_give_the_same_dataset(tenant):
    body = npz(*sample(2000))
    made = tenant.post("/v1/datasets?upload=parts").json()
    url = f"/v1/datasets/{made['id']}"
    half = len(body) // 2
    tenant.put(f"{url}/parts/1", content=body[:half])
    tenant.put(f"{url}/parts/2", content=body[half:])
    answers = at_once(4, lambda _: tenant.post(f"{url}/commit"))
    assert {one.status_code for one in answers} <= {200, 201}, [one.text for one in answers]
    assert {one.json()["id"] for one in answers} == {made["id"]}


def test_replaced_part_leaves_no_bytes_behind(local):
    made = local.post("/v1/datasets?upload=parts").json()
    for content in (b"first", b"second", b"second"):
        local.put(f"/v1/datasets/{made['id']}/parts/1", content=content)
    assert len(stored.keys(local.app.state.parts.blobs)) == 1
    local.delete(f"/v1/datasets/{made['id']}")
    assert len(stored.keys(local.app.state.parts.blobs)) == 0


def test_one_of_many_movers_wins(tenant):
    for _ in range(2):
        tenant.post("/v1/calibrators/c/versions", json=temperature_registration(2.0))
    url = "/v1/calibrators/c/aliases/production"
    body = {"version": 1, "force": True, "reason": "test"}
    first = at_once(6, lambda _: tenant.put(url, json=body, headers={"If-None-Match": "*"}))
    assert sorted(one.status_code for one in first) == [200] + [412] * 5
    body["version"] = 2
    second = at_once(6, lambda _: tenant.put(url, json=body, headers={"If-Match": '"1"'}))
    assert sorted(one.status_code for one in second) == [200] + [412] * 5
    assert len(tenant.get(f"{url}/history").json()["items"]) == 2


def test_identical_concurrent_fit_requests_with_one_key_are_one_fit(tenant):
    body = npz(*sample(100))
    headers = NPZ | {"Idempotency-Key": "k"}
    url = "/v1/calibrators/c/fits?method=temperature"
    answers = at_once(6, lambda _: tenant.post(url, content=body, headers=headers))
    assert {one.status_code for one in answers} <= {202, 409}
    assert len({one.json()["id"] for one in answers if one.status_code == 202}) == 1
    assert len(tenant.get("/v1/fits").json()["items"]) == 1


def test_replay_outlives_the_dataset(tenant):
    body = npz(*sample(100))
    headers = NPZ | {"Idempotency-Key": "k"}
    url = "/v1/calibrators/c/fits?method=temperature&delete_after_fit=true"
    first = tenant.post(url, content=body, headers=headers).json()
    tenant.delete(f"/v1/fits/{first['id']}")
    tenant.delete(f"/v1/datasets/{first['dataset']}")
    again = tenant.post(url, content=body, headers=headers)
    assert again.json()["id"] == first["id"]
    assert tenant.get("/v1/datasets").json()["items"] == []


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "query",
    [
        "method=typo",
        "methods=x",
        "methods=xy&method=smart",
        'method=smart&params={"stps":1}',
        'params={"stps":1}',
    ],
)
def test_a_refused_fit_request_stores_nothing(tenant, query):
    answer = tenant.post(f"/v1/calibrators/c/fits?{query}", content=npz(*sample(50)), headers=NPZ)
    assert answer.status_code == 422, answer.text
    assert tenant.get("/v1/datasets").json()["items"] == []
    assert tenant.get("/v1/calibrators").json()["items"] == []


@pytest.mark.one_backend
def test_unknown_parameters_are_refused_by_name(tenant):
    url = '/v1/calibrators/c/fits?method=smart&params={"stps":1}'
    told = tenant.post(url, content=npz(*sample(50)), headers=NPZ).json()
    assert told["code"] == "unknown_parameter"
    assert "'stps'" in told["detail"]
    assert "did you mean 'steps'" in told["detail"]


@pytest.mark.one_backend
@pytest.mark.parametrize("text", ['{"name": NaN}', '{"days": 1e999}', '{"name": "\\ud800"}', "{"])
def test_every_json_body_is_strict(tenant, text):
    headers = {"Content-Type": "application/json"}
    answer = tenant.post("/v1/keys", content=text, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")


@pytest.mark.one_backend
def test_deep_parameters_are_refused_shortly(tenant):
    made = tenant.post("/v1/datasets", content=npz(*sample(50)), headers=NPZ).json()
    deep = "[" * 900 + "]" * 900
    text = f'{{"dataset": "{made["id"]}", "method": "smart", "params": {{"hidden": {deep}}}}}'
    headers = {"Content-Type": "application/json"}
    answer = tenant.post("/v1/calibrators/c/fits", content=text, headers=headers)
    assert answer.status_code == 422
    assert len(answer.text) < 1000


@pytest.mark.one_backend
def test_json_limit_does_not_depend_on_how_the_type_is_written(tenant):
    body = b'{"logits": [' + b" " * (17 << 20) + b"]}"
    for content_type in ("application/json", "Application/JSON; charset=utf-8"):
        answer = tenant.post("/v1/datasets", content=body, headers={"Content-Type": content_type})
        assert answer.status_code == 413


@pytest.mark.one_backend
def test_proxies_need_keys(local):
    for name in ("X-Forwarded-For", "Forwarded"):
        answer = local.get("/v1/calibrators", headers={name: "for=203.0.113.9"})
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_host")


def test_rotated_key_keeps_its_lifetime(local):
    root = local.post("/v1/keys", json={"name": "root", "scopes": ["admin"], "days": 2}).json()
    headers = {"Authorization": f"Bearer {root['token']}"}
    new = local.post(f"/v1/keys/{root['key']['id']}/rotate", headers=headers).json()
    assert new["key"]["expires_at"] is not None


def test_sending_again_repairs_damaged_bytes(local):
    body = npz(*sample(20))
    local.post("/v1/datasets", content=body, headers=NPZ)
    blobs = local.app.state.parts.blobs
    key = stored.only_key(blobs)
    stored.overwrite(blobs, key, b"damaged")
    assert local.post("/v1/datasets", content=body, headers=NPZ).status_code == 200
    assert stored.content(blobs, key) == body


def test_commit_of_known_bytes_can_be_repeated(tenant):
    body = npz(*sample(20))
    known = tenant.post("/v1/datasets", content=body, headers=NPZ).json()["id"]
    made = tenant.post("/v1/datasets?upload=parts").json()["id"]
    tenant.put(f"/v1/datasets/{made}/parts/1", content=body)
    for _ in range(2):
        assert tenant.post(f"/v1/datasets/{made}/commit").json()["id"] == known


def test_expired_datasets_are_gone_at_once(tenant):
    made = tenant.post("/v1/datasets?days=0.00001", content=npz(*sample(20)), headers=NPZ).json()
    time.sleep(1)
    assert tenant.get(f"/v1/datasets/{made['id']}").status_code == 404
    assert tenant.get("/v1/datasets").json()["items"] == []
    order = {"dataset": made["id"], "method": "temperature"}
    assert tenant.post("/v1/calibrators/c/fits", json=order).status_code == 404


@pytest.mark.one_backend
def test_evaluation_on_the_fitted_rows_is_refused(tenant):
    made = tenant.post("/v1/datasets", content=npz(*sample(20)), headers=NPZ).json()["id"]
    order = {"dataset": made, "evaluation": made, "method": "temperature"}
    told = tenant.post("/v1/calibrators/c/fits", json=order).json()
    assert told["code"] == "evaluation_is_the_dataset"


@pytest.mark.one_backend
def test_two_seeds_are_refused(tenant):
    made = tenant.post("/v1/datasets", content=npz(*sample(20)), headers=NPZ).json()["id"]
    order = {"dataset": made, "method": "smart", "seed": 7, "params": {"seed": 5}}
    assert tenant.post("/v1/calibrators/c/fits", json=order).json()["code"] == "two_seeds"
    order["params"]["seed"] = 7
    assert tenant.post("/v1/calibrators/c/fits", json=order).status_code == 202


@pytest.mark.one_backend
@pytest.mark.parametrize("query", ["day=30", "days=1&days=2", "limit=5"])
def test_query_parameters_that_nobody_reads_are_refused(tenant, query):
    answer = tenant.post(f"/v1/datasets?{query}", content=npz(*sample(20)), headers=NPZ)
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_parameter")
    assert tenant.get("/v1/datasets").json()["items"] == []


@pytest.mark.one_backend
def test_packed_bodies_are_refused(tenant):
    headers = NPZ | {"Content-Encoding": "gzip"}
    answer = tenant.post("/v1/datasets", content=npz(*sample(20)), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")


@pytest.mark.one_backend
@pytest.mark.parametrize("days", [0, -1, 1e9, float("nan"), float("inf")])
def test_invalid_lifetimes_of_keys_are_refused(local, days):
    with local.app.state.parts.database.write() as store:
        workspace = keys.workspace_named(store, "default").id
        with pytest.raises(Invalid):
            keys.create(store, workspace, name="k", scopes=[Scope.ADMIN], days=days)


def test_commits_of_known_bytes_at_once_give_the_known_dataset(tenant):
    body = npz(*sample(2000))
    known = tenant.post("/v1/datasets", content=body, headers=NPZ).json()["id"]
    made = tenant.post("/v1/datasets?upload=parts").json()["id"]
    tenant.put(f"/v1/datasets/{made}/parts/1", content=body)
    answers = at_once(4, lambda _: tenant.post(f"/v1/datasets/{made}/commit"))
    assert {one.status_code for one in answers} <= {200, 201}, [one.text for one in answers]
    assert {one.json()["id"] for one in answers} == {known}
