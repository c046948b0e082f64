"""Equal-mass and equal-width bins of scores, with the number of hits in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrators.methods._ties import tie_starts
from calibrators.numerics.parallel import Floats

Binning = Literal["mass", "width"]
Reach = Callable[[Floats], Floats]


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins: edges (b - 1,), counts of rows and hits (b,), and midpoints (b,) for empty bins."""

    edges: Floats
    rows: Floats
    hits: Floats
    middles: Floats

    def shares(self, more_hits: float, more_rows: float) -> Floats:
        """Return each bin's share of hits after adding the given counts.

        The share of an empty bin is its midpoint.
        """
        shares = self.middles.copy()
        whole = self.rows + more_rows
        np.divide(self.hits + more_hits, whole, out=shares, where=self.rows > 0)
        return shares

    def squared_error(self, shares: Floats) -> float:
        """Return the mean squared difference between share and correctness over all rows."""
        errors = self.hits * (1 - shares) ** 2 + (self.rows - self.hits) * shares**2
        return float(errors.sum() / max(1.0, self.rows.sum()))


def even_edges(bins: int) -> Floats:
    """Return the inner edges of ``bins`` equal-width bins over [0, 1]."""
    return np.arange(1, bins) / bins


def bins_of(scores: Floats, right: Floats, even: Floats, binning: Binning, reach: Reach) -> Bins:
    """Return bins of scores on any scale; ``right`` is 1.0 for hits and 0.0 for other rows.

    ``even`` holds the equal-width edges on that scale and determines the number of bins. ``reach``
    returns, for each score, the highest score that is treated as equal to it.

    >>> from calibrators.methods._ties import log_odds_reach
    >>> odds, right = np.array([-1.0, 0.0, 0.0, 3.0]), np.array([0.0, 1.0, 0.0, 1.0])
    >>> found = bins_of(odds, right, np.zeros(1), "mass", log_odds_reach)
    >>> found.edges.tolist(), found.rows.tolist(), found.hits.tolist()
    ([1.5], [3.0, 1.0], [1.0, 1.0])
    """
    ordered = np.sort(scores)
    by_mass = binning == "mass" and scores.size > 0
    edges = (_mass_edges if by_mass else _even_edges)(ordered, even, reach)
    index = np.searchsorted(edges, scores)
    rows, hits = (np.bincount(index, by, edges.size + 1) for by in (None, right))
    middles = (np.arange(edges.size + 1) + 0.5) / (edges.size + 1)
    return Bins(edges, rows.astype(np.float64), hits, middles)


def _even_edges(ordered: Floats, even: Floats, reach: Reach) -> Floats:
    """Return the ``even`` edges, each moved just above the values that equal it up to rounding."""
    above = reach(even)
    first, last = np.searchsorted(ordered, 2 * even - above), np.searchsorted(ordered, above)
    return np.asarray(np.where(last > first, above, even))


def _mass_edges(ordered: Floats, even: Floats, reach: Reach) -> Floats:
    """Return the edges of equal-mass bins of ascending values; ties stay together."""
    return edges_at(ordered, mass_cuts(even.size + 1, tie_ends(ordered, reach)))


def tie_ends(ordered: Floats, reach: Reach) -> NDArray[np.intp]:
    """Return the end of each run of equal values in ``ordered``, which is ascending."""
    return np.append(tie_starts(ordered, reach(ordered))[1:], ordered.size)


def mass_cuts(bins: int, ends: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the number of values below each inner edge of ``bins`` equal-mass bins.

    ``ends`` are the end positions of runs of equal values. Ties are never split, so there may be
    fewer than ``bins - 1`` edges.

    >>> mass_cuts(3, np.array([1, 2, 5, 6])).tolist()
    [2, 5]
    """
    size = ends[-1]
    cuts = np.unique(np.rint(np.arange(1, bins) * size / bins).astype(np.intp))
    cuts = ends[np.searchsorted(ends, cuts[cuts > 0])]
    return np.unique(cuts[cuts < size])


def edges_at(ordered: Floats, cuts: NDArray[np.intp]) -> Floats:
    """Return the edge halfway between the two ascending values on either side of each cut."""
    below, above = ordered[cuts - 1], ordered[cuts]
    middle = below + 0.5 * (above - below)
    return np.asarray(np.where(middle < above, middle, below))
