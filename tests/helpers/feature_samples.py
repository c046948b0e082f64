"""Rows with features and the head of their logits; clipping the features restores the truth."""

from __future__ import annotations

from typing import Any

import numpy as np

CLASSES, WIDTH = 4, 6


def rows_with_features(n: int = 1500, *, seed: int = 0) -> dict[str, Any]:
    """Return logits, labels, features and head, by the names of the SDK's arguments."""
    rng = np.random.default_rng(seed)
    features = rng.exponential(size=(n, WIDTH)).astype(np.float32)
    weight = np.random.default_rng(99).normal(size=(CLASSES, WIDTH)).astype(np.float32) * 2
    bias = np.arange(CLASSES, dtype=np.float32)
    truth = np.minimum(features, 1.2) @ weight.T + bias
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return {
        "logits": features @ weight.T + bias,
        "labels": labels,
        "features": features,
        "head": (weight, bias),
    }


def arrays_with_features(n: int = 1500, *, seed: int = 0) -> dict[str, Any]:
    """Return the same rows as the arrays of a file."""
    rows = rows_with_features(n, seed=seed)
    weight, bias = rows.pop("head")
    return {**rows, "head_weight": weight, "head_bias": bias}
