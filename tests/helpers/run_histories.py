"""Histories of simulated training runs, in the service's format."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from calibrators.adafocal import AdaFocalState, BinStatistics

CLASSES = 10


def observed(step: int, rows: int = 400, seed: int = 0) -> BinStatistics:
    """Return a pass: overconfident at first, underconfident after step 10, then calibrated."""
    rng = np.random.default_rng((seed, step))
    logits = rng.normal(size=(rows, CLASSES)) * 1.2
    logits[:, 0] += 2.5
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    sharpness = 1 + 0.7 * np.exp(-step / 6) - 0.4 * (step > 10) + 0.5 * (step > 30)
    return BinStatistics.from_logits(sharpness * logits, labels)


def history(
    steps: int,
    *,
    bins: int = 15,
    rate: float = 2.0,
    has_gammas: bool = True,
    partial: tuple[int, ...] = (),
    unverified: tuple[int, ...] = (),
    resumed_after: int | None = None,
) -> list[dict[str, Any]]:
    """Return the steps of a run, oldest first."""
    state = AdaFocalState.initial(bins=bins, rate=rate)
    found = []
    for step in range(1, steps + 1):
        statistics = observed(step)
        table = statistics.equal_mass(bins)
        before, state = state, state.update(statistics)
        is_partial = step in partial
        found.append(
            {
                "step": step,
                "session": "again" if resumed_after and step > resumed_after else "first",
                "decided_at": "2030-01-01T10:00:00Z",
                "ranks": [0, 2] if is_partial else [0],
                "world_size": 4 if is_partial else 1,
                "partial": is_partial,
                "verified": step not in unverified if has_gammas else None,
                "metrics": asdict(statistics.summary()),
                "bins": {
                    "edges": [*table.lower.tolist(), 1.0],
                    "count": table.count.tolist(),
                    "confidence": table.mean_confidence.tolist(),
                    "accuracy": table.accuracy.tolist(),
                },
                "reliability": None,
                "gammas": state.gammas.tolist() if has_gammas else None,
                "switched": state.switches(before) if has_gammas else [],
            }
        )
    return found
