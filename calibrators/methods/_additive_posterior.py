"""The posterior of an additive logistic model, averaged over the smoothness of its terms.

The model is ``logit P(hit) = offset + sum_j f_j(term_j)``, where each function ``f_j`` is linear
between NODES nodes. The heights of a function at its nodes have a Gaussian prior with precision
``e^c D'D + e^s I / NODES``, where D takes second differences: ``c`` controls the smoothness of the
function, and ``s`` its size. For each (c, s), Newton's method finds the mode and Laplace's
approximation gives the evidence. The result is the mean over a grid of (c, s) and over the models
with the first 1, 2, ... terms, weighted by the evidence and a weak prior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators.numerics.parallel import Floats

NODES = 14
# nodes lie halfway between equally spaced points and quantiles
QUANTILE_SHARE = 0.5
LOG_PRECISIONS = (-2.0, 1.0, 4.0, 7.0, 10.0)
PRIOR_MEAN, PRIOR_DEVIATION = 4.0, 2.0
# numbers of cells along the first, second and third term, if many rows are gathered into cells
CELLS = (128, 16, 2)
MAX_ITERATIONS = 50
LARGEST_STEP = 2.0
MIN_DECREMENT = 1e-3
MIN_WEIGHT = 1e-5
# log odds indistinguishable from certainty
FAR = 20.0
ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class DesignRows:
    """Design matrix, offsets and outcomes of n rows or n cells of rows.

    ``nodes`` (t, NODES) holds the nodes of each term. ``design`` (n, t NODES) is the matrix that
    multiplies the flattened heights. Offsets, hits and row counts have shape (n,). The design and
    the offset of a cell are the means over its rows.
    """

    nodes: Floats
    design: Floats
    offset: Floats
    hits: Floats
    count: Floats

    @classmethod
    def gathered(cls, terms: Floats, offset: Floats, hits: Floats) -> DesignRows:
        """Build the design of rows with terms (t, n); if n is large, gather the rows into cells."""
        nodes = np.stack([_nodes(term) for term in terms])
        if len(offset) <= np.prod(CELLS):
            return cls(nodes, basis(terms, nodes), offset, hits, np.ones(len(offset)))
        cell = _cells(terms)
        size = np.bincount(cell).astype(np.float64)
        design = np.zeros((len(size), nodes.size))
        for start in range(0, len(offset), ROWS_AT_ONCE):
            block = slice(start, start + ROWS_AT_ONCE)
            rows = basis(terms[:, block], nodes)
            order = np.argsort(cell[block], kind="stable")
            own, first = np.unique(cell[block][order], return_index=True)
            design[own] += np.add.reduceat(rows[order], first, axis=0)
        means = np.bincount(cell, offset) / size
        return cls(nodes, design / size[:, np.newaxis], means, np.bincount(cell, hits), size)


class Posterior(NamedTuple):
    """Nodes and mean heights (t, NODES), and the covariance of the flattened heights.

    ``shares`` are the weights of the models with the first 1, 2, ... terms. ``smoothness`` and
    ``shrinkage`` are the mean log precisions. ``evidence`` is the combined log evidence of all
    models.
    """

    nodes: Floats
    heights: Floats
    covariance: Floats
    shares: tuple[float, ...]
    smoothness: float
    shrinkage: float
    evidence: float


class _Model(NamedTuple):
    """The fit for one choice of terms and precisions: mode, Hessian factor and log evidence."""

    terms: int
    smoothness: float
    shrinkage: float
    mode: Floats
    factor: Floats
    evidence: float


def fit_posterior(rows: DesignRows, progress: Callable[[int, int], None]) -> Posterior:
    """Return the posterior given ``rows``; call ``progress(done, total)`` after each model."""
    nodes, size = rows.nodes, rows.nodes.size
    total = len(nodes) * len(LOG_PRECISIONS) ** 2
    models = []
    for model in _models(rows):
        models.append(model)
        progress(len(models), total)
    evidence = np.array([model.evidence for model in models])
    weights = np.exp(evidence - evidence.max())
    log_evidence = float(evidence.max() + np.log(weights.sum()))
    weights /= weights.sum()
    used = [(w, one) for w, one in zip(weights, models, strict=True) if w >= MIN_WEIGHT]
    mean = sum((w * _padded(one.mode, size) for w, one in used), np.zeros(size))
    covariance = np.zeros((size, size))
    for weight, one in used:
        inverse = np.linalg.inv(one.factor)
        inner = len(one.mode)
        covariance[:inner, :inner] += weight * inverse.T @ inverse
        away = _padded(one.mode, size) - mean
        covariance += weight * np.outer(away, away)
    numbers = np.array([one.terms for one in models])
    return Posterior(
        nodes,
        mean.reshape(nodes.shape),
        covariance,
        tuple(float(weights[numbers == n].sum()) for n in range(1, len(nodes) + 1)),
        float(weights @ [one.smoothness for one in models]),
        float(weights @ [one.shrinkage for one in models]),
        log_evidence,
    )


def basis(terms: Floats, nodes: Floats) -> Floats:
    """Return the design matrix (n, t p), which maps flattened heights (t, p) to sums of functions.

    A function is constant beyond its first and last node.

    >>> basis(np.array([[0.5, 9.0]]), np.array([[0.0, 1.0, 2.0]])).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    out = np.zeros((terms.shape[1], nodes.size))
    places, weights = node_weights(terms, nodes)
    np.put_along_axis(out, places.T, weights.T, axis=1)
    return out


def node_weights(terms: Floats, nodes: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the columns and values of the non-zero weights of ``basis``, each (2 t, n).

    >>> node_weights(np.array([[0.5, 9.0]]), np.array([[0.0, 1.0, 2.0]]))[0].tolist()
    [[0, 1], [1, 2]]
    """
    count, length = nodes.shape
    places = np.empty((2 * count, terms.shape[1]), dtype=np.intp)
    weights = np.empty(places.shape)
    for j, (term, own) in enumerate(zip(terms, nodes, strict=True)):
        inside = np.clip(term, own[0], own[-1])
        left = np.clip(np.searchsorted(own, inside, side="right") - 1, 0, length - 2)
        share = (inside - own[left]) / (own[left + 1] - own[left])
        places[2 * j], places[2 * j + 1] = j * length + left, j * length + left + 1
        weights[2 * j], weights[2 * j + 1] = 1 - share, share
    return places, weights


def variances(terms: Floats, nodes: Floats, covariance: Floats) -> Floats:
    """Return the variance (n,) of the sum of all functions, given the covariance of the heights."""
    places, weights = node_weights(terms, nodes)
    out = np.zeros(terms.shape[1])
    for row, weight in zip(places, weights, strict=True):
        for column, other in zip(places, weights, strict=True):
            out += weight * other * covariance[row, column]
    return out


def _models(rows: DesignRows) -> Iterator[_Model]:
    """Yield the models fitted on the grid, from stiff to flexible, each with a warm start."""
    for terms in range(1, len(rows.nodes) + 1):
        size = terms * NODES
        design = np.ascontiguousarray(rows.design[:, :size])
        bends = np.kron(np.eye(terms), np.diff(np.eye(NODES), 2, axis=0))
        rough = bends.T @ bends
        mode = np.zeros(size)
        for place, smoothness in enumerate(reversed(LOG_PRECISIONS)):
            turn = 1 if place % 2 else -1
            for shrinkage in LOG_PRECISIONS[::turn]:
                precision = np.exp(smoothness) * rough
                precision += np.eye(size) * (np.exp(shrinkage) / NODES)
                mode, factor, fitness = _mode(rows, design, precision, mode)
                prior = np.array([smoothness, shrinkage]) - PRIOR_MEAN
                evidence = (
                    fitness
                    + 0.5 * float(np.linalg.slogdet(precision)[1])
                    - float(np.log(np.diag(factor)).sum())
                    - 0.5 * float(prior @ prior) / PRIOR_DEVIATION**2
                )
                yield _Model(terms, smoothness, shrinkage, mode, factor, evidence)


def _mode(
    rows: DesignRows, design: Floats, precision: Floats, start: Floats
) -> tuple[Floats, Floats, float]:
    """Return the mode, the Cholesky factor of the Hessian there, and the log joint density.

    Newton steps are shortened so that no log odds change by more than 2. The search ends after the
    first step whose squared Newton decrement is below MIN_DECREMENT; the returned factor precedes
    that step.
    """
    mode = start
    for _ in range(MAX_ITERATIONS):
        log_odds = rows.offset + design @ mode
        share = np.exp(-np.logaddexp(0, -log_odds))
        slope = design.T @ (rows.count * share - rows.hits) + precision @ mode
        curvature = rows.count * share * (1 - share)
        factor = np.linalg.cholesky((design * curvature[:, np.newaxis]).T @ design + precision)
        step = np.linalg.solve(factor.T, np.linalg.solve(factor, slope))
        moved = float(np.abs(design @ step).max())
        mode = mode - step * min(1.0, LARGEST_STEP / max(moved, 1e-300))
        if slope @ step < MIN_DECREMENT:
            break
    log_odds = rows.offset + design @ mode
    likelihood = rows.hits @ log_odds - rows.count @ np.logaddexp(0, log_odds)
    return mode, factor, float(likelihood - 0.5 * mode @ precision @ mode)


def _nodes(term: Floats) -> Floats:
    """Return nodes from the smallest to the largest value, denser where there are more rows.

    Values beyond FAR are clipped, so they share the first or the last node.
    """
    at = np.linspace(0, 1, NODES)
    term = np.clip(term, -FAR, FAR)
    low, high = term.min(), term.max()
    if low == high:
        low, high = low - 1.0, high + 1.0
    even = low + (high - low) * at
    return np.asarray(QUANTILE_SHARE * np.quantile(term, at) + (1 - QUANTILE_SHARE) * even)


def _cells(terms: Floats) -> Floats:
    """Return the cell of each row; each term splits all cells so far into equal parts."""
    cell = np.zeros(terms.shape[1], dtype=np.intp)
    for term, parts in zip(terms, CELLS, strict=False):
        order = np.lexsort((term, cell))
        sizes = np.bincount(cell)
        starts = np.cumsum(sizes) - sizes
        own = cell[order]
        place = (np.arange(len(order)) - starts[own]) * parts // sizes[own]
        cell[order] = own * parts + place
        cell = np.unique(cell, return_inverse=True)[1]
    return cell


def _padded(values: Floats, size: int) -> Floats:
    return np.pad(values, (0, size - len(values)))
