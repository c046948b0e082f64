"""Base class for methods that start with temperature scaling."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from calibrators.base import CalibrationMap, Calibrator
from calibrators.data import CalibrationSet
from calibrators.errors import BoundarySolution, FellBack, FlatLogits
from calibrators.fitting.context import FitContext
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling

FALLBACK_CODES = (BoundarySolution.code, FlatLogits.code)


@dataclass(frozen=True)
class AfterTemperature(Calibrator):
    """A method that first divides the logits by the exact temperature of temperature scaling.

    This makes the method independent of the scale of the logits. If temperature scaling ends at its
    bound or finds flat logits, the method cannot be fitted: it issues a FellBack warning and
    returns the temperature-scaling map.
    """

    def _fit(self, data: CalibrationSet, context: FitContext) -> CalibrationMap:
        base = TemperatureScaling().fit_in(data, context.without_progress())
        assert isinstance(base, TemperatureMap)  # noqa: S101
        reason = fallback_reason(base)
        if reason is not None:
            context.step(1, 1)
            return fall_back(self.name, base, reason, context)
        return self._fit_scaled(data, base, context)

    def fit_after(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> CalibrationMap:
        """Fit on ``data``, given ``base``, a temperature-scaling map at its optimum."""
        return self._fit_scaled(data, base, context)

    @abstractmethod
    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> CalibrationMap:
        """Fit on ``data``, given ``base``, the temperature-scaling map fitted on it."""


def fallback_reason(base: CalibrationMap) -> str | None:
    """Return the warning if a fit ended at its bound or found flat logits, else None."""
    for warning in base.fit_info["warnings"]:
        if warning["code"] in FALLBACK_CODES:
            return str(warning["message"])
    return None


def fall_back(
    method: str, base: TemperatureMap, reason: str, context: FitContext
) -> TemperatureMap:
    """Issue a FellBack warning and return ``base``, recording the method and the reason in it."""
    context.warn(FellBack, f"{method} fell back to temperature scaling: {reason}")
    return base.with_info(fallback={"method": method, "reason": reason})
