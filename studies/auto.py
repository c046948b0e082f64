"""None, TS, SMART and auto on real logits: ECE-15, its noise floor, and what is left above it.

    python studies/auto.py FOLDER [--markdown FILE]

FOLDER holds .npz files with ``logits`` and ``labels``. Splits s = 0..4 are
``np.random.RandomState(s).permutation(n)``, the first half fits and the second tests; a set
``name__test`` fits on ``name__cal`` instead, and ``name_noise`` on all of ``name``, once. Sets
ending in ``_noise`` or holding ``__shift_`` are shifted: they are shown, but are no part of the
mean.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrators import CalibrationSet, CalibrationWarning, Calibrator
from calibrators.methods.auto import Auto
from calibrators.methods.identity import Identity
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import noise_floor, paired_intervals, row_scores

RECIPES: dict[str, Calibrator] = {
    "none": Identity(),
    "TS": TemperatureScaling(),
    "SMART": Smart(),
    "auto": Auto(),
}
SPLITS = range(5)
STUDENT_T = 2.776  # the 97.5 % quantile with one degree of freedom less than splits


@dataclass(frozen=True)
class Outcome:
    """One method on one split, in percent; the change is its ECE minus that of TS (none: 0)."""

    ece: float
    floor: float
    change: float
    low: float
    high: float
    chosen: str
    seconds: float


def load(path: Path) -> CalibrationSet:
    with np.load(path, allow_pickle=False) as file:
        return CalibrationSet(file["logits"], file["labels"])


def splits(folder: Path, name: str) -> Iterator[tuple[CalibrationSet, CalibrationSet]]:
    """The (fit, test) pairs of a set."""
    data = load(folder / f"{name}.npz")
    fit_name = name.split("__")[0] + "__cal" if "__" in name else name.removesuffix("_noise")
    if fit_name != name and (folder / f"{fit_name}.npz").exists():
        yield load(folder / f"{fit_name}.npz"), data
        return
    for seed in SPLITS:
        order = np.random.RandomState(seed).permutation(data.n)
        half = data.n // 2
        yield data.take(order[:half]), data.take(order[half:])


def run(fit: CalibrationSet, test: CalibrationSet) -> dict[str, Outcome]:
    """Every method on one split."""
    outcomes: dict[str, Outcome] = {}
    scaled = None
    for name, recipe in RECIPES.items():
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            fitted = recipe.fit(fit)
        seconds = time.perf_counter() - start
        rows = row_scores(fitted.apply_set(test), test.labels)
        scaled = rows if name == "TS" else scaled
        change = paired_intervals(scaled or rows, rows, draws=400)["ece"]
        outcomes[name] = Outcome(
            100 * rows.top.equal_width(15).ece(),
            100 * noise_floor(rows.top.confidence, draws=100).mean,
            *(100 * one for one in (change.value, change.low, change.high)),
            fitted.method,
            seconds,
        )
    return outcomes


def excess(outcomes: list[dict[str, Outcome]], method: str) -> tuple[float, float]:
    """Mean and standard error over splits of ECE minus floor."""
    values = np.array([one[method].ece - one[method].floor for one in outcomes])
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(values.mean()), float(error)


def change(outcomes: list[dict[str, Outcome]]) -> tuple[float, float, float]:
    """Auto minus TS with its 95 % interval: over splits, or over rows if there is one split."""
    ones = [one["auto"] for one in outcomes]
    if len(ones) == 1:
        return ones[0].change, ones[0].low, ones[0].high
    values = np.array([one.change for one in ones])
    half = STUDENT_T * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def table(results: dict[str, list[dict[str, Outcome]]]) -> Iterator[str]:
    """Markdown lines: a row for each set, then the means over the same-distribution sets."""
    titles = [f"{m} ECE | floor | above" for m in RECIPES]
    yield f"| set | {' | '.join(titles)} | auto - TS [95 %] | auto chose |"
    yield "|---|" + "---|" * (3 * len(RECIPES) + 2)
    for name, outcomes in results.items():
        cells = []
        for method in RECIPES:
            mean, error = excess(outcomes, method)
            spread = "" if np.isnan(error) else f" ± {error:.2f}"
            cells.append(
                f"{np.mean([o[method].ece for o in outcomes]):.2f} | "
                f"{np.mean([o[method].floor for o in outcomes]):.2f} | {mean:.2f}{spread}"
            )
        value, low, high = change(outcomes)
        chosen = " ".join(one["auto"].chosen for one in outcomes)
        interval = f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
        yield f"| {name} | {' | '.join(cells)} | {interval} | {chosen} |"
    same = [n for n in results if not n.endswith("_noise") and "__shift_" not in n]
    means = {m: np.mean([excess(results[n], m)[0] for n in same]) for m in RECIPES}
    yield ""
    yield (
        f"Mean over {len(same)} same-distribution sets of ECE-15 minus floor, percent: "
        + ", ".join(f"{method} {mean:.2f}" for method, mean in means.items())
    )
    worst = max((change(results[n])[1], n) for n in same)
    yield f"Largest lower bound of auto - TS on these: {worst[0]:+.2f} ({worst[1]})"
    seconds = {m: np.mean([o[m].seconds for r in results.values() for o in r]) for m in RECIPES}
    yield "Mean seconds of a fit: " + ", ".join(f"{m} {s:.2f}" for m, s in seconds.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    names = sorted(path.stem for path in arguments.folder.glob("*.npz"))
    names = [name for name in names if not name.endswith("__cal")]
    if not names:
        parser.error(f"no .npz files in {arguments.folder}")
    results = {}
    for name in names:
        results[name] = [run(fit, test) for fit, test in splits(arguments.folder, name)]
        sys.stderr.write(f"{name} done\n")
    text = "\n".join(table(results)) + "\n"
    sys.stdout.write(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
