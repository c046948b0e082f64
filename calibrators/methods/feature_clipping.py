"""Feature clipping: clip the inputs of the last layer, recompute the logits and scale them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from calibrators.base import Calibrator
from calibrators.data import CalibrationSet
from calibrators.errors import FitError, ParameterError
from calibrators.features import Features, Head
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import fallback_reason
from calibrators.methods._feature_map import FeatureMap
from calibrators.methods.temperature import (
    TemperatureMap,
    TemperatureScaling,
    check_temperature,
)
from calibrators.metrics.calibration import ece
from calibrators.metrics.scores import row_scores
from calibrators.numerics.parallel import Floats, Scratch, map_blocks
from calibrators.numerics.softmax import softmax

REACH = 200.0
LARGEST_LOGIT = 1e30
LARGEST_RESIDUAL = 0.1


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureClippingMap(FeatureMap):
    """``softmax(z' / temperature)``; ``z' = z - weight @ (h - clip(h, -threshold, threshold))``.

    h are the features of the row and z its logits, so z' are the logits of the clipped features.
    """

    method = "feature_clipping"
    complexity = 135
    keeps_class = False

    weight: Floats
    threshold: float
    temperature: float

    def _check_arrays(self) -> None:
        check_temperature(self.temperature)
        if self.weight.ndim != 2 or self.weight.shape[0] != self.k or not self.weight.shape[1]:
            raise ParameterError(
                "bad_parameter",
                f"weight must have shape ({self.k}, d) for k={self.k}, got {self.weight.shape}",
            )
        if not 0 < self.threshold < math.inf:
            raise ParameterError(
                "bad_parameter", f"threshold must be positive and finite, got {self.threshold}"
            )

    @property
    def feature_count(self) -> int:
        """Number of features per row."""
        return int(self.weight.shape[1])

    @property
    def row_cost(self) -> int:
        """Approximate number of values computed per row in addition to its logits."""
        return self.feature_count + self.weight.size // 8

    def _transform_features(self, logits: Floats, features: Floats) -> Floats:
        transformed = clipped_logits(logits, features, self.weight, self.threshold)
        transformed -= transformed.max(axis=1, keepdims=True)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            transformed *= logits.dtype.type(1 / self.temperature)
        return transformed


def clipped_logits(logits: Floats, features: Floats, weight: Floats, threshold: float) -> Floats:
    """Return the logits (n, k) for features clipped to [-threshold, threshold]."""
    out = np.empty(logits.shape, logits.dtype)

    def work(start: int, stop: int, scratch: Scratch) -> None:
        block = features[start:stop].astype(np.result_type(weight, np.float32))
        block -= np.clip(block, -threshold, threshold)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(logits[start:stop], block @ weight.T, out=out[start:stop], casting="unsafe")

    map_blocks(work, len(logits), max(logits.shape[1], weight.shape[1]))
    return out


@dataclass(frozen=True)
class FeatureClipping(Calibrator):
    """``p = softmax(z' / T)``, where z' are the logits of features clipped to [-c, c].

    The method needs the features of each row and the classification head:
    ``CalibrationSet(logits, labels, features=h, head=(W, b))``. Clipping has the largest effect on
    rows with extreme features. Unlike a single temperature, it therefore lowers confidence more in
    some rows than in others. The new logits are ``z' = z - W (h - clip(h, -c, c))``, which equals
    ``W clip(h, -c, c) + b`` if z are the logits of the head. A head that does not reproduce the
    logits is rejected.

    c is chosen from a geometric grid of ``thresholds`` values, which starts at the largest |h|,
    where nothing is clipped, and ends at 1/200 of it. The best c has the lowest ``objective``,
    "nll" or "ece" (15 equal-width bins), on the fit set after the exact temperature for that c.
    Values that keep less than a fraction ``accuracy_kept`` of the accuracy are excluded. The
    predicted class may change.

    The paper clips without a temperature and chooses c by the ECE. Its code tries 0.01, 0.02, ...,
    20, a grid that depends on the scale of the features. The default limit, a loss of 1 % of the
    accuracy, matches the SMART paper's code. ``FeatureClipping(objective="ece", scaled=False)`` is
    the paper's method on our grid. Some implementations clip from above only, which makes no
    difference for features after a ReLU.

    Tao, Dong, Xu: Feature clipping for uncertainty calibration. AAAI 2025.

    >>> rng = np.random.default_rng(0)
    >>> h = rng.exponential(size=(4000, 8))
    >>> W = 2 * rng.normal(size=(3, 8))
    >>> z = np.minimum(h, 1.5) @ W.T                             # the truth ignores extremes
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> data = CalibrationSet(h @ W.T, y, features=h, head=(W, None))
    >>> fitted = FeatureClipping().fit(data)
    >>> round(fitted.threshold, 1), round(fitted.temperature, 1)
    (1.6, 1.0)
    """

    name = "feature_clipping"
    summary = "features of the last layer clipped at a threshold, then one temperature"
    reference = "Tao et al., AAAI 2025"
    cost = "one multiplication by the head and one temperature fit for each of 40 thresholds"
    needs_features = True
    needs_head = True
    copies = 3.0

    objective: Literal["nll", "ece"] = "nll"
    scaled: bool = True
    thresholds: Annotated[int, Ge(2), Le(2000)] = 40
    accuracy_kept: Annotated[float, Ge(0), Le(1)] = 0.99

    def feature_bytes(self, n: int, d: int) -> int:
        """Estimate the memory for blocks of features in float64."""
        return 8 * 2 * min(n * d, 1 << 20)

    def _fit(self, data: CalibrationSet, context: FitContext) -> FeatureClippingMap:
        assert data.features is not None  # noqa: S101
        assert data.features.head is not None  # noqa: S101
        check_head(data, data.features, data.features.head)
        base = TemperatureScaling().fit_in(data, context.without_progress())
        assert isinstance(base, TemperatureMap)  # noqa: S101
        values, weight = data.features.values, data.features.head.weight
        largest = max(float(values.max()), -float(values.min())) or 1.0
        best, trials = _Trial(largest, base.temperature if self.scaled else 1.0), []
        if fallback_reason(base) is None:
            grid = largest * REACH ** -np.linspace(0, 1, self.thresholds)
            for done, threshold in enumerate(grid.tolist()):
                context.step(done, self.thresholds)
                trials.append(self._trial(data, values, weight, threshold, context))
            least = self.accuracy_kept * trials[0].accuracy
            best = min((one for one in trials if one.accuracy >= least), key=_Trial.order)
        context.step(self.thresholds, self.thresholds)
        return FeatureClippingMap(
            k=data.k,
            kind=data.kind,
            weight=weight,
            threshold=best.threshold,
            temperature=best.temperature,
            fit_info={
                "objective": self.objective,
                "largest_feature": largest,
                "clipped_share": float(np.mean(np.abs(values) > best.threshold)),
                "value": None if not trials else best.value,
                "value_unclipped": None if not trials else trials[0].value,
            },
        )

    def _trial(
        self,
        data: CalibrationSet,
        features: Floats,
        weight: Floats,
        threshold: float,
        context: FitContext,
    ) -> _Trial:
        """Return the temperature, objective and accuracy on the fit set for one threshold."""
        logits = clipped_logits(data.logits, features, weight, threshold)
        lowest = logits.min(initial=0.0, where=~np.isneginf(data.logits))
        if not max(logits.max(), -lowest) < LARGEST_LOGIT:  # so extreme that they are only noise
            return _Trial(threshold, 1.0, np.inf, 0.0)
        beta = 1.0
        if self.scaled:
            scaled = TemperatureScaling().fit_in(data.with_logits(logits), context.inner())
            assert isinstance(scaled, TemperatureMap)  # noqa: S101
            beta = 1 / scaled.temperature
        probabilities = softmax(logits, lambda block: beta)
        scores = row_scores(probabilities, data.labels)
        value = float(scores.nll.mean()) if self.objective == "nll" else ece(scores.top)
        return _Trial(threshold, 1 / beta, value, float(scores.top.correct.mean()))


@dataclass(frozen=True)
class _Trial:
    threshold: float
    temperature: float
    value: float = 0.0
    accuracy: float = 0.0

    def order(self) -> tuple[float, float]:
        """Return the sort key: the lowest objective comes first, then the largest threshold."""
        return self.value, -self.threshold


def check_head(data: CalibrationSet, features: Features, head: Head) -> None:
    """Raise a FitError unless the head turns the features into the logits, up to row constants.

    The median deviation may be up to a tenth of the median size of the logits. This allows for
    float16 features and bfloat16 logits, but not for the features of another layer or another head.
    """

    def work(start: int, stop: int, scratch: Scratch) -> tuple[Floats, Floats]:
        given = data.logits[start:stop].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            made = features.values[start:stop].astype(np.float64) @ head.weight.T + head.bias
        given[np.isneginf(given)] = np.nan
        made = np.nan_to_num(made, nan=1e300, posinf=1e300, neginf=-1e300)
        made[np.isnan(given)] = np.nan
        given -= np.nanmean(given, axis=1, keepdims=True)
        made -= np.nanmean(made, axis=1, keepdims=True)
        return (
            np.asarray(np.nanmedian(np.abs(given - made), axis=1)),
            np.asarray(np.nanmedian(np.abs(given), axis=1)),
        )

    columns = max(data.k, features.width)
    pairs = map_blocks(work, data.n, columns)
    off, size = (float(np.median(np.concatenate(one))) for one in zip(*pairs, strict=True))
    if off > LARGEST_RESIDUAL * size + 1e-6:
        raise FitError(
            "head_differs",
            "the head must reproduce the logits from the features: weight @ features + bias "
            f"differs from the logits by {off:.3g} in the median row, and the logits "
            f"vary by {size:.3g}; pass the inputs of the last layer, and that layer's weight "
            "(k, d) and bias",
        )
