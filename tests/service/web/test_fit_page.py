"""The page of a fit: its content for each role, and its links."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.dashboard_pages import HTML, MARKUP, add_fit, check_page, csrf_of, make_key, signed_in
from helpers.live_service import NPZ, Local, in_process, npz, sample
from helpers.workspace_contents import fitted_elsewhere

from calibrators.error_codes import ERROR_CODES
from service.access import keys
from service.access.permissions import Scope
from service.storage.records import FitStatus


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with a key and a calibrator."""
    with in_process(tmp_path_factory.mktemp("job")) as made:
        made.post("/v1/calibrators/fashion/versions", json=fitted_elsewhere())
        make_key(made, Scope.ADMIN, name="first")
        yield made


@pytest.fixture
def fitter(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.FIT, name="fitter") as made:
        yield made


def words(client: Local, id: str) -> str:
    return " ".join(check_page(client.get(f"/jobs/{id}")).words.split())


def test_a_queued_fit_shows_its_data_and_creator(service: Local, fitter: Local) -> None:
    csrf = {"X-CSRF-Token": csrf_of(fitter)}
    upload = fitter.post("/v1/datasets", content=npz(*sample(60, 5)), headers={**NPZ, **csrf})
    order = {
        "dataset": upload.json()["id"],
        "methods": [{"method": "temperature"}, {"method": "smart", "params": {"steps": 100}}],
        "model": "sha256:0f1e",
        "description": "nightly",
    }
    id = fitter.post("/v1/calibrators/fashion/fits", json=order, headers=csrf).json()["id"]
    told = words(fitter, id)
    assert "Fit of fashion queued waiting for a worker" in told
    assert "temperature, smart (steps=100)" in told
    assert "60 rows of logits, 5 classes, npz" in told
    assert "sha256:0f1e" in told
    assert "nightly" in told
    assert "just now by fitter (key " in told
    assert "No worker is alive" in told
    with service.app.state.parts.database.write() as store:
        store.workers.beat("one", queues=["fit.cpu"], device="cpu")
    assert "No worker is alive" not in words(fitter, id)
    assert "data-busy" in fitter.get(f"/jobs/{id}").text


def test_a_fit_of_several_methods_recommends_one_and_stays_on_its_page(fitter: Local) -> None:
    order = {"methods": [{"method": one, "params": {}} for one in ("smart", "temperature")]}
    advice = {"version": 4, "reason": "temperature is simpler <b>"}
    facts = {"versions": [3, 4], "order": order, "recommendation": advice}
    page = fitter.get(f"/jobs/{add_fit(fitter, FitStatus.SUCCEEDED, **facts)}")
    shell = check_page(page)
    told = " ".join(shell.words.split())
    assert "version 3 (smart), version 4 (temperature)" in told
    assert "Recommended: version 4. Temperature is simpler <b>." in told
    assert "data-result" not in page.text
    advice = {"version": None, "reason": "none is better than the model itself: smart"}
    page = fitter.get(
        f"/jobs/{add_fit(fitter, FitStatus.SUCCEEDED, **facts | {'recommendation': advice})}"
    )
    assert "No recommendation. None is better" in " ".join(check_page(page).words.split())


@pytest.mark.parametrize(
    ("versions", "result"),
    [([3], "/calibrators/fashion/versions/3"), ([3, 4, 5], "/calibrators/fashion")],
)
def test_a_fit_links_to_its_versions(fitter: Local, versions: list[int], result: str) -> None:
    id = add_fit(fitter, FitStatus.SUCCEEDED, versions=versions, started_at=10, finished_at=12.5)
    page = fitter.get(f"/jobs/{id}")
    links = check_page(page).links
    for number in versions:
        assert f"../calibrators/fashion/versions/{number}" in links
    assert f'data-result="..{result}"' in page.text
    assert "data-busy" not in page.text
    assert "2.5 s" in words(fitter, id)
    assert "Cancel" not in words(fitter, id)


def test_a_failed_fit_shows_the_reason_and_a_hint(fitter: Local) -> None:
    error = {
        "code": "out_of_memory",
        "message": "the worker does not have enough memory for this fit",
    }
    id = add_fit(fitter, FitStatus.FAILED, error=error)
    told = words(fitter, id)
    assert error["message"] in told
    assert ERROR_CODES["out_of_memory"].page in told
    assert "deleted" in told
    page = fitter.get(f"/jobs/{id}")
    assert 'role="alert"' in page.text
    assert "../new-fit?calibrator=fashion" in check_page(page).links
    unheard = add_fit(fitter, FitStatus.FAILED, error={"code": "unheard_of", "message": "so be it"})
    assert "so be it" in words(fitter, unheard)


def test_cancelling_on_the_page_of_a_fit_returns_to_it(fitter: Local) -> None:
    id = add_fit(fitter)
    form = {"csrf": csrf_of(fitter), "stay": "1"}
    answer = fitter.post(f"/jobs/{id}/cancel", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, f"../../jobs/{id}")
    assert "cancelled The fit was cancelled; no version was created" in words(fitter, id)
    running = add_fit(fitter, FitStatus.RUNNING)
    fitter.post(f"/jobs/{running}/cancel", data=form)
    assert "being cancelled" in words(fitter, running)
    assert fitter.post(f"/jobs/{running}/cancel", data={"stay": "1"}).status_code == 403


def test_fits_of_other_workspaces_and_missing_fits_are_not_found(
    service: Local, fitter: Local
) -> None:
    parts = service.app.state.parts
    id = add_fit(service)
    with parts.database.write() as store:
        elsewhere = keys.workspace_named(store, "elsewhere", make=True).id
        token = keys.create(store, elsewhere, name="stranger", scopes=[Scope.ADMIN]).token
    parts.keys.refresh()
    stranger = {**HTML, "Authorization": f"Bearer {token}"}
    assert fitter.get(f"/jobs/{id}").status_code == 200
    assert service.get(f"/jobs/{id}", headers=stranger).status_code == 404
    assert fitter.get("/jobs/fit_0").status_code == 404
    with signed_in(service, Scope.PREDICT) as reader:
        assert reader.get(f"/jobs/{id}").status_code == 403


def test_lists_of_fits_lead_to_their_pages(service: Local, fitter: Local) -> None:
    id = add_fit(service, FitStatus.RUNNING)
    for path in ("/jobs", "/"):
        assert f"./jobs/{id}" in check_page(fitter.get(path)).links


def test_user_input_is_shown_as_text(fitter: Local) -> None:
    order = {
        "methods": [{"method": MARKUP, "params": {MARKUP: MARKUP}}],
        "model": MARKUP,
        "description": MARKUP,
    }
    facts = {
        "calibrator_name": MARKUP,
        "created_by": MARKUP,
        "order": order,
        "worker": MARKUP,
        "device": MARKUP,
        "dataset": MARKUP,
    }
    ends = [
        (FitStatus.FAILED, {"error": {"code": MARKUP, "message": MARKUP}}),
        (FitStatus.RUNNING, {"progress": {"method": MARKUP, "step": 1, "total": 2}}),
        (FitStatus.SUCCEEDED, {"versions": [1]}),
    ]
    for status, more in ends:
        shell = check_page(fitter.get(f"/jobs/{add_fit(fitter, status, **facts, **more)}"))
        assert "img" not in shell.tags
        assert shell.words.count("onerror=alert(1)") > 5
        assert all(link.startswith(("../", "data:,", "#")) for link in shell.links)


def test_segments_of_the_data_are_counted(fitter: Local) -> None:
    csrf = {"X-CSRF-Token": csrf_of(fitter)}
    logits, labels = sample(60, 5)
    rows = {"logits": logits.tolist(), "labels": labels.tolist()}
    for segments, told in ((["web", "app"] * 30, "2 segments"), (["web"] * 60, "1 segment")):
        body = {**rows, "segments": segments, "method": "segmented"}
        made = fitter.post("/v1/calibrators/fashion/fits", json=body, headers=csrf)
        assert f"5 classes, {told}, json" in words(fitter, made.json()["id"])
