"""Fit every method to a real model, judge each on rows it never saw, and write a report page.

python examples/demo.py            # prints a table, writes out/demo.html

The sample is a small convolutional network trained on Fashion-MNIST with cross-entropy: 10,000
rows to fit on, 10,000 to judge on, and the same test images blurred and with noise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrators import CalibrationMap, CalibrationSet, all_methods, charts, page
from calibrators.base import TemperatureTypeMap
from calibrators.report import Report, evaluate
from calibrators.softmax import margins, softmax

DATA = Path(__file__).parent / "data"
CHOSEN = "auto"
HEAD = {
    "ECE before": 10,
    "ECE after": 9,
    "95 % interval": 14,
    "floor": 8,
    "NLL": 7,
    "Brier": 7,
    "accuracy": 8,
    "seconds": 7,
}
SHIFTS = {"shift_blur": "blurred", "shift_noise": "with noise"}


class Row(NamedTuple):
    """A fitted map, its report on some rows, and how long the fit took."""

    name: str
    fitted: CalibrationMap
    report: Report
    seconds: float | None


def say(line: str = "") -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def load(part: str) -> CalibrationSet:
    """A part of the sample: "cal", "test", "shift_blur" or "shift_noise"."""
    with np.load(DATA / f"fashion_ce__{part}.npz") as stored:
        return CalibrationSet(stored["logits"], stored["labels"])


def judged(fitted: CalibrationMap, rows: CalibrationSet, words: str) -> Report:
    """The report of a map on rows, against the model as it is."""
    report = evaluate(
        fitted.apply(rows.logits),
        rows.labels,
        before=softmax(rows.logits),
        margin=margins(rows.logits),
        judged_on=words,
    )
    return report.with_fit(method=fitted.method, **fitted.fit_info)


def fit_all(cal: CalibrationSet, test: CalibrationSet) -> list[Row]:
    """Every method fitted on ``cal`` and judged on ``test``; prints each line when it is done."""
    rows = []
    methods = all_methods()
    for name in sorted(methods, key=lambda one: (one == CHOSEN, one != "identity", one)):
        started = time.perf_counter()
        fitted = methods[name]().fit(cal)
        seconds = time.perf_counter() - started
        report = judged(fitted, test, f"{test.n:,} test images that no fit saw")
        rows.append(Row(name, fitted, report, seconds))
        say(line(rows[-1]))
    return rows


def line(row: Row) -> str:
    """A row of the table."""
    report = row.report
    ece, before = report.intervals["ece"], report.sides["before"].metrics["ece"] or 0.0
    figures = (
        f"{100 * before:.2f} %",
        f"{100 * ece.value:.2f} %",
        f"[{100 * ece.low:.2f}, {100 * ece.high:.2f}]",
        f"{100 * report.noise_floor.mean:.2f} %",
        f"{report.intervals['nll'].value:.4f}",
        f"{report.intervals['brier'].value:.4f}",
        f"{100 * report.intervals['accuracy'].value:.2f} %",
        f"{row.seconds:.1f}" if row.seconds is not None else "",
    )
    return aligned(row.name, figures, str(report.verdict))


def aligned(first: str, cells: Iterable[str], last: str) -> str:
    """A line of the table: names to the left, figures to the right."""
    figures = (f"{one:>{width}}" for one, width in zip(cells, HEAD.values(), strict=True))
    return f"{first:<15} {' '.join(figures)}  {last}"


def write_page(row: Row, test: CalibrationSet, target: Path) -> None:
    """The report page of one map, with the temperatures it gives."""
    more = {}
    if isinstance(row.fitted, TemperatureTypeMap):
        more["Temperature by margin"] = charts.temperature_curve(row.fitted, test.logits)
    target.parent.mkdir(parents=True, exist_ok=True)
    title = f"Fashion-MNIST, a small CNN: calibrated by {row.name}"
    target.write_text(page.render(row.report, title=title, more_charts=more), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description="Calibrate a real model with every method.")
    parser.add_argument("--out", type=Path, default=Path("out/demo.html"), help="the page to write")
    target = parser.parse_args(arguments).out
    cal, test = load("cal"), load("test")
    say(f"Fashion-MNIST, a small CNN: fitted on {cal.n:,} rows, judged on {test.n:,} others.")
    say("An ECE at its floor is as small as a perfectly calibrated model would measure.\n")
    say(aligned("method", HEAD, "verdict"))
    rows = fit_all(cal, test)
    chosen = next(row for row in rows if row.name == CHOSEN)
    say(f"\n{CHOSEN!r} took {chosen.fitted.method!r}. That map on images it was not fitted for:\n")
    say(aligned("test images", HEAD, "verdict"))
    for part, words in SHIFTS.items():
        say(line(Row(words, chosen.fitted, judged(chosen.fitted, load(part), words), None)))
    say("\nBetter than nothing, yet far above the floor: a map fitted on clean images does not")
    say("calibrate shifted ones. Fit on rows like those you will meet.")
    write_page(chosen, test, target)
    say(f"\nThe report of {chosen.name!r} is in {target.resolve()}")


if __name__ == "__main__":
    main()
