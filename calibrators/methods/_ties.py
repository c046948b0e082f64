"""Find ties: scores that differ only by rounding, due to summation order or float type.

The last digits of a row's score depend on the order of the classes and on the float type of the
logits. If logits are rounded or quantised, the scores of many rows differ only in these digits. A
cut between such scores would separate equal rows, and another runtime would not reproduce it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrators.numerics.parallel import Floats

# for log odds; the scores of float32 logits are accurate to about 1e-7 times the largest gap
NEAR = 1e-5
# for probabilities near 1, whose last digit is worth 1e-16
NEAR_ONE = 1e-10


def log_odds_reach(log_odds: Floats) -> Floats:
    """Return, for each value, the highest log odds treated as equal to it."""
    return np.asarray(log_odds + NEAR * (1 + np.abs(log_odds) / 20))


def share_reach(shares: Floats) -> Floats:
    """Return, for each value, the highest probability within about NEAR of it in log odds.

    >>> share_reach(np.array([0.0, 0.5, 1.0])).round(11).tolist()
    [0.0, 0.50000250005, 1.0000000001]
    """
    return np.asarray(shares * (1 + NEAR * np.maximum(1 - shares, 0) + NEAR_ONE))


def tie_starts(ordered: Floats, reach: Floats) -> NDArray[np.intp]:
    """Return the positions where runs of equal scores begin among ascending scores.

    ``reach`` is the highest score that is treated as equal to each score. A run ends at the reach
    of its first score: a long chain of close scores is split into runs no wider than one reach, and
    the first score of a run is always beyond the reach of the previous run's first score.

    >>> scores = np.array([1.0, 1.2, 1.4, 1.6, 3.0])
    >>> tie_starts(scores, scores + 0.5).tolist()
    [0, 3, 4]
    """
    if not ordered.size:
        return np.zeros(0, dtype=np.intp)
    chains = np.concatenate([[0], np.flatnonzero(ordered[1:] > reach[:-1]) + 1])
    ends = np.append(chains[1:], ordered.size)
    long = np.flatnonzero(ordered[ends - 1] > reach[chains])
    if not long.size:
        return chains
    following = np.searchsorted(ordered, reach, side="right").tolist()
    inner: list[int] = []
    for start, end in zip(chains[long].tolist(), ends[long].tolist(), strict=True):
        place = following[start]
        while place < end:
            inner.append(place)
            place = following[place]
    return np.sort(np.concatenate([chains, np.array(inner, dtype=np.intp)]))
