"""smECE, smCE, KDE-ECE and the soft-binned functionals."""

from __future__ import annotations

import numpy as np
import pytest
import relplot
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.integrate import quad
from scipy.optimize import linprog

from calibrators.errors import ParameterError
from calibrators.metrics import (
    TopLabel,
    charbonnier_soft_ece,
    kde_ece,
    kernel_bias,
    kernel_bias_bound,
    smce,
    smce_bound,
    smece,
    soft_ece,
    top_label,
)

tops = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 1), st.integers(0, 20).map(lambda tick: tick / 20)), st.booleans()
    ),
    min_size=1,
    max_size=60,
).map(lambda pairs: TopLabel(*map(list, zip(*pairs, strict=True))))


def reflected_gaussian(t: np.ndarray, centre: np.ndarray, width: float) -> np.ndarray:
    """Return K(t, c) for all pairs: the Gaussian with its images at c + 2j and -c + 2j."""
    total = np.zeros((t.size, centre.size))
    for image in range(-3, 4):
        for mirrored in (centre + 2 * image, -centre + 2 * image):
            total += np.exp(-0.5 * ((t[:, None] - mirrored) / width) ** 2)
    return total / (width * np.sqrt(2 * np.pi))


def linear_program(top: TopLabel) -> float:
    """Return the smCE found by a general solver."""
    value, group = np.unique(top.confidence, return_inverse=True)
    slope = np.bincount(group, top.residual) / top.confidence.size
    steps = sparse.eye(value.size - 1, value.size, k=1) - sparse.eye(value.size - 1, value.size)
    limit = np.tile(np.diff(value), 2)
    sides = sparse.vstack([steps, -steps]).tocsr() if value.size > 1 else None
    solved = linprog(-slope, sides, limit if value.size > 1 else None, bounds=(-1, 1))
    return -solved.fun


@pytest.mark.parametrize("sharpen", [0.6, 1.0, 1.5])
def test_smece_agrees_with_relplot(sample, sharpen: float) -> None:
    top = top_label(*sample(3000, sharpen=sharpen))
    theirs = relplot.smECE(top.confidence, top.correct.astype(float))
    assert smece(top) == pytest.approx(theirs, abs=2e-3)


@pytest.mark.parametrize("sharpen", [1.5, 3.0])
def test_smece_is_the_fixed_point_of_the_definition(sample, sharpen: float) -> None:
    """At sharpen = 3, relplot is off by 0.007, because its kernel is cut off at 0.5."""
    top = top_label(*sample(300, sharpen=sharpen))
    width = smece(top)
    t = (np.arange(4000) + 0.5) / 4000
    curve = reflected_gaussian(t, top.confidence, width) @ top.residual / 300
    assert np.abs(curve).mean() == pytest.approx(width, abs=1e-5)
    assert width > 0.02


def test_kde_ece_is_the_definition(sample) -> None:
    top = top_label(*sample(300, sharpen=1.5))
    t = (np.arange(4000) + 0.5) / 4000
    for bandwidth in (None, 0.03):
        width = bandwidth or top.confidence.std() * 600**-0.2
        kernel = reflected_gaussian(t, top.confidence, width)
        curve = t * kernel.mean(axis=1) - (kernel @ top.correct) / 300
        found = kde_ece(top, bandwidth=bandwidth)
        assert found == pytest.approx(np.abs(curve).mean(), abs=1e-5)
        assert found > 0.02


@pytest.mark.parametrize("metric", [smece, smce, kde_ece])
def test_one_confidence_only(metric) -> None:
    top = TopLabel([0.8] * 10, [True] * 5 + [False] * 5)
    assert metric(top) == pytest.approx(0.3, abs=1e-4)
    assert metric(TopLabel([1.0] * 3, [True] * 3)) == pytest.approx(0, abs=5e-4)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(tops)
def test_smce_solves_the_linear_program(top: TopLabel) -> None:
    """The tolerance allows for HiGHS, which violates constraints by up to 1e-7."""
    assert smce(top) == pytest.approx(linear_program(top), abs=5e-7)


def test_smce_solves_a_larger_linear_program(sample) -> None:
    probabilities, labels = sample(800, classes=3, sharpen=1.2)
    top = top_label(probabilities, labels)
    rounded = TopLabel(top.confidence.round(3), top.correct)
    for case in (top, rounded):
        assert smce(case) == pytest.approx(linear_program(case), abs=5e-7)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(tops, st.integers(1, 40))
def test_smce_on_cells_is_within_half_a_cell(top: TopLabel, cells: int) -> None:
    limit = np.abs(top.residual).mean() / (2 * cells)
    assert abs(smce(top, cells=cells) - smce(top)) <= limit + 1e-12
    assert smce(top, cells=top.confidence.size) == smce(top)


def test_smce_on_cells_moves_each_confidence_to_the_middle(sample) -> None:
    top = top_label(*sample(800, classes=3, sharpen=1.2))
    cells = 20
    middle = (np.floor(top.confidence * cells).clip(0, cells - 1) + 0.5) / cells
    slope = np.bincount(np.unique(middle, return_inverse=True)[1], top.residual) / 800
    steps = np.diff(np.unique(middle))
    rise = sparse.eye(slope.size - 1, slope.size, k=1) - sparse.eye(slope.size - 1, slope.size)
    sides = sparse.vstack([rise, -rise]).tocsr()
    solved = linprog(-slope, sides, np.tile(steps, 2), bounds=(-1, 1))
    assert smce(top, cells=cells) == pytest.approx(-solved.fun, abs=5e-7)
    assert smce(top, cells=cells) != smce(top)


def rising(u: np.ndarray) -> np.ndarray:
    """Return a reference density with kappa = 3."""
    return 0.5 + u


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tops, st.sampled_from([1.0, 30.0, 200.0, 5000.0]), st.floats(0, 0.1))
@pytest.mark.parametrize("density", [None, rising])
def test_theorem_3_1(density, top: TopLabel, lam: float, delta: float) -> None:
    assert smce(top) <= smce_bound(top, lam=lam, delta=delta, density=density) + 1e-4


@pytest.mark.parametrize("lam", [30.0, 200.0, 5000.0])
def test_theorem_3_1_needs_its_kernel_bias(lam: float) -> None:
    """For certain and always wrong predictions, smCE is 1 and H is less: the bound needs B_lam."""
    wrong = TopLabel([1.0] * 20, [False] * 20)
    value = charbonnier_soft_ece(wrong, bins=2048, lam=lam, delta=0.0)
    assert value + 0.9 * kernel_bias(lam) < smce(wrong) == 1
    assert smce_bound(wrong, lam=lam, delta=0.0) == pytest.approx(1 + kernel_bias(lam), abs=1e-3)


@pytest.mark.parametrize(("density", "kappa"), [(None, 1.0), (rising, 3.0)])
@pytest.mark.parametrize("lam", [1.0, 30.0, 200.0, 5000.0])
def test_kernel_bias_is_the_definition_and_below_its_bound(lam: float, density, kappa) -> None:
    def mean_distance(p: float) -> float:
        def kernel(u: float) -> float:
            return np.exp(-lam * (p - u) ** 2) * (1.0 if density is None else density(u))

        near = [min(max(p, 0.0), 1.0)]
        above = quad(lambda u: abs(p - u) * kernel(u), 0, 1, points=near, limit=200)[0]
        return above / quad(kernel, 0, 1, points=near, limit=200)[0]

    expected = max(mean_distance(p) for p in np.linspace(0, 1, 41))
    assert kernel_bias(lam, density) == pytest.approx(expected, rel=2e-3)
    assert kernel_bias(lam, density) <= kernel_bias_bound(lam, kappa)
    if density is None and lam >= 30:
        assert kernel_bias(lam) == pytest.approx(1 / np.sqrt(np.pi * lam), rel=1e-2)


def test_charbonnier_soft_ece_is_equation_6(sample) -> None:
    top = top_label(*sample(60, sharpen=1.5))
    lam, delta = 200.0, 0.01

    def of_row(c: float, a: float) -> float:
        kernel = [lambda u: np.exp(-lam * (c - u) ** 2)]
        kernel.append(lambda u: kernel[0](u) * np.sqrt((a - u) ** 2 + delta**2))
        mass, residual = (quad(one, 0, 1, points=[c], limit=200)[0] for one in kernel)
        return residual / mass

    expected = np.mean([of_row(*row) for row in zip(top.confidence, top.correct, strict=True)])
    integral = charbonnier_soft_ece(top, bins=2048, lam=lam, delta=delta)
    assert integral == pytest.approx(expected, abs=1e-5)
    assert charbonnier_soft_ece(top, lam=lam, delta=delta) == pytest.approx(expected, abs=5e-3)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(tops)
def test_theorem_3_1_for_the_binned_form(top: TopLabel) -> None:
    """SMART is fitted with this form: f changes little within a soft bin, so the bound is not
    trivial. Bins must be narrower than the kernel, as are 15 bins at lam = 200.
    """
    assert smce(top) <= soft_ece(top) + kernel_bias_bound(200.0) + 1e-12


def test_the_binned_form_is_a_tighter_bound_than_equation_6(sample) -> None:
    top = top_label(*sample(5000))
    assert soft_ece(top) + 2 * kernel_bias() < smce_bound(top) - 0.1


def test_soft_ece_is_the_definition(sample) -> None:
    top = top_label(*sample(200, sharpen=1.5))
    for bins, lam, delta in ((15, 200.0, 0.0), (8, 30.0, 0.01)):
        centre = [(b + 0.5) / bins for b in range(bins)]
        total = 0.0
        for b in range(bins):
            weight = np.exp(-lam * (top.confidence - centre[b]) ** 2)
            weight /= sum(np.exp(-lam * (top.confidence - u) ** 2) for u in centre)
            gap = (weight @ top.correct - weight @ top.confidence) / weight.sum()
            total += weight.sum() / 200 * np.sqrt(gap**2 + delta**2)
        assert soft_ece(top, bins=bins, lam=lam, delta=delta) == pytest.approx(total)
        assert total > 0.02


def test_soft_bins_become_hard_ones(sample) -> None:
    top = top_label(*sample(2000, sharpen=1.5))
    assert soft_ece(top, lam=1e7) == pytest.approx(top.equal_width(15).ece(), abs=1e-6)


def test_equation_6_prefers_hard_probabilities_to_the_truth(sample) -> None:
    """This is why SMART is not fitted with Eq. 6: calibrated rows score about 2c(1 - c), hard
    predictions min(c, 1 - c). The binned form ranks them correctly.
    """
    truth = top_label(*sample(20_000, classes=10))
    hard = TopLabel((truth.confidence > 0.5).astype(float), truth.correct)
    assert charbonnier_soft_ece(hard) < charbonnier_soft_ece(truth) - 0.03
    assert soft_ece(truth) < 0.02 < 0.1 < soft_ece(hard)
    c = truth.confidence
    assert charbonnier_soft_ece(truth) == pytest.approx(np.mean(2 * c * (1 - c)), abs=0.02)


def test_the_bound_of_the_kernel_bias_is_at_most_one() -> None:
    assert kernel_bias_bound(0.01) == 1.0
    assert kernel_bias_bound(200.0, kappa=2.0) == pytest.approx(2 * kernel_bias_bound(200.0))
    with pytest.raises(ParameterError, match="kappa must be at least 1"):
        kernel_bias_bound(200.0, kappa=0.5)
