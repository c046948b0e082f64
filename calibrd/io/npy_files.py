"""Read and write npy and npz files in blocks of rows, in constant memory."""

from __future__ import annotations

import math
import shutil
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError

Array = NDArray[Any]
HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
COPIED_BYTES = 1 << 20


class NpyRows:
    """The rows of an array in a file, (n,) or (n, k)."""

    def __init__(self, file: IO[bytes], name: str, path: Path | None = None) -> None:
        self.name = name
        self._file = file
        self._path = path
        try:
            version = np.lib.format.read_magic(file)
            self.shape, self.columnwise, self.dtype = HEADERS[version](file)
        except (ValueError, KeyError, EOFError) as error:
            raise DataError(
                "not_an_array", f"{name} is not a valid numpy array: {error}"
            ) from error
        if self.dtype.hasobject:
            raise DataError(
                "pickled",
                f"{name} contains pickled objects, which are never loaded: save numbers or, for "
                "segments, segments.astype(str)",
            )
        if len(self.shape) not in (1, 2):
            raise DataError("bad_shape", f"{name} must have shape (n, k) or (n,), got {self.shape}")

    def rows_of(self, values: int) -> int:
        """Return the number of rows that hold about ``values`` values."""
        return max(1, values // max(1, math.prod(self.shape[1:])))

    def blocks(self, rows: int) -> Iterator[Array]:
        """Yield blocks of ``rows`` rows."""
        width = math.prod(self.shape[1:])
        if self.columnwise and len(self.shape) > 1:
            yield from self._mapped(rows)
            return
        for start in range(0, self.shape[0], rows):
            count = min(rows, self.shape[0] - start)
            size = count * width * self.dtype.itemsize
            content = self._file.read(size)
            if len(content) < size:
                raise DataError(
                    "cut_off", f"{self.name} is truncated: it ends after {start:,} rows"
                )
            yield np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])

    def _mapped(self, rows: int) -> Iterator[Array]:
        """Yield blocks of an array that is stored column by column."""
        if self._path is None:
            raise DataError(
                "column_by_column",
                f"{self.name} is stored column by column: save np.ascontiguousarray(...) instead",
            )
        whole = np.load(self._path, mmap_mode="r")
        for start in range(0, len(whole), rows):
            yield np.ascontiguousarray(whole[start : start + rows])


@contextmanager
def open_rows(path: Path, kind: str) -> Iterator[NpyRows]:
    """Open the array in an npy file, or the array named ``kind`` in an npz."""
    if path.suffix.lower() == ".npy":
        with path.open("rb") as file:
            yield NpyRows(file, str(path), path)
        return
    with opened_npz(path) as archive:
        member = f"{kind}.npy"
        if member not in archive.namelist():
            raise DataError(
                "missing_array",
                f"{path} must contain an array named {kind!r}, but contains {members_of(archive)}",
            )
        with archive.open(member) as file:
            yield NpyRows(file, f"{kind} of {path}")


@contextmanager
def opened_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an npz as a zip file; raise DataError if it is damaged."""
    with path.open("rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            raise DataError(
                "not_an_npz", f"{path} is not an npz file: write one with np.savez"
            ) from error
        with archive:
            try:
                yield archive
            except (zipfile.BadZipFile, zlib.error) as error:
                raise DataError("damaged", f"{path} is damaged: {error}") from error


def names_in(path: Path) -> list[str]:
    """Return the names of the arrays in an npz."""
    with opened_npz(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def members_of(archive: zipfile.ZipFile) -> str:
    """Return the names of the arrays in an npz as text for error messages."""
    return ", ".join(repr(name.removesuffix(".npy")) for name in archive.namelist()) or "nothing"


def write_header(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write the header of an npy file."""
    described = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": described, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)


def copy_arrays(source: Path, target: zipfile.ZipFile, names: Collection[str]) -> None:
    """Copy the arrays ``names`` of an npz unchanged."""
    with opened_npz(source) as archive:
        for name in archive.namelist():
            if name.removesuffix(".npy") in names:
                with archive.open(name) as held, target.open(name, "w", force_zip64=True) as copy:
                    shutil.copyfileobj(held, copy, COPIED_BYTES)
