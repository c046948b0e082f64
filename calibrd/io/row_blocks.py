"""Read and write files of rows in any format, one block at a time."""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError
from calibrd.io import npy_files, parquet_files
from calibrd.io.calibration_sets import as_segments

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[Any]
NUMPY = (".npy", ".npz")
ENDINGS = (*NUMPY, *parquet_files.PARQUET, *parquet_files.ARROW)
BLOCK_VALUES = 1 << 20
FEATURES = "features"


class RowBlock(NamedTuple):
    """A block of rows: numbers, segments and features; ``batch`` holds all columns of a table."""

    values: Array
    batch: pa.RecordBatch | None
    segments: Array | None = None
    features: Array | None = None


class RowSource(NamedTuple):
    """A file opened for reading; ``inputs`` are the columns or arrays that hold the values."""

    path: Path
    rows: int
    names: list[str]
    inputs: list[str]
    blocks: Iterator[RowBlock]

    def columns_to_copy(self, target: Path, *, drop_inputs: bool) -> list[str]:
        """Return the columns or arrays to copy: from table to table, or from npz to npz."""
        if target.suffix.lower() == ".npy" or _form(target) != _form(self.path):
            return []
        for name in self.names:
            if self.names.count(name) > 1:
                raise DataError(
                    "repeated_column",
                    f"{self.path} has more than one column {name!r}, which would be copied to "
                    f"{target}: rename one, or write an .npy file",
                )
        return [name for name in self.names if not (drop_inputs and name in self.inputs)]


Write = Callable[[RowBlock, Mapping[str, Array]], None]


def _form(path: Path) -> str:
    ending = path.suffix.lower()
    return ending if ending in NUMPY else "table"


def check_names_free(added: Iterable[str], held: Collection[str]) -> None:
    """Raise DataError if a new name is already taken."""
    taken = [name for name in added if name in held]
    if taken:
        raise DataError(
            "name_taken",
            f"the source already has {taken[0]!r}: choose another output name (--output-column)",
        )


def check_ending(path: Path) -> None:
    """Raise DataError if the file has an unknown extension."""
    if path.suffix.lower() not in ENDINGS:
        raise DataError("unknown_ending", f"{path} must end in one of {', '.join(ENDINGS)}")


def check_folder(target: Path) -> None:
    """Raise OSError if the target is a folder or its parent folder does not exist."""
    if target.is_dir():
        raise IsADirectoryError(21, "is a folder: give the path of a file", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(2, f"the folder {target.parent} does not exist", str(target))


@contextmanager
def open_source(
    path: Path,
    kind: str,
    columns: Sequence[str] | None,
    find_segments: Callable[[Sequence[str]], str | None] = lambda names: None,
    *,
    with_features: bool = False,
) -> Iterator[RowSource]:
    """Open a file for reading; its values are in ``columns``, by default in ``kind``.

    ``find_segments`` takes the names of the arrays or columns and returns the one that holds the
    segments, or None. With ``with_features``, the array ``features`` of an npz is read, if present.
    """
    if path.suffix.lower() not in NUMPY:
        with parquet_files.open_table(path) as table:
            chosen = table.checked_columns(columns or [kind])
            blocks = _blocks_of_table(table, chosen, find_segments(table.schema.names))
            yield RowSource(path, table.rows, table.schema.names, chosen, blocks)
        return
    if columns is not None:
        raise DataError("no_columns", f"{path} has no columns to choose from")
    names = npy_files.names_in(path) if path.suffix.lower() == ".npz" else []
    segments = find_segments(names)
    with ExitStack() as opened:
        rows = opened.enter_context(npy_files.open_rows(path, kind))
        step = rows.rows_of(BLOCK_VALUES)
        others: list[Iterator[Array | None]] = [repeat(None), repeat(None)]
        if segments is not None:
            named = opened.enter_context(npy_files.open_rows(path, segments))
            if named.shape[0] != rows.shape[0]:
                raise DataError(
                    "segments_length",
                    f"{path}: there are {rows.shape[0]} rows "
                    f"but {named.shape[0]} segments in {segments!r}",
                )
            others[0] = iter(named.blocks(step))
        if with_features and FEATURES in names:
            vectors = opened.enter_context(npy_files.open_rows(path, FEATURES))
            if vectors.shape[0] != rows.shape[0]:
                raise DataError(
                    "features_length",
                    f"{path}: there are {rows.shape[0]} rows but {vectors.shape[0]} {FEATURES}",
                )
            others[1] = iter(vectors.blocks(step))
        found = (
            RowBlock(values, None, names_of, features)
            for values, names_of, features in zip(rows.blocks(step), *others, strict=False)
        )
        yield RowSource(path, rows.shape[0], names, [kind], found)


def _blocks_of_table(
    table: parquet_files.ParquetTable, columns: Sequence[str], segments: str | None
) -> Iterator[RowBlock]:
    start = 0
    for batch in table.batches(BLOCK_VALUES):
        with parquet_files.locate_errors(table.path, start):
            values = parquet_files.numbers_of(batch, columns)
            names = None if segments is None else as_segments(batch.column(segments))
        yield RowBlock(values, batch, names)
        start += len(batch)


@contextmanager
def atomic_target(target: Path) -> Iterator[Path]:
    """Yield a temporary file next to the target, which it replaces if the block succeeds."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def open_target(
    part: Path, ending: str, source: RowSource, kept: Sequence[str], output: str
) -> Iterator[Write]:
    """Create a file in the format given by ``ending``; yield a function that writes blocks.

    ``kept`` are the columns or arrays to copy from the source; ``output`` is the name of the array
    in an npz.
    """
    if ending == ".npy":
        with part.open("xb") as file:
            yield _rows_into(file, source.rows)
    elif ending == ".npz":
        with zipfile.ZipFile(part, "x") as archive:
            with archive.open(f"{output}.npy", "w", force_zip64=True) as file:
                yield _rows_into(file, source.rows)
            if kept:
                npy_files.copy_arrays(source.path, archive, kept)
    else:
        # each row group of parquet has its own dictionary, but an arrow file has only one
        plain = (
            ending in parquet_files.ARROW and source.path.suffix.lower() in parquet_files.PARQUET
        )
        with _Tables(part, ending, kept, plain=plain) as target:
            yield target.write


def _rows_into(file: IO[bytes], rows: int) -> Write:
    begun = False

    def write(block: RowBlock, added: Mapping[str, Array]) -> None:
        nonlocal begun
        (found,) = _single(added)
        if not begun:
            npy_files.write_header(file, (rows, *found.shape[1:]), found.dtype)
            begun = True
        file.write(np.ascontiguousarray(found).data)

    return write


def _single(added: Mapping[str, Array]) -> Iterable[Array]:
    if len(added) != 1:
        raise DataError("no_columns", f"{', '.join(added)} require a table as the target")
    return added.values()


class _Tables:
    """Writer of record batches; the first batch determines the schema of the file."""

    def __init__(self, part: Path, ending: str, kept: Sequence[str], *, plain: bool) -> None:
        self._part = part
        self._plain = plain
        self._ending = ending
        self._kept = kept
        self._opened: Any = None
        self._writer: Any = None

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._opened is not None:
            self._opened.__exit__(*error)

    def write(self, block: RowBlock, added: Mapping[str, Array]) -> None:
        """Write a block with its new columns."""
        batch = None if block.batch is None else block.batch.select([*self._kept])
        if batch is not None and self._plain:
            batch = parquet_files.without_dictionaries(batch)
        whole = parquet_files.with_columns(batch, added)
        if self._writer is None:
            self._opened = parquet_files.new_table(self._part, self._ending, whole.schema)
            self._writer = self._opened.__enter__()
        self._writer.write_batch(whole)
