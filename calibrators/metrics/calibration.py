"""Binned top-label calibration errors. Each takes (probabilities, labels) or a TopLabel."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from calibrators.errors import ParameterError
from calibrators.metrics._inputs import at_least
from calibrators.metrics.bins import debiased_squared
from calibrators.metrics.catalogue import Metric
from calibrators.metrics.estimates import SHARE
from calibrators.metrics.interval_rules import Resampled
from calibrators.metrics.toplabel import Scores, as_top_label, width_table

__all__ = ["ada_ece", "debiased_squared_error", "ece", "ece_debiased", "ece_sweep", "mce"]


def ece(probabilities: Scores, labels: npt.ArrayLike | None = None, *, bins: int = 15) -> float:
    """Return the expected calibration error with equal-width bins.

    `sum_b (n_b / n) |acc_b - conf_b|` over the bins (i/M, (i + 1)/M] of the top-label
    confidence. Convention: confidence 0 falls in the first bin and 1 in the last; edges and
    sums are float64. Naeini et al. 2015; Guo et al. 2017.

    >>> round(ece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 6)
    0.3
    """
    at_least("bins", bins, 1)
    return width_table(probabilities, labels, bins).ece()


ECE = Metric(
    name="ece",
    title="ECE, equal-width bins",
    meaning="How far apart confidence and accuracy are: the mean absolute gap over equal-width "
    "bins of the confidence, each weighted by its number of rows.",
    function=ece,
    measure=lambda scored: scored.equal_width.ece(),
    position=10,
    interval=Resampled(lambda drawn: np.abs(drawn.width_gap).sum(axis=1) / drawn.rows, SHARE),
)


def ada_ece(probabilities: Scores, labels: npt.ArrayLike | None = None, *, bins: int = 15) -> float:
    """Return the expected calibration error with equal-mass bins (AdaECE, ECE-EM).

    `sum_b (n_b / n) |acc_b - conf_b|` with edges at the sorted positions floor(j n / M).
    Convention: equal confidences at an edge are shared in proportion, so that the value does not
    depend on the order of the rows. Nguyen & O'Connor 2015; Mukhoti et al. 2020.

    >>> ada_ece([[0.9, 0.1], [0.6, 0.4]], [0, 1], bins=2)
    0.35
    """
    at_least("bins", bins, 1)
    return as_top_label(probabilities, labels).equal_mass(bins).ece()


ADA_ECE = Metric(
    name="ada_ece",
    title="ECE, equal-mass bins",
    meaning="The same gap over bins with equal numbers of rows, so that no bin is nearly empty.",
    function=ada_ece,
    measure=lambda scored: scored.equal_mass.ece(),
    position=20,
)


def mce(probabilities: Scores, labels: npt.ArrayLike | None = None, *, bins: int = 15) -> float:
    """Return the maximum calibration error: the largest `|acc_b - conf_b|` over equal-width bins.

    Convention: empty bins are left out, but small bins are not. Naeini et al. 2015.

    >>> mce([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    0.6
    """
    at_least("bins", bins, 1)
    return width_table(probabilities, labels, bins).mce()


MCE = Metric(
    name="mce",
    title="largest gap of any bin (MCE)",
    meaning="The largest gap between accuracy and mean confidence in any equal-width bin; a bin "
    "with few rows can make it large by chance.",
    function=mce,
    measure=lambda scored: scored.equal_width.mce(),
    position=70,
)


def debiased_squared_error(
    probabilities: Scores, labels: npt.ArrayLike | None = None, *, bins: int = 15
) -> float:
    """Return the squared calibration error minus the part due to sampling noise.

    `sum_b (n_b / n) ((acc_b - conf_b)^2 - acc_b (1 - acc_b) / (n_b - 1))` over equal-mass bins.
    For a calibrated model, its expectation is 0 for any n, so it can be negative. Convention: n_b
    is the effective count if ties are shared between bins; bins with n_b <= 1 contribute 0.
    Bröcker 2012; Kumar et al. 2019.

    >>> round(debiased_squared_error([[0.8, 0.2]] * 5, [0, 0, 0, 0, 1], bins=1), 6)
    -0.04
    """
    at_least("bins", bins, 1)
    return as_top_label(probabilities, labels).equal_mass(bins).debiased_squared()


DEBIASED_SQUARED_ERROR = Metric(
    name="debiased_squared_error",
    title="debiased squared error",
    meaning="The mean squared gap of the equal-mass bins, minus the part due to chance: its "
    "expectation is 0 for a calibrated model, so it can be negative. The verdict is based on it, "
    "and a gate limits its square root by default.",
    function=debiased_squared_error,
    measure=lambda scored: scored.equal_mass.debiased_squared(),
    position=30,
    percent=False,
    digits=5,
    interval=Resampled(
        lambda drawn: debiased_squared(
            drawn.mass_count, drawn.mass_correct, drawn.mass_gap, drawn.mass_effective
        )
    ),
)


def ece_debiased(
    probabilities: Scores, labels: npt.ArrayLike | None = None, *, bins: int = 15
) -> float:
    """Return the debiased root-mean-square calibration error of Kumar et al. 2019.

    `sqrt(max(0, debiased_squared_error))`. Convention: equal-mass bins; L2 instead of L1 over bins.

    >>> round(ece_debiased([[0.8, 0.2]] * 4, [0, 0, 1, 1], bins=1), 6)
    0.08165
    """
    return math.sqrt(max(0.0, debiased_squared_error(probabilities, labels, bins=bins)))


ECE_DEBIASED = Metric(
    name="ece_debiased",
    title="debiased RMS error",
    meaning="The square root of the debiased squared error, on the scale of the ECE; 0 if the "
    "squared error is negative.",
    function=ece_debiased,
    measure=lambda scored: math.sqrt(max(0.0, scored.equal_mass.debiased_squared())),
    position=40,
)


def ece_sweep(
    probabilities: Scores,
    labels: npt.ArrayLike | None = None,
    *,
    max_bins: int = 512,
    binning: Literal["mass", "width"] = "mass",
) -> float:
    """Return the ECE with the largest number of bins whose accuracies are in ascending order.

    The number of bins b is increased as long as `acc_1 <= ... <= acc_b`. The bins have equal mass
    or, with `binning="width"`, equal width, where empty bins are skipped. Convention: absolute gaps
    (L1), at most `max_bins` bins. Roelofs et al. 2022 (preprint 2020).

    >>> ece_sweep([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    0.35
    >>> ece_sweep([[0.9, 0.1], [0.6, 0.4]], [0, 1], binning="width")
    0.25
    """
    at_least("max_bins", max_bins, 1)
    if binning not in ("mass", "width"):
        raise ParameterError("bad_parameter", f"binning must be 'mass' or 'width', got {binning!r}")
    ranked = as_top_label(probabilities, labels).ranked
    count = ranked.score.size
    edges = ranked.mass_edges if binning == "mass" else ranked.width_edges
    bins = 1
    while bins < min(max_bins, count):
        edge = edges(bins + 1)
        accuracy = np.diff(ranked.hits_at(edge)) / np.diff(edge)
        if np.any(np.diff(accuracy) < -1e-12):
            break
        bins += 1
    place = edges(bins)
    gap = np.diff(ranked.hits_at(place)) - np.diff(ranked.score_sum_at(place))
    return float(np.abs(gap).sum() / count)


ECE_SWEEP = Metric(
    name="ece_sweep",
    title="ECE by monotonic sweep",
    meaning="The mean absolute gap over the largest number of equal-mass bins whose accuracies "
    "rise with the confidence.",
    function=ece_sweep,
    measure=lambda scored: ece_sweep(scored.rows.top),
    position=45,
)
