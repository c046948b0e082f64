"""The inputs of a request: the values and, for a map with segments, the segment of each row."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from numpy.typing import NDArray

from calibrators.segments import Segments, check_length
from service.concurrency.thread_pools import parsing_turn
from service.datasets.formats.segment_names import SEGMENTS, from_names
from service.errors import Invalid, Malformed
from service.serving.inference_protocol import fields
from service.serving.inference_protocol.tensors import (
    DATATYPES,
    TEXT,
    WHOLE,
    from_bytes,
    from_json,
    names_from_bytes,
    names_from_json,
)
from service.serving.map_cache import Served

NUMBER_BYTES = 8  # per number in a list


class Inputs(NamedTuple):
    """Values (n, columns), and the segment of each row (n,) if segments were sent."""

    values: NDArray[Any]
    segments: NDArray[Any] | Segments | None


@dataclass(frozen=True)
class InputTensor:
    """An input: its path in the JSON, its JSON object, and its bytes after the JSON.

    ``size`` is the stated number of these bytes; None if the values are in the JSON.
    """

    path: str
    sent: dict[str, Any]
    size: int | None
    raw: memoryview

    def datatype(self, known: Iterable[str]) -> str:
        """Return the datatype, which must be one of ``known``."""
        found = fields.required(self.sent, f"{self.path}.datatype", str)
        if found not in known:
            raise Malformed(
                "bad_datatype",
                f"{self.path}.datatype must be one of {', '.join(known)}, "
                f"got {reprlib.repr(found)}",
            )
        return found

    def shape(self, form: str, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape; raise Malformed if its number of dimensions or one of them is wrong."""
        found = fields.required(self.sent, f"{self.path}.shape", list)
        if len(found) not in dimensions or any(type(one) is not int or one < 1 for one in found):
            raise Malformed(
                "bad_tensor_shape",
                f"{self.path}.shape must be {form} with n at least 1, got {reprlib.repr(found)}",
            )
        return tuple(found)

    def data(self, shape: tuple[int, ...]) -> list[Any]:
        """Return the values in the JSON as a flat list; clients may also send one list per row."""
        data = fields.required(self.sent, f"{self.path}.data", list)
        if data and type(data[0]) is list:
            columns = shape[-1] if len(shape) > 1 else 1
            if any(type(row) is not list or len(row) != columns for row in data):
                raise Malformed(
                    "bad_tensor_length",
                    f"every row of {self.path}.data must be a list of {columns} values",
                )
            data = list(chain.from_iterable(data))
        if len(data) != math.prod(shape):
            raise Malformed(
                "bad_tensor_length",
                f"{self.path}.data must contain {math.prod(shape)} values for the shape "
                f"{list(shape)}, got {len(data)}",
            )
        return data

    def numbers(self, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the numbers as a flat array."""
        if self.size is None:
            with parsing_turn(NUMBER_BYTES * math.prod(shape)):
                return from_json(self.data(shape), datatype, f"{self.path}.data")
        count = math.prod(shape)
        expected = count * DATATYPES[datatype].itemsize
        if self.size != expected:
            raise Malformed(
                "bad_tensor_length",
                f"{count} values of {datatype} are {expected} bytes, but binary_data_size of "
                f"{self.path} is {self.size}",
            )
        return from_bytes(self.raw, datatype)

    def names(self, shape: tuple[int, ...]) -> Iterator[list[str]]:
        """Return an iterator over blocks of the strings."""
        if self.size is None:
            return names_from_json(self.data(shape), f"{self.path}.data")
        return names_from_bytes(self.raw, math.prod(shape), self.path)


def read_inputs(
    document: dict[str, Any],
    tail: memoryview,
    served: Served,
    check: Callable[[NDArray[Any]], None] = lambda _: None,
) -> Inputs:
    """Read the inputs for a map; ``tail`` contains the bytes after the JSON.

    ``check`` may reject the values before the segment names are read, which takes longer.
    """
    found = _tensors(document, tail, served)
    tensor = found[served.map.kind]
    datatype = tensor.datatype(DATATYPES)
    shape = _shape(tensor, served)
    values = tensor.numbers(datatype, shape).reshape(shape)
    check(values)
    if SEGMENTS not in found:
        return Inputs(values, None)
    return Inputs(values, _segments(found[SEGMENTS], rows=len(values)))


def _tensors(document: dict[str, Any], tail: memoryview, served: Served) -> dict[str, InputTensor]:
    """Return the inputs by name, each with its part of the bytes after the JSON."""
    kind = served.map.kind
    inputs = fields.required(document, "inputs", list)
    if not inputs or any(type(one) is not dict for one in inputs):
        raise Malformed(
            "wrong_inputs", f"inputs must be a list of tensors, one of them named {kind!r}"
        )
    found: dict[str, InputTensor] = {}
    for place, sent in enumerate(inputs):
        path = f"inputs[{place}]"
        name = fields.required(sent, f"{path}.name", str)
        if name not in (kind, SEGMENTS) or name in found:
            raise Malformed(
                "unknown_input",
                f"version {served.number} of calibrator {served.calibrator!r} takes one input "
                f"named {kind!r} and, if rows have segments, one named {SEGMENTS!r}; {path} is "
                f"named {reprlib.repr(name)}",
            )
        size = _size(sent, path, len(tail))
        found[name] = InputTensor(path, sent, size, tail[: size or 0])
        tail = tail[size or 0 :]
    if tail:
        raise Malformed(
            "bad_tensor_length",
            f"{len(tail)} bytes after the JSON are not covered by any binary_data_size",
        )
    if kind not in found:
        raise Malformed("wrong_inputs", f"inputs must contain a tensor named {kind!r}")
    return found


def _size(sent: dict[str, Any], path: str, left: int) -> int | None:
    """Return the number of bytes that belong to an input; None if its values are in the JSON."""
    parameters = fields.parameters(sent, f"{path}.parameters")
    size = fields.optional(parameters, f"{path}.parameters.binary_data_size", int)
    if size is None:
        return None
    if sent.get("data") is not None:
        raise Malformed("bad_field", f"{path} must have either data or binary_data_size, not both")
    if not 0 <= size <= left:
        raise Malformed(
            "bad_tensor_length",
            f"binary_data_size of {path} must be between 0 and {left}, the number of bytes left "
            f"after the JSON, got {size}",
        )
    return size


def _shape(tensor: InputTensor, served: Served) -> tuple[int, ...]:
    k = served.map.k
    shape = tensor.shape(f"[n, {k}]", (2,))
    columns = shape[1]
    if columns != k and not (columns == 1 and k == 2):
        raise Invalid(
            "wrong_classes",
            f"version {served.number} of calibrator {served.calibrator!r} was fitted on {k} "
            f"classes, got {columns} columns: {tensor.path}.shape must be [n, {k}]",
        )
    return shape


def _segments(tensor: InputTensor, rows: int) -> NDArray[Any] | Segments:
    """Return the segment of each row (n,), sent as strings or integers."""
    datatype = tensor.datatype((TEXT, *WHOLE))
    shape = tensor.shape("[n] or [n, 1]", (1, 2))
    if shape[1:] not in ((), (1,)):
        raise Malformed(
            "bad_tensor_shape",
            f"{tensor.path}.shape must be [n] or [n, 1], got {reprlib.repr(list(shape))}",
        )
    check_length(shape[0], rows)
    if datatype == TEXT:
        return from_names(tensor.names(shape))
    return tensor.numbers(datatype, shape)
