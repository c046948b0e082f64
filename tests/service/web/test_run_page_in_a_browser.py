"""The pages of runs in a real Chromium: charts, live updates and access control.

Screenshots of the pages are saved in out/pictures.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.browser import Tab, browser
from helpers.dashboard_pages import make_key
from helpers.live_service import Local, in_process
from helpers.run_histories import observed
from helpers.training_clients import open_run, post
from playwright.sync_api import expect

from calibrators.adafocal import AdaFocalState
from service.access.permissions import Scope

RUN, MONITOR = "resnet-cifar10", "baseline"
SETTINGS = {"bins": 15, "rate": 2.0}
CHARTS = ".drawing svg"
HARMLESS = ("Failed to load resource",)
# after waiting for a session that has ended, the page requests the newest one
SHORT_WAITS = (
    "const real = window.fetch;"
    "window.fetch = (url, given) => real(String(url).replace('wait=20', 'wait=2'), given);"
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Return a client of a service with two runs."""
    with in_process(tmp_path_factory.mktemp("seen")) as made:
        train(made)
        yield made
        made.app.state.parts.end_waiting()


def train(client: Local) -> None:
    """Post twenty steps, one without all ranks and one with gammas chosen by the trainer."""
    first = {"session": "a", "world_size": 2, "decides": "service", "merge_timeout": 2.0}
    open_run(client, RUN, **first, settings=SETTINGS)
    for step in range(1, 6):
        for rank in (0,) if step == 4 else (0, 1):
            post(client, RUN, "a", step, observed(step, seed=rank), rank=rank)
        client.get(f"/v1/runs/{RUN}/state", params={"after": step - 1, "wait": 10})
    opened = open_run(client, RUN, session="b", settings=SETTINGS)
    state = AdaFocalState.from_dict(opened["state"])
    for step in range(6, 21):
        state = state.update(observed(step))
        if step == 12:
            state = AdaFocalState.from_dict(state.to_dict() | {"gammas": [1.5] * 15})
        assert post(client, RUN, "b", step, observed(step), state=state).status_code == 200
    open_run(client, MONITOR, kind="monitor", session="a")
    for step in range(1, 6):
        assert post(client, MONITOR, "a", step, observed(step)).status_code == 200


@pytest.fixture(scope="module")
def shared_tab() -> Iterator[Tab]:
    with browser() as made:
        made.page.add_init_script(SHORT_WAITS)
        yield made


@pytest.fixture
def tab(shared_tab: Tab, client: Local) -> Iterator[Tab]:
    """Open a tab; it must have no console errors and no requests to other hosts."""
    yield shared_tab
    own = (str(client.base_url), "data:,", "about:blank")
    assert not [one for one in shared_tab.asked if not one.startswith(own)]
    broken = [one for one in shared_tab.problems if not any(word in one for word in HARMLESS)]
    assert not broken, broken


def expect_step(tab: Tab, step: int) -> None:
    expect(tab.page.locator("#figures dd").first).to_have_text(str(step))


def expect_charts(tab: Tab, count: int) -> None:
    expect(tab.page.locator(CHARTS)).to_have_count(count)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (380, True)])
def test_all_charts_are_drawn_in_the_width_there_is(
    tab: Tab, client: Local, width: int, dark: bool
) -> None:
    tab.open(f"{client.base_url}/runs/{RUN}", width=width, dark=dark)
    expect_charts(tab, 5)
    expect(tab.page.locator("#live")).to_have_text("live")
    expect_step(tab, 20)
    expect(tab.page.locator(".flag")).to_have_text(
        ["unverified: the service computed different gammas", "partial: ranks 0 of 2"]
    )
    tab.check_width()
    tab.check_access()
    tab.keep_picture(f"run-{width}")


def test_the_point_under_the_mouse_shows_its_figures(tab: Tab, client: Local) -> None:
    tab.open(f"{client.base_url}/runs/{RUN}")
    expect_charts(tab, 5)
    tab.page.locator(".drawing .mark-symbol path[aria-label*='bin: 7;']").first.hover(force=True)
    expect(tab.page.locator("#vg-tooltip-element.visible")).to_contain_text("gamma")


def test_a_run_that_has_only_metrics_and_the_list(tab: Tab, client: Local) -> None:
    tab.open(f"{client.base_url}/runs/{MONITOR}", width=1000)
    expect_charts(tab, 4)
    tab.keep_picture("monitor")
    tab.open(f"{client.base_url}/runs", width=1000)
    expect(tab.page.locator("#list tbody tr")).to_have_count(2)
    tab.check_access()
    tab.keep_picture("list")


def test_an_open_page_follows_a_step_and_a_session_that_rewinds(tab: Tab, client: Local) -> None:
    tab.open(f"{client.base_url}/runs/{RUN}")
    expect_charts(tab, 5)
    expect_step(tab, 20)
    last = client.get(f"/v1/runs/{RUN}/state").json()
    state = AdaFocalState.from_dict(last["state"]).update(observed(21))
    assert post(client, RUN, "b", 21, observed(21), state=state).status_code == 200
    expect_step(tab, 21)
    expect(tab.page.locator(f"{CHARTS} [aria-label*='step: 21;']").first).to_be_attached()
    older = AdaFocalState.from_dict(last["state"]).to_dict() | {"step": 15}
    open_run(client, RUN, session="c", state=older, settings=SETTINGS)
    expect_step(tab, 15)


def test_signed_out_users_are_led_to_sign_in_and_back(tab: Tab, client: Local) -> None:
    tab.open(f"{client.base_url}/runs/{RUN}", width=600, dark=True)
    expect(tab.page.locator("#live")).to_have_text("live")
    token = make_key(client, Scope.PREDICT)  # the first: from now on the page is refused
    tab.page.wait_for_url("**/sign-in*")
    tab.keep_picture("locked")
    enter(tab, "cal_wrong")
    expect(tab.page.locator("#error")).to_contain_text("rejected this key")
    enter(tab, token)
    expect_charts(tab, 5)
    assert tab.page.url == f"{client.base_url}/runs/{RUN}"
    kept = "sessionStorage.length + localStorage.length + document.cookie.length"
    assert tab.page.evaluate(kept) == 0


def enter(tab: Tab, token: str) -> None:
    """Type a key and submit the form."""
    tab.page.get_by_label("API key").fill(token)
    tab.press("Sign in")
