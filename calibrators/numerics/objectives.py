"""Objectives of temperature-type fits: value and gradient in log beta, without autograd.

An objective takes beta = 1 / temperature, one number per sample or a single number for all. It
returns its value and the derivative with respect to each sample's log beta. The same code runs on
numpy arrays and torch tensors. c is the confidence of a prediction, and a is 1 if it is correct,
else 0.

- ``nll``: mean of -log p_y.
- ``label_smoothing``: mean cross-entropy against the labels (1 - e) onehot + e / k.
- ``mse``: mean of (c - a)^2.
- ``brier``: mean of the squared distance between p and the one-hot label.
- ``soft_ece`` and ``charbonnier``: ``sum_b sqrt(R_b^2 + (delta W_b)^2) / n`` over soft bins with
  centres u_b = (b + 1/2)/bins and weights w_ib proportional to exp(-lam (c_i - u_b)^2), where
  ``R_b = sum_i w_ib (a_i - c_i)`` and ``W_b = sum_i w_ib``; delta is 0 for ``soft_ece``. This is
  the binned form of Karandikar et al. 2021. ``lam`` is ``1 / (2 sigma^2)``, where sigma is the
  width of a bin.
- ``charbonnier_per_sample``: mean of ``sum_b w_ib sqrt((a_i - u_b)^2 + delta^2)``. This is Eq. 6 of
  the SMART paper, where the residual is relative to the centre of a bin. With a delta of 0, it is
  Eq. 5, which the paper calls SoftECE. It is included for comparison only.
- ``mae``: mean of sqrt((a - c)^2 + delta^2), the absolute error of the confidence. Like Eq. 6, it
  is minimised by confidences near 0 and 1. It is included for comparison only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import ParameterError
from calibrators.numerics.confidence_curves import Array, Samples, namespace, whole

ObjectiveName = Literal[
    "nll",
    "label_smoothing",
    "mse",
    "brier",
    "soft_ece",
    "charbonnier",
    "charbonnier_per_sample",
    "mae",
]
Objective = Callable[[Array], tuple[float, Array]]

SMOOTHING = 0.05
GRID = 2048


def make_objective(
    name: str, samples: Samples, *, bins: int = 15, lam: float = 200.0, delta: float = 1e-3
) -> Objective:
    """Return the named objective for the given samples."""
    match name:
        case "nll":
            return lambda beta: _linear(samples, samples.label_gap, beta)
        case "label_smoothing":
            if samples.mean_gap is None:
                raise ParameterError("bad_parameter", "label_smoothing needs samples with mean_gap")
            gap = (1 - SMOOTHING) * samples.label_gap + SMOOTHING * samples.mean_gap
            return lambda beta: _linear(samples, gap, beta)
        case "mse":
            return lambda beta: _mse(samples, beta)
        case "brier":
            return lambda beta: _brier(samples, beta)
        case "mae":
            return lambda beta: _mae(samples, delta, beta)
        case "charbonnier_per_sample":
            return _per_sample(samples, bins, lam, delta)
        case "soft_ece":
            return _soft_binned(samples, bins, lam, 0.0)
        case "charbonnier":
            return _soft_binned(samples, bins, lam, delta)
    raise ParameterError("bad_parameter", f"unknown objective {name!r}")


def _linear(samples: Samples, gap: Array, beta: Array) -> tuple[float, Array]:
    value, slope = samples.curve.log_partition(beta)
    return samples.mean(beta * gap + value), samples.weight * (beta * gap + slope) / samples.n


def _mse(samples: Samples, beta: Array) -> tuple[float, Array]:
    confidence, slope = samples.curve.confidence(beta)
    miss = confidence - samples.correct
    return samples.mean(miss * miss), 2 * samples.weight * miss * slope / samples.n


def _mae(samples: Samples, delta: float, beta: Array) -> tuple[float, Array]:
    confidence, slope = samples.curve.confidence(beta)
    miss = confidence - samples.correct
    root = namespace(miss).sqrt(miss * miss + delta * delta)
    gradient = samples.weight * miss / (root + (root == 0)) * slope
    return samples.mean(root), gradient / samples.n


def _brier(samples: Samples, beta: Array) -> tuple[float, Array]:
    value, slope = samples.curve.log_partition(beta)
    doubled, doubled_slope = samples.curve.log_partition(2 * beta)
    exp = namespace(value).exp
    squares = exp(doubled - 2 * value)
    at_label = exp(-beta * samples.label_gap - value)
    gradient = squares * (doubled_slope - 2 * slope) + 2 * at_label * (
        beta * samples.label_gap + slope
    )
    return samples.mean(squares - 2 * at_label + 1), samples.weight * gradient / samples.n


@lru_cache(maxsize=4)
def soft_bin_weights(bins: int, lam: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return w_b and dw_b/dc at the confidences 0, 1/GRID, ..., 1, (bins, GRID + 1) each."""
    points = np.linspace(0, 1, GRID + 1)
    centres = ((np.arange(bins) + 0.5) / bins)[:, np.newaxis]
    exponent = -lam * (points - centres) ** 2
    weights = np.exp(exponent - exponent.max(axis=0))
    weights /= weights.sum(axis=0)
    mean_centre = (weights * centres).sum(axis=0)
    return weights, 2 * lam * weights * (centres - mean_centre)


def _soft_binned(samples: Samples, bins: int, lam: float, delta: float) -> Objective:
    """Return the soft-binned error, with weights and slopes interpolated on a fine grid.

    Samples affect bins only through the grid: two sums are computed per grid point, and two values
    are read back. A step therefore costs a few passes over n samples instead of n times ``bins``
    exponentials.
    """
    xp = namespace(samples.correct)
    weights, slopes = (_on_device(samples, one) for one in soft_bin_weights(bins, lam))

    def objective(beta: Array) -> tuple[float, Array]:
        confidence, by_log_beta = samples.curve.confidence(beta)
        miss = samples.correct - confidence
        grid = Grid.place(xp, confidence)
        residual = weights @ grid.spread(samples.weight * miss)
        mass = weights @ grid.spread(samples.weight)
        root = xp.sqrt(residual**2 + (delta * mass) ** 2)
        safe = root + (root == 0)
        pull, push = residual / safe, delta**2 * mass / safe
        rise, drift = grid.read(pull @ slopes), grid.read(push @ slopes - pull @ weights)
        gradient = samples.weight * (miss * rise + drift) * by_log_beta
        return float(root.sum()) / samples.n, gradient / samples.n

    return objective


def _per_sample(samples: Samples, bins: int, lam: float, delta: float) -> Objective:
    """Return Eq. 6, which depends only on each sample's confidence and correctness."""
    xp = namespace(samples.correct)
    centres = (np.arange(bins) + 0.5) / bins
    residuals = np.hypot(np.stack([centres, 1 - centres]), delta)
    weights, slopes = soft_bin_weights(bins, lam)
    wrong, right = _on_device(samples, residuals @ weights)
    wrong_slope, right_slope = _on_device(samples, residuals @ slopes)
    correct = samples.correct

    def objective(beta: Array) -> tuple[float, Array]:
        confidence, by_log_beta = samples.curve.confidence(beta)
        grid = Grid.place(xp, confidence)
        value = correct * grid.read(right) + (1 - correct) * grid.read(wrong)
        slope = correct * grid.read(right_slope) + (1 - correct) * grid.read(wrong_slope)
        return samples.mean(value), samples.weight * slope * by_log_beta / samples.n

    return objective


def _on_device(samples: Samples, table: NDArray[np.float64]) -> Any:
    """Return a table as an array on the device of the samples."""
    xp = namespace(samples.correct)
    return table if xp is np else xp.asarray(table, device=samples.correct.device)


@dataclass(frozen=True)
class Grid:
    """Positions of confidences between the points of a uniform grid on [0, 1]."""

    xp: Any
    left: Array
    fraction: Array

    @classmethod
    def place(cls, xp: Any, confidence: Array) -> Grid:
        """Return the positions of confidences on the grid."""
        place = confidence * GRID
        left = whole(place.clip(min=0, max=GRID - 1))
        return cls(xp, left, place - left)

    def spread(self, amount: Array) -> Array:
        """Return the sums at the grid points; each amount is split between its two neighbours."""
        right = amount * self.fraction
        count = self.xp.bincount
        return count(self.left, amount - right, GRID + 1) + count(self.left + 1, right, GRID + 1)

    def read(self, values: Array) -> Array:
        """Return values at the confidences, interpolated between those at the grid points."""
        left = values[self.left]
        return left + self.fraction * (values[self.left + 1] - left)
