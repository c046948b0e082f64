"""The screenshots in the README, from a real service with real fits: ``make screenshots``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import FloatRect, Page

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs/images"
WIDTH, HEIGHT, MARGIN = 1280, 1000, 24
SEED = 0


def main() -> None:
    """Fit the bundled sample and take the screenshots."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from helpers.live_service import running

    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as service:
        _fit(service.url)
        _take(service.url)


def _fit(url: str) -> None:
    """Fit three calibrators on the bundled logits: all rows, a few rows, and doubled logits."""
    import calibrd

    with np.load(ROOT / "examples/data/fashion_ce__cal.npz") as file:
        logits, labels = file["logits"], file["labels"]
    few = np.random.default_rng(SEED).choice(len(labels), 800, replace=False)
    with calibrd.Client(url) as client:
        for method in ("temperature", "smart", "auto"):
            client.fit("fashion-cnn", logits, labels, method=method, model="cnn-7", progress=False)
        client.promote("fashion-cnn", 1, reason="first release")
        client.promote("fashion-cnn", 2, reason="a temperature by margin")
        for name, data in {
            "few-rows": (logits[few], labels[few]),
            "sharp": (2 * logits, labels),
        }.items():
            version = client.fit(name, *data, method="smart", model="cnn-8", progress=False)
            client.promote(name, version, force=True, reason="first release")


def _take(url: str) -> None:
    from helpers.browser import browser

    with browser() as tab:
        tab.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        for name, path in {
            "home": "/",
            "version": "/calibrators/fashion-cnn/versions/2",
            "compare": "/calibrators/fashion-cnn/compare?a=1&b=2",
        }.items():
            tab.page.goto(f"{url}{path}")
            tab.page.locator("[data-busy]").wait_for(state="detached")
            tab.page.wait_for_load_state("networkidle")
            if path != "/":
                tab.page.locator("[data-chart] svg").first.wait_for()
            tab.page.screenshot(path=OUT / f"{name}.png", clip=_shown(tab.page), full_page=True)
            sys.stdout.write(f"docs/images/{name}.png\n")


def _shown(page: Page) -> FloatRect:
    """Return the top part of a page, which the screenshot shows."""
    box = page.locator("main").bounding_box()
    assert box is not None  # noqa: S101
    height = min(HEIGHT, box["y"] + box["height"] + MARGIN)
    return {"x": 0, "y": 0, "width": WIDTH, "height": height}


if __name__ == "__main__":
    main()
