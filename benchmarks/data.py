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
        """Rows and classes as text."""
        n, k = self.logits.shape
        return f"{n:,} x {k:,}"


def draw(n: int, k: int, seed: int = 0) -> Sample:
    """Draw logits `T (noise + class signal)`, and labels from `softmax(logits / T)`.

    Every row has one intended class, with a signal of varying strength around log k (some rows are
    easy, some hard), and two similar classes with a share of that signal. Top-1 accuracy is about
    0.75 regardless of k, as on the usual image sets.
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
        labels[start : start + step] = (block + gumbel).argmax(1)
        block *= TRUE_TEMPERATURE
    return Sample(logits, labels)


def confidently_wrong(n: int, k: int, seed: int = 0) -> Sample:
    """Draw logits like `draw`, but with an accuracy from 0.9 to 0.4 depending on the margin.

    No single temperature can correct that, so every step of a SMART fit has something to learn.
    """
    logits = draw(n, k, seed).logits
    second, top = np.partition(logits, -2, axis=1)[:, -2:].T
    rank = (top - second).argsort().argsort() / n
    rng = np.random.default_rng(seed + 1)
    right = rng.random(n) < 0.9 - 0.5 * rank
    return Sample(logits, np.where(right, logits.argmax(1), rng.integers(0, k, n)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return float32 probabilities, block by block to avoid large temporaries."""
    out = np.empty_like(logits, dtype=np.float32)
    step = max(1, BLOCK_ELEMENTS // logits.shape[1])
    for start in range(0, len(logits), step):
        block = logits[start : start + step].astype(np.float64)
        block -= block.max(1, keepdims=True)
        np.exp(block, out=block)
        block /= block.sum(1, keepdims=True)
        out[start : start + step] = block
    return out
