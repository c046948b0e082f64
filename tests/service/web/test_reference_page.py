"""The API reference: a public page, and the bundle that renders it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.dashboard_pages import HTML, check_page, make_key, signed_in
from helpers.live_service import Local, in_process

from service.access.permissions import Scope
from service.web.components.static_files import files

BUNDLE = files()["swagger-ui-bundle.js"]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Return a service with a key, requested without one."""
    with in_process(tmp_path_factory.mktemp("reference")) as client:
        make_key(client, Scope.ADMIN)
        yield client


def test_the_reference_is_public_under_the_policy_of_all_pages(locked: Local) -> None:
    for headers in ({}, HTML, {**HTML, "Cookie": "calibrd_session=nonsense"}):
        answer = locked.get("/docs", headers=headers)
        assert answer.status_code == 200
        shell = check_page(answer)
        assert "the key entered" in shell.words
        assert 'data-csrf=""' in answer.text
        assert not [link for link in shell.links if link.endswith(("/keys", "/jobs"))]


def test_an_invalid_key_does_not_close_the_reference(locked: Local) -> None:
    answer = locked.get("/docs", headers={**HTML, "Authorization": "Bearer nonsense"})
    assert answer.status_code == 200
    assert "the key entered" in check_page(answer).words


def test_readers_who_are_signed_in_have_navigation_and_token(locked: Local) -> None:
    with signed_in(locked, Scope.FIT, name="ann") as ann:
        answer = ann.get("/docs")
        assert {"./jobs", "./docs"} <= set(check_page(answer).links)
        assert "ann" in answer.text
        assert 'data-csrf=""' not in answer.text


def test_resources_of_the_page_exist_and_come_from_this_service(locked: Local) -> None:
    links = set(check_page(locked.get("/docs", headers=HTML)).links) - {"data:,", "#main", "./"}
    assert links == {
        "./static/app.css",
        "./static/swagger-ui.css",
        "./static/api-reference.css",
        "./static/swagger-ui-bundle.js",
        "./static/api-reference.js",
        "./openapi.json",
    }
    for one in links:
        assert locked.get(one[1:]).status_code == 200
        assert locked.head(one[1:]).status_code == 200


def test_the_bundle_has_its_version_and_licences_beside_it(locked: Local) -> None:
    folder: Path = BUNDLE.parent
    heading = (folder / "README.md").read_text().splitlines()[0]
    version = heading.removeprefix("# Swagger UI ")
    assert f'"{version}"' in BUNDLE.read_text()
    assert "Apache License" in (folder / "LICENSE").read_text()
    for name in ("LICENSE", "NOTICE", "README.md", "swagger-ui-bundle.js.LICENSE.txt"):
        assert (folder / name).exists()
        assert locked.get(f"/static/{name}").status_code == 404


def test_the_document_is_made_once(locked: Local) -> None:
    first, again = locked.get("/openapi.json"), locked.get("/openapi.json")
    assert first.headers["content-type"] == "application/json"
    assert first.content == again.content
    assert first.json() == locked.app.openapi()
