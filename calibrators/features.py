"""Features of a sample, as input to the model's last layer, and the weights of that layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.errors import DataError
from calibrators.numerics.parallel import Floats, row_blocks

MAX_FEATURES = 16_384
MAX_HEAD = 1 << 24


@dataclass(frozen=True, eq=False)
class Head:
    """The classification head: logits are ``weight @ features + bias``.

    ``weight`` is (k, d) and ``bias`` (k,). A binary head with a single output gets a row of zeros
    for class 0, just as a single logit becomes ``[0, logit]``.

    >>> Head.of(([[1.0, 2.0]], [0.5]), classes=2).weight.tolist()
    [[0.0, 0.0], [1.0, 2.0]]
    """

    weight: Floats
    bias: Floats

    @classmethod
    def of(cls, head: Head | tuple[ArrayLike, ArrayLike | None], *, classes: int) -> Head:
        """Build a checked head from its weight and bias; the bias may be None."""
        if isinstance(head, Head):
            head = (head.weight, head.bias)
        if not isinstance(head, tuple) or len(head) != 2:
            raise DataError(
                "bad_head", f"head must be a tuple (weight, bias), got {type(head).__name__}"
            )
        weight = _wide(head[0], "the weight of the head")
        bias = None if head[1] is None else _wide(head[1], "the bias of the head")
        check_head_layout(
            weight.shape, None if bias is None else bias.shape, classes=classes, width=None
        )
        weight = np.atleast_2d(weight)
        bias = np.zeros(len(weight), weight.dtype) if bias is None else bias
        if len(weight) < classes:
            weight = np.concatenate([np.zeros_like(weight), weight])
            bias = np.concatenate([np.zeros_like(bias), bias])
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise DataError("bad_head", "the weight and bias of the head must be finite")
        return cls(_fixed(weight), _fixed(bias))

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.weight.shape[1])


@dataclass(frozen=True, eq=False)
class Features:
    """Features (n, d) in float16, float32 or float64, and the model's head if known.

    >>> Features.of(np.ones((3, 2), np.float16), rows=3, classes=5).values.dtype
    dtype('float16')
    """

    values: Floats
    head: Head | None = None

    @classmethod
    def of(
        cls,
        values: ArrayLike | Features,
        head: Head | tuple[ArrayLike, ArrayLike | None] | None = None,
        *,
        rows: int,
        classes: int,
    ) -> Features:
        """Build checked features for ``rows`` rows, with the model's head if it is passed."""
        if isinstance(values, Features):
            head = values.head if head is None else head
            values = values.values
        array = as_features(values, rows=rows)
        known = None if head is None else Head.of(head, classes=classes)
        if known is not None and known.width != array.shape[1]:
            raise DataError(
                "bad_head",
                f"the head must have a weight for each of the {array.shape[1]} features, "
                f"got {known.width}",
            )
        return cls(_fixed(array), known)

    @property
    def width(self) -> int:
        """Number of features per row."""
        return int(self.values.shape[1])

    def take(self, rows: NDArray[np.intp]) -> Features:
        """Return the features of the chosen rows."""
        return Features(_fixed(self.values[rows]), self.head)


def checked_features(
    values: ArrayLike | Features | None,
    head: Head | tuple[ArrayLike, ArrayLike | None] | None,
    *,
    rows: int,
    classes: int,
) -> Features:
    """Return the checked features of a set; raise if a head is passed without features."""
    if values is None:
        raise DataError(
            "missing_features", "head was passed without features: pass features= as well"
        )
    return Features.of(values, head, rows=rows, classes=classes)


def as_features(values: ArrayLike, *, rows: int, width: int | None = None) -> Floats:
    """Return features (n, d) as an array; raise unless they hold ``rows`` finite rows.

    ``width``, if given, is the number of features per row that a map was fitted on.
    """
    array = _as_array(values, "features")
    check_layout(array.dtype, array.shape, rows=rows)
    if width is not None:
        check_width(array.shape[1], width)
    check_finite(array)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_layout(dtype: np.dtype[Any], shape: tuple[int, ...], *, rows: int) -> None:
    """Raise if the type or shape of features is invalid."""
    if len(shape) != 2:
        raise DataError("bad_features", f"features must have shape (n, d), got {shape}")
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise DataError(
            "bad_features", f"features must be float16, float32 or float64, got {dtype}"
        )
    if shape[0] != rows:
        raise DataError(
            "features_length", f"there are {rows} rows but features for {shape[0]} rows"
        )
    if not 1 <= shape[1] <= MAX_FEATURES:
        raise DataError(
            "bad_features",
            f"a row must have 1 to {MAX_FEATURES:,} features, got {shape[1]:,}",
        )


def check_head_layout(
    weight: tuple[int, ...], bias: tuple[int, ...] | None, *, classes: int, width: int | None
) -> None:
    """Raise if the shape of a head's weight or bias does not match the classes or features."""
    rows = weight[:1] if len(weight) == 2 else (1,)
    is_single = classes == 2 and rows == (1,)
    fits_classes = is_single or rows == (classes,)
    if len(weight) not in (1, 2) or not fits_classes or bias not in (None, rows):
        single = " (or (1, d) and (1,))" if classes == 2 else ""
        raise DataError(
            "bad_head",
            f"the head must have a weight of shape ({classes}, d) and a bias of shape "
            f"({classes},) for {classes} classes{single}, "
            f"got {weight} and {'no bias' if bias is None else bias}",
        )
    if width not in (None, weight[-1]):
        raise DataError(
            "bad_head",
            f"the head must have a weight for each of the {width} features, got {weight[-1]}",
        )
    if rows[0] * weight[-1] > MAX_HEAD:
        raise DataError(
            "bad_head",
            f"the weight of the head must have at most {MAX_HEAD:,} entries, "
            f"got {rows[0]:,} x {weight[-1]:,}",
        )


def check_head_dtype(dtype: np.dtype[Any], name: str) -> None:
    """Raise unless the weight or bias of a head has a numeric type."""
    if dtype.kind not in "fiu":
        raise DataError("bad_head", f"{name} must be numbers, got {dtype}")


def check_width(width: int, expected: int) -> None:
    """Raise unless ``width`` is the number of features per row that a map was fitted on."""
    if width != expected:
        raise DataError(
            "wrong_features", f"this map was fitted on {expected} features per row, got {width}"
        )


def check_finite(array: Floats, first: int = 0) -> None:
    """Raise if a row of features is not finite; ``first`` is the index of the array's first row."""
    broken, at = 0, 0
    for rows in row_blocks(*array.shape):
        wrong = ~np.isfinite(array[rows]).all(axis=1)
        if wrong.any():
            at = at if broken else rows.start + int(wrong.argmax())
            broken += int(np.count_nonzero(wrong))
    if broken:
        raise DataError(
            "features_not_finite", "features must be finite", rows=broken, first=first + at
        )


def _wide(values: ArrayLike, name: str) -> Floats:
    """Return the weight or bias of a head as float32 or float64."""
    array = _as_array(values, name)
    check_head_dtype(array.dtype, name)
    is_single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return array.astype(np.float32 if is_single else np.float64)


def _as_array(values: ArrayLike, name: str) -> NDArray[Any]:
    try:
        array = np.asanyarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError("not_an_array", f"{name} cannot be read as an array: {error}") from error
    if np.ma.is_masked(array):
        raise DataError("masked", f"{name} must not be masked: drop the masked rows first")
    return np.asarray(array)


def _fixed(array: Floats) -> Floats:
    view = array.view()
    view.flags.writeable = False
    return view
