"""Base classes of all methods: the recipe (``Calibrator``) and the map that its fit returns.

Both are frozen dataclasses. A recipe's fields are its hyper-parameters; a map's fields are plain
numbers, strings and arrays. Checks, JSON schemas, storage, documentation and the contract tests are
all derived from these fields.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
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
    warn_if_applied_to_probabilities,
    warn_if_clipped,
)
from calibrators.errors import (
    ClippedProbabilities,
    DataError,
    ExportError,
    FitError,
    LooksLikeProbabilities,
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
LONGEST_REPR = 300


@dataclass(frozen=True, eq=False, kw_only=True)
class CalibrationMap(ABC):
    """An immutable fitted map; applying it needs only numpy.

    ``k`` is the number of classes and ``kind`` the kind of input that the map was fitted on; other
    input is rejected. ``fit_info`` is plain JSON that describes the fit, including its warnings.
    ``keeps_class`` is True if calibration never changes the predicted class, and None if this
    depends on the individual map. ``has_segments`` is True if the map takes segments,
    ``has_features`` if it needs features, and ``has_interval`` if it has a credible band.
    ``complexity`` ranks methods by the size of their maps: if two methods tie, the less complex one
    is recommended. ``floor``, ``rounding``, ``ratio`` and ``kept`` define the replacement for a
    probability of zero (see calibrators.rounding.Zeros); a single row is not enough to infer it.
    """

    method: ClassVar[str]
    keeps_class: ClassVar[bool | None]
    has_segments: ClassVar[bool] = False
    has_features: ClassVar[bool] = False
    has_interval: ClassVar[bool] = False
    complexity: ClassVar[float] = math.inf

    k: int
    kind: Kind = "logits"
    fit_info: dict[str, Any] = field(default_factory=dict)
    floor: float = 0.0
    rounding: float = 0.0
    ratio: float = 0.0
    kept: int = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # dataclasses would add one that shows all numbers
            cls.__repr__ = CalibrationMap.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return the map's numbers and strings, and the shapes of its arrays."""
        shown = []
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "fit_info" or (one.default is not MISSING and value == one.default):
                continue
            text = f"<array {value.shape}>" if isinstance(value, np.ndarray) else f"{value!r}"
            shown.append(f"{one.name}={text if len(text) <= LONGEST_REPR else '...'}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __post_init__(self) -> None:
        if not (0 <= self.rounding <= 0.5 and 0 <= self.floor <= 0.5) or (
            self.rounding and not 0 < self.floor <= self.rounding / 2
        ):
            raise ParameterError(
                "bad_parameter",
                "rounding must lie in [0, 0.5] and floor in (0, rounding / 2], or in [0, 0.5] if "
                "rounding is 0, "
                f"got rounding={self.rounding} and floor={self.floor}",
            )
        if not (0 <= self.ratio <= 1 and 0 <= self.kept < self.k) or bool(self.ratio) != bool(
            self.kept
        ):
            raise ParameterError(
                "bad_parameter",
                "ratio must lie in [0, 1], kept must be below k, and both or neither must be 0, "
                f"got ratio={self.ratio} and kept={self.kept}",
            )
        if not 2 <= self.k < 2**31:
            raise ParameterError("bad_parameter", f"a map needs at least 2 classes, got k={self.k}")
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def apply(
        self,
        values: ArrayLike,
        segments: ArrayLike | Segments | None = None,
        features: ArrayLike | None = None,
    ) -> Floats:
        """Return calibrated probabilities (n, k) for logits or probabilities.

        ``values`` must be of the kind that the map was fitted on. Rows sum to 1, and float32 input
        gives float32 output. A binary map takes (n,), (n, 1) or (n, 2) and returns (n, 2).
        ``segments`` (n,) names the segment of each row, if the map has segments. ``features``
        (n, d) are required if the map has features. A warning is issued if all rows of logits look
        like probabilities.
        """
        logits = self._logits_of(values)
        if self.kind == "logits":
            warn_if_applied_to_probabilities(logits)
        return self.apply_logits(logits, segments, features)

    def apply_logits(
        self,
        logits: Floats,
        segments: ArrayLike | Segments | None = None,
        features: ArrayLike | None = None,
    ) -> Floats:
        """Return calibrated probabilities (n, k) for logits returned by ``read``."""
        if segments is None and features is None:
            return self._apply(logits)
        scales = None
        if segments is not None:
            named = Segments.of(segments, rows=len(logits), most=None)
            scales = self._segment_scales(named, logits.dtype)
        return self._softmax(self._transform_with(logits, features), scales)

    def apply_set(self, data: CalibrationSet) -> Floats:
        """Return calibrated probabilities (n, k) for a set with the map's kind and classes."""
        return self._apply(self._logits_of_set(data))

    def transform(
        self,
        values: ArrayLike,
        segments: ArrayLike | None = None,
        features: ArrayLike | None = None,
    ) -> Floats:
        """Return the calibrated logits (n, k): ``softmax(transform(x)) == apply(x)``."""
        transformed = self._transform_with(logits := self._logits_of(values), features)
        if segments is None:
            return transformed
        scales = self._segment_scales(Segments.of(segments, rows=len(logits), most=None))
        return scaled_logits(transformed, scales)

    def interval(self, values: ArrayLike, level: float = 0.9) -> tuple[Floats, Floats]:
        """Return the lower and upper bounds (n,) of a credible band of the calibrated confidence.

        Given the fit rows, the probability that the predicted class is correct lies between the
        bounds with posterior probability ``level``, provided that new rows come from the same
        distribution as the fit rows. Only maps with ``has_interval`` have a band.
        """
        self._check_interval(level)
        return self._interval(self._logits_of(values), level)

    def _check_interval(self, level: float) -> None:
        if not self.has_interval:
            raise DataError(
                "no_interval",
                f"this {self.method!r} map has no credible interval: fit 'additive', or 'auto', "
                "which uses 'additive' for 20 rows or more",
            )
        check_level(level)

    def interval_of_logits(self, logits: Floats, level: float) -> tuple[Floats, Floats]:
        """Return the credible band for logits returned by ``read``; see ``interval``."""
        self._check_interval(level)
        return self._interval(logits, level)

    def interval_of_set(self, data: CalibrationSet, level: float) -> tuple[Floats, Floats]:
        """Return the credible band for a set with the map's kind and classes."""
        return self._interval(self._logits_of_set(data), level)

    def _interval(self, logits: Floats, level: float) -> tuple[Floats, Floats]:
        """Return the credible band of checked logits; maps with ``has_interval`` override this."""
        raise DataError("no_interval", f"{self.method!r} has no interval")

    @property
    def feature_count(self) -> int:
        """Number of features per row; 0 if the map takes none."""
        return 0

    @property
    def row_cost(self) -> int:
        """Approximate number of values computed per row, besides its logits."""
        return 0

    def segment_scales(self, names: ArrayLike) -> Floats:
        """Return the factors (n,) that multiply the calibrated logits of the named segments."""
        return self._segment_scales(Segments.of(names, most=None))

    def with_info(self, **info: Any) -> Self:
        """Return the same map with ``info`` added to its ``fit_info``."""
        return replace(self, fit_info={**self.fit_info, **info})

    @property
    def made_by(self) -> frozenset[str]:
        """The methods whose fit may return this map.

        These are the map's own method, the method that chose it and, for a temperature map, the
        method that fell back to it. Types are checked because the ``fit_info`` of an untrusted map
        may contain anything.
        """
        names = [self.method, self.fit_info.get("chosen_by")]
        match self.fit_info.get("fallback"):
            case {"method": str() as name} if self.method == FALLBACK:
                names.append(name)
        return frozenset(name for name in names if isinstance(name, str))

    def unknown_note(self, segments: Segments) -> str | None:
        """Return an ASCII note about rows in segments unknown to the map, or None."""
        return None

    def read(self, values: ArrayLike) -> tuple[Floats, Clipped | None]:
        """Return values as logits (n, k), and a summary of the changes to probabilities."""
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
        """The rule for replacing probabilities of zero."""
        return Zeros(self.floor, self.rounding, self.ratio, self.kept)

    def _logits_of(self, values: ArrayLike) -> Floats:
        logits, clipped = self.read(values)
        warn_if_clipped(clipped)
        return logits

    def _check_classes(self, rows: Floats, values: ArrayLike) -> None:
        if rows.shape[1] != self.k:
            got = f"{rows.shape[1]} columns"
            if np.ndim(values) == 1:
                got = f"a list of {len(rows)} numbers: write a single row as [[...]]"
            raise DataError("wrong_classes", f"this map was fitted on {self.k} classes, got {got}")

    def _logits_of_set(self, data: CalibrationSet) -> Floats:
        if (data.k, data.kind) != (self.k, self.kind):
            raise DataError(
                "wrong_kind",
                f"this map takes {self.kind} of {self.k} classes, got {data.kind} of {data.k}",
            )
        if data.source is None or data.zeros == self.zeros:
            return data.logits
        filled, _ = self.zeros.filled(data.source.probabilities())
        return np.asarray(np.log(np.minimum(filled, 1)))

    @abstractmethod
    def _transform(self, logits: Floats) -> Floats:
        """Return the calibrated logits for ``logits`` (n, k), whose shape has been checked."""

    def _transform_with(self, logits: Floats, features: ArrayLike | None) -> Floats:
        """Return the calibrated logits; raise if features are passed to a map that takes none."""
        if features is not None:
            raise DataError(
                "no_features",
                f"this {self.method!r} map takes no features: leave them out",
            )
        return self._transform(logits)

    def _apply(self, logits: Floats) -> Floats:
        return self._softmax(self._transform(logits))

    def _softmax(self, transformed: Floats, scales: Floats | None = None) -> Floats:
        """Return the softmax of ``transformed * scales``; raise MapError if it is not finite.

        Only the map can be the cause, since ``_transform`` rejects non-finite input.
        """
        try:
            return softmax(transformed, scales)
        except DataError as error:
            raise MapError(error.rows or 0, error.first or 0) from error

    def _segment_scales(self, segments: Segments, dtype: DTypeLike = np.float64) -> Floats:
        """Return the factors (n,) that multiply the calibrated logits of the rows."""
        raise DataError(
            "no_segments",
            f"this {self.method!r} map has no segments: leave them out, or "
            "fit the method 'segmented'",
        )

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add the map's transform of the tensor ``logits`` to a graph; return the output's name."""
        raise ExportError("not_exportable", f"{self.method!r} maps cannot be exported to ONNX")


class TemperatureTypeMap(CalibrationMap):
    """``softmax(logits / T)``, with a temperature T that is shared by all rows or set per row.

    Dividing by T cannot change the order of the classes, so the predicted class keeps the largest
    probability.
    """

    keeps_class = True

    def temperatures(self, values: ArrayLike) -> Floats:
        """Return the temperature (n,) of each row in float64."""
        logits = self._logits_of(values)
        check_rows(row_maxima(logits))
        return self._temperatures(logits)

    def temperatures_of_set(self, data: CalibrationSet) -> Floats:
        """Return the temperatures (n,) of a set with the map's kind and classes."""
        return self._temperatures(self._logits_of_set(data))

    def _temperatures(self, logits: Floats) -> Floats:
        return np.broadcast_to(1 / self._inverse_temperatures(logits), (len(logits),))

    @abstractmethod
    def _inverse_temperatures(self, logits: Floats) -> Floats | float:
        """Return 1/T, a number or an array (n,) in float64."""

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add ``(logits - row maximum) / T`` to an ONNX graph; return the output's name."""
        largest = graph.add("ReduceMax", logits, graph.constant([1], np.int64), keepdims=1)
        gaps = graph.add("Sub", logits, largest)
        return graph.add("Mul", gaps, self._onnx_inverse_temperature(graph, logits))

    @abstractmethod
    def _onnx_inverse_temperature(self, graph: Builder, logits: str) -> str:
        """Add 1/T, a number or a column (n, 1), to an ONNX graph; return the output's name."""

    def _transform(self, logits: Floats) -> Floats:
        return scaled_logits(logits, self._inverse_temperatures)

    def _apply(self, logits: Floats) -> Floats:
        return softmax(logits, self._inverse_temperatures)


@dataclass(frozen=True)
class Calibrator(ABC):
    """A recipe: its fields are hyper-parameters, checked on creation; ``fit`` returns the map."""

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str]
    cost: ClassVar[str]
    needs_segments: ClassVar[bool] = False
    for_comparison: ClassVar[bool] = False
    """True for methods that only reproduce a paper: `auto` tries them only on request."""
    needs_features: ClassVar[bool] = False
    needs_head: ClassVar[bool] = False
    copies: ClassVar[float] = 0.25
    numbers_a_row: ClassVar[float] = 4.0
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def method_needing_segments(self) -> str | None:
        """Name of the method that needs segments; None if none does."""
        return self.name if self.needs_segments else None

    @property
    def method_needing_features(self) -> str | None:
        """Name of the method that needs features; None if none does."""
        return self.name if self.needs_features else None

    @property
    def method_needing_head(self) -> str | None:
        """Name of the method that needs the classification head; None if none does."""
        return self.name if self.needs_head else None

    def feature_bytes(self, n: int, d: int) -> int:
        """Estimate the memory for n rows of d features, in addition to ``memory_bytes``."""
        return 0

    def memory_bytes(self, n: int, k: int) -> int:
        """Estimate the peak memory of a fit on n rows of k classes, in bytes.

        The data itself is not included. The estimate is ``copies`` times the size of the data in
        float64, plus ``numbers_a_row`` numbers per row. Above 50 MB, it was within a factor of 2 of
        the measured peak.
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
        """Fit on ``data`` and return the map.

        The same data and recipe give the same map, up to rounding on a GPU. ``device`` is "cpu",
        "cuda" or, for example, "cuda:1"; it only affects methods that use torch. The fit calls
        ``progress(step, total, loss)``, and stops with FitCancelled once ``cancel()`` returns True.
        Warnings are issued, and also stored in the map's ``fit_info``.
        """
        context = FitContext(device, progress, cancel)
        fitted = self.fit_in(data, context)
        context.issue_warnings()
        return fitted

    def fit_in(self, data: CalibrationSet, context: FitContext) -> CalibrationMap:
        """Fit on ``data`` within the fit that ``context`` belongs to, and return the map."""
        if not isinstance(data, CalibrationSet):
            raise FitError(
                "not_a_calibration_set",
                f"fit takes a CalibrationSet, got {type(data).__name__}: "
                "create one with CalibrationSet(logits, labels)",
            )
        if self.method_needing_segments and data.segments is None:
            raise FitError(
                "missing_segments",
                f"the method {self.method_needing_segments!r} needs the segment of each row: "
                "create the set with CalibrationSet(logits, labels, segments)",
            )
        self._check_features(data)
        fitted = replace(self._fit(data, context), **data.zeros._asdict())
        info: dict[str, Any] = {"rows": data.n, "warnings": context.warnings}
        if data.clipped is not None:
            # the caller was warned when the set was created
            warning = {"code": ClippedProbabilities.code, "message": str(data.clipped)}
            info["warnings"] = [warning, *info["warnings"]]
            info["clipped"] = {
                "zeros": data.clipped.raised,
                "normalised_rows": data.clipped.normalised,
                **data.zeros._asdict(),
            }
        if note := data.probabilities_note:  # the caller was warned when the set was created
            warning = {"code": LooksLikeProbabilities.code, "message": note}
            info["warnings"] = [warning, *info["warnings"]]
        if fitted.has_features:
            info["features"] = fitted.feature_count
        return fitted.with_info(**info)

    def _check_features(self, data: CalibrationSet) -> None:
        """Raise if the recipe needs features or a head that the set lacks."""
        if self.method_needing_features and data.features is None:
            raise FitError(
                "missing_features",
                f"the method {self.method_needing_features!r} needs the features of each row: "
                "create the set with CalibrationSet(logits, labels, features=features)",
            )
        if self.method_needing_head and (data.features is None or data.features.head is None):
            raise FitError(
                "missing_head",
                f"the method {self.method_needing_head!r} needs the classification head: create "
                "the set with CalibrationSet(..., features=features, head=(weight, bias))",
            )

    @abstractmethod
    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap: ...
