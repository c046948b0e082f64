"""Maps applied to files of any size, and to batches on many machines.

>>> from calibrators.methods.temperature import TemperatureMap
>>> apply = BatchApply(TemperatureMap(k=2, temperature=2.0))
>>> apply({"logits": np.zeros((3, 2))})["probabilities"].tolist()
[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import CalibrationMap, DataError
from calibrators.methods.segmented import SegmentedMap
from calibrators.segments import Segments
from calibrd.io.arrays import as_array
from calibrd.io.calibration_sets import as_segments
from calibrd.io.dataset_files import segments_among
from calibrd.io.parquet_files import errors_of, named_once
from calibrd.io.row_blocks import (
    check_ending,
    check_folder,
    open_source,
    open_target,
    refuse_taken,
    written_whole,
)
from calibrd.maps.local_map import LocalMap
from calibrd.progress import ProgressBar

Array = NDArray[Any]
Applies = CalibrationMap | LocalMap

PREDICTIONS = ("prediction", "confidence")


class Applied(NamedTuple):
    """What ``apply_file`` did.

    ``in_segments`` is how many rows are in a segment of the map, None if it has no segments.
    """

    target: Path
    rows: int
    classes: int
    in_segments: int | None = None


@dataclass(frozen=True)
class BatchApply:
    """A callable that adds calibrated probabilities to a batch: columns by name, as numpy arrays.

    That is what Ray Data's ``map_batches(..., batch_format="numpy")`` gives and takes. ``columns``
    is one column of rows, or several of numbers: by default ``logits``, or ``probabilities`` for a
    map that takes those. ``segments`` is the column with the segment of each row, for a map that
    has segments. The answer is ``output``, or with ``one_column_each`` the columns
    ``probabilities_0`` and so on; with ``predictions``, the columns ``prediction`` and
    ``confidence`` come along. No column that is there is replaced.
    """

    fitted: Applies
    columns: str | Sequence[str] | None = None
    output: str = "probabilities"
    dtype: Literal["float32", "float64"] | None = None
    predictions: bool = False
    one_column_each: bool = False
    segments: str | None = None

    def __post_init__(self) -> None:
        if self.columns is not None and not isinstance(self.columns, str):
            named_once(self.columns)
        if self.predictions and self.output in PREDICTIONS and not self.one_column_each:
            raise DataError(
                "name_taken",
                f"the predictions take the name {self.output!r}: choose another output",
            )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with the probabilities of its rows."""
        columns = self.columns or steady_map(self.fitted).kind
        if isinstance(columns, str):
            values = as_array(batch[columns], columns)
        else:
            values = np.column_stack([as_array(batch[one], one) for one in columns])
        names = None if self.segments is None else as_segments(batch[self.segments])
        added = self.added(self.probabilities(values, names))
        refuse_taken(added, batch)
        return {**batch, **added}

    def probabilities(self, values: Array, segments: Array | None = None) -> Array:
        """Those of some rows."""
        given = values if self.dtype is None else values.astype(self.dtype)
        return self.fitted.apply(given, segments)

    def added(self, found: Array) -> dict[str, Array]:
        """The columns that are added for these probabilities."""
        made = {self.output: found}
        if self.one_column_each:
            made = {f"{self.output}_{one}": found[:, one] for one in range(found.shape[1])}
        if self.predictions:
            best = (found.argmax(axis=1), found.max(axis=1))
            made |= dict(zip(PREDICTIONS, best, strict=True))
        return made


def steady_map(fitted: Applies) -> CalibrationMap:
    """The map as it is now: an alias may move meanwhile."""
    return fitted.map if isinstance(fitted, LocalMap) else fitted


def apply_file(
    fitted: Applies,
    source: str | Path,
    target: str | Path,
    *,
    columns: str | Sequence[str] | None = None,
    output: str = "probabilities",
    dtype: Literal["float32", "float64"] | None = None,
    predictions: bool = False,
    one_column_each: bool = False,
    drop_inputs: bool = False,
    segments: str | None = None,
    force: bool = False,
    progress: bool = True,
) -> Applied:
    """Apply a map to a file and write another, a block of rows at a time, in constant memory.

    Both are .npy, .npz, .parquet or .arrow. The numbers are the array or column ``logits``, or
    ``probabilities`` for a map that takes those; in tables ``columns`` names another, or several.
    Other columns are kept from table to table and other arrays from npz to npz, and with
    ``drop_inputs`` the numbers that were read are left out; from one form to another, and in an
    npy, there are the probabilities alone. The other options are those of BatchApply; an npy and an
    npz take no ``predictions`` and no ``one_column_each``, and an npy has no name for ``output``.
    A map that has segments takes them from the array or column that ``segments`` names, by default
    ``segments`` or ``segment`` if there is one. The target appears when it is whole, and replaces
    another only with ``force``.
    """
    start, end = Path(source), Path(target)
    steady = steady_map(fitted)  # a file is of one version
    for path in (start, end):
        check_ending(path)
    check_folder(end)
    if end.exists() and not force:
        raise FileExistsError(17, "is there already, and is replaced only with force", str(end))
    apply = BatchApply(
        steady,
        output=output,
        dtype=dtype,
        predictions=predictions,
        one_column_each=one_column_each,
    )
    chosen = [columns] if isinstance(columns, str) else columns
    done = classes = in_segments = 0

    def find_segments(names: Sequence[str]) -> str | None:
        is_used = segments is not None or steady.has_segments
        return segments_among(start, names, segments) if is_used else None

    with open_source(start, steady.kind, chosen, find_segments) as opened:
        if not opened.rows:
            raise DataError("empty", f"{start} holds no rows")
        kept = opened.kept(end, drop_inputs=drop_inputs)
        with (
            written_whole(end) as part,
            ProgressBar(opened.rows, "apply", shown=progress, unit=" rows", unit_scale=True) as bar,
            open_target(part, end.suffix.lower(), opened, kept, output) as write,
        ):
            for block in opened.blocks:
                with errors_of(start, done):
                    found = apply.probabilities(block.values, block.segments)
                if isinstance(steady, SegmentedMap) and block.segments is not None:
                    in_segments += steady.known_rows(Segments.of(block.segments, most=None))
                added = apply.added(found)
                refuse_taken(added, kept)
                write(block, added)
                done, classes = done + len(found), found.shape[1]
                bar.add(len(found))
    return Applied(end, done, classes, in_segments if steady.has_segments else None)
