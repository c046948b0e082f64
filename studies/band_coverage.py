"""Coverage of the credible band of ``additive`` on synthetic truths.

Each truth is a smooth function of the log odds (a random slope, level and wave) plus a function of
the margin. The band covers a row if it contains the true probability that the predicted class is
right. The share of rows covered is computed in ten confidence bins, and averaged over truths and
then over bins.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import CalibrationSet
from calibrators.methods.additive import Additive, AdditiveMap
from calibrators.numerics.softmax import margins, softmax

Floats = NDArray[np.float64]
BINS = 10
MIN_ROWS = 20
MIN_TRUTHS = 10


class Truth(NamedTuple):
    """The shape of the true log odds: level + slope x + wave sin(x / width + phase) + margin."""

    level: float
    slope: float
    wave: float
    width: float
    phase: float
    margin: float

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Truth:
        """Draw a truth."""
        return cls(
            level=rng.normal(0, 0.3),
            slope=np.exp(rng.normal(0, 0.3)),
            wave=rng.normal(0, 0.3),
            width=rng.uniform(0.8, 2.0),
            phase=rng.uniform(0, 2 * np.pi),
            margin=rng.normal(0, 0.2),
        )

    def probability(self, logits: Floats) -> Floats:
        """Return the true probability (n,) that the largest logit's class is right."""
        p = softmax(logits).max(axis=1)
        x = np.log(p / (1 - p))
        bend = self.wave * np.sin(x / self.width + self.phase)
        log_odds = self.level + self.slope * x + bend + self.margin * np.log1p(margins(logits))
        return np.asarray(1 / (1 + np.exp(-log_odds)))


def draw_rows(rng: np.random.Generator, n: int, k: int) -> Floats:
    """Draw logits (n, k) of a model that is confident on only some rows."""
    logits = rng.normal(size=(n, k))
    logits[np.arange(n), rng.integers(k, size=n)] += rng.gamma(2.0, 1.2, size=n)
    return logits


def draw_labels(rng: np.random.Generator, logits: Floats, right: Floats) -> NDArray[np.intp]:
    """Draw labels: the predicted class with probability ``right``, else another by softmax."""
    top = logits.argmax(axis=1)
    others = logits + rng.gumbel(size=logits.shape)
    others[np.arange(len(top)), top] = -np.inf
    return np.where(rng.random(len(top)) < right, top, others.argmax(axis=1))


def coverage(n: int, truths: int, level: float, k: int = 5, seed: int = 0) -> Floats:
    """Return the coverage in each confidence bin, (truths, BINS); NaN in bins with few rows."""
    found = np.full((truths, BINS), np.nan)
    for number in range(truths):
        rng = np.random.default_rng([seed, n, number])
        truth = Truth.drawn(rng)
        logits = draw_rows(rng, n, k)
        labels = draw_labels(rng, logits, truth.probability(logits))
        fitted = Additive().fit(CalibrationSet(logits, labels))
        if not isinstance(fitted, AdditiveMap):
            continue
        test = draw_rows(rng, 5000, k)
        low, high = fitted.interval(test, level)
        right = truth.probability(test)
        covered = (low <= right) & (right <= high)
        place = np.minimum((fitted.apply(test).max(axis=1) * BINS).astype(int), BINS - 1)
        rows = np.bincount(place, minlength=BINS)
        hits = np.bincount(place, covered, minlength=BINS)
        enough = rows >= MIN_ROWS
        found[number, enough] = hits[enough] / rows[enough]
    return found


def main() -> None:
    """Print the table of docs/studies/auto.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truths", type=int, default=200)
    parser.add_argument("--level", type=float, default=0.9)
    options = parser.parse_args()
    edges = [f"from {place / BINS:.1f}" for place in range(BINS)]
    lines = [["fit rows", "mean", *edges], ["---:"] * (BINS + 2)]
    for n in (500, 2000, 10_000):
        found = coverage(n, options.truths, options.level)
        known = [column[~np.isnan(column)] for column in found.T]
        means = [float(one.mean()) if one.size >= MIN_TRUTHS else np.nan for one in known]
        cells = ["" if np.isnan(mean) else f"{mean:.2f}" for mean in means]
        lines.append([f"{n:,}", f"{np.nanmean(means):.3f}", *cells])
    sys.stdout.writelines(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
