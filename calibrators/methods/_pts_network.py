"""The network of PTS and its training: least squares, or BFGS for other objectives."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrators.fitting.context import FitContext
from calibrators.numerics.confidence_curves import Samples
from calibrators.numerics.objectives import Objective
from calibrators.numerics.parallel import Floats

LARGEST = 3.0
ITERATIONS = 200
HALVINGS = 40
SMALL_GAINS = 5
CURVED = 1e-12


@dataclass(frozen=True)
class Run:
    """Forward pass of a network: inputs, hidden activations and output."""

    inputs: Floats
    first: Floats
    second: Floats
    output: Floats
    free: Floats


@dataclass(frozen=True)
class Network:
    """Two hidden layers of ReLU units and one output, clipped to [-LARGEST, LARGEST]."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    w3: Floats
    b3: Floats

    @classmethod
    def start(cls, inputs: int, hidden: int, seed: int) -> Network:
        """Return a network with output 0 and random hidden layers.

        The weights of a hidden layer are uniform in +-1/sqrt(number of its inputs).
        """
        rng = np.random.default_rng(seed)

        def drawn(wide: int, *size: int) -> Floats:
            return rng.uniform(-1, 1, size) / math.sqrt(wide)

        first = drawn(inputs, inputs, hidden), drawn(inputs, hidden)
        second = drawn(hidden, hidden, hidden), drawn(hidden, hidden)
        return cls(*first, *second, np.zeros(hidden), np.zeros(()))

    @property
    def parts(self) -> tuple[Floats, ...]:
        """All parameters, layer by layer."""
        return self.w1, self.b1, self.w2, self.b2, self.w3, self.b3

    def moved(self, step: Floats) -> Network:
        """Return the network with ``step`` added to its flattened parameters."""
        ends = np.cumsum([one.size for one in self.parts])[:-1]
        pieces = np.split(step, ends)
        return Network(*(a + b.reshape(a.shape) for a, b in zip(self.parts, pieces, strict=True)))

    def run(self, inputs: Floats) -> Run:
        """Run the forward pass on ``inputs``."""
        first = np.maximum(inputs @ self.w1 + self.b1, 0)
        second = np.maximum(first @ self.w2 + self.b2, 0)
        raw = second @ self.w3 + self.b3
        return Run(inputs, first, second, raw.clip(-LARGEST, LARGEST), np.abs(raw) < LARGEST)

    def jacobian(self, run: Run) -> Floats:
        """Return the derivatives (parameters, n) of the samples' outputs."""
        n = len(run.output)
        free = run.free.astype(np.float64)
        to_second = free * (run.second.T > 0) * self.w3[:, np.newaxis]
        to_first = (self.w2 @ to_second) * (run.first.T > 0)
        return np.concatenate(
            [
                (run.inputs.T[:, np.newaxis] * to_first).reshape(-1, n),
                to_first,
                (run.first.T[:, np.newaxis] * to_second).reshape(-1, n),
                to_second,
                run.second.T * free,
                free[np.newaxis],
            ]
        )


@dataclass(frozen=True)
class PtsProblem:
    """The objective: mean of (c - a)^2 plus ``pull`` times the squared distance from the start.

    c is a sample's confidence, and a is 1 if its prediction is correct, else 0.
    """

    samples: Samples
    inputs: Floats
    pull: float

    def solve(
        self, start: Network, tolerance: float, context: FitContext
    ) -> tuple[Network, float, int]:
        """Run Levenberg-Marquardt; return the network, its mean (c - a)^2 and the iterations."""
        at, moved = start, np.zeros(sum(one.size for one in start.parts))
        damping = 1e-2
        run, miss, slope = self._evaluate(at)
        value = self._value(miss, moved)
        for iteration in range(1, ITERATIONS + 1):
            context.step(iteration, ITERATIONS, value)
            jacobian = at.jacobian(run) * slope
            normal = jacobian @ jacobian.T / self.samples.n
            gradient = jacobian @ miss / self.samples.n + self.pull * moved
            np.einsum("ii->i", normal)[...] += self.pull
            gain = -1.0
            while gain <= 0 and damping < 1e8:
                scale = np.diag(damping * (np.diag(normal) + 1e-6 * np.trace(normal) + 1e-12))
                step = np.linalg.solve(normal + scale, -gradient)
                tried = at.moved(step)
                outcome = self._evaluate(tried)
                gain = value - self._value(outcome[1], moved + step)
                damping *= 0.2 if gain > 0 else 5
            if gain <= 0:
                break
            at, moved, (run, miss, slope), value = tried, moved + step, outcome, value - gain
            if gain < tolerance * value:
                break
        context.step(ITERATIONS, ITERATIONS, value)
        return at, float((miss * miss).mean()), iteration

    def _evaluate(self, network: Network) -> tuple[Run, Floats, Floats]:
        """Return the run, c - a, and dc/dlog(T), where log T is the network's output."""
        run = network.run(self.inputs)
        value, slope = self.samples.curve.log_partition(np.exp(-run.output))
        confidence = np.exp(-value)
        return run, confidence - self.samples.correct, confidence * slope

    def _value(self, miss: Floats, moved: Floats) -> float:
        return float((miss * miss).mean() + self.pull * (moved * moved).sum())


@dataclass(frozen=True)
class PtsDescent:
    """Any objective plus ``pull`` times the squared distance from the start, minimised by BFGS."""

    objective: Objective
    inputs: Floats
    pull: float

    def solve(
        self, start: Network, tolerance: float, context: FitContext
    ) -> tuple[Network, float, int]:
        """Run BFGS; return the network, its objective without the penalty, and the iterations."""
        moved = np.zeros(sum(one.size for one in start.parts))
        value, gradient = self._evaluate(start, moved)
        inverse, small = np.eye(moved.size) / max(1.0, 10 * float(np.linalg.norm(gradient))), 0
        for iteration in range(1, ITERATIONS + 1):
            context.step(iteration, ITERATIONS, value)
            direction = -inverse @ gradient
            slope, share = float(direction @ gradient), 1.0
            for _ in range(HALVINGS):
                tried = self._evaluate(start, moved + share * direction)
                if tried[0] <= value + 1e-4 * share * slope:
                    break
                share /= 2
            else:
                break
            step, turn = share * direction, tried[1] - gradient
            gain, moved, (value, gradient) = value - tried[0], moved + step, tried
            small = small + 1 if gain < tolerance * value else 0
            if small == SMALL_GAINS:
                break
            bend = float(step @ turn)
            if bend > CURVED * float(np.linalg.norm(step) * np.linalg.norm(turn)):
                if iteration == 1:
                    inverse = np.eye(moved.size) * (bend / float(turn @ turn))
                inverse = _updated(inverse, step, turn, bend)
        context.step(ITERATIONS, ITERATIONS, value)
        return start.moved(moved), value - self.pull * float(moved @ moved), iteration

    def _evaluate(self, start: Network, moved: Floats) -> tuple[float, Floats]:
        """Return the penalised objective and its gradient with respect to ``moved``."""
        network = start.moved(moved)
        run = network.run(self.inputs)
        value, by_log_beta = self.objective(np.exp(-run.output))
        gradient = -network.jacobian(run) @ by_log_beta + 2 * self.pull * moved
        return value + self.pull * float(moved @ moved), gradient


def _updated(inverse: Floats, step: Floats, turn: Floats, bend: float) -> Floats:
    """Return the BFGS estimate of the inverse Hessian after a step.

    ``turn`` is the change in the gradient along the step, and ``bend`` is ``step @ turn``.
    """
    through = inverse @ turn
    mixed = np.outer(through, step)
    scale = (1 + float(turn @ through) / bend) / bend
    return np.asarray(inverse - (mixed + mixed.T) / bend + scale * np.outer(step, step))
