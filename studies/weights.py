"""Weights of the focal, inverse focal, AURC and AU losses, without any training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrators.charts.theme import finished
from calibrators.losses import make_loss

WEIGHTS_CHART = "epochs_weights.svg"
CDF_CHART = "epochs_cdf.svg"
NUS = (0.01, 0.05, 0.1, 0.4)
ROWS = 4000
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "cross-entropy": ("cross_entropy", {}),
    "focal, gamma 3": ("focal", {}),
    "inverse focal, gamma 2": ("inverse_focal", {}),
    "AURC": ("aurc", {}),
    "AU, nu 0.1": ("selective_risk", {}),
}
SHOWN = slice(20, None, 40)  # of the rows, in order of their confidence


def scores() -> NDArray[np.float64]:
    """Return the confidences of an overconfident network: half of them above 0.97, ascending."""
    drawn = np.random.default_rng(0).beta(2.2, 0.25, size=ROWS)
    return np.sort(0.1 + 0.9 * drawn.clip(0, 1 - 1e-6))


def weights(confidence: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return each loss divided by cross-entropy for correct rows, scaled to a mean of 1."""
    logit = torch.tensor(np.log(confidence / (1 - confidence)) + np.log(9))
    logits = torch.zeros(len(logit), 10, dtype=torch.float64)
    logits[:, 0] = logit
    labels = torch.zeros(len(logit), dtype=torch.long)
    plain = make_loss("cross_entropy").eval().losses(logits, labels)
    found = {}
    for name, (loss, params) in LOSSES.items():
        ratio = (make_loss(loss, **params).eval().losses(logits, labels) / plain).numpy()
        found[name] = np.asarray(ratio / ratio.mean())
    return found


def smoothed_cdf(confidence: NDArray[np.float64], nu: float, bins: int = 100) -> NDArray[Any]:
    """Return Eq. 21 of the AU paper at each confidence."""
    centres = (np.floor(confidence * bins) + 0.5) / bins
    steps = (confidence[:, np.newaxis] - centres) / nu
    return np.asarray((1 / (1 + np.exp(-steps.clip(-700, 700)))).mean(axis=1))


def weights_chart() -> dict[str, Any]:
    """Draw weights and weighted losses by the probability of the label."""
    confidence = scores()
    values = [
        {"loss": name, "p": p, "weight": weight, "weighted": -weight * np.log(p)}
        for name, found in weights(confidence).items()
        for p, weight in zip(confidence[SHOWN].tolist(), found[SHOWN].tolist(), strict=True)
    ]
    panels = [_lines("p", "p of the label", "weight", "weight, mean 1", "loss")]
    panels.append(_lines("p", "p of the label", "weighted", "weight times -ln p", "loss"))
    return finished(
        {"data": {"values": values}, "hconcat": panels, "spacing": 24},
        "Weights and weighted losses by the probability of the label, for five losses",
    )


def cdf_chart() -> dict[str, Any]:
    """Draw the smoothed distribution of the scores for several nu, and the exact one."""
    confidence = scores()
    curves: dict[str, Sequence[float]] = {
        "exact": ((np.arange(ROWS) + 1) / ROWS)[SHOWN].tolist(),
        **{f"nu {nu:g}": smoothed_cdf(confidence, nu)[SHOWN].tolist() for nu in NUS},
    }
    values = [
        {"nu": name, "score": at, "G": value}
        for name, curve in curves.items()
        for at, value in zip(confidence[SHOWN].tolist(), curve, strict=True)
    ]
    panel = _lines("score", "confidence score", "G", "G", "nu")
    return finished(
        {"data": {"values": values}, **panel},
        "Distribution function of the confidence scores, exact and smoothed with several nu",
    )


def cdf_table() -> str:
    """Return a table that compares the smoothed distribution with the exact one, for several nu."""
    confidence = scores()
    exact = (np.arange(ROWS) + 1) / ROWS
    lines = ["| nu | largest distance from the exact G | G of the median row | largest G |"]
    lines.append("|---:|---:|---:|---:|")
    for nu in NUS:
        found = smoothed_cdf(confidence, nu)
        row = (np.abs(found - exact).max(), found[ROWS // 2], found[-1])
        lines.append(f"| {nu:g} | {' | '.join(f'{one:.2f}' for one in row)} |")
    return "\n".join(lines) + "\n"


def _lines(x: str, x_title: str, y: str, y_title: str, colour: str) -> dict[str, Any]:
    return {
        "width": 300,
        "height": 220,
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {
            "x": {"field": x, "type": "quantitative", "title": x_title},
            "y": {"field": y, "type": "quantitative", "title": y_title},
            "color": {"field": colour, "type": "nominal", "title": colour},
        },
    }
