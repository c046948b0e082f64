"""What every method is made of: a recipe (Calibrator) that fits, and a map that applies.

Both are frozen dataclasses: a recipe's fields are its hyper-parameters, a map's fields are plain
numbers, strings and arrays. Checks, JSON schemas, storage, documentation and the contract tests all
follow from the fields.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from calibrators.arrays import check_rows, row_maxima
from calibrators.data import (
    CalibrationSet,
    Clipped,
    Kind,
    as_logits,
    log_probabilities,
    two_columns,
    warn_if_clipped,
)
from calibrators.errors import (
    ClippedProbabilities,
    DataError,
    ExportError,
    FitError,
    MapError,
    ParameterError,
)
from calibrators.fitting.context import FitContext, ProgressCallback
from calibrators.fitting.parameters import check_fields
from calibrators.metrics.estimates import check_level
from calibrators.numerics.parallel import Floats, scratch_bytes
from calibrators.numerics.softmax import scaled_logits, softmax
from calibrators.rounding import Zeros
from calibrators.segments import Segments

if TYPE_CHECKING:
    from calibrators.export.onnx import Builder

FALLBACK = "temperature"


@dataclass(frozen=True, eq=False, kw_only=True)
class CalibrationMap(ABC):
    """A fitted calibration: immutable, applied with numpy alone.

    ``k`` classes and the ``kind`` of input it was fitted on; other input is refused. ``fit_info``
    is plain JSON: how the fit went, with its warnings. ``keeps_class`` says whether the predicted
    class always keeps the largest probability; of a class of maps it is None if that depends on the
    map. ``has_segments`` says whether it takes them, ``has_interval`` whether it has a credible
    band. ``floor``, ``rounding``, ``ratio`` and ``kept`` say what zeros among probabilities stand
    for (see calibrators.rounding.Zeros): a row alone cannot show it.
    """

    method: ClassVar[str]
    keeps_class: ClassVar[bool | None]
    has_segments: ClassVar[bool] = False
    has_interval: ClassVar[bool] = False

    k: int
    kind: Kind = "logits"
    fit_info: dict[str, Any] = field(default_factory=dict)
    floor: float = 0.0
    rounding: float = 0.0
    ratio: float = 0.0
    kept: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.rounding <= 0.5 and 0 <= self.floor <= 0.5) or (
            self.rounding and not 0 < self.floor <= self.rounding / 2
        ):
            raise ParameterError(
                "bad_parameter",
                "rounding must lie in [0, 0.5] and floor below half of it (0.5 if it is 0), "
                f"got rounding={self.rounding} and floor={self.floor}",
            )
        if not (0 <= self.ratio <= 1 and 0 <= self.kept < self.k) or bool(self.ratio) != bool(
            self.kept
        ):
            raise ParameterError(
                "bad_parameter",
                "ratio must lie in [0, 1] and kept below k, and both are 0 or neither, "
                f"got ratio={self.ratio} and kept={self.kept}",
            )
        if not 2 <= self.k < 2**31:
            raise ParameterError("bad_parameter", f"a map needs at least 2 classes, got k={self.k}")
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def apply(self, values: ArrayLike, segments: ArrayLike | Segments | None = None) -> Floats:
        """Calibrated probabilities (n, k) of logits (or probabilities, if fitted on those).

        float32 in, float32 out; rows sum to 1. A binary map takes (n,), (n, 1) or (n, 2) and
        answers (n, 2). ``segments`` (n,) name the segment of each row, for a map that has them.
        """
        return self.apply_logits(self._logits_of(values), segments)

    def apply_logits(self, logits: Floats, segments: ArrayLike | Segments | None = None) -> Floats:
        """Calibrated probabilities (n, k) of what ``read`` gave."""
        if segments is None:
            return self._apply(logits)
        named = Segments.of(segments, rows=len(logits), most=None)
        scales = self._segment_scales(named, logits.dtype)
        return self._softmax(self._transform(logits), scales)

    def apply_set(self, data: CalibrationSet) -> Floats:
        """Calibrated probabilities (n, k) of a checked set of the map's kind and classes."""
        return self._apply(self._logits_of_set(data))

    def transform(self, values: ArrayLike, segments: ArrayLike | None = None) -> Floats:
        """Calibrated logits (n, k): ``softmax(transform(x)) == apply(x)``."""
        logits = self._logits_of(values)
        if segments is None:
            return self._transform(logits)
        scales = self._segment_scales(Segments.of(segments, rows=len(logits), most=None))
        return scaled_logits(self._transform(logits), scales)

    def interval(self, values: ArrayLike, level: float = 0.9) -> tuple[Floats, Floats]:
        """Return the credible band of each row's calibrated confidence: its bounds, (n,) each.

        The probability that the predicted class is right lies between them with the posterior
        probability ``level``, as far as the fit rows can tell and if new rows are like them. Only
        maps with ``has_interval`` have one.
        """
        self._check_interval(level)
        return self._interval(self._logits_of(values), level)

    def _check_interval(self, level: float) -> None:
        if not self.has_interval:
            raise DataError(
                "no_interval",
                f"a map of the method {self.method!r} has no credible interval: fit 'additive', or "
                "'auto', which uses it from 20 rows on",
            )
        check_level(level)

    def interval_of_logits(self, logits: Floats, level: float) -> tuple[Floats, Floats]:
        """Return the band of what ``read`` gave."""
        self._check_interval(level)
        return self._interval(logits, level)

    def interval_of_set(self, data: CalibrationSet, level: float) -> tuple[Floats, Floats]:
        """Return the band of a checked set of the map's kind and classes; the map must have one."""
        return self._interval(self._logits_of_set(data), level)

    def _interval(self, logits: Floats, level: float) -> tuple[Floats, Floats]:
        """Return the band of a map with ``has_interval``."""
        raise DataError("no_interval", f"{self.method!r} has no interval")

    @property
    def row_cost(self) -> int:
        """Return about how many numbers are calculated for a row beside its logits."""
        return 0

    def segment_scales(self, names: ArrayLike) -> Floats:
        """Return what calibrated logits are multiplied by in each of some segments, (n,)."""
        return self._segment_scales(Segments.of(names, most=None))

    def with_info(self, **info: Any) -> Self:
        """The same map with more in its ``fit_info``."""
        return replace(self, fit_info={**self.fit_info, **info})

    @property
    def made_by(self) -> frozenset[str]:
        """The methods whose fit may give this map: its own, one that chose it or fell back to it.

        Only temperature scaling is fallen back to. ``fit_info`` of a map made elsewhere may hold
        anything.
        """
        names = [self.method, self.fit_info.get("chosen_by")]
        match self.fit_info.get("fallback"):
            case {"method": str() as name} if self.method == FALLBACK:
                names.append(name)
        return frozenset(name for name in names if isinstance(name, str))

    def unknown_note(self, segments: Segments) -> str | None:
        """What to say of rows of segments that this map does not know, in ASCII; None if none."""
        return None

    def read(self, values: ArrayLike) -> tuple[Floats, Clipped | None]:
        """Logits (n, k) of values of the map's kind, and how probabilities were changed for it."""
        clipped = None
        if self.kind == "probabilities":
            array = two_columns(values)
            self._check_classes(array, values)
            logits, clipped = log_probabilities(array, self.zeros)
        else:
            logits = as_logits(values)
            self._check_classes(logits, values)
        return logits, clipped

    @property
    def zeros(self) -> Zeros:
        """Return what zeros among probabilities are replaced by."""
        return Zeros(self.floor, self.rounding, self.ratio, self.kept)

    def _logits_of(self, values: ArrayLike) -> Floats:
        logits, clipped = self.read(values)
        warn_if_clipped(clipped, stacklevel=4)
        return logits

    def _check_classes(self, rows: Floats, values: ArrayLike) -> None:
        if rows.shape[1] != self.k:
            got = f"{rows.shape[1]} columns"
            if np.ndim(values) == 1:
                got = f"a list of {len(rows)} numbers: one row is [[...]]"
            raise DataError("wrong_classes", f"this map was fitted on {self.k} classes, got {got}")

    def _logits_of_set(self, data: CalibrationSet) -> Floats:
        if (data.k, data.kind) != (self.k, self.kind):
            raise DataError(
                "wrong_kind",
                f"this map takes {self.kind} of {self.k} classes, got {data.kind} of {data.k}",
            )
        if data.source is None or data.zeros == self.zeros:
            return data.logits
        found, _ = self.zeros.filled(data.source.probabilities())
        return np.asarray(np.log(np.minimum(found, 1)))

    @abstractmethod
    def _transform(self, logits: Floats) -> Floats:
        """Calibrated logits of checked-shape logits (n, k)."""

    def _apply(self, logits: Floats) -> Floats:
        return self._softmax(self._transform(logits))

    def _softmax(self, transformed: Floats, scales: Floats | None = None) -> Floats:
        """Softmax of calibrated logits, times ``scales`` (n,); raise a MapError if it has none.

        The input's own NaN and infinities are refused by ``_transform``.
        """
        try:
            return softmax(transformed, scales)
        except DataError as error:
            raise MapError(error.rows or 0, error.first or 0) from error

    def _segment_scales(self, segments: Segments, dtype: DTypeLike = np.float64) -> Floats:
        """What the calibrated logits of each row are multiplied by in its segment, (n,)."""
        raise DataError(
            "no_segments",
            f"this map of the method {self.method!r} has no segments: send none, or fit "
            "the method 'segmented'",
        )

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Write the transform of the tensor ``logits`` into an ONNX graph; its output's name."""
        raise ExportError("not_exportable", f"maps of the method {self.method!r} have no ONNX form")


class TemperatureTypeMap(CalibrationMap):
    """``softmax(logits / T)`` with one temperature for all rows or one for each row.

    The order of the classes cannot change, so the predicted class keeps the largest probability.
    """

    keeps_class = True

    def temperatures(self, values: ArrayLike) -> Floats:
        """The temperature of every row (n,), float64."""
        logits = self._logits_of(values)
        check_rows(row_maxima(logits))
        return self._temperatures(logits)

    def temperatures_of_set(self, data: CalibrationSet) -> Floats:
        """The same of a checked set of the map's kind and classes."""
        return self._temperatures(self._logits_of_set(data))

    def _temperatures(self, logits: Floats) -> Floats:
        return np.broadcast_to(1 / self._inverse_temperatures(logits), (len(logits),))

    @abstractmethod
    def _inverse_temperatures(self, logits: Floats) -> Floats | float:
        """1/T, a number or an array (n,) in float64."""

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """``(logits - row maximum) / T``; the temperature's own graph is the map's."""
        largest = graph.add("ReduceMax", logits, graph.constant([1], np.int64), keepdims=1)
        gaps = graph.add("Sub", logits, largest)
        return graph.add("Mul", gaps, self._onnx_inverse_temperature(graph, logits))

    @abstractmethod
    def _onnx_inverse_temperature(self, graph: Builder, logits: str) -> str:
        """Write 1/T, a number or a column (n, 1), into an ONNX graph."""

    def _transform(self, logits: Floats) -> Floats:
        return scaled_logits(logits, self._inverse_temperatures)

    def _apply(self, logits: Floats) -> Floats:
        return softmax(logits, self._inverse_temperatures)


@dataclass(frozen=True)
class Calibrator(ABC):
    """A recipe: hyper-parameters as fields, checked when it is made; ``fit`` gives the map."""

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str]
    cost: ClassVar[str]
    needs_segments: ClassVar[bool] = False
    copies: ClassVar[float] = 0.25
    numbers_a_row: ClassVar[float] = 4.0
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def method_needing_segments(self) -> str | None:
        """The method for which a fit with these parameters needs the segment of each row."""
        return self.name if self.needs_segments else None

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the memory that a fit on n rows of k classes takes at its peak.

        Beside the data themselves, which are taken as float64: ``copies`` of them, and
        ``numbers_a_row``; measured, and right to a factor of 2 above 50 MB.
        """
        return int(8 * (self.copies * n * k + self.numbers_a_row * n)) + scratch_bytes()

    def fit(
        self,
        data: CalibrationSet,
        *,
        device: str = "cpu",
        progress: ProgressCallback | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> CalibrationMap:
        """Fit on ``data``; the same data and recipe give the same map (on a GPU, up to rounding).

        ``device`` is where fits that use torch run: "cpu", "cuda", "cuda:1". ``progress(step,
        total, loss)`` is called as the fit goes on; when ``cancel()`` answers True it stops with
        FitCancelled. Warnings are issued and kept in the map's ``fit_info``.
        """
        context = FitContext(device, progress, cancel)
        fitted = self.fit_in(data, context)
        context.issue_warnings()
        return fitted

    def fit_in(self, data: CalibrationSet, context: FitContext) -> CalibrationMap:
        """Fit inside a running fit's context."""
        if not isinstance(data, CalibrationSet):
            raise FitError(
                "not_a_calibration_set",
                f"fit takes a CalibrationSet, got {type(data).__name__}: "
                "make one with CalibrationSet(logits, labels)",
            )
        if self.method_needing_segments and data.segments is None:
            raise FitError(
                "missing_segments",
                f"the method {self.method_needing_segments!r} needs the segment of each row: "
                "make the set with CalibrationSet(logits, labels, segments)",
            )
        fitted = replace(self._fit(data, context), **data.zeros._asdict())
        info: dict[str, Any] = {"rows": data.n, "warnings": context.warnings}
        if data.clipped is not None:
            # the set itself has warned its maker
            said = {"code": ClippedProbabilities.code, "message": str(data.clipped)}
            info["warnings"] = [said, *info["warnings"]]
            info["clipped"] = {
                "zeros": data.clipped.raised,
                "normalised_rows": data.clipped.normalised,
                **data.zeros._asdict(),
            }
        return fitted.with_info(**info)

    @abstractmethod
    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap: ...
