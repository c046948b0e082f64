"""Tables and reliability diagrams of the study of losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kept import Found, spread

from calibrators.charts.reliability import diagram
from calibrators.charts.theme import finished

CHARTS = {
    "balanced": "losses_reliability_balanced.svg",
    "long tail": "losses_reliability_long_tail.svg",
}
SIZE = 170
MAPS = {"none": "Before any map", "TS": "After temperature scaling", "SMART": "After SMART"}
COLUMNS = {
    "error": "error",
    "ece": "ECE",
    "ada_ece": "AdaECE",
    "sce": "SCE",
    "classwise_ece": "class-wise ECE",
    "nll": "NLL",
    "refinement": "refinement AUROC",
    "class_auroc": "class AUROC",
    "aurc": "AURC",
    "digits": "OOD AUROC, digits",
    "noise": "OOD AUROC, noise",
}
# in the form of the fragment of RefCal's appendix
REFCAL_COLUMNS = {
    "error": "error",
    "one_vs_one_auroc": "one-vs-one AUROC",
    "refinement": "refinement AUROC",
    "ece": "ECE",
    "ada_ece": "AdaECE",
    "classwise_ece": "class-wise ECE",
    "smece": "smECE",
    "nll": "NLL",
    "aurc": "AURC",
}

# AU as its authors released it, but for their bounds of G
RELEASED = {
    "weight_gradient": True,
    "threshold_gradient": True,
    "accumulate": True,
    "second_softmax": True,
    "normalise": False,
    "bins": 64,
}


def called(plan: Found) -> str:
    """Return the name of a loss, with its non-default parameters."""
    if dict(plan["params"]) == RELEASED:
        return f"{plan['loss']} (as released)"
    params = ", ".join(f"{name} {value}" for name, value in plan["params"])
    return f"{plan['loss']} ({params})" if params else str(plan["loss"])


def tables(
    runs: Sequence[Found],
    maps: Mapping[str, str] = MAPS,
    columns: Mapping[str, str] = COLUMNS,
    *,
    with_seeds: bool = False,
) -> str:
    """Return a table for each map: mean ± standard deviation over seeds, one row per loss."""
    return "\n".join(
        f"**{title}**\n\n{_table(runs, name, columns, with_seeds)}" for name, title in maps.items()
    )


def _table(runs: Sequence[Found], name: str, columns: Mapping[str, str], with_seeds: bool) -> str:
    first = ["seeds"] * with_seeds + ["T"] * (name == "TS")
    heads = [*first, *columns.values(), "floor of ECE"]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for loss, found in by_loss(runs).items():
        cells = [str(len(found))] if with_seeds else []
        cells += [spread([one["temperature"] for one in found])] if name == "TS" else []
        cells += [
            spread([one["figures"][name][figure] for one in found], 3 if figure == "nll" else 2)
            for figure in columns
        ]
        cells.append(f"{mean(found, 'floor', name):.2f}")
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def by_loss(runs: Sequence[Found]) -> dict[str, list[Found]]:
    """Return the runs of each loss with its settings, one per seed."""
    found: dict[str, list[Found]] = {}
    for one in runs:
        found.setdefault(called(one["plan"]), []).append(one)
    return found


def mean(runs: Sequence[Found], figure: str, name: str = "none") -> float:
    """Return the mean of a figure over the seeds."""
    return float(np.mean([one["figures"][name][figure] for one in runs]))


def against_ce(runs: Sequence[Found]) -> str:
    """Return lines that compare each loss with cross-entropy before any map, by ECE."""
    found = by_loss(runs)
    ce = found.pop("cross_entropy")
    ranked = sorted(found.items(), key=lambda one: mean(one[1], "ece"))
    lines = ["ECE before any map, relative to cross-entropy's, and change in error (points):", ""]
    lines += [
        f"- {loss}: {mean(of, 'ece') / mean(ce, 'ece'):.2f}, "
        f"{mean(of, 'error') - mean(ce, 'error'):+.2f}"
        for loss, of in ranked
    ]
    return "\n".join(lines) + "\n"


def by_epoch(runs: Sequence[Found]) -> str:
    """Return a table of the validation ECE by epoch, mean over the seeds."""
    epochs = len(runs[0]["course"])
    shown = sorted({max(1, round(epochs * share / 4)) for share in (0, 1, 2, 3, 4)})
    heads = " | ".join(f"epoch {one}" for one in shown)
    lines = ["**Validation ECE by epoch, before any map**", ""]
    lines += [f"| loss | {heads} |", "|---|" + "---:|" * len(shown)]
    for loss, found in by_loss(runs).items():
        eces = np.mean([[step["ece"] for step in one["course"]] for one in found], axis=0)
        lines.append(f"| {loss} | {' | '.join(f'{100 * eces[one - 1]:.2f}' for one in shown)} |")
    return "\n".join(lines) + "\n"


def explored(runs: Sequence[Found]) -> str:
    """Return a table of settings on the selection images, with the early validation error."""
    heads = ["error", "ECE", "AdaECE", "NLL", "AURC", "T", "ECE after TS", "error after 5 epochs"]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for one in runs:
        none = one["figures"]["none"]
        early = one["course"][min(4, len(one["course"]) - 1)]["error"]
        cells = [f"{none[figure]:.2f}" for figure in ("error", "ece", "ada_ece")]
        cells += [f"{none['nll']:.3f}", f"{none['aurc']:.2f}", f"{one['temperature']:.2f}"]
        cells += [f"{one['figures']['TS']['ece']:.2f}", f"{100 * early:.2f}"]
        lines.append(f"| {called(one['plan'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def reliability_chart(runs: Sequence[Found]) -> dict[str, Any]:
    """Return the reliability diagram of each loss before any map, for its first seed."""
    panels = []
    for loss, found in by_loss(runs).items():
        first = found[0]
        ece = first["figures"]["none"]["ece"]
        panels.append(diagram(loss, f"ECE {ece:.2f} %", first["bins"]["none"], SIZE))
    return finished(
        {"concat": panels, "columns": 5, "spacing": 24},
        "Reliability diagrams of networks trained with each loss, 15 equally wide bins",
    )
