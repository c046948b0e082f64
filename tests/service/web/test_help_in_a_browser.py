"""The built documentation in a real browser: opened from a file and at /help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import Tab, browser
from helpers.live_service import ROOT, running

PAGES = ("index.html", "concepts/ece.html", "studies/auto.html", "reference/http-api.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300)
    return folder


@pytest.fixture(scope="module", params=["file", "service"])
def start(
    request: pytest.FixtureRequest, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the site's address when opened from a file, and under /help."""
    if request.param == "file":
        yield f"{site.as_uri()}/"
        return
    with running(tmp_path_factory.mktemp("help") / "data", CALIBRD_HELP_DIR=str(site)) as started:
        yield f"{started.url}/help/"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as made:
        yield made


def test_pages_fit_phones_and_load_nothing_from_elsewhere(tab: Tab, start: str) -> None:
    tab.problems.clear()
    tab.asked.clear()
    for page in PAGES:
        for width, dark in ((390, False), (1280, True)):
            tab.open(start + page, width=width, dark=dark)
    assert not tab.problems
    assert all(one.startswith((start, "data:", "blob:")) for one in tab.asked)


def test_the_search_has_its_index_in_both_forms(site: Path) -> None:
    index = (site / "search/search_index.json").read_text()
    assert "noise floor" in index
    assert (site / "search/search_index.js").read_text() == f"var __index = {index}"
