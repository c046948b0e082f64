"""Identity: the model's own probabilities, as a baseline for all other methods."""

from __future__ import annotations

from dataclasses import dataclass

from calibrators.base import Calibrator, TemperatureTypeMap
from calibrators.data import CalibrationSet
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.numerics.parallel import Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentityMap(TemperatureTypeMap):
    """``softmax(logits)``."""

    method = "identity"
    complexity = 0

    def _inverse_temperatures(self, logits: Floats) -> float:
        return 1.0

    def _onnx_inverse_temperature(self, graph: Builder, logits: str) -> str:
        return graph.constant(1.0)


@dataclass(frozen=True)
class Identity(Calibrator):
    """The model's own probabilities, unchanged.

    >>> fitted = Identity().fit(CalibrationSet([[0.0, 0.0], [2.0, 0.0]], [1, 0]))
    >>> fitted.apply([[0.0, 0.0]]).tolist()
    [[0.5, 0.5]]
    """

    name = "identity"
    summary = "the model's own probabilities, unchanged"
    reference = ""
    cost = "none"
    copies = 0.0
    numbers_a_row = 0.0

    def _fit(self, data: CalibrationSet, context: FitContext) -> IdentityMap:
        context.step(1, 1)
        return IdentityMap(k=data.k, kind=data.kind)
