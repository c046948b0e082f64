"""Convert array-like input to plain arrays; raise a specific error if it is invalid."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.errors import DataError
from calibrators.numerics.parallel import Floats, Scratch, map_blocks, oriented

Labels = NDArray[np.int64]

PLAIN = (np.dtype(np.float32), np.dtype(np.float64))


def as_floats(values: ArrayLike, name: str) -> Floats:
    """Return ``values`` as an (n, k) array of float32 or float64; (n,) becomes (n, 1)."""
    if type(values) is np.ndarray and values.ndim == 2 and values.size and values.dtype in PLAIN:
        return values
    try:
        array = np.asanyarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError("not_an_array", f"{name} cannot be read as an array: {error}") from error
    _refuse_masked(array, name)
    if array.ndim == 1:
        array = array[:, np.newaxis]
    if array.ndim != 2:
        raise DataError(
            "bad_shape", f"{name} must have shape (n, k), (n, 1) or (n,), got {array.shape}"
        )
    if array.shape[0] == 0:
        raise DataError("empty", f"{name} must have at least one row, got shape {array.shape}")
    if array.shape[1] == 0:
        raise DataError("too_few_classes", f"{name} must have at least 2 classes, got none")
    if array.dtype.kind not in "fiu":
        raise DataError("bad_type", f"{name} must be float32 or float64, got {array.dtype}")
    if array.dtype == np.float16:
        return array.astype(np.float32)
    native = array.dtype.newbyteorder("=")
    dtype = native if native in (np.float32, np.float64) else np.float64
    return np.asarray(array, dtype=dtype)


def _refuse_masked(array: NDArray[Any], name: str) -> None:
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise DataError("masked", f"{name} must not be masked: drop the masked rows first")


def as_labels(labels: ArrayLike, *, rows: int, classes: int) -> Labels:
    """Return labels as class indices (n,); raise unless every row has a valid label."""
    try:
        array = np.asanyarray(labels)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError("not_an_array", f"labels cannot be read as an array: {error}") from error
    _refuse_masked(array, "labels")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            "bad_label_shape",
            f"labels must have shape (n,), got {array.shape}; "
            "for one-hot rows, pass argmax(axis=1)",
        )
    if len(array) != rows:
        raise DataError("length_mismatch", f"logits have {rows} rows but labels have {len(array)}")
    if array.dtype.kind not in "iub":
        raise DataError(
            "labels_not_integers",
            f"labels must be integers (class indices 0..{classes - 1}), got {array.dtype}"
            f"{_remedy(array)}",
        )
    rule = f"labels must lie in 0..{classes - 1}"
    outside = (array < 0) | (array >= classes)
    if outside.any():
        least, most = int(array.min()), int(array.max())
        rule += f", got {least} to {most}"
        if (least, most) == (1, classes):
            rule += " (labels start at 1: subtract 1)"
        elif classes == 2 and (array[outside] == -1).all():
            rule += " (for labels -1 and 1, pass (labels > 0).astype(int))"
    reject_rows(outside, "label_out_of_range", rule)
    return array.astype(np.int64)


def _remedy(labels: NDArray[Any]) -> str:
    """Return advice on converting labels to integers; empty if no conversion is obvious."""
    if labels.dtype.kind in "UOST":
        return ": for class names, pass np.searchsorted(model.classes_, labels)"
    if labels.dtype.kind == "f" and (labels == np.rint(labels)).all():
        return ": pass labels.astype(int)"
    return ""


def as_hits(correct: ArrayLike, name: str, scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Return ``correct`` as booleans; raise unless it and ``scores`` have shape (n,)."""
    hits: NDArray[np.generic] = np.asarray(correct)
    if scores.ndim != 1 or hits.shape != scores.shape:
        raise DataError(
            "bad_shape",
            f"{name} and correct must have the same shape (n,), "
            f"got {scores.shape} and {hits.shape}",
        )
    if hits.dtype != np.bool_:
        reject_rows(~np.isin(hits, (0, 1)), "bad_correct", "correct must be True or False")
    return hits.astype(np.bool_)


def reject_rows(broken: NDArray[np.bool_], code: str, rule: str) -> None:
    """If any rows are invalid, raise a DataError with their count and the index of the first."""
    if broken.any():
        count, first = int(np.count_nonzero(broken)), int(np.argmax(broken))
        raise DataError(code, rule, rows=count, first=first)


def row_maxima(logits: Floats) -> Floats:
    """Return the largest value of every row (n,); NaN for rows that contain NaN."""
    out = np.empty(len(logits), dtype=logits.dtype)

    def work(start: int, stop: int, scratch: Scratch) -> None:
        block, axis = oriented(logits[start:stop], scratch)
        np.max(block, axis=axis, out=out[start:stop])

    map_blocks(work, *logits.shape)
    return out


def check_rows(maxima: Floats) -> None:
    """Raise if the softmax of a row is undefined: its maximum is NaN, +inf or -inf."""
    if np.isfinite(maxima).all():
        return
    for broken, code, rule in (
        (np.isnan(maxima), "nan", "logits must not be NaN"),
        (np.isposinf(maxima), "infinite", "logits must not be +inf"),
        (np.isneginf(maxima), "no_finite_logit", "a row needs at least one finite logit"),
    ):
        reject_rows(broken, code, rule)


def check_labelled(logits: Floats) -> None:
    """Raise if the logit of a row's label is -inf."""
    reject_rows(
        np.isneginf(logits),
        "label_on_minus_infinity",
        "the logit of the label must not be -inf: the model rules out the true class",
    )
