"""Beta calibration: three parameters per class, which bend its probability near 0 and near 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from calibrators.errors import NotConverged, ParameterError
from calibrators.export.onnx import Builder
from calibrators.fitting.context import FitContext
from calibrators.methods._logistic3 import LogisticMinimum, LogisticProblem, minimum
from calibrators.methods._one_vs_rest import (
    Bools,
    ClassShares,
    OneVsRestCalibrator,
    OneVsRestMap,
    OnnxShares,
    informative,
)
from calibrators.methods._step_tables import refuse
from calibrators.methods.temperature import TemperatureMap
from calibrators.numerics.parallel import Floats

FAR = -1e300


@dataclass(frozen=True, eq=False, kw_only=True)
class BetaMap(OneVsRestMap):
    """Log odds ``a_k ln p_k - b_k ln(1 - p_k) + c_k`` of each class; rows are then normalised."""

    method = "beta"
    complexity = 30

    a: Floats
    b: Floats
    c: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("a", "b", "c"):
            values = getattr(self, name)
            if values.shape != (self.k,):
                raise ParameterError(
                    "bad_parameter",
                    f"{name} must have one number for each of {self.k} classes, "
                    f"got shape {values.shape}",
                )
            refuse(name, "be finite", values, ~np.isfinite(values))
        refuse("a", "be at least 0", self.a, self.a < 0)
        refuse("b", "be at least 0", self.b, self.b < 0)

    def _log_probabilities(self, shares: ClassShares) -> Floats:
        moved = self.a * np.maximum(shares.log_p, FAR)
        moved -= self.b * shares.log_rest()
        moved += self.c
        tail = np.log1p(np.exp(-np.abs(moved)))
        return np.asarray(np.minimum(moved, 0, out=moved) - tail)

    def _onnx_log_probabilities(self, graph: Builder, shares: OnnxShares) -> str:
        a, b, c = (graph.constant(one, np.float64) for one in (self.a, self.b, self.c))
        log_p = graph.add("Max", shares.log_p, graph.constant(FAR, np.float64))
        moved = graph.add("Sub", graph.add("Mul", a, log_p), graph.add("Mul", b, shares.log_rest))
        moved = graph.add("Add", moved, c)
        tail = graph.add("Exp", graph.add("Neg", graph.add("Abs", moved)))
        tail = graph.add("Log", graph.add("Add", tail, graph.constant(1.0, np.float64)))
        below = graph.add("Min", moved, graph.constant(0.0, np.float64))
        return graph.add("Sub", below, tail)


@dataclass(frozen=True)
class Beta(OneVsRestCalibrator[LogisticMinimum]):
    """Map each class's log odds to ``a ln p - b ln(1 - p) + c`` with a, b >= 0; rows sum to 1.

    Here ``p = softmax(z / T)`` with the T of temperature scaling. The three parameters of class k
    come from a logistic regression of "the label is k" on ``ln p_k`` and ``-ln(1 - p_k)``: a bends
    the probability near 0, b bends it near 1, and c shifts it; a = b = 1, c = 0 changes nothing.
    The new probabilities are divided by their sum. With two classes, the two functions mirror each
    other and already sum to 1; this is the published method. The predicted class may change.

    The fit of each class minimises the mean NLL plus ``prior / (2 n) |(a, b, c) - (1, 1, 0)|^2``.
    Without this weak prior, a class that never occurs or is perfectly separated would have no
    finite optimum. On 13 real test sets (two splits), priors of 0.01, 0.1, 1 and 10 gave mean test
    NLLs of 0.811, 0.815, 0.829 and 0.861. If two sets in which most classes never occur are left
    out, the NLLs for priors from 0.01 to 1 differ by less than 0.005; the default of 0.1 lies in
    the middle of this range.

    The problem is convex. It is solved by Newton's method with step halving until no component of
    the gradient exceeds ``tolerance``, with a NotConverged warning after 200 steps. If a or b is
    negative, the problems with a = 0, with b = 0 and with a = b = 0 are solved as well; the best
    solution is the exact optimum under a, b >= 0. The authors refit without the negative parameter,
    which is equivalent unless the other one then becomes negative.

    A row in which the logit of class k, or of every class but k, is -inf carries no information
    about class k and is left out of its fit.

    Kull, Silva Filho, Flach: Beta calibration: a well-founded and easily implemented improvement on
    logistic calibration for binary classifiers. AISTATS 2017.

    >>> from calibrators import CalibrationSet
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=20_000) * 2
    >>> y = rng.random(20_000) < 1 / (1 + np.exp(-z))            # already calibrated
    >>> fitted = Beta().fit(CalibrationSet(z, y))
    >>> bool(np.abs([fitted.a - 1, fitted.b - 1, fitted.c]).max() < 0.1)
    True
    """

    name = "beta"
    summary = "a beta-distribution curve per class (3 parameters each), with rows renormalised"
    reference = "Kull, Silva Filho and Flach, AISTATS 2017"
    cost = "temperature scaling and about 10 passes over the logits"
    numbers_a_row = 12.0

    prior: Annotated[float, Ge(1e-9), Le(1e9)] = 0.1
    tolerance: Annotated[float, Gt(0), Le(1e-2)] = 1e-8

    def _fit_classes(self, shares: ClassShares, is_label: Bools, k: int) -> LogisticMinimum:
        rows = informative(shares)
        log_p, log_rest = shares.log_p, shares.log_rest()
        counts = None
        if not rows.all():
            log_p, log_rest = np.where(rows, log_p, 0), np.where(rows, log_rest, 0)
            is_label, counts = is_label & rows, rows.astype(np.float64)
        problem = LogisticProblem(log_p, -log_rest, is_label.astype(np.float64), counts, self.prior)
        return minimum(problem, self.tolerance)

    def _map_of(
        self, parts: list[LogisticMinimum], base: TemperatureMap, context: FitContext
    ) -> BetaMap:
        gradient = float(max(one.gradient.max() for one in parts))
        if gradient > self.tolerance:
            context.warn(
                NotConverged,
                f"the gradient is {gradient:.2g}, above the tolerance of {self.tolerance}",
            )
        a, b, c = np.concatenate([one.weights for one in parts]).T
        return BetaMap(
            k=base.k,
            kind=base.kind,
            base_temperature=base.temperature,
            a=a,
            b=b,
            c=c,
            fit_info={
                "objective": "nll",
                "value": float(np.concatenate([one.value for one in parts]).mean()),
                "gradient": gradient,
                "iterations": max(one.iterations for one in parts),
                "device": "cpu",
            },
        )
