"""Tables of the log-partition of every sample over a range of temperatures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrators.data import CalibrationSet
from calibrators.numerics.parallel import Floats, Scratch, map_blocks, oriented

OCTAVES_DOWN = 4
RESTART = 8
NO_WEIGHT = 1e15  # its square is finite in float32
FAR = 1e30


@dataclass(frozen=True)
class Nodes:
    """Where a table is made: ``per_octave`` values of beta an octave, from 2^-4 to 2^``up``."""

    per_octave: int
    up: int

    @property
    def count(self) -> int:
        """Number of nodes."""
        return (OCTAVES_DOWN + self.up) * self.per_octave + 1

    @property
    def at_one(self) -> int:
        """The node at beta = 1."""
        return OCTAVES_DOWN * self.per_octave

    def chained(self) -> list[int]:
        """Return all nodes, each an octave above the one before it or the start of a new chain."""
        chains = (range(first, self.count, self.per_octave) for first in range(self.per_octave))
        return [node for chain in chains for node in chain]

    def beta(self, node: int) -> float:
        """Return the inverse temperature of a node."""
        return float(2.0 ** (node / self.per_octave - OCTAVES_DOWN))


def tabulate(data: CalibrationSet, scale: float, nodes: Nodes) -> tuple[Floats, Floats]:
    """Return r with two derivatives in log beta at every node, and the margins, times ``scale``.

    The table is (n, nodes, 3) in float32, the margins (n,) in float64, see
    :class:`confidence_curves.TabulatedCurve`. Nodes an octave apart are one squaring apart,
    exp(-2 b e) = exp(-b e)^2, so few exponentials are taken; a fresh one every ``RESTART`` octaves
    keeps rounding from growing. With E and V the mean and variance of e under the weights,
    r' = -b E and r'' = r' + b^2 V.
    """
    table = np.empty((data.n, nodes.count, 3), dtype=np.float32)
    margin = np.empty(data.n)

    def work(start: int, stop: int, scratch: Scratch) -> None:
        block, axis = oriented(data.logits[start:stop], scratch)
        excess, margin[start:stop] = _excess(block, axis, scale, scratch)
        square, weights = (
            scratch.take(name, excess.shape, np.float32) for name in ("square", "weights")
        )
        np.multiply(excess, excess, out=square)
        one = np.ones(data.k if axis == 1 else 1, dtype=np.float32)
        with np.errstate(under="ignore"):
            for node in nodes.chained():
                beta = nodes.beta(node)
                if node // nodes.per_octave % RESTART == 0:
                    np.multiply(excess, np.float32(-beta), out=weights)
                    np.exp(weights, out=weights)
                else:
                    np.multiply(weights, weights, out=weights)
                total = _dot(weights, one, axis, scratch).astype(np.float64)
                mean = _dot(weights, excess, axis, scratch) / total
                variance = _dot(weights, square, axis, scratch) / total - mean * mean
                table[start:stop, node, 0] = np.log(total)
                table[start:stop, node, 1] = -beta * mean
                table[start:stop, node, 2] = beta * (beta * variance - mean)

    map_blocks(work, data.n, data.k)
    return table, margin


def _excess(block: Floats, axis: int, scale: float, scratch: Scratch) -> tuple[Floats, Floats]:
    """Return ``d_k - margin`` and the margins, times the scale.

    The top class and -inf have no weight at any node. In a row with a single finite logit one
    other class takes part: its r is 0, and its margin so large that no beta shows it.
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
    return excess, margin.reshape(-1)


def _dot(weights: Floats, values: Floats, axis: int, scratch: Scratch) -> Floats:
    """Return sums over classes of products; the same bits on any number of BLAS threads."""
    if axis == 1:
        return np.asarray(np.vecdot(weights, values))
    product = scratch.take("product", weights.shape, weights.dtype)
    return np.asarray(np.multiply(weights, values, out=product).sum(axis=0))
