"""The soft-binned functionals of the SMART paper as metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from calibrators.errors import ParameterError
from calibrators.metrics._inputs import Array, Floats, at_least
from calibrators.metrics.toplabel import Scores, as_top_label
from calibrators.numerics.parallel import row_blocks

__all__ = ["charbonnier_soft_ece", "kernel_bias", "kernel_bias_bound", "smce_bound", "soft_ece"]

# number of points in integrals over [0, 1]
INTEGRAL = 2048
Density: TypeAlias = Callable[[Floats], Floats]


def soft_ece(
    probabilities: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    bins: int = 15,
    lam: float = 200.0,
    delta: float = 0.0,
) -> float:
    """Return the calibration error over soft bins, the objective of ``Smart``.

    `(1/n) sum_b sqrt(R_b^2 + (delta W_b)^2)` with `R_b = sum_i w_ib (a_i - c_i)` and
    `W_b = sum_i w_ib`, where c is the confidence and a is 1 if the prediction is correct, else 0.
    The weights `w_ib` are proportional to `exp(-lam (c_i - u_b)^2)` and sum to 1 over the bins,
    whose centres are `u_b = (b + 1/2) / bins`. This equals
    `sum_b (W_b/n) sqrt((acc_b - conf_b)^2 + delta^2)`, but needs no division. `lam` is
    `1 / (2 sigma^2)`, where sigma is the width of a soft bin. Convention: the *binned* form, not
    the per-sample form of Eq. 6 (`charbonnier_soft_ece`). Karandikar et al. 2021; SMART.

    >>> round(soft_ece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 6)
    0.3
    """
    at_least("bins", bins, 1)
    _check_soft(lam, delta)
    top = as_top_label(probabilities, labels)
    residual, mass = np.zeros(bins), np.zeros(bins)
    for block in row_blocks(top.confidence.size, bins):
        weight = soft_weights(top.confidence[block], bins, lam)
        residual += np.einsum("ib,i->b", weight, top.residual[block])
        mass += weight.sum(axis=0)
    return float(np.hypot(residual, delta * mass).sum() / top.confidence.size)


def charbonnier_soft_ece(
    probabilities: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    bins: int = 15,
    lam: float = 200.0,
    delta: float = 1e-3,
    density: Density | None = None,
) -> float:
    """Return H from Eq. 6 of the SMART paper, the mean distance of outcomes from nearby bins.

    `(1/n) sum_i sum_b w_ib sqrt((a_i - u_b)^2 + delta^2)`, with the symbols of `soft_ece`. The
    residual is relative to the *centre* u_b of a soft bin, and `w_ib` is proportional to
    `exp(-lam (c_i - u_b)^2) density(u_b)`. The integral of Eq. 6 is the limit of many bins; the
    paper computes it with 15 bins. With `delta = 0`, it is Eq. 5. This is not a calibration error:
    rows are not averaged before the residual is taken, so a calibrated model does not score 0; with
    `soft_ece`, it does.

    >>> round(charbonnier_soft_ece([[0.8, 0.2], [0.8, 0.2]], [0, 1], delta=0.0), 6)
    0.5
    """
    at_least("bins", bins, 1)
    _check_soft(lam, delta)
    top = as_top_label(probabilities, labels)
    centre = (np.arange(bins) + 0.5) / bins
    right, wrong = np.hypot(1 - centre, delta), np.hypot(centre, delta)
    total = 0.0
    for block in row_blocks(top.confidence.size, bins):
        weight = soft_weights(top.confidence[block], bins, lam, density)
        total += np.where(top.correct[block], weight @ right, weight @ wrong).sum()
    return float(total / top.confidence.size)


def kernel_bias(lam: float = 200.0, density: Density | None = None) -> float:
    """Return B_lam of Theorem 3.1, the largest mean distance of a confidence from its soft bins.

    This is `sup over p of the integral of |p - u| K(p, u) density(u) du`, where K is the normalised
    kernel. For the uniform density, it is about `1 / sqrt(pi lam)`. SMART, Theorem 3.1.

    >>> round(kernel_bias(200.0), 4)
    0.0399
    """
    _check_soft(lam, 0.0)
    place = np.linspace(0, 1, INTEGRAL + 1)
    centre = (np.arange(INTEGRAL) + 0.5) / INTEGRAL
    distance = [
        (soft_weights(place[rows], INTEGRAL, lam, density) * abs(place[rows, None] - centre))
        .sum(axis=1)
        .max()
        for rows in row_blocks(place.size, INTEGRAL)
    ]
    return float(max(distance))


def kernel_bias_bound(lam: float = 200.0, kappa: float = 1.0) -> float:
    """Return the bound of Eq. 17 on `kernel_bias`.

    The bound is `min(1, 2 kappa / (sqrt(pi lam) erf(sqrt(lam))))`, where kappa is the ratio of the
    largest to the smallest value of the reference density, or 1 for the uniform density.

    >>> round(kernel_bias_bound(200.0), 6)
    0.079788
    """
    _check_soft(lam, 0.0)
    if not kappa >= 1:
        raise ParameterError("bad_parameter", f"kappa must be at least 1, got {kappa!r}")
    return min(1.0, 2 * kappa / (math.sqrt(math.pi * lam) * math.erf(math.sqrt(lam))))


def smce_bound(
    probabilities: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    lam: float = 200.0,
    delta: float = 1e-3,
    density: Density | None = None,
) -> float:
    """Return the upper bound `H + 2 B_lam` on smCE (SMART, Theorem 3.1), with H in integral form.

    >>> round(smce_bound([[0.8, 0.2], [0.8, 0.2]], [0, 1], delta=0.0), 4)
    0.5798
    """
    top = as_top_label(probabilities, labels)
    value = charbonnier_soft_ece(top, bins=INTEGRAL, lam=lam, delta=delta, density=density)
    return value + 2 * kernel_bias(lam, density)


def soft_weights(
    confidence: Floats, bins: int, lam: float, density: Density | None = None
) -> Floats:
    """Return the weight of each confidence in each soft bin (n, bins); rows sum to 1.

    ``density`` returns the positive reference density at given points; the default is uniform.
    """
    centre = (np.arange(bins) + 0.5) / bins
    exponent: Array = -lam * (confidence[:, None] - centre) ** 2
    if density is not None:
        exponent += np.log(density(centre))
    exponent -= exponent.max(axis=1, keepdims=True)
    weight: Floats = np.exp(exponent)
    weight /= weight.sum(axis=1, keepdims=True)
    return weight


def _check_soft(lam: float, delta: float) -> None:
    if not (math.isfinite(lam) and lam > 0):
        raise ParameterError("bad_parameter", f"lam must be positive and finite, got {lam!r}")
    if not (math.isfinite(delta) and delta >= 0):
        raise ParameterError("bad_parameter", f"delta must be at least 0 and finite, got {delta!r}")
