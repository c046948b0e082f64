"""Parts of the study of post-hoc methods that match tables and figures of the SMART paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kept import Found
from logit_sets import SPLITS, is_shifted, split
from posthoc_descent import OBJECTIVES, descent
from posthoc_fitting import Plan, run_on_a_fifth
from posthoc_margins import (
    CHART,
    INDICATOR_CHART,
    MAPS,
    by_margin,
    indicator_chart,
    indicator_table,
    temperatures_chart,
)
from posthoc_plans import Recipe, Study
from posthoc_report import IN_THE_PAPER, figure_by_set, grouped, paper_table

WITHOUT_CTS: tuple[Recipe, ...] = tuple((name, {}) for name in IN_THE_PAPER if name != "cts")
SIGMAS = (0.01, 0.05, 0.1, 0.5, 1.0)
DELTAS = (0.001, 0.01, 0.1, 1.0)
SPLITS_OF_A_GRID = 1
SPLITS_OF_FIFTHS = SPLITS[:2]
SPLITS_OF_CTS = 2  # its search takes seconds with many classes
MOST_NUMBERS_OF_A_DESCENT = 60_000  # logits in a set's fit rows
BINNED, AS_PRINTED = "charbonnier", "charbonnier_per_sample"
SEEDS = range(10)
EPOCHS = (10, 30, 50, 80, 150, 300)
ADDITIVE: Recipe = ("additive", {})


def paper_sets(study: Study) -> None:
    """Show ECE, accuracy and AdaECE by set: Tables 1 and 6, 7 and 8."""
    found = study.fitted(study.planned(study.names, WITHOUT_CTS))
    found += study.fitted(study.planned(study.names, [("cts", {})], SPLITS_OF_CTS))
    study.show("table 1", paper_table(found))
    for name, figure in (("table 7", "accuracy"), ("table 8", "ada_ece")):
        study.show(name, "\n".join(figure_by_set(found, figure)) + "\n")


def fifths(study: Study) -> None:
    """Show ECE with maps fitted on a fifth of every set, shifted sets included."""
    recipes = [*WITHOUT_CTS, ADDITIVE]
    plans = (
        Plan(name, number, method, tuple(params.items()))
        for name in study.names
        for number in SPLITS_OF_FIFTHS
        for method, params in recipes
    )
    found = study.fitted(plans, run_on_a_fifth, "fifths")
    study.show("fifths", "\n".join(figure_by_set(found, "ece")) + "\n")


def seeds(study: Study) -> None:
    """Show SMART with several seeds on one split, and on several splits with one seed."""
    drawn = [("smart", {"seed": seed}) for seed in SEEDS]
    of_seeds = study.fitted(study.planned(study.names, drawn, 1))
    of_splits = study.fitted(study.planned(study.names, [("smart", {})]))
    study.show("seeds", seeds_table(of_seeds, of_splits))


def seeds_table(of_seeds: Sequence[Found], of_splits: Sequence[Found]) -> str:
    """Return mean and standard deviation of ECE-15 over seeds and over splits, one row per set."""
    lines = ["| set | ECE-15, 10 seeds on one split | ECE-15, one seed on 5 splits |"]
    lines.append("|---|---:|---:|")
    splits = grouped(of_splits, lambda plan: str(plan["data"]))
    for data, ones in grouped(of_seeds, lambda plan: str(plan["data"])).items():
        cells = []
        for values in ([one["ece"] for one in found] for found in (ones, splits[data])):
            deviation = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.2f}{deviation}")
        lines.append(f"| {data} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def sensitivity(study: Study) -> None:
    """Show ECE by sigma (the paper's lambda) and delta: Tables 13 and 14."""
    tables = []
    for objective in (BINNED, AS_PRINTED):
        recipes: list[Recipe] = [
            ("smart", {"objective": objective, "lam": 0.5 / sigma**2, "delta": delta})
            for sigma in SIGMAS
            for delta in DELTAS
        ]
        found = study.fitted(study.planned(study.same, recipes, SPLITS_OF_A_GRID))
        tables.append(f"**`{objective}`**\n\n{grid_table(found)}")
    study.show("sensitivity", "\n".join(tables))


def grid_table(found: Sequence[Found]) -> str:
    """Return the mean ECE-15 over sets: a row per sigma, a column per delta."""
    lines = [f"| sigma | {' | '.join(f'delta {delta:g}' for delta in DELTAS)} |"]
    lines.append("|---|" + "---:|" * len(DELTAS))
    for sigma in SIGMAS:
        cells = []
        for delta in DELTAS:
            wanted = {"lam": 0.5 / sigma**2, "delta": delta}
            chosen = [one for one in found if wanted.items() <= dict(one["plan"]["params"]).items()]
            sets = grouped(chosen, lambda plan: str(plan["data"]))
            means = [np.mean([one["ece"] for one in ones]) for ones in sets.values()]
            cells.append(f"{np.mean(means):.2f}")
        lines.append(f"| {sigma:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def nll_epochs(study: Study) -> None:
    """Show NLL and ECE by epoch of SMART's published training on NLL: Figure 2, right."""
    common = {"as_published": True, "objective": "nll"}
    recipes = [("smart", {**common, "steps": epochs}) for epochs in EPOCHS]
    found = study.fitted(study.planned(study.same, recipes, 1))
    study.show("nll epochs", nll_epochs_table(found))


def nll_epochs_table(found: Sequence[Found]) -> str:
    """Return test ECE-15 and NLL by epoch: a row per set and figure."""
    heads = " | ".join(f"{epochs} epochs" for epochs in EPOCHS)
    lines = [f"| set | figure | {heads} |", "|---|---|" + "---:|" * len(EPOCHS)]
    for data, ones in grouped(found, lambda plan: str(plan["data"])).items():
        by_epoch = {dict(one["plan"]["params"])["steps"]: one for one in ones}
        for title, name, digits in (("ECE-15", "ece", 2), ("NLL", "nll", 4)):
            cells = [f"{by_epoch[epochs][name]:.{digits}f}" for epochs in EPOCHS]
            lines.append(f"| {data} | {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def margins(study: Study) -> None:
    """Show temperature and change in confidence by margin: Figures 16 and 15 f."""
    plans = [Plan(name, 0, "by margin") for name in study.same]
    found = study.fitted(iter(plans), by_margin, "margins")
    study.show("thirds", thirds_table(found))
    study.show("temperature by margin", correlations_table(found))
    study.draw(CHART, temperatures_chart(found))


def thirds_table(found: Sequence[Found]) -> str:
    """Return confidence minus accuracy by third of the margin, and what each map changes."""
    lines = [f"| set | margin | confidence - accuracy | {' | '.join(MAPS)} |"]
    lines.append("|---|---|---:|" + "---:|" * len(MAPS))
    for one in found:
        for third in one["thirds"]:
            changes = " | ".join(f"{third[name]:+.1f}" for name in MAPS)
            row = [one["plan"]["data"], third["third"], f"{third['gap']:+.1f}", changes]
            lines.append(f"| {' | '.join(row)} |")
    thirds = [third for one in found for third in one["thirds"]]
    means = (
        f"{name} {np.mean([abs(third['gap'] + third[name]) for third in thirds]):.2f}"
        for name in MAPS
    )
    return "\n".join([*lines, "", f"Mean absolute remaining gap: {', '.join(means)}."]) + "\n"


def correlations_table(found: Sequence[Found]) -> str:
    """Return how SMART's temperature varies with the margin, one row per set."""
    heads = "T at the lowest margins | lowest T | highest T | T at the highest margins"
    lines = [f"| set | correlation of T and margin | {heads} |", "|---|" + "---:|" * 5]
    for one in found:
        curve = [cell["temperature"] for cell in one["curve"]]
        values = [curve[0], min(curve), max(curve), curve[-1]]
        cells = [f"{one['correlation']:+.2f}", *(f"{value:.2f}" for value in values)]
        lines.append(f"| {one['plan']['data']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def indicators(study: Study) -> None:
    """Show temperatures of random logits against three indicators: Figure 2, left."""
    study.show("random logits", indicator_table())
    study.draw(INDICATOR_CHART, indicator_chart())


def descents(study: Study) -> None:
    """Show loss and gradient norm by epoch and objective: Figure 3."""
    small = [
        name
        for name in study.same
        if split(study.folder, name, 0)[0].logits.size <= MOST_NUMBERS_OF_A_DESCENT
    ]
    plans = [
        Plan(name, 0, "descent", (("objective", objective),))
        for name in small
        for objective in OBJECTIVES
    ]
    found = study.fitted(iter(plans), descent, "descents")
    study.show("descents", descents_table(found))


def descents_table(found: Sequence[Found]) -> str:
    """Return the course of training for each objective, as means over sets."""
    heads = [
        "share of total decrease by epoch 10",
        "by epoch 40",
        "gradient norm, epochs 1 to 10",
        "gradient norm, epochs 71 to 80",
        "standard deviation / mean, epochs 71 to 80",
        "share of epochs 61 to 80 in which the loss rises",
    ]
    lines = [f"| objective | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for objective in OBJECTIVES:
        ones = [one for one in found if dict(one["plan"]["params"])["objective"] == objective]
        rows = np.array([_course(one["loss"], one["norm"]) for one in ones])
        done_early, done, early, late, jitter, rises = rows.mean(axis=0)
        shares = f"{100 * done_early:.0f} % | {100 * done:.0f} %"
        norms = f"{early:.4f} | {late:.4f} | {jitter:.2f} | {100 * rises:.0f} %"
        lines.append(f"| {objective} | {shares} | {norms} |")
    return "\n".join(lines) + "\n"


def _course(loss: Sequence[float], norm: Sequence[float]) -> tuple[float, ...]:
    """Return the figures of one run: shares of the decrease, norms, and how often loss rises."""
    fall = loss[0] - min(loss)
    done = [(loss[0] - loss[epoch]) / fall if fall > 0 else 1.0 for epoch in (10, 40)]
    late = np.array(norm[-10:])
    jitter = float(late.std(ddof=1) / late.mean()) if late.mean() > 0 else 0.0
    rises = float(np.mean(np.diff(loss[-21:]) > 0))
    return (*done, float(np.mean(norm[:10])), float(late.mean()), jitter, rises)


def shifted_by_protocol(study: Study) -> None:
    """Compare maps fitted on clean rows with maps fitted on a fifth of the shifted set itself."""
    names = [name for name in study.names if is_shifted(name)]
    clean = study.fitted(study.planned(names, WITHOUT_CTS))
    plans = (
        Plan(name, number, method, tuple(params.items()))
        for name in names
        for number in SPLITS_OF_FIFTHS
        for method, params in WITHOUT_CTS
    )
    own = study.fitted(plans, run_on_a_fifth, "fifths")
    study.show("protocols", protocols_table(clean, own))


def protocols_table(clean: Sequence[Found], own: Sequence[Found]) -> str:
    """Return ECE-15 on shifted sets by the rows that maps are fitted on."""
    methods = [name for name, _ in WITHOUT_CTS]
    lines = [f"| set | fitted on | {' | '.join(methods)} |", "|---|---|" + "---:|" * len(methods)]
    for data in grouped(clean, lambda plan: str(plan["data"])):
        for title, found in (("clean rows", clean), ("a fifth of the set", own)):
            cells = [f"{_mean(found, data, name):.2f}" for name in methods]
            lines.append(f"| {data} | {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(found: Sequence[Found], data: str, method: str) -> float:
    plans = [(one["plan"]["data"], one["plan"]["method"], one["ece"]) for one in found]
    return float(np.mean([ece for *which, ece in plans if which == [data, method]]))


PARTS: dict[str, Callable[[Study], Any]] = {
    "paper-sets": paper_sets,
    "fifths": fifths,
    "protocols": shifted_by_protocol,
    "seeds": seeds,
    "sensitivity": sensitivity,
    "nll-epochs": nll_epochs,
    "margins": margins,
    "indicators": indicators,
    "descents": descents,
}
