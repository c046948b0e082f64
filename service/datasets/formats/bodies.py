"""Arrays in a body and arrays as a body: the formats, and what all of them share.

A format is a member of ``Format`` and a file in this folder with its ``Codec``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, get_args

from calibrators import DataError
from calibrators.data import Kind
from calibrators.scan import instances_of
from calibrators.segments import Segments
from service.datasets.formats import segment_names
from service.datasets.formats.segment_names import SEGMENTS
from service.errors import Invalid, Malformed, NotAcceptable, TooLarge, Unsupported

if TYPE_CHECKING:
    from service.datasets.formats.npy import Array, Bytes, Column

KINDS: tuple[Kind, ...] = get_args(Kind)
LABELS = "labels"
VALUES = "values"
NAMES = (*KINDS, VALUES, LABELS, SEGMENTS)
UNTOLD = (None, "", "application/octet-stream")


class Format(StrEnum):
    """How arrays travel; the value is also the ending of files."""

    NPY = "npy"
    NPZ = "npz"
    SAFETENSORS = "safetensors"
    JSON = "json"
    CSV = "csv"

    # an enum's own hash runs in Python, several times for every predict call
    __hash__ = str.__hash__

    @property
    def codec(self) -> Codec:
        """How bodies in this format are read and written."""
        return all_codecs()[self]

    @property
    def media_type(self) -> str:
        """The media type of bodies in this format."""
        return self.codec.media_types[0]


class Arrays(NamedTuple):
    """What was sent: values (n, k) or (n,), labels and segments (n,), and what the values are.

    There need be no labels and no segments. ``declared`` is None where nothing says it (npy, arrays
    called ``values``, a bare JSON list, some CSV). The arrays may share the memory of the body; in
    which order of bytes, rows and columns they are kept is as sent.
    """

    values: Array
    labels: Array | None = None
    declared: Kind | None = None
    segments: Array | Segments | None = None


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How a format is read and written. Whatever the bytes, only errors with a code are raised.

    ``media_types`` begin with the format's own. ``holds`` says in a sentence what it is for.
    ``decode`` reads a body of at most ``limit`` bytes, as sent and unpacked. ``columns`` reads a
    file of a given size by rows, in constant memory; without it files are decoded whole. ``encode``
    writes an answer; without it the format is read for datasets only. ``begins`` recognises the
    first bytes. ``unpacked_size`` tells the memory that a body takes once it is unpacked.
    ``parsed_size`` counts the bytes that cost as much time as those of JSON.

    ``is_text`` limits bodies to ``max_json_bytes``; ``example`` is such a text. ``is_named`` is
    False where there is one array without a name, so no labels. ``is_file`` offers the format in
    the dashboard.
    """

    format: Format
    media_types: tuple[str, ...]
    holds: str
    decode: Callable[[Bytes, int], Arrays]
    columns: Callable[[BinaryIO, int, int], dict[str, Column]] | None = None
    encode: Callable[[dict[str, Array]], bytes] | None = None
    begins: Callable[[bytes], bool] | None = None
    unpacked_size: Callable[[Bytes, int], int] | None = None
    parsed_size: Callable[[Bytes], int] = len
    is_text: bool = False
    is_named: bool = True
    is_file: bool = True
    example: str | None = None


@cache
def all_codecs() -> dict[Format, Codec]:
    """Return the codec of each format, found by scanning this folder."""
    package = importlib.import_module(__package__ or "")
    found = {one.format: one for one in instances_of(package, Codec)}
    return {format: found[format] for format in Format}


@cache
def media_types() -> dict[str, Format]:
    """Return the format of each media type that is read."""
    return {name: one.format for one in all_codecs().values() for name in one.media_types}


def format_of(content_type: str | None, head: bytes) -> Format:
    """The format that a content type names, or that the first bytes show if it names none.

    >>> format_of("application/json; charset=utf-8", b"").value
    'json'
    >>> format_of(None, bytes([0x93]) + b"NUMPY").value
    'npy'
    """
    known = media_types()
    found = known.get(content_type or "")
    if found is not None:
        return found
    media_type = (content_type or "").partition(";")[0].strip().lower()
    found = _sniffed(head) if media_type in UNTOLD else known.get(media_type)
    if found is None:
        raise Unsupported(
            "unsupported_media_type",
            f"{_said(media_type)}; send one of {', '.join(one.media_type for one in Format)}",
            read=sorted(known),
        )
    return found


def read_arrays(format: Format, body: Bytes, *, limit: int) -> Arrays:
    """The arrays of a body of at most ``limit`` bytes, as sent and unpacked.

    npz, safetensors and JSON objects name them: one of ``logits``, ``probabilities`` and (where it
    need not be said which) ``values``, with ``labels`` and ``segments`` if there are any; CSV names
    their columns. The rules of calibrators (NaN, ranges) are left to it.
    """
    check_size(len(body), limit)
    if not len(body):
        raise Malformed("empty_body", "the body is empty: send the logits or probabilities")
    return format.codec.decode(body, limit)


def encode(format: Format, arrays: dict[str, Array]) -> bytes:
    """Arrays as a body; npy holds exactly one, whose name is dropped."""
    codec = format.codec
    if codec.encode is None:
        raise NotAcceptable("not_acceptable", f"{format} is read for datasets, and never answered")
    if len(arrays) != 1 and not codec.is_named:
        raise NotAcceptable(
            "one_array_only", f"{format} holds one array: ask for npz, safetensors or JSON"
        )
    return codec.encode(arrays)


def check_size(size: int, limit: int) -> None:
    """Refuse more bytes than allowed."""
    if size > limit:
        raise TooLarge(
            "body_too_large", f"at most {limit} bytes are taken, got {size}", limit=limit
        )


def check_names(names: Iterable[str]) -> None:
    """Refuse arrays that no one asked for."""
    for name in names:
        if name not in NAMES:
            raise Invalid(
                "unknown_array",
                f"the array {name[:40]!r} is not known: name the values logits or probabilities, "
                "the true classes labels, and the names of the segments segments",
            )


def check_dimensions(name: str, shape: tuple[int, ...]) -> None:
    """Refuse what has neither one nor two dimensions, as calibrators does."""
    if len(shape) in (1, 2):
        return
    if name == LABELS:
        rule = f"(n,), got {shape}; for one-hot rows pass argmax(axis=1)"
        raise DataError("bad_label_shape", f"labels must have shape {rule}")
    raise DataError("bad_shape", f"{name} must have shape (n, k), (n, 1) or (n,), got {shape}")


def declared_kind(names: Iterable[str]) -> Kind | None:
    """Which of logits and probabilities is there, None for values; exactly one must be."""
    given = set(names)
    sent = [name for name in (*KINDS, VALUES) if name in given]
    if len(sent) != 1:
        raise Invalid(
            "logits_or_probabilities",
            "send exactly one of logits, probabilities and values, "
            f"got {' and '.join(sent) or 'none of them'}",
        )
    return next((kind for kind in KINDS if kind in given), None)


def named_arrays(arrays: dict[str, Array]) -> Arrays:
    """Return the arrays of a body that names them; raise if one is unknown or missing."""
    check_names(arrays)
    declared = declared_kind(arrays)
    segments = arrays.pop(SEGMENTS, None)
    for name, array in arrays.items():
        check_dimensions(name, array.shape)
    return Arrays(
        arrays[declared or VALUES],
        arrays.get(LABELS),
        declared,
        None if segments is None else segment_names.checked(segments),
    )


def _said(media_type: str) -> str:
    if media_type in UNTOLD:
        return "the body is of no format that is read here, and no content type says which"
    return f"the content type {media_type[:80]!r} is not read here"


def _sniffed(head: bytes) -> Format | None:
    codecs = all_codecs().values()
    return next((one.format for one in codecs if one.begins and one.begins(head)), None)
