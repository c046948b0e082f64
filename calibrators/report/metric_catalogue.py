"""The metrics of a report: how each is called, shown and defined."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrators.metrics import Interval


@dataclass(frozen=True)
class Metric:
    """How a metric is called and shown: in percent or as it is, and which way is better.

    ``meaning`` is its definition in a sentence; how bins are cut is in a report's conventions.
    """

    name: str
    title: str
    meaning: str = ""
    percent: bool = True
    digits: int = 2
    higher_is_better: bool = False

    def text(self, value: float | None, *, signed: bool = False) -> str:
        """A value as people read it; empty if there is none.

        >>> Metric("ece", "ECE").text(0.0452), Metric("ece", "ECE").text(-0.01, signed=True)
        ('4.52 %', '-1.00 %')
        """
        return "" if value is None else self._number(value, signed) + (" %" if self.percent else "")

    def interval(self, found: Interval, *, signed: bool = False) -> str:
        """The bounds of an interval as people read them.

        >>> Metric("nll", "NLL", percent=False).interval(Interval(0.5, 0.4, 0.6, 0.95))
        '[0.40, 0.60]'
        """
        return f"[{self._number(found.low, signed)}, {self._number(found.high, signed)}]"

    def change(self, found: Interval) -> str:
        """Return a change and its bounds, with more digits where it would be rounded away.

        >>> Metric("accuracy", "accuracy").change(Interval(-0.025, -0.031, -0.019, 0.95))
        '-2.50 points [-3.10, -1.90]'
        >>> Metric("nll", "NLL", percent=False).change(Interval(0.0012, 0.0004, 0.002, 0.95))
        '+0.0012 [+0.0004, +0.0020]'
        """
        size = abs(found.value) * (100 if self.percent else 1)
        digits = self.digits
        if 0 < size < math.inf:
            digits = max(digits, 1 - math.floor(math.log10(size)))
        value, low, high = (
            self._number(one, True, digits) for one in (found.value, found.low, found.high)
        )
        return f"{value}{' points' if self.percent else ''} [{low}, {high}]"

    def _number(self, value: float, signed: bool, digits: int | None = None) -> str:
        shown = self.digits if digits is None else digits
        scaled = round(100 * value if self.percent else value, shown) + 0.0
        return f"{scaled:{'+' if signed and scaled else ''}.{shown}f}"


METRICS: tuple[Metric, ...] = (
    Metric(
        "ece",
        "ECE, equal-width bins",
        "How far confidence and accuracy lie apart: the mean absolute gap over equally wide bins "
        "of the confidence, each weighted by its rows.",
    ),
    Metric(
        "ada_ece",
        "ECE, equal-mass bins",
        "The same gap over bins that hold equally many rows, so that no bin is nearly empty.",
    ),
    Metric(
        "debiased_squared_error",
        "debiased squared error",
        "The mean squared gap of the equal-mass bins, less what chance adds to it: 0 is expected "
        "of a calibrated model, so it may be negative. The verdict rests on it, and so does a gate "
        "unless it is asked to limit the ECE.",
        percent=False,
        digits=5,
    ),
    Metric(
        "ece_debiased",
        "its root (debiased RMS)",
        "The square root of the debiased squared error, on the scale of the ECE; 0 if that is "
        "negative.",
    ),
    Metric(
        "smece",
        "smooth ECE",
        "The gap between confidence and accuracy smoothed by a Gaussian kernel in place of bins.",
    ),
    Metric(
        "classwise_ece",
        "class-wise ECE",
        "The ECE of each class's own probability as the chance that a row is of that class, in "
        "equally wide bins over all rows; the mean over the classes.",
    ),
    Metric(
        "mce",
        "largest gap of a bin (MCE)",
        "The largest gap between accuracy and mean confidence of any equally wide bin; a bin of "
        "few rows can make it large by chance.",
    ),
    Metric(
        "nll",
        "NLL",
        "Negative log-likelihood: the mean of -log(probability of the true label), in nats. "
        "Calibration and discrimination together.",
        percent=False,
        digits=4,
    ),
    Metric(
        "brier",
        "Brier score",
        "The mean squared distance between the probabilities and the truth, summed over the "
        "classes: from 0 to 2.",
        percent=False,
        digits=4,
    ),
    Metric(
        "accuracy",
        "accuracy",
        "The share of rows whose label has the largest probability.",
        higher_is_better=True,
    ),
    Metric(
        "top_5_error",
        "top-5 error",
        "The share of rows whose label is not among the five largest probabilities.",
    ),
    Metric(
        "refinement_auroc",
        "AUROC of right against wrong",
        "How well confidence tells right predictions from wrong ones: the chance that a right one "
        "has the higher confidence.",
        higher_is_better=True,
    ),
    Metric(
        "aurc",
        "AURC (risk-coverage)",
        "The error rate among the rows kept, averaged over all shares of rows that are kept in "
        "the order of their confidence.",
        percent=False,
        digits=5,
    ),
    Metric(
        "e_aurc",
        "excess AURC",
        "The AURC less that of the best order of these rows, in which all right ones come first.",
        percent=False,
        digits=5,
    ),
)
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
NOISE_FLOOR = (
    "The ECE that a perfectly calibrated model with these confidences would measure on as many "
    "rows: an ECE below its 95 % quantile is no evidence of miscalibration."
)
