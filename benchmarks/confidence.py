"""Topic: CTS, PTS, the spline and ETS compared with published procedures and libraries.

probmetrics offers the spline and ETS; no library offers CTS and PTS (netcal and torch-uncertainty
offer none of the four), so these are compared with `benchmarks.published`. Our spline begins with
temperature scaling, while that of probmetrics does not: it is measured alone, and after the fastest
correct temperature fit of another library (`benchmarks.temperature` shows which).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks import data, ours, published, rivals
from benchmarks.output import Row, Target, Topic, share_of_fastest
from benchmarks.reference import expected_calibration_error
from benchmarks.timing import Contender, Measured, alternate, no_hang, ratio, silence

FASTER = 10.0
OUR_SHARE = 1.0
OBJECTIVE_SLACK = 1e-4


@dataclass(frozen=True)
class Outcome:
    """Confidences (n,) of the predictions, whether they are correct, and the mean NLL if known."""

    confidence: np.ndarray
    correct: np.ndarray
    nll: float | None = None


@dataclass(frozen=True)
class Procedure:
    """A published procedure, which may stop when its time is up.

    If ``judged``, the objective it reaches is also a limit for ours. That of CTS has many local
    minima, and the grid and the start determine which one a search finds, so it is only shown.
    """

    name: str
    run: Callable[[data.Sample, float], published.Reached]
    judged: bool = True


@dataclass(frozen=True)
class Method:
    """A method of ours, its objective, and its competitors."""

    name: str
    title: str
    objective: str
    value: Callable[[Outcome], float | None]
    procedures: tuple[Procedure, ...] = ()
    libraries: tuple[tuple[str, Callable[[data.Sample], Outcome]], ...] = ()


def squared_error(outcome: Outcome) -> float:
    """Return the objective of PTS."""
    return float(((outcome.confidence - outcome.correct) ** 2).mean())


def calibration_error(outcome: Outcome) -> float:
    """Return the objective of CTS: ECE with 15 equal-width bins."""
    pairs = np.stack([outcome.confidence, np.full_like(outcome.confidence, -1.0)], axis=1)
    return expected_calibration_error(pairs, np.where(outcome.correct, 0, 1), published.BINS)


def largest_gap(outcome: Outcome) -> float:
    """Return the objective of the spline: the largest cumulative difference by confidence."""
    order = np.argsort(outcome.confidence, kind="stable")
    gaps = np.cumsum((outcome.correct - outcome.confidence)[order])
    return float(np.abs(gaps).max()) / len(gaps)


def likelihood(outcome: Outcome) -> float | None:
    """Return the objective of ETS."""
    return outcome.nll


def probmetrics_spline(sample: data.Sample, temperature: float = 1.0) -> Outcome:
    """Fit the spline of Gupta et al. on the model's own top-label confidences."""
    import torch
    from probmetrics.calibrators import CDFSplineCalibrator

    logits = torch.from_numpy(sample.logits)
    logits = logits if temperature == 1 else logits / temperature
    confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
    correct = predicted.numpy() == sample.labels
    scores = confidence.double().numpy()
    pairs = np.stack([1 - scores, scores], axis=1)
    fitted = CDFSplineCalibrator().fit(pairs, correct.astype(np.int64))
    return Outcome(np.asarray(fitted.predict_proba(pairs))[:, 1], correct)


def probmetrics_spline_scaled(sample: data.Sample) -> Outcome:
    """Fit the spline on logits divided by the temperature of LBFGS with line search."""
    fit = rivals.notebook(**rivals.STRONG_WOLFE)
    return probmetrics_spline(sample, fit(*rivals.as_tensors(sample)))


def probmetrics_ets(sample: data.Sample) -> Outcome:
    """Fit temperature and weights of ETS with scipy, each by the cross-entropy."""
    from probmetrics.calibrators import ETSCalibrator

    probabilities = data.softmax(sample.logits).astype(np.float64)
    fitted = ETSCalibrator(loss="ce").fit(probabilities, sample.labels)
    return _of_probabilities(np.asarray(fitted.predict_proba(probabilities)), sample)


METHODS = (
    Method(
        "cts",
        "CTS",
        "ECE-15",
        calibration_error,
        procedures=(Procedure("published: by column", published.columns, judged=False),),
    ),
    Method(
        "predicted_class_temperature",
        "predicted-class temperature",
        "ECE-15",
        calibration_error,
        procedures=(
            Procedure("same search by predicted class", published.predicted_class, judged=False),
        ),
    ),
    Method(
        "pts",
        "PTS",
        "(c - a)^2",
        squared_error,
        procedures=(Procedure("published: 100,000 steps", published.parametrized_temperature),),
    ),
    Method(
        "spline",
        "spline",
        "largest gap",
        largest_gap,
        libraries=(
            ("probmetrics, no temperature", probmetrics_spline),
            ("LBFGS strong Wolfe, probmetrics", probmetrics_spline_scaled),
        ),
    ),
    Method("ets", "ETS", "NLL", likelihood, libraries=(("probmetrics", probmetrics_ets),)),
)


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a table for each size and method."""
    for n, k in sizes:
        sample = data.confidently_wrong(n, k)
        for method in METHODS:
            yield compare(method, sample, rounds, budget)


def compare(method: Method, sample: data.Sample, rounds: int, budget: float) -> Topic:
    """Time a method of ours and its competitors, and compare their objectives."""
    contenders = [Contender(ours.NAME, lambda: ours.fit_method(method.name, sample))]
    contenders += [
        Contender(name, lambda fit=fit: fit(sample))  # type: ignore[misc]
        for name, fit in method.libraries
    ]
    measured = alternate(contenders, rounds, budget)
    mine = measured[ours.NAME]
    rows = [_row(method, found, mine, _outcome(found, sample)) for found in measured.values()]
    targets = []
    if method.libraries:
        there = [measured[row["method"]] for row in rows[1:] if _gets_as_far(method, row, rows[0])]
        title = f"library with the same {method.objective}"
        targets.append(share_of_fastest(title, mine, there, OUR_SHARE))
    for procedure in method.procedures:
        with silence(), no_hang():
            reached = procedure.run(sample, budget)
        found = Measured(procedure.name, {0: reached.whole})
        outcome = Outcome(reached.confidence, reached.correct)
        rows.append({**_row(method, found, mine, outcome), "done": reached.done})
        targets += _targets(method, procedure, rows[0], rows[-1])
    note = "from logits to a fitted map"
    if method.procedures:
        note += (
            "; if done is below 1, only that share was run and timed: seconds are extrapolated, "
            "and the objective is the one reached so far"
        )
    return Topic(f"{method.title} fit, {sample.size} float32", rows, targets, note)


def _outcome(found: Measured, sample: data.Sample) -> Outcome | None:
    if found.error or isinstance(found.value, Outcome):
        return found.value
    return _of_probabilities(found.value.apply(sample.logits), sample)


def _of_probabilities(p: np.ndarray, sample: data.Sample) -> Outcome:
    at_label = p[np.arange(len(p)), sample.labels].astype(np.float64)
    nll = -float(np.log(np.maximum(at_label, 1e-300)).mean())
    confidence = p.max(axis=1).astype(np.float64)
    return Outcome(confidence, p.argmax(axis=1) == sample.labels, nll)


def _row(method: Method, found: Measured, mine: Measured, outcome: Outcome | None) -> Row:
    share = ratio(mine, found)
    return {
        "method": found.name,
        "seconds": found.median,
        "runs": found.runs,
        "ours is faster by": None if share is None else 1.0 / share,
        method.objective: None if outcome is None else method.value(outcome),
        "accuracy": None if outcome is None else float(outcome.correct.mean()),
        "failure": found.error,
    }


def _gets_as_far(method: Method, theirs: Row, mine: Row) -> bool:
    values = theirs[method.objective], mine[method.objective]
    return None not in values and values[0] <= values[1] + OBJECTIVE_SLACK


def _targets(method: Method, procedure: Procedure, mine: Row, theirs: Row) -> list[Target]:
    faster = theirs["ours is faster by"]
    targets = [Target(f"times faster than {procedure.name}", faster, FASTER, at_least=True)]
    if procedure.judged and theirs["done"] == 1:
        ours_is, theirs_is = mine[method.objective], theirs[method.objective]
        excess = None if ours_is is None else ours_is - theirs_is
        name = f"our {method.objective} above that of {procedure.name}"
        targets.append(Target(name, excess, OBJECTIVE_SLACK))
    return targets
