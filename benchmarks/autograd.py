"""SMART in its most obvious form: autograd through the softmax (the competitor in topic 3)."""

from typing import Any

import numpy as np

BINS = 15
SHARPNESS = 200.0
DELTA = 1e-3
LEARNING_RATE = 5e-3
T_MIN = 0.1


def through_softmax(z: Any, temperature: Any) -> Any:
    """Compute the confidence directly: all probabilities, then the largest."""
    import torch

    return torch.softmax(z / temperature[:, None], 1).max(1).values


def through_logsumexp(z: Any, temperature: Any) -> Any:
    """Compute only the confidence, from logits whose maximum is 0."""
    import torch

    return torch.exp(-torch.logsumexp(z / temperature[:, None], 1))


def fit(
    logits: np.ndarray,
    labels: np.ndarray,
    base_temperature: float,
    first_layer: tuple[np.ndarray, np.ndarray],
    steps: int = 300,
    lean: bool = False,
) -> np.ndarray:
    """Return the temperatures after `steps` full-batch Adam steps on the soft-binned ECE.

    Everything is computed in the type of the logits. The temperature of plain TS is given, so its
    cost is not part of the measured time.
    """
    import torch

    z = torch.from_numpy(logits) / base_temperature
    top, second = z.topk(2, 1).values.unbind(1)
    margin = top - second
    margin = ((margin - margin.mean()) / margin.std(correction=0))[:, None]
    correct = (z.argmax(1) == torch.from_numpy(labels)).to(z.dtype)
    if lean:
        z = z - top[:, None]
    confidence_of = through_logsumexp if lean else through_softmax
    parameters = _parameters(*first_layer, z.dtype)
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        _soft_error(confidence_of(z, _temperature(margin, *parameters)), correct).backward()
        optimizer.step()
    with torch.no_grad():
        return _temperature(margin, *parameters).double().numpy() * base_temperature


def _parameters(w1: np.ndarray, b1: np.ndarray, dtype: Any) -> list[Any]:
    import torch

    w2 = np.zeros((w1.shape[1], 1))
    b2 = np.array([np.log(np.expm1(1.0 - T_MIN))])
    return [torch.nn.Parameter(torch.tensor(v, dtype=dtype)) for v in (w1, b1, w2, b2)]


def _temperature(margin: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    import torch

    hidden = torch.relu(margin @ w1 + b1)
    return torch.nn.functional.softplus((hidden @ w2 + b2)[:, 0]) + T_MIN


def _soft_error(confidence: Any, correct: Any) -> Any:
    import torch

    centres = (torch.arange(BINS, dtype=confidence.dtype) + 0.5) / BINS
    weights = torch.softmax(-SHARPNESS * (confidence[:, None] - centres) ** 2, 1)
    residual = weights.T @ (correct - confidence)
    return torch.sqrt(residual**2 + (DELTA * weights.sum(0)) ** 2).sum() / len(confidence)
