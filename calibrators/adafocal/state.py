"""The state that controls AdaFocal's loss, and its update, in pure numpy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from calibrators.adafocal.statistics import BinStatistics
from calibrators.errors import DataError, ParameterError
from calibrators.fitting.parameters import check_fields

Rule = Literal["adafocal", "calfocal", "calfocal_per_sample"]
Floats = NDArray[np.float64]

# exponents of updates are clipped to this value, beyond which exp overflows
MAX_EXPONENT = 700.0
# limit of gammas without a bound; far larger ones overflow float32, and the SDK rejects them
LARGEST_GAMMA = 1e18


@dataclass(frozen=True)
class Settings:
    """Parameters of the gamma update, which uses each bin's confidence C and accuracy A.

    The rule ``adafocal`` multiplies gamma by ``exp(rate (C - A))``, or by ``exp(-rate (C - A))`` if
    gamma is negative, and clips it to [``gamma_min``, ``gamma_max``]; a ``gamma_max`` of None or
    infinity means no upper bound. If the magnitude of gamma falls below ``switch_at``, gamma is set
    to ``switch_at`` with the opposite sign, which switches between focal and inverse-focal loss.
    ``calfocal``, the memoryless predecessor, sets gamma to ``exp(rate (C - A))`` without a bound;
    ``calfocal_per_sample`` uses each sample's p in place of C.

    >>> Settings(gamma_max=math.inf).gamma_max, Settings(gamma_max=math.inf).highest
    (None, 1e+18)
    """

    bins: Annotated[int, Ge(1), Le(1000)] = 15
    rate: Annotated[float, Gt(0), Le(1000)] = 1.0
    gamma_max: Annotated[float, Gt(0), Le(100)] | None = 20.0
    gamma_min: Annotated[float, Ge(-100), Le(0)] = -2.0
    switch_at: Annotated[float, Ge(0), Le(1)] = 0.2
    rule: Rule = "adafocal"

    def __post_init__(self) -> None:
        if self.gamma_max == math.inf:  # None, because JSON has no infinity
            object.__setattr__(self, "gamma_max", None)
        check_fields(self)
        if self.switch_at > min(self.gamma_max or math.inf, -self.gamma_min):
            raise ParameterError(
                "bad_parameter",
                f"switch_at must be at most gamma_max and -gamma_min, got {self.switch_at}",
            )

    @property
    def highest(self) -> float:
        """The largest gamma that these settings allow."""
        if self.rule != "adafocal" or self.gamma_max is None:
            return LARGEST_GAMMA
        return self.gamma_max


@dataclass(frozen=True, eq=False)
class AdaFocalState:
    """Immutable state: edges (bins + 1) and gammas (bins) after ``step`` updates.

    Reference: Ghosh et al., AdaFocal: calibration-aware adaptive focal loss, 2022, Algorithm 1.

    >>> state = AdaFocalState.initial(bins=2, rate=10.0)
    >>> sure_and_wrong = BinStatistics.from_confidences([0.6, 0.6, 0.9, 0.9], [1, 1, 0, 1])
    >>> after = state.update(sure_and_wrong)
    >>> after.step, after.gammas.round(2).tolist()
    (1, [-0.2, 20.0])
    """

    settings: Settings
    step: int
    edges: Floats
    gammas: Floats
    accuracy: Floats

    def __post_init__(self) -> None:
        bins = self.settings.bins
        for name, size in (("edges", bins + 1), ("gammas", bins), ("accuracy", bins)):
            array = np.array(getattr(self, name), dtype=np.float64)
            if array.shape != (size,) or not np.isfinite(array).all():
                raise DataError("bad_state", f"{name} must be {size} finite numbers")
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if (np.diff(self.edges) < 0).any() or self.edges[0] != 0 or self.edges[-1] != 1:
            raise DataError("bad_state", "edges must be non-decreasing from 0 to 1")
        low, high = self.settings.gamma_min, self.settings.highest
        if not ((self.gammas >= low) & (self.gammas <= high)).all():
            raise DataError("bad_state", f"gammas must lie between {low:g} and {high:g}")
        if (self.accuracy < 0).any() or (self.accuracy > 1).any():
            raise DataError("bad_state", "accuracy must lie in [0, 1]")
        if not isinstance(self.step, int) or isinstance(self.step, bool) or self.step < 0:
            raise DataError("bad_state", f"step must be a non-negative integer, got {self.step!r}")

    @classmethod
    def initial(cls, bins: int = 15, **settings: Any) -> AdaFocalState:
        """Return the state before the first update: equal-width bins, all with a gamma of 1."""
        return cls.begin(Settings(bins=bins, **settings))

    @classmethod
    def begin(cls, settings: Settings) -> AdaFocalState:
        """Return the state before the first update, with these settings."""
        bins = settings.bins
        edges = np.arange(bins + 1) / bins
        # an accuracy in the middle of its bin means no miscalibration
        return cls(settings, 0, edges, np.ones(bins), (edges[:-1] + edges[1:]) / 2)

    def update(self, statistics: BinStatistics) -> AdaFocalState:
        """Return the state after a validation pass, with new equal-mass bins and updated gammas.

        Empty bins, which occur if there are fewer rows than bins, keep their gamma.
        """
        table = statistics.equal_mass(self.settings.bins)
        gammas = [
            gamma if math.isnan(gap) else _next(self.settings, gamma, gap)
            for gamma, gap in zip(self.gammas.tolist(), (-table.gap).tolist(), strict=True)
        ]
        return replace(
            self,
            step=self.step + 1,
            edges=np.append(table.lower, 1.0),
            gammas=np.array(gammas),
            accuracy=np.where(table.count > 0, table.accuracy, self.accuracy),
        )

    def switches(self, before: AdaFocalState) -> list[int]:
        """Return the bins whose gamma has changed sign since ``before``."""
        return np.flatnonzero((self.gammas < 0) != (before.gammas < 0)).tolist()

    def is_near(self, other: AdaFocalState, tolerance: float = 1e-9) -> bool:
        """Return True if two states agree up to rounding, which differs between machines."""
        return (
            self.settings == other.settings
            and self.step == other.step
            and all(
                np.allclose(getattr(self, name), getattr(other, name), rtol=tolerance, atol=0)
                for name in ("edges", "gammas", "accuracy")
            )
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AdaFocalState) and self.is_near(other, 0.0)

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON, without loss of precision."""
        arrays = {name: getattr(self, name).tolist() for name in ("edges", "gammas", "accuracy")}
        return {"settings": asdict(self.settings), "step": self.step, **arrays}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> AdaFocalState:
        """Build a state from the output of ``to_dict``; raise an error if it is invalid."""
        try:
            settings = Settings(**document["settings"])
            arrays = [document[name] for name in ("edges", "gammas", "accuracy")]
            return cls(settings, document["step"], *arrays)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataError | ParameterError):
                raise
            raise DataError("bad_state", f"not an AdaFocal state: {error}") from error


def _next(settings: Settings, gamma: float, gap: float) -> float:
    """Return gamma after an update, given the ``gap`` C - A of its bin."""
    exponent = max(-MAX_EXPONENT, min(MAX_EXPONENT, settings.rate * gap))
    if settings.rule != "adafocal":
        return min(settings.highest, math.exp(exponent))
    if gamma >= 0:
        gamma = min(settings.highest, gamma * math.exp(exponent))
        return -settings.switch_at if abs(gamma) < settings.switch_at else gamma
    gamma = max(settings.gamma_min, gamma * math.exp(-exponent))
    return settings.switch_at if abs(gamma) < settings.switch_at else gamma
