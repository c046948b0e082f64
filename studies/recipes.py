"""The papers' losses on two recipes: CIFAR-10 with a small residual network, and a text task.

    python studies/recipes.py text --data embeddings.npz [--quick] [--report]
    python studies/recipes.py images --data cifar10.npz [--quick] [--report]

The text task is made by text_embeddings.py; cifar10.load describes the image archive. Each finished
run is stored in --kept, so that an interrupted recipe resumes; --report writes the tables of the
stored runs and starts none. The tables of docs/studies/recipes.md are written to --out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cifar10
from kept import Found, put_between, run_all, stored
from losses_report import RELEASED, against_ce, by_epoch, by_loss, tables
from recipe_tasks import Rows, load_text, synthetic_text
from recipe_training import Plan, run

AU = "selective_risk"
# the main losses first; scale is a factor of the loss
LOSSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cross_entropy", {}),
    ("adafocal", {}),
    ("seca", {}),
    (AU, {}),
    (AU, {"weight_gradient": True}),
    ("cross_entropy", {"scale": 0.7}),
    (AU, RELEASED),
    (AU, {"weight_gradient": True, "smoothing": 0.4}),
    ("label_smoothing", {}),
    ("focal", {}),
    ("flsd_53", {}),
    ("dual_focal", {}),
    ("refcal", {}),
    ("adafocal", {"rate": 10.0}),
)
MAIN = 8  # the losses whose seeds are run first
SEEDS = (0, 1, 2)
EPOCHS = {"text": 40, "images": 30}
SECONDS = {"text": 0.12, "images": 9.0}  # per epoch on one core
QUICK = {"train": 400, "validation": 300, "calibration": 300, "test": 300}
MAPS = {
    "none": "Before any map",
    "TS": "After temperature scaling by NLL",
    "TS by ECE": "After temperature scaling by ECE",
    "TS by AdaECE": "After temperature scaling by AdaECE, in tenths",
    "SMART": "After SMART",
    "MetaMis": "After MetaCal, miscoverage 5 %",
    "MetaAcc": "After MetaCal, accuracy",
}
COLUMNS = {
    "error": "error",
    "ece": "ECE",
    "ada_ece": "AdaECE",
    "classwise_ece": "class-wise ECE",
    "smece": "smECE",
    "nll": "NLL",
    "refinement": "refinement AUROC",
    "one_vs_one_auroc": "one-vs-one AUROC",
    "aurc": "AURC",
}


def planned(recipe: str, epochs: int, seeds: Sequence[int]) -> list[Plan]:
    """Return the runs of a recipe: two seeds of the main losses first."""
    return [
        Plan(recipe, loss, tuple(params.items()), seed, epochs)
        for _, number, seed in sorted(
            (seed + (1.5 if number >= MAIN else 0), number, seed)
            for seed in seeds
            for number in range(len(LOSSES))
        )
        for loss, params in LOSSES[number : number + 1]
    ]


def loaded(recipe: str, path: Path | None, quick: bool) -> dict[str, Rows]:
    """Return the parts of a recipe."""
    if quick:
        return (synthetic_text if recipe == "text" else cifar10.synthetic)(QUICK)
    if path is None:
        raise SystemExit("--data must be the path of the archive: see --help")
    return (load_text if recipe == "text" else cifar10.load)(path)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=list(EPOCHS))
    parser.add_argument("--data", type=Path, help=".npz archive of embeddings or of images")
    parser.add_argument("--quick", action="store_true", help="smoke test on synthetic rows")
    parser.add_argument("--report", action="store_true", help="write tables of the stored runs")
    parser.add_argument("--processes", type=int, default=2, help="parallel runs, one core each")
    parser.add_argument("--kept", type=Path, default=Path("studies/results/recipes"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    return parser.parse_args()


def main() -> None:
    """Run a recipe and write its tables."""
    options = arguments()
    epochs = 6 if options.quick else EPOCHS[options.recipe]
    plans = planned(options.recipe, epochs, SEEDS[:1] if options.quick else SEEDS)
    if options.report:
        found = stored(plans, options.kept)
        if not found:
            raise SystemExit(f"no run of this recipe is stored in {options.kept}")
    else:
        minutes = len(plans) * epochs * SECONDS[options.recipe] / 60 / options.processes
        sys.stderr.write(
            f"{len(plans)} runs: about {minutes:.0f} minutes on idle cores; "
            f"runs stored in {options.kept} are not repeated\n"
        )
        parts = loaded(options.recipe, options.data, options.quick)
        found = run_all(plans, run, parts, options.kept, options.processes)
    text = report(found)
    sys.stdout.write(text)
    put_between(options.out / "recipes.md", options.recipe, text)


def report(found: Sequence[Found]) -> str:
    """Return the tables of these runs."""
    columns = COLUMNS | ({"noise": "OOD AUROC, noise"} if "noise" in _figures(found[0]) else {})
    shown = [tables(found, MAPS, columns, with_seeds=True)]
    if by_loss(found).keys() > {"cross_entropy"}:
        shown.append(against_ce(found))
    return "\n".join([*shown, by_epoch(found), checkpoints(found)])


def checkpoints(found: Sequence[Found]) -> str:
    """Return a table of the epochs whose state was kept."""
    lines = [
        "**Epoch with the lowest validation NLL, by seed**",
        "",
        "| loss | epochs |",
        "|---|---|",
    ]
    for loss, runs in by_loss(found).items():
        lines.append(f"| {loss} | {', '.join(str(one['epoch']) for one in runs)} |")
    return "\n".join(lines) + "\n"


def _figures(found: Found) -> dict[str, float]:
    figures: dict[str, float] = found["figures"]["none"]
    return figures


if __name__ == "__main__":
    main()
