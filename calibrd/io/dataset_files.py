"""Read calibration sets and maps from files, with errors that name the file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import CalibrationMap, CalibrationSet, DataError, archive
from calibrators.data import Kind
from calibrators.segments import Segments
from calibrd.io import npy_files, parquet_files
from calibrd.io.calibration_sets import as_segments, checked_set

Array = NDArray[Any]
KINDS: tuple[Kind, ...] = ("logits", "probabilities")
SEGMENTS = ("segments", "segment")
VALUES_AT_ONCE = 1 << 20
_log = logging.getLogger("calibrd")


class SetFile(NamedTuple):
    """The values, labels and optional segments, features and head in a file.

    If the file's segments are invalid and were left out, ``left_out`` is the reason.
    """

    path: Path
    kind: Kind
    values: Array
    labels: Array
    segments: Array | None = None
    left_out: DataError | None = None
    features: Array | None = None
    head: tuple[Array, Array | None] | None = None

    def for_segments(self, needed: bool) -> SetFile:
        """Return the file unchanged; raise ``left_out`` if it is set and segments are needed."""
        if needed and self.left_out is not None:
            raise self.left_out
        return self

    def checked(self) -> CalibrationSet:
        """Return the rows as a checked set; errors name the file."""
        with parquet_files.locate_errors(self.path, 0):
            return checked_set(
                self.values, self.labels, self.kind, self.segments, self.features, self.head
            )


def read_set(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    labels_column: str = "labels",
    segments_column: str | None = None,
    kind: Kind | None = None,
) -> SetFile:
    """Read an npz (``logits`` or ``probabilities``, and ``labels``), parquet or arrow file.

    In a table, the values are in one column of lists or in several columns; they are logits unless
    ``kind`` is "probabilities". From an npz, ``features``, ``head_weight`` and ``head_bias`` are
    read too, if present.

    Segments are read from ``segments_column``, which must be present. By default they are read from
    ``segments`` or ``segment``, if present; values that are not valid segments (floats, missing
    values, identifiers) are then left out with a warning.
    """
    source = Path(path)
    for endings, read in READERS:
        if source.suffix.lower() in endings:
            return read(source, kind, columns, labels_column, segments_column)
    raise DataError("unknown_ending", f"{source} must end in {ENDINGS}")


def read_map(path: str | Path) -> CalibrationMap:
    """Read the map of a .calibrd file; raise ArchiveError if it is damaged."""
    return archive.load(Path(path).read_bytes())


def segments_among(path: Path, names: Sequence[str], wanted: str | None) -> str | None:
    """Return the name of the array or column with the segments: ``wanted`` or a default, if any."""
    found = wanted or _usual(names)
    if found is not None and names.count(found) != 1:
        present = ", ".join(map(repr, names)) or "nothing"
        raise DataError(
            "missing_column",
            f"{path} must have exactly one array or column named {found!r}, but has {present}",
        )
    return found


def _from_npz(
    path: Path, kind: Kind | None, columns: Sequence[str] | None, labels: str, wanted: str | None
) -> SetFile:
    with npy_files.opened_npz(path) as held:
        names = [name.removesuffix(".npy") for name in held.namelist()]
        listed = npy_files.members_of(held)
    found = [one for one in KINDS if one in names and kind in (None, one)]
    if len(found) != 1 or labels not in names:
        raise DataError(
            "missing_array",
            f"{path} must contain {labels!r} and either 'logits' or 'probabilities', "
            f"but contains {listed}",
        )
    with np.load(path, allow_pickle=False) as stored:
        values, truth = (_member(path, stored, name) for name in (found[0], labels))
        made = SetFile(path, found[0], values, truth, **_features_in(path, stored, names))
        return _with_segments(made, names, wanted, lambda name: _segments_in(path, stored, name))


def _features_in(path: Path, stored: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the features and the head in an npz, each None if it is missing."""
    features, weight, bias = (
        _member(path, stored, name) if name in names else None
        for name in ("features", "head_weight", "head_bias")
    )
    return {"features": features, "head": None if weight is None else (weight, bias)}


def _member(path: Path, stored: Any, name: str) -> Array:
    try:
        return np.asarray(stored[name])
    except ValueError as error:
        raise DataError(
            "not_an_array", f"{path} must contain arrays of numbers, not pickled objects: {error}"
        ) from error


def _segments_in(path: Path, stored: Any, name: str) -> Array:
    try:
        return _member(path, stored, name)
    except DataError as error:
        raise DataError(
            error.code,
            f"{path} must contain {name!r} as text or integers, not as pickled objects: "
            f"save {name}.astype(str)",
        ) from error


def _from_table(
    path: Path, stated: Kind | None, columns: Sequence[str] | None, labels: str, wanted: str | None
) -> SetFile:
    kind = stated or "logits"
    values, truth, named, rows_read = [], [], [], 0
    with parquet_files.open_table(path) as table:
        chosen, (answer,) = (
            table.checked_columns(columns or [kind]),
            table.checked_columns([labels]),
        )
        names = table.schema.names
        segments = segments_among(path, names, wanted) if wanted else _usual(names)
        for batch in table.batches(VALUES_AT_ONCE):
            with parquet_files.locate_errors(path, rows_read):
                values.append(parquet_files.numbers_of(batch, chosen))
                truth.append(parquet_files.numbers_of(batch, [answer]))
            if segments is not None and names.count(segments) == 1:
                named.extend(batch.column(segments).to_pylist())
            rows_read += len(batch)
    if not rows_read:
        raise DataError("empty", f"{path} contains no rows")
    made = SetFile(path, kind, np.concatenate(values), np.concatenate(truth))

    def read(_: str) -> Array:
        with parquet_files.locate_errors(path, 0):
            return as_segments(named)

    return _with_segments(made, names, wanted, read)


def _with_segments(
    made: SetFile, names: Sequence[str], wanted: str | None, read: Callable[[str], Array]
) -> SetFile:
    """Add the segments; leave out invalid ones if the caller did not name them."""
    try:
        found = segments_among(made.path, names, wanted)
        if found is None:
            return made
        segments = read(found)
        if wanted is None:
            with parquet_files.locate_errors(made.path, 0):
                Segments.of(segments, rows=len(made.values))
    except DataError as error:
        if wanted is not None:
            raise
        _log.warning("%r does not contain valid segments and is ignored: %s", _usual(names), error)
        return made._replace(left_out=error)
    return made._replace(segments=segments)


def _usual(names: Sequence[str]) -> str | None:
    return next((one for one in SEGMENTS if one in names), None)


Reader = Callable[[Path, Kind | None, Sequence[str] | None, str, str | None], SetFile]
READERS: tuple[tuple[tuple[str, ...], Reader], ...] = (
    ((".npz",), _from_npz),
    (parquet_files.PARQUET, _from_table),
    (parquet_files.ARROW, _from_table),
)
ENDINGS = " or ".join(", ".join(endings[0] for endings, _ in READERS).rsplit(", ", 1))
