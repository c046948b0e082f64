"""Look at the pages of runs in a real Chromium, by hand: it must be at /usr/bin/chromium.

    PYTHONPATH=.:tests:tests/service python tests/service/look_at_run_page.py FOLDER

starts a service, trains two simulated runs on it, writes pictures of their pages to the folder
(light, dark, narrow, locked), and fails if a page breaks its policy, asks another host, does not
follow a step that is decided while it is open, or shows data to somebody without a key.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browser import Tab, browser
from live_service import Local, in_process
from run_histories import observed
from training_jobs import open_run, post

from calibrators.adafocal import AdaFocalState
from service.core import keys
from service.core.access import Scope

RUN, MONITOR = "resnet-cifar10", "baseline"
STEP = "document.querySelector('#figures dd')?.textContent"
CHARTS = "document.querySelectorAll('.drawing svg').length"
HARMLESS = ("The compiled spec uses Vega", "Failed to load resource")


def main(folder: Path) -> None:
    """All of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, in_process(Path(data)) as client, browser() as tab:
        train(client)
        look(tab, client, folder)
        look_with_keys(tab, client, folder)
        foreign = [one for one in tab.asked if not one.startswith((str(client.base_url), "data:,"))]
        broken = [one for one in tab.problems if not any(word in one for word in HARMLESS)]
        assert not foreign, foreign
        assert not broken, broken
        client.app.state.parts.end_waiting()


def train(client: Local) -> None:
    """Sixty steps, two of them without all ranks, one with gammas of the trainer's own."""
    settings = {"settings": {"bins": 15, "rate": 2.0}}
    open_run(
        client, RUN, session="a", world_size=2, decides="service", merge_timeout=0.3, **settings
    )
    for step in range(1, 13):
        for rank in (0,) if step in (6, 7) else (0, 1):
            post(client, RUN, "a", step, observed(step, seed=rank), rank=rank)
        client.get(f"/v1/runs/{RUN}/state", params={"after": step - 1, "wait": 10})
    opened = open_run(client, RUN, session="b", **settings)
    state = AdaFocalState.from_dict(opened["state"])
    for step in range(13, 60):
        state = state.update(observed(step))
        given = (
            state
            if step != 25
            else AdaFocalState.from_dict(state.to_dict() | {"gammas": [1.5] * 15})
        )
        state = given
        assert post(client, RUN, "b", step, observed(step), state=given).status_code == 200
    open_run(client, MONITOR, kind="monitor", session="a")
    for step in range(1, 21):
        assert post(client, MONITOR, "a", step, observed(step)).status_code == 200


def look(tab: Tab, client: Local, folder: Path) -> None:
    """Pictures of a service without keys, and a step that arrives while its page is open."""
    address = f"{client.base_url}/runs"
    for name, width, dark in (("light", 1280, False), ("dark", 1280, True), ("narrow", 380, True)):
        tab.open(f"{address}/{RUN}", width=width, dark=dark)
        tab.wait_for(f"{CHARTS} === 5 && document.readyState === 'complete'")
        assert tab.run("document.documentElement.scrollWidth") <= width
        tab.whole_picture(folder / f"{name}.png", width)
    tab.open(f"{address}/{RUN}")
    tab.wait_for(f"{CHARTS} === 5")
    assert tab.run(STEP) == "59"
    point_at(tab, "gamma")
    last = client.get(f"/v1/runs/{RUN}/state").json()
    state = AdaFocalState.from_dict(last["state"]).update(observed(60))
    post(client, RUN, "b", 60, observed(60), state=state)
    tab.wait_for(f"{STEP} === '60'", 5)
    tab.wait_for("document.querySelector('.drawing svg').innerHTML.includes('step: 60;')", 5)
    older = AdaFocalState.from_dict(last["state"]).to_dict() | {"step": 30}
    open_run(client, RUN, session="c", state=older, settings={"bins": 15, "rate": 2.0})
    tab.wait_for(f"{STEP} === '30'", 25)
    tab.open(f"{address}/{MONITOR}", width=1000)
    tab.wait_for(f"{CHARTS} === 4")
    tab.whole_picture(folder / "monitor.png", 1000)
    tab.open(address, width=1000)
    tab.wait_for("document.querySelectorAll('#list tbody tr').length === 2")
    tab.whole_picture(folder / "list.png", 1000)


def point_at(tab: Tab, word: str) -> None:
    """The point of a chart under the mouse tells its figures."""
    place = tab.run(
        "(({x, y, width, height}) => [x + width / 2, y + height / 2])("
        "[...document.querySelectorAll('.drawing .mark-symbol path')]"
        ".find((one) => one.ariaLabel?.includes('bin: 7;')).getBoundingClientRect())"
    )
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    shown = "document.querySelector('#vg-tooltip-element.visible')?.textContent"
    assert word in tab.wait_for(shown, 5)


def look_with_keys(tab: Tab, client: Local, folder: Path) -> None:
    """A service with keys: nothing without one, a word about a wrong one, all with one."""
    parts = client.app.state.parts
    with parts.database.write() as store:
        workspace = keys.workspace_named(store, keys.DEFAULT_WORKSPACE).id
        token = keys.create(store, workspace, name="reader", scopes=[Scope.PREDICT]).token
    parts.keys.refresh()
    tab.open(f"{client.base_url}/runs/{RUN}", width=600, dark=True)
    tab.wait_for("document.querySelector('#key')?.hidden === false")
    assert tab.run(CHARTS) == 0
    enter(tab, "cal_wrong")
    tab.wait_for("document.querySelector('#refusal').textContent.includes('refused this key')")
    tab.whole_picture(folder / "locked.png", 600)
    enter(tab, token)
    tab.wait_for(f"{CHARTS} === 5")
    assert tab.run("document.querySelector('#key').hidden")
    assert tab.run("Object.values(sessionStorage).length") == 1
    assert tab.run("localStorage.length + document.cookie.length") == 0


def enter(tab: Tab, token: str) -> None:
    """Type a key and send the form."""
    tab.run(f"document.querySelector('#token').value = {token!r}")
    tab.run("document.querySelector('#key button').click()")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
