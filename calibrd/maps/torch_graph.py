"""Calibration maps as torch modules, built from the maps' ONNX graphs.

All methods that can be exported to ONNX are supported; add new operations to OPERATIONS.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from calibrators import CalibrationMap, DataError, ExportError
from calibrators.export.onnx import DOUBLE, FLOAT, calibrated_logits
from calibrd.maps.local_map import LocalMap, map_of


class GraphOperation(NamedTuple):
    """The torch version of an ONNX operation, called as ``run(tensors, numbers, attributes)``.

    The first ``tensors`` inputs of the operation are tensors (None: all of them). The other inputs,
    such as axes, are passed as ``numbers`` and must be known when the module is built.
    """

    run: Callable[..., Tensor]
    tensors: int | None = None


def _plain(function: Callable[..., Tensor]) -> GraphOperation:
    return GraphOperation(lambda tensors, numbers, attributes: function(*tensors))


def _folded(function: Callable[..., Tensor]) -> GraphOperation:
    return GraphOperation(lambda tensors, numbers, attributes: functools.reduce(function, tensors))


def _reduced(function: Callable[..., Tensor]) -> GraphOperation:
    def run(tensors: list[Tensor], numbers: list[list[int]], attributes: dict[str, Any]) -> Tensor:
        return function(tensors[0], dim=numbers[0], keepdim=bool(attributes.get("keepdims", 1)))

    return GraphOperation(run, tensors=1)


def _top(tensors: list[Tensor], numbers: list[list[int]], attributes: dict[str, Any]) -> Tensor:
    return torch.topk(tensors[0], numbers[0][0], dim=attributes.get("axis", -1)).values


def _softmax(tensors: list[Tensor], numbers: list[Any], attributes: dict[str, Any]) -> Tensor:
    return torch.softmax(tensors[0], dim=attributes.get("axis", -1))


def _cast(tensors: list[Tensor], numbers: list[Any], attributes: dict[str, Any]) -> Tensor:
    return tensors[0].to(attributes["to"])


def _largest_at(tensors: list[Tensor], numbers: list[Any], attributes: dict[str, Any]) -> Tensor:
    keepdim = bool(attributes.get("keepdims", 1))
    return torch.argmax(tensors[0], dim=attributes.get("axis", 0), keepdim=keepdim)


def _part(tensors: list[Tensor], numbers: list[Any], attributes: dict[str, Any]) -> Tensor:
    (start,), (end,), (axis,) = numbers
    return tensors[0].narrow(axis, start, end - start)


OPERATIONS: dict[str, GraphOperation] = {
    "Abs": _plain(torch.abs),
    "Add": _plain(torch.add),
    "ArgMax": GraphOperation(_largest_at),
    "Cast": GraphOperation(_cast),
    "Clip": _plain(torch.clamp),
    "Div": _plain(torch.div),
    "Equal": _plain(torch.eq),
    "Exp": _plain(torch.exp),
    "Gather": _plain(lambda table, places: table[places]),
    "Greater": _plain(torch.gt),
    "IsInf": _plain(torch.isinf),
    "Less": _plain(torch.lt),
    "Log": _plain(torch.log),
    "MatMul": _plain(torch.matmul),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Mul": _plain(torch.mul),
    "Neg": _plain(torch.neg),
    "Not": _plain(torch.logical_not),
    "Reciprocal": _plain(torch.reciprocal),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMin": _reduced(torch.amin),
    "ReduceSum": _reduced(torch.sum),
    "Relu": _plain(torch.relu),
    "Slice": GraphOperation(_part, tensors=1),
    "Softmax": GraphOperation(_softmax),
    "Sub": _plain(torch.sub),
    "TopK": GraphOperation(_top, tensors=1),
    "Where": _plain(torch.where),
}


class Step(NamedTuple):
    """A recorded operation; a Cast whose attribute ``to`` is None casts to the input type."""

    operation: str
    tensors: tuple[str, ...]
    numbers: tuple[list[int], ...]
    attributes: dict[str, Any]
    output: str


class Recorder:
    """A builder like ``calibrators.export.onnx.Graph`` that records the operations for torch."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: dict[str, Any] = {}
        self.narrow: set[str] = set()

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a constant and return its name; float32 constants adopt the input type."""
        name = f"constant_{len(self.constants)}"
        floats = np.issubdtype(dtype, np.floating)
        self.constants[name] = np.asarray(value, np.float64 if floats else dtype)
        if dtype == np.float32:
            self.narrow.add(name)
        return name

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operation and return the name of its (first) output."""
        known = OPERATIONS.get(operation)
        if known is None:
            raise ExportError(
                "unknown_operation",
                f"calibrd.torch does not support the operation {operation!r} yet",
            )
        if operation == "Cast":
            attributes["to"] = _type_of(attributes["to"])
        count = len(inputs) if known.tensors is None else known.tensors
        numbers = tuple(self.constants[name].tolist() for name in inputs[count:])
        name = output or f"{operation.lower()}_{len(self.steps)}"
        self.steps.append(Step(operation, inputs[:count], numbers, attributes, name))
        return name

    def tensors(self) -> dict[str, Tensor]:
        """Return the constants that are used as tensors."""
        used = {name for step in self.steps for name in step.tensors}
        return {
            name: torch.from_numpy(np.array(value))
            for name, value in self.constants.items()
            if name in used
        }


def _type_of(number: int) -> torch.dtype | None:
    """Return the target type of a Cast; for ONNX's float, return None (the input type)."""
    types = {FLOAT: None, DOUBLE: torch.float64}
    if number not in types:
        raise ExportError("unknown_operation", f"calibrd.torch does not support ONNX type {number}")
    return types[number]


class MapModule(nn.Module):
    """A calibration map on tensors: logits (n, k) in, calibrated probabilities (n, k) out.

    The output agrees with ``map.apply`` to 1e-6. The parameters are buffers, so they are part of
    the ``state_dict`` and move with ``to``. They keep their precision under ``half`` and autocast;
    the output is float32, or float64 for float64 logits. Gradients propagate through the module. A
    map that was fitted on probabilities takes probabilities. NaN stays NaN. A module built from a
    map that follows an alias keeps the version that was current at that time.

    >>> from calibrators.methods.temperature import TemperatureMap
    >>> MapModule(TemperatureMap(k=2, temperature=2.0))(torch.tensor([[4.0, 0.0]])).numpy().round(3)
    array([[0.881, 0.119]], dtype=float32)
    """

    START = "start"

    def __init__(self, map: CalibrationMap | LocalMap) -> None:
        super().__init__()
        map = map_of(map)
        self.k, self.kind, self.method = map.k, map.kind, map.method
        recorded = Recorder()
        self._end = calibrated_logits(map, recorded, self.START)
        self._steps = recorded.steps
        self._narrow = recorded.narrow
        for name, tensor in recorded.tensors().items():
            self.register_buffer(name, tensor)

    def forward(self, values: Tensor) -> Tensor:
        """Return calibrated probabilities (n, k)."""
        return torch.softmax(self.logits(values), dim=1)

    def logits(self, values: Tensor) -> Tensor:
        """Return calibrated logits (n, k); their softmax gives the calibrated probabilities."""
        rows = self._rows(values)
        kind = rows.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self._run(rows)
        return self._run(rows)

    def extra_repr(self) -> str:
        """Return the details that ``print`` shows for the module."""
        return f"method={self.method!r}, k={self.k}, kind={self.kind!r}"

    def _rows(self, values: Tensor) -> Tensor:
        """Return rows (n, k) of at least float32; for two classes, also accept one column."""
        rows = values.to(torch.promote_types(values.dtype, torch.float32))
        if self.k == 2 and (rows.ndim == 1 or rows.shape[-1] == 1):
            second = rows.reshape(-1, 1)
            first = 1 - second if self.kind == "probabilities" else torch.zeros_like(second)
            rows = torch.cat((first, second), dim=1)
        if rows.ndim != 2 or rows.shape[1] != self.k:
            raise DataError(
                "wrong_classes",
                f"this map takes {self.kind} (n, {self.k}), got shape {tuple(values.shape)}",
            )
        return rows

    def _run(self, rows: Tensor) -> Tensor:
        found = {self.START: rows}
        for name, buffer in self.named_buffers(recurse=False):
            found[name] = buffer.to(rows.dtype) if name in self._narrow else buffer
        for step in self._steps:
            attributes = step.attributes
            if attributes.get("to", rows) is None:
                attributes = {**attributes, "to": rows.dtype}
            tensors = [found[name] for name in step.tensors]
            run = OPERATIONS[step.operation].run
            found[step.output] = run(tensors, list(step.numbers), attributes)
        return found[self._end]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MapModule:
        """Move the buffers for ``to`` or ``half`` without reducing their precision."""
        originals = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in originals.items():
            setattr(self, name, buffer.to(getattr(self, name).device))
        return self
