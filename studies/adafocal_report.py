"""What the AdaFocal study shows: its tables, and the steps of which its chart is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrators.adafocal import AdaFocalState

SVG = "adafocal_gammas.svg"
Found = dict[str, Any]


def table(runs: list[Found]) -> str:
    """Mean ± standard deviation over the seeds, a row for each loss, on the test images."""
    maps = ("none", "TS", "SMART")
    columns = [("error", "none"), *((figure, m) for figure in ("ece", "ada_ece") for m in maps)]
    titles = {"error": "error", "ece": "ECE", "ada_ece": "AdaECE"}
    heads = ["error", *(f"{titles[f]}, {m}" for f, m in columns[1:]), "NLL", "floor of ECE, TS"]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for loss in dict.fromkeys(one["plan"]["loss"] for one in runs):
        figures = [one["figures"]["test"] for one in runs if one["plan"]["loss"] == loss]
        cells = [_spread([one[m][figure] for one in figures]) for figure, m in columns]
        cells.append(_spread([one["none"]["nll"] for one in figures], 3))
        cells.append(f"{np.mean([one['TS']['floor'] for one in figures]):.2f}")
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _against_ce(runs)]) + "\n"


def _against_ce(runs: list[Found]) -> str:
    """How AdaFocal stands to CE before any map."""
    mean = {
        (loss, figure): np.mean(
            [r["figures"]["test"]["none"][figure] for r in runs if r["plan"]["loss"] == loss]
        )
        for loss in ("CE", "AdaFocal")
        for figure in ("ece", "error")
    }
    return (
        f"AdaFocal has {mean['AdaFocal', 'ece'] / mean['CE', 'ece']:.2f} of CE's ECE before any "
        f"map, and {mean['AdaFocal', 'error'] - mean['CE', 'error']:+.2f} points of error."
    )


def _spread(values: list[float], digits: int = 2) -> str:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def explored(runs: list[Found]) -> str:
    """Settings of AdaFocal on the images kept for choosing."""
    lines = [
        "| loss | rate | updates an epoch | error | ECE | AdaECE | NLL |",
        "|---|" + "---:|" * 6,
    ]
    for one in runs:
        plan, figures = one["plan"], one["figures"]["selection"]["none"]
        settings = [f"{plan['rate']:g}", str(plan["updates"])] if one["states"] else ["", ""]
        cells = [f"{figures[name]:.2f}" for name in ("error", "ece", "ada_ece")]
        row = [plan["loss"], *settings, *cells, f"{figures['nll']:.3f}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def put_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- end of name -->`` in a file."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    old = path.read_text() if path.exists() else f"{begin}\n{end}\n"
    before, rest = old.split(begin, 1)
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end, 1)[1]}")


def gamma_steps(run: Found) -> list[Found]:
    """AdaFocal's states as the steps of a run, from which its charts are made."""
    states = [AdaFocalState.from_dict(one) for one in run["states"]]
    before = AdaFocalState.begin(states[0].settings)
    steps = []
    for state in states:
        bins = {
            "edges": state.edges.tolist(),
            "accuracy": state.accuracy.tolist(),
            "confidence": [None] * state.settings.bins,  # told by tooltips alone
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
