"""Kernel-smoothed calibration errors, with a Gaussian kernel that is reflected at 0 and 1.

On cell centres, the reflected Gaussian is the heat kernel of [0, 1]: it multiplies each cosine
frequency f by exp(-(pi f sigma)^2 / 2), so one transform serves all bandwidths.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from calibrators.errors import ParameterError
from calibrators.metrics._inputs import Array, Floats
from calibrators.metrics.catalogue import Metric
from calibrators.metrics.toplabel import Scores, as_top_label

__all__ = ["kde_ece", "smece"]

CELLS = 1 << 13


def smece(probabilities: Scores, labels: npt.ArrayLike | None = None) -> float:
    """Return the smooth expected calibration error, without bins and with automatic bandwidth.

    `smECE_s = integral |(1/n) sum_i (a_i - c_i) K_s(t, c_i)| dt`, where K_s is the reflected
    Gaussian. The value is the s with `smECE_s = s`, which is unique because smECE_s falls as s
    grows. Convention: top label; residuals are distributed linearly over 8192 cells; the equation
    is solved to 1e-7 (relplot stops at 1e-3). Błasiok & Nakkiran 2024 (preprint 2023).

    >>> round(smece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 3)
    0.3
    """
    top = as_top_label(probabilities, labels)
    spectrum = _spectrum(_on_cells(top.confidence, top.residual)) / top.confidence.size
    return _falling_root(lambda sigma: float(np.abs(_smoothed(spectrum, sigma)).sum()) - sigma)


SMECE = Metric(
    name="smece",
    title="smooth ECE",
    meaning="The gap between confidence and accuracy, smoothed by a Gaussian kernel instead of "
    "bins.",
    function=smece,
    measure=lambda scored: smece(scored.rows.top),
    position=50,
)


def _falling_root(excess: Callable[[float], float]) -> float:
    """Return the root of a falling function on [0, 1] to 1e-7, by the Illinois method."""
    low, high = 0.0, 1.0
    above, below = excess(low), excess(high)
    if above <= 0:
        return low
    side = 0
    while high - low > 1e-7:
        middle = low + (high - low) * above / (above - below)
        # stay inside the bracket by half the tolerance, so that it closes from both ends
        middle = min(max(middle, low + 5e-8), high - 5e-8)
        value = excess(middle)
        if value > 0:
            low, above = middle, value
            below = below / 2 if side > 0 else below
            side = 1
        else:
            high, below = middle, value
            above = above / 2 if side < 0 else above
            side = -1
    return (low + high) / 2


def kde_ece(
    probabilities: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    bandwidth: float | None = None,
) -> float:
    """Return the calibration error from kernel density estimates.

    `integral |t f(t) - f_1(t)| dt`, where f is the density of the confidence, and f_1 is its
    density among correct predictions times the accuracy. Convention: top label; a reflected
    Gaussian in place of the reflected triweight; a bandwidth of `std (2n)^(-1/5)` as in the
    authors' code, but at least two of the 8192 cells. Zhang, Kailkhura & Han 2020.

    >>> round(kde_ece([[0.8, 0.2], [0.8, 0.2]], [0, 1], bandwidth=0.01), 3)
    0.3
    """
    top = as_top_label(probabilities, labels)
    count = top.confidence.size
    if bandwidth is None:
        bandwidth = float(top.confidence.std() * (2 * count) ** -0.2)
    elif not bandwidth > 0:
        raise ParameterError("bad_parameter", f"bandwidth must be positive, got {bandwidth!r}")
    bandwidth = max(bandwidth, 2 / CELLS)
    rows, right = (
        _smoothed(_spectrum(_on_cells(top.confidence, weight)), bandwidth)
        for weight in (np.ones(count), top.correct.astype(np.float64))
    )
    centre = (np.arange(CELLS) + 0.5) / CELLS
    return float(np.abs(centre * rows - right).sum() / count)


def _on_cells(position: Floats, weight: Floats) -> Floats:
    """Return the weights on cells; each weight is divided between the two nearest cell centres."""
    place = np.clip(position * CELLS - 0.5, 0.0, CELLS - 1.0)
    left = np.minimum(place.astype(np.intp), CELLS - 2)
    share = place - left
    cells: Floats = np.zeros(CELLS)
    cells += np.bincount(left, weight * (1 - share), CELLS)
    cells += np.bincount(left + 1, weight * share, CELLS)
    return cells


def _spectrum(cells: Floats) -> Array:
    return np.fft.rfft(np.concatenate((cells, cells[::-1])))


def _smoothed(spectrum: Array, bandwidth: float) -> Floats:
    frequency = np.arange(spectrum.size)
    damped = spectrum * np.exp(-0.5 * (np.pi * bandwidth * frequency) ** 2)
    return np.fft.irfft(damped, 2 * CELLS)[:CELLS]
