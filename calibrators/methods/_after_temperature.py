"""What the methods that begin with temperature scaling share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from calibrators.base import CalibrationMap, Calibrator
from calibrators.context import FitContext
from calibrators.data import CalibrationSet
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling


@dataclass(frozen=True)
class AfterTemperature(Calibrator):
    """A method that works on logits divided by the exact temperature of temperature scaling.

    Their scale is then of no account. If temperature scaling ends at its bound or finds flat logits
    there is nothing to build on: its map is returned, with its warning.
    """

    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap:
        base = TemperatureScaling().fit_in(data, context.without_progress())
        assert isinstance(base, TemperatureMap)  # noqa: S101
        if base.fit_info["warnings"]:
            context.step(1, 1)
            return base
        return self._fit_scaled(data, base, context)

    @abstractmethod
    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> CalibrationMap:
        """Fit on ``data``, for which ``base`` is temperature scaling."""
