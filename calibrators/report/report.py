"""Reports: ``evaluate(probabilities, labels)`` measures calibration, with intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from calibrators import charts
from calibrators.errors import DataError, ExportError, ParameterError
from calibrators.metrics import (
    ChanceTest,
    Compared,
    Interval,
    calibration_intervals,
    chance_test,
    compared_intervals,
    fold_factor,
    scored,
)
from calibrators.metrics.catalogue import Metric, all_metrics
from calibrators.metrics.chance import chance_test_of
from calibrators.report import html_page, notebook, text
from calibrators.report.band import BandCell
from calibrators.report.by_class import ClassRow, by_class
from calibrators.report.by_segment import SegmentRow, by_segment
from calibrators.report.by_temperature import TemperatureCell
from calibrators.report.gate_intervals import cautious, cautious_ece
from calibrators.report.json_form import from_plain, to_plain
from calibrators.report.measurement import (
    MarginThird,
    Measurement,
    by_margin,
    margins_of,
    measure,
)
from calibrators.report.verdict import MIN_ROWS, Gate, Verdict, decide, gate, lost, rooted
from calibrators.segments import Segments

FORMAT = 2
MIN_DRAWS = 100


class MetricRow(NamedTuple):
    """A row of a report's table, as strings; missing values are empty."""

    metric: Metric
    before: str
    after: str
    change: str
    interval: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Measurement):
    """The calibration of n rows and k classes; all fields are plain numbers, strings and tables.

    The inherited fields describe the probabilities that were evaluated (the "after" side).
    ``before`` measures the uncalibrated probabilities of the same rows, ``change`` holds the paired
    intervals of after minus before, and ``verdict`` is the conclusion; without ``before``, all
    three are empty or None. ``chance`` tests whether the labels depend on the probabilities at all,
    on the side where this is clearer; it is None if all labels are equal.

    ``by_margin`` splits the rows into thirds of the logit margin. ``by_class`` holds the worst
    calibrated classes (at most 50, worst first), and ``by_segment`` the segments with the most rows
    (at most 100, worst first); ``segments`` is the number of all segments. ``temperatures`` holds
    the temperatures of a temperature-type map, by margin. ``band`` is the 90 % credible band of a
    map that has one, by confidence and margin third. ``conventions`` states in words how everything
    is computed. ``fit`` is plain JSON about the judged map.
    """

    n: int
    k: int
    bins: int
    draws: int
    level: float
    seed: int
    judged_on: str
    before: Measurement | None = None
    change: dict[str, Interval] = field(default_factory=dict)
    verdict: Verdict | None = None
    chance: ChanceTest | None = None
    by_margin: tuple[MarginThird, ...] = ()
    by_class: tuple[ClassRow, ...] = ()
    segments: int = 0
    by_segment: tuple[SegmentRow, ...] = ()
    temperatures: tuple[TemperatureCell, ...] = ()
    band: tuple[BandCell, ...] = ()
    conventions: dict[str, str] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        verdict = None if self.verdict is None else self.verdict.value
        return f"Report(n={self.n}, k={self.k}, ece={self.metrics['ece']:.4f}, {verdict=})"

    @property
    def sides(self) -> dict[str, Measurement]:
        """The measurements by name: "before", if there is one, and "after"."""
        return {"after": self} if self.before is None else {"before": self.before, "after": self}

    @property
    def cautious_error(self) -> Interval:
        """The interval of the debiased squared error that a gate uses (see gate_intervals.py)."""
        return cautious(self.intervals["debiased_squared_error"], self.equal_mass, self.level)

    def gate_interval(self, metric: str = "calibration_error") -> Interval:
        """Return the interval that decides a gate, on the scale of its limit.

        ``calibration_error`` is the debiased root-mean-square error, and ``ece`` the ECE with
        equal-width bins. Both intervals account for noise and for bins without spread (see
        gate_intervals.py).
        """
        match metric:
            case "calibration_error":
                return rooted(self.cautious_error)
            case "ece":
                return cautious_ece(self.equal_width, self.level, self.seed)
        raise ParameterError(
            "bad_metric", f"metric must be 'calibration_error' or 'ece', got {metric!r}"
        )

    def gate(self, limit: float, metric: str = "calibration_error") -> Gate:
        """Return whether an error is known to be at most ``limit`` (see ``gate_interval``)."""
        found = gate(self.gate_interval(metric), limit)
        return found if self.n >= MIN_ROWS else Gate.INSUFFICIENT_DATA

    @property
    def lost(self) -> tuple[str, ...]:
        """The names of the metrics that are measurably worse than before (see ``verdict.lost``)."""
        return lost(self.change)

    @property
    def verdict_sentence(self) -> str:
        """The verdict in words, including what got worse and by how much.

        It begins in lower case and has no full stop, as it follows the verdict. It is empty if
        there is no verdict.
        """
        return text.verdict_sentence(self)

    @property
    def chance_warning(self) -> str:
        """Warning that the labels are predicted no better than by chance; otherwise empty."""
        return text.chance_warning(self)

    @property
    def is_at_chance(self) -> bool:
        """True if the labels are not predicted measurably better than by chance."""
        return self.chance is not None and not self.chance.is_above_chance

    def tested_again(self, probabilities: ArrayLike, labels: ArrayLike) -> Report:
        """Return the report with a second test against chance, on more rows.

        If the report is at chance so far, the clearer test counts. Otherwise, the second test
        counts only if it finds classes whose columns are permuted. If the map was fitted on some of
        the rows, the probabilities must be the model's own.
        """
        if self.chance is None:
            return self
        again = chance_test(probabilities, labels)
        if not self.chance.is_above_chance:
            chance = _clearer(self.chance, again)
        elif again is not None and again.reordered_classes:
            chance = again
        else:
            return self
        judged = self.verdict is not None
        verdict = decide(self.n, self.change, chance) if judged else None
        return replace(self, chance=chance, verdict=verdict)

    def with_fit(self, **fit: Any) -> Report:
        """Return the report with more facts about the fit; NaN and infinity become None."""
        return replace(self, fit=to_plain({**self.fit, **fit}))

    def rows(self) -> list[MetricRow]:
        """Return the table of metrics as strings; shares are in percent."""
        return [self._row(one) for one in all_metrics().values() if one.name in self.metrics]

    def summary(self) -> str:
        """Return the report as a plain-text table for terminals."""
        return text.summary(self)

    def chart(self) -> dict[str, Any]:
        """Return the overview chart as a Vega-Lite specification, a plain dict with its data."""
        return charts.before_after(self)

    def to_frame(self) -> Any:
        """Return the metrics as a pandas DataFrame: before, after, change and interval.

        ``low`` and ``high`` are the bounds of the change, or of the value if there is no "before".
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise ExportError(
                "pandas_missing", "to_frame needs pandas: pip install pandas"
            ) from error
        names = [name for name in all_metrics() if name in self.metrics]
        index = pd.Index(names, name="metric")
        after = pd.Series(self.metrics, index, dtype=float)
        before = pd.Series({} if self.before is None else self.before.metrics, index, dtype=float)
        intervals = self.intervals if self.before is None else self.change
        bounds = {
            side: pd.Series({name: getattr(one, side) for name, one in intervals.items()}, index)
            for side in ("low", "high")
        }
        columns = {"before": before, "after": after, "change": after - before, **bounds}
        return pd.DataFrame(columns, dtype=float)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON; ``Report.from_dict`` is the inverse."""
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        """Build the report from the output of ``to_dict``."""
        try:
            document = dict(values)
            if document.pop("format", None) != FORMAT:
                raise ValueError(f"format must be {FORMAT}, got {values.get('format')!r}")
            return from_plain(cls, document)
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError("not_a_report", f"this is not a calibrd report: {error}") from error

    def save(self, path: str | Path, *, title: str = "Calibration report") -> Path:
        """Write the report as .html (self-contained) or .json, or its chart as .svg or .png."""
        target = Path(path)
        match target.suffix.lower():
            case ".html":
                content = html_page.render(self, title=title).encode()
            case ".json":
                content = json.dumps(self.to_dict(), indent=1, allow_nan=False).encode()
            case ".svg":
                content = charts.to_svg(self.chart()).encode()
            case ".png":
                content = charts.to_png(self.chart())
            case other:
                raise ExportError(
                    "unknown_format", f"path must end in .html, .json, .svg or .png, got {other!r}"
                )
        target.write_bytes(content)
        return target

    def _repr_html_(self) -> str:
        return notebook.fragment("Calibration report", {}, self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return all representations; most front ends show HTML, some draw the chart themselves.

        Without this method, IPython would show the short ``repr`` as plain text.
        """
        return {
            charts.MIME_TYPE: self.chart(),
            "text/html": self._repr_html_(),
            "text/plain": self.summary(),
        }

    def _row(self, metric: Metric) -> MetricRow:
        after = self.metrics[metric.name]
        before = None if self.before is None else self.before.metrics[metric.name]
        change = None if before is None or after is None else after - before
        intervals = self.change if self.before else self.intervals
        interval = intervals.get(metric.name)
        return MetricRow(
            metric,
            metric.text(before),
            metric.text(after),
            metric.text(change, signed=True),
            "" if interval is None else metric.bounds(interval, signed=self.before is not None),
        )


def widened(change: Mapping[str, Interval], folds: int) -> dict[str, Interval]:
    """Return the changes, widened for out-of-fold probabilities by the rules of the metrics.

    ``folds`` is the number of fits that the probabilities come from; 1 changes nothing.
    """
    factor = fold_factor(folds)
    rules = {name: all_metrics()[name].interval for name in change}
    return {
        name: one.widened(factor) if (rule := rules[name]) and rule.widens_with_folds else one
        for name, one in change.items()
    }


def _clearer(failed: ChanceTest, other: ChanceTest | None) -> ChanceTest:
    """Return the other test if it is above chance or has more rows, else the failed one."""
    if other is None or not (other.is_above_chance or other.rows > failed.rows):
        return failed
    return other


def evaluate(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    before: ArrayLike | None = None,
    margin: ArrayLike | None = None,
    segments: ArrayLike | Segments | None = None,
    ood: ArrayLike | None = None,
    ood_before: ArrayLike | None = None,
    bins: int = 15,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    judged_on: str = "as given",
    folds: int = 1,
) -> Report:
    """Measure the calibration of probabilities (n, k), or (n,) if binary, against labels (n,).

    ``before`` holds the uncalibrated probabilities of the same rows. If it is given, the report has
    both sides, the paired change of each metric and, with at least 100 draws, a verdict. ``margin``
    (n,) is the largest minus the second largest logit; by default, it is derived from the
    uncalibrated probabilities. ``segments`` (n,) names the segment of each row, for a table by
    segment. ``ood`` (m, k) holds the probabilities of out-of-distribution rows, to add the AUROC of
    their entropy; with ``before``, pass ``ood_before`` as well. ``draws`` and ``level`` configure
    the bootstrap, and ``judged_on`` describes the rows in words. If the probabilities are
    out-of-fold, ``folds`` is the number of fits. ``report.conventions`` states how everything is
    computed.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([0.5, 0.5, 0.5], size=2000)
    >>> labels = (p.cumsum(axis=1) < rng.random((2000, 1))).sum(axis=1)    # p is the truth
    >>> sharp = p**3 / (p**3).sum(axis=1, keepdims=True)
    >>> report = evaluate(p, labels, before=sharp, draws=200)
    >>> report.before.metrics["ece"] > 0.05 > report.metrics["ece"], str(report.verdict)
    (True, 'improved')
    """
    options: dict[str, Any] = {"bins": bins, "draws": draws, "level": level, "seed": seed}
    truth = np.asarray(labels)
    if (ood_before is not None) != (before is not None and ood is not None):
        raise DataError("bad_input", "pass ood_before if and only if both before and ood are given")
    new = scored(probabilities, truth, bins=bins, ood=ood)
    old = None if before is None else scored(before, truth, bins=bins, ood=ood_before)
    shape, first = new.data.probabilities.shape, (old or new).data.probabilities
    if first.shape != shape:
        raise DataError("shape_mismatch", f"before must have shape {shape}, got {first.shape}")
    named = None if segments is None else Segments.of(segments, rows=shape[0])
    margins = margins_of(first) if margin is None else np.asarray(margin, dtype=np.float64)
    if old is None:
        found = Compared({}, calibration_intervals(new.rows, **options), {})
    else:
        found = compared_intervals(old.rows, new.rows, **options)
    change, verdict = widened(found.change, folds), None
    chance = chance_test_of(new.data)
    if old is not None and chance is not None and not chance.is_above_chance:
        chance = _clearer(chance, chance_test_of(old.data))
    if change and draws >= MIN_DRAWS:
        verdict = decide(shape[0], change, chance)
    tops = new.rows.top, None if old is None else old.rows.top
    return Report(
        **vars(measure(new, found.after, options)),
        **options,
        n=shape[0],
        k=shape[1],
        judged_on=judged_on,
        before=None if old is None else measure(old, found.before, options),
        change=change,
        verdict=verdict,
        chance=chance,
        by_margin=by_margin(margins, *tops, options),
        by_class=by_class(new.classes, None if old is None else old.classes),
        segments=0 if named is None else len(named.names),
        by_segment=() if named is None else by_segment(named, *tops, options),
        conventions=text.conventions(bins, draws, level),
    )
