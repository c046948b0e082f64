"""Maps as ONNX models, handed out only after onnxruntime gave the same probabilities.

A map knows its own graph (``onnx_logits``). The model takes float32 ``logits`` (n, k), or
``probabilities`` if the map was fitted on those, and gives ``calibrated`` (n, k).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.base import CalibrationMap
from calibrators.errors import ExportError, MapError
from calibrators.rounding import LEAST_SHARE

OPSET = 18
FLOAT, DOUBLE = 1, 11
TOLERANCE = 1e-6
# runtimes add up a row's float32 weights one by one, which over many classes loses 1e-6
MANY_CLASSES = 64


class Builder(Protocol):
    """What a map writes itself into: operations of ONNX, one call for each."""

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A constant's name."""

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """An operation; gives the name of its (first) output."""


class Graph:
    """ONNX nodes and constants as they are written down."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A constant's name."""
        import onnx

        name = f"constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """An operation; gives the name of its (first) output."""
        import onnx

        outputs = [output or f"{operation.lower()}_{len(self.nodes)}"]
        if operation == "TopK":
            outputs.append(f"{outputs[0]}_index")
        self.nodes.append(onnx.helper.make_node(operation, list(inputs), outputs, **attributes))
        return outputs[0]


def export(fitted: CalibrationMap) -> bytes:
    """ONNX bytes of a map, proved against ``fitted.apply`` on random and extreme rows to 1e-6.

    >>> from calibrators.methods.temperature import TemperatureMap
    >>> len(export(TemperatureMap(k=3, temperature=1.5))) > 100
    True
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ModuleNotFoundError as error:
        raise ExportError("onnx_missing", "pip install 'calibrd[onnx]' to export maps") from error
    graph = Graph()
    start: str = fitted.kind
    _write_softmax(graph, calibrated_logits(fitted, graph, start), fitted.k)
    shape: list[str | int | None] = ["n", fitted.k]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            f"calibrd {fitted.method}",
            [onnx.helper.make_tensor_value_info(start, onnx.TensorProto.FLOAT, shape)],
            [onnx.helper.make_tensor_value_info("calibrated", onnx.TensorProto.FLOAT, shape)],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=9,
        producer_name="calibrd",
    )
    onnx.checker.check_model(model, full_check=True)
    data = bytes(model.SerializeToString())
    prove(fitted, data)
    return data


def _write_softmax(graph: Builder, logits: str, k: int) -> None:
    """The model's output, in doubles on the way if there are many classes."""
    if k < MANY_CLASSES:
        graph.add("Softmax", logits, output="calibrated", axis=1)
        return
    wide = graph.add("Softmax", graph.add("Cast", logits, to=DOUBLE), axis=1)
    graph.add("Cast", wide, output="calibrated", to=FLOAT)


def calibrated_logits(fitted: CalibrationMap, graph: Builder, start: str) -> str:
    """Write a map from its input, logits or probabilities, to calibrated logits."""
    if fitted.kind == "probabilities":
        start = graph.add("Log", _filled(fitted, graph, start))
    return fitted.onnx_logits(graph, start)


def _filled(fitted: CalibrationMap, graph: Builder, given: str) -> str:
    """Write ``Zeros.filled``, in doubles until the end."""
    zeros, axis = fitted.zeros, graph.constant([1], np.int64)

    def constant(value: float) -> str:
        return graph.constant(value, np.float64)

    def total(values: str) -> str:
        return graph.add("ReduceSum", values, axis, keepdims=1)

    tiny = float(np.finfo(np.float32).tiny)
    is_zero = graph.add("Less", given, graph.constant(tiny))
    wide = graph.add("Cast", given, to=DOUBLE)
    below = graph.add("Where", is_zero, constant(-1.0), graph.add("Neg", wide))
    half = graph.add("Mul", graph.add("ReduceMax", below, axis, keepdims=1), constant(-0.5))
    mean = constant(max(zeros.floor, tiny))
    if zeros.rounding:
        count, noise = total(graph.add("Cast", is_zero, to=DOUBLE)), zeros.rounding**2 / 12
        off = graph.add("Sub", constant(1.0), total(wide))
        missing = graph.add("Sub", off, graph.add("Mul", count, mean))
        known = graph.add("Mul", count, constant(zeros.variance - noise))
        known = graph.add("Add", known, constant(fitted.k * noise))
        missing = graph.add("Div", missing, known)
        mean = graph.add("Add", graph.add("Mul", missing, constant(zeros.variance)), mean)
        mean = graph.add("Max", mean, constant(LEAST_SHARE * zeros.floor))
        mean = graph.add("Min", mean, constant(zeros.rounding / 2))
        shift = graph.add("Mul", missing, constant(noise))
        shift = graph.add("Max", shift, constant(-zeros.rounding / 2))
        shift = graph.add("Min", shift, constant(zeros.rounding / 2))
        moved = graph.add(
            "Max", graph.add("Add", wide, shift), graph.add("Mul", wide, constant(0.5))
        )
        far = graph.add("Greater", graph.add("Abs", off), constant(zeros.rounding / 2))
        some = graph.add("Greater", count, constant(0.5))
        wide = graph.add("Where", some, moved, graph.add("Where", far, moved, wide))
    mean = graph.add("Max", graph.add("Min", mean, half), constant(tiny))
    return graph.add("Cast", graph.add("Where", is_zero, mean, wide), to=FLOAT)


def prove(fitted: CalibrationMap, data: bytes) -> None:
    """Raise an ExportError unless onnxruntime gives what the map gives."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rows = trial_rows(fitted)
    given = session.run(["calibrated"], {fitted.kind: rows})[0]
    try:
        expected = fitted.apply_logits(fitted.read(rows)[0])
    except MapError as error:
        raise ExportError(
            "not_equal", f"the map cannot be compared with its export: {error}"
        ) from error
    worst = float(np.abs(given.astype(np.float64) - expected).max())
    if not worst <= TOLERANCE:
        raise ExportError(
            "not_equal", f"onnxruntime differs from the map by {worst:.2g}, more than {TOLERANCE}"
        )


def trial_rows(fitted: CalibrationMap) -> NDArray[np.float32]:
    """Random rows at many scales, ties, margins of 1e4 and -inf, in the kind the map takes."""
    rng = np.random.default_rng(0)
    scales = np.repeat(10.0 ** np.arange(-3, 7), 16)[:, np.newaxis]
    random = rng.normal(size=(len(scales), fitted.k)) * scales
    flat, tied, far, masked = np.zeros((4, fitted.k))
    tied[:2], far[-1], masked[1:] = 5.0, 1e4, -np.inf
    rows = np.vstack([random, flat, tied, far, -far, masked])
    if fitted.kind == "logits":
        return rows.astype(np.float32)
    weights = np.exp(rows - rows.max(axis=1, keepdims=True)) + 1e-30
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    step = fitted.rounding or 0.01
    rounded = np.rint(probabilities[:80] / step) * step
    rounded = rounded[np.abs(rounded.sum(axis=1) - 1) < 1e-6]
    return np.vstack([probabilities, np.eye(fitted.k)[:3], rounded]).astype(np.float32)
