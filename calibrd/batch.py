"""Apply maps to files of any size, or to batches distributed over many machines.

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
from calibrd.io.parquet_files import check_unique, locate_errors
from calibrd.io.row_blocks import (
    atomic_target,
    check_ending,
    check_folder,
    check_names_free,
    open_source,
    open_target,
)
from calibrd.maps.local_map import LocalMap
from calibrd.progress import ProgressBar

Array = NDArray[Any]
Applies = CalibrationMap | LocalMap

PREDICTIONS = ("prediction", "confidence")


class Applied(NamedTuple):
    """The result of ``apply_file``.

    ``in_segments`` is the number of rows whose segment the map knows; None if the map has no
    segments.
    """

    target: Path
    rows: int
    classes: int
    in_segments: int | None = None


@dataclass(frozen=True)
class BatchApply:
    """Callable that adds calibrated probabilities to a batch: a dict of columns as numpy arrays.

    This is the batch format of Ray Data's ``map_batches(..., batch_format="numpy")``. ``columns``
    names one column of lists or several columns of numbers; the default is ``logits``, or
    ``probabilities`` for a map fitted on probabilities. ``segments`` names the column with each
    row's segment, for maps with segments; ``features`` names the column with each row's features,
    for maps that need them. The probabilities are written to the column named by ``output`` or,
    with ``one_column_each``, to one column per class, such as ``probabilities_0``. ``predictions``
    adds the columns ``prediction`` and ``confidence``. Existing columns are never replaced.
    """

    fitted: Applies
    columns: str | Sequence[str] | None = None
    output: str = "probabilities"
    dtype: Literal["float32", "float64"] | None = None
    predictions: bool = False
    one_column_each: bool = False
    segments: str | None = None
    features: str | None = None

    def __post_init__(self) -> None:
        if self.columns is not None and not isinstance(self.columns, str):
            check_unique(self.columns)
        if self.predictions and self.output in PREDICTIONS and not self.one_column_each:
            raise DataError(
                "name_taken",
                f"output {self.output!r} is reserved for predictions: choose another name",
            )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the new columns added."""
        columns = self.columns or current_map(self.fitted).kind
        if isinstance(columns, str):
            values = as_array(batch[columns], columns)
        else:
            values = np.column_stack([as_array(batch[one], one) for one in columns])
        names = None if self.segments is None else as_segments(batch[self.segments])
        features = None if self.features is None else as_array(batch[self.features], self.features)
        added = self.added(self.probabilities(values, names, features))
        check_names_free(added, batch)
        return {**batch, **added}

    def probabilities(
        self, values: Array, segments: Array | None = None, features: Array | None = None
    ) -> Array:
        """Return the calibrated probabilities of ``values``."""
        typed = values if self.dtype is None else values.astype(self.dtype)
        return self.fitted.apply(typed, segments, features)

    def added(self, found: Array) -> dict[str, Array]:
        """Return the new columns for the calibrated probabilities ``found``."""
        made = {self.output: found}
        if self.one_column_each:
            made = {f"{self.output}_{one}": found[:, one] for one in range(found.shape[1])}
        if self.predictions:
            best = (found.argmax(axis=1), found.max(axis=1))
            made |= dict(zip(PREDICTIONS, best, strict=True))
        return made


def current_map(fitted: Applies) -> CalibrationMap:
    """Return the map currently in use; it stays the same if the alias moves."""
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
    """Apply a map to a file in constant memory and write the result to another file.

    Each file may be .npy, .npz, .parquet or .arrow. The input is the ``logits`` array or column, or
    ``probabilities`` for a map fitted on probabilities; in tables, ``columns`` can name one or more
    other columns. If both files are tables, the other columns are copied too; if both are npz
    files, so are the other arrays. ``drop_inputs`` leaves out the inputs. For all other
    combinations of formats, only the probabilities are written.

    Segments are read from the array or column named by ``segments``; by default, from ``segments``
    or ``segment``, if present. Features, if the map needs them, are read from the ``features``
    array of an npz. The remaining options are the same as for BatchApply; ``predictions`` and
    ``one_column_each`` require a table as the target, and ``output`` has no effect on an npy file.
    The target is written atomically, and an existing file is replaced only with ``force``.
    """
    start, end = Path(source), Path(target)
    steady = current_map(fitted)  # one version for the whole file
    for path in (start, end):
        check_ending(path)
    check_folder(end)
    if end.exists() and not force:
        raise FileExistsError(17, "already exists: replace it with force (--force)", str(end))
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

    with open_source(
        start, steady.kind, chosen, find_segments, with_features=steady.has_features
    ) as opened:
        if not opened.rows:
            raise DataError("empty", f"{start} contains no rows")
        kept = opened.columns_to_copy(end, drop_inputs=drop_inputs)
        with (
            atomic_target(end) as part,
            ProgressBar(opened.rows, "apply", shown=progress, unit=" rows", unit_scale=True) as bar,
            open_target(part, end.suffix.lower(), opened, kept, output) as write,
        ):
            for block in opened.blocks:
                with locate_errors(start, done):
                    found = apply.probabilities(block.values, block.segments, block.features)
                if isinstance(steady, SegmentedMap) and block.segments is not None:
                    in_segments += steady.known_rows(Segments.of(block.segments, most=None))
                added = apply.added(found)
                check_names_free(added, kept)
                write(block, added)
                done, classes = done + len(found), found.shape[1]
                bar.add(len(found))
    return Applied(end, done, classes, in_segments if steady.has_segments else None)
