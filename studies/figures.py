"""Figures of the papers' tables for a trained network, before and after maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cnn import Logits

from calibrators import CalibrationMap, CalibrationSet, Calibrator
from calibrators import metrics as m
from calibrators.charts.reliability import bin_values
from calibrators.report.measurement import reliability_bins


def measured(
    fit: CalibrationSet,
    inside: CalibrationSet,
    outside: Mapping[str, Logits],
    maps: Mapping[str, Calibrator],
) -> dict[str, Any]:
    """Return figures (percent, except NLL) and bins for each map, and TS's temperature.

    The maps are fitted on ``fit`` and measured on ``inside``; ``outside`` has logits of
    out-of-distribution rows by name.
    """
    fitted = {name: recipe.fit(fit) for name, recipe in maps.items()}
    scaling: Any = fitted["TS"]
    return {
        "temperature": scaling.temperature,
        "figures": {name: _figures(one, inside, outside) for name, one in fitted.items()},
        "bins": {
            name: bin_values(
                reliability_bins(
                    m.top_label(one.apply(inside.logits), inside.labels).equal_width(15)
                )
            )
            for name, one in fitted.items()
        },
    }


def _figures(
    fitted: CalibrationMap, inside: CalibrationSet, outside: Mapping[str, Logits]
) -> dict[str, float]:
    p, labels = fitted.apply(inside.logits), inside.labels
    top = m.top_label(p, labels)
    percents = {
        "error": 1 - top.accuracy,
        "ece": m.ece(top),
        "ada_ece": m.ada_ece(top),
        "sce": m.sce(p, labels),
        "classwise_ece": m.classwise_ece(p, labels),
        "smece": m.smece(top),
        "refinement": m.refinement_auroc(top),
        "class_auroc": m.classwise_auroc(p, labels),
        "one_vs_one_auroc": m.one_vs_one_auroc(p, labels),
        "aurc": m.aurc(top),
        **{name: m.ood_auroc(p, fitted.apply(logits)) for name, logits in outside.items()},
        "floor": m.noise_floor(top.confidence, draws=100).mean,
    }
    return {**{name: 100 * value for name, value in percents.items()}, "nll": m.nll(p, labels)}
