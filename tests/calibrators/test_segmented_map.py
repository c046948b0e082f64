"""Segmented maps: the temperature of each row, and archives of such maps."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.samples import draw, in_segments
from helpers.segment_samples import drawn
from scipy.special import log_softmax

from calibrators import (
    ArchiveError,
    CalibrationSet,
    DataError,
    ExportError,
    ParameterError,
    archive,
)
from calibrators.export import onnx
from calibrators.methods.segmented import Segmented, SegmentedMap
from calibrators.methods.temperature import TemperatureMap
from calibrators.registry import keeps_class
from calibrators.segments import Segments


@pytest.fixture(scope="module")
def fitted() -> SegmentedMap:
    made = Segmented().fit(drawn(np.array([400, 600, 800]), 0.5, seed=6)[0])
    assert isinstance(made, SegmentedMap)
    assert made.fit_info["tau"] > 0.1
    return made


def test_each_row_gets_the_temperature_of_its_segment(fitted: SegmentedMap) -> None:
    logits = draw(6, 5, seed=9).logits
    names = ["0001", "0000", "elsewhere", "0002", "0001", "0000"]
    given = fitted.apply(logits, names)
    assert given.dtype == np.float32
    by_hand = np.append(fitted.temperatures, 1)[[1, 0, 3, 2, 1, 0], np.newaxis]
    expected = np.exp(log_softmax(fitted.base.transform(logits) / by_hand, axis=1))
    np.testing.assert_allclose(given, expected, atol=1e-6)
    single = [fitted.apply(logits[[row]], [names[row]])[0] for row in range(6)]
    np.testing.assert_allclose(single, given, atol=1e-7)
    transformed = fitted.transform(logits, names)
    np.testing.assert_allclose(np.exp(log_softmax(transformed, axis=1)), given, atol=1e-6)
    data = CalibrationSet(logits, np.zeros(6, dtype=int), names)
    np.testing.assert_array_equal(fitted.apply_set(data), given)


def test_unknown_and_missing_segments_get_exactly_the_base(
    fitted: SegmentedMap,
) -> None:
    logits = draw(500, 5, seed=9).logits
    base = fitted.base.apply(logits)
    for given in (fitted.apply(logits), fitted.apply(logits, ["elsewhere"] * 500)):
        np.testing.assert_array_equal(given, base)
    np.testing.assert_array_equal(fitted.transform(logits), fitted.base.transform(logits))
    plain = CalibrationSet(logits, np.zeros(500, dtype=int))
    np.testing.assert_array_equal(fitted.apply_set(plain), base)


def test_integers_name_segments_too() -> None:
    data = draw(900, 3)
    made = Segmented().fit(CalibrationSet(data.logits, data.labels, np.arange(900) % 3))
    given = made.apply(data.logits, np.arange(900) % 3)
    np.testing.assert_array_equal(given, made.apply(data.logits, ["0", "1", "2"] * 300))


def test_several_blocks_of_rows_keep_their_segments() -> None:
    data = in_segments(draw(9000, 70))
    assert data.segments is not None
    base = TemperatureMap(k=70, temperature=2.0)
    temperatures = np.array([0.5, 1.0, 2.0])
    made = SegmentedMap(k=70, base=base, segments=data.segments.names, temperatures=temperatures)
    own = temperatures[np.arange(9000) % 3, np.newaxis]
    expected = np.exp(log_softmax(data.logits / (2 * own), axis=1))
    np.testing.assert_allclose(made.apply_set(data), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("segments", "code"),
    [
        (["a"], "segments_length"),
        ([0.5] * 4, "bad_segments"),
        (["a", "", "b", "c"], "bad_segment_name"),
    ],
)
def test_invalid_segments_are_refused(fitted: SegmentedMap, segments: Any, code: str) -> None:
    with pytest.raises(DataError) as caught:
        fitted.apply(np.zeros((4, 5)), segments)
    assert caught.value.code == code


def test_a_map_without_segments_refuses_them() -> None:
    plain = TemperatureMap(k=2, temperature=2.0)
    for call in (plain.apply, plain.transform):
        with pytest.raises(DataError, match="'temperature' map has no segments: leave them out"):
            call([[2.0, 0.0]], ["a"])
    named = CalibrationSet([[2.0, 0.0]], [0], ["a"])
    np.testing.assert_array_equal(plain.apply_set(named), plain.apply([[2.0, 0.0]]))


def test_fit_info_describes_the_segments(fitted: SegmentedMap) -> None:
    info = fitted.fit_info
    assert [one["name"] for one in info["segments"]] == ["0000", "0001", "0002"]
    assert [one["rows"] for one in info["segments"]] == [400, 600, 800]
    assert [one["temperature"] for one in info["segments"]] == fitted.temperatures.tolist()
    for one in info["segments"]:
        shrunk, alone = math.log(one["temperature"]), math.log(one["unpenalised"])
        assert 0 < shrunk / alone < 1
    assert info["nll"] < info["nll_of_base"]
    assert info["gradient_norm"] < 1e-6
    assert info["rows"] == 1800


def test_the_class_is_preserved_if_the_base_preserves_it(fitted: SegmentedMap) -> None:
    assert fitted.keeps_class is True
    assert keeps_class("segmented") is None
    logits = draw(500, 5, seed=9).logits
    p = fitted.apply(logits, ["0002"] * 500)
    assert (p[np.arange(500), logits.argmax(axis=1)] == p.max(axis=1)).all()
    free = type("Free", (TemperatureMap,), {"keeps_class": False})
    assert replace(fitted, base=free(k=5, temperature=1.0)).keeps_class is False


def test_the_base_alone_can_be_exported(fitted: SegmentedMap) -> None:
    with pytest.raises(ExportError, match="export its base"):
        onnx.export(fitted)
    assert onnx.export(fitted.base)


SMALL = SegmentedMap(
    k=3,
    base=TemperatureMap(k=3, temperature=1.5, fit_info={"rows": 7}),
    segments=("app", "web"),
    temperatures=np.array([0.5, 2.0]),
)
BYTES = archive.dump(SMALL)
HEADER = archive.describe(BYTES)


def forged(data: bytes = BYTES, **changes: Any) -> bytes:
    """Return an archive with other parameters and the matching hash."""
    length = struct.unpack_from("<I", data, 40)[0]
    header = json.loads(data[44 : 44 + length])
    header["parameters"] |= changes
    text = json.dumps(header).encode()
    body = struct.pack("<I", len(text)) + text + data[44 + length :]
    return data[:8] + hashlib.sha256(body).digest() + body


def test_the_archive_holds_the_base(fitted: SegmentedMap) -> None:
    back = archive.load(BYTES)
    assert isinstance(back, SegmentedMap)
    assert back.segments == ("app", "web")
    assert back.base.temperature == 1.5  # type: ignore[attr-defined]
    assert back.base.fit_info == {"rows": 7}
    assert archive.dump(back) == BYTES
    assert HEADER["parameters"]["base"]["method"] == "temperature"
    logits = draw(50, 5).logits
    again = archive.load(archive.dump(fitted))
    np.testing.assert_array_equal(
        again.apply(logits, ["0001"] * 50), fitted.apply(logits, ["0001"] * 50)
    )


def test_the_archive_holds_the_arrays_of_the_base() -> None:
    data = in_segments(draw(200, 4))
    made = Segmented(base="smart").fit(data)
    content = archive.dump(made)
    assert {"base.w1", "base.b1", "temperatures"} <= set(archive.describe(content)["arrays"])
    back = archive.load(content)
    assert archive.dump(back) == content
    np.testing.assert_array_equal(back.apply_set(data), made.apply_set(data))


BASE = HEADER["parameters"]["base"]
NESTED = {"method": "segmented", "parameters": HEADER["parameters"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"base": None},
        {"base": "temperature"},
        {"base": {}},
        {"base": {**BASE, "extra": 1}},
        {"base": {**BASE, "method": ["temperature"]}},
        {"base": {**BASE, "parameters": {**BASE["parameters"], "temperature": -1}}},
        {"base": {**BASE, "parameters": {**BASE["parameters"], "k": 4}}},
        {"base": {**BASE, "parameters": {**BASE["parameters"], "kind": "probabilities"}}},
        {"base": {**BASE, "parameters": {}}},
        {"base": NESTED},
        {"segments": ["app"]},
        {"segments": ["web", "app"]},
        {"segments": ["app", "app"]},
        {"segments": ["app", ""]},
        {"segments": ["app", "x" * 201]},
        {"segments": ["app", 5]},
        {"segments": ["app", None]},
        {"segments": "ab"},
        {"segments": {"app": 1, "web": 2}},
        {"keeps_class": True},
    ],
)
def test_forged_archives_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArchiveError) as caught:
        archive.load(forged(**changes))
    assert caught.value.code == "wrong_fields"


def test_an_unknown_base_is_named() -> None:
    with pytest.raises(ArchiveError, match="unknown method 'telepathy'"):
        archive.load(forged(base={**BASE, "method": "telepathy"}))


def test_a_deep_nest_is_refused() -> None:
    nest = BASE
    for _ in range(50):
        nest = {"method": "segmented", "parameters": {**HEADER["parameters"], "base": nest}}
    with pytest.raises(ArchiveError, match="must not contain another"):
        archive.load(forged(base=nest))


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-40, 1e40])
def test_temperatures_are_positive(value: float) -> None:
    with pytest.raises(ParameterError, match="temperature must lie between"):
        replace(SMALL, temperatures=np.array([1.0, value]))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"base": SMALL}, "base must be a map without segments"),
        ({"base": TemperatureMap(k=4, temperature=1.0)}, "logits of 3 classes .* got logits of 4"),
        ({"temperatures": np.ones(3)}, r"each of 2 segments, got shape \(3,\)"),
        ({"segments": ("web", "app")}, r"distinct, got 2: \('web', 'app'\)"),
    ],
)
def test_errors_name_the_field_and_what_it_got(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        replace(SMALL, **changes)


def test_segments_of_a_set_can_be_named_later() -> None:
    data = draw(20, 3)
    named = data.with_segments(["a", "b"] * 10)
    assert data.segments is None
    assert isinstance(named.segments, Segments)
    assert named.segments.names == ("a", "b")
    np.testing.assert_array_equal(named.logits, data.logits)
    with pytest.raises(DataError, match="20 rows but 3 segments"):
        data.with_segments(["a", "b", "c"])


def test_any_number_of_unknown_segments_is_accepted(fitted: SegmentedMap) -> None:
    logits = draw(1500, 5, seed=9).logits
    names = [f"stranger {row}" for row in range(1500)]
    np.testing.assert_array_equal(fitted.apply(logits, names), fitted.base.apply(logits))
    segments = Segments.of(names, most=None)
    assert "1500 of 1500 rows" in (fitted.unknown_note(segments) or "")
    with pytest.raises(DataError, match="at most 1000 segments"):
        CalibrationSet(logits, np.zeros(1500, dtype=int), names)
