"""The blocked softmax: memory layouts, threads, extreme values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import softmax as reference

from calibrators import get_threads, set_threads
from calibrators.numerics.parallel import Scratch, map_blocks
from calibrators.numerics.softmax import margins, softmax


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = get_threads()
    set_threads(request.param)
    yield request.param
    set_threads(before)


@pytest.mark.parametrize("k", [2, 10, 48, 49, 1000, 70_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_scipy(k: int, dtype: type, threads: int) -> None:
    n = max(3, 200_000 // k)
    z = (np.random.default_rng(0).normal(size=(n, k)) * 5).astype(dtype)
    beta = np.random.default_rng(1).uniform(0.1, 3, size=n)
    at = {row.tobytes(): one for row, one in zip(z, beta, strict=True)}
    p = softmax(z, lambda block: np.array([at[row.tobytes()] for row in block]))
    expected = reference(z.astype(np.float64) * beta[:, None], axis=1)
    np.testing.assert_allclose(p, expected, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-30)
    assert p.dtype == dtype


def test_bits_do_not_depend_on_threads() -> None:
    z = np.random.default_rng(0).normal(size=(30_000, 10)).astype(np.float32)
    before = get_threads()
    answers = []
    for count in (1, 2, 5):
        set_threads(count)
        answers.append(softmax(z))
    set_threads(before)
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


@pytest.mark.parametrize("order", ["F", "strided"])
def test_any_memory_layout(order: str) -> None:
    z = np.random.default_rng(0).normal(size=(500, 60))
    given_array = np.asfortranarray(z) if order == "F" else np.repeat(z, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(softmax(given_array), softmax(z))


FINITE = st.floats(-1e4, 1e4, width=32)


@settings(max_examples=300, deadline=None)
@given(
    z=hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(2, 70)), elements=FINITE),
    beta=st.floats(1e-6, 1e6),
)
def test_never_inverts_and_sums_to_one(z: np.ndarray, beta: float) -> None:
    p = softmax(z, lambda _: beta)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1, dtype=np.float64), 1, atol=1e-6)
    order = np.argsort(z, axis=1, kind="stable")
    assert (p[np.arange(len(z)), z.argmax(axis=1)] == p.max(axis=1)).all()
    sorted_p = np.take_along_axis(p, order, axis=1).astype(np.float64)
    assert (np.diff(sorted_p, axis=1) >= -1e-6 * sorted_p[:, 1:]).all()


def test_exponential_of_a_negative_is_at_most_one() -> None:
    """The largest logit keeps the largest probability only if this holds for every float."""
    tiny = np.arange(1, 1 << 22, dtype=np.uint32)
    values = np.concatenate([-tiny.view(np.float32), -np.linspace(0, 1, 1 << 21, dtype=np.float32)])
    assert np.exp(values).max() <= 1
    near = -np.logspace(-10, 0, 1 << 20).astype(np.float32)
    assert np.exp(near).max() <= 1
    assert np.exp(near.astype(np.float64)).max() <= 1


@pytest.mark.parametrize("k", [2, 5, 100])
def test_margins(k: int) -> None:
    z = np.random.default_rng(0).normal(size=(2000, k))
    z[5] = z[5, 0]
    top = np.sort(z, axis=1)
    np.testing.assert_array_equal(margins(z), top[:, -1] - top[:, -2])
    z[7, 1:] = -np.inf
    assert np.isposinf(margins(z)[7])


def test_threads_must_be_positive() -> None:
    with pytest.raises(ValueError, match="count must be a positive integer, got 0"):
        set_threads(0)


def test_blocks_inside_blocks_do_not_wait_for_each_other(threads: int) -> None:
    def inner(start: int, stop: int, scratch: Scratch) -> int:
        return stop - start

    def outer(start: int, stop: int, scratch: Scratch) -> int:
        return sum(map_blocks(inner, 1000, 1000))

    assert map_blocks(outer, 500, 1000) == [1000] * len(map_blocks(inner, 500, 1000))
