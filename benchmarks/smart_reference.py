"""SMART as it was fitted before rows were merged: 300 torch steps over all rows, frozen.

It is only used in `benchmarks.smart`, as the competitor of its successor. Checks, temperature
scaling and margins are those of `calibrators`, so that only the training is compared.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.data import Sample

HIDDEN, STEPS, LEARNING_RATE = 16, 300, 5e-3
BINS, SHARPNESS, DELTA = 15, 200.0, 1e-3
FLOOR = 0.1
MANY_CLASSES = 128
NODES_PER_OCTAVE, OCTAVES_DOWN, OCTAVES_UP = 4, 4, 5
STEP = math.log(2) / NODES_PER_OCTAVE
GRID = 4096
FAR = 1e30

Curve = Callable[[Any], tuple[Any, Any]]


def fit(sample: Sample, seed: int = 0) -> Any:
    """Fit a SmartMap with 300 full-batch Adam steps over all rows."""
    from calibrators import CalibrationSet
    from calibrators.methods.smart import SmartMap
    from calibrators.methods.temperature import TemperatureScaling
    from calibrators.numerics.softmax import margins

    data = CalibrationSet(sample.logits, sample.labels)
    base = TemperatureScaling().fit(data).temperature
    margin = margins(data.logits).astype(np.float64)
    margin[np.isinf(margin)] = 0.0
    margin /= base
    centre, spread = margin.mean(), margin.std() or 1.0
    correct = (data.logits.argmax(axis=1) == data.labels).astype(np.float64)
    curve = (_tabulated if data.k > MANY_CLASSES else _exact)(data.logits, 1 / base)
    w1, b1, w2, b2 = _train((margin - centre) / spread, correct, curve, seed)
    return SmartMap(
        k=data.k,
        kind=data.kind,
        base_temperature=base,
        indicator="margin",
        centre=np.array([centre]),
        spread=np.array([spread]),
        w1=w1,
        b1=b1,
        w2=w2,
        b2=float(b2),
        fit_info={},
    )


def _train(signal: np.ndarray, correct: np.ndarray, curve: Curve, seed: int) -> list[np.ndarray]:
    import torch

    rng = np.random.default_rng(seed)
    first = rng.uniform(-1, 1, (1, HIDDEN)), rng.uniform(-1, 1, HIDDEN)
    start = (*first, np.zeros(HIDDEN), np.array(math.log(math.expm1(1 - FLOOR))))
    weights = [torch.tensor(one) for one in start]
    means, squares = ([torch.zeros_like(one) for one in weights] for _ in range(2))
    inputs = torch.from_numpy(signal)[:, None]
    objective = _soft_binned(torch.from_numpy(correct), curve)
    _gradients(weights, inputs, objective)
    for step in range(1, STEPS + 1):
        size, correction = LEARNING_RATE / (1 - 0.9**step), math.sqrt(1 - 0.999**step)
        gradients = _gradients(weights, inputs, objective)
        for weight, gradient, mean, square in zip(weights, gradients, means, squares, strict=True):
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            weight.addcdiv_(mean, (square.sqrt() / correction).add_(1e-8), value=-size)
    _gradients(weights, inputs, objective)
    return [one.numpy() for one in weights]


def _gradients(weights: list[Any], inputs: Any, objective: Callable[[Any], Any]) -> tuple[Any, ...]:
    w1, b1, w2, b2 = weights
    hidden = (w1.T @ inputs.T).add_(b1[:, None]).clamp_(min=0)
    raised = w2 @ hidden + b2
    temperature = raised.exp().log1p().where(raised < 30, raised) + FLOOR
    by_raised = -objective(1 / temperature) / temperature * raised.sigmoid()
    active = (hidden > 0).to(hidden.dtype)
    return (
        (active @ (by_raised[:, None] * inputs)).T * w2,
        (active @ by_raised) * w2,
        hidden @ by_raised,
        by_raised.sum(),
    )


def _soft_binned(correct: Any, curve: Curve) -> Callable[[Any], Any]:
    """Return the gradient of the soft-binned error with respect to each row's log beta."""
    import torch

    points = np.linspace(0, 1, GRID + 1)[:, np.newaxis]
    centres = (np.arange(BINS) + 0.5) / BINS
    exponent = -SHARPNESS * (points - centres) ** 2
    shares = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    drifts = 2 * SHARPNESS * shares * (centres - (shares @ centres)[:, np.newaxis])
    weights, slopes = torch.from_numpy(shares), torch.from_numpy(drifts)

    def objective(beta: Any) -> Any:
        value, slope = curve(beta)
        confidence = torch.exp(-value)
        miss = correct - confidence
        place = confidence * GRID
        left = place.clip(min=0, max=GRID - 1).long()
        fraction = place - left

        def spread(amount: Any) -> Any:
            right = amount * fraction
            rest = torch.bincount(left + 1, right, GRID + 1)
            return torch.bincount(left, amount - right, GRID + 1) + rest

        def read(values: Any) -> Any:
            return values[left] + fraction * (values[left + 1] - values[left])

        residual, mass = spread(miss) @ weights, spread(torch.ones_like(miss)) @ weights
        root = torch.sqrt(residual**2 + (DELTA * mass) ** 2)
        safe = root + (root == 0)
        pull, push = residual / safe, DELTA**2 * mass / safe
        gradient = miss * read(slopes @ pull) + read(slopes @ push) - read(weights @ pull)
        float(root.sum())
        return gradient * -confidence * slope / len(correct)

    return objective


def _exact(logits: np.ndarray, scale: float) -> Curve:
    import torch

    gaps = torch.from_numpy(
        np.minimum((logits.max(axis=1) - logits.T) * logits.dtype.type(scale), FAR)
    )

    def curve(beta: Any) -> tuple[Any, Any]:
        scaled = gaps * beta.to(gaps.dtype)
        weights = torch.exp(-scaled)
        total = weights.sum(0)
        weights *= scaled
        return total.double().log(), (-weights.sum(0) / total).double()

    return curve


def _tabulated(logits: np.ndarray, scale: float) -> Curve:
    """Quintic Hermite interpolation of r(beta); logits are finite here."""
    import torch

    from calibrators.numerics.parallel import Scratch, map_blocks

    nodes = (OCTAVES_DOWN + OCTAVES_UP) * NODES_PER_OCTAVE + 1
    n, k = logits.shape
    filled = np.empty((n, nodes, 3), np.float32)
    margin = np.empty(n)

    def work(start: int, stop: int, scratch: Scratch) -> None:
        block = logits[start:stop]
        rows, top = np.arange(len(block)), block.argmax(axis=1)
        gaps = block[rows, top][:, np.newaxis] - block
        gaps[rows, top] = np.inf
        second = gaps.min(axis=1, keepdims=True)
        margin[start:stop] = second[:, 0]
        excess = np.minimum((gaps - second) * logits.dtype.type(scale), FAR).astype(np.float32)
        weights, weighted = (
            scratch.take(name, excess.shape, np.float32) for name in ("weights", "weighted")
        )
        chains = (range(first, nodes, NODES_PER_OCTAVE) for first in range(NODES_PER_OCTAVE))
        for node in (node for chain in chains for node in chain):
            beta = 2.0 ** (node / NODES_PER_OCTAVE - OCTAVES_DOWN)
            if node // NODES_PER_OCTAVE % 4 == 0:
                np.multiply(excess, np.float32(-beta), out=weights)
                np.exp(weights, out=weights)
            else:
                np.multiply(weights, weights, out=weights)
            np.multiply(weights, excess, out=weighted)
            total = weights.sum(axis=1).astype(np.float64)
            mean = weighted.sum(axis=1) / total
            variance = np.vecdot(weighted, excess) / total - mean * mean
            filled[start:stop, node, 0] = np.log(total)
            filled[start:stop, node, 1] = -beta * mean
            filled[start:stop, node, 2] = beta * (beta * variance - mean)

    with np.errstate(under="ignore"):
        map_blocks(work, n, k)
    return _interpolated(torch.from_numpy(filled), torch.from_numpy(margin * scale))


def _interpolated(table: Any, margin: Any) -> Curve:
    import torch

    n, nodes, _ = table.shape
    flat, rows = table.reshape(n * nodes, 3), torch.arange(n)

    def curve(beta: Any) -> tuple[Any, Any]:
        held = beta.clip(min=2.0**-OCTAVES_DOWN, max=2.0**OCTAVES_UP)
        place = (torch.log2(held) + OCTAVES_DOWN) * NODES_PER_OCTAVE
        left = place.clip(min=0, max=nodes - 2).long()
        at = rows * nodes + left
        (r0, v0, a0), (r1, v1, a1) = flat[at].T, flat[at + 1].T
        v0, v1, a0, a1 = v0 * STEP, v1 * STEP, a0 * (0.5 * STEP**2), a1 * (0.5 * STEP**2)
        rise, turn, bend = r1 - r0 - v0 - a0, v1 - v0 - 2 * a0, a1 - a0
        c3 = 10 * rise - 4 * turn + bend
        c4 = -15 * rise + 7 * turn - 2 * bend
        c5 = 6 * rise - 3 * turn + bend
        t = place - left
        rest = r0 + t * (v0 + t * (a0 + t * (c3 + t * (c4 + t * c5))))
        slope = (v0 + t * (2 * a0 + t * (3 * c3 + t * (4 * c4 + t * 5 * c5)))) / STEP
        x = rest - held * margin
        value = x.clip(min=0) + torch.log1p(torch.exp(-abs(x)))
        return value, torch.exp(x - value) * (slope - held * margin)

    return curve
