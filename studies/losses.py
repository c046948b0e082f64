"""Every loss of the registry on Fashion-MNIST: error and calibration before and after maps.

    python studies/losses.py [--data PATH] [--explore | --imbalance 10 50 | --refcal] [--quick]

30,000 images are used for training (balanced, or a long tail of them), 10,000 for fitting TS and
SMART and for the losses that adapt, 10,000 for choosing settings (--explore), and the 10,000 test
images only for the tables. The long tail has an imbalance of 100; --imbalance runs only long tails
with the given imbalances, and --refcal only RefCal with several losses on the long tail. Each
finished run is stored in --kept, so that an interrupted study resumes; delete the folder to start
over. The tables and charts of docs/studies/losses.md are written to --out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fashion_mnist import divided, load, synthetic
from kept import Found, put_between, run_all
from losses_report import (
    CHARTS,
    REFCAL_COLUMNS,
    against_ce,
    by_epoch,
    explored,
    reliability_chart,
    tables,
)
from losses_training import BALANCED, IMBALANCE, TAIL, Plan, run
from outsiders import digits, noise

from calibrators.charts import to_svg
from calibrators.losses import all_losses

EPOCHS = {BALANCED: 20, TAIL: 40}
SEEDS = (0, 1, 2)
MAIN = ("cross_entropy", "focal", "adafocal", "seca", "selective_risk", "refcal")
# settings of losses that are not run with their defaults; the long tail uses the last
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "adafocal": ({"rate": 30.0},),  # chosen in docs/studies/adafocal.md
    "selective_risk": ({}, {"score": "neg_entropy", "smoothing": 0.02}),  # chosen by --explore
    "dual_focal": ({}, {"as_published": False}),
}
EXPLORED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cross_entropy", {}),
    ("seca", {}),
    ("selective_risk", {}),
    ("selective_risk", {"coverage": 0.4}),
    ("selective_risk", {"coverage": 0.92}),
    ("selective_risk", {"smoothing": 0.02}),
    ("selective_risk", {"score": "margin"}),
    ("selective_risk", {"score": "neg_entropy"}),
    ("selective_risk", {"smoothing": 0.005}),
    ("selective_risk", {"coverage": 0.4, "smoothing": 0.02}),
    ("selective_risk", {"coverage": 0.4, "smoothing": 0.005}),
    ("selective_risk", {"score": "neg_entropy", "smoothing": 0.02}),
    ("selective_risk", {"weight_gradient": True, "warm_up": 1175}),  # five epochs
    ("selective_risk", {"weight_gradient": True, "warm_up": 3525, "smoothing": 0.02}),  # fifteen
)
REFCAL_WITH = ("cross_entropy", "label_smoothing", "mmce", "correctness_ranking")
EXPLORED_SEED = 100  # not a seed of the tables
SECONDS = 4.0  # per epoch of 30,000 images on one core


def planned(epochs: dict[str, int], seeds: Sequence[int]) -> list[Plan]:
    """Return the runs of the tables, the main losses first."""
    names = [*MAIN, *(name for name in sorted(all_losses()) if name not in MAIN)]
    settings = [(name, params) for name in names for params in SETTINGS.get(name, ({},))]
    balanced = [_plan(*one, BALANCED, seed, epochs) for one in settings for seed in seeds]
    return [*balanced, *tails(epochs, seeds, (TAIL,))]


def tails(epochs: dict[str, int], seeds: Sequence[int], tasks: Sequence[str]) -> list[Plan]:
    """Return the runs of the main losses on long tails, each with its last settings."""
    chosen = {name: SETTINGS.get(name, ({},))[-1] for name in MAIN}
    return [_plan(*one, task, seeds[0], epochs) for task in tasks for one in chosen.items()]


def with_refcal(epochs: dict[str, int], seed: int) -> list[Plan]:
    """Return the runs of several losses on the long tail, each alone and within RefCal."""
    settings = [one for name in REFCAL_WITH for one in ((name, {}), ("refcal", {"loss": name}))]
    return [_plan(*one, TAIL, seed, epochs) for one in settings]


def _plan(name: str, params: dict[str, Any], task: str, seed: int, epochs: dict[str, int]) -> Plan:
    return Plan(
        name, tuple(params.items()), task, seed, epochs[BALANCED if task == BALANCED else TAIL]
    )


def exploration(epochs: int) -> list[Plan]:
    """Return the runs used to choose the settings of the selective-risk loss."""
    return [_plan(*one, BALANCED, EXPLORED_SEED, {BALANCED: epochs}) for one in EXPLORED]


def minutes(plans: Sequence[Plan], processes: int) -> float:
    """Estimate the minutes of these runs on idle cores.

    A long tail has a quarter of the training images, but the full validation set.
    """
    epochs = sum(one.epochs * (1 if one.task == BALANCED else 0.4) for one in plans)
    return epochs * SECONDS / 60 / processes


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz file or folder; see fashion_mnist.load")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--explore", action="store_true", help="only compare settings")
    only.add_argument(
        "--imbalance",
        type=int,
        nargs="+",
        choices=sorted(IMBALANCE.values()),
        help="only run the long tails of these imbalances",
    )
    only.add_argument(
        "--refcal", action="store_true", help="only run RefCal with several losses, long tail"
    )
    parser.add_argument("--quick", action="store_true", help="smoke test on synthetic images")
    parser.add_argument("--processes", type=int, default=2, help="parallel runs, one core each")
    parser.add_argument("--kept", type=Path, default=Path("out/study-losses"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    return parser.parse_args()


def main() -> None:
    """Run the study and write its tables and charts."""
    options = arguments()
    epochs = dict.fromkeys(EPOCHS, 1) if options.quick else EPOCHS
    seeds = SEEDS[:1] if options.quick else SEEDS
    chosen = [task for task, one in IMBALANCE.items() if one in (options.imbalance or ())]
    plans = tails(epochs, seeds, chosen) if chosen else planned(epochs, seeds)
    if options.explore:
        plans = exploration(epochs[BALANCED])
    elif options.refcal:
        plans = with_refcal(epochs, seeds[0])
    images = (synthetic(900, 1), synthetic(200, 2)) if options.quick else load(options.data)
    sys.stderr.write(
        f"{len(plans)} runs: about {minutes(plans, options.processes):.0f} minutes on idle cores; "
        f"runs stored in {options.kept} are not repeated\n"
    )
    parts = divided(*images, options.explore) | {"digits": digits(), "noise": noise()}
    found = run_all(plans, run, parts, options.kept, options.processes)
    page = options.out / "losses.md"
    if options.explore:
        shown = {"exploration": explored(found)}
    elif options.refcal:
        shown = {"refcal": tables(found, columns=REFCAL_COLUMNS)}
    elif chosen:
        shown = {task: tables(of_task(found, task)) for task in chosen}
    else:
        balanced, tail = (of_task(found, task) for task in (BALANCED, TAIL))
        shown = {
            "balanced": "\n".join([tables(balanced), against_ce(balanced), by_epoch(balanced)]),
            "long tail": tables(tail),
        }
        for name, runs in ((BALANCED, balanced), (TAIL, tail)):
            (options.out / CHARTS[name]).write_text(to_svg(reliability_chart(runs)))
    for name, text in shown.items():
        sys.stdout.write(text)
        put_between(page, name, text)


def of_task(found: Sequence[Found], task: str) -> list[Found]:
    """Return the runs of a task."""
    return [one for one in found if one["plan"]["task"] == task]


if __name__ == "__main__":
    main()
