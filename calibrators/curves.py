"""All that a temperature does to a sample: the log-partition as a function of the temperature.

With ``d_k = z_max - z_k`` and ``beta = 1/T``, every temperature-type fit sees a sample only through
``L(beta) = log sum_k exp(-beta d_k)``: confidence = exp(-L), NLL = beta d_y + L, and
``sum_k p_k^2 = exp(L(2 beta) - 2 L(beta))``. A curve answers L and dL/dlog(beta) for any beta of
each sample: from the logits themselves (ExactCurve, few classes), or from a table made once
(TabulatedCurve, many classes), after which an evaluation costs the same whatever k is.

Both work on numpy arrays and on torch tensors of any device alike: the array they are given
decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from calibrators.blocks import Floats, Scratch, map_blocks
from calibrators.data import CalibrationSet
from calibrators.softmax import margins

Array = Any
MANY_CLASSES = 128
FAR = 1e30
NODES_PER_OCTAVE = 4
OCTAVES_DOWN, OCTAVES_UP = 4, 5
RESTART = 4


class Curve(Protocol):
    """L(beta) and its derivative in log beta, for each sample its own beta."""

    def log_partition(self, beta: Array) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class Samples:
    """What a temperature-type objective knows of n samples."""

    curve: Curve
    label_gap: Array
    mean_gap: Array
    correct: Array

    @property
    def n(self) -> int:
        return len(self.correct)


def namespace(array: Array) -> Any:
    """numpy for its arrays, torch for anything else."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    import torch

    return torch


def to_device(array: Floats, device: str) -> Array:
    """A numpy array as a tensor on a torch device."""
    import torch

    return torch.from_numpy(array).to(device)


def curve_numbers(k: int) -> int:
    """Estimate how many numbers a row ``observe`` takes for k classes at its peak."""
    return min(k, 130)


def observe(data: CalibrationSet, scale: float = 1.0, device: str | None = None) -> Samples:
    """The samples of a set on logits times ``scale``, as numpy arrays or on a torch device."""
    label_gap = data.label_gaps.astype(np.float64) * scale
    correct = (data.logits.argmax(axis=1) == data.labels).astype(np.float64)
    parts = (label_gap, mean_gaps(data) * scale, correct)
    if device is None:
        return Samples(_curve(data, scale, None), *parts)
    return Samples(_curve(data, scale, device), *(to_device(part, device) for part in parts))


def _curve(data: CalibrationSet, scale: float, device: str | None) -> Curve:
    if data.k > MANY_CLASSES:
        return TabulatedCurve.build(data, scale, device)
    return ExactCurve.build(data, scale, device)


def mean_gaps(data: CalibrationSet) -> Floats:
    """Mean over the finite classes of d_k, (n,)."""

    def work(start: int, stop: int, scratch: Scratch) -> Floats:
        gaps = data.row_max[start:stop, np.newaxis] - data.logits[start:stop]
        finite = np.isfinite(gaps)
        means = np.where(finite, gaps, 0).sum(axis=1, dtype=np.float64) / finite.sum(axis=1)
        return np.asarray(means)

    return np.concatenate(map_blocks(work, data.n, data.k))


@dataclass(frozen=True)
class ExactCurve:
    """L from the logits themselves; ``gaps`` (k, n) are d_k times the scale."""

    gaps: Array

    @classmethod
    def build(cls, data: CalibrationSet, scale: float, device: str | None) -> ExactCurve:
        gaps = np.empty((data.k, data.n), dtype=data.logits.dtype)
        with np.errstate(over="ignore"):
            np.subtract(data.row_max, data.logits.T, out=gaps)
            gaps *= scale
        np.minimum(gaps, FAR, out=gaps)
        return cls(gaps if device is None else to_device(gaps, device))

    def log_partition(self, beta: Array) -> tuple[Array, Array]:
        xp = namespace(self.gaps)
        scaled = self.gaps * xp.asarray(beta, dtype=self.gaps.dtype)
        weights = xp.exp(-scaled)
        total = weights.sum(0)
        weights *= scaled
        slope = -weights.sum(0) / total
        return xp.log(xp.asarray(total, dtype=xp.float64)), xp.asarray(slope, dtype=xp.float64)


@dataclass(frozen=True)
class TabulatedCurve:
    """L by quintic Hermite interpolation of ``r(beta) = log sum_{k != top} exp(-beta (d_k - m))``.

    ``L = softplus(r - beta m)``. r is smooth where L itself decays to nothing; four nodes an octave
    from 2^-4 to 2^5, each with two derivatives, give the confidence to the rounding of float32.
    Outside, beta is held at the nearest end. ``table`` is (n, nodes, 3): r and its first and second
    derivative in log beta.
    """

    table: Array
    margin: Array

    @classmethod
    def build(cls, data: CalibrationSet, scale: float, device: str | None) -> TabulatedCurve:
        margin = np.minimum(margins(data.logits).astype(np.float64) * scale, FAR)
        table = _tabulate(data, scale)
        if device is None:
            return cls(table, margin)
        return cls(to_device(table, device), to_device(margin, device))

    def log_partition(self, beta: Array) -> tuple[Array, Array]:
        xp = namespace(self.table)
        held = xp.zeros_like(self.margin) + beta
        held = held.clip(min=2.0**-OCTAVES_DOWN, max=2.0**OCTAVES_UP)
        rest, slope = self._interpolate(xp, xp.log2(held))
        x = rest - held * self.margin
        value = x.clip(min=0) + xp.log1p(xp.exp(-abs(x)))
        return value, xp.exp(x - value) * (slope - held * self.margin)

    def _interpolate(self, xp: Any, octave: Array) -> tuple[Array, Array]:
        """r and dr/dlog(beta) at log2(beta), for each sample its own."""
        n, nodes, _ = self.table.shape
        place = (octave + OCTAVES_DOWN) * NODES_PER_OCTAVE
        left = place.clip(min=0, max=nodes - 2)
        left = left.astype(np.int64) if xp is np else left.long()
        rows = np.arange(n) if xp is np else xp.arange(n, device=left.device)
        flat = self.table.reshape(n * nodes, 3)
        step = math.log(2) / NODES_PER_OCTAVE
        at = rows * nodes + left
        r0, v0, a0 = flat[at].T
        r1, v1, a1 = flat[at + 1].T
        v0, v1, a0, a1 = v0 * step, v1 * step, a0 * (0.5 * step**2), a1 * (0.5 * step**2)
        rise = r1 - r0 - v0 - a0
        turn, bend = v1 - v0 - 2 * a0, a1 - a0
        c3, c4, c5 = (
            10 * rise - 4 * turn + bend,
            -15 * rise + 7 * turn - 2 * bend,
            6 * rise - 3 * turn + bend,
        )
        t = place - left
        value = r0 + t * (v0 + t * (a0 + t * (c3 + t * (c4 + t * c5))))
        slope = v0 + t * (2 * a0 + t * (3 * c3 + t * (4 * c4 + t * 5 * c5)))
        return value, slope / step


def _tabulate(data: CalibrationSet, scale: float) -> Floats:
    """r and its derivatives at every node, (n, nodes, 3) in float32.

    The nodes of neighbouring octaves are one squaring apart, exp(-2 b e) = exp(-b e)^2, so few
    exponentials are taken (a fresh one every four octaves keeps rounding from growing). With E and
    V the mean and variance of e under the weights, r' = -b E and r'' = r' + b^2 V.
    """
    nodes = (OCTAVES_DOWN + OCTAVES_UP) * NODES_PER_OCTAVE + 1
    table = np.empty((data.n, nodes, 3), dtype=np.float32)

    def work(start: int, stop: int, scratch: Scratch) -> None:
        excess = _excess(data, start, stop, scale)
        weights, weighted = (
            scratch.take(name, excess.shape, np.float32) for name in ("weights", "weighted")
        )
        with np.errstate(under="ignore"):
            for node in _chained_nodes(nodes):
                beta = 2.0 ** (node / NODES_PER_OCTAVE - OCTAVES_DOWN)
                if node // NODES_PER_OCTAVE % RESTART == 0:
                    np.multiply(excess, np.float32(-beta), out=weights)
                    np.exp(weights, out=weights)
                else:
                    np.multiply(weights, weights, out=weights)
                np.multiply(weights, excess, out=weighted)
                total = weights.sum(axis=1).astype(np.float64)
                mean = weighted.sum(axis=1) / total
                variance = np.vecdot(weighted, excess) / total - mean * mean
                table[start:stop, node, 0] = np.log(total)
                table[start:stop, node, 1] = -beta * mean
                table[start:stop, node, 2] = beta * (beta * variance - mean)

    map_blocks(work, data.n, data.k)
    return table


def _chained_nodes(nodes: int) -> list[int]:
    """Node numbers, each an octave above the one before it or the start of a new chain."""
    chains = (range(first, nodes, NODES_PER_OCTAVE) for first in range(NODES_PER_OCTAVE))
    return [node for chain in chains for node in chain]


def _excess(data: CalibrationSet, start: int, stop: int, scale: float) -> Floats:
    """``d_k - margin`` times the scale in float32; the top class and -inf are out of reach."""
    logits = data.logits[start:stop]
    rows, top = np.arange(len(logits)), logits.argmax(axis=1)
    gaps = data.row_max[start:stop, np.newaxis] - logits
    gaps[rows, top] = np.inf
    second = gaps.min(axis=1, keepdims=True)
    alone = ~np.isfinite(second[:, 0])
    second[alone] = 0
    with np.errstate(over="ignore"):
        gaps -= second
        gaps *= scale
    excess: Floats = np.minimum(gaps, FAR).astype(np.float32)
    excess[alone, 0] = 0
    return excess
