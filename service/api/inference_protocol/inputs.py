"""The inputs of a request: a map's values and, if it has segments, the segment of each row."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from numpy.typing import NDArray

from calibrators.groups import Groups
from service.api.inference_protocol import fields
from service.api.inference_protocol.tensors import (
    DATATYPES,
    TEXT,
    WHOLE,
    from_bytes,
    from_json,
    names_from_bytes,
    names_from_json,
)
from service.core.formats.segments import GROUPS, from_names
from service.core.serving import Served
from service.errors import Invalid, Malformed


class Inputs(NamedTuple):
    """Values (n, columns), and the segments of the rows if they were sent."""

    values: NDArray[Any]
    groups: Groups | None


@dataclass(frozen=True)
class Tensor:
    """An input as it was sent: its place in the JSON, its fields, and its bytes behind the JSON.

    ``size`` is how many bytes it says it has there, None if its values are in the JSON.
    """

    path: str
    fields: dict[str, Any]
    size: int | None
    raw: memoryview

    def datatype(self, known: Iterable[str]) -> str:
        """Its datatype, one of those known."""
        found = fields.required(self.fields, f"{self.path}.datatype", str)
        if found not in known:
            raise Malformed(
                "bad_datatype",
                f"{self.path}.datatype must be one of {', '.join(known)}, "
                f"got {reprlib.repr(found)}",
            )
        return found

    def shape(self, form: str, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        """Its shape, of one of these numbers of dimensions, none of them empty."""
        found = fields.required(self.fields, f"{self.path}.shape", list)
        if len(found) not in dimensions or any(type(one) is not int or one < 1 for one in found):
            raise Malformed(
                "bad_shape",
                f"{self.path}.shape must be {form} with n at least 1, got {reprlib.repr(found)}",
            )
        return tuple(found)

    def data(self, shape: tuple[int, ...]) -> list[Any]:
        """Its values in the JSON, which may be one list for each row; flat."""
        data = fields.required(self.fields, f"{self.path}.data", list)
        if data and type(data[0]) is list:
            columns = shape[-1] if len(shape) > 1 else 1
            if any(type(row) is not list or len(row) != columns for row in data):
                raise Malformed(
                    "wrong_length", f"every row of {self.path}.data must be a list of {columns}"
                )
            data = list(chain.from_iterable(data))
        if len(data) != math.prod(shape):
            raise Malformed(
                "wrong_length",
                f"{self.path}.data must hold {math.prod(shape)} values for the shape "
                f"{list(shape)}, got {len(data)}",
            )
        return data

    def numbers(self, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Its numbers, flat."""
        if self.size is None:
            return from_json(self.data(shape), datatype, f"{self.path}.data")
        count = math.prod(shape)
        expected = count * DATATYPES[datatype].itemsize
        if not self.size == expected == len(self.raw):
            raise Malformed(
                "wrong_length",
                f"{count} values of {datatype} are {expected} bytes, but binary_data_size is "
                f"{self.size} and {len(self.raw)} bytes are there for {self.path}",
            )
        return from_bytes(self.raw, datatype)

    def names(self, shape: tuple[int, ...]) -> list[str]:
        """Its texts, flat."""
        if self.size is None:
            return names_from_json(self.data(shape), f"{self.path}.data")
        return names_from_bytes(self.raw, math.prod(shape), self.path)


def read_inputs(document: dict[str, Any], tail: memoryview, served: Served) -> Inputs:
    """The inputs for a map; ``tail`` are the bytes behind the JSON."""
    found = _tensors(document, tail, served)
    tensor = found[served.map.kind]
    datatype = tensor.datatype(DATATYPES)
    shape = _shape(tensor, served)
    values = tensor.numbers(datatype, shape).reshape(shape)
    if GROUPS not in found:
        return Inputs(values, None)
    return Inputs(values, _groups(found[GROUPS], rows=len(values)))


def _tensors(document: dict[str, Any], tail: memoryview, served: Served) -> dict[str, Tensor]:
    """The inputs by their names; the bytes behind the JSON are theirs in their order."""
    known = (served.map.kind, *([GROUPS] if served.has_segments else []))
    inputs = fields.required(document, "inputs", list)
    if not 1 <= len(inputs) <= len(known) or any(type(one) is not dict for one in inputs):
        also = f", and one named {GROUPS!r} if you like" if served.has_segments else ""
        raise Malformed(
            "wrong_inputs",
            f"inputs must be a list of one tensor named {known[0]!r}{also}, "
            f"got {len(inputs)} entries",
        )
    found: dict[str, Tensor] = {}
    for place, sent in enumerate(inputs):
        path = f"inputs[{place}]"
        name = fields.required(sent, f"{path}.name", str)
        if name not in known:
            raise Malformed(
                "unknown_input",
                f"calibrator {served.calibrator!r} version {served.number} takes "
                f"{' and '.join(map(repr, known))}, got {reprlib.repr(name)}",
            )
        size = _size(sent, path)
        found[name] = Tensor(path, sent, size, tail[: size or 0])
        tail = tail[size or 0 :]
    if tail:
        raise Malformed(
            "wrong_length",
            f"{len(tail)} bytes follow the JSON that are in no input's binary_data_size",
        )
    if len(found) < len(inputs) or known[0] not in found:
        raise Malformed("wrong_inputs", f"inputs must have one tensor named {known[0]!r}")
    return found


def _size(sent: dict[str, Any], path: str) -> int | None:
    parameters = fields.parameters(sent, f"{path}.parameters")
    size = fields.optional(parameters, f"{path}.parameters.binary_data_size", int)
    if size is not None and sent.get("data") is not None:
        raise Malformed("bad_field", "an input has either data or binary_data_size, not both")
    if size is not None and size < 0:
        raise Malformed("wrong_length", f"{path}: binary_data_size is {size}, less than nothing")
    return size


def _shape(tensor: Tensor, served: Served) -> tuple[int, ...]:
    k = served.map.k
    shape = tensor.shape(f"[n, {k}]", (2,))
    columns = shape[1]
    if columns != k and not (columns == 1 and k == 2):
        raise Invalid(
            "wrong_classes",
            f"calibrator {served.calibrator!r} version {served.number} was fitted on {k} classes, "
            f"got {columns} columns: {tensor.path}.shape must be [n, {k}]",
        )
    return shape


def _groups(tensor: Tensor, rows: int) -> Groups:
    """The segment of each row, named by text or by whole numbers."""
    datatype = tensor.datatype((TEXT, *WHOLE))
    shape = tensor.shape("[n] or [n, 1]", (1, 2))
    if shape[1:] not in ((), (1,)):
        raise Malformed("bad_shape", f"{tensor.path}.shape must be [n] or [n, 1]")
    if datatype == TEXT:
        return Groups.of(from_names(tensor.names(shape)), rows=rows)
    return Groups.of(tensor.numbers(datatype, shape), rows=rows)
