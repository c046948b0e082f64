"""The penalised NLL of ``softmax(W x + b)`` as a convex function: value, gradient, curvature.

A point is the parameters minus the start W = I, b = 0; its last row belongs to b. Blocks of rows
are processed in the dtype of the features, and their results are summed in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from calibrators.arrays import Labels
from calibrators.methods._newton import Array
from calibrators.numerics.parallel import BLOCK_ELEMENTS, Floats, Scratch, map_blocks

PIECE = 128
MAX_BLOCKS = 16


class Regression(ABC):
    """``mean NLL + sum(precision * point^2) / (2 n)`` for features (n, k) and labels (n,).

    ``masked`` (n, k), if not None, marks the classes whose logits are -inf in a row. ``precision``
    is overwritten.
    """

    def __init__(
        self, x: Floats, labels: Labels, masked: NDArray[np.bool_] | None, precision: Array
    ) -> None:
        self.x, self.labels, self.masked = x, labels, masked
        self.n: int = len(x)
        self.k: int = precision.shape[1]
        self.shape = precision.shape
        precision /= self.n  # in place: it may be as large as W
        self.penalty = precision
        self.p = np.empty((self.n, self.k), dtype=x.dtype)

    @abstractmethod
    def parameters_at(self, point: Array) -> Array:
        """Return the parameters at a point: the start W = I, b = 0 plus the point."""

    @property
    def _columns(self) -> int:
        """Number of columns that determines the number of rows per block."""
        return self.k

    @abstractmethod
    def preconditioner(self) -> Callable[[Array], Array]:
        """Return a function that applies the inverse of the Hessian's diagonal (or its blocks)."""

    @abstractmethod
    def _scores(self, x: Floats, parameters: Floats, out: Floats) -> None:
        """Write ``W x + b`` of each row to ``out``."""

    @abstractmethod
    def _moments(self, x: Floats, by_scores: Floats) -> Floats:
        """Return the parameter derivatives, given the score derivatives."""

    def evaluate(self, point: Array) -> tuple[float, Array]:
        """Return the objective and its gradient; store the probabilities for the other methods."""
        parameters = self.parameters_at(point).astype(self.x.dtype, copy=False)
        losses = np.empty(self.n)

        def work(rows: slice, scratch: Scratch) -> Floats:
            x, p, labels = self.x[rows], self.p[rows], self.labels[rows]
            self._scores(x, parameters, p)
            if self.masked is not None:
                p[self.masked[rows]] = -np.inf
            p -= p.max(axis=1, keepdims=True)
            at_labels = np.arange(len(p)), labels
            losses[rows] = -p[at_labels]
            np.exp(p, out=p)
            totals = p.sum(axis=1, keepdims=True)
            p /= totals
            losses[rows] += np.log(totals[:, 0])
            likelihoods = p[at_labels]
            p[at_labels] -= 1
            moments = self._moments(x, p)
            p[at_labels] = likelihoods
            return moments

        gradient = self._sum(work)
        gradient /= self.n
        pull = self.penalty * point
        gradient += pull
        pull *= point
        return float(losses.mean() + pull.sum() / 2), gradient

    def curve(self, direction: Array) -> Array:
        """Return the product of the Hessian at the last evaluated point and a direction."""
        parameters = direction.astype(self.x.dtype, copy=False)

        def work(rows: slice, scratch: Scratch) -> Floats:
            x, p = self.x[rows], self.p[rows]
            change = scratch.take("change", p.shape, p.dtype)
            self._scores(x, parameters, change)
            change -= np.vecdot(p, change)[:, np.newaxis]
            change *= p
            return self._moments(x, change)

        curved = self._sum(work)
        curved /= self.n
        curved += self.penalty * direction
        return curved

    def refine(self) -> bool:
        """Switch to float64; return False if that is already the dtype."""
        if self.x.dtype == np.float64:
            return False
        self.x = self.x.astype(np.float64)
        self.p = self.p.astype(np.float64)
        return True

    def _sum(self, work: Callable[[slice, Scratch], Floats]) -> Array:
        """Return the sum of ``work`` over blocks of rows."""

        def block(start: int, stop: int, scratch: Scratch) -> Floats:
            with np.errstate(under="ignore"):
                return work(slice(start, stop), scratch)

        first, *others = map_blocks(block, self.n, self._columns)
        total = first.astype(np.float64, copy=False)
        for part in others:
            total += part
        return total

    def _spread(self, rows: slice, scratch: Scratch) -> Floats:
        """Return ``p (1 - p)`` for a block of rows."""
        p = self.p[rows]
        spread = scratch.take("spread", p.shape, p.dtype)
        np.subtract(1, p, out=spread)
        spread *= p
        return spread


class Diagonal(Regression):
    """A diagonal W; points (2, k) hold the weights and the biases."""

    def parameters_at(self, point: Array) -> Array:
        """Return the weights and biases at a point, (2, k)."""
        return np.stack([point[0] + 1, point[1]])

    def _scores(self, x: Floats, parameters: Floats, out: Floats) -> None:
        np.multiply(x, parameters[0], out=out)
        out += parameters[1]

    def _moments(self, x: Floats, by_scores: Floats) -> Floats:
        return np.array([column_sums(by_scores, x), column_sums(by_scores)])

    def preconditioner(self) -> Callable[[Array], Array]:
        """Return a function that applies the inverse of each class's 2 x 2 block.

        The inverse for a bias shared by all classes is added. A shared bias changes no probability,
        so its curvature comes from the penalty alone, and the blocks do not capture it.
        """

        def work(rows: slice, scratch: Scratch) -> Floats:
            spread = self._spread(rows, scratch)
            zeroth = column_sums(spread)
            spread *= self.x[rows]
            return np.array([column_sums(spread, self.x[rows]), column_sums(spread), zeroth])

        second, first, zeroth = self._sum(work) / self.n
        second, zeroth = second + self.penalty[0], zeroth + self.penalty[1]
        determinant = second * zeroth - first * first

        shared = self.penalty[1].sum()

        def apply(v: Array) -> Array:
            weights, bias = zeroth * v[0] - first * v[1], second * v[1] - first * v[0]
            return np.array([weights / determinant, bias / determinant + v[1].sum() / shared])

        return apply


class Full(Regression):
    """A full W; points (k + 1, k) hold the transposed weights above the biases.

    The features have shape (n, k + 1); their last column is 1.
    """

    def parameters_at(self, point: Array) -> Array:
        """Return the parameters (k + 1, k) at a point: the transposed weights above the biases."""
        parameters = point.copy()
        np.einsum("ii->i", parameters[:-1])[...] += 1
        return parameters

    @property
    def _columns(self) -> int:
        # the sum of each block is as large as W; all sums together must not exceed the features
        blocks = min(MAX_BLOCKS, max(1, self.n // self.k))
        return max(1, min(self.k, blocks * BLOCK_ELEMENTS // self.n))

    def _scores(self, x: Floats, parameters: Floats, out: Floats) -> None:
        np.matmul(x, parameters, out=out)

    def _moments(self, x: Floats, by_scores: Floats) -> Floats:
        return np.asarray(x.T @ by_scores)

    def preconditioner(self) -> Callable[[Array], Array]:
        """Return a function that applies the inverse of the diagonal for centred features.

        Features are centred by their mean under the weights ``p (1 - p)`` of a class, so that they
        do not interact with its bias. The inverse for shifting a feature's weights by the same
        amount in all classes is added. Such a shift changes no probability, so its curvature comes
        from the penalty alone, and the diagonal does not capture it.
        """

        def first_moments(rows: slice, scratch: Scratch) -> Floats:
            return self._moments(self.x[rows], self._spread(rows, scratch))

        def second_moments(rows: slice, scratch: Scratch) -> Floats:
            x = self.x[rows]
            squares = np.multiply(x, x, out=scratch.take("squares", x.shape, x.dtype))
            return self._moments(squares, self._spread(rows, scratch))

        first, second = self._sum(first_moments), self._sum(second_moments)
        first /= self.n
        second /= self.n
        bias = first[-1] + self.penalty[-1]
        centres, weights = first[:-1], second[:-1]
        product = centres * centres
        product /= bias
        weights -= product
        weights += self.penalty[:-1]
        centres /= bias
        shared = self.penalty.sum(axis=1, keepdims=True)

        def apply(v: Array) -> Array:
            out: Array = np.empty(self.shape)
            centred = out[:-1]
            np.multiply(centres, v[-1], out=centred)
            np.subtract(v[:-1], centred, out=centred)
            centred /= weights
            out[-1] = v[-1] / bias - np.einsum("ij,ij->j", centres, centred)
            out += v.sum(axis=1, keepdims=True) / shared
            return out

        return apply


def column_sums(values: Floats, factors: Floats | None = None) -> Floats:
    """Return the column sums of ``values``, or of ``values * factors``, in float64.

    Rows are summed in short pieces, as a long sum in float32 is too imprecise for gradients.
    """
    rows, k = values.shape
    whole = rows - rows % PIECE
    operands = [values] if factors is None else [values, factors]
    pieces = np.einsum(
        "cij->cj" if factors is None else "cij,cij->cj",
        *(one[:whole].reshape(-1, PIECE, k) for one in operands),
    )
    rest = np.einsum("ij->j" if factors is None else "ij,ij->j", *(one[whole:] for one in operands))
    return np.asarray(pieces.sum(axis=0, dtype=np.float64) + rest)
