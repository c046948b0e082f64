"""Recommend one of several fits that were judged on the same rows, and give the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from calibrators.comparison.compare import nll_change
from calibrators.comparison.judged_rows import JudgedRows
from calibrators.errors import DataError
from calibrators.registry import all_maps
from calibrators.report.report import Report
from calibrators.report.verdict import NEEDS_FORCE, RANKING

LOSSES = {"accuracy": "loses accuracy", RANKING: "loses ranking"}


class Candidate(NamedTuple):
    """A candidate fit, with the method of its map and the rows that it was judged on."""

    name: str
    method: str
    report: Report
    rows: JudgedRows | None = None


class Recommendation(NamedTuple):
    """Position of the recommended candidate, or None, and the reason."""

    place: int | None
    reason: str


def recommend(candidates: Sequence[Candidate]) -> Recommendation:
    """Return the admissible fit with the lowest NLL, or a simpler one that ties with it.

    Fits that were judged worse, at chance or on too few rows, or that lose accuracy or ranking, are
    left out. Two fits tie if the 95 % interval of the difference between their NLLs, on the rows
    common to both, contains 0. In that case, the method with the lower ``complexity`` is
    recommended. Fits whose judged rows are unknown never tie.
    """
    left_out = {
        place: why for place, one in enumerate(candidates) if (why := _objection(one.report))
    }
    able = [place for place in range(len(candidates)) if place not in left_out]
    others = ", ".join(f"{candidates[place].name} {why}" for place, why in left_out.items())
    if not able:
        return Recommendation(None, f"none can be recommended: {others}")
    best = min(able, key=lambda place: _nll(candidates[place]))
    tied = [place for place in able if place == best or _ties(candidates[best], candidates[place])]
    chosen = min(tied, key=lambda place: (_complexity(candidates[place]), place))
    reason = _reason(candidates[chosen], candidates[best], len(able))
    return Recommendation(chosen, f"{reason}; left out: {others}" if others else reason)


def _objection(report: Report) -> str:
    """Return the reason for leaving out a fit; empty if the fit is admissible."""
    if report.verdict is None:
        return "has no verdict"
    if report.verdict in NEEDS_FORCE:
        return f"was judged {report.verdict.value.replace('_', ' ')}"
    return " and ".join(phrase for name, phrase in LOSSES.items() if name in report.lost)


def _nll(candidate: Candidate) -> float:
    nll = candidate.report.metrics["nll"]
    return float("inf") if nll is None else nll


def _ties(best: Candidate, other: Candidate) -> bool:
    if best.rows is None or other.rows is None:
        return False
    try:
        return nll_change(best.rows, other.rows).low <= 0
    except DataError:  # they have no rows in common
        return False


def _complexity(candidate: Candidate) -> float:
    known = all_maps().get(candidate.method)
    return math.inf if known is None else known.complexity


def _reason(chosen: Candidate, best: Candidate, able: int) -> str:
    nll = f"{_nll(chosen):.4f}"
    if chosen is not best:
        return (
            f"{chosen.name} is simpler, and its NLL ({nll}) is not measurably higher than "
            f"the lowest, that of {best.name} ({_nll(best):.4f})"
        )
    others = f" of the {able} that preserve accuracy and ranking" if able > 1 else ""
    return f"{chosen.name} has the lowest NLL ({nll}){others}"
