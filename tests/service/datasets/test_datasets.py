"""Datasets over HTTP: uploaded whole or in parts, found, deleted, and expired."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pytest
from helpers import raw_blobs as stored
from helpers.live_service import NPZ, in_process, npz, sample

pytestmark = pytest.mark.both_backends


def test_upload_is_checked_hashed_and_kept_once(local):
    body = npz(*sample())
    first = local.post("/v1/datasets", content=body, headers=NPZ)
    assert first.status_code == 201
    made = first.json()
    assert made["sha256"] == hashlib.sha256(body).hexdigest()
    assert (made["rows"], made["classes"], made["kind"], made["status"]) == (
        600,
        5,
        "logits",
        "ready",
    )
    again = local.post("/v1/datasets", content=body, headers=NPZ)
    assert again.status_code == 200
    assert again.json()["id"] == made["id"]
    assert len(stored.keys(local.app.state.parts.blobs)) == 1


def test_hash_can_be_checked_before_the_upload(tenant):
    body = npz(*sample())
    digest = hashlib.sha256(body).hexdigest()
    assert tenant.head(f"/v1/datasets/sha256:{digest}").status_code == 404
    made = tenant.post("/v1/datasets", content=body, headers=NPZ).json()
    found = tenant.head(f"/v1/datasets/sha256:{digest}")
    assert found.status_code == 200
    assert found.headers["location"] == f"/v1/datasets/{made['id']}"
    assert tenant.get(f"/v1/datasets/sha256:{digest}").json()["id"] == made["id"]


@pytest.mark.one_backend
def test_json_safetensors_and_npz_hold_the_same(tenant):
    from safetensors.numpy import save

    logits, labels = sample(20)
    bodies = {
        "application/x-npz": npz(logits, labels),
        "application/x-safetensors": save({"logits": logits, "labels": labels}),
    }
    for media_type, body in bodies.items():
        answer = tenant.post("/v1/datasets", content=body, headers={"Content-Type": media_type})
        assert answer.status_code == 201, answer.text
        assert (answer.json()["rows"], answer.json()["classes"]) == (20, 5)
    document = {"logits": logits.tolist(), "labels": labels.tolist()}
    assert tenant.post("/v1/datasets", json=document).json()["rows"] == 20


def test_segments_are_counted_and_part_of_the_bytes(tenant):
    logits, labels = sample(20)
    lists = {"logits": logits.tolist(), "labels": labels.tolist()}
    plain = tenant.post("/v1/datasets", json=lists).json()
    named = tenant.post("/v1/datasets", json={**lists, "segments": ["web", "app"] * 10}).json()
    other = tenant.post("/v1/datasets", json={**lists, "segments": ["web"] * 20}).json()
    assert (plain["segments"], named["segments"], other["segments"]) == (None, 2, 1)
    assert len({one["sha256"] for one in (plain, named, other)}) == 3
    listed = {one["id"]: one["segments"] for one in tenant.get("/v1/datasets").json()["items"]}
    assert listed == {one["id"]: one["segments"] for one in (plain, named, other)}


@pytest.mark.one_backend
def test_kind_is_declared_and_never_guessed(tenant):
    logits, labels = sample(50)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    named = tenant.post("/v1/datasets", content=npz(p, labels, "probabilities"), headers=NPZ)
    assert named.json()["kind"] == "probabilities"
    contradicted = tenant.post(
        "/v1/datasets?kind=logits", content=npz(p, labels, "probabilities"), headers=NPZ
    )
    assert contradicted.status_code == 422
    wrong = tenant.post(
        "/v1/datasets?kind=probabilities", content=npz(logits, labels, "probabilities"), headers=NPZ
    )
    assert wrong.json()["code"] == "not_a_probability"


def parts_of(body: bytes, count: int) -> list[bytes]:
    step = -(-len(body) // count)
    return [body[start : start + step] for start in range(0, len(body), step)]


def test_parts_in_any_order_twice_and_resumed(local):
    body = npz(*sample())
    made = local.post("/v1/datasets?upload=parts").json()
    url = f"/v1/datasets/{made['id']}"
    assert (made["status"], made["parts"]) == ("uploading", [])
    parts = parts_of(body, 3)
    local.put(f"{url}/parts/3", content=parts[2])
    local.put(f"{url}/parts/1", content=b"a first try that was wrong")
    local.put(f"{url}/parts/1", content=parts[0])
    early = local.post(f"{url}/commit", json={"parts": 3})
    assert (early.status_code, early.json()["code"]) == (409, "parts_missing")
    assert early.json()["missing"] == [2]
    there = local.get(url).json()["parts"]
    assert [part["number"] for part in there] == [1, 3]
    assert there[0]["sha256"] == hashlib.sha256(parts[0]).hexdigest()
    local.put(f"{url}/parts/2", content=parts[1])
    done = local.post(f"{url}/commit", json={"sha256": hashlib.sha256(body).hexdigest()})
    assert done.status_code == 200, done.text
    assert (done.json()["status"], done.json()["rows"]) == ("ready", 600)
    assert local.post(f"{url}/commit").json() == done.json()
    assert local.put(f"{url}/parts/4", content=b"late").status_code == 409


def test_parts_that_make_known_bytes_give_the_known_dataset(tenant):
    body = npz(*sample())
    known = tenant.post("/v1/datasets", content=body, headers=NPZ).json()
    made = tenant.post("/v1/datasets?upload=parts").json()
    tenant.put(f"/v1/datasets/{made['id']}/parts/1", content=body)
    done = tenant.post(f"/v1/datasets/{made['id']}/commit")
    assert done.json()["id"] == known["id"]
    assert tenant.get(f"/v1/datasets/{made['id']}").status_code == 404


def test_inconsistent_parts_are_refused_and_can_be_corrected(local):
    body = npz(*sample())
    made = local.post("/v1/datasets?upload=parts").json()
    url = f"/v1/datasets/{made['id']}"
    local.put(f"{url}/parts/1", content=body[:-1])
    assert local.post(f"{url}/commit").status_code == 400
    wrong = local.post(f"{url}/commit", json={"sha256": "0" * 64})
    assert wrong.json()["code"] == "hash_differs"
    local.put(f"{url}/parts/1", content=body)
    assert local.post(f"{url}/commit").json()["status"] == "ready"


def test_list_goes_page_by_page_and_ends(tenant):
    made = [
        tenant.post("/v1/datasets", content=npz(*sample(10, seed=seed)), headers=NPZ).json()["id"]
        for seed in range(5)
    ]
    seen, cursor = [], None
    for _ in range(5):
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = tenant.get("/v1/datasets", params=query).json()
        seen += [one["id"] for one in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == made[::-1]
    assert tenant.get("/v1/datasets?cursor=nonsense").json()["code"] == "bad_cursor"


def test_deleted_datasets_are_gone_with_their_bytes(local):
    made = local.post("/v1/datasets", content=npz(*sample(10)), headers=NPZ).json()
    url = f"/v1/datasets/{made['id']}"
    assert local.delete(url).status_code == 204
    assert local.get(url).status_code == 404
    assert local.delete(url).status_code == 404
    assert stored.keys(local.app.state.parts.blobs) == []


def test_dataset_of_an_unfinished_fit_cannot_be_deleted(tenant):
    made = tenant.post("/v1/datasets", content=npz(*sample(10)), headers=NPZ).json()
    order = {"dataset": made["id"], "method": "temperature"}
    fit = tenant.post("/v1/calibrators/c/fits", json=order).json()
    refused = tenant.delete(f"/v1/datasets/{made['id']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "dataset_in_use")
    tenant.delete(f"/v1/fits/{fit['id']}")
    assert tenant.delete(f"/v1/datasets/{made['id']}").status_code == 204


def test_days_to_keep_are_stored(local, backend, tmp_path):
    made = local.post("/v1/datasets?days=2", content=npz(*sample(10)), headers=NPZ).json()
    assert made["expires_at"] > made["created_at"]
    with in_process(**backend.settings(tmp_path / "other"), dataset_days=7) as other:
        made = other.post("/v1/datasets", content=npz(*sample(10)), headers=NPZ).json()
        assert made["expires_at"] is not None


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (npz(np.array([[1.0, np.nan]]), np.array([0])), 422, "nan"),
        (npz(np.zeros((2, 3)), np.array([0, 3])), 422, "label_out_of_range"),
        (npz(np.zeros((2, 3)), np.array([0.0, 1.0])), 422, "labels_not_integers"),
        (npz(np.zeros((2, 3), dtype=complex), np.array([0, 1])), 422, None),
        (b"", 400, None),
        (b"PK\x03\x04 is not a zip", 400, None),
    ],
)
def test_bad_bodies_are_refused_with_a_reason(local, body, status, code):
    answer = local.post("/v1/datasets", content=body, headers=NPZ)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.status_code == status, answer.text
    assert code is None or answer.json()["code"] == code
    folder = local.app.state.parts.settings.data_dir
    assert not [path for path in (folder / "uploads").rglob("*") if path.is_file()]


@pytest.mark.one_backend
def test_npy_alone_has_no_labels(tenant):
    file = io.BytesIO()
    np.save(file, np.zeros((2, 3)))
    answer = tenant.post(
        "/v1/datasets", content=file.getvalue(), headers={"Content-Type": "application/x-npy"}
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "no_labels")


@pytest.mark.one_backend
def test_unknown_content_type_is_415(tenant):
    answer = tenant.post("/v1/datasets", content=b"a,b", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert "application/x-npz" in answer.json()["detail"]


def test_identical_bytes_are_kept_for_the_longest_requested_period(tenant):
    body = npz(*sample(10))
    url = "/v1/datasets?days=1&delete_after_fit=true"
    first = tenant.post(url, content=body, headers=NPZ).json()
    longer = tenant.post("/v1/datasets?days=9", content=body, headers=NPZ).json()
    assert longer["expires_at"] > first["expires_at"]
    assert longer["delete_after_fit"] is False
    shorter = tenant.post(url, content=body, headers=NPZ).json()
    assert shorter == longer
    assert tenant.post("/v1/datasets", content=body, headers=NPZ).json()["expires_at"] is None
    assert tenant.post(url, content=body, headers=NPZ).json()["expires_at"] is None
