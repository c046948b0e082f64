"""The current SMART fit on real logits, compared with its predecessor: 300 full-batch steps.

    PYTHONPATH=. python studies/smart_change.py FOLDER

Both are fitted on the same rows (all rows of a split's fit half, or its first rows) and judged on
its test half. Differences are new minus old, averaged for each set; the interval is a Student t
interval over sets. The table of docs/studies/smart.md is written to --out.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kept import Found, put_between, run_all
from logit_sets import is_shifted, set_names, split, split_numbers
from scipy.stats import t as student

from benchmarks import smart_reference
from benchmarks.data import Sample
from calibrators import CalibrationMap, CalibrationSet, CalibrationWarning, set_threads
from calibrators.methods.smart import Smart, SmartMap
from calibrators.metrics import noise_floor, row_scores

ROWS = (50, 100, 300, 1000, 0)
FIGURES = {"above": ("ECE-15 minus floor, %", 3), "brier": ("Brier, x 100", 3), "nll": ("NLL", 4)}


@dataclass(frozen=True)
class Plan:
    """Both fits on a split of a set; ``rows`` > 0 limits the fits to the first rows."""

    data: str
    split: int
    rows: int

    @property
    def file(self) -> str:
        """Name of the file with both fits."""
        return f"{self.data}-{self.split}-{self.rows}"


def run(plan: Plan, folder: Path) -> Found:
    """Fit both and measure them on the test rows."""
    warnings.simplefilter("ignore", CalibrationWarning)
    set_threads(1)
    fit, test = split(folder, plan.data, plan.split)
    if plan.rows:
        fit = fit.take(np.arange(min(plan.rows, fit.n)))
    start = time.perf_counter()
    new: CalibrationMap = Smart().fit(fit)
    middle = time.perf_counter()
    fell_back = not isinstance(new, SmartMap)
    old = new if fell_back else smart_reference.fit(Sample(fit.logits, fit.labels))
    end = time.perf_counter()
    return {
        "new": measured(new, test),
        "old": measured(old, test),
        "faster": None if fell_back else (end - middle) / (middle - start),
        "seconds": end - start,
    }


def measured(fitted: CalibrationMap, test: CalibrationSet) -> dict[str, float]:
    """Return the figures of the table on the test rows."""
    rows = row_scores(fitted.apply_set(test), test.labels)
    floor = noise_floor(rows.top.confidence, draws=100).mean
    return {
        "above": 100 * (rows.top.equal_width(15).ece() - floor),
        "brier": 100 * float(rows.brier.mean()),
        "nll": float(rows.nll.mean()),
    }


def table(found: Sequence[Found]) -> str:
    """Return one line per number of rows and figure: old, new, and the paired difference."""
    lines = ["| rows | figure | old | new | new - old, 95 % interval |", "|---|---|---:|---:|---:|"]
    for rows in ROWS:
        at = [one for one in found if one["plan"]["rows"] == rows]
        for name, (title, digits) in FIGURES.items():
            old, new = (np.array(list(_by_set(at, when, name))) for when in ("old", "new"))
            change = new - old
            half = student.ppf(0.975, len(change) - 1) * change.std(ddof=1) / len(change) ** 0.5
            low, high = change.mean() - half, change.mean() + half
            lines.append(
                f"| {rows or 'all'} | {title} | {old.mean():.{digits}f} | {new.mean():.{digits}f} "
                f"| {change.mean():+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}] |"
            )
    return "\n".join(lines) + "\n"


def _by_set(found: Sequence[Found], when: str, name: str) -> Iterator[float]:
    for data in sorted({one["plan"]["data"] for one in found}):
        yield float(np.mean([one[when][name] for one in found if one["plan"]["data"] == data]))


def main() -> None:
    """Run the study and write its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2, help="parallel fits, one core each")
    parser.add_argument("--kept", type=Path, default=Path("out/study-smart"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    options: Any = parser.parse_args()
    plans = [
        Plan(name, number, rows)
        for name in set_names(options.folder)
        if not is_shifted(name)
        for number in split_numbers(options.folder, name)
        for rows in ROWS
    ]
    found = run_all(plans, run, options.folder, options.kept, options.processes)
    text = table(found)
    sys.stdout.write(text)
    put_between(options.out / "smart.md", "change", text)


if __name__ == "__main__":
    main()
