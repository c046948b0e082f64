"""smCE: the largest correlation of the residuals with a Lipschitz function of the confidence."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from calibrators.metrics._inputs import Floats, at_least
from calibrators.metrics._sorted import Ranked
from calibrators.metrics.catalogue import Metric
from calibrators.metrics.toplabel import Scores, as_top_label

__all__ = ["smce"]


CELLS = 1 << 14


def smce(
    probabilities: Scores, labels: npt.ArrayLike | None = None, *, cells: int | None = None
) -> float:
    """Return the exact smooth calibration error.

    `max over f of (1/n) sum_i (a_i - c_i) f(c_i)` for f with |f| <= 1 and
    |f(s) - f(t)| <= |s - t|. Convention: top label; f is bounded by 1.

    Tied confidences share one value of f, and only neighbours v_g, v_(g+1) constrain each other, so
    this is a linear program along a chain. Let S_g be the sum of the residuals up to v_g. The dual
    is

    `min over U of sum_g |U_g - U_(g-1)| + sum_g (v_(g+1) - v_g) |U_g - S_g|`,

    where U starts at 0 and ends at the sum of all residuals. This is a total-variation fit to S and
    is solved in O(n log n). Kakade & Foster 2008; Błasiok et al. 2023; Kolmogorov et al. 2016 (the
    solver).

    If there are more than ``cells`` distinct confidences, each is moved to the middle of its cell,
    one of ``cells`` equal parts of [0, 1]. This changes the value by at most half a cell times the
    mean of `|a_i - c_i|`, and a million rows take a hundredth of a second instead of more than a
    second.

    >>> round(smce([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 6)
    0.3
    """
    ranked = as_top_label(probabilities, labels).ranked
    ends, value = ranked.ties[1:], ranked.score[ranked.ties[:-1]]
    if cells is not None:
        at_least("cells", cells, 1)
        if value.size > cells:
            ends, value = _merged(ranked, cells)
    residual_sum = (ranked.hits_below - ranked.score_below)[ends]
    distance = np.diff(value)
    return _total_variation_fit(residual_sum.tolist(), distance.tolist()) / ranked.score.size


SMCE = Metric(
    name="smce",
    title="smooth calibration error",
    meaning="The largest mean of (correctness minus confidence) times a function of the "
    "confidence, over all functions between -1 and 1 with slopes of at most 1.",
    function=smce,
    measure=lambda scored: smce(scored.rows.top, cells=CELLS),
    position=55,
)


def _merged(ranked: Ranked, cells: int) -> tuple[npt.NDArray[np.intp], Floats]:
    """Return the position after the last row of each non-empty cell, and the cells' midpoints."""
    edges = np.searchsorted(ranked.score, np.arange(1, cells) / cells)
    places = np.concatenate([[0], edges, [ranked.score.size]])
    filled = np.flatnonzero(np.diff(places))
    return places[filled + 1], (filled + 0.5) / cells


def _total_variation_fit(target: list[float], weight: list[float]) -> float:
    """Return the lowest cost of a path U from 0 to ``target[-1]``, pulled towards the targets.

    ``weight[g]`` pulls U_g towards ``target[g]``. The cost so far is a convex function of the
    current U with slopes from -1 to 1: on the far left it is the line `intercept - U`, followed by
    kinks that add 2 to its slope in total. A pull adds one kink; moving at cost 1 limits the slopes
    to [-1, 1], which removes kinks on both sides. Every kink is added and removed once.
    """
    place = [0.0, *target[:-1]]
    size = [2.0, *(2 * pull for pull in weight)]
    leftmost, rightmost = [(0.0, 0)], [(0.0, 0)]
    intercept = 0.0
    for kink, pull in enumerate(weight, start=1):
        heapq.heappush(leftmost, (place[kink], kink))
        heapq.heappush(rightmost, (-place[kink], kink))
        intercept += pull * place[kink] - _cut(leftmost, size, pull)
        _cut(rightmost, size, pull)
    end = target[-1]
    rise = (left * (end - at) for at, left in zip(place, size, strict=True) if at < end)
    return intercept - end + sum(rise)


def _cut(outermost: list[tuple[float, int]], size: list[float], amount: float) -> float:
    """Remove `amount` from the outermost kinks; return the sum of removed sizes times positions."""
    moment = 0.0
    while amount > 0 and outermost:
        place, kink = outermost[0]
        taken = min(size[kink], amount)
        moment += taken * place
        size[kink] -= taken
        amount -= taken
        if size[kink] <= 0:
            heapq.heappop(outermost)
    return moment
