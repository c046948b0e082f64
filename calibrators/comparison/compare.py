"""Compare two fits on the rows that both were judged on."""

from __future__ import annotations

from typing import Any

from calibrators.comparison.judged_rows import JudgedRows, in_common
from calibrators.errors import DataError
from calibrators.metrics import (
    Interval,
    RowScores,
    ScoredRows,
    compared_intervals,
    fold_factor,
)
from calibrators.metrics.interval_rules import MeanOf, ShareOf
from calibrators.report import text
from calibrators.report.by_segment import by_segment
from calibrators.report.measurement import Measurement, by_margin, measure
from calibrators.report.report import Report, widened
from calibrators.report.verdict import MIN_ROWS, decide

LEVEL = 0.95
OPTIONS: dict[str, Any] = {"bins": 15, "draws": 1000, "level": LEVEL, "seed": 0}


def compare(first: JudgedRows, second: JudgedRows) -> Report:
    """Return a report that compares the second fit with the first on the rows common to both.

    The first fit is the report's "before". Metrics that need the probabilities of all classes are
    left out. Raise DataError if the fits have fewer than 100 rows in common.
    """
    old, new = common_rows(first, second)
    found = compared_intervals(old.after, new.after, **OPTIONS)
    change = widened(found.change, max(old.folds, new.folds))
    tops = new.after.top, old.after.top
    return Report(
        **vars(_measured(new.after, found.after)),
        **OPTIONS,
        n=new.n,
        k=new.classes,
        judged_on=f"{new.n:,} rows that both were judged on, by fits that had not seen these rows",
        before=_measured(old.after, found.before),
        change=change,
        verdict=decide(new.n, change),
        by_margin=by_margin(new.margin, *tops, OPTIONS),
        segments=0 if new.segments is None else len(new.segments.names),
        by_segment=() if new.segments is None else by_segment(new.segments, *tops, OPTIONS),
        conventions=text.conventions(OPTIONS["bins"], OPTIONS["draws"], LEVEL),
    )


def common_rows(first: JudgedRows, second: JudgedRows) -> tuple[JudgedRows, JudgedRows]:
    """Return the rows common to both fits; raise DataError if there are too few to compare."""
    common = in_common(first, second)
    if common is None:
        raise DataError("other_data", "the two fits were judged on rows of different datasets")
    rows = common[0].n
    if rows < MIN_ROWS:
        raise DataError(
            "too_few_common_rows",
            f"the two fits have {rows} judged rows in common, but at least {MIN_ROWS} are needed: "
            "compare them on a dataset that neither was fitted on",
        )
    return common


def accuracy_change(first: JudgedRows, second: JudgedRows) -> Interval:
    """Return the change in accuracy that `compare` reports, without the rest of the report."""
    old, new = common_rows(first, second)
    return ShareOf(lambda rows: rows.top.correct).change(old.after, new.after, LEVEL)


def nll_change(first: JudgedRows, second: JudgedRows) -> Interval:
    """Return the change in NLL that `compare` reports, without the rest of the report."""
    old, new = common_rows(first, second)
    wider = fold_factor(max(old.folds, new.folds))
    return MeanOf(lambda rows: rows.nll).change(old.after, new.after, LEVEL).widened(wider)


def _measured(rows: RowScores, intervals: dict[str, Interval]) -> Measurement:
    return measure(ScoredRows(rows, OPTIONS["bins"]), intervals, OPTIONS)
