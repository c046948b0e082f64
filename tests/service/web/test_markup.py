"""User text is shown as text: markup is stored wherever possible, and all pages are read."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from helpers.dashboard_pages import MARKUP, add_fit, check_page, csrf_of, make_key, signed_in
from helpers.live_service import NPZ, Local, in_process, npz, sample, wait_until
from helpers.route_table import PAGES, WITHOUT_USER_TEXT
from helpers.workspace_contents import ALIAS, CLASSES, RUN, fitted_elsewhere, run_body
from sqlalchemy import select, update

from service.access.permissions import Scope
from service.storage.records import FitStatus
from service.storage.store import Store
from service.storage.tables import datasets, reports, versions

NAME = "fashion"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Return an administrator of a service in which every text is markup."""
    with in_process(tmp_path_factory.mktemp("markup")) as service:
        _fill(service)
        with signed_in(service, Scope.ADMIN, name="admin") as made:
            yield made


def _fill(service: Local) -> None:
    notes = {"model": MARKUP, "description": MARKUP, "tags": {"note": MARKUP}}
    for version in (1, 2):
        body = {**fitted_elsewhere(), **notes}
        answer = service.post(f"/v1/calibrators/{NAME}/versions", json=body)
        assert answer.status_code == 201, answer.text
        move = {"version": version, "reason": MARKUP}
        service.put(f"/v1/calibrators/{NAME}/aliases/{ALIAS}", json=move)
    service.post("/v1/datasets", content=npz(*sample(600, CLASSES)), headers=NPZ)
    service.post("/v1/runs", json={**run_body(), "description": MARKUP})
    make_key(service, Scope.FIT, name=MARKUP)
    with service.app.state.parts.database.write() as store:
        _write_markup(store)
        store.workers.beat(MARKUP, queues=[MARKUP], device=MARKUP)


def _write_markup(store: Store) -> None:
    """Write markup where the API would refuse it, as another program might."""
    warnings = [{"code": MARKUP, "message": MARKUP}]
    told = {"verdict": MARKUP, "method": MARKUP, "created_by": MARKUP, "params": {MARKUP: MARKUP}}
    info = {"warnings": warnings, "why": MARKUP, MARKUP: MARKUP}
    values = {**told, "fit_info": info, "libraries": {MARKUP: MARKUP}}
    store.session.execute(update(versions).values(values))
    document = dict(store.session.execute(select(reports.c.document)).scalars().first() or {})
    document["judged_on"] = MARKUP
    document["fit"] = {"method": MARKUP, "parameters": {MARKUP: MARKUP}, "warnings": warnings}
    document["conventions"] = {MARKUP: MARKUP}
    store.session.execute(update(reports).values(document=document))


@pytest.fixture(scope="module")
def fit(client: Local) -> str:
    """Return a failed fit; another one is running."""
    error = {"code": MARKUP, "message": MARKUP}
    written = {"calibrator_name": MARKUP, "created_by": MARKUP}
    methods = [{"method": MARKUP, "params": {}}]
    order = {"methods": methods, "model": MARKUP, "description": MARKUP, "tags": {}}
    progress = {"method": MARKUP, "step": 1, "total": 2}
    add_fit(client, FitStatus.RUNNING, progress=progress, order=order, **written)
    return add_fit(client, FitStatus.FAILED, error=error, order=order, worker=MARKUP, **written)


def _check(answer: httpx.Response, *, is_shown: bool = True) -> None:
    shell = check_page(answer)
    assert "img" not in shell.tags
    if is_shown:
        assert "onerror=alert(1)" in shell.words


@pytest.mark.parametrize(
    "path", sorted(one[4:] for one in PAGES if re.match(r"GET (?!/static|/help)", one))
)
def test_every_page_shows_it_as_text(client: Local, fit: str, path: str) -> None:
    name = RUN if path.startswith("/runs") else NAME
    url = path.format(name=name, number=1, alias=ALIAS, id=fit)
    _check(client.get(url), is_shown=path not in WITHOUT_USER_TEXT)


def test_changes_for_callers_are_shown_as_text(client: Local) -> None:
    _check(client.get(f"/calibrators/{NAME}/promote", params={"version": 1}))


def test_a_comparison_shows_it_as_text(client: Local) -> None:
    with client.app.state.parts.database.read() as store:
        dataset = store.session.execute(select(datasets.c.id)).scalar_one()

    def measured() -> httpx.Response | None:
        asked = {"a": 1, "b": 2, "dataset": dataset}
        page = client.get(f"/calibrators/{NAME}/compare", params=asked)
        return None if "data-busy" in page.text else page

    page = wait_until(measured)
    assert "600 rows of the dataset" in page.text
    _check(page)


def test_query_parameters_are_shown_as_text(client: Local) -> None:
    asked = {"/": "prefix", "/new-fit": "calibrator", f"/calibrators/{NAME}/promote": "alias"}
    for path, name in asked.items():
        _check(client.get(path, params={name: MARKUP[:60]}), is_shown=False)
    for path in (f"/calibrators/{MARKUP}", f"/runs/{MARKUP}"):
        _check(client.get(path))
    form = client.get("/sign-in", params={"next": '/"><b>'})
    assert "b" not in check_page(form).tags
    assert "&gt;&lt;b&gt;" in form.text


def test_the_name_of_the_key_is_shown_as_text(client: Local) -> None:
    with signed_in(client, Scope.PREDICT, name=MARKUP) as other:
        _check(other.get("/runs"))


def test_text_entered_in_forms_is_shown_as_text(client: Local) -> None:
    csrf = {"csrf": csrf_of(client)}
    key = {**csrf, "name": MARKUP, "scope": "fit"}
    _check(client.post("/keys", data=key))
    _check(client.post("/keys", data={**key, "scope": MARKUP}))
    move = {**csrf, "alias": MARKUP, "version": "1", "expected": "0"}
    _check(client.post(f"/calibrators/{NAME}/promote", data=move), is_shown=False)
