"""Read and write parquet and arrow files one record batch at a time, with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError
from calibrd.io.arrays import as_array

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[Any]
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
READ_BYTES = 1 << 20
LARGE_BATCH_BYTES = 1 << 26
FIRST_ROWS = 16
NUMBER_BYTES = 4


class ParquetTable:
    """A file of rows in named columns."""

    def __init__(self, path: Path, reader: Any) -> None:
        self.path = path
        self._reader = reader
        self.is_parquet = path.suffix.lower() in PARQUET

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        return self._reader.schema_arrow if self.is_parquet else self._reader.schema

    @property
    def rows(self) -> int:
        """The number of rows."""
        if self.is_parquet:
            return int(self._reader.metadata.num_rows)
        from pyarrow import dataset, fs

        # uses the headers of the batches, without reading rows
        whole = dataset.IpcFileFormat().make_fragment(
            str(self.path.absolute()), fs.LocalFileSystem()
        )
        with self._damage_as_data_error():
            return int(whole.count_rows())

    def checked_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the columns as a list; raise DataError unless the file has each exactly once."""
        wanted = check_unique(columns)
        for name in wanted:
            if self.schema.names.count(name) != 1:
                raise DataError(
                    "missing_column",
                    f"{self.path} must have exactly one column named {name!r}, "
                    f"but has {', '.join(map(repr, self.schema.names))}",
                )
        return wanted

    def batches(self, values: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of at most about ``values`` numbers."""
        with self._damage_as_data_error():
            if self.is_parquet:
                rows = max(1, values // self._width())
                yield from self._reader.iter_batches(batch_size=rows)
                return
            for number in range(self._reader.num_record_batches):
                batch = self._reader.get_batch(number)
                rows = max(1, values // _width_of(batch))
                for start in range(0, len(batch), rows):
                    yield batch.slice(start, rows)

    def _width(self) -> int:
        """Estimate the number of values per row from the first rows and the row groups' sizes."""
        first = next(self._reader.iter_batches(batch_size=FIRST_ROWS), None)
        metadata = self._reader.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        stored = (-(-one.total_byte_size // max(1, one.num_rows)) for one in groups)
        return max(1 if first is None else _width_of(first), max(stored, default=0) // NUMBER_BYTES)

    @contextmanager
    def _damage_as_data_error(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except pa.ArrowNotImplementedError as error:
            raise DataError("unsupported", f"pyarrow cannot read {self.path}: {error}") from error
        except (pa.ArrowException, OSError) as error:
            raise DataError("damaged", f"{self.path} is damaged: {error}") from error


def check_unique(columns: Sequence[str]) -> list[str]:
    """Return the columns as a list; raise DataError if one is named twice."""
    wanted = [*columns]
    for name in wanted:
        if wanted.count(name) > 1:
            raise DataError("repeated_column", f"column {name!r} is named twice")
    return wanted


def _width_of(batch: pa.RecordBatch) -> int:
    size: int = batch.nbytes
    return max(1, -(-size // (NUMBER_BYTES * max(1, len(batch)))))


@contextmanager
def open_table(path: Path) -> Iterator[ParquetTable]:
    """Open a parquet file, or an arrow file (the IPC file format), by its extension."""
    pa = _pyarrow()
    # buffered, without reading ahead, because a row group may be larger than memory
    options: dict[str, Any] = {"buffer_size": READ_BYTES, "pre_buffer": False}
    with path.open("rb"):  # raises for a missing file
        pass
    with ExitStack() as opened:
        try:
            if path.suffix.lower() in PARQUET:
                from pyarrow import parquet

                reader = opened.enter_context(parquet.ParquetFile(path, **options))
            else:
                reader = pa.ipc.open_file(opened.enter_context(_arrow_file(path)))
        except (pa.ArrowException, OSError) as error:
            form = "parquet" if path.suffix.lower() in PARQUET else "arrow (IPC file format)"
            raise DataError("not_a_table", f"{path} is not a valid {form} file: {error}") from error
        yield ParquetTable(path, reader)


def _arrow_file(path: Path) -> Any:
    """Open an arrow file for reading batch by batch, memory-mapped if its batches are large."""
    pa = _pyarrow()
    with pa.OSFile(str(path)) as file:
        batches = pa.ipc.open_file(file).num_record_batches
    is_large = path.stat().st_size > LARGE_BATCH_BYTES * max(1, batches)
    return pa.memory_map(str(path)) if is_large else pa.OSFile(str(path))


@contextmanager
def new_table(path: Path, kind: str, schema: pa.Schema) -> Iterator[Any]:
    """Create a parquet or arrow file and yield a writer of record batches."""
    pa = _pyarrow()
    if kind in PARQUET:
        from pyarrow import parquet

        # dictionary encoding only slows down columns whose values hardly ever repeat
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
def locate_errors(path: Path, first: int) -> Iterator[None]:
    """Add the file name to errors raised in the block, and ``first`` to their row numbers."""
    try:
        yield
    except DataError as error:
        if error.first is None:
            raise DataError(error.code, f"{path}: {error}") from error
        row = first + error.first
        words = f"{path}: {error.rule} (first invalid row: {row}, counted from 0)"
        raise DataError(error.code, words) from error


def numbers_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Array:
    """Return the numbers (n, k) of a list column or several columns, or (n,) of a plain column."""
    return as_array(batch.select([*columns]), " and ".join(columns))


def with_columns(batch: pa.RecordBatch | None, added: Mapping[str, Array]) -> pa.RecordBatch:
    """Return a batch with added columns; the rows of a matrix become lists of a fixed size."""
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


def without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with dictionary-encoded columns decoded."""
    pa = _pyarrow()
    fields = [field.with_type(_plain(field.type)) for field in batch.schema]
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, fields, strict=True)
    ]
    schema = pa.schema(fields, metadata=batch.schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(kind: Any) -> Any:
    """Return a type with dictionary encoding removed, also within structs and lists."""
    pa = _pyarrow()
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ImportError(
            "parquet and arrow files need pyarrow: pip install 'calibrd[batch]'"
        ) from error
    return pyarrow
