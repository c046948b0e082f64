"""What an array in a file says of itself, checked before a byte of it is used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError
from calibrators.segments import LONGEST_NAME
from service.errors import Invalid, Malformed

Array = NDArray[Any]
Bytes = bytes | memoryview

DTYPES = frozenset(np.dtype(code) for code in "efdbBhHiIlLqQ?")
CHARACTER_BYTES = 4
LONGEST = 1 << 48
MOST_DIMENSIONS = 32


class Readable(Protocol):
    """A binary file: on disk, or bytes in memory."""

    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Layout:
    """Type, shape and order of an array; ``bfloat16`` says what the bits of a uint16 mean.

    ``is_text`` says that the array may hold names: what ``groups`` do, and nothing else.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False
    bfloat16: bool = False
    is_text: bool = False

    def __post_init__(self) -> None:
        if self.is_text:
            _check_names(self.dtype)
        elif self.dtype.newbyteorder("=") not in DTYPES:
            raise Invalid(
                "bad_type",
                "arrays must be float16, bfloat16, float32, float64, integers or (labels only) "
                f"booleans, got {str(self.dtype)[:80]}",
            )
        if len(self.shape) > MOST_DIMENSIONS or any(size >= LONGEST for size in self.shape):
            raise Malformed("bad_shape", "the header claims a shape that no file can hold")

    @cached_property
    def count(self) -> int:
        """How many numbers, as a Python integer: 2^32 x 2^32 does not overflow to 0."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """How many bytes the numbers take."""
        return self.count * self.dtype.itemsize

    def array(self, data: Bytes, offset: int = 0) -> Array:
        """The array whose numbers start at ``offset`` of ``data``: shared, not copied."""
        flat = np.frombuffer(data, self.dtype, self.count, offset)
        if self.bfloat16:
            flat = widened_bfloat16(flat)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def _check_names(dtype: np.dtype[Any]) -> None:
    """Refuse, by the header alone, what cannot be names."""
    if dtype.kind == "U" and not 1 <= dtype.itemsize // CHARACTER_BYTES <= LONGEST_NAME:
        raise DataError(
            "bad_group_name",
            f"the names of groups must have 1 to {LONGEST_NAME} characters, "
            f"got an array of {str(dtype)[:80]}",
        )
    if dtype.kind != "U" and dtype.newbyteorder("=") not in DTYPES:
        hint = (
            ": save groups.astype(str), with a name such as 'other' where a row has no segment"
            if dtype.hasobject
            else ""
        )
        raise DataError(
            "bad_groups", f"groups must be text or integers, got {str(dtype)[:80]}{hint}"
        )


def widened_bfloat16(bits: Array) -> Array:
    """The float32 numbers of bfloat16 bits: they are the upper halves."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def check_dimensions(name: str, shape: tuple[int, ...]) -> None:
    """Refuse what has neither one nor two dimensions, as calibrators does."""
    if len(shape) in (1, 2):
        return
    if name == "labels":
        rule = f"(n,), got {shape}; for one-hot rows pass argmax(axis=1)"
        raise DataError("bad_label_shape", f"labels must have shape {rule}")
    raise DataError("bad_shape", f"{name} must have shape (n, k), (n, 1) or (n,), got {shape}")


def read_at(file: Readable, offset: int, size: int) -> bytes:
    """Exactly ``size`` bytes from ``offset``."""
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise Malformed(
            "truncated_body",
            f"the file ends after {offset + len(data)} bytes, in the midst of an array",
        )
    return data


def check_length(expected: int, got: int) -> None:
    """Refuse bytes that are not as many as the header says."""
    if got < expected:
        raise Malformed(
            "truncated_body", f"the header describes {expected} bytes but there are {got}"
        )
    if got > expected:
        raise Malformed("trailing_bytes", f"{got - expected} bytes follow the end of the data")
