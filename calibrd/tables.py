"""Parquet and arrow files with pyarrow, a record batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError
from calibrd.arrays import as_array

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[Any]
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
READ_BYTES = 1 << 20
LARGE_BATCH_BYTES = 1 << 26
DEFAULT_COLUMN = "logits"


class Table:
    """A file of rows in named columns."""

    def __init__(self, path: Path, reader: Any) -> None:
        self.path = path
        self._reader = reader
        self.is_parquet = path.suffix.lower() in PARQUET

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._reader.schema_arrow if self.is_parquet else self._reader.schema

    @property
    def rows(self) -> int:
        """How many there are."""
        if self.is_parquet:
            return int(self._reader.metadata.num_rows)
        return sum(len(batch) for batch in self._stored())

    def chosen(self, columns: Sequence[str] | None) -> list[str]:
        """The columns that hold the numbers, all of which are there."""
        wanted = [*(columns or [DEFAULT_COLUMN])]
        for name in wanted:
            if self.schema.names.count(name) != 1:
                raise DataError(
                    "missing_column",
                    f"{self.path} must have one column {name!r}, "
                    f"but has {', '.join(map(repr, self.schema.names))}",
                )
        return wanted

    def width(self, columns: Sequence[str]) -> int:
        """How many numbers a row has, as far as the schema tells."""
        kind = self.schema.field(columns[0]).type
        return max(len(columns), int(getattr(kind, "list_size", 1)))

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Its rows, at most so many at once."""
        import pyarrow as pa

        try:
            if self.is_parquet:
                yield from self._reader.iter_batches(batch_size=rows)
                return
            for batch in self._stored():
                for start in range(0, len(batch), rows):
                    yield batch.slice(start, rows)
        except pa.ArrowException as error:
            raise DataError("damaged", f"{self.path} is damaged: {error}") from error

    def _stored(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._reader.num_record_batches):
            yield self._reader.get_batch(number)


@contextmanager
def open_table(path: Path) -> Iterator[Table]:
    """A parquet file, or an arrow file (the IPC file format), by its ending."""
    pa = _pyarrow()
    # buffered and not read ahead: a row group may be larger than memory
    options: dict[str, Any] = {"buffer_size": READ_BYTES, "pre_buffer": False}
    with path.open("rb"):  # a missing file is told as that
        pass
    try:
        if path.suffix.lower() in PARQUET:
            from pyarrow import parquet

            reader: Any = parquet.ParquetFile(path, **options)
        else:
            reader = _arrow_reader(path)
    except pa.ArrowException as error:
        form = "parquet" if path.suffix.lower() in PARQUET else "arrow (IPC file format)"
        raise DataError("not_a_table", f"{path} is no {form} file: {error}") from error
    with reader:
        yield Table(path, reader)


def _arrow_reader(path: Path) -> Any:
    """Batches are read one by one; those too large for that lie in the system's cache alone."""
    pa = _pyarrow()
    reader = pa.ipc.open_file(pa.OSFile(str(path)))
    if path.stat().st_size > LARGE_BATCH_BYTES * max(1, reader.num_record_batches):
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
    return reader


@contextmanager
def new_table(path: Path, kind: str, schema: pa.Schema) -> Iterator[Any]:
    """A writer of record batches into a parquet or an arrow file."""
    pa = _pyarrow()
    if kind in PARQUET:
        from pyarrow import parquet

        # numbers that hardly ever repeat are only slowed down by a dictionary
        repeating = [
            field.name
            for field in schema
            if not (pa.types.is_nested(field.type) or pa.types.is_floating(field.type))
        ]
        with parquet.ParquetWriter(path, schema, use_dictionary=repeating) as writer:
            yield writer
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            yield writer


@contextmanager
def errors_of(path: Path, first: int) -> Iterator[None]:
    """Errors inside the block are told of this file, whose row ``first`` is row 0 there."""
    try:
        yield
    except DataError as error:
        if error.first is None:
            raise DataError(error.code, f"{path}: {error}") from error
        row = first + error.first
        words = f"{path}: {error.rule}, as row {row} (counted from 0) does"
        raise DataError(error.code, words) from error


def numbers_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Array:
    """The numbers (n, k) of one list column or of several columns, or (n,) of one of numbers."""
    return as_array(batch.select([*columns]), " and ".join(columns))


def with_columns(batch: pa.RecordBatch | None, added: Mapping[str, Array]) -> pa.RecordBatch:
    """A batch with more columns; rows of numbers become lists of a fixed size."""
    pa = _pyarrow()
    columns: list[Any] = [] if batch is None else [*batch.columns]
    fields: list[Any] = [] if batch is None else [*batch.schema]
    for name, values in added.items():
        column = pa.array(np.ascontiguousarray(values).reshape(-1))
        if values.ndim == 2:
            column = pa.FixedSizeListArray.from_arrays(column, values.shape[1])
        columns.append(column)
        fields.append(pa.field(name, column.type))
    metadata = None if batch is None else batch.schema.metadata
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=metadata))


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ImportError(
            "parquet and arrow files need pyarrow: pip install 'calibrd[batch]'"
        ) from error
    return pyarrow
