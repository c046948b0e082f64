"""Topic 1: fit a temperature, compared with all libraries that offer it."""

from collections.abc import Iterable
from typing import Any

from benchmarks import data, ours, reference
from benchmarks.output import Row, Target, Topic, share_of_fastest
from benchmarks.rivals import Rival, temperature_rivals
from benchmarks.timing import Contender, Measured, alternate, ratio, silence

CORRECT_GAP = 1e-7
OUR_GAP = 1e-10
OUR_SHARE = 0.25


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a table for each size."""
    for n, k in sizes:
        yield compare(data.draw(n, k), rounds, budget)


def compare(sample: data.Sample, rounds: int, budget: float) -> Topic:
    """Time our fit and the competitors, and compare their NLL."""
    best = reference.best_temperature(sample.logits, sample.labels)
    floor = reference.nll(sample.logits, sample.labels, best)
    rivals = temperature_rivals()
    contenders = [Contender(ours.NAME, lambda: float(ours.fit_temperature(sample).temperature))]
    contenders += [_contender(rival, sample) for rival in rivals]
    measured = alternate(contenders, rounds, budget)
    gaps = {name: _gap(sample, found, floor) for name, found in measured.items()}
    correct = [r for r in rivals if (gap := gaps[r.name]) is not None and gap < CORRECT_GAP]
    mine = measured[ours.NAME]
    return Topic(
        f"temperature fit, {sample.size} float32",
        [_row(found, mine, gaps[name]) for name, found in measured.items()],
        [
            share_of_fastest(
                "correct library",
                mine,
                [measured[rival.name] for rival in correct if not rival.recipe],
                OUR_SHARE,
            ),
            Target("our NLL gap", gaps[ours.NAME], OUR_GAP),
        ],
        f"optimum by a float64 Brent search: T = {best:.9f}, NLL = {floor:.9f}; "
        f"correct means a gap below {CORRECT_GAP:g}",
    )


def _contender(rival: Rival, sample: data.Sample) -> Contender:
    with silence():
        prepared: tuple[Any, ...] = rival.prepare(sample)
    return Contender(rival.name, lambda: rival.run(*prepared))


def _gap(sample: data.Sample, found: Measured, floor: float) -> float | None:
    if found.error or not found.value > 0:
        return None
    return reference.nll(sample.logits, sample.labels, found.value) - floor


def _row(found: Measured, mine: Measured, gap: float | None) -> Row:
    return {
        "method": found.name,
        "seconds": found.median,
        "fastest": found.fastest,
        "runs": found.runs,
        "ours / it": ratio(mine, found),
        "T": found.value,
        "NLL gap": gap,
        "correct": gap is not None and gap < CORRECT_GAP,
        "failure": found.error,
    }
