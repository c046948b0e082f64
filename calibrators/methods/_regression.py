"""The penalised NLL of ``softmax(W x + b)`` as a convex function: value, gradient, curvature.

A point is the distance from the start W = I, b = 0; its last row is that of b. Blocks of rows are
worked on in the type of the features and summed in float64.
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
MOST_BLOCKS = 16


class Regression(ABC):
    """``mean NLL + sum(precision * point^2) / (2 n)`` of features (n, k) and labels (n,).

    ``masked`` (n, k), if there are any, are the classes that a row rules out. ``precision`` is
    used up.
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
    def moved(self, point: Array) -> Array:
        """The parameters at a point: the start W = I, b = 0 and the distance from it."""

    @property
    def _columns(self) -> int:
        """What a block's number of rows is reckoned from."""
        return self.k

    @abstractmethod
    def preconditioner(self) -> Callable[[Array], Array]:
        """The inverse of the part of the Hessian near its diagonal."""

    @abstractmethod
    def _scores(self, x: Floats, parameters: Floats, out: Floats) -> None:
        """``W x + b`` of each row."""

    @abstractmethod
    def _moments(self, x: Floats, by_scores: Floats) -> Floats:
        """Derivatives by the parameters, from those by the scores."""

    def look_at(self, point: Array) -> tuple[float, Array]:
        """The objective and its gradient; keeps the probabilities for what follows."""
        parameters = self.moved(point).astype(self.x.dtype, copy=False)
        losses = np.empty(self.n)

        def work(rows: slice, scratch: Scratch) -> Floats:
            x, p, labels = self.x[rows], self.p[rows], self.labels[rows]
            self._scores(x, parameters, p)
            if self.masked is not None:
                p[self.masked[rows]] = -np.inf
            p -= p.max(axis=1, keepdims=True)
            happened = np.arange(len(p)), labels
            losses[rows] = -p[happened]
            np.exp(p, out=p)
            totals = p.sum(axis=1, keepdims=True)
            p /= totals
            losses[rows] += np.log(totals[:, 0])
            likelihoods = p[happened]
            p[happened] -= 1
            moments = self._moments(x, p)
            p[happened] = likelihoods
            return moments

        gradient = self._sum(work)
        gradient /= self.n
        pull = self.penalty * point
        gradient += pull
        pull *= point
        return float(losses.mean() + pull.sum() / 2), gradient

    def curve(self, direction: Array) -> Array:
        """The Hessian at the last point times a direction."""
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
        """Go on in float64."""
        if self.x.dtype == np.float64:
            return False
        self.x = self.x.astype(np.float64)
        self.p = self.p.astype(np.float64)
        return True

    def _sum(self, work: Callable[[slice, Scratch], Floats]) -> Array:
        """The sum of ``work`` over blocks of rows."""

        def block(start: int, stop: int, scratch: Scratch) -> Floats:
            with np.errstate(under="ignore"):
                return work(slice(start, stop), scratch)

        first, *others = map_blocks(block, self.n, self._columns)
        total = first.astype(np.float64, copy=False)
        for part in others:
            total += part
        return total

    def _spread(self, rows: slice, scratch: Scratch) -> Floats:
        """``p (1 - p)`` of a block."""
        p = self.p[rows]
        spread = scratch.take("spread", p.shape, p.dtype)
        np.subtract(1, p, out=spread)
        spread *= p
        return spread


class Diagonal(Regression):
    """A diagonal W: points (2, k) of weights and biases."""

    def moved(self, point: Array) -> Array:
        return np.stack([point[0] + 1, point[1]])

    def _scores(self, x: Floats, parameters: Floats, out: Floats) -> None:
        np.multiply(x, parameters[0], out=out)
        out += parameters[1]

    def _moments(self, x: Floats, by_scores: Floats) -> Floats:
        return np.array([column_sums(by_scores, x), column_sums(by_scores)])

    def preconditioner(self) -> Callable[[Array], Array]:
        """The inverse of each class's own two by two block, and that of a bias shared by all.

        Such a bias changes no probability: it is curved by the penalty alone, which the blocks do
        not see.
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
    """A full W: points (k + 1, k), the transposed weights above the biases.

    Features (n, k + 1) with a last column of ones.
    """

    def moved(self, point: Array) -> Array:
        parameters = point.copy()
        np.einsum("ii->i", parameters[:-1])[...] += 1
        return parameters

    @property
    def _columns(self) -> int:
        # every block's sum is as large as W: they must not outgrow the features
        blocks = min(MOST_BLOCKS, max(1, self.n // self.k))
        return max(1, min(self.k, blocks * BLOCK_ELEMENTS // self.n))

    def _scores(self, x: Floats, parameters: Floats, out: Floats) -> None:
        np.matmul(x, parameters, out=out)

    def _moments(self, x: Floats, by_scores: Floats) -> Floats:
        return np.asarray(x.T @ by_scores)

    def preconditioner(self) -> Callable[[Array], Array]:
        """The inverse of the diagonal, once each class's features are centred on where it matters.

        Centred by their mean under the weights ``p (1 - p)`` of the class, they do not interact
        with its bias. Added is the inverse for what all classes share in a feature's weights: that
        changes no probability and is curved by the penalty alone, which the diagonal does not see.
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
    """Sums over the rows of ``values``, or of ``values * factors``, in float64.

    Added up in short pieces: a long sum in float32 loses what a gradient is made of.
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
