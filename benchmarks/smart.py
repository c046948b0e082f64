"""Topic 3: a SMART fit compared with autograd through the softmax, and with the fit it replaced.

Up to ``AGREES`` rows, the fit takes the same steps as autograd: same model, same start. With more
rows, rows are merged first, and the fit is judged by its held-out error (`benchmarks.smart_speed`).
"""

from collections.abc import Callable, Iterable

import numpy as np

from benchmarks import autograd, data, ours, reference, smart_speed
from benchmarks.output import Row, Target, Topic
from benchmarks.timing import Contender, Measured, alternate, ratio

AGREES = 2048
SEED = 0
HIDDEN = 16
STEPS = 300
FASTER = 10.0
CONFIDENCE_DIFFERENCE = 1e-3
OBJECTIVE_DIFFERENCE = 1e-4
PLAIN = "autograd through softmax"
LEAN = "autograd through logsumexp"
DOUBLE = "autograd in float64"
UNJUDGED_CLASSES = 20


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a judged table if every step has something to learn, and an unjudged one if not.

    At the end of a descent, the objective is at its noise floor and Adam follows rounding errors:
    changing the logits by one part in a million moved confidences by 5e-3 and the objective by a
    tenth, and two autograd fits of the same model in float32 differ by as much. No agreement can be
    required there.
    """
    for n, k in sizes:
        if n > AGREES:
            yield smart_speed.compare(n, k, rounds, budget)
            continue
        yield compare(data.confidently_wrong(n, k), rounds, budget)
        k = min(k, UNJUDGED_CLASSES)
        yield compare(data.draw(n, k), 1, budget, judged=False)


def compare(sample: data.Sample, rounds: int, budget: float, judged: bool = True) -> Topic:
    """Time our fit and autograd, and compare the objectives reached."""
    logits, labels = sample.logits, sample.labels
    base = reference.best_temperature(logits, labels)
    start = ours.initial_weights(SEED, HIDDEN)

    def rival(z: np.ndarray, lean: bool = False) -> Callable[[], np.ndarray]:
        return lambda: autograd.fit(z, labels, base, start, STEPS, lean)

    contenders = [
        Contender(ours.NAME, lambda: ours.fit_smart(sample, SEED)),
        Contender(PLAIN, rival(logits)),
        Contender(LEAN, rival(logits, lean=True)),
        Contender(DOUBLE, rival(logits.astype(np.float64))),
    ]
    measured = alternate(contenders, rounds, budget)
    correct = logits.argmax(1) == labels
    reached = {name: _confidences(found, logits) for name, found in measured.items()}
    before = reference.confidences(logits, np.full(len(logits), base))
    objective = {
        name: None if c is None else reference.soft_calibration_error(c, correct)
        for name, c in reached.items()
    }
    rows = [
        _row(found, measured, _largest(reached[name], reached[DOUBLE]), objective[name])
        for name, found in measured.items()
    ]
    return Topic(
        f"SMART fit, {STEPS} steps, {sample.size} float32"
        + ("" if judged else ": nothing to learn beyond TS, not judged"),
        rows,
        _targets(measured, reached, objective) if judged else [],
        f"all methods start from our initial weights with seed {SEED}; the objective at the TS "
        f"start is {reference.soft_calibration_error(before, correct):.6f}; differences are "
        "relative to autograd in float64, from which autograd in float32 differs as well; "
        "confidences are exact softmaxes; our time includes the checks and the TS fit, while "
        "autograd is given T_TS",
    )


def _confidences(found: Measured, logits: np.ndarray) -> np.ndarray | None:
    """Return the resulting confidences: of our map, or of an exact softmax for autograd."""
    if found.error:
        return None
    if found.name == ours.NAME:
        return found.value.apply(logits).max(1).astype(np.float64)
    return reference.confidences(logits, found.value)


def _largest(a: np.ndarray | None, b: np.ndarray | None) -> float | None:
    return None if a is None or b is None else float(np.abs(a - b).max())


def _row(
    found: Measured,
    measured: dict[str, Measured],
    difference: float | None,
    objective: float | None,
) -> Row:
    mine = measured[ours.NAME]
    share = ratio(mine, found)
    return {
        "method": found.name,
        "seconds": found.median,
        "fastest": found.fastest,
        "runs": found.runs,
        "ours is faster by": None if share is None else 1.0 / share,
        "objective": objective,
        "largest confidence difference": difference,
        "failure": found.error,
    }


def _targets(
    measured: dict[str, Measured],
    reached: dict[str, np.ndarray | None],
    objective: dict[str, float | None],
) -> list[Target]:
    share = ratio(measured[ours.NAME], measured[PLAIN])
    mine, theirs = objective[ours.NAME], objective[DOUBLE]
    relative = None if mine is None or theirs is None else abs(mine - theirs) / theirs
    return [
        Target("times faster", None if share is None else 1.0 / share, FASTER, at_least=True),
        Target(
            "largest difference of the confidences",
            _largest(reached[ours.NAME], reached[DOUBLE]),
            CONFIDENCE_DIFFERENCE,
        ),
        Target("relative difference of the objective", relative, OBJECTIVE_DIFFERENCE),
    ]
