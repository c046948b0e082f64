"""``calibrd demo``: fit every method to a real model's output and judge it on held-out rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrators import CalibrationMap, CalibrationSet, all_methods
from calibrators.numerics.softmax import margins, softmax
from calibrators.registry import DEFAULT_METHOD
from calibrators.report import html_page
from calibrators.report.by_temperature import temperatures_of
from calibrators.report.report import Report, evaluate
from calibrators.sample import TITLE, sample
from calibrd.cli.context import AddCommand, CommandContext

WIDEST_NAME = 27
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


@dataclass(frozen=True)
class Row:
    """A fitted map, its report, and the duration of the fit."""

    name: str
    fitted: CalibrationMap
    report: Report
    seconds: float


def add_to(add_command: AddCommand) -> None:
    """Add the command."""
    parser = add_command(
        "demo", demo, "fit every method to a bundled real sample, without a service or network"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("calibrd-demo.html"),
        metavar="FILE",
        help="report page to write [calibrd-demo.html]",
    )


def demo(context: CommandContext) -> None:
    """Fit every method, print a table and write the report page."""
    say = context.output.say
    cal, test = sample("cal"), sample("test")
    say(f"{TITLE}: fitted on {cal.n:,} rows, judged on {test.n:,} others.")
    say("The floor is the ECE that a perfectly calibrated model would show.\n")
    say(_aligned("method", HEAD, "verdict"))
    rows = []
    left_out = [
        name
        for name, recipe in all_methods().items()
        if recipe.needs_segments or recipe.needs_features
    ]
    methods = set(all_methods()).difference(left_out)
    for name in sorted(methods, key=lambda one: (one == DEFAULT_METHOD, one != "identity", one)):
        rows.append(_fitted(name, cal, test))
        say(_line(rows[-1]))
    say(f"\nLeft out, because this sample has no segments or features: {', '.join(left_out)}")
    chosen = next(row for row in rows if row.name == DEFAULT_METHOD)
    target = _write_page(chosen, context.flags.out)
    say(f"\nWrote the report of {chosen.name!r} to {target}")
    context.output.document(_document(rows, left_out, target))


def _fitted(name: str, cal: CalibrationSet, test: CalibrationSet) -> Row:
    """Fit a method and judge the map on the test rows."""
    started = time.perf_counter()
    fitted = all_methods()[name]().fit(cal)
    seconds = time.perf_counter() - started
    report = evaluate(
        fitted.apply(test.logits),
        test.labels,
        before=softmax(test.logits),
        margin=margins(test.logits),
        judged_on=f"{test.n:,} test images not used in any fit",
    )
    report = replace(report, temperatures=temperatures_of(fitted, test))
    return Row(name, fitted, report.with_fit(method=fitted.method, **fitted.fit_info), seconds)


def _line(row: Row) -> str:
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
        f"{row.seconds:.1f}",
    )
    return _aligned(row.name, figures, str(report.verdict))


def _aligned(first: str, cells: Iterable[str], last: str) -> str:
    figures = (f"{one:>{width}}" for one, width in zip(cells, HEAD.values(), strict=True))
    return f"{first:<{WIDEST_NAME}} {' '.join(figures)}  {last}"


def _write_page(row: Row, target: Path) -> Path:
    """Write the report page of one map and return its path."""
    text = html_page.render(row.report, title=f"{TITLE}: calibrated by {row.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target.resolve()


def _document(rows: list[Row], left_out: list[str], target: Path) -> dict[str, Any]:
    methods = [
        {
            "method": row.name,
            "map": row.fitted.method,
            "ece_before": row.report.sides["before"].metrics["ece"],
            "ece": row.report.intervals["ece"],
            "noise_floor": row.report.noise_floor,
            "nll": row.report.metrics["nll"],
            "brier": row.report.metrics["brier"],
            "accuracy": row.report.metrics["accuracy"],
            "seconds": row.seconds,
            "verdict": row.report.verdict,
        }
        for row in rows
    ]
    return {"methods": methods, "left_out": left_out, "page": str(target)}
