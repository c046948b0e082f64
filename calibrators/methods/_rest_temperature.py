"""Fit the temperature of the classes other than the predicted one, on wrong predictions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calibrators.data import CalibrationSet
from calibrators.methods.temperature import bracketed_newton
from calibrators.numerics.parallel import Floats

MAX_VALUES = 1 << 20
PRIOR_DEVIATION = 0.5
RANGE = 16.0
FAR = -1e30


def fit_rest_temperature(
    data: CalibrationSet, temperature: float, wrong: NDArray[np.bool_]
) -> float:
    """Return the most probable temperature of the other classes on wrongly predicted rows.

    The prior is ``log(T_rest / temperature) ~ N(0, 0.5^2)``. At most a million logits are used,
    from rows evenly spaced among the ``wrong`` ones; a single parameter needs no more.
    """
    chosen = np.flatnonzero(wrong)
    if data.k == 2 or not chosen.size:
        return temperature
    most = max(1, MAX_VALUES // data.k)
    if chosen.size > most:
        chosen = chosen[np.linspace(0, chosen.size - 1, most).astype(np.intp)]
    logits, label = _relative(data, chosen, temperature)

    def derivatives(beta: float) -> tuple[float, float]:
        weights = np.exp(beta * logits)
        total = weights.sum(axis=1)
        weights *= logits
        mean = weights.sum(axis=1) / total
        square = np.vecdot(weights, logits) / total
        log_beta = math.log(beta)
        slope = float((mean - label).sum()) + log_beta / (PRIOR_DEVIATION**2 * beta)
        bend = float((square - mean**2).sum()) + (1 - log_beta) / (PRIOR_DEVIATION * beta) ** 2
        return slope, bend

    return temperature / bracketed_newton(derivatives, 1 / RANGE, RANGE, 1.0, 1e-6).value


def _relative(
    data: CalibrationSet, chosen: NDArray[np.intp], temperature: float
) -> tuple[Floats, Floats]:
    """Return logits scaled and relative to the largest other class: all (n, k) and labels (n,)."""
    logits = data.logits[chosen].astype(np.float64)
    rows = np.arange(len(chosen))
    logits[rows, logits.argmax(axis=1)] = -np.inf
    logits -= logits.max(axis=1, keepdims=True)
    logits /= temperature
    np.maximum(logits, FAR, out=logits)
    return logits, logits[rows, data.labels[chosen]]
