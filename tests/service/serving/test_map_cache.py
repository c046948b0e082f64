"""Maps in memory: bounded, never stale, never corrupt."""

from __future__ import annotations

import gc
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from helpers import raw_blobs as stored
from helpers.live_service import in_process
from helpers.registration import temperature_registration
from helpers.samples import draw, suited

from calibrators import all_methods, archive
from service.serving import map_cache

pytestmark = pytest.mark.both_backends


def register(client, name: str, temperature: float) -> None:
    body = temperature_registration(temperature)
    assert client.post(f"/v1/calibrators/{name}/versions", json=body).status_code == 201


def promote(client, name: str, version: int):
    body = {"version": version, "force": True, "reason": "test"}
    return client.put(f"/v1/calibrators/{name}/aliases/production", json=body)


def served(client, name: str, ref: str = "production"):
    return client.get(f"/v1/calibrators/{name}@{ref}/predict?logits=3,1,0")


def key_of(client, name: str, version: int) -> str:
    facts = client.get(f"/v1/calibrators/{name}/versions/{version}").json()
    return stored.only_key(client.app.state.parts.blobs, facts["map_sha256"])


def test_cache_is_bounded_and_evicted_maps_are_reloaded(backend, tmp_path):
    with in_process(**backend.settings(tmp_path), map_cache_bytes=10_000) as client:
        for name in ("a", "b", "c"):
            register(client, name, 2.0)
            promote(client, name, 1)
            assert served(client, name).status_code == 200
        assert len(client.app.state.parts.maps) == 2
        assert served(client, "a").status_code == 200
        register(client, "a", 5.0)
        promote(client, "a", 2)
        assert served(client, "a").json()["version"] == 2


def test_a_move_does_not_wait_for_a_poll_of_all_aliases(local):
    """Others may have thousands of aliases in use, and polling all of them takes seconds."""
    register(local, "moved", 1.0)
    register(local, "moved", 2.0)
    promote(local, "moved", 1)
    assert served(local, "moved").json()["version"] == 1
    with ThreadPoolExecutor() as threads, local.app.state.parts.maps._refreshing:
        assert threads.submit(promote, local, "moved", 2).result(timeout=20).status_code == 200
        assert served(local, "moved").json()["version"] == 2


def test_a_key_change_does_not_wait_for_a_poll_of_all_aliases(local):
    body = {"name": "ci", "scopes": ["admin"]}
    with ThreadPoolExecutor() as threads, local.app.state.parts.maps._refreshing:
        answer = threads.submit(local.post, "/v1/keys", json=body).result(timeout=20)
    assert answer.status_code == 201


def test_a_workspace_has_a_limit_of_aliases_in_use(local, monkeypatch):
    monkeypatch.setattr(map_cache, "ALIASES_PER_WORKSPACE", 3)
    register(local, "many", 1.0)
    body = {"version": 1, "force": True, "reason": "test"}
    for number in range(5):
        local.put(f"/v1/calibrators/many/aliases/a{number}", json=body)
    maps = local.app.state.parts.maps
    for _ in range(2):
        for number in range(5):
            assert served(local, "many", f"a{number}").status_code == 200
        (in_use,) = maps._aliases.values()
        assert [place.ref for place in in_use] == ["a2", "a3", "a4"]
    assert served(local, "many", "1").status_code == 200
    assert maps.bytes == 4 * map_cache.PLACE_OVERHEAD + sum(
        one.bytes for one in maps._versions.values()
    )


def test_a_corrupt_map_is_never_served_and_the_old_one_stays_in_use(local):
    register(local, "c", 1.0)
    register(local, "c", 2.0)
    promote(local, "c", 1)
    before = served(local, "c").json()
    blobs, key = local.app.state.parts.blobs, key_of(local, "c", 2)
    content = stored.content(blobs, key)
    stored.overwrite(blobs, key, content[:-1] + bytes([content[-1] ^ 1]))
    assert promote(local, "c", 2).status_code == 200
    assert served(local, "c").json() == before
    direct = served(local, "c", "2")
    assert direct.status_code == 500
    assert direct.json()["code"] == "blob_corrupt"
    stored.overwrite(blobs, key, content)
    local.app.state.parts.maps.refresh()
    assert served(local, "c").json()["version"] == 2


@pytest.mark.one_backend
@pytest.mark.parametrize("method", sorted(all_methods()))
def test_applying_a_map_adds_nothing_to_its_size(method):
    """Otherwise the cache would hold more than it counts."""
    recipe = all_methods()[method](**({"steps": 20} if method == "smart" else {}))
    data = suited(draw(600, 5), recipe)
    fitted = archive.load(archive.dump(recipe.fit(data)))
    map_cache.compute_properties(fitted)
    size = map_cache.size_of(fitted)
    fitted.apply_set(data)
    assert map_cache.size_of(fitted) == size


def test_missing_map_is_reported(local):
    register(local, "c", 1.0)
    stored.remove(local.app.state.parts.blobs, key_of(local, "c", 1))
    answer = served(local, "c", "1")
    assert (answer.status_code, answer.json()["code"]) == (500, "blob_missing")


def test_fingerprints(local):
    body = temperature_registration(2.0, model="cnn-7")
    local.post("/v1/calibrators/c/versions", json=body)
    same = local.get("/v1/calibrators/c@1/predict?logits=3,1,0", headers={"Calibrd-Model": "cnn-7"})
    assert same.status_code == 200
    other = {"Calibrd-Model": "cnn-8"}
    refused = local.get("/v1/calibrators/c@1/predict?logits=3,1,0", headers=other)
    assert (refused.status_code, refused.json()["code"]) == (409, "model_mismatch")
    assert "cnn-7" in refused.json()["detail"]
    warned = local.get("/v1/calibrators/c@1/predict?logits=3,1,0&fingerprint=warn", headers=other)
    assert warned.status_code == 200
    assert "model_mismatch" in warned.headers["calibrd-warning"]


def test_a_version_is_held_once_under_all_its_names(local):
    register(local, "c", 2.0)
    promote(local, "c", 1)
    maps = local.app.state.parts.maps
    before = len(maps)
    for ref in ("1", "production"):
        assert served(local, "c", ref).status_code == 200
    held = maps.bytes
    for ref in ("01", "001", "0001", "0"):
        refused = served(local, "c", ref)
        assert (refused.status_code, refused.json()["code"]) == (404, "no_such_version")
    assert (len(maps), maps.bytes) == (before + 1, held)


@contextmanager
def unfinished_call(client, path: str):
    """Send a request whose body does not end."""
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, timeout=20) as line:
        line.sendall(
            f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n2\r\n{ \r\n".encode()
        )
        yield line


@pytest.mark.one_backend
@pytest.mark.parametrize("path", ["/v1/calibrators/a@1/predict", "/v2/models/a/versions/1/infer"])
def test_a_call_keeps_no_map_in_memory_while_its_body_arrives(tmp_path, path):
    with in_process(tmp_path, map_cache_bytes=1024) as client:
        for name in ("a", "b"):
            register(client, name, 2.0)
        maps = client.app.state.parts.maps
        assert served(client, "a", "1").status_code == 200
        with unfinished_call(client, path):
            time.sleep(0.3)  # until it has reached the route
            assert served(client, "b", "1").status_code == 200  # the cache holds one map: drops a
            gc.collect()
            assert [one.calibrator for one in maps._in_use.values()] == ["b"]


@pytest.mark.one_backend
def test_maps_that_calls_still_use_limit_how_many_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(map_cache, "ROOM_SECONDS", 0.5)
    with in_process(tmp_path, map_cache_bytes=10_000) as client:
        maps, names = client.app.state.parts.maps, [f"m{n}" for n in range(10)]
        for name in names:
            register(client, name, 2.0)
        used, status = [], []
        for name in names:
            status.append(served(client, name, "1").status_code)
            used += maps._in_use.values()  # as a running call would
        assert status.count(200) < 6
        refused = served(client, names[-1], "1")
        assert refused.status_code == 429
        assert refused.json()["code"] == "too_much_in_flight"
        assert refused.headers["retry-after"]
        assert served(client, names[0], "1").status_code == 200  # in use: not loaded again
        used.clear()
        assert served(client, names[-1], "1").status_code == 200


@pytest.mark.one_backend
def test_a_dropped_map_that_is_in_use_is_not_loaded_twice(tmp_path):
    with in_process(tmp_path, map_cache_bytes=1024) as client:
        for name in ("a", "b"):
            register(client, name, 2.0)
        maps = client.app.state.parts.maps
        served(client, "a", "1")
        (used,) = maps._in_use.values()
        served(client, "b", "1")
        assert used.id not in maps._versions
        served(client, "a", "1")
        assert maps._versions[used.id] is used
