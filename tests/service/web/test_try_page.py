"""The page "Try it": it agrees with predict, whatever form pasted rows have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from helpers.dashboard_pages import HTML, MARKUP, Shell, check_page, csrf_of, make_key, signed_in
from helpers.live_service import Local, in_process
from helpers.registration import registration, temperature_registration
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators.methods.segmented import SegmentedMap
from calibrators.methods.temperature import TemperatureMap
from service.access.permissions import Scope
from service.app import MAX_PASTED_BYTES
from service.errors import Invalid
from service.web.components.pasted_rows import MAX_ROWS, example_row, rows_of

SEGMENTED = SegmentedMap(
    k=3,
    base=TemperatureMap(k=3, temperature=2.0),
    segments=("<app>", "web"),
    temperatures=np.array([0.5, 4.0]),
)
WIDTHS = {"binary": 2, "fashion": 5, "letters": 26, "words": 3000}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with a key and various calibrators, one of probabilities, one empty."""
    with in_process(tmp_path_factory.mktemp("try")) as made:
        for name, k in WIDTHS.items():
            for temperature in (2.0, 0.5):
                body = temperature_registration(temperature, k)
                assert made.post(f"/v1/calibrators/{name}/versions", json=body).status_code == 201
        shares = TemperatureMap(k=4, temperature=2.0, kind="probabilities")
        made.post("/v1/calibrators/shares/versions", json=registration(shares, model=MARKUP))
        made.post("/v1/calibrators/segments/versions", json=registration(SEGMENTED))
        force = {"version": 1, "force": True, "reason": "a test"}
        made.put("/v1/calibrators/fashion/aliases/production", json=force)
        with made.app.state.parts.database.write() as store:
            store.calibrators.add(made.app.state.parts.keys.anyone.workspace, "empty")
        make_key(made, Scope.ADMIN, name="first")
        yield made


@pytest.fixture(scope="module")
def user(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.PREDICT, name="user") as made:
        made.headers["X-CSRF-Token"] = csrf_of(made)
        yield made


def shown(page: str) -> list[dict[str, tuple[float, float]]]:
    """Return, for each row, the classes with their percentages before and after."""
    found = []
    for section in re.findall(r'<section class="tried">.*?</section>', page, re.S):
        lines = re.findall(
            r'<th scope="row">([^<]+)</th><td>([\d.]+) %</td><td>([\d.]+) %</td>', section
        )
        found.append({name: (float(before), float(after)) for name, before, after in lines})
    return found


def tried(client: Local, name: str, rows: str, **form: str) -> list[dict[str, tuple[float, float]]]:
    answer = client.post(f"/calibrators/{name}/try", data={"rows": rows, **form})
    assert answer.status_code == 200, Shell(answer.text).words
    check_page(answer)
    return shown(answer.text)


@pytest.mark.parametrize("text", ["1,,2,3", ",1,2,3", "1;;2", "1, ,2,3"])
def test_a_missing_number_moves_no_class(text: str) -> None:
    with pytest.raises(Invalid, match="a value is missing before a comma"):
        rows_of(text, 3)


def test_probabilities_are_those_of_softmax_and_of_predict(user: Local) -> None:
    rows = np.random.default_rng(3).normal(size=(4, 5)).round(3) * 4
    answer = user.post("/v1/calibrators/fashion@production/predict", json=rows.tolist())
    after = 100 * np.array(answer.json()["probabilities"])
    before = 100 * np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    found = tried(user, "fashion", json.dumps(rows.tolist()))
    assert [list(one) for one in found] == [list("01234")] * 4
    np.testing.assert_allclose(
        [[one[0] for one in row.values()] for row in found], before, atol=0.006
    )
    np.testing.assert_allclose(
        [[one[1] for one in row.values()] for row in found], after, atol=0.006
    )


def test_the_likeliest_of_many_classes_are_shown_and_the_rest_is_summed(user: Local) -> None:
    row = np.random.default_rng(4).normal(size=26) * 3
    (found,) = tried(user, "letters", " ".join(map(str, row)))
    *likeliest, rest = found
    assert [int(one) for one in likeliest] == np.argsort(-row, kind="stable")[:10].tolist()
    assert rest == "16 others"
    for side in (0, 1):
        assert sum(one[side] for one in found.values()) == pytest.approx(100, abs=0.1)


def test_an_alias_or_a_version_can_be_named(user: Local) -> None:
    rows = "3 1 0 0 0"
    by_alias = tried(user, "fashion", rows)
    assert by_alias == tried(user, "fashion", rows, ref="production")
    assert by_alias == tried(user, "fashion", rows, ref="1")
    assert by_alias != tried(user, "fashion", rows, ref="2")
    assert tried(user, "letters", example_row(26, "logits"), ref="2") == tried(
        user, "letters", example_row(26, "logits")
    )
    page = user.get("/calibrators/fashion/try?ref=2").text
    assert re.search(r'<option value="2" selected>2</option>', page)
    assert '<option value="production">production (version 1)</option>' in page
    for path in ("/fashion/try?ref=3", "/fashion/try?ref=nightly", "/nothing/try", "/A%20B/try"):
        assert user.get(f"/calibrators{path}").status_code == 404


@pytest.mark.parametrize("name", [*WIDTHS, "shares"])
def test_the_example_is_of_the_right_width_for_every_calibrator(user: Local, name: str) -> None:
    answer = user.post(f"/calibrators/{name}/try", data={"rows": "x", "example": "1"})
    assert answer.status_code == 200
    written = re.search(r"<textarea[^>]*>([^<]*)</textarea>", answer.text)
    assert written
    assert tried(user, name, written[1]) == shown(answer.text)
    assert 50 < max(one[0] for one in shown(answer.text)[0].values()) < 99


def test_a_row_of_two_classes_may_be_one_number(user: Local) -> None:
    both = tried(user, "binary", "0 1.5\n0 -2")
    assert tried(user, "binary", "1.5\n-2") == both
    assert tried(user, "binary", "[[1.5], [-2]]") == both


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("", "enter a row of numbers"),
        ("1 2 3", "a row must have 5 numbers, one per class, but row 1 has 3"),
        ("1 2 3 4 5\n1 2 3 4", "row 2 has 4"),
        ("[[1, 2, 3]]", "fitted on 5 classes, got 3 columns"),
        ("[[1, 2, 3, 4, 5], [1]]", "all rows of values must have the same length"),
        ("1 2 3 4 five", "row 1: 'five' is not a number"),
        (f"1 2 3 4 {MARKUP}", "is not a number"),
        ("1 2 nan 4 5", "must not be NaN"),
        ("1 2 3 4 5\n" * 21, "this page shows at most 20 rows, got 21"),
        ("[]", ""),
        ("[" * 5000, ""),
    ],
)
def test_errors_are_shown_next_to_the_input(user: Local, rows: str, told: str) -> None:
    answer = user.post("/calibrators/fashion/try", data={"rows": rows})
    assert answer.status_code == 422
    shell = check_page(answer)
    assert told in shell.words
    assert rows.strip() in shell.words
    assert "img" not in shell.tags
    assert 'role="alert"' in answer.text


def test_predict_is_needed_and_a_form_of_this_service(service: Local, user: Local) -> None:
    with signed_in(service, Scope.FIT) as other:
        assert other.get("/calibrators/fashion/try").status_code == 403
    with signed_in(service, Scope.PREDICT) as made:
        assert made.get("/calibrators/fashion/try").status_code == 200
        foreign = made.post("/calibrators/fashion/try", data={"rows": "1 2 3 4 5"})
        assert foreign.status_code == 403
    big = user.post("/calibrators/words/try", data={"rows": "1 " * MAX_PASTED_BYTES})
    assert (big.status_code, big.json()["code"]) == (413, "body_too_large")


def test_a_calibrator_without_versions_says_so(service: Local, user: Local) -> None:
    for answer in (user.get("/calibrators/empty/try"), user.post("/calibrators/empty/try")):
        assert "There is no version yet" in check_page(answer).words
        assert "new-fit" not in answer.text
    with signed_in(service, Scope.ADMIN) as admin:
        assert (
            "../../new-fit?calibrator=empty"
            in check_page(admin.get("/calibrators/empty/try")).links
        )


def test_the_model_is_shown_as_text(user: Local) -> None:
    shell = check_page(user.get("/calibrators/shares/try", headers=HTML))
    assert "img" not in shell.tags
    assert MARKUP in shell.words


NUMBERS = st.floats(-1e6, 1e6, width=32).map(float)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(3, 30).flatmap(
        lambda k: arrays(float, st.tuples(st.integers(1, 4), st.just(k)), elements=NUMBERS)
    )
)
def test_rows_are_the_same_in_every_form(rows) -> None:
    k = rows.shape[1]
    with np.printoptions(threshold=10_000, floatmode="unique"):
        printed = str(rows)
    lines = [[repr(float(one)) for one in row] for row in rows]
    forms = [
        json.dumps(rows.tolist()),
        printed,
        *(
            "\n".join(between.join(line) for line in lines)
            for between in (",", ", ", " ", "\t", ";")
        ),
        "\r\n\r\n".join(",".join(line) for line in lines) + "\n",
    ]
    if len(rows) == 1:
        forms += [json.dumps(rows[0].tolist()), "\n".join(lines[0]), str(rows[0].tolist())]
    for text in forms:
        np.testing.assert_array_equal(rows_of(text, k), rows)


@settings(max_examples=100, deadline=None)
@given(st.text("0123456789.eE+-,;[] \nxn_", max_size=200), st.sampled_from([2, 3]))
def test_any_pasted_text_is_rows_or_an_error(text, k) -> None:
    with suppress(Invalid):
        rows = rows_of(text, k)
        assert rows.ndim == 2
        assert len(rows) <= MAX_ROWS


def test_a_map_with_segments_is_tried_for_each_of_them(user: Local) -> None:
    url, rows = "/calibrators/segments/try", "2 1 0"
    words = check_page(user.get(url)).words
    assert "any other segment <app> web" in " ".join(words.split())
    for segment in ("", "<app>", "web", "unheard of"):
        page = user.post(url, data={"rows": rows, "segment": segment})
        check_page(page)
        expected = SEGMENTED.apply([[2.0, 1.0, 0.0]], [segment or "other"])[0]
        after = [one[1] for one in shown(page.text)[0].values()]
        np.testing.assert_allclose(after, 100 * expected, atol=0.01)
    assert "segment" not in user.get("/calibrators/fashion/try").text
