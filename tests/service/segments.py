"""Rows of two segments, of which a model is too sure by different factors."""

from __future__ import annotations

import numpy as np
from live_service import sample

NAMES = np.array(["app", "web"])


def rows_of_segments(rows: int = 2400, seed: int = 5) -> dict[str, np.ndarray]:
    """Logits, labels and groups; those of ``app`` are three times as large as those of ``web``."""
    logits, labels = sample(rows, seed=seed, scale=1.0)
    groups = NAMES[np.arange(rows) % 2]
    logits[groups == "app"] *= 3
    return {"logits": logits, "labels": labels, "groups": groups}
