"""The npy format, versions 1 to 3: a magic, a header that is a Python literal, the numbers.

C and Fortran order and both byte orders are read. The header is parsed as a literal, as numpy does,
after its length and its brackets were counted: parsing takes time linear in at most 4 kB. Object
arrays are refused before anything could be unpickled.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np

from service.datasets.formats.layout import Array, Bytes, Layout, check_length
from service.errors import Invalid, Malformed

MAGIC = b"\x93NUMPY"
PREFIX = 12
LONGEST_HEADER = 4096
ALIGNMENT = 64

# a header of plain numbers has two pairs of brackets and few commas, a structured type some more
MOST_BRACKETS, MOST_COMMAS = 64, 200

_DESCRIPTION = re.compile(r"[<>|=]?[biufcSUVOMm?]\d*")


def decode(body: Bytes, *, is_text: bool = False) -> Array:
    """The array of a whole npy file, without copying its numbers; ``is_text`` takes names too."""
    start = header_length(bytes(body[:PREFIX]))
    layout = parse_header(bytes(body[:start]), is_text=is_text)
    check_length(start + layout.nbytes, len(body))
    # in one step: frombuffer and reshape take twice as long, which counts for small bodies
    return np.ndarray(layout.shape, layout.dtype, body, start, order="F" if layout.fortran else "C")


@lru_cache(maxsize=64)
def header_length(prefix: bytes) -> int:
    """How many bytes come before the numbers, by the first 12 of the file."""
    if prefix[:6] != MAGIC[: len(prefix)]:
        raise Malformed("not_npy", "these bytes do not start as an npy file does")
    if len(prefix) < PREFIX:
        raise Malformed(
            "truncated_body", f"an npy file has a header, got {len(prefix)} bytes in all"
        )
    version = prefix[6]
    if version == 1:
        length = 10 + int.from_bytes(prefix[8:10], "little")
    elif version in (2, 3):
        length = 12 + int.from_bytes(prefix[8:12], "little")
    else:
        raise Malformed("unknown_version", f"npy versions 1 to 3 are read, got {version}")
    if not PREFIX <= length <= LONGEST_HEADER:
        raise Malformed(
            "bad_header", f"an npy header has 12 to {LONGEST_HEADER} bytes here, got {length}"
        )
    return length


@lru_cache(maxsize=256)
def parse_header(header: bytes, *, is_text: bool = False) -> Layout:
    """What a whole header, from the magic to the newline, says."""
    if len(header) < header_length(header[:PREFIX]):
        raise Malformed("truncated_body", f"the npy header ends after {len(header)} bytes")
    fields = _literal(header[10 if header[6] == 1 else 12 :].decode("latin-1").strip())
    if set(fields) != {"descr", "fortran_order", "shape"}:
        raise _bad_header()
    description, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if isinstance(description, list):
        raise Invalid("bad_type", "structured arrays are not read: send one array of numbers")
    if not isinstance(description, str) or not isinstance(fortran, bool) or not _is_shape(shape):
        raise _bad_header()
    return Layout(_dtype(description), shape, fortran=fortran, is_text=is_text)


def encode(array: Array) -> bytes:
    """An npy file (version 1) of an array."""
    array = np.ascontiguousarray(array)
    return b"".join((written_header(array.dtype, array.shape), array.data))


@lru_cache(maxsize=256)
def written_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of an array in C order, padded so that the numbers are aligned."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    padding = -(len(text) + 11) % ALIGNMENT
    length = len(text) + padding + 1
    return (
        MAGIC + b"\x01\x00" + length.to_bytes(2, "little") + (text + " " * padding).encode() + b"\n"
    )


def _bad_header() -> Malformed:
    return Malformed("bad_header", "the npy header does not give descr, fortran_order and shape")


def _dtype(description: str) -> np.dtype[np.generic]:
    if not _DESCRIPTION.fullmatch(description):
        raise Malformed("bad_header", f"the npy header has an unknown type {description[:40]!r}")
    try:
        return np.dtype(description)
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed(
            "bad_header", f"the npy header has an unknown type {description[:40]!r}"
        ) from error


def _literal(text: str) -> dict[Any, Any]:
    """Return the dictionary that a header holds; its length was limited before."""
    if sum(map(text.count, "([{")) > MOST_BRACKETS or text.count(",") > MOST_COMMAS:
        raise _bad_header()
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise _bad_header() from error
    if not isinstance(found, dict):
        raise _bad_header()
    return found


def _is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(one) is int and one >= 0 for one in value)
