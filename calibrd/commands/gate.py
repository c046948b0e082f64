"""``calibrd gate``: is the calibration error known to keep a limit?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from calibrators import Report, evaluate
from calibrators.methods.segmented import SegmentedMap
from calibrators.verdict import LEAST_ROWS, Gate
from calibrd.commands.asked import (
    Asked,
    NamedMap,
    Verb,
    add_map_flags,
    add_rows_flags,
    check_same_kind,
    note_segments,
)
from calibrd.commands.output import CommandError

EXIT_CODES = {Gate.PASS: 0, Gate.FAIL: 1, Gate.INSUFFICIENT_DATA: 2}
MARKS = {Gate.PASS: "✅", Gate.FAIL: "❌", Gate.INSUFFICIENT_DATA: "⚠️"}
MOST_TIMES = 1000


def add_to(verb: Verb) -> None:
    """Add the command."""
    gating = verb(
        "gate",
        gate,
        "decide whether a map keeps a limit on labelled rows",
        epilog="Exit codes: 0 pass, the whole 95 % interval of the debiased calibration error is "
        "within the limit; 1 fail, it is beyond; 2 insufficient data, it holds the limit or there "
        f"are fewer than {LEAST_ROWS} rows; 3 any trouble. The map is applied here.",
    )
    gating.add_argument(
        "data",
        metavar="DATA",
        help="labelled rows the map was not fitted on: .npz, .parquet or .arrow",
    )
    add_map_flags(gating)
    gating.add_argument(
        "--max-ece", type=_limit, required=True, metavar="LIMIT", help="0.03 is three points"
    )
    gating.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="append the decision, for example to $GITHUB_STEP_SUMMARY",
    )
    add_rows_flags(gating)


def gate(asked: Asked) -> int:
    """Decide, explain, and say it by the exit code."""
    flags = asked.flags
    rows = asked.set_file(flags.data)
    data = rows.checked()
    used = asked.map(confirmed=True)
    rows.for_segments(isinstance(used.fitted, SegmentedMap))
    check_same_kind(used.fitted, data, Path(flags.data))
    in_segments = None
    if isinstance(used.fitted, SegmentedMap):
        in_segments = used.fitted.known_rows(data.groups)
        note_segments(asked, in_segments, data.n)
    report = evaluate(used.fitted.apply_set(data), data.labels, judged_on=flags.data)
    decided = report.gate(flags.max_ece)
    words = paragraph(report, decided, flags.max_ece, used, flags.data)
    if flags.markdown is not None:
        with flags.markdown.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(report, decided, words))
    code = EXIT_CODES[decided]
    document = _document(report, decided, flags.max_ece, used, words, code)
    asked.output.answer({**document, "rows_in_segments": in_segments}, words)
    return code


def paragraph(report: Report, decided: Gate, limit: float, used: NamedMap, path: str) -> str:
    """What was measured, what it means and what to do."""
    value, low, high = error_of(report)
    name = str(decided).replace("_", " ").upper()
    return (
        f"{name}: {used.words} on {path}, {report.n:,} rows. The calibration error (debiased root "
        f"mean square) is {_percent(value)}, with a 95 % interval from {_percent(low)} to "
        f"{_percent(high)}; the limit is {_percent(limit)}. The ECE is "
        f"{_percent(report.metrics['ece'] or 0.0)}; that of a perfectly calibrated model would be "
        f"about {_percent(report.noise_floor.mean)}. {_meaning(report, decided, limit)}"
    )


def markdown(report: Report, decided: Gate, words: str) -> str:
    """The same for a page such as that of a CI job."""
    name = str(decided).replace("_", " ")
    return f"### {MARKS[decided]} Calibration gate: {name}\n\n{words.partition(': ')[2]}\n\n"


def error_of(report: Report) -> tuple[float, float, float]:
    """The root of the debiased squared error, with the bounds of its interval."""
    found = report.cautious_error
    value, low, high = (math.sqrt(max(0.0, one)) for one in (found.value, found.low, found.high))
    return value, low, high


def rows_needed(report: Report, limit: float) -> int | None:
    """About how many rows would decide if the estimate stayed: intervals shrink with its root."""
    found = report.cautious_error
    gap = abs(limit**2 - max(0.0, found.value))
    half = found.high - found.value if found.value <= limit**2 else found.value - found.low
    if gap <= 0 or not math.isfinite(half) or half / gap > math.sqrt(MOST_TIMES):
        return None
    return max(LEAST_ROWS, math.ceil(report.n * (half / gap) ** 2))


def _meaning(report: Report, decided: Gate, limit: float) -> str:
    if decided is Gate.PASS:
        return (
            "The whole interval is within the limit: these probabilities can be used as they are."
        )
    if decided is Gate.FAIL:
        return (
            "The whole interval is beyond the limit: these probabilities are off by more than is "
            "allowed. Fit on rows like these, and promote that version if it passes."
        )
    if report.n < LEAST_ROWS:
        return f"Fewer than {LEAST_ROWS} rows cannot decide: bring more labelled rows."
    needed = rows_needed(report, limit)
    wanted = f"; about {needed:,} would decide" if needed else ", many more"
    return f"The interval holds the limit, so these rows cannot decide: bring more{wanted}."


def _document(
    report: Report, decided: Gate, limit: float, used: NamedMap, words: str, code: int
) -> dict[str, Any]:
    value, low, high = error_of(report)
    return {
        "gate": decided,
        "exit_code": code,
        "map": used.facts,
        "rows": report.n,
        "classes": report.k,
        "limit": limit,
        "calibration_error": {"value": value, "low": low, "high": high, "level": report.level},
        "ece": report.metrics["ece"],
        "noise_floor": report.noise_floor,
        "paragraph": words,
    }


def _limit(text: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < 1:
        raise CommandError(
            "usage",
            f"--max-ece must lie between 0 and 1 (0.03 is three percentage points), got {text!r}",
        )
    return limit


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
