"""A real Chromium, driven by playwright: that of the system, not playwright's own."""

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
    """One page; ``problems`` is what its console complained of, and ``asked`` what it fetched."""

    page: Page
    problems: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._asked)

    def open(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        """Go to a page with a window of this width; it must not be wider than that."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.goto(url)
        self.check_width()

    def check_width(self) -> None:
        """Fail if one would have to scroll sideways."""
        room = self.page.viewport_size
        assert room is not None
        assert self.page.evaluate("document.documentElement.scrollWidth") <= room["width"]

    def press(self, button: str) -> None:
        """Press the button with this text."""
        self.page.get_by_role("button", name=button, exact=True).click()

    def check_access(self, *, except_for: Collection[str] = ()) -> None:
        """Fail if axe finds what keeps people out, by rules other than those excepted."""
        found = Axe().run(self.page).response["violations"]
        grave = [
            f"{one['id']}: {[node['target'] for node in one['nodes']]}"
            for one in found
            if one["impact"] in SERIOUS and one["id"] not in except_for
        ]
        assert not grave, grave

    def keep_picture(self, name: str) -> None:
        """A picture of the whole page for those who want to look, in out/pictures."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _asked(self, request: Request) -> None:
        self.asked.append(request.url)


def program() -> str:
    """The browser of this machine; without one, tests that need it are skipped, but not in CI."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        missing = "no browser is installed; on Debian: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@contextmanager
def browser() -> Iterator[Tab]:
    """A browser with an empty profile until the end of the block."""
    path = program()
    expect.set_options(timeout=1000 * RETRY_SECONDS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = started.new_page()
        page.set_default_timeout(1000 * RETRY_SECONDS)
        yield Tab(page)
        started.close()
