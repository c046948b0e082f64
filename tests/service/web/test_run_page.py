"""The pages of training runs: shells whose script calls the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.dashboard_pages import HTML, Shell, check_page, make_key
from helpers.live_service import Local, in_process
from helpers.route_table import STATIC_FILES
from helpers.run_histories import observed
from helpers.training_clients import open_run, post

from calibrators.charts import run_charts
from service.access.permissions import Scope
from service.web.components import vega
from service.web.components.layout import NAVIGATION
from service.web.pages import runs

STATIC = Path(runs.__file__).parents[1] / "static"
SCRIPT, DRAWING = ((STATIC / file).read_text() for file in ("runs.js", "drawing.js"))
SHOWN = ("step", "session", "ranks", "world_size", "partial", "verified", "metrics", "bins")
ENCODED = "%3Cscript%3Ealert('x')%3C%2Fscript%3E"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Local, str]]:
    """Run a service with a key; yield it with the key."""
    with in_process(tmp_path_factory.mktemp("pages")) as client:
        token = make_key(client, Scope.FIT, name="trainer")
        yield client, token


@pytest.fixture
def client(locked: tuple[Local, str]) -> Local:
    """Return a client without a key."""
    return locked[0]


@pytest.fixture
def reader(locked: tuple[Local, str]) -> Iterator[Local]:
    """Return a client with a key that accepts HTML."""
    client, token = locked
    with Local(base_url=client.base_url, timeout=60) as made:
        made.headers.update({**HTML, "Authorization": f"Bearer {token}"})
        yield made


@pytest.mark.parametrize("path", ["/runs", "/runs/resnet", "/runs/there-is-none"])
def test_pages_run_nothing_but_the_service_own_script(reader: Local, path: str) -> None:
    answer = reader.get(path)
    assert answer.status_code == 200
    check_page(answer)
    assert reader.head(path).status_code == 200


@pytest.mark.parametrize("path", ["/runs", "/runs/resnet"])
def test_resources_and_links_of_a_page_exist(reader: Local, path: str) -> None:
    links = set(Shell(reader.get(path).text).links) - {"data:,", "#main"}
    found = {str(reader.build_request("GET", path).url.join(link).path) for link in links}
    assert "/static/runs.js" in found
    assert found <= {*STATIC_FILES, *(one.path for one in NAVIGATION)}
    for one in found - {"/static/vega.js"}:
        assert reader.get(one).status_code == 200


def test_nothing_is_shown_without_a_key(client: Local) -> None:
    for path in ("/v1/runs", "/v1/runs/resnet", "/v1/runs/resnet/history", "/v1/runs/resnet/state"):
        assert client.get(path, headers=HTML).status_code == 401
    for path in ("/runs", "/runs/resnet"):
        assert client.get(path).status_code == 401
        answer = client.get(path, headers=HTML)
        assert (answer.status_code, answer.content) == (303, b"")
        assert answer.headers["location"].endswith(f"/sign-in?next={path}")
    assert client.get("/static/reference.css").status_code == 404


def test_names_are_only_text(reader: Local) -> None:
    text = reader.get(f"/runs/{ENCODED.replace('%2F', '')}").text
    assert "alert(" in text
    assert "<script>" not in text
    assert Shell(text).tags.count("script") == 2
    assert reader.get(f"/runs/{ENCODED}").status_code == 404


def test_the_script_makes_no_markup_and_keeps_nothing() -> None:
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http"):
        assert word not in SCRIPT + DRAWING
    for word in ("localStorage", "sessionStorage", "document.cookie", "indexedDB"):
        assert word not in SCRIPT + DRAWING
    assert "ast: true" in DRAWING


@pytest.mark.parametrize("path", ["/runs", "/runs/resnet"])
def test_the_script_finds_the_elements_it_fills(reader: Local, path: str) -> None:
    begins, ends = SCRIPT.index("// ---- the list"), SCRIPT.index("// ---- one run")
    of_list, common = SCRIPT[begins:ends], SCRIPT[:begins]
    mine = of_list if path == "/runs" else SCRIPT[ends:]
    wanted = set(re.findall(r'(?:\$|say|fill)\("(\w+)"', mine + common))
    wanted -= {"live", "archived"} if path == "/runs" else {"archived"}
    assert wanted <= Shell(reader.get(path).text).ids


@pytest.mark.parametrize("path", STATIC_FILES)
def test_files_are_sent_once(client: Local, path: str) -> None:
    first = client.get(path)
    assert first.status_code == 200
    assert first.headers["cache-control"] == "public, no-cache"
    again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


def test_charts_are_those_of_the_library(client: Local) -> None:
    assert client.get("/static/run-charts.json").json() == run_charts([])
    library = client.get("/static/vega.js")
    assert library.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "window.vegaEmbed=" in library.text
    assert len(library.content) > 500_000


def test_a_service_without_the_charts_extra_shows_a_note(
    client: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vega, "_is_installed", lambda: False)
    assert client.get("/static/vega.js").text == "window.calibrdNoCharts = true;\n"
    assert "window.calibrdNoCharts" in DRAWING
    assert "pip install 'calibrd[charts]'" in DRAWING


@pytest.mark.parametrize("kind", ["adafocal", "monitor"])
def test_the_charts_accept_the_history_of_the_service(locked: tuple[Local, str], kind: str) -> None:
    client, token = locked
    client.headers["Authorization"] = f"Bearer {token}"
    try:
        opened = open_run(client, kind, kind=kind, decides="service", session="first")
        for step in (1, 2, 3):
            assert post(client, kind, "first", step, observed(step)).status_code == 200
        steps = client.get(f"/v1/runs/{kind}/history").json()["items"]
    finally:
        del client.headers["Authorization"]
    assert opened["name"] == kind
    assert [one["step"] for one in steps] == [1, 2, 3]
    assert ("gammas" in run_charts(steps)) == (kind == "adafocal")
    for name in SHOWN:
        assert name in steps[0]
    assert steps[2]["metrics"]["ece"] == pytest.approx(observed(3).summary().ece)
