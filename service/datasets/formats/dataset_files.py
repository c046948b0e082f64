"""Datasets on disk: validate them in constant memory, and load them for a fit."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

import numpy as np

from calibrators import CalibrationSet, DataError
from calibrators.data import Kind, as_logits, check_probabilities, two_columns
from calibrators.rounding import GridFinder
from calibrators.segments import Segments
from service.datasets.formats import feature_columns, segment_names
from service.datasets.formats.bodies import (
    LABELS,
    VALUES,
    Arrays,
    Format,
    all_codecs,
    check_dimensions,
    check_names,
    check_size,
    declared_kind,
    read_arrays,
)
from service.datasets.formats.feature_columns import (
    FEATURE_NAMES,
    FeatureColumns,
    FeatureFacts,
)
from service.datasets.formats.npy import (
    Array,
    Column,
    Layout,
    MemoryColumn,
    SegmentColumn,
    read_at,
)
from service.datasets.formats.segment_names import SEGMENTS
from service.errors import Invalid, NoSpace, TooLarge
from service.storage.database import SHARE_PART

# rules for rows, in the order in which CalibrationSet checks them
RULES = (
    "not_a_probability",
    "rows_do_not_sum_to_one",
    "label_out_of_range",
    "nan",
    "infinite",
    "no_finite_logit",
    "label_on_minus_infinity",
)


@dataclass(frozen=True)
class Limits:
    """Limits for a body: bytes (as sent and unpacked), bytes of text, and classes."""

    bytes: int
    json_bytes: int
    classes: int

    def of(self, format: Format) -> int:
        """Return the maximum size of a body in this format, in bytes."""
        return min(self.bytes, self.json_bytes) if format.codec.is_text else self.bytes


@dataclass(frozen=True)
class Facts:
    """Properties of a valid dataset; ``segments`` and ``features`` are None if absent."""

    rows: int
    classes: int
    kind: Kind
    segments: int | None = None
    features: FeatureFacts | None = None


class DatasetColumns(NamedTuple):
    """The columns of a dataset, and the kind of its values."""

    kind: Kind
    values: Column
    labels: Column
    segments: Column | None
    features: FeatureColumns | None


def inspect(path: Path, format: Format, kind: Kind | None, limits: Limits) -> Facts:
    """Validate a file in blocks of rows, raising the same errors as CalibrationSet.

    Memory use does not grow with the file, compressed or not. If ``kind`` is None, the array names
    must define it.
    """
    check_size(path.stat().st_size, limits.of(format))
    with path.open("rb") as file:
        kind, values, labels, segments, features = select_columns(
            columns(file, format, limits.of(format)), kind
        )
        classes = _check_layouts(values.layout, labels.layout, kind, limits)
        rows, named, seen = values.layout.shape[0], None, None
        rounding = 0.0 if kind == "logits" else _rounding(path, format, kind, limits)
        _check_room(path.parent, values.layout)
        with TemporaryFile(dir=path.parent) as spool:
            by_rows = values.in_rows(spool), labels.in_rows(spool)
            _check_rows(*by_rows, kind, classes, rounding)
        if segments is not None:  # last, as CalibrationSet does
            segment_names.check_layout(segments.layout, rows)
            named = segment_names.count(segments.layout, segments.rows)
        if features is not None:
            _check_room(path.parent, features.features.layout)
            with TemporaryFile(dir=path.parent) as spool:
                seen = feature_columns.check(features, rows, classes, spool)
    return Facts(rows, classes, kind, named, seen)


def load(
    path: Path, format: Format, kind: Kind | None = None, *, with_features: bool = False
) -> CalibrationSet:
    """Load a dataset from a file that ``inspect`` has accepted.

    Features are read only if ``with_features`` is true. Uncompressed arrays are memory-mapped, so
    they are read only when needed.
    """
    with path.open("rb") as file:
        limit = 1 << 62
        found = select_columns(columns(file, format, limit), kind)
        kind, values, labels, segments, seen = found
        create = CalibrationSet if kind == "logits" else CalibrationSet.from_probabilities
        named = None if segments is None else segment_names.load(segments.layout, segments.rows)
        features = head = None
        if seen is not None and with_features:
            features, head = feature_columns.load(seen, path)
        return create(values.mapped(path), labels.mapped(path), named, features, head)


def select_columns(found: dict[str, Column], kind: Kind | None) -> DatasetColumns:
    """Select the columns of a dataset from the arrays in a file; raise if one is missing."""
    if LABELS not in found:
        formats = ", ".join(one.format for one in all_codecs().values() if one.is_named)
        raise Invalid(
            "no_labels", f"labels are missing: send values and labels as one of {formats}"
        )
    check_names(found)
    declared = declared_kind(found)
    known = declared or kind
    if known is None:
        raise Invalid(
            "logits_or_probabilities",
            "name the values logits or probabilities, or pass `kind`",
        )
    if kind not in (None, known):
        raise Invalid("wrong_kind", f"`kind` is {kind}, but the dataset contains {known}")
    features = None
    if any(name in found for name in FEATURE_NAMES):
        features = feature_columns.select(found)
    return DatasetColumns(
        known, found[declared or VALUES], found[LABELS], found.get(SEGMENTS), features
    )


def columns(file: BinaryIO, format: Format, limit: int) -> dict[str, Column]:
    """Return the arrays in a file by name; the unnamed array of an npy file is ``values``."""
    size = file.seek(0, io.SEEK_END)
    if format.codec.columns is not None:
        return format.codec.columns(file, size, limit)
    return _memory_columns(read_arrays(format, read_at(file, 0, size), limit=limit))


def _memory_columns(arrays: Arrays) -> dict[str, Column]:
    found: dict[str, Column] = {arrays.declared or VALUES: MemoryColumn(arrays.values)}
    if arrays.labels is not None:
        found[LABELS] = MemoryColumn(arrays.labels)
    if isinstance(arrays.segments, Segments):
        found[SEGMENTS] = SegmentColumn(arrays.segments)
    elif arrays.segments is not None:
        found[SEGMENTS] = MemoryColumn(arrays.segments, is_text=True)
    for name in FEATURE_NAMES:
        array = getattr(arrays, name)
        if array is not None:
            found[name] = MemoryColumn(array)
    return found


def _check_layouts(values: Layout, labels: Layout, kind: Kind, limits: Limits) -> int:
    """Check types and shapes; return the number of classes."""
    check_dimensions(kind, values.shape)
    check_dimensions(LABELS, labels.shape)
    if values.shape[1:] and values.shape[1] > limits.classes:
        raise TooLarge(
            "too_many_classes",
            f"at most {limits.classes} classes are allowed, got {values.shape[1]}",
            limit=limits.classes,
        )
    convert = as_logits if kind == "logits" else two_columns
    classes = int(convert(_valid_row(values, kind)).shape[1])
    column = labels.shape if labels.shape[1:] != (1,) else labels.shape[:1]
    if len(column) == 1 and column != values.shape[:1]:
        raise DataError(
            "length_mismatch", f"logits have {values.shape[0]} rows but labels have {column[0]}"
        )
    shape = labels.shape if len(column) == 2 else (1,)
    CalibrationSet(np.full((1, classes), 2.0), np.broadcast_to(np.zeros((), labels.dtype), shape))
    return classes


def _valid_row(layout: Layout, kind: Kind) -> Array:
    """Return a valid row of the array's width, or no row if the array is empty."""
    shape = (min(1, layout.shape[0]), *layout.shape[1:])
    if kind == "logits" or layout.dtype.kind == "b":
        return np.full(shape, 2, layout.dtype)  # 2 cannot be mistaken for a probability
    return np.full(shape, 0.5 if len(shape) == 1 else 1 / max(2, shape[1]))


def _check_rows(values: Column, labels: Column, kind: Kind, classes: int, rounding: float) -> None:
    """Raise the DataError that CalibrationSet would raise for the whole file.

    Each block reports the first of RULES that it violates. The earliest reported rule is therefore
    the first that the whole file violates, and every block that violates it has reported it.
    """
    total = values.layout.shape[0]
    step = values.layout.rows_at_once
    broken: dict[str, DataError] = {}
    for start in range(0, total, step):
        stop = min(total, start + step)
        block, truth = values.rows(start, stop), labels.rows(start, stop)
        try:
            _check_block(block, truth.reshape(-1), kind, rounding)
        except DataError as error:
            broken[error.code] = _joined(broken.get(error.code), error, start)
    for code in RULES:
        if code in broken:
            raise broken[code]
    if broken:
        raise next(iter(broken.values()))


def _rounding(path: Path, format: Format, kind: Kind, limits: Limits) -> float:
    """Return the step to which all probabilities in a file were rounded, or 0 if there is none.

    The file is opened again because compressed rows can only be read in order. For unrounded
    probabilities, the first block is enough.
    """
    finder = GridFinder()
    with path.open("rb") as file, TemporaryFile(dir=path.parent) as spool:
        found = select_columns(columns(file, format, limits.of(format)), kind)
        _check_room(path.parent, found.values.layout)
        values = found.values.in_rows(spool)
        total = values.layout.shape[0]
        step = values.layout.rows_at_once
        for start in range(0, total, step):
            if not finder.is_open:
                break
            finder.add(_widened(values.rows(start, min(total, start + step))))
    return finder.step


def _check_room(folder: Path, layout: Layout) -> None:
    """Raise NoSpace if a Fortran-order array does not fit on the disk when unpacked."""
    room = shutil.disk_usage(folder).free // SHARE_PART
    if layout.fortran and layout.nbytes > room:
        raise NoSpace(
            "no_space",
            f"a Fortran-order array of {layout.nbytes} bytes must be unpacked to disk, but only "
            f"{room} bytes are available: send it in C order",
        )


def _widened(block: Array) -> Array:
    if block.dtype in (np.float32, np.float64):
        return block
    return block.astype(np.float32 if block.dtype.itemsize == 2 else np.float64)


def _check_block(block: Array, truth: Array, kind: Kind, rounding: float) -> None:
    if block.ndim == 1:
        block = block[:, np.newaxis]
    if kind == "logits":
        # an extra row of 2s prevents the warning that the logits look like probabilities
        block = np.concatenate([block, np.full((1, block.shape[1]), 2, block.dtype)])
        valid = truth.clip(0, max(block.shape[1], 2) - 1).min(initial=block.shape[1] - 1)
        CalibrationSet(block, np.append(truth, truth.dtype.type(valid)))
        return
    check_probabilities(_widened(block), truth, rounding)


def _joined(before: DataError | None, error: DataError, start: int) -> DataError:
    if error.rows is None or error.first is None:
        return error
    rule = str(error).rpartition(" (")[0]
    if before is None or before.rows is None:
        return DataError(error.code, rule, rows=error.rows, first=start + error.first)
    return DataError(error.code, rule, rows=before.rows + error.rows, first=before.first)
