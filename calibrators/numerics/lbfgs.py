"""L-BFGS for several smooth functions at once, with separate step lengths."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from calibrators.numerics.parallel import Floats

HISTORY = 8
HALVINGS = 20
ARMIJO = 1e-4

Functions = Callable[[Floats], tuple[Floats, Floats]]


def minimise_together(
    functions: Functions,
    start: Floats,
    steps: int,
    tolerance: float,
    gain: float,
    report: Callable[[int], None],
) -> Floats:
    """Return points (u, p) near local minima of u functions of p unknowns each.

    ``functions`` returns the values (u,) and the gradients (u, p) at points (u, p). The search
    begins at ``start``. Steps are halved until they lower a value enough (Armijo). The search for a
    function ends when no component of its gradient exceeds ``tolerance``, when a step lowers its
    value by no more than ``gain``, or after ``steps`` steps. ``report`` is called with the number
    of each step.

    Reference: Nocedal and Wright, Numerical Optimization, Algorithms 7.4 and 3.1.

    >>> centres = np.array([[1.0, 2.0], [3.0, -4.0]])
    >>> def bowls(x):
    ...     return ((x - centres) ** 4).sum(axis=1), 4 * (x - centres) ** 3
    >>> found = minimise_together(bowls, np.zeros((2, 2)), 100, 1e-9, 0.0, lambda step: None)
    >>> found.round(2).tolist()
    [[1.0, 2.0], [3.0, -4.0]]
    """
    point = start.copy()
    value, gradient = functions(point)
    pairs: deque[tuple[Floats, Floats, Floats]] = deque(maxlen=HISTORY)
    scale = 1 / np.maximum(np.abs(gradient).sum(axis=1), 1e-30)
    is_open = np.ones(len(point), dtype=bool)
    for step in range(steps):
        report(step)
        is_open &= np.abs(gradient).max(axis=1) > tolerance
        if not is_open.any():
            break
        direction = -_inverse_times(gradient, pairs, scale) * is_open[:, np.newaxis]
        slope = _dot(gradient, direction)
        length = np.ones(len(point))
        for _ in range(HALVINGS):
            trial = point + length[:, np.newaxis] * direction
            new_value, new_gradient = functions(trial)
            is_lower = new_value <= value + ARMIJO * length * slope
            if is_lower.all():
                break
            length = np.where(is_lower, length, length / 2)
        kept = (is_open & is_lower)[:, np.newaxis]
        is_open &= is_lower & (value - new_value > gain)
        move = np.where(kept, trial - point, 0)
        change = np.where(kept, new_gradient - gradient, 0)
        point = point + move
        value = np.where(kept[:, 0], new_value, value)
        gradient = gradient + change
        bend, square = _dot(move, change), _dot(change, change)
        is_convex = bend > 1e-10 * np.sqrt(square * _dot(move, move))
        pairs.append((move, change, np.where(is_convex, 1 / np.where(is_convex, bend, 1), 0)))
        scale = np.where(is_convex, bend / np.where(square > 0, square, 1), scale)
    return point


def _inverse_times(
    gradient: Floats, pairs: deque[tuple[Floats, Floats, Floats]], scale: Floats
) -> Floats:
    """Return approximate inverse Hessians times gradients, by the two-loop recursion."""
    found, shares = gradient.copy(), []
    for move, change, inverse in reversed(pairs):
        share = inverse * _dot(move, found)
        found -= share[:, np.newaxis] * change
        shares.append(share)
    found *= scale[:, np.newaxis]
    for (move, change, inverse), share in zip(pairs, reversed(shares), strict=True):
        found += (share - inverse * _dot(change, found))[:, np.newaxis] * move
    return found


def _dot(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.einsum("up,up->u", first, second))
