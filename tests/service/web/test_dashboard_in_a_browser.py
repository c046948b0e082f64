"""The dashboard in a real Chromium, from the first sign-in to a rollback.

Screenshots of the pages are saved in out/pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import Tab, browser, program
from helpers.live_service import ROOT, Running, running
from helpers.run_histories import observed
from helpers.training_clients import open_run, post
from playwright.sync_api import expect

SAMPLE = ROOT / "examples/data/fashion_ce__cal.npz"
FIT_SECONDS = 120


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """Run a service with a worker and one key; yield it with the key."""
    with running(tmp_path_factory.mktemp("seen") / "data") as started:
        with started.client() as client:
            body = {"name": "ann", "scopes": ["admin"]}
            token = client.post("/v1/keys", json=body).json()["token"]
        yield started, token


@pytest.fixture
def service(locked: tuple[Running, str], tab: Tab) -> Iterator[str]:
    """Yield its address; afterwards check for console errors and requests to other hosts."""
    tab.problems.clear()
    yield locked[0].url
    assert not tab.problems
    assert all(one.startswith((locked[0].url, "data:,")) for one in tab.asked)


def expect_heading(tab: Tab, text: str) -> None:
    expect(tab.page.get_by_role("heading", level=1)).to_contain_text(text)


def look(tab: Tab, name: str) -> None:
    """Check both widths, light and dark: everything is accessible and nothing is cut off."""
    for width, dark in ((380, True), (1280, False)):
        tab.open(tab.page.url, width=width, dark=dark)
        for chart in tab.page.locator("[data-chart]").all():
            expect(chart.locator("svg").first).to_be_visible()
        tab.check_width()
        tab.check_access()
        tab.keep_picture(f"{name}-{width}")


def test_1_sign_in_leads_to_where_one_wanted_to_go(
    tab: Tab, service: str, locked: tuple[Running, str]
) -> None:
    tab.open(f"{service}/jobs")
    expect_heading(tab, "Sign in")
    look(tab, "sign-in")
    tab.page.get_by_label("API key").fill(locked[1])
    tab.press("Sign in")
    expect_heading(tab, "Fits")
    tab.open(f"{service}/")
    expect_heading(tab, "Calibrators")
    look(tab, "home-empty")


def test_2_the_sample_is_fitted_by_a_button_and_watched_to_its_end(tab: Tab, service: str) -> None:
    tab.press("Fit the bundled sample")
    expect(tab.page.locator("#fit-detail")).to_have_attribute(
        "data-status", re.compile("queued|running")
    )
    tab.keep_picture("job-running")
    advice = tab.page.get_by_text("Recommended: version")
    expect(advice).to_be_visible(timeout=1000 * FIT_SECONDS)
    look(tab, "job-recommends")
    tab.page.get_by_role("link", name="All versions").click()
    tab.page.wait_for_url("**/calibrators/sample")
    expect_heading(tab, "sample")
    look(tab, "calibrator")


def test_3_a_file_is_uploaded_fitted_and_leads_to_its_version(tab: Tab, service: str) -> None:
    tab.open(f"{service}/new-fit")
    expect_heading(tab, "New fit")
    look(tab, "new-fit")
    tab.page.get_by_label("Logits and labels").set_input_files(SAMPLE)
    tab.page.get_by_label("Name of a new calibrator").fill("sample")
    for method in tab.page.locator("input[name=method]").all():
        method.set_checked(method.get_attribute("value") == "temperature")
    tab.press("Upload and fit")
    tab.page.wait_for_url("**/calibrators/sample/versions/3", timeout=1000 * FIT_SECONDS)
    expect(tab.page.locator("[data-chart] svg").first).to_be_visible()
    look(tab, "version-temperature")


def test_4_a_file_that_breaks_a_rule_shows_a_message(
    tab: Tab, service: str, tmp_path: Path
) -> None:
    broken = tmp_path / "<img src=x onerror=alert(1)>.csv"
    broken.write_text("logit_0,logit_1,label\n1.5,0.2,0\n0.1,abc,1\n")
    tab.open(f"{service}/new-fit")
    tab.page.get_by_label("Logits and labels").set_input_files(broken)
    tab.page.get_by_label("Name of a new calibrator").fill("broken")
    tab.press("Upload and fit")
    trouble = tab.page.get_by_role("alert")
    expect(trouble).to_contain_text("Line 3")
    expect(trouble).to_contain_text("<img src=x onerror=alert(1)>.csv")
    tab.keep_picture("new-fit-refused")
    assert tab.page.locator("img").count() == 0
    tab.problems = [one for one in tab.problems if "422" not in one]  # the console shows it as well


def test_5_the_report_describes_the_bin_under_the_mouse(tab: Tab, service: str) -> None:
    tab.open(f"{service}/calibrators/sample/versions/2")
    look(tab, "version-smart")
    chart = tab.page.locator("[data-chart] svg").first
    chart.scroll_into_view_if_needed()
    chart.locator(".mark-rect path").last.hover(force=True)
    expect(tab.page.locator("#vg-tooltip-element.visible")).to_contain_text("mean confidence")


def test_6_two_versions_are_compared_on_the_same_rows(tab: Tab, service: str) -> None:
    tab.open(f"{service}/calibrators/sample")
    tab.page.get_by_label("version 1 as first").check()
    tab.page.get_by_label("version 2 as second").check()
    tab.press("Compare")
    expect(tab.page.locator("#measured")).to_contain_text(
        "Both versions were judged on these 4,000 rows"
    )
    expect(tab.page.locator("#measured [data-chart] svg")).to_be_visible()
    look(tab, "compare")


def test_7_promote_shows_changes_and_roll_back_undoes_them(tab: Tab, service: str) -> None:
    for number in (1, 2):
        tab.open(f"{service}/calibrators/sample/promote?version={number}")
        expect(tab.page.get_by_text("can be rolled back")).to_be_visible()
        if number == 2:
            look(tab, "promote")
        tab.page.get_by_label("Reason").fill(f"number {number} <b>is</b> better")
        tab.press(f"Point production at version {number}")
        expect_heading(tab, "sample")
        production = tab.page.get_by_role("row", name=re.compile("^production"))
        expect(production).to_contain_text(f"number {number} <b>is</b> better")
    tab.page.get_by_role("link", name="Roll back").click()
    look(tab, "rollback")
    tab.press("Roll back to version 1")
    expect_heading(tab, "sample")
    production = tab.page.get_by_role("row", name=re.compile("^production"))
    expect(production).to_contain_text("rollback")
    expect(production.get_by_role("link").first).to_have_text("1")
    tab.page.get_by_role("link", name="History").click()
    expect(tab.page.locator("tbody tr")).to_have_count(3)
    look(tab, "alias")


def test_8_a_row_of_logits_is_tried(tab: Tab, service: str) -> None:
    tab.open(f"{service}/calibrators/sample/try")
    tab.page.get_by_role("textbox").first.fill("9, 2, 1, 0, 0, 0, 0, 0, 0, 0")
    tab.page.locator("main form button.primary").click()
    expect(tab.page.locator("main svg").first).to_be_visible()
    tab.check_access()
    tab.keep_picture("try")


def test_9_a_training_run_is_followed_live(
    tab: Tab, service: str, locked: tuple[Running, str]
) -> None:
    with locked[0].client(locked[1]) as client:
        settings = {"bins": 15, "rate": 2.0}
        job = {"session": "a", "decides": "service", "settings": settings}
        open_run(client, "resnet", **job)
        post(client, "resnet", "a", 1, observed(1))
        tab.open(f"{service}/runs/resnet")
        step = tab.page.locator("#figures dd").first
        expect(step).to_have_text("1")
        post(client, "resnet", "a", 2, observed(2))
        expect(step).to_have_text("2")
    tab.check_access()
    tab.keep_picture("run")


@pytest.mark.parametrize("page", ["", "jobs", "runs", "keys", "about"])
def test_the_other_pages_are_accessible(tab: Tab, service: str, page: str) -> None:
    tab.open(f"{service}/{page}")
    look(tab, page or "home")


def test_signing_out_ends_access(tab: Tab, service: str) -> None:
    tab.open(f"{service}/about")
    tab.press("Sign out")
    expect_heading(tab, "Sign in")
    tab.open(f"{service}/keys")
    expect_heading(tab, "Sign in")


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
