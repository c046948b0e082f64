"""Out-of-distribution images, to see whether a network is less confident on them."""

from __future__ import annotations

import numpy as np
from fashion_mnist import Images
from sklearn.datasets import load_digits

NOISE_IMAGES = 2000


def digits() -> Images:
    """Return the 1,797 handwritten digits of scikit-learn, enlarged to 24 x 24 and padded.

    Reference: Alpaydin and Kaynak, Optical recognition of handwritten digits, 1998.
    """
    data = load_digits()
    grey = np.rint(data.images * (255 / 16)).astype(np.uint8)
    large = grey.repeat(3, axis=1).repeat(3, axis=2)
    return Images(np.pad(large, ((0, 0), (2, 2), (2, 2))), data.target.astype(np.int64))


def noise() -> Images:
    """Return images of pixels drawn uniformly from 0 to 255."""
    pixels = np.random.default_rng(0).integers(256, size=(NOISE_IMAGES, 28, 28), dtype=np.uint8)
    return Images(pixels, np.zeros(NOISE_IMAGES, np.int64))
