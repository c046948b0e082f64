"""Tables and charts of the study by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from epochs_training import BINS, MAPS, PROBABILITIES, RATES
from kept import Found
from losses_report import called

from calibrators.charts.theme import finished

FIRST_BINS = (0, 7, 14)  # the bins in Figures 1 and 2 of the AdaFocal paper
AGREEMENT = {"entropy": "entropy", "kl_divergence": "KL", "cosine": "cosine"}
AGREED = ("seca", "cross_entropy", "label_smoothing")
CHART = "epochs_agreement.svg"
GAPS_CHART = "epochs_gaps.svg"
WITH_FIXED_GAMMA = ("cross_entropy", "focal", "flsd_53")


def sections(found: Sequence[Found]) -> dict[str, str]:
    """Return the text of each section of the page."""
    by_name = {called(one["plan"]): one for one in found}
    fixed = [one for one in found if one["plan"]["loss"] in WITH_FIXED_GAMMA]
    adaptive = [one for one in found if one["plan"]["loss"] in ("adafocal", "calfocal")]
    return {
        "agreement": agreement_table({name: by_name[name] for name in AGREED if name in by_name}),
        "errors": errors_table(found),
        "gaps": gaps_table([*fixed, *adaptive]),
        "correspondence": correspondence_table([*fixed, *adaptive]),
        "maps": maps_table(found),
        "outsiders": outsiders_table(found),
        "gradients": gradients_table(by_name["cross_entropy"]),
    }


def shown_epochs(found: Found) -> list[int]:
    """Return the epochs that the tables show: the first, the last, and those at each quarter."""
    epochs = len(found["course"])
    return sorted({max(1, round(epochs * share / 4)) for share in range(5)})


def agreement_table(found: dict[str, Found]) -> str:
    """Return entropy, KL and cosine by epoch: a row per loss and figure."""
    lines: list[str] = []
    for name, one in found.items():
        epochs = shown_epochs(one)
        if not lines:
            lines.append(f"| figure | loss | {' | '.join(f'epoch {at}' for at in epochs)} |")
            lines.append("|---|---|" + "---:|" * len(epochs))
        for figure, title in AGREEMENT.items():
            cells = [f"{one['course'][at - 1][figure]:.3f}" for at in epochs]
            lines.append(f"| {title} | {name} | {' | '.join(cells)} |")
    return "\n".join([*lines[:2], *sorted(lines[2:])]) + "\n"


def errors_table(found: Sequence[Found]) -> str:
    """Return error, ECE-EM and NLL on the test images, with ECE-EM by epoch."""
    epochs = shown_epochs(found[0])
    heads = [*(f"ECE-EM, epoch {at}" for at in epochs), "error", "ECE", "NLL", "lowest ECE-EM"]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for one in found:
        course, last = one["course"], one["course"][-1]
        cells = [f"{100 * course[at - 1]['ada_ece']:.2f}" for at in epochs]
        cells += [f"{100 * last['error']:.2f}", f"{100 * last['ece']:.2f}", f"{last['nll']:.3f}"]
        eces = [step["ada_ece"] for step in course]
        cells.append(f"{100 * min(eces):.2f} (epoch {int(np.argmin(eces)) + 1})")
        lines.append(f"| {called(one['plan'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gaps_table(found: Sequence[Found]) -> str:
    """Return C - A on validation in a low, a middle and a high bin by epoch, in percent."""
    epochs = shown_epochs(found[0])
    heads = [f"bin {place}, epoch {at}" for place in FIRST_BINS for at in epochs[1:]]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for one in found:
        cells = [
            f"{100 * (step['confidence'][place] - step['accuracy'][place]):+.1f}"
            for place in FIRST_BINS
            for step in (one["course"][at - 1] for at in epochs[1:])
        ]
        lines.append(f"| {called(one['plan'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def correspondence_table(found: Sequence[Found]) -> str:
    """Return a table that compares training and validation confidences, bin by bin."""
    heads = ["epoch", *(f"bin {place}: train, val, A" for place in FIRST_BINS)]
    heads += ["correlation over epochs and bins"]
    lines = [f"| loss | {' | '.join(heads)} |", "|---|---:|" + "---:|" * (len(heads) - 1)]
    for one in found:
        last = one["course"][-1]
        cells = [str(len(one["course"]))]
        for place in FIRST_BINS:
            train = last["train"][place]
            values = [train, last["confidence"][place], last["accuracy"][place]]
            cells.append(", ".join("none" if one is None else f"{one:.2f}" for one in values))
        cells.append(f"{_correlation(one['course']):+.2f}")
        lines.append(f"| {called(one['plan'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _correlation(course: Sequence[Found]) -> float:
    """Return the correlation of epoch-to-epoch changes in training and validation confidence.

    The rows are binned separately; with common edges, the means would agree by construction.
    """
    train = np.diff([step["train_alone"] for step in course], axis=0)
    held_out = np.diff([step["confidence"] for step in course], axis=0)
    return float(np.corrcoef(train.ravel(), held_out.ravel())[0, 1])


def maps_table(found: Sequence[Found]) -> str:
    """Return ECE-EM on the test images after each map."""
    lines = [f"| loss | T by ECE-EM | {' | '.join(MAPS)} |", "|---|---:|" + "---:|" * len(MAPS)]
    for one in found:
        cells = [f"{one['temperature']:.1f}"]
        cells += [f"{100 * one['after'][name]['ada_ece']:.2f}" for name in MAPS]
        lines.append(f"| {called(one['plan'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def outsiders_table(found: Sequence[Found]) -> str:
    """Return outlier detection by entropy: AUROC, and detection rates by false-alarm rate."""
    rates = [f"at {100 * rate:g} %" for rate in RATES]
    lines = [f"| outsiders | loss | map | AUROC | {' | '.join(rates)} |"]
    lines.append("|---|---|---|---:|" + "---:|" * len(rates))
    for where in ("digits", "noise"):
        for one in found:
            for name, rocs in one["rocs"].items():
                values = [rocs[where]["auroc"], *rocs[where]["detected"]]
                cells = " | ".join(f"{100 * value:.1f}" for value in values)
                lines.append(f"| {where} | {called(one['plan'])} | {name} | {cells} |")
    return "\n".join(lines) + "\n"


def gradients_table(one: Found) -> str:
    """Return the mean gradient with respect to the label's logit, by the label's probability."""
    ends = [f"{low:g} to {high:g}" for low, high in pairwise(PROBABILITIES)]
    lines = [f"| loss | {' | '.join(ends)} |"]
    lines.append("|---|" + "---:|" * (len(PROBABILITIES) - 1))
    for name, values in one["gradients"].items():
        form = "{:,}" if name == "rows" else "{:+.4f}"
        cells = ["none" if value is None else form.format(value) for value in values]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def charts(found: Sequence[Found]) -> dict[str, dict[str, Any]]:
    """Return the charts by file name."""
    agreed = [one for one in found if called(one["plan"]) in AGREED]
    fixed = [one for one in found if one["plan"]["loss"] in (*WITH_FIXED_GAMMA, "adafocal")]
    own = [one for one in fixed if not {"bins", "gamma_max"} & dict(one["plan"]["params"]).keys()]
    return {CHART: agreement_chart(agreed), GAPS_CHART: gaps_chart(own)}


def agreement_chart(found: Sequence[Found]) -> dict[str, Any]:
    """Draw entropy, KL and cosine by epoch, a line for each loss."""
    values = [
        {"loss": called(one["plan"]), "epoch": at, **{name: step[name] for name in AGREEMENT}}
        for one in found
        for at, step in enumerate(one["course"], start=1)
    ]
    panels = [_lines(name, title) for name, title in AGREEMENT.items()]
    return finished(
        {"data": {"values": values}, "hconcat": panels, "spacing": 24},
        "Entropy, KL divergence and cosine similarity within training batches by epoch",
    )


def gaps_chart(found: Sequence[Found]) -> dict[str, Any]:
    """Draw C - A by epoch in a low, a middle and a high bin, a line for each loss."""
    values = [
        {
            "loss": called(one["plan"]),
            "epoch": at,
            **{
                f"bin {place}": step["confidence"][place] - step["accuracy"][place]
                for place in FIRST_BINS
            },
        }
        for one in found
        for at, step in enumerate(one["course"], start=1)
    ]
    panels = [_lines(f"bin {place}", f"C - A in bin {place} of {BINS}") for place in FIRST_BINS]
    return finished(
        {"data": {"values": values}, "hconcat": panels, "spacing": 24},
        "Confidence minus accuracy on validation images by epoch, in three of 15 equal-mass bins",
    )


def _lines(field: str, title: str) -> dict[str, Any]:
    scale = {"zero": False}
    return {
        "width": 230,
        "height": 200,
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {
            "x": {"field": "epoch", "type": "quantitative", "title": "epoch"},
            "y": {"field": field, "type": "quantitative", "title": title, "scale": scale},
            "color": {"field": "loss", "type": "nominal", "title": "loss"},
        },
    }
