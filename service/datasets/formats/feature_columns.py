"""The arrays ``features``, ``head_weight`` and ``head_bias``: the last layer and its input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from calibrators import DataError
from calibrators.features import check_head_dtype, check_head_layout, check_layout
from service.errors import Invalid

if TYPE_CHECKING:
    from service.datasets.formats.npy import Array, Column, Layout

FEATURES = "features"
HEAD_WEIGHT = "head_weight"
HEAD_BIAS = "head_bias"
FEATURE_NAMES = (FEATURES, HEAD_WEIGHT, HEAD_BIAS)


class FeatureColumns(NamedTuple):
    """Columns for the features and, if present, for the head's weight and bias."""

    features: Column
    weight: Column | None
    bias: Column | None


class FeatureFacts(NamedTuple):
    """Features per row, their total size in memory, and whether the head is present."""

    width: int
    nbytes: int
    has_head: bool


def select(found: dict[str, Column]) -> FeatureColumns:
    """Select the feature and head columns of a file that has at least one of them."""
    if HEAD_BIAS in found and HEAD_WEIGHT not in found:
        raise Invalid("bad_head", f"{HEAD_BIAS} was sent without {HEAD_WEIGHT}: send both")
    if FEATURES not in found:
        raise Invalid("missing_features", f"{HEAD_WEIGHT} was sent without {FEATURES}: send both")
    return FeatureColumns(found[FEATURES], found.get(HEAD_WEIGHT), found.get(HEAD_BIAS))


def check(columns: FeatureColumns, rows: int, classes: int, spool: BinaryIO) -> FeatureFacts:
    """Check the features and the head block by block, raising the same errors as calibrators."""
    layout = columns.features.layout
    dtype = _dtype(layout)
    check_layout(dtype, layout.shape, rows=rows)
    width = layout.shape[1]
    if columns.weight is not None:
        bias = None if columns.bias is None else columns.bias.layout.shape
        check_head_layout(columns.weight.layout.shape, bias, classes=classes, width=width)
        for name, column in ((HEAD_WEIGHT, columns.weight), (HEAD_BIAS, columns.bias)):
            if column is None:
                continue
            check_head_dtype(_dtype(column.layout), name)
            if not all(np.isfinite(block).all() for block in blocks(column, spool)):
                raise DataError("bad_head", "weight and bias of the head must be finite")
    _check_finite(columns.features, spool)
    return FeatureFacts(width, layout.count * dtype.itemsize, columns.weight is not None)


def load(columns: FeatureColumns, path: Path) -> tuple[Array, tuple[Array, Array | None] | None]:
    """Load the features and head of a checked file, memory-mapped if possible."""
    features = columns.features.mapped(path)
    if columns.weight is None:
        return features, None
    bias = None if columns.bias is None else columns.bias.mapped(path)
    return features, (columns.weight.mapped(path), bias)


def blocks(column: Column, spool: BinaryIO) -> Iterator[Array]:
    """Yield all rows of a column in blocks."""
    readable = column.in_rows(spool)
    total = column.layout.shape[0]
    step = column.layout.rows_at_once
    for start in range(0, total, step):
        yield readable.rows(start, min(total, start + step))


def _check_finite(column: Column, spool: BinaryIO) -> None:
    broken, first, start = 0, 0, 0
    for block in blocks(column, spool):
        wrong = ~np.isfinite(block).all(axis=1)
        if wrong.any():
            first = first if broken else start + int(wrong.argmax())
            broken += int(np.count_nonzero(wrong))
        start += len(block)
    if broken:
        raise DataError("features_not_finite", "features must be finite", rows=broken, first=first)


def _dtype(layout: Layout) -> np.dtype[np.generic]:
    return np.dtype(np.float32) if layout.bfloat16 else layout.dtype
