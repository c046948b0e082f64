"""Text of a report: conventions, verdict, and a table for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrators.metrics.catalogue import all_metrics
from calibrators.report.by_class import MAX_CLASSES
from calibrators.report.by_segment import MAX_REPORTED
from calibrators.report.by_temperature import CELLS, SHOWN
from calibrators.report.measurement import FLOOR_DRAWS
from calibrators.report.verdict import (
    CALIBRATION,
    MIN_RANKING_LOSS,
    MIN_ROWS,
    RANKING,
    WIDEST_RANKING,
    Verdict,
    in_doubt,
)

if TYPE_CHECKING:
    from calibrators.metrics import Interval, NoiseFloor
    from calibrators.report.report import Report

MOST_LISTED = 10


def conventions(bins: int, draws: int, level: float) -> dict[str, str]:
    """Return the conventions of a report by subject, with a few sentences for each.

    >>> conventions(15, 1000, 0.95)["equal width"][:40]
    'The 15 bins are (i/15, (i+1)/15]: a conf'
    """
    return {
        "prediction": "The prediction is the class with the largest probability (the first one if "
        "several are tied), and the confidence is that probability. All errors refer to this top "
        "label, except the class-wise ECE, NLL and Brier score, which use every class.",
        "equal width": f"The {bins} bins are (i/{bins}, (i+1)/{bins}]: a confidence on an edge "
        "belongs to the bin below it, and 0 to the first bin. ECE is the mean absolute gap between "
        "accuracy and mean confidence, each bin weighted by its number of rows; MCE is the largest "
        "gap of any non-empty bin.",
        "equal mass": f"The {bins} bins hold equal numbers of the sorted confidences; equal "
        "confidences at an edge are shared between the bins in proportion, so that the order of "
        "the rows never matters.",
        "debiased": "The debiased squared error is the mean squared gap of the equal-mass bins, "
        "minus the part due to chance, acc (1 - acc) / (n_b - 1) in each bin. Its expectation "
        "is 0 for a calibrated model, so it can be negative; its square root is then set to 0.",
        "smooth ECE": "The gaps are not binned but smoothed by a Gaussian that is reflected at 0 "
        "and 1. The bandwidth is chosen so that it equals the resulting error.",
        "scores": "NLL is in nats, with probabilities below 1.2e-38 raised to that value. The "
        "Brier score is summed over the classes and lies between 0 and 2.",
        "intervals": f"All intervals are at the {100 * level:g} % level. For binned errors, "
        f"they come from {draws:,} bootstrap draws of the rows, with fixed bins; the draws are "
        "shifted so that their mean is the estimate, because resampling adds noise a second time. "
        "For NLL and Brier score, they are the limit of many draws, computed from the mean, "
        "variance and skewness. The accuracy has Wilson's interval, and its change has Agresti and "
        "Min's interval. The intervals of AUROC and AURC follow from the influence of each row "
        "(DeLong). Changes are after minus before on the same rows. If each row is judged by a fit "
        "on other folds, the intervals of the changes in NLL, Brier score, AUROC and AURC are "
        "widened (by a factor of 1.5 for 5 folds; Nadeau & Bengio 2003), because such fits are not "
        "independent.",
        "noise floor": "The ECE of a perfectly calibrated model with these confidences on the same "
        f"number of rows: correctness is redrawn {FLOOR_DRAWS} times from the confidences, and the "
        "mean and the 95 % quantile are reported. An ECE below that quantile is no evidence of "
        "miscalibration.",
        "margin": "Rows are split into thirds by the margin, the largest minus the second largest "
        "logit of the uncalibrated model; rows of equal margin stay together. The equal-mass "
        "tables of a third have fewer bins if a bin would otherwise have fewer than 20 rows.",
        "classes": "For each class: the number of rows with that label and their share, the mean "
        "of its probability over all rows, and the class-wise ECE, which is the mean absolute gap "
        "between the share and the mean probability over equal-width bins of that probability, "
        "each weighted by its number of rows. The class-wise ECE of a report is the mean over all "
        f"classes. At most {MAX_CLASSES} classes are kept, the worst on the after side.",
        "segments": "For each segment: its number of rows, the accuracy and mean confidence of its "
        "predictions, the ECE with equal-width bins over its rows alone, and the noise floor of "
        f"that ECE. At most {MAX_REPORTED} segments are kept: those with the most rows, sorted by "
        "how far the ECE on the after side is above the 95 % quantile of its noise floor.",
        "temperatures": "The temperatures by which a temperature-type map, fitted on all rows, "
        f"divides the logits of the judged rows. For each of {CELLS} equal cells of the margin, "
        f"from 0 to its {100 * SHOWN:g} % quantile: the mean, and the range of the middle 80 % of "
        "the rows.",
        "gate": "A gate uses the interval of the debiased squared error, which is widened because "
        "bins whose rows are all correct or all wrong show no spread: upwards to the largest "
        "overall gap that Wilson's interval for the accuracy allows, and downwards by the part of "
        "such a bin's gap that may be due to chance. A gate on the ECE uses a separate interval. "
        "Its lower bound is the ECE minus the part that may be due to noise, or 0 if a calibrated "
        "model could show such an ECE by chance. Its upper bound is the ECE plus a quantile of its "
        "spread.",
        "verdict": "Better means that the whole interval of the change lies on the better side of "
        "0, and worse that it lies on the worse side; a loss of AUROC counts only beyond "
        f"{100 * MIN_RANKING_LOSS:g} points. The verdict is based on the debiased squared error, "
        "NLL, Brier score, accuracy and the AUROC of correct vs. wrong. If calibration is "
        "better, any loss makes the verdict a trade-off, and so does an AUROC whose interval "
        f"reaches below 0 and more than {100 * WIDEST_RANKING:g} points below its estimate. If "
        "calibration is not better, the verdict is worse only if the five intervals, taken "
        "together, show a loss (at the level of 99 % instead of 95 % each). A verdict needs at "
        f"least {MIN_ROWS} rows.",
        "chance": "Labels are at chance if they are ranked no better than 99 % of all label "
        "permutations. The ranking is the AUROC of each class against the rest, averaged with "
        "weights n_c (n - n_c); its mean and variance over all permutations are exact. This must "
        "hold on both sides, and for the uncalibrated probabilities of the whole dataset. Accuracy "
        "is not the criterion: for rare classes, it may equal the share of the largest class.",
    }


def summary(report: Report) -> str:
    """Return a report as a plain-text table for terminals, about 90 columns wide."""
    compared = report.before is not None
    percent = f"{100 * report.level:g} % interval"
    head = ("", "before", "after", "change", percent) if compared else ("", "value", percent)
    rows = [head]
    for metric, before, after, change, interval in report.rows():
        cells = (before, after, change, interval) if compared else (after, interval)
        rows.append((metric.title, *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join((line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:]))).rstrip()
        for line in rows
    ]
    floors = floor(report.noise_floor)
    if report.before is not None:
        floors = f"before {floor(report.before.noise_floor)}, after {floors}"
    lines = [heading(report), "", *table, "", f"noise floor of the ECE: {floors}"]
    if report.by_segment:
        worst = report.by_segment[0]
        figures = f"ECE {100 * worst.after.ece:.2f} %, noise floor {floor(worst.after.noise_floor)}"
        candidates = f"{report.segments:,} segments"
        if report.segments > len(report.by_segment):
            candidates = f"the {len(report.by_segment)} largest of {candidates}"
        lines.append(f"worst of {candidates}: {worst.name} ({figures})")
    if report.verdict is not None:
        lines.append(f"verdict: {report.verdict} ({verdict_sentence(report)})")
    elif report.chance_warning:
        lines.append(f"warning: {report.chance_warning}")
    lines += [f"warning: {one}" for one in _warnings(report)]
    return "\n".join(lines)


def verdict_sentence(report: Report) -> str:
    """Return the verdict of a report in words, including what got worse and by how much.

    Like ``Verdict.meaning``, it begins in lower case and has no full stop. It is empty if there is
    no verdict.
    """
    named = [name for name in report.lost if name != CALIBRATION]
    worse = " and ".join(_change(name, report.change[name]) for name in named)
    match report.verdict:
        case Verdict.IMPROVED | Verdict.TRADE_OFF if worse:
            return f"calibration is better, but these got worse: {worse}"
        case Verdict.TRADE_OFF if in_doubt(report.change):
            fall = _change(RANKING, report.change[RANKING])
            return (
                "calibration is better, but there are too few rows to rule out that ranking is "
                f"worse: {fall}"
            )
        case Verdict.WORSE if CALIBRATION in report.lost:
            return "calibration is worse" + (f", and these got worse: {worse}" if worse else "")
        case Verdict.WORSE if worse:
            return f"no gain in calibration, and these got worse: {worse}"
        case Verdict.NO_MEASURABLE_CHANGE if worse:
            return (
                "calibration is neither measurably better nor worse; these may have got worse, "
                f"but not significantly when five intervals are tested: {worse}"
            )
        case Verdict.NO_MEASURABLE_CHANGE if CALIBRATION in report.lost:
            return "calibration may be worse, but not significantly when five intervals are tested"
        case Verdict.AT_CHANCE if report.chance is not None:
            return chance_warning(report)
        case None:
            return ""
        case other:
            return other.meaning


def chance_warning(report: Report) -> str:
    """Return the evidence that labels are predicted no better than by chance; empty if none."""
    test = report.chance
    if test is None or test.is_above_chance:
        return ""
    if test.is_misnumbered:
        other = test.reordered_accuracy
        better = "" if other is None else f", {100 * other:.1f} % if the columns are reordered"
        which = _listed(test.reordered_classes)
        return (
            f"the columns{which} seem to be in a different order from the classes of the labels "
            f"(over {test.rows:,} rows, {100 * test.accuracy:.1f} % are correct, "
            f"{100 * test.accuracy_by_chance:.1f} % with shuffled labels{better})"
        )
    return (
        f"{Verdict.AT_CHANCE.meaning} (over {test.rows:,} rows, the mean AUROC of each class "
        f"against the rest is {test.auroc:.3f}, and 1 % of label permutations exceed "
        f"{test.limit:.3f}; {100 * test.accuracy:.1f} % are correct, "
        f"{100 * test.accuracy_by_chance:.1f} % with shuffled labels)"
    )


def _listed(classes: tuple[int, ...]) -> str:
    """Return classes for a sentence; empty if there are none.

    >>> _listed((3, 5))
    ' of the classes 3 and 5'
    """
    if not classes:
        return ""
    names = [str(one) for one in classes[:MOST_LISTED]]
    if len(classes) > MOST_LISTED:
        names.append(f"{len(classes) - MOST_LISTED:,} more")
    return f" of the classes {', '.join(names[:-1])} and {names[-1]}"


def _warnings(report: Report) -> list[str]:
    """Return the messages of the fit's warnings, checked because a report may be untrusted."""
    stored = report.fit.get("warnings")
    warnings = stored if isinstance(stored, list) else []
    return [str(one["message"]) for one in warnings if isinstance(one, dict) and "message" in one]


def _change(name: str, interval: Interval) -> str:
    metric = all_metrics()[name]
    return f"{metric.title} {metric.change(interval)}"


def heading(report: Report) -> str:
    """Return the numbers of rows and classes, and a description of the judged rows."""
    return f"{report.n:,} rows, {report.k:,} classes; judged on: {report.judged_on}"


def floor(found: NoiseFloor) -> str:
    """Return the mean and the 95 % quantile of a noise floor, in percent."""
    return f"{100 * found.mean:.2f} % (up to {100 * found.quantile95:.2f} %)"
