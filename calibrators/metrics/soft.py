"""The soft-binned functionals of the SMART paper as metrics."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from calibrators.errors import ParameterError
from calibrators.metrics._inputs import Array, Floats, at_least
from calibrators.metrics.toplabel import Scores, as_top_label
from calibrators.numerics.parallel import row_blocks

__all__ = ["kernel_bias", "pointwise_charbonnier", "smce_bound", "soft_ece"]


def soft_ece(
    probabilities: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    bins: int = 15,
    lam: float = 200.0,
    delta: float = 0.0,
) -> float:
    """Return the calibration error over soft bins, the objective of SMART.

    `(1/n) sum_b sqrt(R_b^2 + (delta W_b)^2)` with `R_b = sum_i w_ib (a_i - c_i)`,
    `W_b = sum_i w_ib` and `w_ib` proportional to `exp(-lam (c_i - u_b)^2)`, summing to 1 over the
    bins with centres u_b = (b + 1/2)/M. It is `sum_b (W_b/n) sqrt((acc_b - conf_b)^2 + delta^2)`
    without the division. Convention: the *binned* form, not the per-sample one of Eq. 6
    (`pointwise_charbonnier`). Karandikar et al. 2021; SMART.

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


def pointwise_charbonnier(
    probabilities: Scores, labels: npt.ArrayLike | None = None, *, delta: float = 1e-3
) -> float:
    """Return H, the per-sample functional that Eq. 6 of the SMART paper literally states.

    `(1/n) sum_i sum_b w_ib sqrt((a_i - c_i)^2 + delta^2)`. The weights of a row sum to 1 over the
    bins, so bins and lambda drop out of the value. Not a calibration error: hard 0 or 1 scores
    better than the truth. It exists for Theorem 3.1 (`smce_bound`).

    >>> round(pointwise_charbonnier([[0.8, 0.2], [0.8, 0.2]], [0, 1], delta=0.0), 6)
    0.5
    """
    _check_soft(1.0, delta)
    return float(np.hypot(as_top_label(probabilities, labels).residual, delta).mean())


def kernel_bias(lam: float = 200.0, kappa: float = 1.0) -> float:
    """Return B_lam of Theorem 3.1, the bias by the width of a soft bin.

    `min(1, 2 kappa / (sqrt(pi lam) erf(sqrt(lam))))`; kappa bounds the ratio of the confidence's
    density to the uniform one. SMART, Theorem 3.1.

    >>> round(kernel_bias(200.0), 6)
    0.079788
    """
    _check_soft(lam, 0.0)
    return min(1.0, 2 * kappa / (math.sqrt(math.pi * lam) * math.erf(math.sqrt(lam))))


def smce_bound(
    probabilities: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    lam: float = 200.0,
    delta: float = 1e-3,
    kappa: float = 1.0,
) -> float:
    """Return the upper bound `H + 2 B_lam` on smCE of Theorem 3.1 (SMART).

    >>> round(smce_bound([[0.8, 0.2], [0.8, 0.2]], [0, 1], delta=0.0), 6)
    0.659577
    """
    return pointwise_charbonnier(probabilities, labels, delta=delta) + 2 * kernel_bias(lam, kappa)


def soft_weights(confidence: Floats, bins: int, lam: float) -> Floats:
    """Return the weights (n, bins) of each confidence in each soft bin; rows sum to 1."""
    centre = (np.arange(bins) + 0.5) / bins
    exponent: Array = -lam * (confidence[:, None] - centre) ** 2
    exponent -= exponent.max(axis=1, keepdims=True)
    weight: Floats = np.exp(exponent)
    weight /= weight.sum(axis=1, keepdims=True)
    return weight


def _check_soft(lam: float, delta: float) -> None:
    if not (math.isfinite(lam) and lam > 0):
        raise ParameterError("bad_parameter", f"lam must be positive and finite, got {lam!r}")
    if not (math.isfinite(delta) and delta >= 0):
        raise ParameterError("bad_parameter", f"delta must be at least 0 and finite, got {delta!r}")
