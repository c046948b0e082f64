"""A real Chromium, driven by playwright: the system's browser, not playwright's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Page, Request, expect, sync_playwright

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
RETRY_SECONDS = 40
SERIOUS = ("serious", "critical")
PICTURES = Path(__file__).parents[2] / "out/pictures"


@dataclass
class Tab:
    """A page; ``problems`` are its console errors, and ``asked`` the URLs that it requested."""

    page: Page
    problems: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._asked)

    def open(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        """Open a page in a window of this width; the page must not be wider than the window."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.goto(url)
        self.check_width()

    def check_width(self) -> None:
        """Fail if the page needs horizontal scrolling."""
        room = self.page.viewport_size
        assert room is not None
        assert self.page.evaluate("document.documentElement.scrollWidth") <= room["width"]

    def press(self, button: str) -> None:
        """Click the button with this text."""
        self.page.get_by_role("button", name=button, exact=True).click()

    def check_access(self, *, except_for: Collection[str] = ()) -> None:
        """Fail if axe finds accessibility problems, except for the rules given."""
        found = Axe().run(self.page).response["violations"]
        grave = [
            f"{one['id']}: {[node['target'] for node in one['nodes']]}"
            for one in found
            if one["impact"] in SERIOUS and one["id"] not in except_for
        ]
        assert not grave, grave

    def keep_picture(self, name: str) -> None:
        """Save a screenshot of the whole page to out/pictures."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _asked(self, request: Request) -> None:
        self.asked.append(request.url)


def program() -> str:
    """Return the browser of this machine; without one, skip the test, or fail in CI."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        missing = "no browser is installed; on Debian: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@contextmanager
def browser() -> Iterator[Tab]:
    """Run a browser with an empty profile until the end of the block."""
    path = program()
    expect.set_options(timeout=1000 * RETRY_SECONDS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = started.new_page()
        page.set_default_timeout(1000 * RETRY_SECONDS)
        yield Tab(page)
        started.close()
