"""Reference values in float64 from independent code that does not use `calibrators`."""

from collections.abc import Iterator

import numpy as np
from scipy.optimize import minimize_scalar

BLOCK_ELEMENTS = 4_000_000


def _blocks(n: int, k: int) -> Iterator[slice]:
    step = max(1, BLOCK_ELEMENTS // k)
    for start in range(0, n, step):
        yield slice(start, start + step)


def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """Return the mean negative log-likelihood of `softmax(logits / temperature)`."""
    total = 0.0
    for rows in _blocks(*logits.shape):
        z = logits[rows].astype(np.float64)
        z -= z.max(1, keepdims=True)
        z /= temperature
        at_label = z[np.arange(len(z)), labels[rows]]
        np.exp(z, out=z)
        total += float((np.log(z.sum(1)) - at_label).sum())
    return total / len(logits)


def best_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Minimise the mean NLL by a bounded Brent search, after a coarse one on 10 % of the rows."""
    few = slice(None, None, max(1, len(logits) // 10_000))
    coarse = _minimise(logits[few], labels[few], centre=0.0, width=8.0, tolerance=1e-4)
    return float(np.exp(_minimise(logits, labels, coarse, width=0.3, tolerance=1e-11)))


def _minimise(
    logits: np.ndarray, labels: np.ndarray, centre: float, width: float, tolerance: float
) -> float:
    found = minimize_scalar(
        lambda log_t: nll(logits, labels, float(np.exp(log_t))),
        bounds=(centre - width, centre + width),
        method="bounded",
        options={"xatol": tolerance},
    )
    if not found.success or abs(abs(found.x - centre) - width) < 1e-3:
        raise RuntimeError(f"the reference solver did not converge: {found.message}")
    return float(found.x)


def confidences(logits: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """Return the largest softmax probability of every row at its own temperature."""
    out = np.empty(len(logits))
    for rows in _blocks(*logits.shape):
        z = logits[rows].astype(np.float64)
        z -= z.max(1, keepdims=True)
        z /= np.asarray(temperatures, np.float64)[rows, None]
        out[rows] = 1.0 / np.exp(z).sum(1)
    return out


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    """Return the equal-width ECE over bins (i/M, (i+1)/M]; a confidence of 0 is in the first."""
    confidence = probabilities.max(1).astype(np.float64)
    correct = probabilities.argmax(1) == labels
    edges = np.arange(1, bins) / bins
    which = np.searchsorted(edges, confidence, side="left")
    gaps = [abs(float((confidence - correct)[which == b].sum())) for b in range(bins)]
    return sum(gaps) / len(labels)


def soft_calibration_error(
    confidence: np.ndarray,
    correct: np.ndarray,
    bins: int = 15,
    sharpness: float = 200.0,
    delta: float = 1e-3,
) -> float:
    """Return SMART's binned objective: `sum_b sqrt(R_b^2 + (delta W_b)^2) / N`."""
    centres = (np.arange(bins) + 0.5) / bins
    weights = np.exp(-sharpness * (confidence[:, None] - centres) ** 2)
    weights /= weights.sum(1, keepdims=True)
    residual = weights.T @ (correct - confidence)
    return float(np.sqrt(residual**2 + (delta * weights.sum(0)) ** 2).sum() / len(confidence))
