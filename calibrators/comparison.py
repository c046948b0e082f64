"""Compare two fits on rows that both were judged on: neither judged fit had seen them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from calibrators import wording
from calibrators.errors import DataError
from calibrators.judged_rows import JudgedRows, in_common
from calibrators.measurement import Measurement, Scored, by_margin, measure
from calibrators.metrics import ClassTable, Interval, RowScores, compared_intervals
from calibrators.report import Report, _fold_factor
from calibrators.segments import by_group
from calibrators.verdict import LEAST_ROWS, decide

OPTIONS: dict[str, Any] = {"bins": 15, "draws": 1000, "level": 0.95, "seed": 0}
NEED_PROBABILITIES = ("classwise_ece", "top_5_error")


def compare(first: JudgedRows, second: JudgedRows) -> Report:
    """Return the report of the second fit against the first, on the rows common to both.

    The first is the report's "before". Metrics that need the probabilities of all classes are left
    out. DataError if fewer than 100 rows are common.
    """
    old, new = common_rows(first, second)
    found = compared_intervals(old.after, new.after, **OPTIONS)
    change = dict(found.change)
    change["nll"] = change["nll"].widened(_fold_factor(max(old.folds, new.folds)))
    tops = new.after.top, old.after.top
    return Report(
        **vars(_measured(new.after, found.after)),
        **OPTIONS,
        n=new.n,
        k=new.classes,
        judged_on=f"{new.n:,} rows that both were judged on, by fits that had not seen them",
        before=_measured(old.after, found.before),
        change=change,
        verdict=decide(new.n, change),
        by_margin=by_margin(new.margin, *tops, OPTIONS),
        groups=0 if new.groups is None else len(new.groups.names),
        by_group=() if new.groups is None else by_group(new.groups, *tops, OPTIONS),
        conventions=wording.conventions(OPTIONS["bins"], OPTIONS["draws"], OPTIONS["level"]),
    )


def common_rows(first: JudgedRows, second: JudgedRows) -> tuple[JudgedRows, JudgedRows]:
    """Return the rows common to both; DataError if they are too few to compare anything."""
    common = in_common(first, second)
    if common is None:
        raise DataError("other_data", "the two were judged on rows of different data sets")
    rows = common[0].n
    if rows < LEAST_ROWS:
        raise DataError(
            "too_few_common_rows",
            f"the two have {rows} judged rows in common, and at least {LEAST_ROWS} are needed",
        )
    return common


def accuracy_change(first: JudgedRows, second: JudgedRows, *, level: float = 0.95) -> Interval:
    """Return the change in accuracy from the first to the second, on the rows common to both.

    The paired bootstrap of `compare`, drawn from the counts of rows gained, lost and unchanged:
    these are all that a resample depends on, so it takes no pass over the rows.
    """
    old, new = common_rows(first, second)
    gain = new.after.top.correct.astype(np.int8) - old.after.top.correct
    counts = np.array([np.count_nonzero(gain == one) for one in (-1, 0, 1)])
    drawn = np.random.default_rng(0).multinomial(new.n, counts / new.n, OPTIONS["draws"])
    changes = (drawn[:, 2] - drawn[:, 0]) / new.n
    value = float(gain.mean())
    low, high = np.quantile(changes - changes.mean() + value, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), level)


def nll_change(first: JudgedRows, second: JudgedRows, *, level: float = 0.95) -> Interval:
    """Return the change in NLL from the first to the second, on the rows common to both.

    A normal interval of the paired differences, widened where rows were judged in folds: for
    choices between several fits, where a bootstrap of each pair would take long.
    """
    old, new = common_rows(first, second)
    change = new.after.nll - old.after.nll
    half = NormalDist().inv_cdf((1 + level) / 2) * float(change.std(ddof=1)) / math.sqrt(new.n)
    value = float(change.mean())
    found = Interval(value, value - half, value + half, level)
    return found.widened(_fold_factor(max(old.folds, new.folds)))


def _measured(rows: RowScores, intervals: dict[str, Interval]) -> Measurement:
    """Return the metrics that follow from row scores; the others have no place in the table."""
    n = rows.nll.size
    nothing = np.full(1, np.nan)
    table = ClassTable(np.zeros(1, np.intp), np.zeros(1, np.intp), nothing, nothing)
    found = measure(Scored(np.empty((n, 0)), rows, table), np.empty(n), intervals, OPTIONS)
    kept = {name: one for name, one in found.metrics.items() if name not in NEED_PROBABILITIES}
    return replace(found, metrics=kept)
