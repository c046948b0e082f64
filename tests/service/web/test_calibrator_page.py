"""The page of a calibrator: its versions, its aliases, and snippets that run when pasted."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from helpers.dashboard_pages import HTML, Shell, check_page, row_of, signed_in
from helpers.live_service import Local
from helpers.registration import registration
from helpers.samples import draw, with_features
from helpers.workspace_contents import ALIAS, CALIBRATOR, CLASSES, fitted_elsewhere

from calibrators import CalibrationSet
from calibrators.methods.feature_clipping import FeatureClipping
from calibrators.methods.segmented import Segmented
from calibrators.methods.temperature import TemperatureMap
from service.access.permissions import Scope
from service.web.pages import calibrator

PATH = f"/calibrators/{CALIBRATOR}"


@pytest.fixture
def two(local: Local) -> Local:
    """Run a service with a calibrator of two versions, the first in production."""
    for _ in range(2):
        answer = local.post(f"/v1/calibrators/{CALIBRATOR}/versions", json=fitted_elsewhere())
        assert answer.status_code == 201
    move = {"version": 1, "reason": "the first"}
    local.put(f"/v1/calibrators/{CALIBRATOR}/aliases/{ALIAS}", json=move)
    return local


@pytest.fixture
def reader(two: Local) -> Iterator[Local]:
    with signed_in(two, Scope.PREDICT, name="reader") as made:
        yield made


def test_versions_have_figures_before_and_after(two: Local) -> None:
    page = two.get(PATH, headers=HTML)
    check_page(page)
    report = fitted_elsewhere()["report"]
    before, after = report["before"]["metrics"], report["metrics"]
    words = row_of(page.text, "1")
    assert f"{100 * before['ece']:.2f} → {100 * after['ece']:.2f}" in words
    for name in ("nll", "brier"):
        assert f"{before[name]:.4f} → {after[name]:.4f}" in words
    assert report["verdict"] in words
    assert ALIAS in words
    assert ALIAS not in row_of(page.text, "2")
    assert "the first" in row_of(page.text, ALIAS)


def test_by_default_production_and_the_newest_version_are_compared(two: Local) -> None:
    page = two.get(PATH, headers=HTML).text
    checked = re.findall(r'name="([ab])" aria-label="[^"]*" value="(\d)" checked', page)
    assert sorted(checked) == [("a", "1"), ("b", "2")]


def test_pages_turn_through_all_versions(two: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrator, "VERSIONS", 2)
    for _ in range(3):
        two.post(f"/v1/calibrators/{CALIBRATOR}/versions", json=fitted_elsewhere())
    seen, path = [], PATH
    while path:
        page = two.get(path, headers=HTML).text
        table = page.split('<form method="get"')[1].split("</form>")[0]
        seen += [int(one) for one in re.findall(r"/versions/(\d+)\"", table)]
        following = re.search(r'<a href="([^"]+)" rel="next"', page)
        path = PATH + html.unescape(following[1]).partition(PATH)[2] if following else ""
    assert seen == [5, 4, 3, 2, 1]
    assert two.get(f"{PATH}?cursor=nonsense", headers=HTML).status_code == 422


def test_readers_are_offered_only_permitted_actions(reader: Local) -> None:
    shell = check_page(reader.get(PATH))
    assert not [one for one in shell.links if "promote" in one or "new-fit" in one]
    assert [one for one in shell.links if one.endswith("/try")]


def test_lines_to_paste_work_as_they_stand(two: Local) -> None:
    page = two.get(PATH, headers=HTML).text
    curl, python, inference = pasted(page)
    answer = json.loads(_run(curl))
    assert sum(answer["probabilities"][0]) == pytest.approx(1)
    assert len(answer["probabilities"][0]) == CLASSES
    tensor = json.loads(_run(inference))["outputs"][0]
    assert tensor["shape"] == [1, CLASSES]
    assert tensor["data"] == pytest.approx(answer["probabilities"][0], rel=1e-6)
    names: dict[str, Any] = {}
    exec(python, names)  # noqa: S102 - what the page offers to paste
    names["client"].close()
    assert names["p"][0] == pytest.approx(answer["probabilities"][0], rel=1e-6)


@pytest.mark.parametrize(
    ("classes", "kind"), [(2, "logits"), (2000, "logits"), (300, "probabilities")]
)
def test_lines_to_paste_work_for_few_and_many_classes(
    local: Local, classes: int, kind: Literal["logits", "probabilities"]
) -> None:
    body = registration(TemperatureMap(k=classes, temperature=2.0, kind=kind))
    assert local.post("/v1/calibrators/wide/versions", json=body).status_code == 201
    page = local.get("/calibrators/wide", headers=HTML).text
    curl, python, inference = pasted(page)
    expected = json.loads(_run(curl))["probabilities"][0]
    assert len(expected) == classes
    assert json.loads(_run(inference))["outputs"][0]["data"] == pytest.approx(expected, rel=1e-6)
    names: dict[str, Any] = {}
    exec(python, names)  # noqa: S102 - what the page offers to paste
    names["client"].close()
    assert names["p"][0] == pytest.approx(expected, rel=1e-6)
    assert "follows the alias" not in python
    assert len(page) < 20_000


def test_lines_to_paste_name_a_segment_where_there_are_some(local: Local) -> None:
    data = draw(400, 3)
    names = ['it\'s "here" 😀', "web"] * 200
    fitted = Segmented(shrinkage="none").fit(CalibrationSet(data.logits, data.labels, names))
    body = registration(fitted)
    assert local.post("/v1/calibrators/parted/versions", json=body).status_code == 201
    curl, python, inference = pasted(local.get("/calibrators/parted", headers=HTML).text)
    expected = fitted.apply([[3.0, 1.0, 0.0]], names[:1])[0]
    assert np.abs(expected - fitted.base.apply([[3.0, 1.0, 0.0]])[0]).max() > 1e-4
    assert json.loads(_run(curl))["probabilities"][0] == pytest.approx(expected, rel=1e-6)
    assert json.loads(_run(inference))["outputs"][0]["data"] == pytest.approx(expected, rel=1e-6)
    names_there: dict[str, Any] = {}
    exec(python, names_there)  # noqa: S102 - what the page offers to paste
    names_there["client"].close()
    assert names_there["p"][0] == pytest.approx(expected, rel=1e-6)


def test_lines_to_paste_hold_features_where_they_are_needed(local: Local) -> None:
    fitted = FeatureClipping(thresholds=5).fit(with_features(draw(400, 3)))
    body = registration(fitted)
    assert local.post("/v1/calibrators/clipped/versions", json=body).status_code == 201
    curl, python = pasted(local.get("/calibrators/clipped", headers=HTML).text)
    expected = fitted.apply([[3.0, 1.0, 0.0]], features=np.zeros((1, 6)))[0]
    assert json.loads(_run(curl))["probabilities"][0] == pytest.approx(expected, rel=1e-6)
    names: dict[str, Any] = {}
    exec(python, names)  # noqa: S102 - what the page offers to paste
    names["client"].close()
    assert names["p"][0] == pytest.approx(expected, rel=1e-6)


def test_lines_to_paste_name_the_place_behind_a_proxy(two: Local) -> None:
    headers = {**HTML, "X-Forwarded-Prefix": "/calib/", "X-Forwarded-Proto": "https"}
    host = two.base_url.netloc.decode()
    assert f"https://{host}/calib/v1/calibrators" in two.get(PATH, headers=headers).text
    headers["X-Forwarded-Prefix"] = "/x; rm -rf ."
    assert f"https://{host}/v1/calibrators" in two.get(PATH, headers=headers).text


def test_snippets_include_a_key_if_one_is_needed(reader: Local) -> None:
    assert "Bearer $CALIBRD_API_KEY" in reader.get(PATH).text


def test_a_calibrator_without_versions_says_what_to_do(local: Local) -> None:
    with local.app.state.parts.database.write() as store:
        store.calibrators.add(local.app.state.parts.keys.anyone.workspace, "empty")
    page = local.get("/calibrators/empty", headers=HTML)
    assert "new-fit?calibrator=empty" in page.text
    assert "<pre" not in page.text
    missing = local.get("/calibrators/nothing", headers=HTML)
    assert missing.status_code == 404
    assert "there is no calibrator 'nothing'" in Shell(missing.text).words


def pasted(page: str) -> list[str]:
    """Return the snippets that a page offers for pasting."""
    found = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.S)
    return [html.unescape(one) for one in found]


def _run(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
