"""Arrays in a body, and arrays as a body."""

from __future__ import annotations

import io
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple, get_args

import numpy as np

from calibrators.data import Kind
from calibrators.segments import Segments
from service.concurrency.thread_pools import parsing_turn
from service.datasets.formats import csv_text, json_text, npy, npz, safetensors, segment_names
from service.datasets.formats.npy import Array, Bytes, Readable, check_dimensions
from service.datasets.formats.segment_names import SEGMENTS
from service.errors import Invalid, Malformed, NotAcceptable, TooLarge, Unsupported
from service.http import json_answer, json_body

KINDS: tuple[Kind, ...] = get_args(Kind)
LABELS = "labels"
VALUES = "values"
NAMES = (*KINDS, VALUES, LABELS, SEGMENTS)
SEGMENT_COPIES = 2


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


def read_arrays(format: Format, body: Bytes, *, limit: int) -> Arrays:
    """The arrays of a body of at most ``limit`` bytes, as sent and unpacked.

    npz, safetensors and JSON objects name them: one of ``logits``, ``probabilities`` and (where it
    need not be said which) ``values``, with ``labels`` and ``segments`` if there are any; CSV names
    their columns. The rules of calibrators (NaN, ranges) are left to it.
    """
    check_size(len(body), limit)
    if not len(body):
        raise Malformed("empty_body", "the body is empty: send the logits or probabilities")
    match format:
        case Format.NPY:
            return Arrays(_checked(VALUES, npy.decode(body)))
        case Format.NPZ:
            return _named(_npz(body, limit))
        case Format.SAFETENSORS:
            return _named(safetensors.decode(body))
        case Format.JSON:
            with parsing_turn(len(body)):
                return _document(json_body.parse(body))
        case Format.CSV:
            return Arrays(*csv_text.decode(body))


def arrays_of_document(document: dict[str, Any]) -> Arrays:
    """The arrays among the fields of a JSON document; other fields are left alone."""
    declared = declared_kind(document)
    labels, segments = document.get(LABELS), document.get(SEGMENTS)
    return Arrays(
        json_text.numbers(declared or VALUES, document[declared or VALUES]),
        None if labels is None else json_text.numbers(LABELS, labels),
        declared,
        None if segments is None else segment_names.from_list(segments),
    )


def encode(format: Format, arrays: dict[str, Array]) -> bytes:
    """Arrays as a body; npy holds exactly one, whose name is dropped."""
    match format:
        case Format.NPY:
            if len(arrays) != 1:
                raise NotAcceptable(
                    "one_array_only", "npy holds one array: ask for npz, safetensors or JSON"
                )
            return npy.encode(next(iter(arrays.values())))
        case Format.NPZ:
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, **arrays)
            return file.getvalue()
        case Format.SAFETENSORS:
            return safetensors.encode(arrays)
        case Format.JSON:
            lists = {name: json_answer.blocks(one) for name, one in arrays.items()}
            return json_answer.write({}, **lists)
        case Format.CSV:
            raise NotAcceptable("not_acceptable", "CSV is read for datasets, and never answered")


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


def npz_members(file: Readable, size: int, limit: int) -> dict[str, npz.ZipMember]:
    """The members of an npz file by array name; together at most ``limit`` bytes unpacked."""
    found = npz.members(file, size)
    check_names(one.name.removesuffix(".npy") for one in found if one.name.endswith(".npy"))
    odd = next((one.name for one in found if not one.name.endswith(".npy")), None)
    if odd is not None:
        raise Invalid("unknown_array", f"the zip member {odd[:40]!r} is not an npy file")
    check_size(sum(one.unpacked for one in found), limit)
    return {one.name.removesuffix(".npy"): one for one in found}


def unpacked_size(body: Bytes, limit: int) -> int:
    """Return how much memory the arrays of an npz body take, by its directory alone."""
    found = npz_members(io.BytesIO(body), len(body), limit)
    segments = found[SEGMENTS].unpacked if SEGMENTS in found else 0
    # each row gets the number and the scale of its segment, even if its name has one byte
    return sum(one.unpacked for one in found.values()) + SEGMENT_COPIES * segments


def _npz(body: Bytes, limit: int) -> dict[str, Array]:
    file = io.BytesIO(body)
    found = npz_members(file, len(body), limit)
    return {
        name: npy.decode(npz.Unpacked(file, one).read(one.unpacked), is_text=name == SEGMENTS)
        for name, one in found.items()
    }


def _document(document: Any) -> Arrays:
    if isinstance(document, list):
        return Arrays(json_text.numbers(VALUES, document))
    if not isinstance(document, dict):
        raise Invalid("not_an_array", "the body must be a list of numbers or an object of arrays")
    check_names(document)
    return arrays_of_document(document)


def _named(arrays: dict[str, Array]) -> Arrays:
    check_names(arrays)
    declared = declared_kind(arrays)
    segments = arrays.pop(SEGMENTS, None)
    for name, array in arrays.items():
        _checked(name, array)
    return Arrays(
        arrays[declared or VALUES],
        arrays.get(LABELS),
        declared,
        None if segments is None else segment_names.checked(segments),
    )


def _checked(name: str, array: Array) -> Array:
    check_dimensions(name, array.shape)
    return array


class Format(StrEnum):
    """How arrays travel."""

    NPY = "npy"
    NPZ = "npz"
    SAFETENSORS = "safetensors"
    JSON = "json"
    CSV = "csv"

    # an enum's own hash runs in Python, several times for every predict call
    __hash__ = str.__hash__

    @property
    def media_type(self) -> str:
        """The media type of bodies in this format."""
        return _TYPES[self]


_TYPES = {
    Format.NPY: "application/x-npy",
    Format.NPZ: "application/x-npz",
    Format.SAFETENSORS: "application/x-safetensors",
    Format.JSON: "application/json",
    Format.CSV: "text/csv",
}
MEDIA_TYPES = {
    **{media_type: one for one, media_type in _TYPES.items()},
    "application/numpy": Format.NPY,
    "application/x-numpy": Format.NPY,
    "application/zip": Format.NPZ,
    "application/vnd.safetensors": Format.SAFETENSORS,
}
ANSWERED = (Format.NPY, Format.NPZ, Format.SAFETENSORS, Format.JSON)
UNTOLD = (None, "", "application/octet-stream")


def format_of(content_type: str | None, head: bytes) -> Format:
    """The format that a content type names, or that the first bytes show if it names none.

    >>> format_of("application/json; charset=utf-8", b"").value
    'json'
    >>> format_of(None, bytes([0x93]) + b"NUMPY").value
    'npy'
    """
    found = MEDIA_TYPES.get(content_type or "")
    if found is not None:
        return found
    media_type = (content_type or "").partition(";")[0].strip().lower()
    found = _sniffed(head) if media_type in UNTOLD else MEDIA_TYPES.get(media_type)
    if found is None:
        raise Unsupported(
            "unsupported_media_type",
            f"{_said(media_type)}; send one of {', '.join(_TYPES.values())}",
            read=sorted(MEDIA_TYPES),
        )
    return found


def _said(media_type: str) -> str:
    if media_type in UNTOLD:
        return "the body is of no format that is read here, and no content type says which"
    return f"the content type {media_type[:80]!r} is not read here"


def _sniffed(head: bytes) -> Format | None:
    if head.startswith(b"\x93NUMPY"):
        return Format.NPY
    if head.startswith(b"PK\x03\x04"):
        return Format.NPZ
    if head[8:9] == b"{" and head[5:8] == b"\0\0\0":
        return Format.SAFETENSORS
    if head.lstrip()[:1] in (b"{", b"["):
        return Format.JSON
    return None
