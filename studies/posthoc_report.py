"""Tables of the study of post-hoc methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from kept import Found
from logit_sets import is_shifted

from calibrators.registry import keeps_class

STUDENT_T = 2.776  # the 97.5 % quantile with 4 degrees of freedom: 5 splits
DRAWS = 2000
IN_THE_PAPER = (
    "identity",
    "temperature",
    "pts",
    "predicted_class_temperature",
    "cts",
    "spline",
    "smart",
)
COLUMNS: dict[str, tuple[str, int]] = {
    "ece": ("ECE-15", 2),
    "floor": ("floor", 2),
    "above": ("above", 2),
    "ada_ece": ("AdaECE", 2),
    "classwise_ece": ("class-wise ECE", 3),
    "nll": ("NLL", 4),
    "brier": ("Brier", 4),
    "accuracy_change": ("accuracy change", 2),
    "seconds": ("fit seconds", 2),
}


def called(plan: Found) -> str:
    """Return a method's name, with its non-default parameters."""
    params = ", ".join(f"{name}={value}" for name, value in plan["params"])
    return f"{plan['method']} ({params})" if params else str(plan["method"])


def figure(one: Found, name: str) -> float:
    """Return a figure of one fit; "above" is ECE minus floor."""
    return float(one["ece"] - one["floor"] if name == "above" else one[name])


def grouped(found: Sequence[Found], key: Callable[[Found], str]) -> dict[str, list[Found]]:
    """Return fits grouped by a ``key`` of their plan, in order."""
    groups: dict[str, list[Found]] = {}
    for one in found:
        groups.setdefault(key(one["plan"]), []).append(one)
    return groups


def set_means(found: Sequence[Found], name: str) -> dict[str, float]:
    """Return a figure's mean over the splits of each set."""
    sets = grouped(found, lambda plan: str(plan["data"]))
    return {data: float(np.mean([figure(o, name) for o in ones])) for data, ones in sets.items()}


def same_distribution(found: Sequence[Found]) -> list[Found]:
    """Return the fits on sets that are not shifted."""
    return [one for one in found if not is_shifted(one["plan"]["data"])]


def mean(found: Sequence[Found], name: str) -> float:
    """Return a figure averaged over splits, then over sets."""
    return float(np.mean(list(set_means(found, name).values())))


def ranks(methods: dict[str, list[Found]]) -> dict[str, tuple[float, float, float]]:
    """Return mean ranks by ECE above the floor, with 95 % intervals over resampled sets."""
    values = np.array([list(set_means(found, "above").values()) for found in methods.values()])
    places = np.array([_ranks(column) for column in values.T]).T
    drawn = np.random.default_rng(0).integers(places.shape[1], size=(DRAWS, places.shape[1]))
    means = places[:, drawn].mean(axis=2)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    shown = zip(places.mean(axis=1), low, high, strict=True)
    return dict(zip(methods, ((float(a), float(b), float(c)) for a, b, c in shown), strict=True))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1; equal values, such as auto and its winner, share their mean rank."""
    below = (values < values[:, np.newaxis]).sum(axis=1)
    not_above = (values <= values[:, np.newaxis]).sum(axis=1)
    return (below + 1 + not_above) / 2


def main_table(found: Sequence[Found]) -> str:
    """Return means over the same-distribution sets, lowest ECE above its floor first."""
    methods = grouped(same_distribution(found), called)
    placed = ranks(methods)
    heads = [*(title for title, _ in COLUMNS.values()), "parameters", "keeps class"]
    lines = [f"| method | {' | '.join(heads)} | mean rank [95 %] |"]
    lines.append("|---|" + "---:|" * (len(heads) + 1))
    for name in sorted(methods, key=lambda one: mean(methods[one], "above")):
        cells = [f"{mean(methods[name], key):.{n}f}" for key, (_, n) in COLUMNS.items()]
        sizes = [one["parameters"] for one in methods[name]]
        cells.append(f"{min(sizes)} to {max(sizes)}" if len(set(sizes)) > 1 else str(sizes[0]))
        keeps = keeps_class(methods[name][0]["plan"]["method"])
        cells.append({True: "yes", False: "no", None: "as its winner"}[keeps])
        cells.append("{:.1f} [{:.1f}, {:.1f}]".format(*placed[name]))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def by_set_table(found: Sequence[Found]) -> str:
    """Return the ECE above its floor for each method and set, shifted sets last."""
    methods = grouped(found, called)
    order = sorted(methods, key=lambda name: mean(same_distribution(methods[name]), "above"))
    sets = sorted({one["plan"]["data"] for one in found}, key=lambda name: (is_shifted(name), name))
    lines = [f"| set | {' | '.join(order)} |", "|---|" + "---:|" * len(order)]
    for data in sets:
        cells = [f"{set_means(methods[name], 'above')[data]:.2f}" for name in order]
        lines.append(f"| {data} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def change(ones: Sequence[Found]) -> tuple[float, float, float]:
    """Return ECE minus TS's, with a 95 % interval over splits, or over rows of a single split."""
    if len(ones) == 1:
        only = ones[0]["change"]
        return only["value"], only["low"], only["high"]
    values = np.array([one["change"]["value"] for one in ones])
    half = STUDENT_T * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def auto_table(found: Sequence[Found]) -> str:
    """Return a comparison of auto with TS on every set, and with the best method on average."""
    methods = grouped(found, called)
    mine = grouped(methods["auto"], lambda plan: str(plan["data"]))
    lines = ["| set | ECE-15 | floor | above ± se | auto - TS [95 %] | auto chose |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    lows = {}
    for data, ones in mine.items():
        values = np.array([figure(one, "above") for one in ones])
        error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}" if len(values) > 1 else ""
        value, low, high = change(ones)
        lows[data] = low
        ece, floor = (np.mean([one[name] for one in ones]) for name in ("ece", "floor"))
        lines.append(
            f"| {data} | {ece:.2f} | {floor:.2f} | {values.mean():.2f}{error} | "
            f"{value:+.2f} [{low:+.2f}, {high:+.2f}] | {' '.join(one['chosen'] for one in ones)} |"
        )
    same = {name: same_distribution(ones) for name, ones in methods.items()}
    singles = {n: mean(ones, "above") for n, ones in same.items() if not n.startswith("auto")}
    best = min(singles, key=lambda name: singles[name])
    worst = max((low, data) for data, low in lows.items() if not is_shifted(data))
    lines += [
        "",
        f"Mean over {len(set_means(same['auto'], 'ece'))} same-distribution sets of ECE-15 minus "
        f"floor: auto {mean(same['auto'], 'above'):.3f}, best single method "
        f"{best} {singles[best]:.3f}, temperature {singles['temperature']:.3f}. "
        f"Largest lower bound of auto - TS on these sets: {worst[0]:+.2f} ({worst[1]}). "
        f"Mean NLL: auto {mean(same['auto'], 'nll'):.4f}, "
        f"temperature {mean(same['temperature'], 'nll'):.4f}.",
    ]
    return "\n".join(lines) + "\n"


def figure_by_set(found: Sequence[Found], name: str) -> list[str]:
    """Return a figure's mean ± standard error over splits: a row per set, a column per method."""
    methods = grouped(found, called)
    lines = [f"| set | {' | '.join(methods)} |", "|---|" + "---:|" * len(methods)]
    for data in grouped(found, lambda plan: str(plan["data"])):
        cells = []
        for ones in methods.values():
            values = [figure(one, name) for one in ones if one["plan"]["data"] == data]
            error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
            cells.append(f"{np.mean(values):.2f}" + (f" ± {error:.2f}" if error else ""))
        lines.append(f"| {data} | {' | '.join(cells)} |")
    return lines


def paper_table(found: Sequence[Found]) -> str:
    """Return ECE-15, mean ± standard error, and sizes for Table 1 of the SMART paper."""
    chosen = [one for name in IN_THE_PAPER for one in found if one["plan"]["method"] == name]
    methods, lines = grouped(chosen, called), figure_by_set(chosen, "ece")
    cells = [str(max(one["parameters"] for one in methods[name])) for name in IN_THE_PAPER]
    lines.append(f"| parameters, largest | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def variants_table(found: Sequence[Found], parameter: str) -> str:
    """Return SMART with each value of one parameter: means over sets, and ranks."""
    chosen = [one for one in found if one["plan"]["params"][0][0] == parameter]
    return _ranked(parameter, grouped(chosen, lambda plan: str(plan["params"][0][1])))


def recipes_table(found: Sequence[Found]) -> str:
    """Return all recipes of these fits: means over sets, and ranks."""
    return _ranked("recipe", grouped(found, called))


def _ranked(title: str, variants: dict[str, list[Found]]) -> str:
    placed = ranks(variants)
    heads = ["ECE-15", "above", "AdaECE", "NLL", "Brier", "fit seconds", "mean rank [95 %]"]
    lines = [f"| {title} | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name, ones in variants.items():
        keys = ("ece", "above", "ada_ece", "nll", "brier", "seconds")
        cells = [f"{mean(ones, key):.{COLUMNS[key][1]}f}" for key in keys]
        cells.append("{:.1f} [{:.1f}, {:.1f}]".format(*placed[name]))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def class_change_table(found: Sequence[Found]) -> str:
    """Return auto with and without methods that may change the class: means and choices."""
    lines = ["| recipe | ECE-15 | above | NLL | Brier | accuracy change | seconds | chosen |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---|")
    for name, ones in grouped(found, called).items():
        keys = ("ece", "above", "nll", "brier", "accuracy_change", "seconds")
        cells = [f"{mean(ones, key):.{COLUMNS[key][1]}f}" for key in keys]
        chosen = Counter(one["chosen"] for one in ones).most_common()
        cells.append(", ".join(f"{method} {times}" for method, times in chosen))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
