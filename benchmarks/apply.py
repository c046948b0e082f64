"""Topic 4: apply a fitted map, compared with `torch.softmax(z / T, 1)` on the same threads."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks import data, ours
from benchmarks.output import Row, Target, Topic
from benchmarks.timing import Contender, Measured, alternate, milliseconds, no_hang, ratio

OUR_SHARE = 0.8
TORCH = "torch.softmax(z / T, 1)"
TS = f"{ours.NAME} temperature"
SMART = f"{ours.NAME} smart"


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a table for each size and number of threads."""
    import torch

    before = torch.get_num_threads()
    for n, k in sizes:
        sample = data.draw(n, k)
        maps = {TS: _fitted(ours.fit_temperature, sample), SMART: _fitted(ours.fit_smart, sample)}
        for threads in sorted({1, os.cpu_count() or 1}):
            torch.set_num_threads(threads)
            ours.set_threads(threads)
            yield compare(sample, maps, threads, rounds, budget)
    torch.set_num_threads(before)


def _fitted(fit: Callable[[data.Sample], Any], sample: data.Sample) -> Any:
    try:
        with no_hang():
            return fit(sample)
    except Exception as error:  # noqa: BLE001 - shown as a row, like the failure of a rival
        return error


def compare(
    sample: data.Sample, maps: dict[str, Any], threads: int, rounds: int, budget: float
) -> Topic:
    """Time our maps against torch's softmax."""
    import torch

    z = torch.from_numpy(sample.logits)
    temperature = float(getattr(maps[TS], "temperature", data.TRUE_TEMPERATURE))
    contenders = [Contender(name, lambda m=m: _apply(m, sample.logits)) for name, m in maps.items()]
    contenders.append(Contender(TORCH, lambda: torch.softmax(z / temperature, 1)))
    measured = alternate(contenders, rounds, budget)
    exact = torch.softmax(z.double() / temperature, 1).numpy()
    rows = [_row(found, measured[TORCH], exact) for found in measured.values()]
    share = ratio(measured[TS], measured[TORCH])
    return Topic(
        f"apply, {sample.size} float32, {threads} thread{'s' if threads > 1 else ''}",
        rows,
        [Target("our share of torch (temperature map)", share, OUR_SHARE)],
    )


def _apply(fitted: Any, logits: np.ndarray) -> np.ndarray:
    if isinstance(fitted, Exception):
        raise fitted
    return fitted.apply(logits)


def _row(found: Measured, torch_time: Measured, exact: np.ndarray) -> Row:
    error = None
    if found.error is None and found.name != SMART:
        error = float(np.abs(np.asarray(found.value) - exact).max())
    return {
        "method": found.name,
        "ms": milliseconds(found.median),
        "fastest": milliseconds(found.fastest),
        "runs": found.runs,
        "it / torch": ratio(found, torch_time),
        "largest error": error,
        "failure": found.error,
    }
