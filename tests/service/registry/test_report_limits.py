"""Reports and maps that are too long are refused on registration, so they are never drawn."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import struct

import pytest
from helpers.workspace_contents import fitted_elsewhere

from service.registry.reports import renderer as rendering
from service.registry.reports.limits import MAX_ITEMS

URL = "/v1/calibrators/long/versions"


def registered(local, **changed):
    body = copy.deepcopy(fitted_elsewhere())
    body["report"] |= changed
    return local.post(URL, json=body)


def test_a_report_of_ours_is_taken(local):
    assert registered(local).status_code == 201


@pytest.mark.parametrize("name", sorted(MAX_ITEMS))
def test_no_part_of_a_report_may_be_longer_than_in_a_fit(local, name):
    report = fitted_elsewhere()["report"]
    part = report.get(name) or report["equal_width"]
    answer = registered(local, **{name: part * 60})
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_report")
    assert name in answer.json()["detail"]


@pytest.mark.parametrize(
    "changed",
    [
        {"judged_on": "a" * 3000},
        {"conventions": {str(number): "a" for number in range(100)}},
        {"conventions": {"a": "a" * 3000}},
        {"fit": {"parameters": {}, "notes": ["a" * 100] * 1000}},
    ],
)
def test_texts_and_notes_are_limited(local, changed):
    answer = registered(local, **changed)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_report")


def test_a_map_of_a_long_header_is_refused(local):
    content = base64.b64decode(fitted_elsewhere()["map"])
    (length,) = struct.unpack_from("<I", content, 40)
    header = json.loads(content[44 : 44 + length])
    for notes, code in ((["a" * 1000] * 2000, "bad_map"), ([[]] * 150_000, "too_many_values")):
        header["parameters"]["fit_info"] = {"notes": notes}
        text = json.dumps(header, separators=(",", ":")).encode()
        body = struct.pack("<I", len(text)) + text + content[44 + length :]
        forged = content[:8] + hashlib.sha256(body).digest() + body
        answer = local.post(URL, json={"map": base64.b64encode(forged).decode()})
        assert (answer.status_code in (413, 422), answer.json()["code"]) == (True, code)


def test_a_rendering_is_created_once(local):
    assert registered(local).status_code == 201
    renderer = local.app.state.parts.renderer
    url = f"{URL}/1/report.svg"
    first = local.get(url)
    assert first.status_code == 200
    files = list(renderer._folder.iterdir())
    assert [file.suffix for file in files] == [".svg"]
    files[0].write_bytes(b"<svg>kept</svg>")
    assert local.get(url).content == b"<svg>kept</svg>"


def test_drawing_is_stopped_after_its_time_limit(local, monkeypatch):
    assert registered(local).status_code == 201
    renderer = local.app.state.parts.renderer
    assert local.get(f"{URL}/1/report.svg").status_code == 200  # its process has started
    monkeypatch.setattr(renderer, "_seconds", 0.0)
    refused = local.get(f"{URL}/1/report.html")
    assert (refused.status_code, refused.json()["code"]) == (503, "report_not_drawn")
    monkeypatch.setattr(renderer, "_seconds", 20.0)
    again = local.get(f"{URL}/1/report.html")
    assert again.json()["code"] == "report_not_drawn"  # not retried at once
    monkeypatch.setattr(rendering, "FAILURE_SECONDS", 0.0)
    renderer._failed.clear()
    assert local.get(f"{URL}/1/report.html").status_code == 200
