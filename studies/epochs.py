"""Losses on Fashion-MNIST epoch by epoch, and settings of AdaFocal and CalFocal.

    python studies/epochs.py [--data PATH] [--quick]

The parts, the network and the optimiser are as in losses.py, with one seed and 10,000 of the
training images. Each finished run is stored in --kept, so that an interrupted study resumes;
--report writes the tables of the stored runs. The tables and charts of docs/studies/epochs.md are
written to --out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from epochs_report import charts, sections
from epochs_training import run
from fashion_mnist import divided, load, synthetic
from kept import put_between, run_all, stored
from losses_training import BALANCED, Plan
from outsiders import digits, noise
from weights import CDF_CHART, WEIGHTS_CHART, cdf_chart, cdf_table, weights_chart

from calibrators.charts import to_svg

EPOCHS = 20
TRAIN_ROWS = 10_000
SECONDS = 2.5  # per epoch on one core
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cross_entropy", {}),
    ("seca", {}),
    ("label_smoothing", {}),
    ("adafocal", {"rate": 30.0}),
    ("flsd_53", {}),
    ("focal", {}),
    ("calfocal", {"rate": 10.0}),
    ("calfocal", {"rate": 100.0}),
    ("focal", {"gamma": 5.0}),
    ("calfocal", {}),
    ("calfocal", {"rate": 10.0, "per_sample": True}),
    ("adafocal", {"rate": 30.0, "gamma_max": None}),
    ("adafocal", {"rate": 30.0, "bins": 5}),
    ("adafocal", {"rate": 30.0, "bins": 50}),
    ("adafocal", {"rate": 30.0, "gamma_max": 50.0}),
    ("brier", {}),
    ("mmce", {}),
    ("focal", {"gamma": 4.0}),
)


def planned(epochs: int) -> list[Plan]:
    """Return the runs, in the order in which they are used."""
    return [Plan(name, tuple(params.items()), BALANCED, 0, epochs) for name, params in RUNS]


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz file or folder; see fashion_mnist.load")
    parser.add_argument("--quick", action="store_true", help="smoke test on synthetic images")
    parser.add_argument("--report", action="store_true", help="write tables of the stored runs")
    parser.add_argument("--most", type=int, help="start at most this many runs")
    parser.add_argument("--processes", type=int, default=2, help="parallel runs, one core each")
    parser.add_argument("--kept", type=Path, default=Path("out/study-epochs"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    return parser.parse_args()


def main() -> None:
    """Run the study and write its tables and charts."""
    options = arguments()
    plans = planned(2 if options.quick else EPOCHS)
    if options.report:
        found = stored(plans, options.kept)
        if not found:
            raise SystemExit(f"no run of this study is stored in {options.kept}")
    else:
        if options.most is not None:
            plans = plans[: len(stored(plans, options.kept)) + options.most]
        minutes = sum(plan.epochs for plan in plans) * SECONDS / 60 / options.processes
        sys.stderr.write(
            f"{len(plans)} runs: about {minutes:.0f} minutes on idle cores; "
            f"runs stored in {options.kept} are not repeated\n"
        )
        images = (synthetic(900, 1), synthetic(200, 2)) if options.quick else load(options.data)
        parts = divided(*images, False) | {"digits": digits(), "noise": noise()}
        parts["train"] = parts["train"].take(np.arange(min(TRAIN_ROWS, len(parts["train"].labels))))
        found = run_all(plans, run, parts, options.kept, options.processes)
    for name, text in {**sections(found), "distribution": cdf_table()}.items():
        sys.stdout.write(text)
        put_between(options.out / "epochs.md", name, text)
    without_runs = {WEIGHTS_CHART: weights_chart(), CDF_CHART: cdf_chart()}
    for name, chart in {**charts(found), **without_runs}.items():
        (options.out / name).write_text(to_svg(chart))


if __name__ == "__main__":
    main()
