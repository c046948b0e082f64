"""Parts sent directly to the store by presigned URLs, and the error where this is impossible."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.backends import Fleet
from helpers.live_service import Local, in_process, npz, sample

from service.access import keys
from service.access.permissions import Principal, Scope


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def parts_of(body: bytes, count: int) -> list[bytes]:
    step = -(-len(body) // count)
    return [body[start : start + step] for start in range(0, len(body), step)]


def promise(parts: dict[int, bytes]) -> dict[str, Any]:
    """Return the body that requests URLs."""
    return {
        "parts": [
            {"number": number, "bytes": len(part), "sha256": digest(part)}
            for number, part in parts.items()
        ]
    }


def signed(client: httpx.Client, url: str, parts: dict[int, bytes]) -> dict[int, str]:
    """Return the URL of each part."""
    answer = client.post(f"{url}/parts/presigned", json=promise(parts))
    assert answer.status_code == 200, answer.text
    given = answer.json()["parts"]
    assert {one["method"] for one in given} == {"PUT"}
    return {one["number"]: one["url"] for one in given}


def send(url: str, content: bytes) -> int:
    """PUT a body to a presigned URL without a key; return the status."""
    return httpx.put(url, content=content, timeout=60).status_code


def opened(client: httpx.Client) -> str:
    return f"/v1/datasets/{client.post('/v1/datasets?upload=parts').json()['id']}"


def numbers_there(client: httpx.Client, url: str) -> list[int]:
    return [part["number"] for part in client.get(url).json()["parts"]]


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, shared_fleet: Fleet, tmp_path: Path) -> Iterator[Local]:
    """Return the app over a store that presigns URLs, with either database."""
    settings = shared_fleet.settings(tmp_path)
    if request.param == "sqlite":
        del settings["database_url"]
    with in_process(**settings) as made:
        yield made


@pytest.fixture(scope="module")
def limited(shared_fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Return the app with small limits."""
    settings = shared_fleet.settings(tmp_path_factory.mktemp("limited"))
    with in_process(**settings, max_part_bytes=4096, max_upload_bytes=10_000) as made:
        yield made


def test_a_folder_refuses_with_an_alternative(tmp_path: Path) -> None:
    with in_process(tmp_path) as local:
        url = opened(local)
        answer = local.post(f"{url}/parts/presigned", json=promise({1: b"x"}))
        assert (answer.status_code, answer.json()["code"]) == (409, "no_presigned_uploads")
        assert f"PUT {url}/parts/{{number}}" in answer.json()["detail"]
        assert local.get(url).json()["parts"] == []
        assert local.put(f"{url}/parts/1", content=b"x").status_code == 200


def test_parts_go_straight_to_the_store_without_a_key(store: Local) -> None:
    token = store.post("/v1/keys", json={"name": "fits", "scopes": ["admin"]}).json()["token"]
    store.headers["Authorization"] = f"Bearer {token}"
    body = npz(*sample())
    parts = dict(enumerate(parts_of(body, 3), 1))
    url = opened(store)
    before = time.time()
    answer = store.post(f"{url}/parts/presigned", json=promise(parts)).json()["parts"]
    assert [one["number"] for one in answer] == [1, 2, 3]
    ends = {datetime.fromisoformat(one["expires_at"]).timestamp() - before for one in answer}
    assert 890 < min(ends) <= max(ends) < 960
    for one in answer:
        assert send(one["url"], parts[one["number"]]) == 200
    assert numbers_there(store, url) == [1, 2, 3]
    done = store.post(f"{url}/commit", json={"parts": 3, "sha256": digest(body)})
    assert done.status_code == 200, done.text
    assert (done.json()["status"], done.json()["rows"]) == ("ready", 600)
    assert not blobs_below(store, "parts")


def blobs_below(local: Local, kind: str) -> list[str]:
    """Return the keys of a kind that are in the store."""
    keys = (blob.key for blob in local.app.state.parts.blobs.list())
    return [key for key in keys if f"/{kind}/" in key]


def test_announced_parts_that_never_arrived_are_missing_and_can_be_sent_later(store: Local) -> None:
    body = npz(*sample())
    parts = dict(enumerate(parts_of(body, 4), 1))
    url = opened(store)
    urls = signed(store, url, parts)
    early = store.post(f"{url}/commit")
    assert (early.status_code, early.json()["code"]) == (409, "parts_missing")
    for number in (1, 3):
        assert send(urls[number], parts[number]) == 200
    assert numbers_there(store, url) == [1, 3]
    half = store.post(f"{url}/commit")
    assert (half.status_code, half.json()["missing"]) == (409, [2, 4])
    # a resumed upload requests URLs for missing parts only
    missing = {number: parts[number] for number in (2, 4)}
    for number, one in signed(store, url, missing).items():
        assert send(one, parts[number]) == 200
    assert numbers_there(store, url) == [1, 2, 3, 4]
    assert store.post(f"{url}/commit").json()["sha256"] == digest(body)


@pytest.mark.parametrize("wrong", ["shorter", "other"])
@pytest.mark.parametrize("again", ["by the same url", "by a new url", "to the service"])
def test_wrong_bytes_are_refused_and_can_be_resent(store: Local, wrong: str, again: str) -> None:
    body = npz(*sample())
    one, two = parts_of(body, 2)
    url = opened(store)
    urls = signed(store, url, {1: one, 2: two})
    assert send(urls[1], one) == 200
    assert send(urls[2], two[:-1] if wrong == "shorter" else two[::-1]) == 200
    assert numbers_there(store, url) == ([1] if wrong == "shorter" else [1, 2])
    refused = store.post(f"{url}/commit")
    assert (refused.status_code, refused.json()["code"]) == (409, "part_differs")
    assert refused.json()["number"] == 2
    assert "send it again" in refused.json()["detail"]
    if again == "to the service":
        assert store.put(f"{url}/parts/2", content=two).status_code == 200
    else:
        new = signed(store, url, {2: two})[2] if again == "by a new url" else urls[2]
        assert send(new, two) == 200
    assert store.post(f"{url}/commit").json()["sha256"] == digest(body)


def test_both_ways_may_be_mixed_and_the_last_word_counts(store: Local) -> None:
    body = npz(*sample())
    one, two = parts_of(body, 2)
    url = opened(store)
    assert store.put(f"{url}/parts/1", content=b"a first try").status_code == 200
    assert store.put(f"{url}/parts/2", content=two).status_code == 200
    assert send(signed(store, url, {1: b"a second try"})[1], b"a second try") == 200
    assert send(signed(store, url, {1: one})[1], one) == 200
    assert len(blobs_below(store, "parts")) == 2
    assert store.post(f"{url}/commit").json()["sha256"] == digest(body)
    late = store.post(f"{url}/parts/presigned", json=promise({3: b"late"}))
    assert (late.status_code, late.json()["code"]) == (409, "dataset_complete")


def test_a_url_has_an_expiry_time(store: Local) -> None:
    parts = store.app.state.parts
    with parts.database.read() as rows:
        workspace = keys.workspace_named(rows, keys.DEFAULT_WORKSPACE).id
    owner = Principal(workspace, "tests", frozenset(Scope))
    id = opened(store).rpartition("/")[2]
    (brief,) = parts.part_uploads.sign(owner, id, [(1, 1, digest(b"x"))], seconds=1)
    assert "X-Amz-Expires=1&" in brief.url
    assert brief.expires_at <= time.time() + 1


@pytest.mark.parametrize(
    ("parts", "status", "code"),
    [
        ([], 422, "invalid_request"),
        ([{"number": 0}], 422, "invalid_request"),
        ([{"number": 10_001}], 422, "invalid_request"),
        ([{"bytes": 0}], 422, "invalid_request"),
        ([{"bytes": 4097}], 413, "body_too_large"),
        ([{"bytes": 4096, "number": number} for number in (1, 2, 3)], 413, "body_too_large"),
        ([{"sha256": "A" * 64}], 422, "invalid_request"),
        ([{}, {}], 422, "bad_part"),
        ([{"number": number} for number in range(1, 1002)], 422, "invalid_request"),
    ],
)
def test_announced_parts_that_break_a_rule(
    limited: Local, parts: list[dict[str, Any]], status: int, code: str
) -> None:
    url = opened(limited)
    usual = {"number": 1, "bytes": 1, "sha256": "0" * 64}
    asked = {"parts": [usual | part for part in parts]}
    answer = limited.post(f"{url}/parts/presigned", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    with limited.app.state.parts.database.read() as rows:
        assert rows.datasets.parts_of(url.rpartition("/")[2]) == []


def test_another_workspace_gets_no_url_and_changes_nothing(store: Local) -> None:
    parts = store.app.state.parts
    with parts.database.write() as rows:
        tokens = [
            keys.create(
                rows,
                keys.workspace_named(rows, name, make=True).id,
                name=name,
                scopes=[Scope.ADMIN],
            ).token
            for name in ("a", "b")
        ]
    parts.keys.refresh()
    a, b = ({"Authorization": f"Bearer {token}"} for token in tokens)
    id = store.post("/v1/datasets?upload=parts", headers=a).json()["id"]
    store.put(f"/v1/datasets/{id}/parts/1", content=b"of a", headers=a)
    url = f"/v1/datasets/{id}/parts/presigned"
    assert store.post(url, json=promise({1: b"of b"}), headers=b).status_code == 404
    there = store.get(f"/v1/datasets/{id}", headers=a).json()["parts"]
    assert [part["sha256"] for part in there] == [digest(b"of a")]
    assert store.post(url, json=promise({1: b"of a"}), headers=a).status_code == 200


def test_urls_are_for_where_clients_reach_the_store(shared_fleet: Fleet, tmp_path: Path) -> None:
    # the same server under its external name
    outside = shared_fleet.blobs.url.replace("127.0.0.1", "localhost")
    with in_process(**shared_fleet.settings(tmp_path), sign_endpoint=outside) as local:
        url = opened(local)
        given = signed(local, url, {1: b"x"})[1]
        assert given.startswith(f"{outside}/")
        assert send(given, b"x") == 200
        assert numbers_there(local, url) == [1]


def test_a_big_upload_in_parallel_never_passes_through_the_api(store: Local) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(100_000, 100)).astype(np.float32)
    body = npz(logits, rng.integers(0, 100, 100_000))
    assert len(body) > 40_000_000
    parts = dict(enumerate(parts_of(body, 8), 1))
    sent_to_api: list[int] = []
    store.event_hooks["request"] = [lambda request: sent_to_api.append(len(request.content))]
    url = opened(store)
    urls = signed(store, url, parts)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda n: send(urls[n], parts[n]), parts)) == {200}
    done = store.post(f"{url}/commit", json={"parts": 8, "sha256": digest(body)})
    assert (done.json()["status"], done.json()["bytes"]) == ("ready", len(body))
    assert sum(sent_to_api) < 2000


def blobs_of(client: Local) -> list[str]:
    """Return the keys of all datasets and parts of this test's workspace."""
    found = client.app.state.parts
    with found.database.read() as store:
        workspace = keys.workspace_named(store, keys.DEFAULT_WORKSPACE).id
    return sorted(one.key for one in found.blobs.list(f"{workspace}/"))


def test_bytes_of_writes_that_time_out_are_not_left_behind(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    """A caller could cause the time-outs, so his bytes grew beyond every quota."""
    content = npz(*sample(rows=50))
    with in_process(**shared_fleet.settings(tmp_path), database_seconds=1) as client:
        url, before = opened(client), blobs_of(client)
        assert client.put(f"{url}/parts/1", content=b"a" * 100).status_code == 200
        assert client.put(f"{url}/parts/1", content=content).status_code == 200
        complete = blobs_of(client)
        assert len(complete) == len(before) + 1
        database = client.app.state.parts.database
        with database.write() as store:
            workspace = keys.workspace_named(store, keys.DEFAULT_WORKSPACE).id
            store.keys.lock_workspace(workspace)
            late = client.put(f"{url}/parts/1", content=b"b" * 100)
            assert (late.status_code, late.json()["code"]) == (503, "database_busy")
            assert blobs_of(client) == complete
            assert client.put(f"{url}/parts/1", content=content).status_code == 503
            assert blobs_of(client) == complete  # the row still names these bytes
            assert client.post(f"{url}/commit").status_code == 503
            assert blobs_of(client) == complete
        committed = client.post(f"{url}/commit")
        assert committed.status_code == 200, committed.text
        (key,) = set(blobs_of(client)) - set(before)
        assert "/datasets/" in key


def test_deleting_an_upload_deletes_bytes_that_no_row_names(store: Local) -> None:
    before = blobs_of(store)
    url = opened(store)
    assert store.put(f"{url}/parts/1", content=b"a" * 100).status_code == 200
    (key,) = set(blobs_of(store)) - set(before)
    store.app.state.parts.blobs.put(f"{key.rpartition('/')[0]}/2-{digest(b'left')}", b"left")
    assert store.delete(url).status_code == 204
    assert blobs_of(store) == before
