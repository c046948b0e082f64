"""``calibrd gate``: is a calibration error known to keep a limit?"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from calibrators import Report, evaluate
from calibrators.methods.segmented import SegmentedMap
from calibrators.metrics import Interval
from calibrators.report.verdict import LEAST_ROWS, Gate
from calibrd.cli.context import (
    CommandContext,
    NamedMap,
    Verb,
    add_map_flags,
    add_rows_flags,
    check_same_kind,
    note_segments,
)
from calibrd.cli.output import CommandError
from calibrd.io.dataset_files import ENDINGS

EXIT_CODES = {Gate.PASS: 0, Gate.FAIL: 1, Gate.INSUFFICIENT_DATA: 2}
MARKS = {Gate.PASS: "✅", Gate.FAIL: "❌", Gate.INSUFFICIENT_DATA: "⚠️"}
MOST_TIMES = 1000
# what can be limited: how it is called in words, and what the flag takes
METRICS = {
    "calibration_error": "calibration error (debiased root mean square)",
    "ece": "ECE (15 equally wide bins)",
}


class Decision(NamedTuple):
    """What a gate on one metric decided, and the figures it decided by."""

    metric: str
    limit: float
    gate: Gate
    interval: Interval

    @classmethod
    def of(cls, report: Report, metric: str, limit: float) -> Decision:
        """Decide whether the metric is known to keep the limit."""
        return cls(metric, limit, report.gate(limit, metric), report.gate_interval(metric))

    @property
    def words(self) -> str:
        """The metric, its value, interval and limit in a sentence."""
        value, low, high = (
            _percent(one) for one in (self.interval.value, self.interval.low, self.interval.high)
        )
        level = f"{100 * self.interval.level:g} %"
        return (
            f"The {METRICS[self.metric]} is {value}, with a {level} interval from {low} to {high}; "
            f"its limit is {_percent(self.limit)}: {_name(self.gate)}."
        )


def add_to(verb: Verb) -> None:
    """Add the command."""
    gating = verb(
        "gate",
        gate,
        "decide whether a map keeps a limit on labelled rows",
        epilog="Exit codes: 0 pass, the whole 95 % interval of what is limited is within its "
        "limit; 1 fail, it is beyond; 2 insufficient data, it holds the limit or there are fewer "
        f"than {LEAST_ROWS} rows; 3 any trouble. With both limits, both must pass. The map is "
        "applied here.",
    )
    gating.add_argument(
        "data",
        metavar="DATA",
        help=f"labelled rows the map was not fitted on: {ENDINGS}",
    )
    add_map_flags(gating)
    gating.add_argument(
        "--max-calibration-error",
        type=_limit("--max-calibration-error"),
        metavar="LIMIT",
        help="of the debiased root-mean-square error, free of the noise in an ECE; 0.03 is three "
        "points",
    )
    gating.add_argument(
        "--max-ece",
        type=_limit("--max-ece"),
        metavar="LIMIT",
        help="of the ECE itself, whose interval allows for its noise",
    )
    gating.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="append the decision, for example to $GITHUB_STEP_SUMMARY",
    )
    add_rows_flags(gating)


def gate(asked: CommandContext) -> int:
    """Decide, explain, and say it by the exit code."""
    flags = asked.flags
    limits = _limits(flags)
    rows = asked.set_file(flags.data)
    data = rows.checked()
    used = asked.map(confirmed=True)
    rows.for_segments(isinstance(used.fitted, SegmentedMap))
    check_same_kind(used.fitted, data, Path(flags.data))
    in_segments = None
    if isinstance(used.fitted, SegmentedMap):
        in_segments = used.fitted.known_rows(data.segments)
        note_segments(asked, in_segments, data.n)
    report = evaluate(used.fitted.apply_set(data), data.labels, judged_on=flags.data)
    made = [Decision.of(report, metric, limit) for metric, limit in limits.items()]
    decisive = strictest(made)
    words = paragraph(report, made, used, flags.data)
    if flags.markdown is not None:
        with flags.markdown.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(decisive.gate, words))
    code = EXIT_CODES[decisive.gate]
    document = _document(report, made, used, words, code)
    asked.output.answer({**document, "rows_in_segments": in_segments}, words)
    return code


def strictest(made: list[Decision]) -> Decision:
    """Return the decision that decides: a fail before insufficient data before a pass."""
    order = (Gate.FAIL, Gate.INSUFFICIENT_DATA, Gate.PASS)
    return min(made, key=lambda one: order.index(one.gate))


def paragraph(report: Report, made: list[Decision], used: NamedMap, path: str) -> str:
    """What was measured, what it means and what to do."""
    decisive = strictest(made)
    figures = " ".join(one.words for one in made)
    known = any(one.metric == "ece" for one in made)
    ece = "" if known else f"The ECE is {_percent(report.metrics['ece'] or 0.0)}. "
    floor = f"An ECE of about {_percent(report.noise_floor.mean)} would be noise alone."
    return (
        f"{_name(decisive.gate).upper()}: {used.words} on {path}, {report.n:,} rows. {figures} "
        f"{ece}{floor} {_meaning(report, decisive)}"
    )


def markdown(decided: Gate, words: str) -> str:
    """The same for a page such as that of a CI job."""
    return (
        f"### {MARKS[decided]} Calibration gate: {_name(decided)}\n\n{words.partition(': ')[2]}\n\n"
    )


def rows_needed(report: Report, limit: float, metric: str = "calibration_error") -> int | None:
    """About how many rows would decide if the estimate stayed: intervals shrink with their root.

    For the calibration error on the scale of its square, where its interval is symmetric.
    """
    found, edge = report.gate_interval(metric), limit
    if metric == "calibration_error":
        found, edge = report.cautious_error, limit**2
    value = max(0.0, found.value)
    half = found.high - found.value if value <= edge else found.value - found.low
    gap = abs(edge - value)
    if gap <= 0 or not math.isfinite(half) or half / gap > math.sqrt(MOST_TIMES):
        return None
    return max(LEAST_ROWS, math.ceil(report.n * (half / gap) ** 2))


def _meaning(report: Report, decided: Decision) -> str:
    metric = METRICS[decided.metric].partition(" (")[0]
    if decided.gate is Gate.PASS:
        return (
            f"The whole interval of the {metric} is within the limit: these probabilities can be "
            "used as they are."
        )
    if decided.gate is Gate.FAIL:
        return (
            f"The whole interval of the {metric} is beyond the limit: these probabilities are off "
            "by more than is allowed. Fit on rows like these, and promote that version if it "
            "passes."
        )
    if report.n < LEAST_ROWS:
        return f"Fewer than {LEAST_ROWS} rows cannot decide: bring more labelled rows."
    needed = rows_needed(report, decided.limit, decided.metric)
    wanted = f"; about {needed:,} would decide" if needed else ", many more"
    return (
        f"The interval of the {metric} holds the limit, so these rows cannot decide: bring "
        f"more{wanted}."
    )


def _document(
    report: Report, made: list[Decision], used: NamedMap, words: str, code: int
) -> dict[str, Any]:
    decisive = strictest(made)
    return {
        "gate": decisive.gate,
        "decided_by": decisive.metric,
        "exit_code": code,
        "map": used.facts,
        "rows": report.n,
        "classes": report.k,
        "limits": {
            one.metric: {"gate": one.gate, "limit": one.limit, **vars(one.interval)} for one in made
        },
        "calibration_error": report.gate_interval("calibration_error"),
        "ece": report.gate_interval("ece"),
        "noise_floor": report.noise_floor,
        "paragraph": words,
    }


def _limits(flags: argparse.Namespace) -> dict[str, float]:
    """Return the limits that were given, by the name of what they limit."""
    given = {"calibration_error": flags.max_calibration_error, "ece": flags.max_ece}
    limits = {metric: limit for metric, limit in given.items() if limit is not None}
    if not limits:
        raise CommandError("usage", "say --max-calibration-error LIMIT, --max-ece LIMIT, or both")
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
                f"{flag} must lie between 0 and 1 (0.03 is three percentage points), got {text!r}",
            )
        return limit

    return read


def _name(decided: Gate) -> str:
    return str(decided).replace("_", " ")


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
