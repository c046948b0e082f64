"""Calibration metrics: pure numpy functions `f(probabilities, labels, ...) -> float`.

`probabilities` are (n, k) with rows summing to 1, or (n,) / (n, 1) for the probability of class 1;
`labels` are integers (n,). Top-label metrics take a `TopLabel` in place of both, so that a report
passes over the classes, and sorts, only once.
"""

from calibrators.metrics._noise_floor import NoiseFloor, noise_floor
from calibrators.metrics._sorted import equal_mass
from calibrators.metrics.bins import BinTable, equal_width
from calibrators.metrics.calibration import (
    ada_ece,
    debiased_squared_error,
    ece,
    ece_debiased,
    ece_sweep,
    mce,
)
from calibrators.metrics.classwise import ClassTable, class_table, classwise_ece, sce
from calibrators.metrics.estimates import (
    Interval,
    deviations,
    fold_factor,
    mean_interval,
    wilson,
)
from calibrators.metrics.intervals import (
    Compared,
    bootstrap_interval,
    calibration_intervals,
    compared_intervals,
    paired_intervals,
)
from calibrators.metrics.lipschitz import smce
from calibrators.metrics.report_inputs import Scored, scored
from calibrators.metrics.scores import (
    RowScores,
    accuracy,
    brier,
    nll,
    row_scores,
    top_k_error,
)
from calibrators.metrics.selective import (
    aurc,
    aurc_influence,
    auroc_influence,
    best_aurc,
    classwise_auroc,
    e_aurc,
    ood_auroc,
    refinement_auroc,
)
from calibrators.metrics.smooth import kde_ece, smece
from calibrators.metrics.soft import kernel_bias, pointwise_charbonnier, smce_bound, soft_ece
from calibrators.metrics.toplabel import TopLabel, top_label

__all__ = [
    "BinTable",
    "ClassTable",
    "Compared",
    "Interval",
    "NoiseFloor",
    "RowScores",
    "Scored",
    "TopLabel",
    "accuracy",
    "ada_ece",
    "aurc",
    "aurc_influence",
    "auroc_influence",
    "best_aurc",
    "bootstrap_interval",
    "brier",
    "calibration_intervals",
    "class_table",
    "classwise_auroc",
    "classwise_ece",
    "compared_intervals",
    "debiased_squared_error",
    "deviations",
    "e_aurc",
    "ece",
    "ece_debiased",
    "ece_sweep",
    "equal_mass",
    "equal_width",
    "fold_factor",
    "kde_ece",
    "kernel_bias",
    "mce",
    "mean_interval",
    "nll",
    "noise_floor",
    "ood_auroc",
    "paired_intervals",
    "pointwise_charbonnier",
    "refinement_auroc",
    "row_scores",
    "sce",
    "scored",
    "smce",
    "smce_bound",
    "smece",
    "soft_ece",
    "top_k_error",
    "top_label",
    "wilson",
]
