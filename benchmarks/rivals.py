"""Adapters for all competitors: each takes prepared input and returns a number.

Input that a competitor needs in another form (probabilities, float64, tensors) is prepared outside
the timed region, which favours the competitor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.data import Sample, softmax

STRONG_WOLFE = {"lr": 1.0, "max_iter": 100, "line_search_fn": "strong_wolfe"}


@dataclass(frozen=True)
class Rival:
    """A competitor: `prepare(sample)` is not timed, `run(*prepared)` is.

    ``recipe`` marks lines that people copy, rather than a library.
    """

    name: str
    prepare: Callable[[Sample], tuple[Any, ...]]
    run: Callable[..., float]
    recipe: bool = False


@dataclass(frozen=True)
class Metric:
    """A metric `run(probabilities, labels)`; one of a different quantity is not `comparable`."""

    name: str
    run: Callable[[np.ndarray, np.ndarray], float]
    comparable: bool = True


def as_is(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return logits and labels unchanged."""
    return sample.logits, sample.labels


def as_float64(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return logits in float64, and labels."""
    return sample.logits.astype(np.float64), sample.labels


def as_tensors(sample: Sample) -> tuple[Any, Any]:
    """Return logits and labels as tensors."""
    import torch

    return torch.from_numpy(sample.logits), torch.from_numpy(sample.labels)


def as_float64_tensors(sample: Sample) -> tuple[Any, Any]:
    """Return logits in float64 and labels as tensors."""
    logits, labels = as_tensors(sample)
    return logits.double(), labels


def as_probabilities(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 probabilities, and labels."""
    return softmax(sample.logits), sample.labels


def as_float64_probabilities(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 probabilities, and labels."""
    logits = sample.logits.astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    np.exp(logits, out=logits)
    return logits / logits.sum(1, keepdims=True), sample.labels


def probmetrics(method: str, **config: Any) -> Callable[[Any, Any], float]:
    """Return the temperature of a probmetrics calibrator on logits."""

    def run(logits: Any, labels: Any) -> float:
        from probmetrics.calibrators import get_calibrator
        from probmetrics.distributions import CategoricalLogits

        fitted = get_calibrator(method, **config).fit_torch(CategoricalLogits(logits), labels)
        for name in ("invtemp_", "inv_temp_"):
            if hasattr(fitted, name):
                return 1.0 / float(getattr(fitted, name))
        return float(fitted.temp_)

    return run


def sklearn(logits: np.ndarray, labels: np.ndarray) -> float:
    """Run the internals of `CalibratedClassifierCV(method="temperature")`."""
    from sklearn.calibration import _TemperatureScaling

    return 1.0 / float(_TemperatureScaling().fit(logits, labels).beta_)


def netcal(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the inverse of netcal's `temperature`, which multiplies the logits."""
    from netcal.scaling import TemperatureScaling

    fitted = TemperatureScaling().fit(probabilities, labels, random_state=0, tensorboard=False)
    return 1.0 / float(np.squeeze(fitted.temperature))


def notebook(**options: Any) -> Callable[[Any, Any], float]:
    """Run the ten lines that are copied from notebook to notebook (Guo et al. 2017)."""

    def run(logits: Any, labels: Any) -> float:
        import torch

        temperature = torch.nn.Parameter(torch.ones(1) * 1.5)
        optimizer = torch.optim.LBFGS([temperature], **options)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(logits / temperature, labels)
            loss.backward()
            return loss

        optimizer.step(closure)
        return float(temperature.item())

    return run


def temperature_rivals() -> list[Rival]:
    """Return all competitors that fit a temperature to logits."""
    return [
        Rival("probmetrics bisection", as_tensors, probmetrics("temp-scaling")),
        Rival("probmetrics bisection f64", as_float64_tensors, probmetrics("temp-scaling")),
        Rival("probmetrics lbfgs", as_tensors, probmetrics("temp-scaling", ts_opt="lbfgs")),
        Rival(
            "probmetrics lbfgs line search",
            as_tensors,
            probmetrics("temp-scaling", ts_opt="lbfgs_line_search"),
        ),
        Rival("probmetrics guo-ts", as_tensors, probmetrics("guo-ts")),
        Rival("probmetrics autogluon-ts", as_tensors, probmetrics("autogluon-ts")),
        Rival("probmetrics autogluon-inv-ts", as_tensors, probmetrics("autogluon-inv-ts")),
        Rival("probmetrics torchunc-ts", as_tensors, probmetrics("torchunc-ts")),
        Rival("probmetrics torchcal-ts", as_tensors, probmetrics("torchcal-ts")),
        Rival("scikit-learn", as_is, sklearn),
        Rival("scikit-learn f64", as_float64, sklearn),
        Rival("netcal", as_probabilities, netcal),
        Rival("netcal f64", as_float64_probabilities, netcal),
        Rival("notebook LBFGS lr 0.01 x 50", as_tensors, notebook(lr=0.01, max_iter=50), True),
        Rival(
            "notebook LBFGS strong Wolfe",
            as_tensors,
            notebook(**STRONG_WOLFE),
            recipe=True,
        ),
    ]


def torchmetrics_ece(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the ECE of torchmetrics."""
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    p, y = torch.from_numpy(probabilities), torch.from_numpy(labels)
    return float(multiclass_calibration_error(p, y, num_classes=p.shape[1]))


def torchmetrics_ece_unchecked(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the ECE of torchmetrics without its checks."""
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    p, y = torch.from_numpy(probabilities), torch.from_numpy(labels)
    return float(multiclass_calibration_error(p, y, num_classes=p.shape[1], validate_args=False))


def netcal_ece(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the ECE of netcal."""
    from netcal.metrics import ECE

    return float(ECE(bins=15).measure(probabilities, labels))


def probmetrics_ece(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the ECE of probmetrics."""
    import torch
    from probmetrics.metrics import CalibrationError

    metric = CalibrationError(n_bins=15)
    found = metric.compute_all_from_labels_probs(
        torch.from_numpy(labels), torch.from_numpy(probabilities)
    )
    return float(found["ece-15"])


def relplot_smooth_ece(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the smooth ECE of relplot."""
    import relplot

    correct = (probabilities.argmax(1) == labels).astype(np.float64)
    return float(relplot.smECE(probabilities.max(1).astype(np.float64), correct))


def ece_rivals() -> list[Metric]:
    """Return all competitors that compute the equal-width top-label ECE, and a smooth variant."""
    return [
        Metric("torchmetrics", torchmetrics_ece),
        Metric("torchmetrics, no validation", torchmetrics_ece_unchecked),
        Metric("netcal", netcal_ece),
        Metric("probmetrics", probmetrics_ece),
        Metric("relplot smECE", relplot_smooth_ece, comparable=False),
    ]
