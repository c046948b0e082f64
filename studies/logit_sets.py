"""Real logits in a folder of .npz files, and the pairs of fit and test rows that the studies use.

Splits s = 0..4 are ``np.random.RandomState(s).permutation(n)``: the first half is for fitting, the
second for testing. A set ``name__test`` is fitted on ``name__cal`` instead, and ``name_noise`` on
all of ``name``, once. Sets ending in ``_noise`` or with ``__shift_`` are shifted: they are shown,
but excluded from means.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from calibrators import CalibrationSet

SPLITS = range(5)


def set_names(folder: Path) -> list[str]:
    """Return the names of the test sets in a folder."""
    names = sorted(path.stem for path in folder.glob("*.npz"))
    return [name for name in names if not name.endswith("__cal")]


def is_shifted(name: str) -> bool:
    """Return True if a set's rows and its fit rows differ in distribution."""
    return name.endswith("_noise") or "__shift_" in name


def split_numbers(folder: Path, name: str) -> range:
    """Return the numbers of a set's splits: just one if it is fitted on another file."""
    return SPLITS if _fit_file(folder, name) is None else range(1)


def split(folder: Path, name: str, number: int) -> tuple[CalibrationSet, CalibrationSet]:
    """Return the (fit, test) rows of one split."""
    data = _load(folder / f"{name}.npz")
    fit_file = _fit_file(folder, name)
    if fit_file is not None:
        return _load(fit_file), data
    order = np.random.RandomState(number).permutation(data.n)
    half = data.n // 2
    return data.take(order[:half]), data.take(order[half:])


def fifth(folder: Path, name: str, number: int) -> tuple[CalibrationSet, CalibrationSet]:
    """Return a fifth of a set for fitting and the rest for testing, shifted or not."""
    data = _load(folder / f"{name}.npz")
    order = np.random.RandomState(number).permutation(data.n)
    return data.take(order[: data.n // 5]), data.take(order[data.n // 5 :])


def splits(folder: Path, name: str) -> Iterator[tuple[CalibrationSet, CalibrationSet]]:
    """Return all (fit, test) pairs of a set."""
    return (split(folder, name, number) for number in split_numbers(folder, name))


def _fit_file(folder: Path, name: str) -> Path | None:
    fit_name = name.split("__")[0] + "__cal" if "__" in name else name.removesuffix("_noise")
    path = folder / f"{fit_name}.npz"
    return path if fit_name != name and path.exists() else None


@lru_cache(maxsize=2)
def _load(path: Path) -> CalibrationSet:
    with np.load(path, allow_pickle=False) as file:
        return CalibrationSet(file["logits"], file["labels"])
