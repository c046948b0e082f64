"""The pages of runs in a real Chromium, where one is installed: they draw, follow and keep out.

With CALIBRD_PICTURES=folder, pictures of the pages are left there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Tab, browser, keep_picture, program
from dashboard import make_key
from live_service import Local, in_process
from run_histories import observed
from training_jobs import open_run, post

from calibrators.adafocal import AdaFocalState
from service.core.access import Scope

RUN, MONITOR = "resnet-cifar10", "baseline"
SETTINGS = {"bins": 15, "rate": 2.0}
STEP = "document.querySelector('#figures dd')?.textContent"
CHARTS = "document.querySelectorAll('.drawing svg').length"
FLAGS = "[...document.querySelectorAll('.flag')].map((one) => one.textContent)"
HARMLESS = ("The compiled spec uses Vega", "Failed to load resource")
# a page that waits for a session that has ended asks for the newest after its wait
SHORT_WAITS = (
    "const real = window.fetch;"
    "window.fetch = (url, given) => real(String(url).replace('wait=20', 'wait=2'), given);"
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A service with two runs."""
    with in_process(tmp_path_factory.mktemp("seen")) as made:
        train(made)
        yield made
        made.app.state.parts.end_waiting()


def train(client: Local) -> None:
    """Twenty steps, one of them without all ranks, one with gammas of the trainer's own."""
    first = {"session": "a", "world_size": 2, "decides": "service", "merge_timeout": 0.3}
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
    with browser(program()) as made:
        made.call("Page.addScriptToEvaluateOnNewDocument", source=SHORT_WAITS)
        yield made


@pytest.fixture
def tab(shared_tab: Tab, client: Local) -> Iterator[Tab]:
    """A tab, which complains of nothing and asks nobody but the service."""
    yield shared_tab
    own = (str(client.base_url), "data:,", "about:blank")
    assert not [one for one in shared_tab.asked if not one.startswith(own)]
    broken = [one for one in shared_tab.problems if not any(word in one for word in HARMLESS)]
    assert not broken, broken


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (380, True)])
def test_all_charts_are_drawn_in_the_width_there_is(
    tab: Tab, client: Local, width: int, dark: bool
) -> None:
    tab.open(f"{client.base_url}/runs/{RUN}", width=width, dark=dark)
    tab.wait_for(f"{CHARTS} === 5 && document.readyState === 'complete'")
    assert tab.run("document.documentElement.scrollWidth") <= width
    tab.wait_for("document.querySelector('#live').textContent === 'live'")
    assert tab.run(STEP) == "20"
    assert tab.run(FLAGS) == [
        "unverified: the update gives other gammas",
        "partial: ranks 0 of 2",
    ]
    keep_picture(tab, f"run-{width}", width)


def test_the_point_under_the_mouse_tells_its_figures(tab: Tab, client: Local) -> None:
    tab.open(f"{client.base_url}/runs/{RUN}")
    tab.wait_for(f"{CHARTS} === 5")
    x, y = tab.run(
        "(({x, y, width, height}) => [x + width / 2, y + height / 2])("
        "[...document.querySelectorAll('.drawing .mark-symbol path')]"
        ".find((one) => one.ariaLabel?.includes('bin: 7;')).getBoundingClientRect())"
    )
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown = "document.querySelector('#vg-tooltip-element.visible')?.textContent"
    assert "gamma" in tab.wait_for(shown)


def test_a_run_that_has_only_metrics_and_the_list(tab: Tab, client: Local) -> None:
    tab.open(f"{client.base_url}/runs/{MONITOR}", width=1000)
    tab.wait_for(f"{CHARTS} === 4")
    keep_picture(tab, "monitor", 1000)
    tab.open(f"{client.base_url}/runs", width=1000)
    tab.wait_for("document.querySelectorAll('#list tbody tr').length === 2")
    keep_picture(tab, "list", 1000)


def test_an_open_page_follows_a_step_and_a_session_that_rewinds(tab: Tab, client: Local) -> None:
    tab.open(f"{client.base_url}/runs/{RUN}")
    tab.wait_for(f"{CHARTS} === 5 && {STEP} === '20'")
    last = client.get(f"/v1/runs/{RUN}/state").json()
    state = AdaFocalState.from_dict(last["state"]).update(observed(21))
    assert post(client, RUN, "b", 21, observed(21), state=state).status_code == 200
    tab.wait_for(f"{STEP} === '21'")
    tab.wait_for("document.querySelector('.drawing svg').innerHTML.includes('step: 21;')")
    older = AdaFocalState.from_dict(last["state"]).to_dict() | {"step": 15}
    open_run(client, RUN, session="c", state=older, settings=SETTINGS)
    tab.wait_for(f"{STEP} === '15'")


def test_whoever_is_signed_out_is_led_to_sign_in_and_back(tab: Tab, client: Local) -> None:
    tab.open(f"{client.base_url}/runs/{RUN}", width=600, dark=True)
    tab.wait_for("document.querySelector('#live')?.textContent === 'live'")
    token = make_key(client, Scope.PREDICT)  # the first: from now on the page is refused
    tab.wait_for("location.pathname === '/sign-in' && document.querySelector('#key') !== null")
    keep_picture(tab, "locked", 600)
    enter(tab, "cal_wrong")
    tab.wait_for("document.querySelector('#trouble')?.textContent.includes('refused this key')")
    enter(tab, token)
    tab.wait_for(f"{CHARTS} === 5")
    assert tab.run("location.pathname") == f"/runs/{RUN}"
    assert tab.run("sessionStorage.length + localStorage.length + document.cookie.length") == 0


def enter(tab: Tab, token: str) -> None:
    """Type a key and send the form."""
    tab.run(f"document.querySelector('#key').value = {token!r}")
    tab.run("document.querySelector('main form button').click()")
