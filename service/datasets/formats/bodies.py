"""Array formats for request and response bodies, and the code they share.

To add a format, add a member to ``Format`` and a file with its ``Codec`` to this folder.
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
from service.datasets.formats.feature_columns import (
    FEATURE_NAMES,
    FEATURES,
    HEAD_BIAS,
    HEAD_WEIGHT,
)
from service.datasets.formats.segment_names import SEGMENTS
from service.errors import Invalid, Malformed, NotAcceptable, TooLarge, Unsupported
from service.http.body_kinds import media_type_in

if TYPE_CHECKING:
    from service.datasets.formats.npy import Array, Bytes, Column

KINDS: tuple[Kind, ...] = get_args(Kind)
LABELS = "labels"
VALUES = "values"
NAMES = (*KINDS, VALUES, LABELS, SEGMENTS, *FEATURE_NAMES)
UNSPECIFIED = (None, "", "application/octet-stream")


class Format(StrEnum):
    """Array formats; each value is also the file extension."""

    NPY = "npy"
    NPZ = "npz"
    SAFETENSORS = "safetensors"
    JSON = "json"
    CSV = "csv"

    # Enum.__hash__ is pure Python and would run several times per predict call
    __hash__ = str.__hash__

    @property
    def codec(self) -> Codec:
        """The codec of this format."""
        return all_codecs()[self]

    @property
    def media_type(self) -> str:
        """The media type of bodies in this format."""
        return self.codec.media_types[0]


class Arrays(NamedTuple):
    """The arrays in a body: values (n, k) or (n,), labels (n,), segments (n,) and their kind.

    Labels, segments, features (n, d) and the head's weight and bias are optional. ``declared`` is
    None if the body does not state the kind (npy, arrays named ``values``, a bare JSON list, some
    CSV). The arrays may share memory with the body; they keep its byte order and memory layout.
    """

    values: Array
    labels: Array | None = None
    declared: Kind | None = None
    segments: Array | Segments | None = None
    features: Array | None = None
    head_weight: Array | None = None
    head_bias: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Codec:
    """Reader and writer of a format. All errors for malformed input have a code.

    The first of ``media_types`` is the canonical one. ``holds`` describes the contents.
    ``decode`` reads a body of at most ``limit`` bytes, both as sent and unpacked. ``columns``
    reads a file of a given size in blocks of rows, in constant memory; without it, files are
    decoded whole. ``encode`` writes a response; without it, the format is for datasets only.
    ``begins`` recognises the format by its first bytes. ``unpacked_size`` returns the memory that
    an unpacked body takes. ``parsed_size`` returns the parsing cost as a number of JSON bytes.

    ``is_text`` limits bodies to ``max_json_bytes``; ``example`` is a sample text body.
    ``is_named`` is False if a body holds a single unnamed array, and therefore no labels.
    ``is_file`` is True if the dashboard offers the format.
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
    """Return the codec of each format, found by scanning this package."""
    package = importlib.import_module(__package__ or "")
    found = {one.format: one for one in instances_of(package, Codec)}
    return {format: found[format] for format in Format}


@cache
def media_types() -> dict[str, Format]:
    """Return the format of each supported media type."""
    return {name: one.format for one in all_codecs().values() for name in one.media_types}


def format_of(content_type: str | None, head: bytes) -> Format:
    """Return the format for a content type; if unspecified, detect it from the first bytes.

    >>> format_of("application/json; charset=utf-8", b"").value
    'json'
    >>> format_of(None, bytes([0x93]) + b"NUMPY").value
    'npy'
    """
    known = media_types()
    found = known.get(content_type or "")
    if found is not None:
        return found
    media_type = media_type_in(content_type)
    found = _sniffed(head) if media_type in UNSPECIFIED else known.get(media_type)
    if found is None:
        raise Unsupported(
            "unsupported_media_type",
            f"{_reason(media_type)}: send one of {', '.join(one.media_type for one in Format)}",
            read=sorted(known),
        )
    return found


def read_arrays(format: Format, body: Bytes, *, limit: int) -> Arrays:
    """Return the arrays in a body; ``limit`` applies to its size both as sent and unpacked.

    npz, safetensors and JSON objects name their arrays. One of them must be ``logits``,
    ``probabilities`` or (if the kind is stated elsewhere) ``values``; ``labels``, ``segments``,
    ``features``, ``head_weight`` and ``head_bias`` are optional. CSV columns contain values, labels
    and segments. Numbers are not validated here: calibrators checks for NaN and ranges.
    """
    check_size(len(body), limit)
    if not len(body):
        raise Malformed("empty_body", "the body is empty: send the logits or probabilities")
    return format.codec.decode(body, limit)


def encode(format: Format, arrays: dict[str, Array]) -> bytes:
    """Encode arrays as a body; npy takes exactly one array and drops its name."""
    codec = format.codec
    if codec.encode is None:
        raise NotAcceptable(
            "not_acceptable", f"{format} is supported for datasets only, not for responses"
        )
    if len(arrays) != 1 and not codec.is_named:
        raise NotAcceptable(
            "one_array_only", f"{format} holds only one array: request npz, safetensors or JSON"
        )
    return codec.encode(arrays)


def check_size(size: int, limit: int) -> None:
    """Raise TooLarge if ``size`` exceeds ``limit``."""
    if size > limit:
        raise TooLarge(
            "body_too_large", f"at most {limit} bytes are allowed, got {size}", limit=limit
        )


def check_names(names: Iterable[str]) -> None:
    """Raise Invalid if an array has an unknown name."""
    for name in names:
        if name not in NAMES:
            raise Invalid(
                "unknown_array",
                f"unknown array {name[:40]!r}: valid names are logits or probabilities for the "
                "values, labels for the true classes, segments for the segment names, "
                f"{FEATURES} for the input to the last layer, and {HEAD_WEIGHT} and {HEAD_BIAS} "
                "for that layer",
            )


def check_dimensions(name: str, shape: tuple[int, ...]) -> None:
    """Raise the same DataError as calibrators unless an array has one or two dimensions."""
    if len(shape) in (1, 2):
        return
    if name == LABELS:
        rule = f"(n,), got {shape}; for one-hot rows, pass argmax(axis=1)"
        raise DataError("bad_label_shape", f"labels must have shape {rule}")
    raise DataError("bad_shape", f"{name} must have shape (n, k), (n, 1) or (n,), got {shape}")


def declared_kind(names: Iterable[str]) -> Kind | None:
    """Return the kind that the array names declare; None if the array is named ``values``.

    Raises Invalid unless exactly one of logits, probabilities and values is sent.
    """
    present = set(names)
    sent = [name for name in (*KINDS, VALUES) if name in present]
    if len(sent) != 1:
        raise Invalid(
            "logits_or_probabilities",
            "send exactly one of logits, probabilities and values, "
            f"got {' and '.join(sent) or 'none'}",
        )
    return next((kind for kind in KINDS if kind in present), None)


def named_arrays(arrays: dict[str, Array]) -> Arrays:
    """Validate and return the named arrays of a body; raise if one is unknown or missing."""
    check_names(arrays)
    declared = declared_kind(arrays)
    segments = arrays.pop(SEGMENTS, None)
    features = [arrays.pop(name, None) for name in FEATURE_NAMES]
    for name, array in arrays.items():
        check_dimensions(name, array.shape)
    return Arrays(
        arrays[declared or VALUES],
        arrays.get(LABELS),
        declared,
        None if segments is None else segment_names.checked(segments),
        *features,
    )


def _reason(media_type: str) -> str:
    if media_type in UNSPECIFIED:
        return "the content type names no format, and the format of the body is not recognised"
    return f"the content type {media_type[:80]!r} is not supported"


def _sniffed(head: bytes) -> Format | None:
    codecs = all_codecs().values()
    return next((one.format for one in codecs if one.begins and one.begins(head)), None)
