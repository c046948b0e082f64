"""Judged rows: stored with a version as compact bytes, and compared on common rows."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from calibrators import CalibrationSet, evaluate, fit_and_judge
from calibrators.comparison.compare import accuracy_change, compare, nll_change
from calibrators.comparison.judged_rows import JudgedRows, fingerprint, in_common, thinned
from calibrators.errors import ArchiveError, DataError
from calibrators.methods.identity import Identity
from calibrators.methods.isotonic import Isotonic
from calibrators.methods.temperature import TemperatureScaling
from calibrators.numerics.softmax import margins, softmax


def sample(n: int, seed: int = 0, **more: object) -> CalibrationSet:
    """Return logits that are three times too large, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 4)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    made = CalibrationSet(3 * logits, labels)
    return made.with_segments(more["segments"]) if more else made


def test_the_judged_rows_are_those_of_the_report() -> None:
    data = sample(2000)
    judged = fit_and_judge(TemperatureScaling(), data)
    report = judged.report
    rows = judged.rows
    assert (rows.n, rows.folds) == (report.n, 1)
    assert rows.data == rows.fitted_on == fingerprint(data)
    assert rows.after.nll.mean() == pytest.approx(report.metrics["nll"])
    assert rows.before.nll.mean() == pytest.approx(report.before.metrics["nll"])
    assert np.array_equal(rows.margin, margins(data.logits)[rows.index])
    _, held = data.split_rows(0.2)
    assert np.array_equal(rows.index, held)


def test_cross_fitting_judges_every_row_and_an_evaluation_set_its_own() -> None:
    data, other = sample(500), sample(300, seed=1)
    rows = fit_and_judge(TemperatureScaling(), data).rows
    assert (rows.n, rows.folds) == (500, 5)
    rows = fit_and_judge(TemperatureScaling(), data, evaluation=other).rows
    assert (rows.data, rows.fitted_on) == (fingerprint(other), fingerprint(data))


def test_bytes_and_back() -> None:
    names = np.array(["app", "web"])[np.arange(600) % 2]
    rows = fit_and_judge(TemperatureScaling(), sample(600, segments=names)).rows
    content = rows.dump()
    assert len(content) < 600 * 40 + 500
    again = JudgedRows.load(content)
    assert again.dump() == content
    assert again.segments.names == ("app", "web")
    assert np.array_equal(again.after.top.correct, rows.after.top.correct)
    assert np.allclose(again.after.nll, rows.after.nll, atol=1e-5)


def test_long_names_of_many_segments_are_read_again() -> None:
    """When escaped, they exceeded the reader's limit for the header."""
    names = ["\N{GRINNING FACE}" * 196 + f"{number:04d}" for number in range(1000)]
    data = sample(5000, segments=names * 5)
    rows = fit_and_judge(TemperatureScaling(), data).rows
    again = JudgedRows.load(rows.dump())
    assert again.segments is not None
    assert rows.segments is not None
    assert again.segments.names == rows.segments.names


def resealed(content: bytes, body: bytes) -> bytes:
    """Return the bytes with another body and the matching hash."""
    return content[:8] + hashlib.sha256(body).digest() + body


def test_damaged_and_forged_bytes_are_refused() -> None:
    content = fit_and_judge(TemperatureScaling(), sample(200)).rows.dump()
    body = content[40:]
    (length,) = struct.unpack_from("<I", body)
    forged = {
        "wrong_hash": content[:-1] + bytes([content[-1] ^ 1]),
        "not_judged_rows": b"calibrd" + content[7:],
        "unknown_format": content[:7] + b"\x63" + content[8:],
        "wrong_length": resealed(content, body + b"\0"),
        "bad_values": resealed(content, body[:-1] + b"\x07"),
    }
    for code, one in forged.items():
        with pytest.raises(ArchiveError) as refused:
            JudgedRows.load(one)
        assert refused.value.code == code
    header = body[4 : 4 + length].replace(b'"rows":200', b'"rows":2e9')
    with pytest.raises(ArchiveError, match="do not match their header"):
        JudgedRows.load(resealed(content, struct.pack("<I", len(header)) + header))


def test_another_format_says_what_to_do() -> None:
    content = fit_and_judge(TemperatureScaling(), sample(200)).rows.dump()
    for version, advice in ((b"\x01", "fit again"), (b"\x63", "upgrade calibrd")):
        with pytest.raises(ArchiveError, match=advice):
            JudgedRows.load(content[:7] + version + content[8:])


def test_a_comparison_is_the_paired_evaluation_of_the_unseen_rows() -> None:
    data = sample(3000)
    first, second = (fit_and_judge(one, data).rows for one in (Identity(), Isotonic()))
    found = compare(JudgedRows.load(first.dump()), JudgedRows.load(second.dump()))
    seen, held = data.split_rows(0.2)
    unseen = data.take(held)
    fitted = Isotonic().fit(data.take(seen))
    expected = evaluate(fitted.apply_set(unseen), unseen.labels, before=softmax(unseen.logits))
    assert found.verdict == expected.verdict
    for name in ("ece", "nll", "brier", "accuracy", "refinement_auroc"):
        assert found.metrics[name] == pytest.approx(expected.metrics[name], abs=5e-4)
        assert found.before.metrics[name] == pytest.approx(expected.before.metrics[name], abs=5e-4)
    for name, interval in expected.change.items():
        assert found.change[name].high == pytest.approx(interval.high, abs=2e-3)
    assert "classwise_ece" not in found.metrics


def test_only_common_rows_of_the_same_data_are_compared() -> None:
    data = sample(4000)
    first, second = (fit_and_judge(Identity(), data, seed=seed).rows for seed in (0, 1))
    common = in_common(first, second)
    assert common is not None
    assert 100 < common[0].n == common[1].n < 300
    assert np.array_equal(common[0].index, common[1].index)
    assert np.array_equal(common[0].margin, common[1].margin)
    few = first.take(np.arange(50))
    with pytest.raises(DataError, match="at least 100"):
        compare(few, first)
    with pytest.raises(DataError, match="different data"):
        compare(first, fit_and_judge(Identity(), sample(1000, seed=2)).rows)


def test_quick_intervals_are_those_of_the_comparison() -> None:
    data = sample(3000)
    first = fit_and_judge(Identity(), data).rows
    rng = np.random.default_rng(0)
    wrong = softmax(data.logits[first.index] + rng.normal(size=(first.n, 4)) * 4)
    second = JudgedRows.of(data, first.index, wrong, fitted_on=data)
    expected = compare(first, second).change
    for name, found in (
        ("accuracy", accuracy_change(first, second)),
        ("nll", nll_change(first, second)),
    ):
        assert found.value == pytest.approx(expected[name].value)
        assert found.low == pytest.approx(expected[name].low)
        assert found.high == pytest.approx(expected[name].high)


def test_many_rows_are_subsampled_in_the_same_way() -> None:
    every = np.arange(10_000)
    some = np.sort(np.random.default_rng(0).choice(every, 5_000, replace=False))
    first, second = every[thinned(every, 2_000)], some[thinned(some, 1_000)]
    assert (len(first), len(second)) == (2_000, 1_000)
    assert np.array_equal(first, np.sort(first))
    assert len(np.intersect1d(first, second)) > 900
