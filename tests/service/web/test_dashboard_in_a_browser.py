"""The dashboard in a real Chromium: from the first sign-in to a calibrator to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Tab, browser, keep_picture, program
from live_service import Running, running

HEADING = "document.querySelector('h1')?.textContent"
STATUS = "document.querySelector('#jobs tbody .badge')?.textContent"
VERDICT = "document.querySelector('#calibrators tbody .badge')?.textContent"
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture
def tab() -> Iterator[Tab]:
    with browser(program()) as made:
        yield made


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[Running, str]]:
    """A service with a worker and one key, and the key."""
    with running(tmp_path / "data") as started:
        with started.client() as client:
            body = {"name": "ann", "scopes": ["admin"]}
            token = client.post("/v1/keys", json=body).json()["token"]
        yield started, token


def press(tab: Tab, button: str) -> None:
    """Press the button with this text."""
    tab.run(
        "[...document.querySelectorAll('button')]"
        f".find((one) => one.textContent.trim() === {button!r}).click()"
    )


def test_sign_in_fit_the_sample_and_see_it(tab: Tab, locked: tuple[Running, str]) -> None:
    service, token = locked
    tab.open(f"{service.url}/jobs")
    tab.wait_for(f"{HEADING} === 'Sign in'")
    keep_picture(tab, "sign-in", 1280)
    tab.run(f"document.querySelector('#key').value = {token!r}")
    press(tab, "Sign in")
    tab.wait_for(f"{HEADING} === 'Jobs'")
    tab.open(f"{service.url}/")
    tab.wait_for(f"{HEADING} === 'Calibrators'")
    keep_picture(tab, "home-empty", 1280)
    press(tab, "Fit the bundled sample")
    tab.wait_for(f"{HEADING} === 'Jobs' && ['queued', 'running'].includes({STATUS})")
    keep_picture(tab, "jobs-running", 1280)
    tab.wait_for(f"{STATUS} === 'succeeded'", seconds=120)
    keep_picture(tab, "jobs", 1280)
    for width, dark in ((1280, False), (380, True)):
        tab.open(f"{service.url}/", width=width, dark=dark)
        tab.wait_for(f"{VERDICT} === 'improved'")
        assert tab.run(WIDTH) <= width
        keep_picture(tab, f"home-{width}", width)
    for page in ("keys", "about", "jobs", "runs"):
        for width, dark in ((1280, True), (380, False)):
            tab.open(f"{service.url}/{page}", width=width, dark=dark)
            tab.wait_for(f"location.pathname === '/{page}' && document.readyState === 'complete'")
            assert tab.run(WIDTH) <= width, page
            keep_picture(tab, f"{page}-{width}", width)
    press(tab, "Sign out")
    tab.wait_for(f"{HEADING} === 'Sign in'")
    assert not tab.problems
    assert all(one.startswith((service.url, "data:,")) for one in tab.asked)


def test_a_missing_browser_is_skipped_in_a_line_but_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        program()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        program()
