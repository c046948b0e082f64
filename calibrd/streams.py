"""Files of rows read and written a block at a time, whichever of the formats they have."""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError
from calibrd import npy_files, tables

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[Any]
NUMPY = (".npy", ".npz")
ENDINGS = (*NUMPY, *tables.PARQUET, *tables.ARROW)
BLOCK_VALUES = 1 << 20


class Block(NamedTuple):
    """Some rows: their numbers, and all their columns if they have such."""

    values: Array
    batch: pa.RecordBatch | None


class Source(NamedTuple):
    """What is read: how many rows, in what the numbers are, and the rows themselves."""

    path: Path
    rows: int
    inputs: list[str]
    blocks: Iterator[Block]


Write = Callable[[Block, Mapping[str, Array]], None]


def check_ending(path: Path) -> None:
    """Refuse a file whose name does not tell a format."""
    if path.suffix.lower() not in ENDINGS:
        raise DataError("unknown_format", f"{path} must end in one of {', '.join(ENDINGS)}")


@contextmanager
def open_source(path: Path, kind: str, columns: Sequence[str] | None) -> Iterator[Source]:
    """A file to read; ``kind`` is what the array is called in an npz."""
    if path.suffix.lower() not in NUMPY:
        with tables.open_table(path) as table:
            chosen = table.chosen(columns)
            yield Source(path, table.rows, chosen, _blocks_of_table(table, chosen))
        return
    if columns is not None:
        raise DataError("no_columns", f"{path} has no columns to choose from")
    with npy_files.open_rows(path, kind) as rows:
        inputs = [kind] if path.suffix.lower() == ".npz" else []
        blocks = (Block(values, None) for values in rows.blocks(BLOCK_VALUES))
        yield Source(path, rows.shape[0], inputs, blocks)


def _blocks_of_table(table: tables.Table, columns: Sequence[str]) -> Iterator[Block]:
    seen = 0
    for batch in table.batches(max(1, BLOCK_VALUES // table.width(columns))):
        with tables.errors_of(table.path, seen):
            values = tables.numbers_of(batch, columns)
        yield Block(values, batch)
        seen += len(batch)


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A file beside the target that takes its place at the end of the block, if that is reached."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def open_target(part: Path, ending: str, source: Source, *, drop_inputs: bool) -> Iterator[Write]:
    """What writes blocks into a new file of the format that ``ending`` tells."""
    left_out = set(source.inputs) if drop_inputs else set()
    if ending == ".npy":
        with part.open("xb") as file:
            yield _rows_into(file, source.rows)
    elif ending == ".npz":
        with _new_npz(part, source, left_out) as write:
            yield write
    else:
        with _Tables(part, ending, left_out) as target:
            yield target.write


def _rows_into(file: IO[bytes], rows: int) -> Write:
    begun = False

    def write(block: Block, added: Mapping[str, Array]) -> None:
        nonlocal begun
        (found,) = _single(added)
        if not begun:
            npy_files.write_header(file, (rows, *found.shape[1:]), found.dtype)
            begun = True
        file.write(np.ascontiguousarray(found).data)

    return write


def _single(added: Mapping[str, Array]) -> Iterable[Array]:
    if len(added) != 1:
        raise DataError("no_columns", f"{', '.join(added)} need a target with columns")
    return added.values()


@contextmanager
def _new_npz(part: Path, source: Source, left_out: set[str]) -> Iterator[Write]:
    """Probabilities and, if the source is an npz too, its other arrays."""
    with zipfile.ZipFile(part, "x") as archive:
        with archive.open("probabilities.npy", "w", force_zip64=True) as file:
            yield _rows_into(file, source.rows)
        if source.path.suffix.lower() == ".npz":
            npy_files.copy_others(source.path, archive, left_out | {"probabilities"})


class _Tables:
    """Record batches into a file that is opened when the first has told the schema."""

    def __init__(self, part: Path, ending: str, left_out: set[str]) -> None:
        self._part = part
        self._ending = ending
        self._left_out = left_out
        self._opened: Any = None
        self._writer: Any = None

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._opened is not None:
            self._opened.__exit__(*error)

    def write(self, block: Block, added: Mapping[str, Array]) -> None:
        """A block with its new columns."""
        batch = block.batch
        if batch is not None:
            batch = batch.select([n for n in batch.schema.names if n not in self._left_out])
            taken = [name for name in added if name in batch.schema.names]
            if taken:
                raise DataError(
                    "name_taken", f"the source has a column {taken[0]!r}: choose another output"
                )
        whole = tables.with_columns(batch, added)
        if self._writer is None:
            self._opened = tables.new_table(self._part, self._ending, whole.schema)
            self._writer = self._opened.__enter__()
        self._writer.write_batch(whole)
