"""Tables of the log partition of each sample over a range of temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators.data import CalibrationSet
from calibrators.numerics.parallel import Floats, Scratch, map_blocks, oriented

OCTAVES_DOWN = 4
RESTART = 8
NO_WEIGHT = 1e15  # its square is finite in float32
FAR = 1e30


@dataclass(frozen=True)
class Nodes:
    """Nodes of a table: ``per_octave`` values of beta in each octave from 2^-4 to 2^``up``."""

    per_octave: int
    up: int

    @property
    def count(self) -> int:
        """Number of nodes."""
        return (OCTAVES_DOWN + self.up) * self.per_octave + 1

    @property
    def at_one(self) -> int:
        """Index of the node at beta = 1."""
        return OCTAVES_DOWN * self.per_octave

    def chained(self) -> list[int]:
        """Return all nodes, grouped into chains in which consecutive nodes are one octave apart."""
        chains = (range(first, self.count, self.per_octave) for first in range(self.per_octave))
        return [node for chain in chains for node in chain]

    def beta(self, node: int) -> float:
        """Return the inverse temperature of a node."""
        return float(2.0 ** (node / self.per_octave - OCTAVES_DOWN))


class CurveTable(NamedTuple):
    """The curves of n scaled rows, for ``confidence_curves.TabulatedCurve``.

    ``values`` (2 nodes + 2, n) in float32 holds r at every node, dr/dlog(beta) at every node, and
    the second derivative at the first and the last node. ``margin`` (n,) is in float64. ``correct``
    (n,) is 1.0 for rows whose label has the largest logit, and 0.0 for others.
    """

    values: Floats
    margin: Floats
    correct: Floats
    nodes: Nodes

    @property
    def log_odds(self) -> Floats:
        """Log odds of the prediction at beta = 1, (n,)."""
        return np.asarray(self.margin - self.values[self.nodes.at_one])


def tabulate(data: CalibrationSet, scale: float, nodes: Nodes) -> CurveTable:
    """Return the table of all rows of a set, computed in one pass.

    Logits are multiplied by ``scale``. The weights at a node are the squared weights at the node an
    octave below, since exp(-2 b e) = exp(-b e)^2. Every ``RESTART`` octaves, they are computed from
    scratch to limit rounding errors. If E and V are the mean and variance of e under the weights,
    r' = -b E and r'' = r' + b^2 V.
    """
    last = nodes.count - 1
    values = np.empty((2 * nodes.count + 2, data.n), dtype=np.float32)
    margin, correct = np.empty((2, data.n))

    def work(start: int, stop: int, scratch: Scratch) -> None:
        rows = slice(start, stop)
        block, axis = oriented(data.logits[rows], scratch)
        excess, margin[rows], top = _excess(block, axis, scale, scratch)
        correct[rows] = top == data.labels[rows]
        weights = scratch.take("weights", excess.shape, np.float32)
        with np.errstate(under="ignore"):
            for node in nodes.chained():
                beta = nodes.beta(node)
                if node // nodes.per_octave % RESTART == 0:
                    np.multiply(excess, np.float32(-beta), out=weights)
                    np.exp(weights, out=weights)
                else:
                    np.multiply(weights, weights, out=weights)
                total = _total(weights, axis).astype(np.float64)
                mean = _dot(weights, excess, axis, scratch) / total
                values[node, rows] = np.log(total)
                values[nodes.count + node, rows] = -beta * mean
                if node in (0, last):
                    square = _square_sum(weights, excess, axis, scratch) / total
                    bend = beta * (beta * (square - mean * mean) - mean)
                    values[-2 if node == 0 else -1, rows] = bend

    map_blocks(work, data.n, data.k)
    return CurveTable(values, margin, correct, nodes)


def _excess(
    block: Floats, axis: int, scale: float, scratch: Scratch
) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Return ``d_k - margin`` and the margins, both multiplied by the scale, and the top classes.

    The top class and classes at -inf have no weight at any node. In a row with a single finite
    logit, one other class does have weight, which makes r 0; the margin is so large that this has
    no effect.
    """
    top = np.expand_dims(block.argmax(axis=axis), axis)
    rest = scratch.take("rest", block.shape, block.dtype)
    np.copyto(rest, block)
    largest = np.take_along_axis(rest, top, axis)
    np.put_along_axis(rest, top, -np.inf, axis)
    second = rest.max(axis=axis, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        margin = np.minimum((largest - second).astype(np.float64) * scale, FAR)
        np.subtract(second, rest, out=rest)
        excess = scratch.take("excess", block.shape, np.float32)
        np.multiply(rest, block.dtype.type(scale), out=excess, casting="same_kind")
    np.put_along_axis(excess, top, NO_WEIGHT, axis)
    if not np.isfinite(excess.max()):
        np.nan_to_num(excess, copy=False, nan=0, posinf=NO_WEIGHT)
        np.minimum(excess, NO_WEIGHT, out=excess)
    return excess, margin.reshape(-1), top.reshape(-1)


def _total(weights: Floats, axis: int) -> Floats:
    """Return the sums over classes."""
    if axis == 0:
        return np.asarray(weights.sum(axis=0))
    return np.asarray(np.vecdot(weights, np.ones(weights.shape[1], dtype=weights.dtype)))


def _dot(weights: Floats, values: Floats, axis: int, scratch: Scratch) -> Floats:
    """Return sums of products over classes; they do not depend on the number of BLAS threads."""
    if axis == 1:
        return np.asarray(np.vecdot(weights, values))
    product = scratch.take("product", weights.shape, weights.dtype)
    return np.asarray(np.multiply(weights, values, out=product).sum(axis=0))


def _square_sum(weights: Floats, excess: Floats, axis: int, scratch: Scratch) -> Floats:
    """Return the sums over classes of ``weights * excess**2``."""
    product = scratch.take("weighted", weights.shape, weights.dtype)
    return _dot(np.multiply(weights, excess, out=product), excess, axis, scratch)
