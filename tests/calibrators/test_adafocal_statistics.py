"""Bin statistics: the same bits in any order, and the same figures as from all rows."""

import sys
import zlib

import numpy as np
import pytest
from helpers.samples import draw, sample

from calibrators.adafocal import BinStatistics
from calibrators.adafocal.statistics import (
    EXACT_ROWS,
    MAGIC,
    MAX_NLL,
    MAX_ROWS,
    PLACES,
    ROWS,
    SUMS,
    CountedRows,
    ExactRows,
    plain_bytes,
    planes,
)
from calibrators.errors import DataError
from calibrators.metrics import accuracy, ada_ece, ece, equal_mass, nll
from calibrators.metrics.bins import CELLS, cell_of, odds_at
from calibrators.numerics.softmax import softmax


def overconfident(n: int = 10_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return log odds up to 40 of a network that is correct far less often than they say."""
    rng = np.random.default_rng(seed)
    odds = rng.uniform(0, 40, n)
    return odds, rng.random(n) < 1 / (1 + np.exp(-odds / 6))


def sure(odds: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -odds))


@pytest.mark.parametrize("data", [draw(5000, 10), draw(300, 2), draw(400, 1000), sample("test")])
def test_figures_are_those_of_all_rows(data):
    found = BinStatistics.from_logits(data.logits, data.labels).summary()
    probabilities = softmax(data.logits.astype(np.float64))
    assert found.rows == data.n
    assert found.accuracy == accuracy(probabilities, data.labels)
    assert found.confidence == pytest.approx(probabilities.max(axis=1).mean(), abs=1e-9)
    assert found.ece == pytest.approx(ece(probabilities, data.labels), abs=2e-9)
    assert found.ada_ece == pytest.approx(ada_ece(probabilities, data.labels), abs=1e-7)
    assert found.nll == pytest.approx(nll(probabilities, data.labels), abs=1e-7)


def in_cells(statistics: BinStatistics) -> CountedRows:
    """Count the same rows in cells, as for larger numbers of rows."""
    return statistics.spread.counted()


@pytest.mark.parametrize("bins", [1, 10, 15, 100])
@pytest.mark.parametrize("law", ["overconfident", "moderate", "timid", "real"])
def test_equal_mass_bins_are_those_of_the_sorted_rows(law, bins):
    rng = np.random.default_rng(3)
    if law == "real":
        data = sample("test")
        top = BinStatistics.from_logits(data.logits, data.labels)
        probabilities = softmax(data.logits.astype(np.float64))
        confidence = probabilities.max(axis=1)
        correct = probabilities.argmax(axis=1) == data.labels
    else:
        if law == "overconfident":
            odds, correct = overconfident()
        else:
            odds = rng.normal(*((2, 2) if law == "moderate" else (-2, 0.3)), 10_000)
            correct = rng.random(10_000) < sure(odds)
        confidence = sure(odds)
        top = BinStatistics.from_log_odds(odds, correct)
    exact = equal_mass(confidence, correct, bins)
    for found, most, misplaced in (
        (top.equal_mass(bins), 1e-6, 0.51),
        (in_cells(top).tied_rows().equal_mass(bins), 3e-5, 3.0),
    ):
        far = np.abs(found.mean_confidence - exact.mean_confidence).max()
        # beyond this, confidences are tied although log odds are not
        told_apart = exact.upper < 1 - 1e-12
        hits = np.abs(found.correct_sum - exact.correct_sum)[told_apart].max(initial=0)
        sys.stdout.write(f"{law}, {bins} bins: C_b off by {far:.1e}, hits by {hits:.2f}\n")
        assert far <= most
        assert hits <= misplaced
        assert np.array_equal(found.count, exact.count)
        assert (found.lower[1:] >= exact.upper[:-1] - 2e-4).all()
        assert (found.upper[:-1] <= exact.lower[1:] + 2e-4).all()


def test_merged_in_any_order_and_partition_the_bits_are_the_same():
    data = draw(3000, 10)
    whole = BinStatistics.from_logits(data.logits, data.labels)
    rng = np.random.default_rng(0)
    for _ in range(10):
        cuts = np.sort(rng.integers(0, data.n + 1, 6))
        order = rng.permutation(data.n)
        parts = [
            BinStatistics.from_logits(data.logits[rows], data.labels[rows])
            for rows in np.split(order, cuts)
            if len(rows)
        ]
        rng.shuffle(parts)
        merged = sum(parts, BinStatistics.empty())
        assert merged == whole
        assert merged.to_bytes() == whole.to_bytes()
        assert merged.summary() == whole.summary()


def test_from_logits_confidences_and_log_odds_agree():
    data = draw(2000, 5)
    whole = BinStatistics.from_logits(data.logits, data.labels)
    probabilities = softmax(data.logits.astype(np.float64))
    top = BinStatistics.from_confidences(
        probabilities.max(axis=1), probabilities.argmax(axis=1) == data.labels
    )
    assert top.summary().nll is None
    assert (top + whole).summary().nll is None
    assert top.summary().ece == pytest.approx(whole.summary().ece, abs=2e-9)
    one, other = (found.spread.tied_rows().lower for found in (top, whole))
    assert one == pytest.approx(other, abs=1e-4)  # a probability near 1 has lost some digits
    assert one[one < 8] == pytest.approx(other[one < 8], abs=2e-6)


def test_cells_hold_the_rows_between_their_edges():
    inner = np.arange(1, 30_000)
    odds = odds_at(inner)
    assert np.array_equal(cell_of(odds + 1e-4), inner)
    assert np.array_equal(cell_of(odds - 1e-4), inner - 1)


def test_tied_rows_are_shared_in_proportion():
    tied = BinStatistics.from_confidences([0.9] * 30, [True] * 20 + [False] * 10)
    table = tied.equal_mass()
    assert table.count.tolist() == [2.0] * 15
    assert table.accuracy == pytest.approx(np.full(15, 2 / 3))
    assert table.mean_confidence == pytest.approx(np.full(15, 0.9), abs=1e-6)
    assert (np.diff(table.lower) >= 0).all()
    assert tied.summary().ece == pytest.approx(0.9 - 2 / 3)


def test_with_fewer_rows_than_bins_some_are_empty():
    table = BinStatistics.from_confidences([0.6, 0.7, 0.8], [True, False, True]).equal_mass(15)
    assert table.count.sum() == 3
    assert (table.count > 0).sum() == 3
    assert np.isnan(table.accuracy).sum() == 12
    assert table.accuracy[table.count > 0].tolist() == [1, 0, 1]


@pytest.mark.parametrize("right", [True, False])
def test_all_right_or_all_wrong(right):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.1, 1.0, 500)
    found = BinStatistics.from_confidences(confidence, np.full(500, right))
    assert found.summary().accuracy == float(right)
    assert (found.equal_mass().accuracy == float(right)).all()
    gap = np.abs(right - confidence).mean()
    assert found.summary().ece == pytest.approx(gap, abs=1e-9)
    assert found.summary().ada_ece == pytest.approx(gap, abs=1e-6)


def test_one_class_predicted_and_saturated_logits():
    logits = np.zeros((8, 3), dtype=np.float32)
    logits[:, 1] = 1e4
    found = BinStatistics.from_logits(logits, [1, 1, 1, 1, 1, 1, 1, 0])
    summary = found.summary()
    assert (summary.accuracy, summary.confidence, summary.ece) == (7 / 8, 1.0, 1 / 8)
    assert summary.nll == pytest.approx(1e4 / 8)
    assert found.equal_mass().upper[-1] == 1.0
    masked = BinStatistics.from_logits([[3.0, -np.inf], [-np.inf, 3.0]], [0, 1])
    assert masked.summary().confidence == 1.0
    assert masked.summary().nll == 0.0


def test_empty_statistics_have_no_effect():
    data = draw(100, 4)
    some = BinStatistics.from_logits(data.logits, data.labels)
    nothing = BinStatistics.empty()
    assert nothing.rows == 0
    assert nothing + some == some
    assert BinStatistics.from_confidences([], []) == nothing
    assert BinStatistics.from_bytes(nothing.to_bytes()) == nothing
    for ask in (nothing.equal_mass, nothing.equal_width, nothing.summary):
        with pytest.raises(DataError, match="no rows have been observed"):
            ask()


def test_bytes_round_trip_and_are_compact():
    for n, most in ((1, 200), (10_000, 21_000), (EXACT_ROWS, 200_000), (EXACT_ROWS + 1, 30_000)):
        odds, correct = overconfident(n)
        found = BinStatistics.from_log_odds(odds, correct, -np.log(sure(odds)))
        data = found.to_bytes()
        assert BinStatistics.from_bytes(data) == found
        assert len(data) <= most


def test_damaged_bytes_are_refused():
    odds, correct = overconfident(1000)
    whole = BinStatistics.from_log_odds(odds, correct)
    data = whole.to_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        broken = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            broken[rng.integers(len(broken))] ^= int(rng.integers(1, 256))
        with pytest.raises(DataError):
            BinStatistics.from_bytes(bytes(broken))
    for cut in (0, 3, 4, 5, 100, len(data) - 1):
        with pytest.raises(DataError, match="not bin statistics"):
            BinStatistics.from_bytes(data[:cut])
    for more in (b"\0", data):
        with pytest.raises(DataError, match="wrong length"):
            BinStatistics.from_bytes(data + more)
    bomb = MAGIC + zlib.compress(bytes(50_000_000))
    with pytest.raises(DataError, match="wrong length"):
        BinStatistics.from_bytes(bomb)


def sums(**changes: int) -> np.ndarray:
    """Return the sums of one correct row with confidence 1 and an NLL of 0, with changes."""
    made = {"count14": 1, "correct14": 1, "confidence14": 2**30, "nll_rows": 1} | changes
    found = np.zeros(SUMS, dtype=np.int64)
    for name, value in made.items():
        if name.startswith("nll"):
            found[-2 if name == "nll_rows" else -1] = value
        else:
            kind = name.rstrip("0123456789")
            place = ("count", "correct", "confidence").index(kind)
            found[15 * place + int(name[len(kind) :])] = value
    return found


SURE = ExactRows(np.array([2 * PLACES - 1], dtype=np.uint32))


def test_the_sums_of_a_row():
    assert BinStatistics(SURE, sums()) == BinStatistics.from_log_odds([np.inf], [True], [0.0])


@pytest.mark.parametrize(
    "changes",
    [
        {"count14": 0},
        {"count14": 2},
        {"count13": 1},
        {"correct14": 0},
        {"correct14": 2},
        {"confidence14": 0},
        {"confidence14": 2**31},
        {"confidence3": 1},
        {"count14": -1},
        {"count14": 2**62, "count0": 2**62, "count1": 2**62, "count2": 2**62},
        {"nll_rows": 2},
        {"nll_rows": 0, "nll": 1},
        {"nll": 2**62},
    ],
    ids=str,
)
def test_sums_that_contradict_the_rows_are_refused(changes):
    with pytest.raises(DataError, match="inconsistent"):
        BinStatistics(SURE, sums(**changes))
    hostile = MAGIC + zlib.compress(plain_bytes(SURE, sums(**changes)))
    with pytest.raises(DataError, match="inconsistent"):
        BinStatistics.from_bytes(hostile)


def cells(**counts: int) -> CountedRows:
    table = np.zeros((2, CELLS), dtype=np.int64)
    table[:, -1] = counts["count"], counts["correct"]
    return CountedRows(table)


@pytest.mark.parametrize("rows", [1, EXACT_ROWS, MAX_ROWS + 1])
def test_cells_of_too_few_or_too_many_rows_are_refused(rows):
    given = sums(count14=rows, correct14=rows, confidence14=min(rows, MAX_ROWS) * 2**30)
    with pytest.raises(DataError, match="inconsistent"):
        BinStatistics(cells(count=rows, correct=rows), given)
    with pytest.raises(DataError, match="inconsistent"):
        cells(count=1, correct=2)
    with pytest.raises(DataError, match="inconsistent"):
        cells(count=-1, correct=-1)


def test_rows_out_of_order_or_off_the_scale_are_refused():
    with pytest.raises(DataError, match="ascending"):
        ExactRows(np.array([2, 1], dtype=np.uint32))
    with pytest.raises(DataError, match="outside the scale"):
        ExactRows(np.array([2 * PLACES], dtype=np.uint32))
    steps = np.array([2 * PLACES, 2**32 - 2 * PLACES], dtype="<u4")  # their sum is 0 in 32 bits
    raw = ROWS + planes(sums()) + planes(steps)
    with pytest.raises(DataError, match="outside the scale"):
        BinStatistics.from_bytes(MAGIC + zlib.compress(raw))


def test_many_rows_are_counted_in_cells_whatever_the_order():
    odds, correct = overconfident(EXACT_ROWS + 10)
    whole = BinStatistics.from_log_odds(odds, correct, np.zeros(len(odds)))
    assert isinstance(whole.spread, CountedRows)
    third = len(odds) // 3
    parts = [
        BinStatistics.from_log_odds(odds[part], correct[part], np.zeros(len(odds[part])))
        for part in (slice(0, third), slice(third, third + 1), slice(third + 1, None))
    ]
    assert all(isinstance(part.spread, ExactRows) for part in parts)
    first, second, third_part = parts
    assert (first + second) + third_part == whole
    assert third_part + (second + first) == whole
    assert (whole + second).rows == len(odds) + 1
    assert BinStatistics.from_bytes(whole.to_bytes()) == whole


def test_too_much_to_add_is_refused():
    half = MAX_ROWS // 2 + 1
    given = sums(count14=half, correct14=half, confidence14=half * 2**30)
    many = BinStatistics(cells(count=half, correct=half), given)
    with pytest.raises(DataError, match="at most 4294967296 rows"):
        many + many
    half -= 1
    given = sums(count14=half, correct14=half, confidence14=half * 2**30, nll_rows=half, nll=2**62)
    surprised = BinStatistics(cells(count=half, correct=half), given)
    with pytest.raises(DataError, match="sum of nll"):
        surprised + surprised


def test_statistics_cannot_be_changed():
    found = BinStatistics.from_confidences([0.5], [True])
    for numbers in (found.sums, found.spread.keys, found.spread.counted().table):
        with pytest.raises(ValueError, match="read-only"):
            numbers[0] = 1


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (
            lambda: BinStatistics.from_confidences([0.5, 1.1, np.nan], [1, 1, 1]),
            "2 invalid rows, first row 1",
        ),
        (lambda: BinStatistics.from_confidences([0.5], [2]), "True or False"),
        (
            lambda: BinStatistics.from_confidences([0.5, 0.5], [1]),
            r"same shape .*\(2,\) and \(1,\)",
        ),
        (lambda: BinStatistics.from_confidences([[0.5]], [[1]]), "same shape"),
        (lambda: BinStatistics.from_log_odds([np.nan], [1]), "odds must not be NaN"),
        (lambda: BinStatistics.from_log_odds([1.0], [1], [-1.0]), "nll must be at least 0"),
        (lambda: BinStatistics.from_log_odds([1.0], [1], [np.nan]), "nll must be at least 0"),
        (lambda: BinStatistics.from_log_odds([1.0], [1], [1.0, 2.0]), "nll must have the shape"),
        (lambda: BinStatistics.from_log_odds([1.0, 2.0], [1]), "odds and correct"),
        (lambda: BinStatistics.from_logits([[np.nan, 1.0]], [0]), "NaN"),
        (lambda: BinStatistics.from_logits([[0.0, 1.0]], [2]), "labels"),
        (lambda: BinStatistics(SURE, np.zeros(3, dtype=np.int64)), "47 int64 numbers"),
        (lambda: BinStatistics(SURE, np.zeros(SUMS)), "47 int64 numbers"),
    ],
)
def test_bad_rows_are_refused_with_the_rule(make, rule):
    with pytest.raises(DataError, match=rule):
        make()


def test_an_endless_surprise_counts_as_the_most():
    found = BinStatistics.from_log_odds([5.0, 5.0], [True, False], [0.01, np.inf])
    assert found.summary().nll == pytest.approx((0.01 + MAX_NLL) / 2)
