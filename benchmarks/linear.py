"""Vector scaling, matrix scaling, Dirichlet calibration: who finds the minimum, and how fast."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks import data, ours, reference
from benchmarks.linear_rivals import Parameters, Problem, Solver, solvers
from benchmarks.output import Row, Target, Topic, share_of_fastest
from benchmarks.timing import Contender, Measured, alternate, ratio, silence

SAME_MINIMUM = 1e-6
OUR_GAP = 1e-7
OUR_SHARE = 1.0
WIDE = 500


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield vector scaling at every size; the others (k (k + 1) parameters) below 500 classes."""
    for n, k in sizes:
        sample = spoilt(n, k)
        for method in ("vector",) if k >= WIDE else ("vector", "matrix", "dirichlet"):
            yield compare(method, sample, rounds, budget)


def spoilt(n: int, k: int, seed: int = 0) -> data.Sample:
    """Distort `data.draw` by a weight and a bias for every class, which these methods can undo."""
    sample = data.draw(n, k, seed)
    rng = np.random.default_rng(seed + 1)
    weights = np.exp(0.2 * rng.standard_normal(k)).astype(np.float32)
    bias = rng.standard_normal(k).astype(np.float32)
    return data.Sample(sample.logits * weights + bias, sample.labels)


def compare(method: str, sample: data.Sample, rounds: int, budget: float) -> Topic:
    """Time our solver and others with the same objective."""
    problem = problem_of(method, sample)
    rivals = solvers()
    contenders = [Contender(ours.NAME, lambda: _ours(method, sample))]
    contenders += [_contender(rival, problem) for rival in rivals]
    measured = alternate(contenders, rounds, budget)
    reached = {name: _reached(found, problem) for name, found in measured.items()}
    floor = min(value for value in reached.values() if value is not None)
    mine = measured[ours.NAME]
    rows = [_row(found, mine, reached[name], floor) for name, found in measured.items()]
    there = [measured[row["method"]] for row in rows[1:] if row["same minimum"]]
    return Topic(
        f"{method} fit, {sample.size} float32",
        rows,
        [
            share_of_fastest("rival with the same minimum", mine, there, OUR_SHARE),
            Target("our gap to the smallest objective of all", rows[0]["gap"], OUR_GAP),
        ],
        f"objectives in float64 on the same features; the same minimum means within "
        f"{SAME_MINIMUM:g} of the smallest, {floor:.9f}; our time includes the checks, the "
        "temperature and the features, which are given to the other solvers",
    )


def problem_of(method: str, sample: data.Sample) -> Problem:
    """Return the features and penalties of our recipe's defaults, from their definition."""
    from calibrators import get_method

    recipe: Any = get_method(method)()
    z = sample.logits / reference.best_temperature(sample.logits, sample.labels)
    z -= z.max(1, keepdims=True)
    z -= np.log(np.exp(z).sum(1, keepdims=True)) if method == "dirichlet" else z.mean(1)[:, None]
    twice = 2 * len(z)
    off_diagonal = None if method == "vector" else recipe.off_diagonal / twice
    x = np.ascontiguousarray(z, np.float32)
    return Problem(
        x, sample.labels, recipe.diagonal / twice, recipe.intercept / twice, off_diagonal
    )


def _ours(method: str, sample: data.Sample) -> Parameters:
    fitted = ours.fit_method(method, sample)
    return fitted.weights, fitted.bias


def _contender(rival: Solver, problem: Problem) -> Contender:
    with silence():
        prepared = rival.prepare(problem)
    return Contender(rival.name, lambda: rival.run(*prepared))


def _reached(found: Measured, problem: Problem) -> float | None:
    value = None if found.error else problem.objective(*found.value)
    return value if value is not None and np.isfinite(value) else None


def _row(found: Measured, mine: Measured, value: float | None, floor: float) -> Row:
    gap = None if value is None else value - floor
    return {
        "method": found.name,
        "seconds": found.median,
        "fastest": found.fastest,
        "runs": found.runs,
        "ours / it": ratio(mine, found),
        "objective": value,
        "gap": gap,
        "same minimum": gap is not None and gap <= SAME_MINIMUM,
        "failure": found.error,
    }
