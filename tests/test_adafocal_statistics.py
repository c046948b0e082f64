"""Bin statistics: the same bits in any order, and the figures that all rows would give."""

import sys
import zlib

import numpy as np
import pytest

from calibrators.adafocal import BinStatistics
from calibrators.adafocal.cells import CELLS, cell_of, confidence_at
from calibrators.adafocal.statistics import MAGIC, MOST_NLL, MOST_ROWS, NUMBERS
from calibrators.errors import DataError
from calibrators.metrics import accuracy, ada_ece, ece, equal_mass, nll
from calibrators.softmax import softmax
from tests.samples import draw, sample


def overconfident(n: int = 10_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds up to 40 of a network that is right far less often than it says."""
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
    assert found.ada_ece == pytest.approx(ada_ece(probabilities, data.labels), abs=0.15 / 667)
    assert found.nll == pytest.approx(nll(probabilities, data.labels), abs=1e-7)


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
    exact, found = equal_mass(confidence, correct, bins), top.equal_mass(bins)
    far = np.abs(found.mean_confidence - exact.mean_confidence).max()
    hits = np.abs(found.correct_sum - exact.correct_sum).max()
    sys.stdout.write(f"{law}, {bins} bins: C_b off by {far:.1e}, hits by {hits:.2f}\n")
    assert far <= 3e-5
    assert hits <= 3
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
    moved = np.abs(np.cumsum(top.numbers[:CELLS] - whole.numbers[:CELLS])).max()
    assert moved <= 1  # rounding may put a row into the cell beside


def test_cells_hold_what_their_edges_say():
    inner = np.arange(1, 30_000)
    edges = confidence_at(inner)
    odds = np.log(edges) - np.log1p(-edges)
    assert np.array_equal(cell_of(odds + 1e-4), inner)
    assert np.array_equal(cell_of(odds - 1e-4), inner - 1)


def test_tied_rows_are_shared_in_proportion():
    tied = BinStatistics.from_confidences([0.9] * 30, [True] * 20 + [False] * 10)
    table = tied.equal_mass()
    assert table.count.tolist() == [2.0] * 15
    assert table.accuracy == pytest.approx(np.full(15, 2 / 3))
    assert table.mean_confidence == pytest.approx(np.full(15, 0.9), abs=3e-5)
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
    assert found.summary().ada_ece == pytest.approx(gap, abs=3e-5)


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


def test_empty_statistics_add_nothing_and_say_nothing():
    data = draw(100, 4)
    some = BinStatistics.from_logits(data.logits, data.labels)
    nothing = BinStatistics.empty()
    assert nothing.rows == 0
    assert nothing + some == some
    assert BinStatistics.from_confidences([], []) == nothing
    assert BinStatistics.from_bytes(nothing.to_bytes()) == nothing
    for ask in (nothing.equal_mass, nothing.equal_width, nothing.summary):
        with pytest.raises(DataError, match="no row was observed"):
            ask()


def test_bytes_round_trip_and_are_compact():
    for n, most in ((1, 1000), (10_000, 10_000), (100_000, 25_000)):
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
        with pytest.raises(DataError, match="no statistics"):
            BinStatistics.from_bytes(data[:cut])
    for more in (b"\0", data):
        with pytest.raises(DataError, match="wrong length"):
            BinStatistics.from_bytes(data + more)
    bomb = MAGIC + zlib.compress(bytes(50_000_000))
    with pytest.raises(DataError, match="wrong length"):
        BinStatistics.from_bytes(bomb)


@pytest.mark.parametrize(
    "changes",
    [
        {0: -1},
        {0: 1},
        {CELLS: 1},
        {0: 1, 2 * CELLS: 1, 2 * CELLS + 15: 1},
        {0: 1, CELLS: 2, 2 * CELLS: 1, 2 * CELLS + 15: 2},
        {0: 1, 2 * CELLS: 1, 2 * CELLS + 30: 2**30},
        {0: 1, 2 * CELLS + 14: 1},
        {0: MOST_ROWS + 1, 2 * CELLS: MOST_ROWS + 1},
        {0: 2**62, 1: 2**62, 2: 2**62, 3: 2**62},
        {0: 2**63 - 1, 2 * CELLS: 2**63 - 1},
        {-2: 1},
        {-1: 1},
        {0: 1, 2 * CELLS: 1, -2: 1, -1: 2**62},
    ],
    ids=str,
)
def test_numbers_that_contradict_each_other_are_refused(changes):
    numbers = np.zeros(NUMBERS, dtype=np.int64)
    for place, value in changes.items():
        numbers[place] = value
    with pytest.raises(DataError, match="contradict"):
        BinStatistics(numbers)
    hostile = MAGIC + zlib.compress(numbers.view(np.uint8).reshape(-1, 8).T.tobytes())
    with pytest.raises(DataError, match="contradict"):
        BinStatistics.from_bytes(hostile)


def test_too_much_to_add_is_refused():
    numbers = np.zeros(NUMBERS, dtype=np.int64)
    numbers[[0, 2 * CELLS]] = MOST_ROWS // 2 + 1
    many = BinStatistics(numbers)
    with pytest.raises(DataError, match="at most 4294967296 rows"):
        many + many
    numbers[-2:] = 2**31, 2**62
    surprised = BinStatistics(numbers - (np.arange(NUMBERS) % (2 * CELLS) == 0))
    with pytest.raises(DataError, match="sum of nll"):
        surprised + surprised


def test_numbers_cannot_be_changed():
    found = BinStatistics.from_confidences([0.5], [True])
    with pytest.raises(ValueError, match="read-only"):
        found.numbers[0] = 1
    given = np.zeros(NUMBERS, dtype=np.int64)
    kept = BinStatistics(given)
    given[0] = 5
    assert kept.rows == 0


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: BinStatistics.from_confidences([0.5, 1.1, np.nan], [1, 1, 1]), "2 rows .* row 1"),
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
        (lambda: BinStatistics(np.zeros(3, dtype=np.int64)), "numbers of int64"),
        (lambda: BinStatistics(np.zeros(NUMBERS)), "numbers of int64"),
    ],
)
def test_bad_rows_are_refused_with_the_rule(make, rule):
    with pytest.raises(DataError, match=rule):
        make()


def test_an_endless_surprise_counts_as_the_most():
    found = BinStatistics.from_log_odds([5.0, 5.0], [True, False], [0.01, np.inf])
    assert found.summary().nll == pytest.approx((0.01 + MOST_NLL) / 2)
