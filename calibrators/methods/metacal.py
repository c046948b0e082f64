"""MetaCal: the uniform distribution for rows that are probably wrong, a temperature for others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.errors import FitError, ParameterError
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import AfterTemperature
from calibrators.methods._smart_features import indicate, onnx_indicator
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling, check_temperature
from calibrators.numerics.parallel import Floats, Scratch, map_blocks
from calibrators.numerics.softmax import scaled_logits

MIN_SHARE = 0.05


@dataclass(frozen=True, eq=False, kw_only=True)
class MetaCalMap(CalibrationMap):
    """``softmax(z / temperature)`` up to an entropy of ``threshold``, and uniform above it.

    The threshold applies to the entropy of ``softmax(z / base_temperature)``, in nats. The uniform
    distribution is over the classes whose logits are not -inf.
    """

    method = "metacal"
    complexity = 130
    keeps_class = False

    base_temperature: float
    threshold: float
    temperature: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.base_temperature)
        check_temperature(self.temperature)
        if not math.isfinite(self.threshold):
            raise ParameterError(
                "bad_parameter", f"threshold must be a finite number, got {self.threshold}"
            )

    def _transform(self, logits: Floats) -> Floats:
        out = scaled_logits(logits, lambda _: 1 / self.temperature)
        rejected = entropies(logits, self.base_temperature) > self.threshold
        out[rejected] = np.where(logits[rejected] > -np.inf, 0, -np.inf)
        return out

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Add the scaled logits to an ONNX graph; the logits of rejected rows become 0."""
        axis = graph.constant([1], np.int64)
        gaps = graph.add("Sub", logits, graph.add("ReduceMax", logits, axis, keepdims=1))
        scaled = graph.add("Mul", gaps, graph.constant(1 / self.temperature))
        flat = graph.add("Where", graph.add("IsInf", logits), logits, graph.constant(0.0))
        entropy = onnx_indicator("entropy", graph, logits, self.base_temperature)
        limit = graph.constant(self.threshold, np.float64)
        return graph.add("Where", graph.add("Greater", entropy, limit), flat, scaled)


def entropies(logits: Floats, temperature: float) -> Floats:
    """Return the entropy (n,) of every row of ``softmax(logits / temperature)`` in float64."""

    def work(start: int, stop: int, scratch: Scratch) -> Floats:
        return indicate("entropy", logits[start:stop], temperature)[:, 0]

    return np.concatenate(map_blocks(work, *logits.shape))


@dataclass(frozen=True)
class MetaCal(AfterTemperature):
    """Reject rows whose entropy is above a threshold; calibrate the others with a temperature.

    A rejected row gets the uniform distribution, since an unreliable prediction carries no
    information. The temperature is fitted exactly, on the accepted rows only. The threshold
    satisfies one of two constraints, chosen by ``constraint``:

    - "miscoverage": at most a fraction ``miscoverage`` of the correct predictions is rejected. Of n
      correct predictions, at most floor(miscoverage (n + 1)) - 1 are rejected. A new correct
      prediction is then rejected with probability at most ``miscoverage``, for any n and any
      distribution; this follows from the ranks of exchangeable scores. The rejection rate of the
      fitted map exceeds ``miscoverage + eps`` with probability at most ``exp(-2 n eps^2)``.
    - "accuracy": on the fit set, at least a fraction ``accuracy`` of the accepted rows is predicted
      correctly. As few rows as possible are rejected, and at least a twentieth are accepted. On new
      rows, the constraint holds up to sampling error. The default of 0 requests half of the
      possible gain: the midpoint between the model's accuracy and the highest accuracy that any
      threshold reaches. If no threshold reaches the requested accuracy, a FitError reports the
      highest.

    The paper finds the threshold on a random tenth of the rows, at most 500: as an empirical
    quantile or, for the accuracy, from an isotonic curve over 20 bins. It fits the temperature on
    the other rows, and bounds both constraints with high probability. Here, all rows serve both
    purposes, so that the order of the rows does not matter and the threshold has a third of the
    noise or less. In return, the bounds above are only approximate: they hold for scores fixed in
    advance, while the one parameter of our score, a temperature, comes from the same rows. As in
    the paper, the score is the entropy of the softmax, but the logits are first divided by the
    exact temperature of all rows, so that their scale does not matter. If the accepted rows have no
    finite temperature, because all of them are correct, the temperature of all rows is used.

    Rejected rows have no largest class. If a prediction is needed, take it from the model.

    Ma, Blaschko: Meta-Cal, well-controlled post-hoc calibration by ranking. ICML 2021.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(5000, 5)) * 4
    >>> y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)    # the truth has temperature 2
    >>> fitted = MetaCal(miscoverage=0.1).fit(CalibrationSet(z, y))
    >>> round(fitted.fit_info["miscoverage"], 2), fitted.fit_info["accepted"] < 4500
    (0.1, True)
    >>> fitted.apply([[0.1, 0.0, 0.0, 0.0, 0.0]]).tolist()
    [[0.2, 0.2, 0.2, 0.2, 0.2]]
    """

    name = "metacal"
    summary = "uniform probabilities if the entropy is above a threshold, else a temperature"
    reference = "Ma and Blaschko, ICML 2021"
    cost = "temperature scaling twice and the entropy of every row"
    copies = 1.2
    numbers_a_row = 9.0

    constraint: Literal["miscoverage", "accuracy"] = "miscoverage"
    miscoverage: Annotated[float, Ge(0), Le(1)] = 0.05
    accuracy: Annotated[float, Ge(0), Le(1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        unused = "accuracy" if self.constraint == "miscoverage" else "miscoverage"
        value, default = getattr(self, unused), getattr(type(self), unused)
        if value != default:
            raise ParameterError(
                "bad_parameter",
                f"MetaCal.{unused} must be {default} if constraint={self.constraint!r}, which "
                f"does not use it, got {value}: set constraint={unused!r}",
            )

    def _fit_scaled(
        self, data: CalibrationSet, base: TemperatureMap, context: FitContext
    ) -> MetaCalMap:
        context.step(1, 3)
        right = data.logits.argmax(axis=1) == data.labels
        scores = entropies(data.logits, base.temperature)
        context.step(2, 3)
        order = np.argsort(scores, kind="stable")
        accepted = self._accepted(scores[order], right[order])
        threshold = math.log(data.k) + 1
        if accepted < data.n:
            threshold = float(scores[order[accepted - 1 : accepted + 1]].mean())
        temperature = _temperature(data, base, scores <= threshold, context)
        context.step(3, 3)
        accepted_right, correct = int(right[order[:accepted]].sum()), int(right.sum())
        return MetaCalMap(
            k=data.k,
            kind=data.kind,
            base_temperature=base.temperature,
            threshold=threshold,
            temperature=temperature,
            fit_info={
                "constraint": self.constraint,
                "accepted": accepted,
                "miscoverage": 1 - accepted_right / correct if correct else 0.0,
                "accuracy": accepted_right / accepted,
                "device": "cpu",
            },
        )

    def _accepted(self, scores: Floats, right: Floats) -> int:
        """Return the number of rows to accept, given rows in ascending order of their scores."""
        n = len(scores)
        # a cut between scores that differ only by rounding is not reproducible
        apart = np.diff(scores) > min(1e-5, 0.1 / n)
        cuts = np.append(np.flatnonzero(apart) + 1, n)
        hits = np.cumsum(right)[cuts - 1]
        if self.constraint == "miscoverage":
            correct = int(hits[-1])
            most = math.floor(self.miscoverage * (correct + 1) + 1e-9) - 1
            return int(cuts[np.argmax(correct - hits <= most)]) if most >= 0 else n
        accuracies = np.where(cuts >= MIN_SHARE * n, hits / cuts, 0.0)
        highest = float(accuracies.max())
        target = self.accuracy or (highest + float(accuracies[-1])) / 2
        if highest < target:
            raise FitError(
                "accuracy_out_of_reach",
                f"MetaCal.accuracy must be at most {math.floor(highest * 1e4) / 1e4}, the highest "
                "accuracy of the most confident rows (at least a twentieth of all), "
                f"got {target:g}",
            )
        return int(cuts[accuracies >= target].max())


def _temperature(
    data: CalibrationSet, base: TemperatureMap, accepted: Floats, context: FitContext
) -> float:
    """Return the exact temperature of the accepted rows, or of all rows if they have none."""
    if accepted.all():
        return base.temperature
    inner = context.inner()
    fitted = TemperatureScaling().fit_in(data.take(np.flatnonzero(accepted)), inner)
    assert isinstance(fitted, TemperatureMap)  # noqa: S101
    return base.temperature if inner.warned else fitted.temperature
