"""Bin tables compared with their definition, written as loops."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators.metrics import TopLabel, ada_ece, ece, equal_mass, equal_width, top_label

rows = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 1), st.integers(0, 60).map(lambda tick: tick / 60)), st.booleans()
    ),
    min_size=1,
    max_size=60,
)
quick = settings(max_examples=100, deadline=None, derandomize=True)


def naive_equal_mass(confidence, correct, bins: int) -> list[tuple[Fraction, Fraction, Fraction]]:
    """Return count, confidence and correct of each bin in exact arithmetic.

    Every tied row is spread evenly over the positions of its tie group.
    """
    n = len(confidence)
    totals = [[Fraction(0)] * 3 for _ in range(bins)]
    for value in set(confidence):
        begin = sum(c < value for c in confidence)
        size = sum(c == value for c in confidence)
        right = sum(a for c, a in zip(confidence, correct, strict=True) if c == value)
        for position in range(begin, begin + size):
            for b in range(bins):
                if b * n // bins <= position < (b + 1) * n // bins:
                    totals[b][0] += 1
                    totals[b][1] += Fraction(value)
                    totals[b][2] += Fraction(right, size)
    return [tuple(total) for total in totals]


@quick
@given(rows, st.integers(1, 20))
def test_equal_width_is_the_definition(pairs, bins) -> None:
    confidence, correct = map(list, zip(*pairs, strict=True))
    table = equal_width(confidence, correct, bins)
    for b in range(bins):
        inside = [
            i
            for i, c in enumerate(confidence)
            if b / bins < c <= (b + 1) / bins or (b == 0 and c == 0)
        ]
        assert table.count[b] == len(inside)
        assert table.correct_sum[b] == sum(correct[i] for i in inside)
        assert table.confidence_sum[b] == pytest.approx(sum(confidence[i] for i in inside))


@quick
@given(rows, st.integers(1, 20))
def test_equal_mass_is_the_definition(pairs, bins) -> None:
    confidence, correct = map(list, zip(*pairs, strict=True))
    table = equal_mass(confidence, correct, bins)
    expected = np.array(naive_equal_mass(confidence, correct, bins), dtype=float)
    found = np.column_stack((table.count, table.confidence_sum, table.correct_sum))
    np.testing.assert_allclose(found, expected, atol=1e-9)


@quick
@given(rows, st.integers(1, 20))
def test_effective_count_is_the_definition(pairs, bins) -> None:
    confidence = sorted(c for c, _ in pairs)
    n = len(confidence)
    table = equal_mass(confidence, [True] * n, bins)
    for b in range(bins):
        low, high = b * n // bins, (b + 1) * n // bins
        shares = []
        for value in set(confidence):
            size = confidence.count(value)
            begin = confidence.index(value)
            shares += [max(0, min(high, begin + size) - max(low, begin)) / size] * size
        squares = sum(share**2 for share in shares)
        expected = sum(shares) ** 2 / squares if squares else 0
        assert table.effective_count[b] == pytest.approx(expected)


@quick
@given(rows, st.randoms(use_true_random=False))
def test_order_of_rows_never_matters(pairs, random) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)
    first, second = (TopLabel(*map(list, zip(*part, strict=True))) for part in (pairs, shuffled))
    assert ada_ece(first, bins=7) == ada_ece(second, bins=7)
    assert ece(first) == pytest.approx(ece(second), abs=1e-12)


def test_ties_sorted_by_correctness_do_not_fake_an_error() -> None:
    """A stable sort keeps correct and incorrect rows apart within the tie (METHODS 6)."""
    correct = np.arange(20_000) < 18_010
    top = TopLabel(np.full(20_000, 0.9), correct)
    assert ada_ece(top) == pytest.approx(0.0005, abs=1e-12)
    order_dependent = sum(
        abs((part - 0.9).sum()) / 20_000 for part in np.array_split(correct.astype(float), 15)
    )
    assert order_dependent > 0.1


@pytest.mark.parametrize("bins", [3, 7, 10, 15, 49, 100])
def test_a_confidence_on_an_edge_belongs_below_it(bins: int) -> None:
    edges = np.arange(1, bins + 1) / bins
    assert equal_width(edges, np.ones(bins, bool), bins).count.tolist() == [1.0] * bins
    above = np.nextafter(edges[:-1], 2)
    assert equal_width(above, np.ones(bins - 1, bool), bins).count.tolist() == [0.0] + [1.0] * (
        bins - 1
    )


def test_zero_and_one_belong_to_the_outer_bins() -> None:
    table = equal_width([0.0, 1.0], [True, True])
    assert table.count[0] == 1
    assert table.count[-1] == 1
    assert table.count.sum() == 2


def test_empty_bins_are_nan_and_do_not_count() -> None:
    table = equal_width([0.95, 0.95], [True, False], bins=10)
    assert np.isnan(table.accuracy[:9]).all()
    assert np.isnan(table.mean_confidence[:9]).all()
    assert table.accuracy[9] == 0.5
    assert table.mce() == table.ece() == pytest.approx(0.45)


def test_fewer_rows_than_bins() -> None:
    table = equal_mass([0.6, 0.9], [False, True], bins=15)
    assert table.count.sum() == 2
    assert table.ece() == pytest.approx((0.6 + 0.1) / 2)
    assert table.debiased_squared() == 0.0


def test_the_first_of_the_largest_columns_is_the_prediction(sample) -> None:
    random = np.random.default_rng(3)
    counts = random.integers(1, 4, (2000, 5))
    probabilities = counts / counts.sum(axis=1, keepdims=True)
    labels = random.integers(0, 5, 2000)
    tied = (probabilities == probabilities.max(axis=1, keepdims=True)).sum(axis=1) > 1
    assert tied.mean() > 0.3
    top = top_label(probabilities, labels)
    np.testing.assert_array_equal(top.correct, np.argmax(probabilities, axis=1) == labels)
    np.testing.assert_array_equal(top.confidence, probabilities.max(axis=1))


@pytest.mark.parametrize("classes", [2, 10, 64, 65, 300])
def test_narrow_and_wide_passes_agree_with_plain_numpy(sample, classes: int) -> None:
    probabilities, labels = sample(3000, classes=classes)
    top = top_label(probabilities.astype(np.float32), labels)
    np.testing.assert_array_equal(
        top.confidence, probabilities.astype(np.float32).max(axis=1).astype(float)
    )
    np.testing.assert_array_equal(top.correct, np.argmax(probabilities, axis=1) == labels)
