"""Images that are no clothes, to see whether a network is less sure of them."""

from __future__ import annotations

import numpy as np
from fashion_mnist import Images
from sklearn.datasets import load_digits

NOISE_IMAGES = 2000


def digits() -> Images:
    """The 1,797 handwritten digits that scikit-learn carries, 8 x 8 made 24 x 24 in a black frame.

    Reference: Alpaydin and Kaynak, Optical recognition of handwritten digits, 1998.
    """
    found = load_digits()
    grey = np.rint(found.images * (255 / 16)).astype(np.uint8)
    large = grey.repeat(3, axis=1).repeat(3, axis=2)
    return Images(np.pad(large, ((0, 0), (2, 2), (2, 2))), found.target.astype(np.int64))


def noise() -> Images:
    """Pixels drawn evenly from 0 to 255."""
    pixels = np.random.default_rng(0).integers(256, size=(NOISE_IMAGES, 28, 28), dtype=np.uint8)
    return Images(pixels, np.zeros(NOISE_IMAGES, np.int64))
