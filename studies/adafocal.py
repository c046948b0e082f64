"""CE, focal-3, FLSD-53 and AdaFocal on Fashion-MNIST: error and calibration before and after maps.

    python studies/adafocal.py [--data PATH] [--explore] [--quick]

30,000 images are used for training, 10,000 for AdaFocal's updates and for fitting TS and SMART,
10,000 for choosing settings (--explore), and the 10,000 test images only for the table. Each
finished run is stored in --kept, so that an interrupted study resumes; delete the folder to start
over. The tables and the chart of docs/studies/adafocal.md are written to --out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from adafocal_report import SVG, explored, gamma_steps, table
from adafocal_training import FIXED, Plan, run
from fashion_mnist import divided, load, synthetic
from kept import put_between, run_all

from calibrators.charts import run_gammas, to_svg

EPOCHS = 20
SEEDS = (0, 1, 2)
EXPLORED = ((1.0, 1), (1.0, 4), (10.0, 1), (5.0, 4), (30.0, 1))  # rate, updates per epoch
PUBLISHED, CHOSEN = EXPLORED[0], EXPLORED[-1]
EXPLORED_SEED = 100  # not a seed of the table
SHOWN_AFTER = (10, 15, 25, 30)  # epochs of the exploration, in addition to EPOCHS
SECONDS = 4.5  # per epoch on one core


def planned(epochs: int, seeds: Sequence[int]) -> list[Plan]:
    """Return the runs of the table."""
    fixed = [Plan(loss, seed, epochs) for loss in FIXED for seed in seeds]
    settings = (PUBLISHED, CHOSEN)
    return [*fixed, *(Plan("AdaFocal", seed, epochs, *one) for one in settings for seed in seeds)]


def exploration(epochs: int) -> list[Plan]:
    """Return the runs used to choose AdaFocal's rate and interval."""
    adaptive = [Plan("AdaFocal", EXPLORED_SEED, epochs, *settings) for settings in EXPLORED]
    return [Plan("CE", EXPLORED_SEED, epochs), *adaptive]


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz file or folder; see fashion_mnist.load")
    parser.add_argument("--explore", action="store_true", help="only compare AdaFocal's settings")
    parser.add_argument("--quick", action="store_true", help="smoke test on synthetic images")
    parser.add_argument("--processes", type=int, default=2, help="parallel runs, one core each")
    parser.add_argument("--kept", type=Path, default=Path("out/study-adafocal"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    return parser.parse_args()


def main() -> None:
    """Run the study and write its tables and chart."""
    options = arguments()
    epochs = 2 if options.quick else EPOCHS
    others = (1, 3) if options.quick else SHOWN_AFTER
    seeds = SEEDS[:1] if options.quick else SEEDS
    plans = exploration(max(others)) if options.explore else planned(epochs, seeds)
    if options.quick:
        images = synthetic(900, 1), synthetic(200, 2)
    else:
        images = load(options.data)
        minutes = sum(plan.epochs for plan in plans) * SECONDS / 60 / options.processes
        sys.stderr.write(f"{len(plans)} runs: about {minutes:.0f} minutes on idle cores\n")
    parts = divided(*images, options.explore)
    found = run_all(plans, run, parts, options.kept, options.processes)
    text = explored(found, epochs, others) if options.explore else table(found)
    sys.stdout.write(text)
    name = "exploration" if options.explore else "table"
    put_between(options.out / "adafocal.md", name, text)
    if not options.explore:
        shown = plans.index(Plan("AdaFocal", seeds[0], epochs, *CHOSEN))
        (options.out / SVG).write_text(to_svg(run_gammas(gamma_steps(found[shown]))))


if __name__ == "__main__":
    main()
