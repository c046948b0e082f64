"""Maps as ONNX models, handed out only after onnxruntime gave the same probabilities.

A map knows its own graph (``onnx_logits``). The model takes float32 ``logits`` (n, k), or
``probabilities`` if the map was fitted on those, and gives ``calibrated`` (n, k).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.base import CalibrationMap
from calibrators.errors import ExportError

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
        tiny = graph.constant(np.finfo(np.float32).tiny)
        start = graph.add("Log", graph.add("Clip", start, tiny))
    return fitted.onnx_logits(graph, start)


def prove(fitted: CalibrationMap, data: bytes) -> None:
    """Raise an ExportError unless onnxruntime gives what the map gives."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rows = trial_rows(fitted)
    given = session.run(["calibrated"], {fitted.kind: rows})[0]
    worst = float(np.abs(given.astype(np.float64) - fitted.apply(rows)).max())
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
    return probabilities.astype(np.float32)
