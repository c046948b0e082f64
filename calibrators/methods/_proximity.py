"""Proximity of rows to the fit rows, from distances to their nearest neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.numerics.parallel import Floats, row_blocks

BLOCK_NUMBERS = 1 << 20


def unit_rows(features: Floats) -> Floats:
    """Return each row of features (n, d) divided by its Euclidean norm, in float32.

    Rows of zeros stay zero.

    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).round(1).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    out = np.empty(features.shape, np.float32)
    for rows in row_blocks(*features.shape):
        wide = np.asarray(features[rows], np.float64)
        largest = np.abs(wide).max(axis=1, keepdims=True)
        wide = wide / np.where(largest > 0, largest, 1)  # avoid overflow and underflow of squares
        norms = np.linalg.norm(wide, axis=1, keepdims=True)
        out[rows] = wide / np.maximum(norms, 1)  # 0 only in rows of zeros
    return out


def proximities(
    features: Floats, references: Floats, neighbours: int, own: NDArray[np.intp] | None = None
) -> Floats:
    """Return ``exp(-d)`` (n,), where d is the mean distance to the nearest ``references`` (m, d).

    The mean is over ``neighbours`` references. Distances are Euclidean, between unit vectors.
    ``own`` (n,) is the index of each row among the references, or -1 if it is not one of them; a
    row is not its own neighbour.

    >>> references = unit_rows(np.array([[1.0, 0.0], [0.0, 1.0]]))
    >>> proximities(np.array([[5.0, 0.0]]), references, 1).tolist()
    [1.0]
    """
    out = np.empty(len(features))
    step = max(1, BLOCK_NUMBERS // max(len(references), neighbours * references.shape[1]))
    for start in range(0, len(features), step):
        block = unit_rows(features[start : start + step])
        places = None if own is None else own[start : start + step]
        out[start : start + step] = _of_block(block, references, neighbours, places)
    return out


def _of_block(
    block: Floats, references: Floats, neighbours: int, own: NDArray[Any] | None
) -> Floats:
    likeness = block @ references.T
    if own is not None:
        known = np.flatnonzero(own >= 0)
        likeness[known, own[known]] = -np.inf
    count = min(neighbours, len(references) - (own is not None))
    nearest = np.argpartition(-likeness, count - 1, axis=1)[:, :count]
    distances = np.empty(nearest.shape)
    step = max(1, BLOCK_NUMBERS // block.size)
    for start in range(0, count, step):
        # in float32, small distances cannot be distinguished from zero by products
        near = references[nearest[:, start : start + step]].astype(np.float64)
        near -= block[:, np.newaxis]
        distances[:, start : start + step] = np.sqrt(np.einsum("ijk,ijk->ij", near, near))
    return np.asarray(np.exp(-np.sort(distances, axis=1).mean(axis=1)))
