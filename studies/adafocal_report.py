"""Tables of the AdaFocal study, and the steps of its chart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from kept import Found, spread

from calibrators.adafocal import AdaFocalState

SVG = "adafocal_gammas.svg"


def called(plan: Found) -> str:
    """Return the name of a loss, with AdaFocal's settings."""
    if plan["loss"] != "AdaFocal":
        return str(plan["loss"])
    rate, updates = plan["rate"], plan["updates"]
    often = "" if updates == 1 else f", {updates} updates an epoch"
    return f"AdaFocal, rate {rate:g}{often}{' (as published)' if rate == updates == 1 else ''}"


def table(runs: list[Found]) -> str:
    """Return a table of test results, mean ± standard deviation over seeds, one row per loss."""
    maps = ("none", "TS", "SMART")
    columns = [("error", "none"), *((figure, m) for figure in ("ece", "ada_ece") for m in maps)]
    titles = {"error": "error", "ece": "ECE", "ada_ece": "AdaECE"}
    heads = ["error", *(f"{titles[f]}, {m}" for f, m in columns[1:]), "NLL", "floor of ECE, TS"]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for loss, found in _by_loss(runs).items():
        figures = [one["figures"]["test"] for one in found]
        cells = [spread([one[m][figure] for one in figures]) for figure, m in columns]
        cells.append(spread([one["none"]["nll"] for one in figures], 3))
        cells.append(f"{np.mean([one['TS']['floor'] for one in figures]):.2f}")
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_against_ce(runs)]) + "\n"


def _by_loss(runs: list[Found]) -> dict[str, list[Found]]:
    """Return the runs of each loss with its settings, one per seed."""
    found: dict[str, list[Found]] = {}
    for one in runs:
        found.setdefault(called(one["plan"]), []).append(one)
    return found


def _against_ce(runs: list[Found]) -> list[str]:
    """Return lines that compare AdaFocal with CE before any map, by ECE, error and bins."""
    found = _by_loss(runs)
    ce = {figure: _mean(found["CE"], figure) for figure in ("ece", "error")}
    return [
        f"- {loss}: {_mean(of, 'ece') / ce['ece']:.2f} of CE's ECE before any map, "
        f"{_mean(of, 'error') - ce['error']:+.2f} points of error; {_moved(of)}."
        for loss, of in found.items()
        if of[0]["states"]
    ]


def _mean(runs: list[Found], figure: str) -> float:
    return float(np.mean([one["figures"]["test"]["none"][figure] for one in runs]))


def _moved(runs: list[Found]) -> str:
    """Return a sentence on the late validation ECE, the switches per run and the final gammas."""
    late = [100 * one["ece"] for r in runs for one in r["course"][len(r["course"]) // 2 :]]
    counts = [sum(len(step["switched"]) for step in gamma_steps(r)) for r in runs]
    gammas = [gamma for r in runs for gamma in r["states"][-1]["gammas"]]
    return (
        f"in the second half of the epochs the validation ECE was {min(late):.1f} to "
        f"{max(late):.1f}; a run's bins switched {min(counts)} to {max(counts)} times and ended "
        f"with gammas from {min(gammas):.2f} to {max(gammas):.2f}"
    )


def explored(runs: list[Found], epochs: int, others: Sequence[int]) -> str:
    """Return a table of AdaFocal's settings on the selection images, with ECE by epoch."""
    heads = ["rate", "updates an epoch", "error", "ECE", "AdaECE", "NLL"]
    heads += [f"ECE after {epoch}" for epoch in others]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for one in runs:
        plan, course = one["plan"], one["course"]
        settings = [f"{plan['rate']:g}", str(plan["updates"])] if one["states"] else ["", ""]
        after = course[epochs - 1]
        percents = [1 - after["accuracy"], after["ece"], after["ada_ece"]]
        cells = [*(f"{100 * one:.2f}" for one in percents), f"{after['nll']:.3f}"]
        cells += [f"{100 * course[epoch - 1]['ece']:.2f}" for epoch in others]
        lines.append(f"| {' | '.join([plan['loss'], *settings, *cells])} |")
    return "\n".join(lines) + "\n"


def gamma_steps(run: Found) -> list[Found]:
    """Return AdaFocal's states as the steps of a run, for its charts."""
    states = [AdaFocalState.from_dict(one) for one in run["states"]]
    before = AdaFocalState.begin(states[0].settings)
    steps = []
    for state in states:
        bins = {
            "edges": state.edges.tolist(),
            "accuracy": state.accuracy.tolist(),
            "confidence": [None] * state.settings.bins,  # only for tooltips
        }
        steps.append(
            {
                "step": state.step,
                "session": "study",
                "partial": False,
                "verified": True,
                "bins": bins,
                "gammas": state.gammas.tolist(),
                "switched": state.switches(before),
            }
        )
        before = state
    return steps
