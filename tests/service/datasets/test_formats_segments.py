"""The array ``segments`` in every format: names of segments, read defensively."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from helpers.format_samples import (
    LABELS,
    LIMITS,
    LOGITS,
    csv,
    header,
    npy,
    npy_of_header,
    npz,
    read,
    tensor,
    tensors_of,
    zip_of,
)

from calibrators import CalibrationSet, DataError
from calibrators.segments import Segments
from calibrd.io.calibration_sets import as_segments
from service.datasets.formats import Format, inspect, load, segment_names
from service.errors import Invalid, Malformed, ServiceError, TooLarge

NAMES = ["web", "app", "web", "ладья", "app", "web", "app"]
NUMBERS = [3, -1, 3, 3, 2**63 - 1, 0, 0]


def with_column(body: bytes, name: str, cells: list[str]) -> bytes:
    """Return a CSV body with one more column."""
    lines = body.decode().splitlines()
    added = [name, *cells]
    return "\n".join(f"{cell},{line}" for cell, line in zip(added, lines, strict=True)).encode()


def document(segments: object) -> bytes:
    return json.dumps(
        {"logits": LOGITS.tolist(), "labels": LABELS.tolist(), "segments": segments}
    ).encode()


def written(folder: Path, body: bytes) -> Path:
    path = folder / "set"
    path.write_bytes(body)
    return path


TEXTS = {
    "npz": (Format.NPZ, npz(logits=LOGITS, labels=LABELS, segments=np.array(NAMES))),
    "packed": (
        Format.NPZ,
        npz(packed=True, logits=LOGITS, labels=LABELS, segments=np.array(NAMES)),
    ),
    "other byte order": (
        Format.NPZ,
        npz(logits=LOGITS, labels=LABELS, segments=np.array(NAMES).astype(">U9")),
    ),
    "a column": (
        Format.NPZ,
        npz(logits=LOGITS, labels=LABELS, segments=np.asfortranarray(np.array(NAMES)[:, None])),
    ),
    "json": (Format.JSON, document(NAMES)),
    "csv": (Format.CSV, with_column(csv(LOGITS, LABELS), "segment", NAMES)),
    "csv of many": (
        Format.CSV,
        with_column(csv(LOGITS, LABELS), "Segments", [f' "{one} "' for one in NAMES]),
    ),
}
INTEGERS = {
    "npz": (Format.NPZ, npz(logits=LOGITS, labels=LABELS, segments=np.array(NUMBERS))),
    "safetensors": (
        Format.SAFETENSORS,
        safetensors.numpy.save({"logits": LOGITS, "labels": LABELS, "segments": np.array(NUMBERS)}),
    ),
    "json": (Format.JSON, document(NUMBERS)),
    "csv": (Format.CSV, with_column(csv(LOGITS, LABELS), "segment", [str(one) for one in NUMBERS])),
}


@pytest.mark.parametrize(
    ("format", "body", "names"),
    [
        *((*one, NAMES) for one in TEXTS.values()),
        *((*one, [str(number) for number in NUMBERS]) for one in INTEGERS.values()),
    ],
    ids=[*TEXTS, *(f"{name} of numbers" for name in INTEGERS)],
)
def test_segments_come_back_as_they_were_written(tmp_path, format, body, names):
    found = read(format, body)
    segments = Segments.of(found.segments)
    assert [segments.names[one] for one in segments.codes] == names
    np.testing.assert_allclose(found.values, LOGITS, rtol=1e-6)
    path = written(tmp_path, body)
    facts = inspect(path, format, None, LIMITS)
    assert (facts.rows, facts.classes, facts.segments) == (7, 3, len(set(names)))
    segments = load(path, format).segments
    assert [segments.names[code] for code in segments.codes] == names


def test_without_segments_there_are_none(tmp_path):
    for format, body in {
        Format.NPZ: npz(logits=LOGITS, labels=LABELS),
        Format.JSON: document(None),
        Format.CSV: csv(LOGITS, LABELS),
    }.items():
        assert read(format, body).segments is None
        assert inspect(written(tmp_path, body), format, None, LIMITS).segments is None


def test_values_may_have_any_name_if_the_kind_is_given(tmp_path):
    body = npz(values=LOGITS, labels=LABELS, segments=np.array(NAMES))
    assert read(Format.NPZ, body).declared is None
    path = written(tmp_path, body)
    assert inspect(path, Format.NPZ, "logits", LIMITS).kind == "logits"
    assert load(path, Format.NPZ, "logits").segments.names == ("app", "web", "ладья")
    for kind, arrays in ((None, {}), ("logits", {"logits": LOGITS})):
        path = written(tmp_path, npz(values=LOGITS, labels=LABELS, **arrays))
        with pytest.raises(Invalid) as caught:
            inspect(path, Format.NPZ, kind, LIMITS)
        assert caught.value.code == "logits_or_probabilities"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["logits", "values"], "got logits and values"),
        (["logits", "probabilities"], "got logits and probabilities"),
        ([], "got none"),
    ],
)
def test_an_error_names_the_sent_arrays(tmp_path, names, told):
    arrays = dict.fromkeys(names, LOGITS) | {"labels": LABELS}
    for look in (
        lambda: read(Format.NPZ, npz(**arrays)),
        lambda: read(Format.JSON, json.dumps({k: v.tolist() for k, v in arrays.items()}).encode()),
        lambda: inspect(written(tmp_path, npz(**arrays)), Format.NPZ, "logits", LIMITS),
    ):
        with pytest.raises(Invalid, match=told) as caught:
            look()
        assert caught.value.code == "logits_or_probabilities"


ROWS = 300_000  # several blocks of a megabyte
PLAIN = np.tile(np.float32([[2.0, -3.0]]), (ROWS, 1))
TRUTH = np.zeros(ROWS, np.int8)
SOME = np.array(["web", "app", "shop"])[np.arange(ROWS) % 3]


def changed(places: list[int], name: str) -> np.ndarray:
    made = SOME.astype(f"<U{max(4, len(name))}")
    made[places] = name
    return made


BROKEN = {
    "empty name": changed([7, ROWS - 1], ""),
    "spaces": changed([ROWS - 1], "  "),
    "a line": changed([9, 10, ROWS - 3], "a\nb"),
    "a NUL inside": changed([ROWS - 3], "a\0b"),
    "half a character": changed([1], "\ud800"),
    "floats": np.zeros(ROWS),
    "booleans": np.zeros(ROWS, bool),
    "too few": SOME[1:],
    "too many": np.append(SOME, "web"),
    "two columns": np.stack([SOME, SOME], axis=1),
    "3-d": SOME[:, None, None],
    "a single name": np.array("web"),
    "too few floats": np.zeros(ROWS - 1),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", BROKEN)
def test_inspect_agrees_with_calibrators(tmp_path, case, packed):
    with pytest.raises(DataError) as expected:
        CalibrationSet(PLAIN, TRUTH, BROKEN[case])
    body = npz(packed=packed, logits=PLAIN, labels=TRUTH, segments=BROKEN[case])
    with pytest.raises(DataError) as caught:
        inspect(written(tmp_path, body), Format.NPZ, None, LIMITS)
    assert (caught.value.code, str(caught.value)) == (expected.value.code, str(expected.value))
    assert (caught.value.rows, caught.value.first) == (expected.value.rows, expected.value.first)


def test_bfloat16_is_no_name_before_it_is_loaded(tmp_path):
    described = {
        "logits": tensor([7, 3], 0, 84),
        "labels": tensor([7], 84, 140, "I64"),
        "segments": tensor([7], 140, 154, "BF16"),
    }
    ones = np.full(7, 0x3F80, "<u2").tobytes()
    body = tensors_of(described, LOGITS.tobytes() + LABELS.astype("<i8").tobytes() + ones)
    path = written(tmp_path, body)
    with pytest.raises(DataError) as loaded:
        load(path, Format.SAFETENSORS)
    with pytest.raises(DataError, match="strings or integers, got float32") as caught:
        inspect(path, Format.SAFETENSORS, None, LIMITS)
    assert (caught.value.code, str(caught.value)) == (loaded.value.code, str(loaded.value))


@pytest.mark.parametrize("segments", [np.zeros(ROWS), SOME[1:], np.stack([SOME, SOME], axis=1)])
def test_segments_are_checked_after_the_rows(tmp_path, segments):
    broken = PLAIN.copy()
    broken[[5, ROWS - 1]] = np.nan
    with pytest.raises(DataError) as expected:
        CalibrationSet(broken, TRUTH, segments)
    assert expected.value.code == "nan"
    path = written(tmp_path, npz(logits=broken, labels=TRUTH, segments=segments))
    with pytest.raises(DataError) as caught:
        inspect(path, Format.NPZ, None, LIMITS)
    assert str(caught.value) == str(expected.value)


def test_identifiers_are_no_segments(tmp_path):
    for segments in (np.arange(ROWS), np.arange(ROWS).astype(str)):
        path = written(tmp_path, npz(logits=PLAIN, labels=TRUTH, segments=segments))
        with pytest.raises(DataError, match="1000 segments are allowed, got more") as caught:
            inspect(path, Format.NPZ, None, LIMITS)
        assert caught.value.code == "too_many_segments"
    most = np.arange(ROWS) % 1000
    path = written(tmp_path, npz(logits=PLAIN, labels=TRUTH, segments=most))
    assert inspect(path, Format.NPZ, None, LIMITS).segments == 1000


def test_memory_does_not_grow_with_the_names(tmp_path):
    wide = np.broadcast_to(np.array("web", "<U200"), 2 * ROWS)
    arrays = {"logits": np.tile(PLAIN, (2, 1)), "labels": np.tile(TRUTH, 2), "segments": wide}
    path = written(tmp_path, npz(packed=True, **arrays))
    del arrays
    limits = LIMITS.__class__(bytes=1 << 30, json_bytes=1, classes=10)
    tracemalloc.start()
    try:
        assert inspect(path, Format.NPZ, None, limits).segments == 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()
    with pytest.raises(TooLarge) as caught:  # by its unpacked size
        inspect(path, Format.NPZ, None, LIMITS)
    assert caught.value.code == "body_too_large"


def beyond_unicode() -> bytes:
    file = io.BytesIO()
    points = np.full((7, 3), 97, "<u4")
    points[[2, 5], 1] = 0x110000
    np.save(file, points.reshape(-1).view("<U3"))
    return file.getvalue()


def claiming(descr: str, data: bytes = b"") -> bytes:
    return npy_of_header(header(descr, "(7,)"), data)


FILES = {
    "a header of long names": (claiming("'<U1000000'", b"web"), "bad_segment_name", "<U1000000"),
    "names of no characters": (claiming("'<U0'"), "bad_segment_name", "<U0"),
    "pickled": (npy(np.array(NAMES, object)), "bad_segments", "object: save segments.astype(str)"),
    "bytes": (npy(np.array(NAMES[:1] * 7).astype("S3")), "bad_segments", "|S3"),
    "dates": (npy(np.zeros(7, "M8[s]")), "bad_header", None),
    "beyond Unicode": (beyond_unicode(), "bad_segment_name", "2 invalid rows, first row 2"),
    "cut off": (claiming("'<U3'", b"web"), "truncated_body", None),
    "structured": (claiming("[('a', '<U3')]"), "bad_type", None),
}


@pytest.mark.parametrize("case", FILES)
def test_invalid_names_are_refused_by_their_header_or_their_bytes(tmp_path, case):
    member, code, told = FILES[case]
    body = zip_of({"logits.npy": npy(LOGITS), "labels.npy": npy(LABELS), "segments.npy": member})
    for look in (
        lambda: read(Format.NPZ, body),
        lambda: inspect(written(tmp_path, body), Format.NPZ, None, LIMITS),
    ):
        with pytest.raises((DataError, ServiceError)) as caught:
            look()
        assert caught.value.code == code
        assert told is None or told in str(caught.value)


@pytest.mark.parametrize("name", ["logits", "labels"])
def test_text_is_for_segments_alone(name):
    arrays = {"logits": LOGITS, "labels": LABELS} | {name: np.array(NAMES)}
    with pytest.raises(Invalid) as caught:
        read(Format.NPZ, npz(**arrays))
    assert caught.value.code == "bad_type"


LISTS = {
    "mixed": (
        ["web", 1, "app"] * 2 + ["web"],
        "bad_segments",
        "2 invalid rows, first row 1",
    ),
    "null": ([1, 2, None, 1, 2, 1, 2], "bad_segments", "first row 2"),
    "booleans": ([True] * 7, "bad_segments", "7 invalid rows"),
    "numbers with a point": ([1.0] * 7, "bad_segments", "7 invalid rows"),
    "too long": (["a"] * 6 + ["b" * 201], "bad_segment_name", "'... of 201 characters"),
    "rows": ([["web"]] * 7, "bad_segments", "7 invalid rows"),
    "no list": ("web", "not_an_array", "must be a list"),
}


@pytest.mark.parametrize("case", LISTS)
def test_lists_that_are_not_names(case):
    segments, code, told = LISTS[case]
    with pytest.raises((DataError, ServiceError)) as caught:
        read(Format.JSON, document(segments))
    assert caught.value.code == code
    assert told in str(caught.value)


@pytest.mark.parametrize("cells", [[1, "a", "b"], ["a", 1, None], [True, 1, 2], [None] * 3])
def test_all_formats_refuse_the_same_cells(cells):
    told = []
    for look in (Segments.of, as_segments, segment_names.from_list):
        with pytest.raises(DataError, match="must be all strings or all integers") as caught:
            look(cells)
        told.append((caught.value.code, str(caught.value)))
    assert len(set(told)) == 1


@pytest.mark.parametrize("look", [Segments.of, segment_names.from_list])
def test_names_that_differ_by_a_trailing_nul_stay_different(look):
    with pytest.raises(DataError, match=r"printable characters.*, got 'a\\x00'") as caught:
        look(["a", "a\0", "b"])
    assert (caught.value.code, caught.value.rows, caught.value.first) == ("bad_segment_name", 1, 1)


def test_a_long_name_among_many_rows_takes_no_room_for_all_of_them():
    names = ["a"] * 200_000 + ["a" * 200]
    tracemalloc.start()
    segments = Segments.of(segment_names.from_list(names))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert segments.names == ("a", "a" * 200)
    assert peak < 20e6, peak


def test_names_of_a_table_are_kept_once():
    body = b"p,label,segment\n" + b".5,0,aa\n" * 100_000
    tracemalloc.start()
    found = read(Format.CSV, body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert Segments.of(found.segments).names == ("aa",)
    assert peak < 6e6, peak


def test_a_table_of_too_many_names_is_refused_while_it_is_read():
    lines = [f".5,0,user{row}" for row in range(2000)] + ["no line"]
    with pytest.raises(DataError, match="at most 1000 segments are allowed, got at least 1001"):
        read(Format.CSV, "\n".join(["p,label,segment", *lines]).encode())


def test_csv_has_one_column_of_segments():
    for column in ("segment", "segments"):
        body = with_column(csv(LOGITS, LABELS), column, NAMES)
        assert read(Format.CSV, body).declared == "logits"
    both = with_column(with_column(csv(LOGITS, LABELS), "segment", NAMES), "segments", NAMES)
    with pytest.raises(Invalid, match="both `segment` and `segments` are present") as caught:
        read(Format.CSV, both)
    assert caught.value.code == "bad_columns"
    with pytest.raises(Malformed) as caught:
        read(Format.CSV, with_column(both, "segment", NAMES))
    assert caught.value.code == "duplicate_names"
