"""``calibrd gate``: decide whether a calibration error is within a limit."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from calibrators import CalibrationSet, Report, evaluate
from calibrators.comparison.judged_rows import unordered_fingerprint
from calibrators.errors import LooksLikeProbabilities
from calibrators.methods.identity import IdentityMap
from calibrators.methods.segmented import SegmentedMap
from calibrators.metrics import Interval
from calibrators.report.verdict import MIN_ROWS, Gate
from calibrd.cli.context import (
    AddCommand,
    CommandContext,
    NamedMap,
    add_map_flags,
    add_rows_flags,
    check_same_kind,
    note_segments,
)
from calibrd.cli.output import CommandError
from calibrd.io.dataset_files import ENDINGS

EXIT_CODES = {Gate.PASS: 0, Gate.FAIL: 1, Gate.INSUFFICIENT_DATA: 2}
MARKS = {Gate.PASS: "✅", Gate.FAIL: "❌", Gate.INSUFFICIENT_DATA: "⚠️"}
MAX_TIMES = 1000
# metrics that can have a limit, and their names in sentences
METRICS = {
    "calibration_error": "calibration error (debiased root mean square)",
    "ece": "ECE (15 equal-width bins)",
}


class Decision(NamedTuple):
    """The decision of a gate on one metric, and the figures behind it."""

    metric: str
    limit: float
    gate: Gate
    interval: Interval

    @classmethod
    def of(cls, report: Report, metric: str, limit: float) -> Decision:
        """Decide whether the metric is within the limit."""
        return cls(metric, limit, report.gate(limit, metric), report.gate_interval(metric))

    @property
    def words(self) -> str:
        """A sentence with the metric, its value, interval and limit."""
        value, low, high = (
            _percent(one) for one in (self.interval.value, self.interval.low, self.interval.high)
        )
        level = f"{100 * self.interval.level:g} %"
        return (
            f"The {METRICS[self.metric]} is {value}, with a {level} interval from {low} to {high}; "
            f"the limit is {_percent(self.limit)}: {_name(self.gate)}."
        )


def add_to(add_command: AddCommand) -> None:
    """Add the command."""
    parser = add_command(
        "gate",
        gate,
        "decide whether a map's calibration error on labelled rows is within a limit",
        epilog="Exit codes: 0 pass, the whole 95 % interval of the metric is within its limit; "
        "1 fail, the whole interval is beyond it; 2 insufficient data, the interval contains the "
        f"limit or there are fewer than {MIN_ROWS} rows; 3 error. If both limits are given, both "
        "must pass. The map is applied locally, and must not have been fitted on these rows.",
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        help=f"labelled rows that the map was not fitted on: {ENDINGS}",
    )
    add_map_flags(parser)
    parser.add_argument(
        "--max-calibration-error",
        type=_limit("--max-calibration-error"),
        metavar="LIMIT",
        help="limit for the debiased root-mean-square error, which is free of the noise of an ECE; "
        "0.03 is three percentage points",
    )
    parser.add_argument(
        "--max-ece",
        type=_limit("--max-ece"),
        metavar="LIMIT",
        help="limit for the ECE, whose interval accounts for its noise",
    )
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="append the decision to this file, such as $GITHUB_STEP_SUMMARY",
    )
    add_rows_flags(parser)


def gate(context: CommandContext) -> int:
    """Print the decision and its explanation; return the exit code."""
    flags = context.flags
    limits = _limits(flags)
    rows = context.set_file(flags.data)
    with warnings.catch_warnings():  # the error below says more
        warnings.simplefilter("ignore", LooksLikeProbabilities)
        data = rows.checked()
    if data.is_surely_probabilities:
        raise CommandError(
            "looks_like_probabilities",
            f"{flags.data} contains probabilities, not logits: every row lies in [0, 1] and sums "
            "to 1, so the gate made no decision",
            "for a map of logits, save the outputs before the softmax; for a map of probabilities, "
            "name the npz array 'probabilities', or pass --kind probabilities for a table",
        )
    if data.probabilities_note is not None:
        context.output.note(f"warning: {data.probabilities_note}")
    used = context.map(confirmed=True)
    rows.for_segments(isinstance(used.fitted, SegmentedMap))
    check_same_kind(used.fitted, data, Path(flags.data))
    _check_unseen(used, data, flags.data)
    in_segments = None
    if isinstance(used.fitted, SegmentedMap):
        in_segments = used.fitted.known_rows(data.segments)
        note_segments(context, in_segments, data.n)
    report = evaluate(used.fitted.apply_set(data), data.labels, judged_on=flags.data)
    if report.chance_warning:
        context.output.note(f"warning: {report.chance_warning}")
    decisions = [Decision.of(report, metric, limit) for metric, limit in limits.items()]
    decision = strictest(decisions)
    words = paragraph(report, decisions, used, flags.data)
    if flags.markdown is not None:
        with flags.markdown.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(decision.gate, words))
    code = EXIT_CODES[decision.gate]
    document = _document(report, decisions, used, words, code)
    context.output.answer({**document, "rows_in_segments": in_segments}, words)
    return code


def _check_unseen(used: NamedMap, data: CalibrationSet, path: str) -> None:
    """Raise CommandError if the map was fitted on these rows, unless it is the identity map."""
    fitted_on = used.fitted.fit_info.get("fitted_on")
    if used.fitted.method != IdentityMap.method and fitted_on == unordered_fingerprint(data):
        raise CommandError(
            "fitted_rows",
            f"{path} contains the rows that {used.description} was fitted on; any map scores too "
            "well on such rows, so the gate made no decision",
            "use labelled rows that the map was not fitted on",
        )


def strictest(decisions: list[Decision]) -> Decision:
    """Return the overall decision: fail outranks insufficient data, which outranks pass."""
    order = (Gate.FAIL, Gate.INSUFFICIENT_DATA, Gate.PASS)
    return min(decisions, key=lambda one: order.index(one.gate))


def paragraph(report: Report, decisions: list[Decision], used: NamedMap, path: str) -> str:
    """Return a paragraph with the measurements, their meaning and advice."""
    decision = strictest(decisions)
    figures = " ".join(one.words for one in decisions)
    known = any(one.metric == "ece" for one in decisions)
    ece = "" if known else f"The ECE is {_percent(report.metrics['ece'] or 0.0)}. "
    floor = f"Noise alone would give an ECE of about {_percent(report.noise_floor.mean)}."
    return (
        f"{_name(decision.gate).upper()}: {used.description} on {path}, {report.n:,} rows. "
        f"{figures} {ece}{floor} {_meaning(report, decision)}"
    )


def markdown(decided: Gate, words: str) -> str:
    """Return the decision as Markdown for the summary of a CI job."""
    return (
        f"### {MARKS[decided]} Calibration gate: {_name(decided)}\n\n{words.partition(': ')[2]}\n\n"
    )


def rows_needed(report: Report, limit: float, metric: str = "calibration_error") -> int | None:
    """Estimate the number of rows needed to decide; return None if it is too large to estimate.

    The width of an interval is assumed to shrink with the square root of the number of rows. For
    the calibration error, the interval of its square is used, because that interval is symmetric.
    """
    found, edge = report.gate_interval(metric), limit
    if metric == "calibration_error":
        found, edge = report.cautious_error, limit**2
    value = max(0.0, found.value)
    half = found.high - found.value if value <= edge else found.value - found.low
    gap = abs(edge - value)
    if gap <= 0 or not math.isfinite(half) or half / gap > math.sqrt(MAX_TIMES):
        return None
    return max(MIN_ROWS, math.ceil(report.n * (half / gap) ** 2))


def _meaning(report: Report, decided: Decision) -> str:
    metric = METRICS[decided.metric].partition(" (")[0]
    if decided.gate is Gate.PASS:
        return (
            f"The whole interval of the {metric} is within the limit: these probabilities can be "
            "used as they are."
        )
    if decided.gate is Gate.FAIL:
        return (
            f"The whole interval of the {metric} is beyond the limit: these probabilities are not "
            "calibrated well enough. Fit on similar rows, and promote the new version if it "
            "passes."
        )
    if report.n < MIN_ROWS:
        return f"A decision needs at least {MIN_ROWS} rows: add more labelled rows."
    needed = rows_needed(report, decided.limit, decided.metric)
    remedy = f"about {needed:,} rows would be enough" if needed else "add many more"
    return (
        f"The interval of the {metric} contains the limit, so these rows are not enough to decide: "
        f"{remedy}."
    )


def _document(
    report: Report, decisions: list[Decision], used: NamedMap, words: str, code: int
) -> dict[str, Any]:
    decision = strictest(decisions)
    return {
        "gate": decision.gate,
        "decided_by": decision.metric,
        "exit_code": code,
        "map": used.facts,
        "rows": report.n,
        "classes": report.k,
        "limits": {
            one.metric: {"gate": one.gate, "limit": one.limit, **vars(one.interval)}
            for one in decisions
        },
        "calibration_error": report.gate_interval("calibration_error"),
        "ece": report.gate_interval("ece"),
        "noise_floor": report.noise_floor,
        "paragraph": words,
    }


def _limits(flags: argparse.Namespace) -> dict[str, float]:
    """Return the limits given on the command line, by metric."""
    options = {"calibration_error": flags.max_calibration_error, "ece": flags.max_ece}
    limits = {metric: limit for metric, limit in options.items() if limit is not None}
    if not limits:
        raise CommandError("usage", "pass --max-calibration-error LIMIT, --max-ece LIMIT, or both")
    return limits


def _limit(flag: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if not 0 < limit < 1:
            raise CommandError(
                "usage",
                f"{flag} must be between 0 and 1 (0.03 is three percentage points), got {text!r}",
            )
        return limit

    return read


def _name(decided: Gate) -> str:
    return str(decided).replace("_", " ")


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
