"""Fit a recipe and judge it on held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calibrators.base import CalibrationMap, Calibrator
from calibrators.comparison.judged_rows import JudgedRows, unordered_fingerprint
from calibrators.data import CalibrationSet
from calibrators.errors import (
    CalibrationWarning,
    DataError,
    FitCancelled,
    FitError,
    UnknownSegments,
)
from calibrators.fitting.context import FitContext, ProgressCallback
from calibrators.metrics.chance import spaced_rows
from calibrators.numerics.parallel import Floats
from calibrators.numerics.softmax import margins, softmax
from calibrators.report.band import band_of
from calibrators.report.by_temperature import temperatures_of
from calibrators.report.report import Report, evaluate

HELD_OUT = 0.2
MAX_HELD_OUT = 0.9
HELD_OUT_FROM = 1000
FOLDS = 5
TICKS = 1000
ROW_NUMBERS = 32


class _MapAndReport(NamedTuple):
    map: CalibrationMap
    report: Report


class Judged(_MapAndReport):
    """A map fitted on all rows, and the report of its recipe on held-out rows.

    It unpacks as ``(map, report)``. ``rows`` holds the judged rows behind the report, for
    ``calibrators.comparison.compare``.
    """

    rows: JudgedRows

    def __new__(cls, map: CalibrationMap, report: Report, rows: JudgedRows) -> Self:
        """Create the pair and attach its rows."""
        pair = super().__new__(cls, map, report)
        pair.rows = rows
        return pair


def fit_and_judge(
    recipe: Calibrator,
    data: CalibrationSet,
    *,
    evaluation: CalibrationSet | None = None,
    held_out: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: ProgressCallback | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Judged:
    """Fit ``recipe`` on all of ``data``, and judge it on rows that it was not fitted on.

    If ``evaluation`` is given, the returned map is judged on it. Otherwise, with 1000 rows or more,
    a fit on four fifths of the rows is judged on the remaining fifth, which is stratified by label.
    With fewer rows, 5-fold cross-fitting is used: every row is judged by a fit on the other folds.
    ``held_out``, a share of at most 0.9, requests a held-out part of that size for any number of
    rows. The returned map is always fitted on all of ``data``; ``report.judged_on`` states how it
    was judged. ``progress`` counts to 1000 over the whole call and never decreases. Warnings from
    the judged fits are not issued, but stored in ``report.fit``.

    >>> from calibrators.methods.temperature import TemperatureScaling
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(4000, 5)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> fitted, report = fit_and_judge(TemperatureScaling(), CalibrationSet(3 * z, y))
    >>> round(fitted.temperature), report.n, str(report.verdict)
    (3, 800, 'improved')
    """
    if not isinstance(recipe, Calibrator) or not isinstance(data, CalibrationSet):
        raise FitError(
            "bad_arguments",
            "fit_and_judge takes a recipe such as TemperatureScaling() and a CalibrationSet, "
            f"got {type(recipe).__name__} and {type(data).__name__}",
        )
    _check_held_out(held_out, evaluation)
    if not recipe.method_needing_features:  # parts of the data would copy them
        data = data.with_features(None)
    job = _Job(recipe, device, progress, cancel)
    if evaluation is not None:
        _check_alike(data, evaluation)
        if recipe.method_needing_segments and evaluation.segments is None:
            raise DataError(
                "evaluation_differs",
                "evaluation must name the segment of each row, as required by "
                f"{recipe.method_needing_segments!r}",
            )
        _check_features_alike(recipe, data, evaluation)
        fitted = job.fit(data, 0.0, 1.0)
        if evaluation.segments is not None:
            job.warn_while_judging(UnknownSegments, fitted.unknown_note(evaluation.segments))
        words = (
            f"a separate evaluation set of {evaluation.n:,} rows, for a fit on {data.n:,} others"
        )
        every = np.arange(evaluation.n)
        probabilities = fitted.apply_set(evaluation)
        return job.judged(evaluation, every, probabilities, words, fitted, fitted_on=data)
    if held_out is None and data.n >= HELD_OUT_FROM:
        held_out = HELD_OUT
    if held_out is None:
        index, probabilities, words = _cross_fitted(job, data, seed)
    else:
        index, probabilities, words = _held_out(job, data, seed, held_out)
    folds = FOLDS if held_out is None else 1
    fitted = job.fit(data, job.done, 1.0)
    return job.judged(data, index, probabilities, words, fitted, fitted_on=data, folds=folds)


def memory_bytes(
    recipe: Calibrator,
    n: int,
    k: int,
    *,
    features: int = 0,
    feature_size: int = 8,
    evaluation: int | None = None,
    held_out: float | None = None,
) -> int:
    """Estimate the peak memory of ``fit_and_judge`` on n rows of k classes, including the data.

    ``features`` is the number of features per row, and ``feature_size`` the number of bytes per
    feature; methods without features ignore them. ``evaluation`` is the number of rows in an
    evaluation set; ``held_out`` is as in ``fit_and_judge``. The estimate covers the data, the rows
    of the judged fit and, for each judged row, the probabilities before and after calibration and
    the data of the report.
    """
    share = HELD_OUT if held_out is None else held_out
    if evaluation is not None:
        numbers = n * k + evaluation * (3.5 * k + ROW_NUMBERS)
    elif held_out is None and n < HELD_OUT_FROM:  # all rows are judged, by fits on the other folds
        numbers = n * (5 * k + ROW_NUMBERS)
    else:
        numbers = n * k * (2 - share) + share * n * (2.5 * k + ROW_NUMBERS)
    needed = recipe.memory_bytes(n, k) + int(8 * (numbers + 2 * n))
    if features and recipe.method_needing_features:
        rows = n * 2 if evaluation is None else n + evaluation
        needed += recipe.feature_bytes(n, features) + feature_size * rows * features
    return needed


def _held_out(
    job: _Job, data: CalibrationSet, seed: int, share: float
) -> tuple[NDArray[np.intp], Floats, str]:
    seen, index = data.split_rows(share, seed=seed)
    fitted = job.fit(data.take(seen), 0.0, 0.45, judged=True)
    unseen = data.take(index)
    part = "fifth" if share == HELD_OUT else f"{share:.3g} of the data"
    words = (
        f"a held-out {part}, {unseen.n:,} of {data.n:,} rows stratified by label (seed {seed}), "
        "that the judged fit never saw; the map itself is fitted on all rows"
    )
    return index, fitted.apply_set(unseen), words


def _cross_fitted(
    job: _Job, data: CalibrationSet, seed: int
) -> tuple[NDArray[np.intp], Floats, str]:
    if data.n < FOLDS:
        raise FitError("too_few_rows", f"judging a fit needs at least {FOLDS} rows, got {data.n}")
    fold = data.folds(FOLDS, seed=seed)
    probabilities = np.empty(data.logits.shape, dtype=data.logits.dtype)
    for number in range(FOLDS):
        unseen = np.flatnonzero(fold == number)
        seen = data.take(np.flatnonzero(fold != number))
        fitted = job.fit(seen, *_span(number), judged=True)
        probabilities[unseen] = fitted.apply_set(data.take(unseen))
    words = (
        f"{FOLDS}-fold cross-fitting: each of {data.n:,} rows is judged by a fit on the other "
        f"folds (seed {seed}); the map itself is fitted on all rows"
    )
    return np.arange(data.n), probabilities, words


def _span(number: int) -> tuple[float, float]:
    """Return a fold's progress at its start and end; the final fit counts as another fold."""
    return number / (FOLDS + 1), (number + 1) / (FOLDS + 1)


def _check_held_out(held_out: float | None, evaluation: CalibrationSet | None) -> None:
    if held_out is None:
        return
    if not 0 < held_out <= MAX_HELD_OUT:
        raise FitError(
            "bad_held_out",
            f"held_out must be greater than 0 and at most {MAX_HELD_OUT}, got {held_out}",
        )
    if evaluation is not None:
        raise FitError(
            "bad_held_out",
            "held_out and an evaluation set are mutually exclusive: pass one of them",
        )


def _check_alike(data: CalibrationSet, evaluation: CalibrationSet) -> None:
    if (data.k, data.kind) != (evaluation.k, evaluation.kind):
        raise DataError(
            "evaluation_differs",
            f"evaluation must contain {data.kind} of {data.k} classes, like the data, "
            f"got {evaluation.kind} of {evaluation.k}",
        )


def _check_features_alike(
    recipe: Calibrator, data: CalibrationSet, evaluation: CalibrationSet
) -> None:
    if not recipe.method_needing_features or data.features is None:
        return
    got = 0 if evaluation.features is None else evaluation.features.width
    if got != data.features.width:
        raise DataError(
            "evaluation_differs",
            f"evaluation must have {data.features.width} features per row for the method "
            f"{recipe.method_needing_features!r}, like the data, got {got or 'none'}",
        )


class _Job:
    """The fits of one call, with a shared progress value that never decreases."""

    def __init__(
        self,
        recipe: Calibrator,
        device: str,
        progress: ProgressCallback | None,
        cancel: Callable[[], bool] | None,
    ) -> None:
        self.recipe = recipe
        self.done = 0.0
        self._loss: float | None = None
        self._device = device
        self._progress = progress
        self._cancel = cancel
        self._judging_warnings: dict[str, dict[str, Any]] = {}
        self._seconds: dict[str, float] = {}

    def fit(
        self, data: CalibrationSet, start: float, end: float, *, judged: bool = False
    ) -> CalibrationMap:
        """Fit with progress from ``start`` to ``end``; a judged fit does not issue warnings."""
        if self._cancel is not None and self._cancel():
            raise FitCancelled

        def step(step: int, total: int, loss: float | None) -> None:
            self._advance(start + (end - start) * min(1.0, step / max(1, total)), loss)

        context = FitContext(self._device, step, self._cancel)
        fitted = self.recipe.fit_in(data, context)
        if not judged:
            context.issue_warnings()
            self._seconds = context.seconds
        else:
            self._record_warnings(context)
        self._advance(end, self._loss)
        return fitted

    def warn_while_judging(self, category: type[CalibrationWarning], message: str | None) -> None:
        """Record a warning about the judged rows for the report, unless ``message`` is None."""
        context = FitContext()
        if message is not None:
            context.warn(category, message)
        self._record_warnings(context)

    def _record_warnings(self, context: FitContext) -> None:
        for warning in context.warnings:
            entry = {**warning, "times": 0}
            self._judging_warnings.setdefault(warning["code"], entry)["times"] += 1

    def judged(
        self,
        data: CalibrationSet,
        index: NDArray[np.intp],
        probabilities: Floats,
        words: str,
        fitted: CalibrationMap,
        *,
        fitted_on: CalibrationSet,
        folds: int = 1,
    ) -> Judged:
        """Return the map with its report on the rows ``index`` of ``data``, and those rows."""
        fitted = fitted.with_info(fitted_on=unordered_fingerprint(fitted_on))
        rows = data if len(index) == data.n else data.take(index)
        report = self._report(rows, probabilities, words, fitted, folds)
        # the model has seen none of the rows; a map that moves classes may have fixed its columns
        if rows.n < data.n and (report.is_at_chance or fitted.keeps_class):
            more = spaced_rows(data.labels)
            report = report.tested_again(softmax(data.logits[more]), data.labels[more])
        judged_rows = JudgedRows.of(data, index, probabilities, fitted_on=fitted_on, folds=folds)
        return Judged(fitted, report, judged_rows)

    def _report(
        self,
        rows: CalibrationSet,
        probabilities: Floats,
        words: str,
        fitted: CalibrationMap,
        folds: int,
    ) -> Report:
        margin = margins(rows.logits)
        report = evaluate(
            probabilities,
            rows.labels,
            before=softmax(rows.logits),
            margin=margin,
            segments=rows.segments,
            judged_on=words,
            folds=folds,
        )
        info: dict[str, Any] = {"method": self.recipe.name, "parameters": asdict(self.recipe)}
        if self._judging_warnings:
            info["warnings_while_judging"] = list(self._judging_warnings.values())
        if self._seconds:
            info["seconds"] = {name: round(taken, 3) for name, taken in self._seconds.items()}
        report = replace(
            report,
            temperatures=temperatures_of(fitted, rows, margin),
            band=band_of(fitted, rows, margin),
        )
        return report.with_fit(**info, **fitted.fit_info)

    def _advance(self, done: float, loss: float | None) -> None:
        self.done = max(self.done, done)
        self._loss = loss
        if self._progress is not None:
            self._progress(round(TICKS * self.done), TICKS, loss)
