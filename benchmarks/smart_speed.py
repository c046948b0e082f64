"""A SMART fit compared with the fit it replaced, in the same run: seconds and held-out error.

The error of a single draw is not informative, because it varies with the fit rows and with the
held-out rows. The two are therefore compared over several draws, by the interval of the mean paired
difference. `studies/smart_change.py` compares both on real sets.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks import data, ours, smart_reference
from benchmarks.output import Row, Target, Topic
from benchmarks.timing import Contender, Measured, alternate, ratio

BEFORE = "300 steps over all rows, torch"
FASTER = {(10_000, 100): 8.0, (50_000, 100): 15.0, (10_000, 1000): 4.0}
HELD_OUT_SEED = 1000
DRAWS, MIN_DRAWS = 20, 5
SEEDS_APART = 10
LEVEL = 0.95


def compare(n: int, k: int, rounds: int, budget: float) -> Topic:
    """Time both on one thread, and judge both on the same number of held-out rows."""
    sample = data.confidently_wrong(n, k)
    held_out = data.confidently_wrong(n, k, HELD_OUT_SEED)
    contenders = [
        Contender(ours.NAME, lambda: ours.fit_smart(sample)),
        Contender(BEFORE, lambda: smart_reference.fit(sample)),
    ]
    with one_thread():
        measured = alternate(contenders, rounds, budget)
        changes = error_changes(n, k, budget)
    before, mine = measured[BEFORE], measured[ours.NAME]
    scores = {name: _scores(found, held_out) for name, found in measured.items()}
    share, limit = ratio(mine, before), FASTER.get((n, k))
    faster = None if share is None else 1 / share
    targets = [] if limit is None else [Target("times faster", faster, limit, at_least=True)]
    return Topic(
        f"SMART fit on one thread, {sample.size} float32, against what it replaced",
        [_row(found, scores[name], mine) for name, found in measured.items()],
        [*targets, _no_worse(changes)],
        "both times include the checks and the TS fit; errors in percent, on rows of another seed",
    )


def error_changes(n: int, k: int, budget: float) -> np.ndarray:
    """Return held-out ECE, ours minus the other's, in percent, for each draw of the rows.

    Drawing stops after ``budget`` seconds, but not before there are ``MIN_DRAWS`` draws.
    """
    end, changes = time.monotonic() + budget, []
    for draw in range(DRAWS):
        if draw >= MIN_DRAWS and time.monotonic() > end:
            break
        sample = data.confidently_wrong(n, k, SEEDS_APART * draw)
        held_out = data.confidently_wrong(n, k, SEEDS_APART * draw + HELD_OUT_SEED)
        mine, other = (
            100 * ours.ece(fit(sample).apply(held_out.logits), held_out.labels)
            for fit in (ours.fit_smart, smart_reference.fit)
        )
        changes.append(mine - other)
    return np.array(changes)


def _no_worse(changes: np.ndarray) -> Target:
    """Return the target that Student's interval of the mean change must not lie above 0."""
    mean, error = changes.mean(), changes.std(ddof=1) / np.sqrt(len(changes))
    half = student.ppf((1 + LEVEL) / 2, len(changes) - 1) * error
    return Target(
        "lower bound of the change in held-out ECE, in percent",
        float(mean - half),
        0.0,
        note=f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}] over {len(changes)} draws",
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch and calibrators to one thread."""
    import torch

    from calibrators import get_threads

    before = get_threads(), torch.get_num_threads()
    ours.set_threads(1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        ours.set_threads(before[0])
        torch.set_num_threads(before[1])


def _scores(found: Measured, held_out: data.Sample) -> Any:
    from calibrators.metrics import row_scores

    return None if found.error else row_scores(found.value.apply(held_out.logits), held_out.labels)


def _error(scores: Any) -> float | None:
    return None if scores is None else 100 * float(scores.top.equal_width(15).ece())


def _row(found: Measured, scores: Any, mine: Measured) -> Row:
    share = ratio(mine, found)
    return {
        "method": found.name,
        "seconds": found.median,
        "fastest": found.fastest,
        "runs": found.runs,
        "ours is faster by": None if share is None else 1 / share,
        "ECE-15, %": _error(scores),
        "Brier": None if scores is None else float(scores.brier.mean()),
        "NLL": None if scores is None else float(scores.nll.mean()),
        "failure": found.error,
    }
