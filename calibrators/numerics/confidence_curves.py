"""Confidence curves: the log partition of a sample as a function of the temperature.

Let ``d_k = z_max - z_k`` and ``beta = 1/T``. A temperature-type fit depends on the logits of a
sample only through ``L(beta) = log sum_k exp(-beta d_k)``: the confidence is exp(-L), the NLL is
beta d_y + L, and ``sum_k p_k^2`` is ``exp(L(2 beta) - 2 L(beta))``. A curve evaluates L at any beta
of each sample. ExactCurve, for few classes, uses the logits themselves. TabulatedCurve uses a table
that is built once; an evaluation then costs the same for any k.

Curves work on numpy arrays as well as on torch tensors on any device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from calibrators.data import CalibrationSet
from calibrators.numerics.curve_tables import FAR, OCTAVES_DOWN, CurveTable, Nodes, tabulate
from calibrators.numerics.parallel import Floats, row_blocks
from calibrators.numerics.softmax import mean_gaps

Array = Any
MANY_CLASSES = 16
FINE = Nodes(per_octave=3, up=5)


class Curve(Protocol):
    """L and the confidence of each sample at its own beta, with their derivatives in log(beta)."""

    def log_partition(self, beta: Array) -> tuple[Array, Array]:
        """Return L and dL/dlog(beta)."""
        ...

    def confidence(self, beta: Array) -> tuple[Array, Array]:
        """Return exp(-L) and its derivative with respect to log beta."""
        ...


@dataclass(frozen=True)
class Samples:
    """Inputs to a temperature-type objective.

    Each sample represents ``weight`` of the ``n`` rows. ``mean_gap`` is None unless requested.
    """

    curve: Curve
    label_gap: Array
    correct: Array
    weight: Array
    n: int
    mean_gap: Array | None = None

    def mean(self, values: Array) -> float:
        """Return the mean over all rows, given a value for each sample."""
        return float((values * self.weight).sum()) / self.n


def namespace(array: Array) -> Any:
    """Return the numpy module for numpy arrays, and the torch module for anything else."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    import torch

    return torch


def to_device(array: Floats, device: str | None) -> Array:
    """Return a numpy array as a tensor on a torch device, or unchanged if ``device`` is None."""
    if device is None:
        return array
    import torch

    return torch.from_numpy(array).to(device)


def curve_numbers(k: int) -> int:
    """Estimate the peak memory of ``observe`` for k classes, in array elements per row."""
    return k if k <= MANY_CLASSES else 4 * FINE.count


def observe(
    data: CalibrationSet,
    scale: float = 1.0,
    device: str | None = None,
    *,
    with_mean_gaps: bool = False,
    exact: bool = False,
) -> Samples:
    """Return samples for the rows of a set, as numpy arrays or on a torch device.

    Logits are multiplied by ``scale``. ``exact`` avoids tabulated curves, which limit the range of
    beta.
    """
    means = mean_gaps(data) * scale if with_mean_gaps else None
    curve = ExactCurve.build if exact or data.k <= MANY_CLASSES else TabulatedCurve.build
    return Samples(
        curve=curve(data, scale, device),
        label_gap=to_device(data.label_gaps.astype(np.float64) * scale, device),
        correct=to_device(correctness(data), device),
        weight=to_device(np.ones(data.n), device),
        n=data.n,
        mean_gap=None if means is None else to_device(means, device),
    )


def correctness(data: CalibrationSet) -> Floats:
    """Return an array (n,): 1.0 where the label has the largest logit, else 0.0."""
    return np.asarray(data.logits.argmax(axis=1) == data.labels, dtype=np.float64)


@dataclass(frozen=True)
class ExactCurve:
    """L computed from the logits themselves; ``gaps`` (k, n) are d_k times the scale."""

    gaps: Array

    @classmethod
    def build(cls, data: CalibrationSet, scale: float, device: str | None) -> ExactCurve:
        """Return the curves of a set after multiplying its logits by ``scale``."""
        gaps = np.empty((data.k, data.n), dtype=data.logits.dtype)
        with np.errstate(over="ignore"):
            np.subtract(data.row_max, data.logits.T, out=gaps)
            gaps *= scale
        np.minimum(gaps, FAR, out=gaps)
        return cls(to_device(gaps, device))

    def log_partition(self, beta: Array) -> tuple[Array, Array]:
        """Return L and dL/dlog(beta)."""
        total, slope = self._sums(beta)
        return namespace(total).log(total), slope

    def confidence(self, beta: Array) -> tuple[Array, Array]:
        """Return exp(-L) and its derivative with respect to log beta."""
        total, slope = self._sums(beta)
        return 1 / total, -slope / total

    def _sums(self, beta: Array) -> tuple[Array, Array]:
        """Return exp(L) and dL/dlog(beta) in float64."""
        xp = namespace(self.gaps)
        scaled = self.gaps * xp.asarray(beta, dtype=self.gaps.dtype)
        weights = xp.exp(-scaled)
        total = weights.sum(0)
        weights *= scaled
        slope = -weights.sum(0) / total
        return xp.asarray(total, dtype=xp.float64), xp.asarray(slope, dtype=xp.float64)


@dataclass(frozen=True)
class TabulatedCurve:
    """L by quintic Hermite interpolation of ``r(beta) = log sum_{k != top} exp(-beta (d_k - m))``.

    m is the margin, and ``L = softplus(r - beta m)``. r is smooth even where L itself decays to 0.
    Three nodes per octave, each with a derivative, give the confidence to about 1e-6, and to 4e-5
    in the worst known case. Second derivatives are chosen so that the third derivative is
    continuous, which is nearly as accurate as using their exact values. Beyond the first and last
    node, beta is clipped. ``pieces`` (n, nodes - 1, 6) holds the polynomial coefficients of each
    piece between two nodes.
    """

    pieces: Array
    margin: Array
    nodes: Nodes

    @classmethod
    def build(cls, data: CalibrationSet, scale: float, device: str | None) -> TabulatedCurve:
        """Return the curves of a set after multiplying its logits by ``scale``."""
        return cls.of(tabulate(data, scale, FINE), device)

    @classmethod
    def of(cls, table: CurveTable, device: str | None) -> TabulatedCurve:
        """Return the curves of a table, on a torch device if one is given."""
        pieces = _pieces(table.values, table.nodes)
        return cls(to_device(pieces, device), to_device(table.margin, device), table.nodes)

    def log_partition(self, beta: Array) -> tuple[Array, Array]:
        """Return L and dL/dlog(beta)."""
        odds, slope = self._odds_against(beta)
        xp = namespace(odds)
        value = odds.clip(min=0) + xp.log1p(xp.exp(-abs(odds)))
        return value, xp.exp(odds - value) * slope

    def confidence(self, beta: Array) -> tuple[Array, Array]:
        """Return exp(-L) and its derivative with respect to log beta."""
        odds, slope = self._odds_against(beta)
        against = namespace(odds).exp(odds)
        confidence = 1 / (1 + against)
        return confidence, -confidence * confidence * against * slope

    def _odds_against(self, beta: Array) -> tuple[Array, Array]:
        """Return the log odds against the prediction, r - beta m, and their derivative."""
        xp = namespace(self.pieces)
        n, pieces, _ = self.pieces.shape
        clipped = xp.zeros_like(self.margin) + beta
        clipped = clipped.clip(min=2.0**-OCTAVES_DOWN, max=2.0**self.nodes.up)
        place = (xp.log2(clipped) + OCTAVES_DOWN) * self.nodes.per_octave
        left = whole(place.clip(max=pieces - 1))
        rows = np.arange(n) if xp is np else xp.arange(n, device=left.device)
        coefficients = _columns(self.pieces.reshape(n * pieces, 6), rows * pieces + left)
        t = place - left
        rest, slope = coefficients[5], 0.0
        for coefficient in coefficients[4::-1] if xp is np else coefficients[:5].flip(0):
            slope = slope * t + rest
            rest = rest * t + coefficient
        fall = clipped * self.margin
        return rest - fall, slope * (self.nodes.per_octave / math.log(2)) - fall


def whole(array: Array) -> Array:
    """Return non-negative numbers as integers, rounded down."""
    return array.astype(np.int64) if namespace(array) is np else array.long()


def _columns(table: Array, rows: Array) -> Array:
    """Return the given rows of a table in float64, transposed to (columns, rows)."""
    if namespace(table) is np:
        return table.take(rows, axis=0).T.astype(np.float64, order="C")
    return table[rows].T.double().contiguous()


def _pieces(values: Floats, nodes: Nodes) -> Floats:
    """Return the coefficients (n, nodes - 1, 6) of the polynomials between nodes in float32."""
    step, n, count = math.log(2) / nodes.per_octave, values.shape[1], nodes.count
    unit = np.repeat([1.0, step, 0.5 * step**2], [count, count, 2])
    pieces = np.empty((n, count - 1, 6), dtype=np.float32)
    for rows in row_blocks(n, 6 * count):
        scaled = values[:, rows] * unit[:, np.newaxis]
        r, v, a = scaled[:count], scaled[count:-2], second_derivatives(count) @ scaled
        rise = r[1:] - r[:-1] - v[:-1] - a[:-1]
        turn, bend = v[1:] - v[:-1] - 2 * a[:-1], a[1:] - a[:-1]
        higher = (
            10 * rise - 4 * turn + bend,
            -15 * rise + 7 * turn - 2 * bend,
            6 * rise - 3 * turn + bend,
        )
        for power, coefficient in enumerate((r[:-1], v[:-1], a[:-1], *higher)):
            pieces[rows, :, power] = coefficient.T
    return pieces


@lru_cache(maxsize=4)
def second_derivatives(nodes: int) -> Floats:
    """Return the matrix (nodes, 2 nodes + 2) that maps a table column to ``a`` at every node.

    Let h be the distance between nodes, v = h r' and a = h^2 r'' / 2. The third derivative is
    continuous if
    ``-a[i-1] + 6 a[i] - a[i+1] = 10 (r[i+1] - 2 r[i] + r[i-1]) - 4 (v[i+1] - v[i-1])`` at the inner
    nodes; ``a`` is known at the first and last node.
    """
    left, right = np.eye(nodes), np.zeros((nodes, 2 * nodes + 2))
    inner = np.arange(1, nodes - 1)
    left[inner, inner], right[inner, inner] = 6, -20
    for side in (-1, 1):
        left[inner, inner + side] = -1
        right[inner, inner + side] = 10
        right[inner, nodes + inner + side] = -4 * side
    right[0, -2] = right[-1, -1] = 1
    return np.linalg.solve(left, right)
