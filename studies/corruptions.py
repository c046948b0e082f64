"""Corrupted images: eight kinds modelled on ImageNet-C, with severities from 1 to 5.

Hendrycks and Dietterich, Benchmarking neural network robustness to common corruptions and
perturbations, ICLR 2019. The strengths are ours, for greyscale images of 28 x 28 pixels.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from fashion_mnist import Images
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

Pixels = NDArray[np.float64]
Rng = np.random.Generator


def _gaussian_noise(x: Pixels, severity: int, rng: Rng) -> Pixels:
    return x + rng.normal(size=x.shape) * 0.06 * severity


def _shot_noise(x: Pixels, severity: int, rng: Rng) -> Pixels:
    photons = (60, 25, 12, 8, 5)[severity - 1]
    return rng.poisson(x * photons) / photons


def _impulse_noise(x: Pixels, severity: int, rng: Rng) -> Pixels:
    drawn, value = rng.random(x.shape), rng.integers(2, size=x.shape)
    return np.where(drawn < 0.03 * severity, value, x)


def _blur(x: Pixels, severity: int, rng: Rng) -> Pixels:
    return np.asarray(ndimage.gaussian_filter(x, sigma=(0, 0.3 * severity, 0.3 * severity)))


def _brightness(x: Pixels, severity: int, rng: Rng) -> Pixels:
    return x + 0.08 * severity


def _contrast(x: Pixels, severity: int, rng: Rng) -> Pixels:
    means = x.mean(axis=(1, 2), keepdims=True)
    return means + (x - means) * (1 - 0.16 * severity)


def _pixelate(x: Pixels, severity: int, rng: Rng) -> Pixels:
    size = (22, 18, 14, 11, 9)[severity - 1]
    small = ndimage.zoom(x, (1, size / 28, size / 28), order=1)
    place = np.minimum(np.arange(28) * size // 28, small.shape[1] - 1)
    return np.asarray(small[:, place][:, :, place])


def _jpeg(x: Pixels, severity: int, rng: Rng) -> Pixels:
    quality = (40, 20, 10, 5, 2)[severity - 1]
    decoded = []
    for one in np.rint(255 * x).astype(np.uint8):
        buffer = io.BytesIO()
        Image.fromarray(one).save(buffer, "JPEG", quality=quality)
        decoded.append(np.asarray(Image.open(buffer)))
    return np.stack(decoded) / 255


CORRUPTIONS: dict[str, Callable[[Pixels, int, Rng], Pixels]] = {
    "gaussian noise": _gaussian_noise,
    "shot noise": _shot_noise,
    "impulse noise": _impulse_noise,
    "blur": _blur,
    "brightness": _brightness,
    "contrast": _contrast,
    "pixelate": _pixelate,
    "jpeg": _jpeg,
}


def corrupted(images: Images, name: str, severity: int) -> Images:
    """Return the images with one kind of corruption, identical on each call."""
    rng = np.random.default_rng([severity, list(CORRUPTIONS).index(name)])
    found = CORRUPTIONS[name](images.pixels / 255, severity, rng)
    return Images(np.rint(255 * found.clip(0, 1)).astype(np.uint8), images.labels)
