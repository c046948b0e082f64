"""The bundled sample: logits of a small convolutional network on Fashion-MNIST (MIT).

It holds the first 4,000 rows of ``examples/data/fashion_ce__cal.npz`` and of
``fashion_ce__test.npz``, in half precision. To recreate it from the root of the repository::

    arrays = {}
    for part in ("cal", "test"):
        with np.load(f"examples/data/fashion_ce__{part}.npz") as file:
            arrays[f"{part}_logits"] = file["logits"][:4000].astype(np.float16)
            arrays[f"{part}_labels"] = file["labels"][:4000].astype(np.uint8)
    np.savez_compressed("calibrators/sample.npz", **arrays)
"""

from __future__ import annotations

from importlib import resources
from typing import Literal

import numpy as np

from calibrators.data import CalibrationSet

FILE = "sample.npz"
TITLE = "Fashion-MNIST, a small CNN"


def sample(part: Literal["cal", "test"]) -> CalibrationSet:
    """Return a part of the sample: "cal" to fit on, "test" to judge on.

    >>> sample("cal").logits.shape
    (4000, 10)
    """
    with (resources.files("calibrators") / FILE).open("rb") as file, np.load(file) as stored:
        return CalibrationSet(stored[f"{part}_logits"], stored[f"{part}_labels"])
