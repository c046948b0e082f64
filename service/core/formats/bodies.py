"""Arrays in a body, and arrays as a body."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

import numpy as np
import orjson

from calibrators.data import Kind
from service.core.formats import documents, npy, tables, tensors, zipped
from service.core.formats.layout import Array, Bytes, Readable, check_dimensions
from service.core.formats.media import Format
from service.errors import Invalid, Malformed, NotAcceptable, TooLarge

KINDS: tuple[Kind, ...] = get_args(Kind)
LABELS = "labels"
NAMES = (*KINDS, LABELS)


class Arrays(NamedTuple):
    """What was sent: values (n, k) or (n,), labels (n,) if there are any, and what the values are.

    ``declared`` is None where nothing says it (npy, a bare JSON list, some CSV). The arrays may
    share the memory of the body; in which order of bytes, rows and columns they are kept is as
    sent.
    """

    values: Array
    labels: Array | None = None
    declared: Kind | None = None


def read_arrays(format: Format, body: Bytes, *, limit: int) -> Arrays:
    """The arrays of a body of at most ``limit`` bytes, as sent and unpacked.

    npz, safetensors and JSON objects name them: exactly one of ``logits`` and ``probabilities``,
    and ``labels`` if there are any; CSV names their columns. The rules of calibrators (NaN, ranges)
    are left to it.
    """
    check_size(len(body), limit)
    if not len(body):
        raise Malformed("empty_body", "the body is empty: send the logits or probabilities")
    match format:
        case Format.NPY:
            return Arrays(_checked("values", npy.decode(body)))
        case Format.NPZ:
            return _named(_npz(body, limit))
        case Format.SAFETENSORS:
            return _named(tensors.decode(body))
        case Format.JSON:
            return _document(documents.parse(body))
        case Format.CSV:
            return Arrays(*tables.decode(body))


def arrays_of_document(document: dict[str, Any]) -> Arrays:
    """The arrays among the fields of a JSON document; other fields are left alone."""
    declared = declared_kind(document)
    labels = document.get(LABELS)
    return Arrays(
        documents.numbers(declared, document[declared]),
        None if labels is None else documents.numbers(LABELS, labels),
        declared,
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
            return tensors.encode(arrays)
        case Format.JSON:
            return orjson.dumps(
                {name: np.ascontiguousarray(one) for name, one in arrays.items()},
                option=orjson.OPT_SERIALIZE_NUMPY,
            )
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
                "and the true classes labels",
            )


def declared_kind(names: Iterable[str]) -> Kind:
    """Which of logits and probabilities is there; exactly one must be."""
    given = set(names)
    found = [kind for kind in KINDS if kind in given]
    if len(found) != 1:
        got = "both" if found else "neither"
        raise Invalid(
            "logits_or_probabilities", f"send exactly one of logits and probabilities, got {got}"
        )
    return found[0]


def npz_members(file: Readable, size: int, limit: int) -> dict[str, zipped.Member]:
    """The members of an npz file by array name; together at most ``limit`` bytes unpacked."""
    found = zipped.members(file, size)
    check_names(one.name.removesuffix(".npy") for one in found if one.name.endswith(".npy"))
    odd = next((one.name for one in found if not one.name.endswith(".npy")), None)
    if odd is not None:
        raise Invalid("unknown_array", f"the zip member {odd[:40]!r} is not an npy file")
    check_size(sum(one.unpacked for one in found), limit)
    return {one.name.removesuffix(".npy"): one for one in found}


def _npz(body: Bytes, limit: int) -> dict[str, Array]:
    file = io.BytesIO(body)
    found = npz_members(file, len(body), limit)
    return {
        name: npy.decode(zipped.Unpacked(file, one).read(one.unpacked))
        for name, one in found.items()
    }


def _document(document: Any) -> Arrays:
    if isinstance(document, list):
        return Arrays(documents.numbers("values", document))
    if not isinstance(document, dict):
        raise Invalid("not_an_array", "the body must be a list of numbers or an object of arrays")
    check_names(document)
    return arrays_of_document(document)


def _named(arrays: dict[str, Array]) -> Arrays:
    check_names(arrays)
    declared = declared_kind(arrays)
    for name, array in arrays.items():
        _checked(name, array)
    return Arrays(arrays[declared], arrays.get(LABELS), declared)


def _checked(name: str, array: Array) -> Array:
    check_dimensions(name, array.shape)
    return array
