"""Synthetic logits with a known truth: overconfident by a factor, otherwise calibrated."""

from dataclasses import dataclass

import numpy as np

TRUE_TEMPERATURE = 1.7
BLOCK_ELEMENTS = 4_000_000


@dataclass(frozen=True)
class Sample:
    """Float32 logits (n, k) and int64 labels (n,)."""

    logits: np.ndarray
    labels: np.ndarray

    @property
    def size(self) -> str:
        n, k = self.logits.shape
        return f"{n:,} x {k:,}"


def draw(n: int, k: int, seed: int = 0, margin_effect: float = 0.0) -> Sample:
    """Logits `T (noise + class signal)`, labels drawn from `softmax(logits / T)`.

    Every row has one class that the network means, by a signal of varying strength around log k
    (rows are easy and hard), and two look-alikes with a share of that signal. Top-1 accuracy is
    about 0.75 whatever k is, as on the usual image sets.

    With `margin_effect` e the labels come from `softmax(logits / (T (1 + e exp(-margin / 2))))`:
    close calls are more overconfident than clear ones, which one temperature cannot repair.
    """
    rng = np.random.default_rng(seed)
    logits = np.empty((n, k), np.float32)
    labels = np.empty(n, np.int64)
    tiny = np.finfo(np.float32).tiny  # an exponential draw of exactly 0 has no logarithm
    step = max(1, BLOCK_ELEMENTS // k)
    for start in range(0, n, step):
        block = logits[start : start + step]
        rng.standard_normal(block.shape, np.float32, out=block)
        rows = np.arange(len(block))
        strength = np.log(k) + rng.normal(3.0, 2.0, len(block))
        for share in (1.0, 0.6, 0.4):
            block[rows, rng.integers(0, k, len(block))] += (share * strength).astype(np.float32)
        gumbel = -np.log(rng.standard_exponential(block.shape, np.float32) + tiny)
        labels[start : start + step] = (block / _excess(block, margin_effect) + gumbel).argmax(1)
        block *= TRUE_TEMPERATURE
    return Sample(logits, labels)


def _excess(block: np.ndarray, margin_effect: float) -> np.ndarray | float:
    if margin_effect == 0.0:
        return 1.0
    second, top = np.partition(block, -2, axis=1)[:, -2:].T
    return (1.0 + margin_effect * np.exp((second - top) / 2))[:, None]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Float32 probabilities, block by block so that no large temporary is alive."""
    out = np.empty_like(logits, dtype=np.float32)
    step = max(1, BLOCK_ELEMENTS // logits.shape[1])
    for start in range(0, len(logits), step):
        block = logits[start : start + step].astype(np.float64)
        block -= block.max(1, keepdims=True)
        np.exp(block, out=block)
        block /= block.sum(1, keepdims=True)
        out[start : start + step] = block
    return out
