"""Post-hoc methods on a small network: with features, on corrupted images, and on a long tail.

    python studies/posthoc_images.py [--data PATH] [--severities 5] [--quick]

The network of cnn.py is trained with cross-entropy on 30,000 balanced images of Fashion-MNIST, and
on a long tail of them. Maps are fitted on 2,000 rows, either of the validation part or of the test
set itself, and tested on 8,000. Networks and finished runs are stored in --kept, so that an
interrupted study resumes. Tables are written to --out/posthoc.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cnn import BATCH, network, optimiser, train
from corruptions import CORRUPTIONS, corrupted
from fashion_mnist import DEVIATION, Images, divided, load, synthetic
from kept import Found, put_between, run_all
from losses_training import BALANCED, TAIL, long_tailed
from posthoc_fitting import measured, quietly
from torch import nn

from calibrators import CalibrationSet
from calibrators.losses import make_loss
from calibrators.registry import make_recipe

EPOCHS = {BALANCED: 12, TAIL: 20}
SEVERITIES = (3, 5)
FIT_ROWS = 2000
IMBALANCE = 100
METHODS = (
    "identity",
    "temperature",
    "pts",
    "cts",
    "spline",
    "grouping",
    "procal",
    "feature_clipping",
    "smart",
    "additive",
)
CLIPPED_AS_PUBLISHED = {"objective": "ece", "scaled": False}
CLEAN, OWN, LIKE_TRAINING = "clean rows", "rows of the set", "rows as in training"
REACH = 0.3  # largest change of a pixel in the attack, of 0 to 1
ATTACKED = 2000


@dataclass(frozen=True)
class Plan:
    """A network, the corruption of its test images, and the rows that maps are fitted on."""

    task: str
    corruption: str
    severity: int
    fitted_on: str
    fit_rows: int

    @property
    def file(self) -> str:
        """Name of the run's file."""
        words = [self.task, self.corruption, str(self.severity), self.fitted_on, str(self.fit_rows)]
        return "_".join(words).replace(" ", "-")


@dataclass(frozen=True)
class Trained:
    """The images of a study, and the networks trained on them."""

    parts: Mapping[str, Images]
    networks: Mapping[str, nn.Sequential]

    def rows(self, task: str, images: Images) -> CalibrationSet:
        """Return the logits, features and head of a network for some images."""
        model = self.networks[task]
        with torch.inference_mode():
            blocks = images.tensor().split(1000)
            features = torch.cat([model[:-1](block) for block in blocks])
            logits = model[-1](features).numpy()
        head: Any = model[-1]
        weights = (head.weight.detach().numpy(), head.bias.detach().numpy())
        return CalibrationSet(logits, images.labels, features=features.numpy(), head=weights)


def trained(task: str, part: Images, place: Path, epochs: int) -> nn.Sequential:
    """Return the network of a task, from a file if it has been trained before."""
    torch.manual_seed(0)
    model = network()
    if place.exists():
        with np.load(place, allow_pickle=False) as file:
            state = {name: torch.from_numpy(file[name]) for name in file.files}
        model.load_state_dict(state)
        return model
    images = part if task == BALANCED else long_tailed(part, IMBALANCE)
    steps, labels = optimiser(model), torch.from_numpy(images.labels)
    inputs, loss = images.tensor(), make_loss("cross_entropy")
    for _ in range(epochs):
        train(model, steps, loss, inputs, labels, torch.randperm(len(labels)).split(BATCH))
    place.parent.mkdir(parents=True, exist_ok=True)
    np.savez(place, **{name: one.numpy() for name, one in model.state_dict().items()})
    return model


def run(plan: Plan, study: Trained) -> Found:
    """Fit every method as planned, and measure it on test rows that were not used for fitting."""
    start = time.perf_counter()
    torch.set_num_threads(1)
    images = study.parts["test"]
    if plan.corruption != "none":
        images = corrupted(images, plan.corruption, plan.severity)
    first, others = np.split(np.arange(len(images.labels)), [plan.fit_rows])
    test = study.rows(plan.task, images.take(others))
    if plan.fitted_on == OWN:
        fit = study.rows(plan.task, images.take(first))
    else:
        validation = study.parts["validation"]
        if plan.fitted_on == LIKE_TRAINING:  # its rows are in the order of their classes
            tail = long_tailed(validation, IMBALANCE)
            validation = tail.take(np.random.default_rng(0).permutation(len(tail.labels)))
        some = np.arange(min(plan.fit_rows, len(validation.labels)))
        fit = study.rows(plan.task, validation.take(some))
    figures = {}
    for name in METHODS:
        figures[name] = measured(quietly(make_recipe(name, {}).fit, fit), test)
    published = make_recipe("feature_clipping", dict(CLIPPED_AS_PUBLISHED))
    figures["feature_clipping (as published)"] = measured(quietly(published.fit, fit), test)
    found: Found = {"figures": figures, "seconds": 0.0}
    if plan.corruption == "none" and plan.fitted_on == CLEAN and plan.task == BALANCED:
        found["attack"] = attack(study.networks[plan.task], images)
    return {**found, "seconds": time.perf_counter() - start}


def attack(model: nn.Sequential, images: Images) -> dict[str, Any]:
    """Return correlations between the margin and the smallest adversarial step.

    Steps follow the fast gradient sign method (Goodfellow et al. 2015), on pixels from 0 to 1.
    """
    some = images.take(np.arange(min(ATTACKED, len(images.labels))))
    unit = 1 / DEVIATION  # of the standardised input
    inputs, labels = some.tensor().requires_grad_(), torch.from_numpy(some.labels)
    logits = model(inputs)
    nn.functional.cross_entropy(logits, labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
    assert inputs.grad is not None  # noqa: S101
    direction = inputs.grad.sign()
    steps = np.linspace(0, REACH, 61)[1:]
    smallest = np.full(len(labels), np.inf)
    with torch.inference_mode():
        top = logits.topk(2, dim=1).values
        for size in steps:
            changed = model(inputs + size * unit * direction).argmax(dim=1).numpy() != some.labels
            smallest = np.where(changed & np.isinf(smallest), size, smallest)
        margin = (top[:, 0] - top[:, 1]).numpy()
        right = (logits.argmax(dim=1) == labels).numpy()
    reached = right & np.isfinite(smallest)
    return {
        "rows": int(right.sum()),
        "reached": int(reached.sum()),
        "pearson": float(np.corrcoef(margin[reached], smallest[reached])[0, 1]),
        "spearman": float(_rank_correlation(margin[right], np.minimum(smallest, 2 * REACH)[right])),
    }


def _rank_correlation(x: Any, y: Any) -> float:
    ranks = [np.argsort(np.argsort(one, kind="stable")) for one in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


def planned(fit_rows: int, severities: Sequence[int]) -> list[Plan]:
    """Return all runs."""
    clean = [Plan(task, "none", 0, CLEAN, fit_rows) for task in (BALANCED, TAIL)]
    tail = Plan(TAIL, "none", 0, LIKE_TRAINING, fit_rows)
    shifted = [
        Plan(BALANCED, name, severity, on, fit_rows)
        for severity in severities
        for name in CORRUPTIONS
        for on in (CLEAN, OWN)
    ]
    return [*clean, tail, *shifted]


def clean_table(found: Sequence[Found]) -> str:
    """Return each method on the test images without corruption."""
    keys = {"ece": "ECE-15", "floor": "floor", "ada_ece": "AdaECE", "nll": "NLL"}
    heads = [*keys.values(), "accuracy"]
    lines = [f"| network | fitted on | method | {' | '.join(heads)} |"]
    lines.append("|---|---|---|" + "---:|" * len(heads))
    for one in found:
        for name, figures in one["figures"].items():
            cells = [f"{figures[key]:.{3 if key == 'nll' else 2}f}" for key in (*keys, "accuracy")]
            plan = one["plan"]
            row = [plan["task"], plan["fitted_on"], name, *cells]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def corruption_table(found: Sequence[Found], figure: str) -> str:
    """Return a figure by kind of corruption, averaged over severities, one column per method."""
    methods = list(found[0]["figures"])
    heads = ["corruption", "accuracy", *methods]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in (*CORRUPTIONS, "mean"):
        ones = [one for one in found if name in (one["plan"]["corruption"], "mean")]
        accuracy = np.mean([one["figures"]["identity"]["accuracy"] for one in ones])
        cells = [np.mean([one["figures"][method][figure] for one in ones]) for method in methods]
        lines.append(f"| {name} | {accuracy:.1f} | {' | '.join(f'{one:.2f}' for one in cells)} |")
    return "\n".join(lines) + "\n"


def severity_table(found: Sequence[Found]) -> str:
    """Return the mean ECE over kinds of corruption by severity and protocol."""
    methods = list(found[0]["figures"])
    lines = [f"| severity | fitted on | {' | '.join(methods)} |"]
    lines.append("|---:|---|" + "---:|" * len(methods))
    for severity in sorted({one["plan"]["severity"] for one in found}):
        for on in (CLEAN, OWN):
            ones = [
                one["figures"]
                for one in found
                if (one["plan"]["severity"], one["plan"]["fitted_on"]) == (severity, on)
            ]
            cells = [f"{np.mean([one[name]['ece'] for one in ones]):.2f}" for name in methods]
            lines.append(f"| {severity} | {on} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def attack_text(found: Sequence[Found]) -> str:
    """Return a sentence on the correlation between the margin and the smallest step."""
    one = next(one["attack"] for one in found if "attack" in one)
    return (
        f"Of {one['rows']:,} correctly classified test images, {one['reached']:,} change "
        f"class within a step of {REACH:g}: Pearson correlation of margin and smallest step "
        f"{one['pearson']:+.2f} among these, rank correlation {one['spearman']:+.2f} among all.\n"
    )


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help=".npz file or folder; see fashion_mnist.load")
    parser.add_argument("--quick", action="store_true", help="smoke test on synthetic images")
    parser.add_argument("--severities", type=int, nargs="+", default=SEVERITIES, help="1 to 5")
    parser.add_argument("--processes", type=int, default=1, help="parallel runs, one core each")
    parser.add_argument("--kept", type=Path, default=Path("out/study-posthoc-images"))
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    return parser.parse_args()


def main() -> None:
    """Run the study and write its tables."""
    options = arguments()
    images = (synthetic(1200, 1), synthetic(200, 2)) if options.quick else load(options.data)
    parts = divided(*images, False)
    networks = {
        task: trained(task, parts["train"], options.kept / f"{task}.npz".replace(" ", "-"), epochs)
        for task, epochs in EPOCHS.items()
    }
    plans = planned(100, (5,)) if options.quick else planned(FIT_ROWS, options.severities)
    found = run_all(plans, run, Trained(parts, networks), options.kept, options.processes)
    whole = [one for one in found if one["plan"]["corruption"] == "none"]
    shifted = [one for one in found if one["plan"]["corruption"] != "none"]
    shown = {"features": clean_table(whole), "attack": attack_text(whole)}
    for on in (CLEAN, OWN):
        ones = [one for one in shifted if one["plan"]["fitted_on"] == on]
        titles = (("ECE-15", "ece"), ("AdaECE", "ada_ece"))
        tables = [f"**{title}**\n\n{corruption_table(ones, figure)}" for title, figure in titles]
        shown[f"corruptions, {on}"] = "\n".join(tables)
    shown["severities"] = severity_table(shifted)
    for name, text in shown.items():
        sys.stdout.write(text)
        put_between(options.out / "posthoc.md", name, text)


if __name__ == "__main__":
    main()
