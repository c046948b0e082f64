"""The timed calls into `calibrators`, as a user writes them, including input checks.

Imports are inside the functions, so that the competitors can be measured without us and a broken
import appears as a row with its error.
"""

from typing import Any

import numpy as np

from benchmarks.data import Sample

NAME = "calibrd"


def set_threads(threads: int) -> bool:
    """Set the number of threads of `calibrators`; return whether that was possible."""
    try:
        from calibrators import set_threads as limit
    except ImportError:
        return False
    limit(threads)
    return True


def fit_temperature(sample: Sample) -> Any:
    """Fit temperature scaling."""
    from calibrators import CalibrationSet
    from calibrators.methods.temperature import TemperatureScaling

    return TemperatureScaling().fit(CalibrationSet(sample.logits, sample.labels))


def fit_smart(sample: Sample, seed: int = 0) -> Any:
    """Fit SMART."""
    from calibrators import CalibrationSet
    from calibrators.methods.smart import Smart

    return Smart(seed=seed).fit(CalibrationSet(sample.logits, sample.labels))


def fit_method(name: str, sample: Sample) -> Any:
    """Fit any method with its defaults."""
    from calibrators import CalibrationSet, all_methods

    return all_methods()[name]().fit(CalibrationSet(sample.logits, sample.labels))


def ece(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the ECE with 15 equal-width bins."""
    from calibrators.metrics import ece as measure

    return float(measure(probabilities, labels, bins=15))


def evaluate(
    probabilities: np.ndarray, labels: np.ndarray, before: np.ndarray | None = None
) -> Any:
    """Compute the whole report, with its default of 1,000 draws."""
    from calibrators import evaluate as report

    return report(probabilities, labels, before=before)


def initial_weights(seed: int, hidden: int) -> tuple[np.ndarray, np.ndarray]:
    """Return SMART's first layer for the seed: w1 (1, hidden) and b1 (hidden,)."""
    from calibrators.methods.smart import initial_weights as draw

    w1, b1 = draw(seed, 1, hidden)
    return np.asarray(w1, np.float64).reshape(1, hidden), np.asarray(b1, np.float64)
