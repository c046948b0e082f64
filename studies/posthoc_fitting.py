"""One fit of the study of post-hoc methods, and all its figures."""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from logit_sets import fifth, split

from calibrators import CalibrationMap, CalibrationSet, CalibrationWarning
from calibrators.methods.temperature import TemperatureScaling
from calibrators.metrics import (
    ada_ece,
    classwise_ece,
    noise_floor,
    paired_intervals,
    row_scores,
)
from calibrators.registry import make_recipe

FLOOR_DRAWS = 100
DRAWS = 400
# fields of a map that describe its input
NOT_FITTED = ("k", "kind", "floor", "rounding", "ratio", "kept")


@dataclass(frozen=True)
class Plan:
    """A recipe on one split of one set; ``rows`` > 0 limits the fit to the first rows."""

    data: str
    split: int
    method: str
    params: tuple[tuple[str, Any], ...] = ()
    rows: int = 0

    @property
    def title(self) -> str:
        """The recipe as text, the same for all sets and splits."""
        params = [f"{name}={value}" for name, value in self.params]
        return " ".join([self.method, *params])

    @property
    def file(self) -> str:
        """Name of the fit's file."""
        rows = f"-{self.rows}" if self.rows else ""
        return f"{self.data}-{self.split}-{self.title}{rows}".replace(" ", "-").replace("/", "-")


def run(plan: Plan, folder: Path) -> dict[str, Any]:
    """Fit as planned and measure on the test rows; return plain JSON, with errors in percent."""
    fit, test = split(folder, plan.data, plan.split)
    if plan.rows:
        fit = fit.take(np.arange(min(plan.rows, fit.n)))
    return run_on(plan, fit, test)


def run_on_a_fifth(plan: Plan, folder: Path) -> dict[str, Any]:
    """Fit as planned on a fifth of the set itself, even if it is shifted; test on the rest."""
    return run_on(plan, *fifth(folder, plan.data, plan.split))


def run_on(plan: Plan, fit: CalibrationSet, test: CalibrationSet) -> dict[str, Any]:
    """Fit a plan's recipe on some rows and measure on others."""
    recipe = make_recipe(plan.method, dict(plan.params))
    start = time.perf_counter()
    fitted = quietly(recipe.fit, fit)
    seconds = time.perf_counter() - start
    scaled = quietly(TemperatureScaling().fit, fit)
    return {
        **measured(fitted, test),
        "change": against(fitted, scaled, test),
        "seconds": seconds,
        "parameters": parameters(fitted),
        "chosen": fitted.method,
        "rows": fit.n,
    }


def measured(fitted: CalibrationMap, test: CalibrationSet) -> dict[str, float]:
    """Return every figure of the tables on the test rows."""
    p = fitted.apply_set(test)
    rows = row_scores(p, test.labels)
    own = float((test.logits.argmax(axis=1) == test.labels).mean())
    return {
        "ece": 100 * rows.top.equal_width(15).ece(),
        "floor": 100 * noise_floor(rows.top.confidence, draws=FLOOR_DRAWS).mean,
        "ada_ece": 100 * ada_ece(p, test.labels),
        "classwise_ece": 100 * classwise_ece(p, test.labels),
        "nll": float(rows.nll.mean()),
        "brier": float(rows.brier.mean()),
        "accuracy": 100 * float((p.argmax(axis=1) == test.labels).mean()),
        "accuracy_change": 100 * (float((p.argmax(axis=1) == test.labels).mean()) - own),
    }


def against(
    fitted: CalibrationMap, scaled: CalibrationMap, test: CalibrationSet
) -> dict[str, float]:
    """Return ECE-15 minus TS's in percent, with its 95 % interval over resampled rows."""
    before, after = (row_scores(one.apply_set(test), test.labels) for one in (scaled, fitted))
    interval = paired_intervals(before, after, draws=DRAWS)["ece"]
    return {name: 100 * value for name, value in asdict(interval).items() if name != "level"}


def parameters(fitted: CalibrationMap) -> int:
    """Count the numbers in a map."""
    values = (getattr(fitted, one.name) for one in fields(fitted) if one.name not in NOT_FITTED)
    return sum(np.size(one) for one in values if isinstance(one, np.ndarray | float | int))


def quietly(function: Any, *arguments: Any) -> Any:
    """Call a function without its fit warnings, which the tables show anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return function(*arguments)
