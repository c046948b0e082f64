"""Sets and maps in files, read whole, with errors that name the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import CalibrationMap, CalibrationSet, DataError, archive
from calibrators.data import Kind
from calibrd import npy_files, tables
from calibrd.arrays import checked_set

Array = NDArray[Any]
KINDS: tuple[Kind, ...] = ("logits", "probabilities")
VALUES_AT_ONCE = 1 << 20


class SetFile(NamedTuple):
    """What a model said and what was true, as a file holds it."""

    path: Path
    kind: Kind
    values: Array
    labels: Array

    def checked(self) -> CalibrationSet:
        """The same, checked; errors name the file."""
        with tables.errors_of(self.path, 0):
            return checked_set(self.values, self.labels, self.kind)


def read_set(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    labels_column: str = "labels",
    kind: Kind | None = None,
) -> SetFile:
    """The rows of an npz (``logits`` or ``probabilities``, and ``labels``), parquet or arrow file.

    In a file with columns the numbers are in one of lists or in several, and are logits unless
    ``kind`` says otherwise.
    """
    source = Path(path)
    match source.suffix.lower():
        case ".npz":
            return _from_npz(source, kind, labels_column)
        case ending if ending in (*tables.PARQUET, *tables.ARROW):
            return _from_table(source, kind or "logits", columns, labels_column)
    raise DataError("unknown_format", f"{source} must end in .npz, .parquet or .arrow")


def read_map(path: str | Path) -> CalibrationMap:
    """The map of a .calibrd file; ArchiveError if a single byte differs."""
    return archive.load(Path(path).read_bytes())


def _from_npz(path: Path, kind: Kind | None, labels: str) -> SetFile:
    with npy_files.opened_npz(path) as held:
        names = [name.removesuffix(".npy") for name in held.namelist()]
        told = npy_files.members_of(held)
    found = [one for one in KINDS if one in names and kind in (None, one)]
    if len(found) != 1 or labels not in names:
        raise DataError(
            "missing_array",
            f"{path} must hold 'logits' or 'probabilities', not both, and {labels!r}, "
            f"but holds {told}",
        )
    try:
        with np.load(path, allow_pickle=False) as stored:
            return SetFile(path, found[0], stored[found[0]], stored[labels])
    except ValueError as error:
        raise DataError(
            "not_an_array", f"{path} must hold arrays of numbers, not of pickled objects: {error}"
        ) from error


def _from_table(path: Path, kind: Kind, columns: Sequence[str] | None, labels: str) -> SetFile:
    values, truth, seen = [], [], 0
    with tables.open_table(path) as table:
        chosen, (answer,) = table.chosen(columns or [kind]), table.chosen([labels])
        for batch in table.batches(VALUES_AT_ONCE):
            with tables.errors_of(path, seen):
                values.append(tables.numbers_of(batch, chosen))
                truth.append(tables.numbers_of(batch, [answer]))
            seen += len(batch)
    if not seen:
        raise DataError("empty", f"{path} holds no rows")
    return SetFile(path, kind, np.concatenate(values), np.concatenate(truth))
