"""Newton's method for smooth convex functions of many variables.

Steps are computed by conjugate gradients, so the Hessian is never built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import NotConverged
from calibrators.fitting.context import FitContext

Array = NDArray[np.float64]

ITERATIONS = 1000
PRODUCTS = 500
FORCING = 0.3
GAIN = 1e-9
HALVINGS = 40
PROGRESS = 100


class Convex(Protocol):
    """A convex function, evaluated at one point at a time."""

    shape: tuple[int, ...]

    def evaluate(self, point: Array) -> tuple[float, Array]:
        """Return the value and gradient at a point; the next two methods use the same point."""

    def curve(self, direction: Array) -> Array:
        """Return the product of the Hessian and a direction."""

    def preconditioner(self) -> Callable[[Array], Array]:
        """Return a cheap positive approximation of the inverse Hessian."""

    def refine(self) -> bool:
        """Switch to a higher precision; return False if there is none."""


@dataclass(frozen=True)
class NewtonMinimum:
    """Result of a minimisation; ``gradient`` is the largest component of the final gradient."""

    point: Array
    value: float
    gradient: float
    iterations: int
    evaluations: int
    products: int

    @property
    def info(self) -> dict[str, Any]:
        """All fields except the point, as plain JSON."""
        return {
            "value": self.value,
            "gradient_norm": self.gradient,
            "iterations": self.iterations,
            "evaluations": self.evaluations,
            "hessian_products": self.products,
        }


def minimise(function: Convex, tolerance: float, context: FitContext) -> NewtonMinimum:
    """Minimise a function from 0 until no component of its gradient exceeds ``tolerance``.

    A step that goes too far is shortened, so the value never rises by more than rounding errors. If
    a step gains no more than rounding errors, the function switches to a higher precision. If there
    is no higher precision, or after 1000 iterations, the fit ends with a NotConverged warning.
    """
    search = _Search(function, context)
    first = max(search.norm, tolerance)
    iterations = 0
    while search.norm > tolerance and iterations < ITERATIONS:
        iterations += 1
        close_enough = 0.3 * tolerance / search.norm
        forcing = max(min(FORCING, math.sqrt(search.norm / first)), close_enough)
        if not search.step(forcing) and not search.refine():
            break
        done = math.log(first / max(search.norm, tolerance)) / math.log(1e-9 + first / tolerance)
        search.report(min(PROGRESS - 1, max(0, int(PROGRESS * done))))
    if search.norm > tolerance:
        context.warn(
            NotConverged,
            f"the largest component of the gradient is {search.norm:.2g} after {iterations} "
            f"iterations, above the tolerance of {tolerance:g}",
        )
    context.step(PROGRESS, PROGRESS, search.value)
    return NewtonMinimum(
        search.point, search.value, search.norm, iterations, search.evaluations, search.products
    )


class _Search:
    """The point reached so far, with its value and gradient."""

    def __init__(self, function: Convex, context: FitContext) -> None:
        self.function = function
        self.context = context
        self.evaluations = self.products = 0
        self._reported = 0
        self.point = np.zeros(function.shape)
        self.value, self.gradient = self._look(self.point)

    @property
    def norm(self) -> float:
        return float(np.abs(self.gradient).max())

    def refine(self) -> bool:
        if not self.function.refine():
            return False
        self.value, self.gradient = self._look(self.point)
        return True

    def report(self, done: int) -> None:
        self._reported = max(self._reported, done)
        self.context.step(self._reported, PROGRESS, self.value)

    def step(self, forcing: float) -> bool:
        """Take one step; return False if the gain may be due to rounding errors."""
        direction = self._newton_direction(forcing)
        slope = float(np.vdot(self.gradient, direction))
        length = 1.0
        for _ in range(HALVINGS):
            point = self.point + length * direction
            value, gradient = self._look(point)
            ahead = float(np.vdot(gradient, direction))
            # a convex function that still falls at the end of the step has fallen throughout
            if ahead <= 0 or value <= self.value + 1e-4 * length * slope:
                return self._move(point, value, gradient)
            length *= min(0.5, max(0.1, slope / (slope - ahead)))
        return False

    def _move(self, point: Array, value: float, gradient: Array) -> bool:
        gain, before = self.value - value, self.norm
        if gain > 0 or np.abs(gradient).max() < before:
            self.point, self.value, self.gradient = point, value, gradient
        return gain > GAIN * max(1.0, abs(value)) or self.norm < before / 2

    def _look(self, point: Array) -> tuple[float, Array]:
        self.context.cancelled()
        self.evaluations += 1
        return self.function.evaluate(point)

    def _newton_direction(self, forcing: float) -> Array:
        """Solve ``Hessian @ direction = -gradient`` to a relative residual of ``forcing``."""
        precondition = self.function.preconditioner()
        direction = np.zeros(self.function.shape)
        residual = -self.gradient
        towards = scaled = precondition(residual)
        power = first = float(np.vdot(residual, scaled))
        for _ in range(PRODUCTS):
            self.context.cancelled()
            self.products += 1
            curved = self.function.curve(towards)
            bend = float(np.vdot(towards, curved))
            if not bend > 0:
                break
            direction += power / bend * towards
            curved *= power / bend
            residual -= curved
            del curved, scaled  # free them before allocating new ones: they may be as large as W
            scaled = precondition(residual)
            power, before = float(np.vdot(residual, scaled)), power
            if power <= forcing**2 * first:
                break
            towards *= power / before
            towards += scaled
        return direction if direction.any() else scaled
