"""Fit, version, promote, roll back, predict and report, on the real service with its worker."""

from __future__ import annotations

import io
import json

import numpy as np
import onnxruntime
import pytest
from helpers.live_service import NPZ, npz, sample, wait_until
from helpers.registration import registration

from calibrators import CalibrationSet, archive, fit_and_judge
from calibrators.methods.temperature import TemperatureScaling

pytestmark = pytest.mark.both_backends

WAIT = {"Prefer": "wait=60"}


def fit(client, name, *, query="", rows=1200, seed=0, **headers):
    """Return a finished fit on a sample sent in the same call."""
    body = npz(*sample(rows, seed=seed))
    url = f"/v1/calibrators/{name}/fits?{query or 'method=temperature'}"
    answer = client.post(url, content=body, headers=NPZ | WAIT | headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_one_call_gives_a_version_with_all_its_facts(client):
    done = fit(client, "facts", query="method=temperature&model=sha256:abc&seed=3")
    assert (done["status"], done["versions"], done["device"]) == ("succeeded", [1], "cpu")
    version = client.get("/v1/calibrators/facts/versions/1").json()
    assert version["method"] == "temperature"
    assert version["model"] == "sha256:abc"
    assert version["seed"] == 3
    assert (version["rows"], version["classes"], version["kind"]) == (1200, 5, "logits")
    assert version["verdict"] == "improved"
    assert version["libraries"]["numpy"] == np.__version__
    dataset = client.get(f"/v1/datasets/{done['dataset']}").json()
    assert version["dataset_sha256"] == dataset["sha256"]
    assert version["fit"] == done["id"]


@pytest.mark.one_backend
def test_map_is_the_one_a_local_fit_gives_and_is_cached_by_etag(client):
    fit(client, "same")
    answer = client.get("/v1/calibrators/same/versions/1/map")
    logits, labels = sample(1200)
    expected = TemperatureScaling().fit(CalibrationSet(logits, labels))
    assert archive.load(answer.content).apply(logits) == pytest.approx(expected.apply(logits))
    etag = answer.headers["etag"]
    assert "immutable" in answer.headers["cache-control"]
    again = client.get("/v1/calibrators/same/versions/1/map", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.one_backend
def test_onnx_agrees_with_predict(client):
    fit(client, "exported", query="method=smart")
    model = client.get("/v1/calibrators/exported/versions/1/onnx").content
    logits, _ = sample(7)
    session = onnxruntime.InferenceSession(model)
    (theirs,) = session.run(None, {"logits": logits})
    file = io.BytesIO()
    np.save(file, logits)
    ours = client.post(
        "/v1/calibrators/exported@1/predict",
        content=file.getvalue(),
        headers={"Content-Type": "application/x-npy"},
    )
    assert np.load(io.BytesIO(ours.content)) == pytest.approx(theirs, abs=1e-6)


def test_several_methods_in_one_job_are_several_versions(client):
    done = fit(client, "several", query="method=temperature&method=smart&method=auto")
    assert done["versions"] == [1, 2, 3]
    listed = client.get("/v1/calibrators/several/versions").json()["items"]
    assert [one["method"] for one in listed] == ["auto", "smart", "temperature"]


@pytest.mark.one_backend
def test_evaluation_dataset_judges(client):
    ids = [
        client.post("/v1/datasets", content=npz(*sample(1500, seed=s)), headers=NPZ).json()["id"]
        for s in (11, 12)
    ]
    order = {"dataset": ids[0], "evaluation": ids[1], "method": "temperature"}
    done = client.post("/v1/calibrators/judged/fits", json=order, headers=WAIT).json()
    assert done["status"] == "succeeded"
    report = client.get("/v1/calibrators/judged/versions/1/report").json()
    assert "separate evaluation set of 1,500 rows" in report["judged_on"]


@pytest.mark.one_backend
def test_held_out_fraction_judges(client):
    fit(client, "held", query="method=temperature&held_out=0.4")
    report = client.get("/v1/calibrators/held/versions/1/report").json()
    assert report["n"] == 480


def test_progress_comes_as_events_and_ends(client):
    body = {"logits": sample(1200)[0].tolist(), "labels": sample(1200)[1].tolist()}
    order = body | {"method": "smart", "params": {"steps": 1000}}
    made = client.post("/v1/calibrators/watched/fits", json=order).json()
    events = []
    with client.stream("GET", f"/v1/fits/{made['id']}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("event: "):
                events.append(line.removeprefix("event: "))
            elif line.startswith("data: "):
                last = json.loads(line.removeprefix("data: "))
    assert events[-1] == "succeeded"
    assert "running" in events
    assert last["versions"] == [1]
    assert (last["progress"]["step"], last["progress"]["total"]) == (1000, 1000)
    assert last["progress"]["loss"] is not None
    assert last["progress"]["methods_done"] == last["progress"]["methods"] == 1


def test_running_fit_is_cancelled_and_writes_nothing(client):
    body = npz(*sample(3000))
    query = 'method=smart&params={"steps":100000}'
    made = client.post(f"/v1/calibrators/stopped/fits?{query}", content=body, headers=NPZ).json()
    url = f"/v1/fits/{made['id']}"
    wait_until(lambda: (client.get(url).json()["progress"] or {}).get("step"))
    assert client.delete(url).json()["cancel_requested"] is True
    ended = wait_until(lambda: (one := client.get(url).json())["finished_at"] and one, 5)
    assert (ended["status"], ended["versions"]) == ("cancelled", [])
    assert client.get("/v1/calibrators/stopped/versions").json()["items"] == []
    assert client.delete(url).status_code == 200


@pytest.mark.one_backend
def test_failed_fit_has_a_hint(client):
    body = npz(*sample(3))
    url = "/v1/calibrators/tiny/fits?method=temperature"
    done = client.post(url, content=body, headers=NPZ | WAIT)
    assert (done.status_code, done.json()["status"]) == (202, "failed")
    error = done.json()["error"]
    assert error["code"] == "too_few_rows"
    assert "at least 5 rows" in error["message"]


def test_delete_after_fit(client):
    done = fit(client, "spent", query="method=temperature&delete_after_fit=true", seed=21)
    wait_until(lambda: client.get(f"/v1/datasets/{done['dataset']}").status_code == 404)


def test_idempotency_key_gives_the_same_fit_once(client):
    key = {"Idempotency-Key": "order 66"}
    first = fit(client, "once", **key)
    second = client.post(
        "/v1/calibrators/once/fits?method=temperature",
        content=npz(*sample(1200)),
        headers=NPZ | key,
    )
    assert second.json()["id"] == first["id"]
    assert second.headers["idempotent-replayed"] == "true"
    other = client.post(
        "/v1/calibrators/once/fits?method=identity", content=npz(*sample(1200)), headers=NPZ | key
    )
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert client.get("/v1/calibrators/once/versions").json()["items"][0]["number"] == 1


@pytest.mark.one_backend
def test_an_idempotency_key_is_for_bytes_of_one_kind(client):
    body = npz(*sample(), name="values")  # which does not say whether they are logits
    key = {**NPZ, "Idempotency-Key": "kinds"}
    url = "/v1/calibrators/kinds/fits?method=temperature&kind="
    assert client.post(f"{url}logits", content=body, headers=key).status_code == 202
    assert client.post(f"{url}logits", content=body, headers=key).status_code == 202
    other = client.post(f"{url}probabilities", content=body, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


@pytest.mark.one_backend
def test_reports_in_every_form(client):
    fit(client, "reported")
    url = "/v1/calibrators/reported/versions/1/report"
    assert client.get(url).json() == client.get(f"{url}.json").json()
    page = client.get(f"{url}.html")
    assert page.text.startswith("<!doctype html>") or page.text.startswith("<!DOCTYPE html>")
    assert "https://" not in page.text.replace("https://www.w3.org", "").replace(
        "https://doi.org", ""
    )
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get(f"{url}.svg").text.lstrip().startswith("<svg")
    assert client.get(f"{url}.png").content.startswith(b"\x89PNG")
    assert client.get(f"{url}.pdf").status_code == 404


def test_map_fitted_elsewhere_is_registered_and_served(client):
    logits, labels = sample(1500)
    fitted, report = fit_and_judge(TemperatureScaling(), CalibrationSet(logits, labels))
    facts = {"report": report.to_dict(), "model": "m1", "tags": {"team": "vision"}}
    body = registration(fitted, **facts)
    made = client.post("/v1/calibrators/registered/versions", json=body)
    assert made.status_code == 201, made.text
    assert (made.json()["verdict"], made.json()["has_onnx"]) == ("improved", False)
    assert client.get(made.headers["location"]).json() == made.json()
    row = logits[0].tolist()
    answer = client.post("/v1/calibrators/registered@1/predict", json={"logits": [row]}).json()
    assert answer["probabilities"] == pytest.approx(fitted.apply([row]), abs=1e-6)
    broken = body | {"map": "bm9uc2Vuc2U="}
    assert client.post("/v1/calibrators/registered/versions", json=broken).status_code == 422


def test_notes_change_and_nothing_else(client):
    fit(client, "noted")
    url = "/v1/calibrators/noted/versions/1"
    before = client.get(url).json()
    changed = client.patch(url, json={"tags": {"stage": "trial"}, "description": "first"})
    assert changed.json() == before | {"tags": {"stage": "trial"}, "description": "first"}
    assert client.patch(url, json={"method": "smart"}).status_code == 422
    assert client.patch(url, json={"description": ""}).json()["tags"] == {"stage": "trial"}


@pytest.mark.one_backend
def test_reports_are_not_drawn_again_for_those_who_have_them(client):
    fit(client, "drawn")
    for form in (".html", ".svg", ".png"):
        url = f"/v1/calibrators/drawn/versions/1/report{form}"
        etag = client.get(url).headers["etag"]
        again = client.get(url, headers={"If-None-Match": etag})
        assert (again.status_code, again.content) == (304, b"")
