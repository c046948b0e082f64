"""Minimise convex functions on the simplex exactly, by Newton's method on its faces."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibrators.errors import FitError
from calibrators.numerics.parallel import Floats

TOLERANCE = 1e-11
ITERATIONS = 500
ROUNDING = 1e-14

Derivatives = Callable[[Floats], tuple[float, Floats, Floats]]


@dataclass(frozen=True)
class SimplexMinimum:
    """Result of a minimisation; ``gap`` bounds the distance of ``value`` from the minimum."""

    weights: Floats
    value: float
    gap: float
    evaluations: int


def minimise_on_simplex(
    derivatives: Derivatives, size: int, cancelled: Callable[[], None] = lambda: None
) -> SimplexMinimum:
    """Return the minimum of a convex function of weights >= 0 that sum to 1.

    ``derivatives(weights)`` returns the value, gradient and Hessian. The value may be infinite on
    the boundary.

    >>> found = minimise_on_simplex(lambda w: (w @ w - w[0], 2 * w - [1, 0, 0], 2 * np.eye(3)), 3)
    >>> found.weights.round(9).tolist()
    [0.666666667, 0.166666667, 0.166666667]
    """
    weights = np.full(size, 1 / size)
    value, gradient, hessian = derivatives(weights)
    for evaluations in range(1, ITERATIONS + 1):
        gap = max(0.0, float(weights @ gradient - gradient.min()))
        if gap <= TOLERANCE:
            return SimplexMinimum(weights, value, gap, evaluations)
        cancelled()
        direction = _direction(weights, gradient, hessian)
        reach = _reach(weights, direction)
        slope, length = float(gradient @ direction), min(1.0, reach)
        while True:
            moved = np.maximum(weights + length * direction, 0)
            if length == reach:
                moved[np.argmin(np.where(direction < 0, moved, np.inf))] = 0
            moved /= moved.sum()
            candidate = derivatives(moved)
            if candidate[0] <= value + 1e-4 * length * slope + ROUNDING * (1 + abs(value)):
                break
            length /= 2
        weights, (value, gradient, hessian) = moved, candidate
    raise FitError(
        "no_minimum",
        f"no minimum found on the simplex to {TOLERANCE:g}: is the function convex?",
    )


def _direction(weights: Floats, gradient: Floats, hessian: Floats) -> Floats:
    """Return the Newton step within the face spanned by the positive weights and one corner.

    That corner is the one with the steepest descent. If the Newton step does not descend, return
    the direction to the corner, which always descends.
    """
    steepest = int(gradient.argmin())
    free = weights > 0
    free[steepest] = True
    count = int(free.sum())
    system = np.ones((count + 1, count + 1))
    system[:count, :count], system[count, count] = hessian[np.ix_(free, free)], 0
    direction = np.zeros(len(weights))
    right = np.append(-gradient[free], 0)
    direction[free] = np.linalg.lstsq(system, right, rcond=None)[0][:count]
    direction[free] -= direction[free].mean()
    if gradient @ direction < 0 and _reach(weights, direction) > 0:
        return direction
    corner = -weights
    corner[steepest] += 1
    return np.asarray(corner)


def _reach(weights: Floats, direction: Floats) -> float:
    """Return the step length along a direction at which the first weight reaches 0."""
    falling = direction < 0
    return float((weights[falling] / -direction[falling]).min()) if falling.any() else math.inf
