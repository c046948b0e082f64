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
from numpy.typing import ArrayLike

from calibrators.blocks import Floats
from calibrators.constraints import check_fields
from calibrators.context import FitContext, Progress
from calibrators.data import (
    CalibrationSet,
    Kind,
    as_logits,
    check_rows,
    log_probabilities,
    row_maxima,
)
from calibrators.errors import DataError, ExportError, FitError, ParameterError
from calibrators.groups import Groups
from calibrators.softmax import scaled_logits, softmax

if TYPE_CHECKING:
    from calibrators.onnx import Builder


@dataclass(frozen=True, eq=False, kw_only=True)
class CalibrationMap(ABC):
    """A fitted calibration: immutable, applied with numpy alone.

    ``k`` classes and the ``kind`` of input it was fitted on; other input is refused. ``fit_info``
    is plain JSON: how the fit went, with its warnings. ``keeps_class`` says whether the predicted
    class always keeps the largest probability; of a class of maps it is None if that depends on the
    map. ``has_segments`` says whether it takes groups.
    """

    method: ClassVar[str]
    keeps_class: ClassVar[bool | None]
    has_segments: ClassVar[bool] = False

    k: int
    kind: Kind = "logits"
    fit_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 2 <= self.k < 2**31:
            raise ParameterError("bad_parameter", f"a map needs at least 2 classes, got k={self.k}")
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def apply(self, values: ArrayLike, groups: ArrayLike | Groups | None = None) -> Floats:
        """Calibrated probabilities (n, k) of logits (or probabilities, if fitted on those).

        float32 in, float32 out; rows sum to 1. A binary map takes (n,), (n, 1) or (n, 2) and
        answers (n, 2). ``groups`` (n,) name the segment of each row, for a map that has segments.
        """
        logits = self._logits_of(values)
        if groups is None:
            return self._apply(logits)
        scales = self._segment_scales(Groups.of(groups, rows=len(logits), most=None))
        return softmax(self._transform(logits), scales)

    def apply_set(self, data: CalibrationSet) -> Floats:
        """Calibrated probabilities (n, k) of a checked set of the map's kind and classes."""
        return self._apply(self._logits_of_set(data))

    def transform(self, values: ArrayLike, groups: ArrayLike | None = None) -> Floats:
        """Calibrated logits (n, k): ``softmax(transform(x)) == apply(x)``."""
        logits = self._logits_of(values)
        if groups is None:
            return self._transform(logits)
        scales = self._segment_scales(Groups.of(groups, rows=len(logits), most=None))
        return scaled_logits(self._transform(logits), scales)

    def with_info(self, **info: Any) -> Self:
        """The same map with more in its ``fit_info``."""
        return replace(self, fit_info={**self.fit_info, **info})

    def unknown_note(self, groups: Groups) -> str | None:
        """What to say of rows of segments that this map does not know, in ASCII; None if none."""
        return None

    def _logits_of(self, values: ArrayLike) -> Floats:
        if self.kind == "probabilities":
            logits = log_probabilities(values, stacklevel=4)
        else:
            logits = as_logits(values)
        if logits.shape[1] != self.k:
            got = f"{logits.shape[1]} columns"
            if np.ndim(values) == 1:
                got = f"a list of {len(logits)} numbers: one row is [[...]]"
            raise DataError("wrong_classes", f"this map was fitted on {self.k} classes, got {got}")
        return logits

    def _logits_of_set(self, data: CalibrationSet) -> Floats:
        if (data.k, data.kind) != (self.k, self.kind):
            raise DataError(
                "wrong_kind",
                f"this map takes {self.kind} of {self.k} classes, got {data.kind} of {data.k}",
            )
        return data.logits

    @abstractmethod
    def _transform(self, logits: Floats) -> Floats:
        """Calibrated logits of checked-shape logits (n, k)."""

    def _apply(self, logits: Floats) -> Floats:
        return softmax(self._transform(logits))

    def _segment_scales(self, groups: Groups) -> Floats:
        """What the calibrated logits of each row are multiplied by in its segment, (n,)."""
        raise DataError(
            "no_segments",
            f"this map of the method {self.method!r} has no segments: leave groups out, or fit "
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
    needs_groups: ClassVar[bool] = False
    needs_torch: ClassVar[bool] = False
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def method_needing_groups(self) -> str | None:
        """The method for which a fit with these parameters needs the segment of each row."""
        return self.name if self.needs_groups else None

    def fit(
        self,
        data: CalibrationSet,
        *,
        device: str = "cpu",
        progress: Progress | None = None,
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
        if self.method_needing_groups and data.groups is None:
            raise FitError(
                "no_groups",
                f"the method {self.method_needing_groups!r} needs the segment of each row: "
                "make the set with CalibrationSet(logits, labels, groups)",
            )
        fitted = self._fit(data, context)
        return fitted.with_info(rows=data.n, warnings=context.warnings)

    @abstractmethod
    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap: ...
