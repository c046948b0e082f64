"""CSV datasets: the meaning of the header, and errors that name line and column."""

from __future__ import annotations

import csv as csv_module
import io

import numpy as np
import pytest
from helpers.format_samples import LABELS, LIMITS, LOGITS, csv, read
from helpers.live_service import Local
from helpers.workspace_contents import fitted_elsewhere
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import CalibrationSet, DataError
from service.datasets.formats import Format, Limits, inspect, load
from service.errors import Invalid, Malformed, ServiceError, TooLarge

CSV = {"Content-Type": "text/csv"}


def refused(body: bytes) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        read(Format.CSV, body)
    return caught.value


def test_numbers_come_back_exactly_as_they_were_written():
    found = read(Format.CSV, csv(LOGITS.astype(np.float64), LABELS))
    np.testing.assert_array_equal(found.values, LOGITS.astype(np.float64))
    np.testing.assert_array_equal(found.labels, LABELS)
    assert (found.values.dtype, found.labels.dtype) == (np.float64, np.int64)


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [("logit", "logits"), ("p", "probabilities"), ("Probability", "probabilities")],
)
def test_the_header_determines_the_kind(prefix, kind):
    assert read(Format.CSV, csv(LOGITS, LABELS, prefix)).declared == kind


def test_columns_are_ordered_by_class_regardless_of_position():
    order = np.random.default_rng(1).permutation(4)
    lines = [line.split(",") for line in csv(LOGITS, LABELS).decode().splitlines()]
    shuffled = "\n".join(",".join(line[place] for place in order) for line in lines).encode()
    np.testing.assert_array_equal(
        read(Format.CSV, shuffled).values, read(Format.CSV, csv(LOGITS, LABELS)).values
    )


@pytest.mark.parametrize(
    "body",
    [
        b"logit_0,logit_1,label\n1,2,0\n",
        b"\xef\xbb\xbflogit_0,logit_1,label\n1,2,0\n",
        b"logit_0,logit_1,label\r\n1,2,0\r\n",
        b"logit_0,logit_1,label\r1,2,0\r",
        b"logit_0,logit_1,label\n1,2,0",
        b"\n\nlogit_0,logit_1,label\n\n1,2,0\n\n",
        b'"logit_0","logit_1","labels"\n"1","2","0"\n',
        b' Logit_0, "LOGIT_1",Label \n 1 , "2",0\n',
        b"logit_0,logit_1,label\n1e0,+2.0,0\n",
    ],
)
def test_the_same_table_in_many_forms(body):
    found = read(Format.CSV, body)
    assert (found.values.tolist(), found.labels.tolist()) == ([[1.0, 2.0]], [0])


@pytest.mark.parametrize("name", ["logit", "p", "probability"])
def test_one_column_is_class_1_of_two(tmp_path, name):
    path = tmp_path / "set.csv"
    path.write_text(f"{name},label\n0.25,1\n0.5,0\n")
    assert inspect(path, Format.CSV, None, LIMITS).classes == 2
    if name != "logit":  # calibrators would warn that they look like probabilities
        assert load(path, Format.CSV).labels.tolist() == [1, 0]


def test_other_names_need_a_kind(tmp_path):
    path = tmp_path / "set.csv"
    path.write_text("cat,label,dog\n0.25,1,0.75\n0.5,0,0.5\n")
    with pytest.raises(Invalid) as caught:
        inspect(path, Format.CSV, None, LIMITS)
    assert caught.value.code == "logits_or_probabilities"
    for kind in ("logits", "probabilities"):
        assert inspect(path, Format.CSV, kind, LIMITS).kind == kind
    assert load(path, Format.CSV, "probabilities").kind == "probabilities"
    path.write_bytes(csv(LOGITS, LABELS))
    with pytest.raises(Invalid, match="`kind` is probabilities, but the dataset contains logits"):
        inspect(path, Format.CSV, "probabilities", LIMITS)


@pytest.mark.parametrize(
    ("body", "kind", "code", "told"),
    [
        (b"", Malformed, "empty_body", "empty"),
        (b"\n\n", Malformed, "malformed_csv", "the header is missing"),
        (b"\xff\xfel\0", Malformed, "malformed_csv", "not valid UTF-8: cannot decode byte 0"),
        (b"a;b;label\n1;2;0\n", Malformed, "malformed_csv", "separated by commas, got ';'"),
        (b'logit_0,"logit_1\n1,2', Malformed, "malformed_csv", "line 2"),
        (b'logit_0,label\n1,"0"x\n', Malformed, "malformed_csv", "line 2"),
        (b"a,A,label\n1,2,0\n", Malformed, "duplicate_names", "'a'"),
        (b"1.5,2.5,0\n", Invalid, "no_labels", "exactly one column named label"),
        (b"label,labels,logit_0\n", Invalid, "no_labels", "got 2"),
        (b"label\n0\n", Invalid, "bad_columns", "no class columns"),
        (b",logit_0,label\n0,1,0\n", Invalid, "bad_columns", "column 1 has no name"),
        (b"logit_0,logit_2,label\n", Invalid, "bad_columns", "class 1 is missing"),
        (b"logit_1,logit_2,label\n", Invalid, "bad_columns", "class 0 is missing"),
        (b"id,logit_0,logit_1,label\n", Invalid, "unknown_array", "'id'"),
        (b"logit_0,p_1,label\n", Invalid, "logits_or_probabilities", "not both"),
        (b"logit_0,logit_1,label\n1,2\n", Invalid, "ragged", "line 2 has 2 columns"),
        (b"logit_0,logit_1,label\n\n1,x,0\n", Invalid, "not_a_number", "line 3, column 'logit_1'"),
        (b"logit_0,logit_1,label\n1,,0\n", Invalid, "not_a_number", "'' is not a number"),
        (b"logit_0,logit_1,label\n1,1_0,0\n", Invalid, "not_a_number", "'1_0' is not a number"),
        (b"logit_0,logit_1,label\n1,2,0.0\n", Invalid, "not_a_number", "'0.0' is not an integer"),
        (b"logit_0,logit_1,label\n1,2,cat\n", Invalid, "not_a_number", "column 'label': 'cat'"),
    ],
)
def test_errors_name_line_and_column(body, kind, code, told):
    error = refused(body)
    assert (type(error), error.code) == (kind, code)
    assert told in error.message


@settings(max_examples=60, deadline=None)
@given(
    row=st.integers(0, 6), column=st.integers(0, 3), text=st.text("abcé;<>&\"',\n x", min_size=1)
)
def test_a_cell_that_is_no_number_is_named_by_line_and_column(row, column, text):
    lines = [line.split(",") for line in csv(LOGITS, LABELS).decode().split()]
    lines[row + 1][column] = f"x{text}"
    file = io.StringIO()
    csv_module.writer(file).writerows(lines)
    error = refused(file.getvalue().encode())
    assert error.code == "not_a_number"
    assert error.details["column"] == lines[0][column]
    # a cell over several lines has the number of its last line
    assert error.details["line"] == row + 2 + text.count("\n")


def test_rules_of_calibrators_hold_for_csv_too(tmp_path):
    for row in (["nan", "1"], ["inf", "1"], ["-inf", "-inf"], ["-inf", "1"]):
        path = tmp_path / "set.csv"
        path.write_text("logit_0,logit_1,label\n1,2,0\n" + ",".join(row) + ",0\n")
        with pytest.raises(DataError) as caught:
            inspect(path, Format.CSV, None, LIMITS)
        with pytest.raises(DataError) as expected:
            CalibrationSet([[1.0, 2.0], [float(one) for one in row]], [0, 0])
        assert (caught.value.code, caught.value.first) == (expected.value.code, 1)
    path.write_text(f"logit_0,logit_1,label\n1,2,{10**30}\n1,2,-{10**30}\n")
    with pytest.raises(DataError) as caught:
        inspect(path, Format.CSV, None, LIMITS)
    assert (caught.value.code, caught.value.rows) == ("label_out_of_range", 2)


def test_csv_is_for_small_sets(tmp_path):
    path = tmp_path / "set.csv"
    path.write_bytes(csv(LOGITS, LABELS))
    with pytest.raises(TooLarge) as caught:
        inspect(path, Format.CSV, None, Limits(bytes=1 << 26, json_bytes=100, classes=1000))
    assert caught.value.details["limit"] == 100
    path.write_bytes(csv(np.ones((2, 1001)), np.zeros(2, int)))
    with pytest.raises(TooLarge) as caught:
        inspect(path, Format.CSV, None, LIMITS)
    assert caught.value.code == "too_many_classes"


@pytest.mark.parametrize("last", ["c0", "", "label"])
def test_a_header_of_very_many_columns_is_read_in_one_pass(last):  # otherwise it takes minutes
    body = ",".join([*(f"c{one}" for one in range(100_000)), last]).encode()
    if last == "label":
        assert read(Format.CSV, body).values.shape == (0, 100_000)
    else:
        refused(body)


def test_csv_is_accepted_wherever_datasets_are(local: Local):
    body = csv(LOGITS, LABELS)
    made = local.post("/v1/datasets", content=body, headers=CSV)
    assert made.status_code == 201
    assert (made.json()["format"], made.json()["rows"], made.json()["classes"]) == ("csv", 7, 3)
    assert local.post("/v1/datasets", content=body, headers=CSV).status_code == 200
    fit = local.post("/v1/calibrators/a/fits?method=temperature", content=body, headers=CSV)
    assert (fit.status_code, fit.json()["dataset"]) == (202, made.json()["id"])
    named = b"cat,dog,label\n0.5,0.5,0\n"
    assert local.post("/v1/datasets", content=named, headers=CSV).status_code == 422
    for kind in ("logits", "probabilities"):
        told = local.post(f"/v1/datasets?kind={kind}", content=named, headers=CSV)
        assert (told.status_code, told.json()["kind"]) == (201, kind)
    broken = local.post("/v1/datasets", content=b"logit_0,label\nx,0\n", headers=CSV).json()
    assert (broken["status"], broken["line"], broken["column"]) == (422, 2, "logit_0")


def test_predict_neither_accepts_nor_returns_csv(local: Local):
    made = local.post("/v1/calibrators/no-csv/versions", json=fitted_elsewhere())
    assert made.status_code == 201
    url = "/v1/calibrators/no-csv@1/predict"
    refusal = local.post(url, content=csv(LOGITS, LABELS), headers=CSV)
    assert (refusal.status_code, refusal.json()["code"]) == (415, "unsupported_media_type")
    assert "for datasets only" in refusal.json()["detail"]
    row = [[1, 2, 3, 4, 5]]
    answer = local.post(url, json=row, headers={"Accept": "text/csv"})
    assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
    assert "csv" not in answer.json()["detail"]
    either = local.post(url, json=row, headers={"Accept": "text/csv, application/json;q=0.1"})
    assert either.headers["content-type"] == "application/json"


@pytest.mark.parametrize("said", ["text/csv", "application/json"])
def test_text_that_is_too_large_is_refused_by_its_length(local: Local, said: str):
    length = local.app.state.parts.settings.max_json_bytes + 1
    answer = local.post("/v1/datasets", content=b"x" * length, headers={"Content-Type": said})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert answer.json()["limit"] == length - 1
