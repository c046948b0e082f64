"""Every post-hoc method on real logits: calibration, likelihood, accuracy, time, and few rows.

    python studies/posthoc.py FOLDER [--only main] [--methods auto,smart,temperature --out FOLDER]

FOLDER holds .npz files with ``logits`` and ``labels``; logit_sets.py describes the splits. Each
finished fit is stored in --kept, so that an interrupted study resumes; delete the folder to start
over. The tables and the chart of docs/studies/posthoc.md are written to --out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import posthoc_smart_paper
from logit_sets import set_names, split_numbers
from posthoc_few_rows import CHART, few_rows_chart, few_rows_table
from posthoc_fitting import Plan
from posthoc_plans import Recipe, Study
from posthoc_report import (
    auto_table,
    by_set_table,
    class_change_table,
    main_table,
    recipes_table,
    variants_table,
)

from calibrators.numerics.objectives import ObjectiveName
from calibrators.registry import all_methods

WITH_CLASS_CHANGE = ("auto", {"allow_class_change": True, "budget": 60.0})
OBJECTIVES = get_args(ObjectiveName)
INDICATORS = ("margin", "entropy", "confidence", "max_logit", "max_minus_mean", "all_logits")
ROWS = (50, 100, 200, 500, 1000, 2000, 5000)
WITH_FEW_ROWS = (
    "additive",
    "temperature",
    "smart",
    "pts",
    "predicted_class_temperature",
    "ets",
    "isotonic",
    "histogram",
    "spline",
    "vector",
    "auto",
)
SPLITS_WITH_FEW_ROWS = 3
SPLITS_WITH_OBJECTIVES = 2
AS_PUBLISHED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("temperature", {}),
    ("smart", {}),
    *(("smart", {"seed": seed}) for seed in (1, 2)),
    ("smart", {"objective": "charbonnier_per_sample"}),
    *(("smart", {"as_published": True, "seed": seed}) for seed in (0, 1, 2)),
    ("smart", {"as_published": True, "objective": "charbonnier_per_sample"}),
)
COMPARATORS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("temperature", {}),
    ("temperature", {"objective": "ada_ece", "grid": "tenths"}),
    ("predicted_class_temperature", {}),
    ("cts", {}),
    ("cts", {"as_published": True}),
    ("histogram", {}),
    ("bbq", {}),
)
PARTS = (
    "main",
    "variants",
    "as-published",
    "comparators",
    "objectives",
    "few-rows",
    "class-change",
    *posthoc_smart_paper.PARTS,
)


def main_recipes() -> list[Recipe]:
    """Return every method with its defaults."""
    known = sorted(all_methods().items())  # these sets have neither segments nor features
    return [(name, {}) for name, one in known if not (one.needs_segments or one.needs_features)]


def smart_variants() -> list[Recipe]:
    """Return SMART with objectives and indicators other than its defaults."""
    objectives = [("smart", {"objective": name}) for name in OBJECTIVES]
    return [*objectives, *(("smart", {"indicator": name}) for name in INDICATORS)]


def objectives() -> list[Recipe]:
    """Return temperature scaling and PTS with the objectives of the paper and Eq. 6."""
    names = [one for one in OBJECTIVES if one != "mae"]
    return [(name, {"objective": one}) for name in ("temperature", "pts") for one in names]


def planned_with_few_rows(folder: Path, names: Sequence[str]) -> Iterator[Plan]:
    """Yield the fits on the first few rows of each split."""
    for name in names:
        for number in split_numbers(folder, name)[:SPLITS_WITH_FEW_ROWS]:
            for rows in ROWS:
                for method in WITH_FEW_ROWS:
                    yield Plan(name, number, method, (), rows)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2, help="parallel fits, one core each")
    parser.add_argument("--kept", type=Path, default=Path("out/study-posthoc"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--only", choices=PARTS, help="run only this part")
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        help="methods of the main part, including temperature; default: all",
    )
    options = parser.parse_args()
    if not set_names(options.folder):
        parser.error(f"no .npz files in {options.folder}")
    return options


def main() -> None:
    """Run the study and write its tables and charts."""
    options = arguments()
    study = Study(options.folder, options.kept, options.out, options.processes)
    names, same = study.names, study.same
    if options.only in (None, "main"):
        recipes = [one for one in main_recipes() if one[0] in (options.methods or all_methods())]
        found = study.fitted(study.planned(names, recipes))
        study.show("every method", main_table(found))
        study.show("by set", by_set_table(found))
        study.show("auto", auto_table(found))
    if options.only in (None, "variants"):
        found = study.fitted(study.planned(same, smart_variants()))
        study.show("table 3", variants_table(found, "objective"))
        study.show("table 4", variants_table(found, "indicator"))
    if options.only in (None, "as-published"):
        found = study.fitted(study.planned(same, AS_PUBLISHED))
        study.show("as published", recipes_table(found))
    if options.only in (None, "comparators"):
        found = study.fitted(study.planned(same, COMPARATORS))
        study.show("comparators", main_table(found))
    if options.only in (None, "objectives"):
        plans = study.planned(same, objectives(), SPLITS_WITH_OBJECTIVES)
        found = study.fitted(plans)
        study.show("objectives", recipes_table(found))
    if options.only in (None, "few-rows"):
        found = study.fitted(planned_with_few_rows(options.folder, same))
        study.show("few rows", few_rows_table(found))
        study.draw(CHART, few_rows_chart(found))
    if options.only in (None, "class-change"):
        found = study.fitted(study.planned(same, [("auto", {}), WITH_CLASS_CHANGE]))
        study.show("class change", class_change_table(found))
    for name, part in posthoc_smart_paper.PARTS.items():
        if options.only in (None, name):
            part(study)


if __name__ == "__main__":
    main()
