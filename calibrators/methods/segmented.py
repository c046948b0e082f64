"""Segmented: a method for all rows, then a shrunken temperature for each segment."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import DTypeLike

from calibrators.base import CalibrationMap, Calibrator
from calibrators.data import CalibrationSet
from calibrators.errors import BoundarySolution, ExportError, ParameterError
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import fallback_reason
from calibrators.methods._shrinkage import REACH, Rounds, Solution, figures, shrink, split_up
from calibrators.methods.temperature import check_temperature
from calibrators.numerics.parallel import Floats
from calibrators.segments import MAX_SEGMENTS, Segments, is_name

TICKS, BASE_DONE = 1000, 500
MAX_NAMED, SHOWN = 3, 80
MANY_ROWS = 100


@dataclass(frozen=True, eq=False, kw_only=True)
class SegmentedMap(CalibrationMap):
    """``softmax(base.transform(z) / T_g)``, where g is the segment of the row.

    Rows whose segment is not among ``segments`` get the result of ``base``, and so do all rows if
    no segments are passed. The predicted class is kept if ``base`` keeps it.
    """

    method = "segmented"
    complexity = 100
    keeps_class = None
    has_segments = True

    base: CalibrationMap
    segments: tuple[str, ...]
    temperatures: Floats

    @property
    def row_cost(self) -> int:
        """Approximate number of values computed per row in addition to its logits."""
        return self.base.row_cost

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.has_segments or self.base.has_features:
            raise ParameterError(
                "bad_parameter",
                f"base must be a map without segments or features, got a {self.base.method!r} map",
            )
        if (self.base.k, self.base.kind) != (self.k, self.kind):
            raise ParameterError(
                "bad_parameter",
                f"base must take {self.kind} of {self.k} classes like the map, "
                f"got {self.base.kind} of {self.base.k}",
            )
        if self.temperatures.shape != (len(self.segments),):
            raise ParameterError(
                "bad_parameter",
                f"temperatures must contain one number for each of {len(self.segments)} segments, "
                f"got shape {self.temperatures.shape}",
            )
        names = sorted(set(self.segments))
        is_ordered = list(self.segments) == names
        if not is_ordered or not all(map(is_name, names)) or len(names) > MAX_SEGMENTS:
            raise ParameterError(
                "bad_parameter",
                f"segments must be at most {MAX_SEGMENTS} valid names, sorted and distinct, "
                f"got {len(self.segments)}: {reprlib.repr(self.segments)}",
            )
        for temperature in self.temperatures.tolist():
            check_temperature(temperature)
        object.__setattr__(self, "keeps_class", self.base.keeps_class)

    def known_rows(self, segments: Segments | None) -> int:
        """Return the number of rows in segments of this map; others get the result of ``base``."""
        if segments is None:
            return 0
        return int(segments.counts[np.isin(segments.names, self.segments)].sum())

    def unknown_note(self, segments: Segments) -> str | None:
        """Return an ASCII note on rows in segments unknown to the map, or None."""
        unknown = segments.codes.size - self.known_rows(segments)
        if not unknown:
            return None
        names = [_shown(name) for name in segments.names if name not in self.segments]
        return (
            f"{unknown} of {segments.codes.size} rows are in segments unknown to this map and get "
            f"the calibration for all rows: {_first(names)}"
        )

    def apply_set(self, data: CalibrationSet) -> Floats:
        """Return the calibrated probabilities (n, k) of a set, by segment if the set has segments.

        The set must have the map's kind and classes.
        """
        logits = self._logits_of_set(data)
        if data.segments is None:
            return self._apply(logits)
        return self._softmax(self._transform(logits), self._segment_scales(data.segments))

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Raise an ExportError, as the logits are the only input of an exported graph."""
        raise ExportError(
            "not_exportable",
            "a segmented map needs the segment of each row, which exported models do not accept: "
            "export its base, which works for rows of any segment",
        )

    def _segment_scales(self, segments: Segments, dtype: DTypeLike = np.float64) -> Floats:
        scales = dict(zip(self.segments, (1 / self.temperatures).tolist(), strict=True))
        return np.array([scales.get(name, 1.0) for name in segments.names], dtype)[segments.codes]

    def _transform(self, logits: Floats) -> Floats:
        return self.base._transform(logits)

    def _apply(self, logits: Floats) -> Floats:
        return self.base._apply(logits)


@dataclass(frozen=True)
class Segmented(Calibrator):
    """``p = softmax(base(z) / T_g)``: ``base`` for all rows, then a temperature for each segment.

    The method needs the segment of each row: ``CalibrationSet(logits, labels, segments)``.
    ``base``, which is any other method with its default parameters, is fitted on all rows. Each
    segment g then gets the T_g that best balances its own rows against T_g = 1, the result of
    ``base``:

    ``min over T_g of  sum of -log p(y_i) over the rows of g  +  (log T_g)^2 / (2 tau^2)``.

    This is the maximum a posteriori estimate under log T_g ~ N(0, tau^2). tau measures how much the
    segments differ. tau is estimated from all segments together (empirical Bayes): it maximises
    their marginal likelihood, by Laplace's approximation, among 0 and 1, 1/2, ..., 1/64, and then
    near the best of these values. A segment with few rows therefore stays close to ``base``, and
    one with many rows follows its own data. Without evidence that segments differ, tau is 0 and all
    T_g are 1. tau is at most 1, and T_g lies between 1/16 and 16, with a BoundarySolution warning
    if it ends at a bound. Each T_g is found by Newton's method within a bracket.

    With ``shrinkage="none"``, which is meant for comparison, the T_g of every segment is fitted on
    its own rows alone. If there is no optimum between 1/16 and 16, T_g is 1, with a
    BoundarySolution warning.

    Why marginal likelihood: on simulated data with known truth, it finds tau even from segments of
    5 rows. On such segments, the moments of the segments' own estimates (DerSimonian and Laird
    1986; Paule and Mandel 1982) underestimate tau, and the moments of their slopes overestimate it.
    With more rows per segment, the estimates differ little (docs/how-to/segments.md). Why only a
    temperature and no bias: a few dozen rows support only one parameter, and a temperature keeps
    the order of the classes.

    If ``base`` ends at its bound or finds flat logits, all T_g are 1. ``seed`` is passed to
    ``base`` if it takes one.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(4000, 5)) * 2
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)        # labels drawn from softmax(z)
    >>> z[::2] *= 2                                              # overconfident in the app
    >>> data = CalibrationSet(z, y, ["app", "web"] * 2000)
    >>> fitted = Segmented().fit(data)
    >>> (fitted.base.temperature * fitted.temperatures).round(1).tolist()
    [2.0, 1.0]
    >>> fitted.apply([[2.0, 0, 0, 0, 0]] * 3, ["app", "web", "elsewhere"])[:, 0].round(2).tolist()
    [0.41, 0.66, 0.49]
    """

    name = "segmented"
    summary = "a method for all rows, then a temperature for each segment, shrunk towards 1"
    reference = "empirical Bayes: Efron and Morris, JASA 1975"
    cost = "the cost of its base plus 10 to 20 passes over the logits"
    needs_segments = True

    base: str = "temperature"
    shrinkage: Literal["estimated", "none"] = "estimated"
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._base_recipe()

    def _base_recipe(self) -> Calibrator:
        from calibrators.registry import get_method, make_recipe

        base = get_method(self.base)
        if base.needs_segments or base.needs_features:
            raise ParameterError(
                "bad_parameter",
                "Segmented.base must be a method that needs neither segments nor features, "
                f"got {self.base!r}",
            )
        return make_recipe(self.base, {}, seed=self.seed)

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory: the base's, plus two copies of its calibrated logits."""
        return self._base_recipe().memory_bytes(n, k) + 8 * (2 * n * k + 4 * n)

    def _fit(self, data: CalibrationSet, context: FitContext) -> SegmentedMap:
        assert data.segments is not None  # noqa: S101
        base = self._base_recipe().fit_in(data, context.part(0, BASE_DONE, TICKS))
        segments = split_up(base._transform(data.logits), data.labels, data.segments)
        rounds = Rounds(segments, context.part(BASE_DONE, TICKS, TICKS))
        free = rounds.solve(0.0)
        tau: float | None = None
        if fallback_reason(base) is not None:
            tau, solutions = 0.0, [Solution() for _ in segments]
        elif self.shrinkage == "none":
            solutions = [one if one.is_inside else Solution() for one in free]
            _warn_of_missing_optima(data.segments, free, context)
        else:
            tau, solutions = shrink(rounds)
            _warn_of_bounds(data.segments, solutions, free, context)
        context.step(TICKS, TICKS)
        info = {"base": base.method, "base_fit": base.fit_info, "tau": tau}
        return SegmentedMap(
            k=data.k,
            kind=data.kind,
            base=base,
            segments=data.segments.names,
            temperatures=np.array([1 / one.beta for one in solutions]),
            fit_info={
                **info,
                **figures(segments, solutions, tau),
                "evaluations": sum(one.evaluations for one in segments),
                "segments": _describe(data.segments, solutions, free),
            },
        )


def _warn_of_bounds(
    segments: Segments, solutions: Sequence[Solution], free: Sequence[Solution], context: FitContext
) -> None:
    """Warn about segments at a bound, and large ones that only shrinkage keeps from a bound.

    A single segment whose logits have a different scale can hold all others at the base's
    temperature.
    """
    bounds = (1 / REACH, REACH)
    ended = [
        f"{name!r} at T = {1 / (one if one.beta in bounds else alone).beta:g}"
        for name, rows, one, alone in zip(
            segments.names, segments.counts, solutions, free, strict=True
        )
        if one.beta in bounds or (rows >= MANY_ROWS and alone.beta in bounds)
    ]
    if ended:
        context.warn(
            BoundarySolution,
            f"{len(ended)} of {len(solutions)} segments stop at a bound of their temperature, 1/16 "
            f"or 16 times the base's: {_first(ended)}; choose a base that scales the logits "
            "first or, if the base already does so, rescale the logits of these segments to match "
            "the others",
        )


def _warn_of_missing_optima(
    segments: Segments, free: Sequence[Solution], context: FitContext
) -> None:
    """Warn about segments whose own rows have no best temperature within the bounds."""
    names = zip(segments.names, free, strict=True)
    without = [repr(name) for name, one in names if not one.is_inside]
    if without:
        context.warn(
            BoundarySolution,
            f"the rows of {len(without)} of {len(free)} segments have no best temperature between "
            f"1/16 and 16 times the base's, so they keep the base's: {_first(without)}",
        )


def _shown(name: str) -> str:
    return ascii(name) if len(name) <= SHOWN else f"{name[:SHOWN]!a} ... of {len(name)}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")


def _describe(
    segments: Segments, solutions: Sequence[Solution], free: Sequence[Solution]
) -> list[dict[str, Any]]:
    """Return each segment's rows, its temperature, and its temperature without shrinkage."""
    return [
        {
            "name": name,
            "rows": int(rows),
            "temperature": 1 / shrunk.beta,
            "unpenalised": 1 / alone.beta if alone.is_inside else None,
        }
        for name, rows, shrunk, alone in zip(
            segments.names, segments.counts, solutions, free, strict=True
        )
    ]
