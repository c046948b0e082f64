"""The page of a version: its content for each role, and how its notes are edited."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dashboard_pages import MARKUP, check_page, csrf_of, make_key, signed_in, statements
from helpers.live_service import Local, in_process, sample
from helpers.registration import registration
from helpers.segment_samples import rows_of_segments
from helpers.workspace_contents import ALIAS, fitted_elsewhere
from sqlalchemy import update

from calibrators import CalibrationSet, Report
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.auto import Auto
from calibrators.methods.segmented import Segmented
from calibrators.methods.temperature import TemperatureMap
from calibrators.metrics.catalogue import all_metrics
from calibrators.report import html_tables
from service.access.permissions import Scope
from service.storage.tables import versions
from service.web.pages.version import read_tags

PAGE = "/calibrators/fashion/versions/1"
NO_REPORT = "/calibrators/fashion/versions/2"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with a key and two versions: one in production, and one without a report."""
    with in_process(tmp_path_factory.mktemp("version"), database_url="") as made:
        notes = {"tags": {"team": "vision"}, "description": "the first\nof many"}
        for body in (
            {**fitted_elsewhere(), **notes},
            {**fitted_elsewhere(), "report": None},
        ):
            assert made.post("/v1/calibrators/fashion/versions", json=body).status_code == 201
        made.put(f"/v1/calibrators/fashion/aliases/{ALIAS}", json={"version": 1})
        make_key(made, Scope.ADMIN, name="first")
        yield made


@pytest.fixture
def reader(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.PREDICT, name="reader") as made:
        yield made


@pytest.fixture
def promoter(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.PROMOTE, name="promoter") as made:
        yield made


class Charts(HTMLParser):
    """The specifications of the charts on a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [json.loads(value or "") for name, value in attrs if name == "data-chart"]


def spaced(text: str) -> str:
    return " ".join(text.split())


def test_it_shows_how_the_version_was_judged_and_what_it_is(reader: Local) -> None:
    answer = reader.get(PAGE)
    assert answer.status_code == 200
    shell = check_page(answer)
    words, version = spaced(shell.words), reader.get(f"/v1{PAGE}").json()
    report = Report.from_dict(fitted_elsewhere()["report"])
    assert report.verdict is not None
    sentence = report.verdict_sentence
    assert f"{report.verdict.value} {sentence[0].upper()}{sentence[1:]}." in words
    assert f"fashion, version 1 {ALIAS}" in words
    for row in report.rows():
        for figure in (row.before, row.after, row.change):
            assert figure.replace("-", "\N{MINUS SIGN}") in words
    for one in (version["map_sha256"], "sha256:0f1e", "temperature", report.judged_on, "numpy"):
        assert one in words
    assert "no ONNX: only versions that were fitted by this service have one" in words
    assert "the first of many" in words
    assert "teamvision" in words
    assert reader.head(PAGE).status_code == 200


def test_metrics_are_defined_for_pointers_and_for_readers(reader: Local) -> None:
    text = reader.get(PAGE).text
    shown = fitted_elsewhere()["report"]["metrics"]
    for metric in all_metrics().values():
        meaning = escape(metric.meaning)
        assert (f'<abbr title="{meaning}">{metric.title}</abbr>' in text) == (metric.name in shown)
        assert (f"<dt>{metric.title}</dt><dd>{meaning}</dd>" in text) == (metric.name in shown)


def test_charts_carry_the_numbers_of_the_report(reader: Local) -> None:
    report = Report.from_dict(fitted_elsewhere()["report"])
    reliability, margins, temperatures = Charts(reader.get(PAGE).text).found
    counted = [
        sum(one["count"] for one in side["data"]["values"]) for side in reliability["hconcat"]
    ]
    assert counted == [report.n, report.n]
    assert [one["title"]["text"] for one in margins["hconcat"]] == [
        f"{third.name} margin" for third in report.by_margin
    ]
    assert [one["temperature"] for one in temperatures["data"]["values"]] == [
        cell.temperature for cell in report.temperatures
    ]


def test_everything_it_links_to_within_the_api_exists(reader: Local) -> None:
    base = reader.build_request("GET", PAGE).url
    links = {str(base.join(link).path) for link in check_page(reader.get(PAGE)).links}
    files = {one for one in links if one.startswith("/v1/")}
    report = {f"/v1{PAGE}/report.{form}" for form in ("html", "svg", "png", "json")}
    assert files == {f"/v1{PAGE}/map", *report}
    for one in files:
        assert reader.get(one).status_code == 200


def test_a_version_without_a_report_shows_a_note_and_the_rest(reader: Local) -> None:
    answer = reader.get(NO_REPORT)
    shell = check_page(answer)
    assert "registered without a report" in shell.words
    assert "temperature" in shell.words
    assert not Charts(answer.text).found
    assert not [link for link in shell.links if "report" in link or link.endswith(".js")]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/calibrators/fashion/versions/3", "fashion has no version 3"),
        ("/calibrators/fashion/versions/0", "fashion has no version 0"),
        (f"/calibrators/fashion/versions/{2**70}", "has no version"),
        ("/calibrators/shoes/versions/1", "there is no calibrator 'shoes'"),
        ("/calibrators/Fashion/versions/1", "there is no calibrator 'Fashion'"),
    ],
)
def test_missing_versions_are_reported(reader: Local, path: str, said: str) -> None:
    answer = reader.get(path)
    assert answer.status_code == 404
    assert said in check_page(answer).words


def test_two_reads_make_the_page(service: Local) -> None:
    with signed_in(service, Scope.ADMIN) as client, statements(client) as seen:
        assert client.get(PAGE).status_code == 200
    assert len([one for one in seen if "web_sessions" not in one]) == 2


@pytest.mark.parametrize("scope", Scope)
def test_each_key_is_offered_its_permitted_actions(service: Local, scope: Scope) -> None:
    with signed_in(service, scope) as client:
        links = " ".join(check_page(client.get(PAGE)).links)
    may = {Scope.PREDICT: "/try?ref=1", Scope.PROMOTE: "/promote?version=1"}
    for needed, link in may.items():
        assert (link in links) == (scope in (needed, Scope.ADMIN))
    assert ("/notes" in links) == (scope in (Scope.PROMOTE, Scope.ADMIN))
    assert "/compare?b=1" in links


def test_notes_can_be_changed_with_the_promote_scope(promoter: Local, reader: Local) -> None:
    form = {"tags": "team: nlp\r\nurl: a:b", "description": "new\r\nlines"}
    form["seen"] = seen_on(promoter, NO_REPORT)
    answer = promoter.post(f"{NO_REPORT}/notes", data={**form, "csrf": csrf_of(promoter)})
    assert answer.status_code == 303
    assert (
        promoter.build_request("GET", f"{NO_REPORT}/notes")
        .url.join(answer.headers["location"])
        .path
        == NO_REPORT
    )
    version = promoter.get(f"/v1{NO_REPORT}").json()
    assert version["tags"] == {"team": "nlp", "url": "a:b"}
    assert version["description"] == "new\nlines"
    assert "team: nlp\nurl: a:b</textarea>" in promoter.get(NO_REPORT).text
    assert promoter.post(f"{NO_REPORT}/notes", data=form).status_code == 403  # without its token
    refused = reader.post(f"{NO_REPORT}/notes", data={**form, "csrf": csrf_of(reader)})
    assert refused.status_code == 403
    cleared = {"tags": "", "description": "", "csrf": csrf_of(promoter)}
    late = promoter.post(f"{NO_REPORT}/notes", data={**cleared, "seen": form["seen"]})
    assert late.status_code == 412
    assert "someone changed these notes" in check_page(late).words
    cleared["seen"] = seen_on(promoter, NO_REPORT)
    assert promoter.post(f"{NO_REPORT}/notes", data=cleared).status_code == 303
    assert promoter.get(f"/v1{NO_REPORT}").json()["tags"] == {}


def seen_on(client: Local, page: str) -> str:
    """Return the values in the form of a page for the notes that it shows."""
    return re.search(r'name="seen" value="(\w+)"', client.get(page).text)[1]


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ("vision", "tags must be written as name: value, got 'vision'"),
        ("a: 1\na: 2", "tags must have unique names, got 'a: 2'"),
        ("Team: vision", "a tag"),
        ("\n".join(f"t{number}: x" for number in range(33)), "at most 32 tags"),
    ],
)
def test_tags_that_are_none_are_refused_in_words(promoter: Local, tags: str, said: str) -> None:
    form = {"tags": tags, "description": "", "csrf": csrf_of(promoter)}
    form["seen"] = seen_on(promoter, PAGE)
    answer = promoter.post(f"{PAGE}/notes", data=form)
    assert answer.status_code == 422
    assert said in check_page(answer).words
    assert promoter.get(f"/v1{PAGE}").json()["tags"] == {"team": "vision"}


def test_tags_of_a_form_are_those_it_shows() -> None:
    tags = {"team": "vision", "url": "a: b", "empty": ""}
    assert read_tags("\n".join(f"{key}: {value}" for key, value in tags.items())) == tags


def test_candidates_of_auto_are_a_table(local: Local) -> None:
    recipe = Auto(candidates=("identity", "temperature"))
    fitted, report = fit_and_judge(recipe, CalibrationSet(*sample(600)))
    body = registration(fitted, report=report.to_dict())
    assert local.post("/v1/calibrators/fashion/versions", json=body).status_code == 201
    with signed_in(local, Scope.PREDICT) as client:
        text = client.get(PAGE).text
    table = text[text.index("<h3>Candidates") :]
    for name in ("identity", "temperature"):
        assert f'<th scope="row">{name}</th>' in table
    assert "seconds</th>" in table
    for seconds in report.fit["seconds"].values():
        assert f"<td>{html_tables.plain(seconds)}</td>" in table
    assert fitted.fit_info["why"] in text


@pytest.mark.parametrize("odd", [5, True, "all", [{"method": ["a"]}], [1, {}], {"a": 1}])
def test_fit_info_of_registered_maps_may_be_anything(local: Local, odd: Any) -> None:
    info = {"candidates": odd, "warnings": odd, "left_out": odd, "segments": odd}
    fitted = TemperatureMap(k=3, temperature=2.0, fit_info=info)
    answer = local.post("/v1/calibrators/fashion/versions", json=registration(fitted))
    assert answer.status_code == 201, answer.text
    with signed_in(local, Scope.PREDICT) as client:
        assert "<h3>Candidates" in client.get(PAGE).text
        assert client.get(f"/v1{PAGE}/onnx").json()["code"] == "no_onnx"


def test_segments_are_a_table(local: Local) -> None:
    rows = rows_of_segments()
    rows["segments"] = np.where(rows["segments"] == "web", MARKUP, "app")
    fitted, report = fit_and_judge(Segmented(), CalibrationSet(**rows))
    body = registration(fitted, report=report.to_dict())
    assert local.post("/v1/calibrators/fashion/versions", json=body).status_code == 201
    assert local.post("/v1/calibrators/fashion/versions", json=fitted_elsewhere()).is_success
    with signed_in(local, Scope.PREDICT) as client:
        page, plain = client.get(PAGE), client.get("/calibrators/fashion/versions/2")
    assert MARKUP in check_page(page).words
    table = page.text[page.text.index('id="segments">By segment') :]
    assert f'<th scope="row">{escape(MARKUP)}</th>' in table
    assert '<th scope="row">app</th>' in table
    assert "By segment" not in plain.text


def test_user_input_is_shown_as_text(local: Local) -> None:
    assert local.post("/v1/calibrators/fashion/versions", json=fitted_elsewhere()).is_success
    odd = [{"code": MARKUP, "message": MARKUP}, MARKUP, 5]
    values = {
        "method": MARKUP,
        "verdict": MARKUP,
        "model": MARKUP,
        "kind": MARKUP,
        "params": {MARKUP: [MARKUP, {MARKUP: MARKUP}]},
        "fit_info": {"warnings": odd, "candidates": odd, MARKUP: [{MARKUP: MARKUP}], "odd": odd},
        "libraries": {MARKUP: MARKUP},
        "tags": {MARKUP: MARKUP},
        "description": MARKUP,
        "created_by": MARKUP,
        "fit": MARKUP,
        "map_sha256": MARKUP,
        "onnx_sha256": MARKUP,
    }
    with local.app.state.parts.database.write() as store:
        store.session.execute(update(versions).values(values))
    with signed_in(local, Scope.ADMIN, name=MARKUP) as client:
        shell = check_page(client.get(PAGE))
    assert shell.words.count("onerror=alert(1)") > 20


def test_a_method_that_fell_back_is_shown(tmp_path: Path) -> None:
    fallback = {"method": "smart", "reason": "every prediction is right"}
    warning = {"code": "fell_back", "message": "smart fell back to temperature scaling: why"}
    fitted = TemperatureMap(
        k=3, temperature=1.5, fit_info={"fallback": fallback, "warnings": [warning]}
    )
    with in_process(tmp_path, database_url="") as local:
        sent = local.post("/v1/calibrators/right/versions", json=registration(fitted))
        assert sent.status_code == 201, sent.text
        with local.app.state.parts.database.write() as store:  # as a fit of the service does
            store.session.execute(update(versions).values(method="smart"))
        shown = local.get("/calibrators/right/versions/1").text
    assert "smart fell back to temperature scaling: why <small>fell_back</small>" in shown
    assert 'smart <span class="muted">(fell back to temperature scaling)</span>' in shown


def test_the_method_that_auto_chose_is_shown(tmp_path: Path) -> None:
    fitted = TemperatureMap(k=3, temperature=1.5, fit_info={"winner": "additive"})
    with in_process(tmp_path, database_url="") as local:
        sent = local.post("/v1/calibrators/chosen/versions", json=registration(fitted))
        assert sent.status_code == 201, sent.text
        for winner, words in (("additive", "<dd>auto (additive)"), (MARKUP, "<dd>auto</dd>")):
            with local.app.state.parts.database.write() as store:  # as a fit of the service does
                values = {"method": "auto", "fit_info": {"winner": winner}}
                store.session.execute(update(versions).values(values))
            assert words in local.get("/calibrators/chosen/versions/1").text
