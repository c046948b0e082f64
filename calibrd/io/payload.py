"""Pack a dataset for upload into pieces of memory, which are hashed and sent without copying.

The format is safetensors, or npz for data with segments, which safetensors cannot store.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import IO, Any, cast

import numpy as np

from calibrators.data import Kind
from calibrd.io import npy_files
from calibrd.io.arrays import as_array
from calibrd.io.calibration_sets import checked_set, names_of

SAFETENSORS, NPZ = "application/x-safetensors", "application/x-npz"
DTYPES = {"<f4": "F32", "<f8": "F64", "<f2": "F16", "<i8": "I64"}


class Payload:
    """Pieces of memory that can be read as one sequence of bytes."""

    def __init__(self, pieces: Sequence[memoryview], media_type: str = SAFETENSORS) -> None:
        self.media_type = media_type
        self._pieces = pieces
        self.bytes = sum(piece.nbytes for piece in pieces)

    @cached_property
    def sha256(self) -> str:
        """The hash of all bytes."""
        found = hashlib.sha256()
        for piece in self._pieces:
            found.update(piece)
        return found.hexdigest()

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``.

        >>> Payload([memoryview(b"abc"), memoryview(b"def")]).read(2, 5)
        b'cde'
        """
        return b"".join(self._cut(start, stop))

    def _cut(self, start: int, stop: int) -> Iterator[memoryview]:
        offset = 0
        for piece in self._pieces:
            first, last = max(start - offset, 0), min(stop - offset, piece.nbytes)
            if first < last:
                yield piece[first:last]
            offset += piece.nbytes


def pack_dataset(
    values: Any,
    labels: Any,
    kind: Kind,
    segments: Any = None,
    features: Any = None,
    head: Any = None,
) -> Payload:
    """Check a dataset by the same rules as the service, then pack it."""
    array, truth = as_array(values, kind), as_array(labels, "labels")
    checked = checked_set(array, truth, kind, segments, features, head)
    if array.dtype.kind != "f" or array.itemsize > 8:
        array = array.astype(np.float64)
    arrays = {kind: array, "labels": checked.labels}
    if checked.features is not None:
        arrays["features"] = checked.features.values
        if checked.features.head is not None:
            arrays["head_weight"] = checked.features.head.weight
            arrays["head_bias"] = checked.features.head.bias
    if checked.segments is None:
        return tensors(arrays)
    return npz({**arrays, "segments": names_of(checked.segments)})


def tensors(arrays: dict[str, np.ndarray[Any, Any]]) -> Payload:
    """Pack arrays in the safetensors format; equal arrays give equal bytes."""
    header: dict[str, Any] = {}
    pieces, offset = [], 0
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        end = offset + plain.nbytes
        header[name] = {
            "dtype": DTYPES[plain.dtype.str],
            "shape": list(plain.shape),
            "data_offsets": [offset, end],
        }
        pieces.append(plain.reshape(-1).view(np.uint8).data)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return Payload([memoryview(struct.pack("<Q", len(text)) + text), *pieces])


def npz(arrays: dict[str, np.ndarray[Any, Any]]) -> Payload:
    """Pack arrays as an uncompressed npz file; equal arrays give equal bytes."""
    pieces = _Pieces()
    with zipfile.ZipFile(cast(IO[bytes], pieces), "w") as archive:
        for name, array in arrays.items():
            plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy_files.write_header(file, plain.shape, plain.dtype)
                file.write(plain.reshape(-1).view(np.uint8).data)
    return Payload(pieces.written, NPZ)


class _Pieces:
    """A write-only file that stores references to the written pieces, without copying."""

    def __init__(self) -> None:
        self.written: list[memoryview] = []

    def write(self, data: bytes | memoryview) -> int:
        """Append the bytes."""
        self.written.append(memoryview(data))
        return self.written[-1].nbytes

    def flush(self) -> None:
        """Do nothing, because pieces are not buffered."""
