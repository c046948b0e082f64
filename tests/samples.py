"""Synthetic sets with known truth, and the bundled real sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrators import CalibrationSet

EXAMPLES = Path(__file__).parent.parent / "examples" / "data"


def draw(
    n: int, k: int, *, temperature: float = 2.0, seed: int = 0, dtype: type = np.float32
) -> CalibrationSet:
    """Logits whose labels were drawn from softmax(logits / temperature): the truth is known."""
    rng = np.random.default_rng(seed)
    true_logits = rng.normal(size=(n, k)) * 1.5
    true_logits[np.arange(n), rng.integers(k, size=n)] += rng.gamma(2.0, 1.5, size=n)
    labels = (true_logits + rng.gumbel(size=(n, k))).argmax(axis=1)
    return CalibrationSet((true_logits * temperature).astype(dtype), labels)


def sample(name: str) -> CalibrationSet:
    """One of the bundled Fashion-MNIST sets: cal or test."""
    with np.load(EXAMPLES / f"fashion_ce__{name}.npz", allow_pickle=False) as file:
        return CalibrationSet(file["logits"], file["labels"])
