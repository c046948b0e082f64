"""Topic: agreement of our maps with the calibrators of other libraries on the same rows.

Our methods begin with temperature scaling, so the others get the scaled logits, unless they fit
their own temperature. Anything that our methods add to a published one is disabled: smoothing,
and all but a trace of the priors. Methods that no library offers are compared with the published
procedures instead (`confidence`, and their tests).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks import data, ours
from benchmarks.output import Row, Target, Topic, show
from benchmarks.rivals import as_float64_probabilities, sklearn
from benchmarks.timing import silence

TRACE = 1e-6
AHEAD = 1e-4  # how far ours may exceed a tie
NO_PRIORS = {"diagonal": TRACE, "intercept": TRACE, "tolerance": 1e-9}


@dataclass(frozen=True)
class Rows:
    """Logits in float64, after a temperature, and labels."""

    logits: np.ndarray
    labels: np.ndarray

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The probabilities of all classes (n, k)."""
        return as_float64_probabilities(data.Sample(self.logits, self.labels))[0]

    @property
    def centred(self) -> np.ndarray:
        """The logits minus the mean of their row."""
        return self.logits - self.logits.mean(1, keepdims=True)

    @property
    def pairs(self) -> np.ndarray:
        """Return the predicted class against all others (n, 2)."""
        confidence = self.probabilities.max(1)
        return np.stack([1 - confidence, confidence], axis=1)

    @property
    def correct(self) -> np.ndarray:
        """Return 1 where the prediction is correct, else 0 (n,)."""
        return (self.logits.argmax(1) == self.labels).astype(np.int64)


Answer = Callable[[Rows, Rows], np.ndarray]


def temperature(fit: Rows, new: Rows) -> np.ndarray:
    """Return the probabilities of scikit-learn's temperature scaling."""
    scaled = Rows(new.logits / sklearn(fit.logits, fit.labels), new.labels)
    return scaled.probabilities


def fitted(make: Callable[[], Any]) -> Answer:
    """Fit a calibrator with scikit-learn's API on the probabilities of all classes."""

    def answer(fit: Rows, new: Rows) -> np.ndarray:
        calibrator = make()
        calibrator.fit(fit.probabilities, fit.labels)
        return np.asarray(calibrator.predict_proba(new.probabilities))

    return answer


def fitted_on_top(make: Callable[[], Any]) -> Answer:
    """Fit a calibrator on the confidence of the predicted class; the others share the remainder."""

    def answer(fit: Rows, new: Rows) -> np.ndarray:
        calibrator = make()
        calibrator.fit(fit.pairs, fit.correct)
        return np.asarray(calibrator.predict_proba(new.pairs))[:, 1]

    return answer


def netcal(name: str, **options: Any) -> Answer:
    """Return a function that fits a netcal binning."""

    def answer(fit: Rows, new: Rows) -> np.ndarray:
        from netcal import binning

        calibrator = getattr(binning, name)(**options)
        calibrator.fit(fit.probabilities, fit.labels)
        return np.asarray(calibrator.transform(new.probabilities))

    return answer


def probmetrics(name: str, **options: Any) -> Callable[[], Any]:
    """Return a function that creates a probmetrics calibrator."""

    def make() -> Any:
        from probmetrics import calibrators

        return getattr(calibrators, name)(**options)

    return make


def probmetrics_on_logits(name: str) -> Answer:
    """Fit on centred logits, like ours, because its vector scaling depends on the mean of a row."""

    def answer(fit: Rows, new: Rows) -> np.ndarray:
        import torch
        from probmetrics.distributions import CategoricalLogits

        calibrator = probmetrics(name)()
        given = CategoricalLogits(torch.from_numpy(fit.centred))
        calibrator.fit_torch(given, torch.from_numpy(fit.labels))
        asked = CategoricalLogits(torch.from_numpy(new.centred))
        return np.asarray(calibrator.predict_proba_torch(asked).get_probs())

    return answer


def logistic(fit: Rows, new: Rows) -> np.ndarray:
    """Return the probabilities of scikit-learn's logistic regression."""
    from sklearn.linear_model import LogisticRegression

    found = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
    found.fit(np.log(fit.probabilities), fit.labels)
    return np.asarray(found.predict_proba(np.log(new.probabilities)))


def isotonic(fit: Rows, new: Rows) -> np.ndarray:
    """Return the probabilities of scikit-learn's isotonic regression."""
    from sklearn.isotonic import IsotonicRegression

    found = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    found.fit(fit.pairs[:, 1], fit.correct)
    return np.asarray(found.predict(new.pairs[:, 1]))


@dataclass(frozen=True)
class Case:
    """A method of ours, the result it is compared with, and the largest allowed difference."""

    method: str
    library: str
    theirs: Answer
    limit: float
    parameters: dict[str, Any] = field(default_factory=dict)
    classes: int | None = None
    draw: Callable[[int, int, int], data.Sample] = data.draw
    is_scaled: bool = True


def partly_guessed(rows: int, classes: int, seed: int) -> data.Sample:
    """Draw a fifth of the labels at random, so that ETS mixes all three parts."""
    drawn, rng = data.draw(rows, classes, seed), np.random.default_rng(seed)
    guessed = rng.integers(0, classes, rows)
    return data.Sample(drawn.logits, np.where(rng.random(rows) < 0.2, guessed, drawn.labels))


PLAIN, WIDTH = {"smoothing": 0.0}, {"smoothing": 0.0, "binning": "width"}
CASES = (
    Case("temperature", "scikit-learn", temperature, 1e-6, is_scaled=False),
    Case(
        "ets",
        "probmetrics",
        fitted(probmetrics("ETSCalibrator", loss="ce")),
        1e-6,
        draw=partly_guessed,
        is_scaled=False,
    ),
    Case("isotonic", "scikit-learn", isotonic, 1e-9, PLAIN),
    Case("isotonic_one_vs_rest", "netcal", netcal("IsotonicRegression"), 1e-9, PLAIN),
    Case(
        "histogram",
        "probmetrics",
        fitted_on_top(probmetrics("BinaryHistogramBinningCalibrator", n_bins=15)),
        1e-9,
        WIDTH,
    ),
    Case("histogram_one_vs_rest", "netcal", netcal("HistogramBinning", bins=15), 1e-9, WIDTH),
    Case("spline", "probmetrics", fitted_on_top(probmetrics("CDFSplineCalibrator")), 1e-3),
    Case("beta", "betacal", fitted(probmetrics("BetacalCalibrator")), 1e-3, {"prior": TRACE}, 2),
    Case(
        "vector", "probmetrics", probmetrics_on_logits("VectorScalingCalibrator"), 1e-3, NO_PRIORS
    ),
    Case(
        "matrix",
        "probmetrics",
        probmetrics_on_logits("MatrixScalingCalibrator"),
        1e-3,
        {**NO_PRIORS, "off_diagonal": TRACE},
    ),
    Case("dirichlet", "scikit-learn", logistic, 1e-5, {**NO_PRIORS, "off_diagonal": TRACE}),
)


def compare(case: Case, rows: int, classes: int) -> Row:
    """Return the largest difference between probabilities on held-out rows."""
    from calibrators import CalibrationSet, all_methods

    k = case.classes or classes
    fit, new = (_rows(case.draw(rows, k, seed)) for seed in (3, 4))
    if case.is_scaled:
        scale = ours.fit_temperature(data.Sample(fit.logits, fit.labels)).temperature
        fit, new = (Rows(one.logits / scale, one.labels) for one in (fit, new))
    row: Row = {"method": case.method, "library": case.library, "rows": f"{rows:,} x {k}"}
    try:
        recipe = all_methods()[case.method](**case.parameters)
        mine = recipe.fit(CalibrationSet(fit.logits, fit.labels)).apply(new.logits)
        with silence():
            theirs = case.theirs(fit, new)
        apart = np.abs(mine - theirs) if theirs.ndim == 2 else _apart_on_top(mine, theirs, new)
    except Exception as error:  # noqa: BLE001 - a rival may fail in any way, and the table says so
        return row | {"apart": None, "limit": case.limit, "failure": f"{error}"}
    return row | {"apart": float(apart.max()), "limit": case.limit}


def _rows(sample: data.Sample) -> Rows:
    return Rows(sample.logits.astype(np.float64), sample.labels)


def _apart_on_top(mine: np.ndarray, theirs: np.ndarray, new: Rows) -> np.ndarray:
    """Return the differences for the predicted class; ours stops at a tie, keeping the class."""
    second, top = np.sort(new.probabilities, axis=1)[:, -2:].T
    ratio = second / (1 - top)  # the second class's share of the remainder
    tie = ratio / (1 + ratio)
    apart = np.abs(mine.max(1) - np.maximum(theirs, tie))
    return np.where(theirs > tie, apart, np.maximum(apart - AHEAD, 0))


def run(sizes: Iterable[tuple[int, int]]) -> Iterable[Topic]:
    """Yield a table of all methods for each size."""
    for rows, classes in sizes:
        found = [compare(case, rows, classes) for case in CASES]
        yield Topic(
            f"agreement with other libraries, {rows:,} rows",
            found,
            [
                Target(f"{row['method']} and {row['library']} apart", row["apart"], row["limit"])
                for row in found
            ],
            f"largest difference in a probability on {rows:,} new rows; our priors {show(TRACE)}",
        )
