"""The pages of the dashboard: their content for each role, and their number of queries."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from helpers.dashboard_pages import (
    HTML,
    Shell,
    add_fit,
    check_page,
    csrf_of,
    make_key,
    row_of,
    signed_in,
    statements,
)
from helpers.live_service import Local, in_process
from helpers.workspace_contents import ALIAS, fitted_elsewhere
from sqlalchemy import insert, select

from service.access.permissions import Scope
from service.storage.records import FitStatus
from service.storage.tables import calibrators, reports, versions
from service.web.components.layout import HELP, NAVIGATION


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with a key, a calibrator in production and another one."""
    with in_process(tmp_path_factory.mktemp("pages"), database_url="") as made:
        for name in ("fashion", "digits"):
            answer = made.post(f"/v1/calibrators/{name}/versions", json=fitted_elsewhere())
            assert answer.status_code == 201
        made.put(f"/v1/calibrators/fashion/aliases/{ALIAS}", json={"version": 1})
        make_key(made, Scope.ADMIN, name="first")
        yield made


@pytest.fixture
def admin(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.ADMIN, name="admin") as made:
        yield made


@pytest.fixture
def reader(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.PREDICT, name="reader") as made:
        yield made


@pytest.mark.parametrize(
    "path", [*(one.path for one in NAVIGATION if one.path != HELP), "/sign-in"]
)
def test_every_page_is_under_the_policy_and_leads_nowhere_else(admin: Local, path: str) -> None:
    answer = admin.get(path)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    links = set(check_page(answer).links) - {"data:,", "#main"}
    assert all(link.startswith(("./", "../")) for link in links), links
    assert admin.head(path).status_code == 200


def test_home_shows_what_is_in_production(admin: Local) -> None:
    page = admin.get("/").text
    report = fitted_elsewhere()["report"]
    before, after = (f"{100 * one['metrics']['ece']:.2f} %" for one in (report["before"], report))
    words = row_of(page, "fashion")
    assert f"1 production {before} {after} ECE before {before}" in words
    assert f"noise floor {100 * report['noise_floor']['quantile95']:.2f} %" in words
    assert report["verdict"].replace("_", " ") in words
    assert "temperature sha256:0f1e just now" in words
    assert "newest, none in production" in row_of(page, "digits")
    assert page.index("digits") < page.index("fashion")


def test_home_finds_names_by_how_they_begin(admin: Local) -> None:
    found = admin.get("/", params={"prefix": " FAsh"}).text
    assert "fashion" in found
    assert "digits" not in found
    for prefix in ("ash", "%", "_", "fashion_"):
        assert "begins with" in admin.get("/", params={"prefix": prefix}).text
        assert "<table" not in admin.get("/", params={"prefix": prefix}).text


def test_home_turns_pages_by_name(local: Local) -> None:
    with local.app.state.parts.database.write() as store:
        workspace = local.app.state.parts.keys.anyone.workspace
        for number in range(120):
            store.calibrators.add(workspace, f"c{number:03}")
    seen, path = [], "/"
    while path:
        page = local.get(path, headers=HTML).text
        seen += re.findall(r'<th scope="row"><a [^>]*>(\w+)</a></th>', page)
        following = re.search(r'<a href="([^"]+)" rel="next"', page)
        path = following[1].replace("&amp;", "&")[1:] if following else ""
    assert seen == [f"c{number:03}" for number in range(120)]
    assert local.get("/?cursor=nonsense", headers=HTML).status_code == 422


def test_pages_make_the_same_number_of_queries_for_many_as_for_one(local: Local) -> None:
    def asked(path: str) -> int:
        with statements(local) as seen:
            assert local.get(path, headers=HTML).status_code == 200
        return len(seen)

    assert local.post("/v1/calibrators/a/versions", json=fitted_elsewhere()).status_code == 201
    add_fit(local)
    before = {path: asked(path) for path in ("/", "/jobs")}
    copy_versions(local, 60)
    for _ in range(60):
        add_fit(local)
    assert {path: asked(path) for path in ("/", "/jobs")} == before
    assert before["/"] <= 3
    assert len(re.findall("<svg", local.get("/", headers=HTML).text)) == 50


def copy_versions(client: Local, count: int) -> None:
    """Create calibrators with copies of the first one's version and report."""
    with client.app.state.parts.database.write() as store:
        session = store.session
        version = dict(session.execute(select(versions)).mappings().one())
        report = dict(session.execute(select(reports)).mappings().one())
        calibrator = dict(session.execute(select(calibrators)).mappings().one())
        for number in range(count):
            id = f"cb_{number}"
            session.execute(
                insert(calibrators).values({**calibrator, "id": id, "name": f"b{number}"})
            )
            session.execute(
                insert(versions).values({**version, "calibrator": id, "id": f"v{number}"})
            )
            session.execute(insert(reports).values({**report, "calibrator": id}))


def test_an_empty_service_shows_the_first_step(local: Local) -> None:
    page = local.get("/", headers=HTML).text
    assert "No calibrators yet" in page
    assert 'action="./sample"' in page
    fit = local.post("/sample", headers=HTML).headers["location"]
    assert re.fullmatch(r"\./jobs/fit_\w+#submitted", fit)
    assert "waiting for a worker" in local.get(fit[1:], headers=HTML).text
    page = local.get("/", headers=HTML).text
    assert "no version yet" in row_of(page, "sample")
    assert "data-busy" in page
    jobs = local.get("/jobs", headers=HTML).text
    assert "queued temperature, smart waiting for a worker" in row_of(jobs, "sample")
    again = local.post("/sample", headers=HTML)
    assert again.status_code == 303
    assert len(local.get("/v1/datasets").json()["items"]) == 2  # the same bytes


def test_without_the_scope_no_fits_are_shown(service: Local, reader: Local) -> None:
    add_fit(service)
    home = reader.get("/").text
    assert "fashion" in home
    assert "data-busy" not in home
    assert "./jobs" not in home
    refused = reader.get("/jobs")
    assert refused.status_code == 403
    assert "needs a key with the fit scope" in Shell(refused.text).words


def test_fits_show_progress_and_can_be_cancelled(admin: Local) -> None:
    progress = {"method": "smart", "methods_done": 1, "methods": 2, "step": 5, "total": 10}
    id = add_fit(admin, FitStatus.RUNNING, calibrator_name="going", progress=progress)
    error = {"code": "blob_missing", "message": "the stored bytes are gone: send them again"}
    add_fit(admin, FitStatus.FAILED, calibrator_name="failed", error=error)
    done = {"versions": [3, 4], "started_at": 10.0, "finished_at": 12.5}
    add_fit(admin, FitStatus.SUCCEEDED, calibrator_name="done", **done)
    page = admin.get("/jobs").text
    assert 'value="0.750"' in page
    assert "running temperature smart, step 5 of 10" in row_of(page, "going")
    assert "the stored bytes are gone: send them again" in row_of(page, "failed")
    assert "version 3 version 4" in row_of(page, "done")
    assert "2.5 s" in row_of(page, "done")
    answer = admin.post(f"/jobs/{id}/cancel", data={"csrf": csrf_of(admin)})
    assert (answer.status_code, answer.headers["location"]) == (303, "../../jobs")
    assert "being cancelled" in row_of(admin.get("/jobs").text, "going")
    missing = admin.post("/jobs/fit_0/cancel", data={"csrf": csrf_of(admin)})
    assert missing.status_code == 404
    assert "there is no such fit" in check_page(missing).words


def test_programs_are_led_from_the_bare_address_to_the_reference(service: Local) -> None:
    for headers in ({}, {"Accept": "application/json"}):
        answer = service.get("/", headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (307, "./docs")
