"""The documentation at /help: the built site, under a policy that allows only its own scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.live_service import Local, in_process

SCRIPT = "var theme = 1;"
PAGE = f"<!doctype html><title>Site</title><script>{SCRIPT}</script><h1>calibrd</h1>"
OUTSIDE = "not part of the site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    (folder / "secret.txt").write_text(OUTSIDE)
    (folder / "site/how-to").mkdir(parents=True)
    (folder / "site/index.html").write_text(PAGE)
    (folder / "site/how-to/back-up.html").write_text(PAGE)
    (folder / "site/link.txt").symlink_to(folder / "secret.txt")
    return folder / "site"


@pytest.fixture(scope="module")
def client(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with in_process(tmp_path_factory.mktemp("data"), help_dir=site) as made:
        yield made


def test_the_start_leads_to_the_first_page(client: Local) -> None:
    answer = client.get("/help", follow_redirects=True)
    assert answer.text == PAGE
    assert answer.url.path == "/help/index.html"
    assert client.get("/help/").text == PAGE
    assert client.get("/help/how-to/back-up.html").headers["content-type"].startswith("text/html")


def test_the_policy_allows_the_scripts_of_the_page_and_no_others(client: Local) -> None:
    policy = client.get("/help/index.html").headers["content-security-policy"]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "..%2fsecret.txt", "link.txt", "%00", "a" * 900, "how-to", "gone.html"],
)
def test_only_files_of_the_site_are_served(client: Local, path: str) -> None:
    answer = client.get(f"/help/{path}")
    assert answer.status_code == 404
    assert OUTSIDE not in answer.text


def test_a_page_that_the_browser_has_is_not_sent_again(client: Local, site: Path) -> None:
    tag = client.get("/help/index.html").headers["etag"]
    again = client.get("/help/index.html", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_the_navigation_links_it_where_it_was_built(client: Local, tmp_path: Path) -> None:
    page = {"Accept": "text/html"}
    assert 'href="./help/"' in client.get("/about", headers=page).text
    with in_process(tmp_path, help_dir=tmp_path / "nowhere") as without:
        assert "help/" not in without.get("/about", headers=page).text
        answer = without.get("/help/index.html")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_page")
    assert "make docs" in answer.json()["detail"]
