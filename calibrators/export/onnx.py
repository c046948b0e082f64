"""Export of maps as ONNX models, verified with onnxruntime.

A map writes its own graph (``onnx_logits``). The model takes float32 ``logits`` (n, k), or
``probabilities`` if the map was fitted on those, and returns ``calibrated`` (n, k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrators.base import CalibrationMap
from calibrators.errors import ExportError, MapError
from calibrators.numerics.parallel import row_blocks
from calibrators.rounding import MIN_SHARE

OPSET = 18
FLOAT, DOUBLE = 1, 11
TOLERANCE = 1e-6
# runtimes add up float32 weights one by one, so that with many classes the sum is off by 1e-6
MANY_CLASSES = 64
TRIAL_VALUES = 1 << 20


class Builder(Protocol):
    """Interface through which a map writes its ONNX graph, one call per operation."""

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a constant; return its name."""

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operation; return the name of its (first) output."""


class Graph:
    """Builder that collects ONNX nodes and constants."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a constant; return its name."""
        import onnx

        name = f"constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operation; return the name of its (first) output."""
        import onnx

        outputs = [output or f"{operation.lower()}_{len(self.nodes)}"]
        if operation == "TopK":
            outputs.append(f"{outputs[0]}_index")
        self.nodes.append(onnx.helper.make_node(operation, list(inputs), outputs, **attributes))
        return outputs[0]


def export(fitted: CalibrationMap) -> bytes:
    """Return the bytes of an ONNX model that agrees with ``fitted.apply`` to 1e-6.

    >>> from calibrators.methods.temperature import TemperatureMap
    >>> len(export(TemperatureMap(k=3, temperature=1.5))) > 100
    True
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ModuleNotFoundError as error:
        raise ExportError(
            "onnx_missing", "exporting a map needs onnx: pip install 'calibrd[onnx]'"
        ) from error
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
    """Add the softmax to the graph, in double precision if there are many classes."""
    if k < MANY_CLASSES:
        graph.add("Softmax", logits, output="calibrated", axis=1)
        return
    wide = graph.add("Softmax", graph.add("Cast", logits, to=DOUBLE), axis=1)
    graph.add("Cast", wide, output="calibrated", to=FLOAT)


def calibrated_logits(fitted: CalibrationMap, graph: Builder, start: str) -> str:
    """Add the graph of a map up to its calibrated logits; return the name of these logits."""
    if fitted.kind == "probabilities":
        start = graph.add("Log", _filled(fitted, graph, start))
    return fitted.onnx_logits(graph, start)


def _filled(fitted: CalibrationMap, graph: Builder, values: str) -> str:
    """Add ``Zeros.filled`` in double precision; return the output's name."""
    zeros, axis = fitted.zeros, graph.constant([1], np.int64)

    def constant(value: float) -> str:
        return graph.constant(value, np.float64)

    tiny = float(np.finfo(np.float32).tiny)
    is_zero = graph.add("Less", values, graph.constant(tiny))
    wide = graph.add("Cast", values, to=DOUBLE)
    below = graph.add("Where", is_zero, constant(-1.0), graph.add("Neg", wide))
    half = graph.add("Mul", graph.add("ReduceMax", below, axis, keepdims=1), constant(-0.5))
    count = graph.add("ReduceSum", graph.add("Cast", is_zero, to=DOUBLE), axis, keepdims=1)
    if zeros.ratio:
        mean = graph.add("Mul", half, constant(2 * zeros.ratio))
        if zeros.rounding:
            is_short = graph.add("Greater", count, constant(fitted.k - zeros.kept + 0.5))
            mean = graph.add("Where", is_short, constant(zeros.ratio * zeros.rounding / 4), mean)
    elif zeros.rounding:
        wide, mean = _unrounded(fitted, graph, wide, count)
        mean = graph.add("Min", mean, half)
    else:
        mean = graph.add("Min", constant(max(zeros.floor, tiny)), half)
    mean = graph.add("Max", mean, constant(tiny))
    return graph.add("Cast", graph.add("Where", is_zero, mean, wide), to=FLOAT)


def _unrounded(fitted: CalibrationMap, graph: Builder, wide: str, count: str) -> tuple[str, str]:
    """Add estimates of the unrounded values and of the zeros, as in ``Zeros.restored``."""
    zeros, axis = fitted.zeros, graph.constant([1], np.int64)
    noise, half_step = zeros.rounding**2 / 12, zeros.rounding / 2

    def constant(value: float) -> str:
        return graph.constant(value, np.float64)

    def times(values: str, factor: float) -> str:
        return graph.add("Mul", values, constant(factor))

    def clip(values: str, low: float) -> str:
        return graph.add("Min", graph.add("Max", values, constant(low)), constant(half_step))

    def left(values: str) -> str:
        total = graph.add("ReduceSum", values, axis, keepdims=1)
        return graph.add("Sub", constant(1.0), total)

    half = times(wide, 0.5)
    bias = graph.add("Div", constant(noise), graph.add("Max", wide, constant(half_step)))
    likely = graph.add("Max", graph.add("Sub", wide, bias), half)
    missing = graph.add("Sub", left(likely), times(count, zeros.floor))
    variance = times(graph.add("Add", count, constant(1.0)), zeros.variance / 2)
    known = graph.add("Mul", count, graph.add("Sub", variance, constant(noise)))
    missing = graph.add("Div", missing, graph.add("Add", known, constant(fitted.k * noise)))
    mean = graph.add("Mul", missing, variance)
    mean = clip(graph.add("Add", mean, constant(zeros.floor)), MIN_SHARE * zeros.floor)
    shift = clip(times(missing, noise), -half_step)
    moved = graph.add("Max", graph.add("Add", likely, shift), half)
    is_off = graph.add("Greater", graph.add("Abs", left(wide)), constant(half_step))
    has_zeros = graph.add("Greater", count, constant(0.5))
    changed = graph.add("Where", has_zeros, moved, graph.add("Where", is_off, moved, wide))
    return changed, mean


def prove(fitted: CalibrationMap, data: bytes) -> None:
    """Raise an ExportError unless onnxruntime yields the same probabilities as the map."""
    run = _session(data)
    rows, worst = trial_rows(fitted), 0.0
    for part in row_blocks(*rows.shape):
        actual = run({fitted.kind: rows[part]})
        try:
            expected = fitted.apply_logits(fitted.read(rows[part])[0])
        except MapError as error:
            raise ExportError(
                "not_equal", f"the map cannot be compared with its export: {error}"
            ) from error
        worst = float(np.maximum(worst, np.abs(actual.astype(np.float64) - expected).max()))
    if not worst <= TOLERANCE:
        raise ExportError(
            "not_equal",
            f"the export must agree with the map to {TOLERANCE}, but differs by {worst:.2g}",
        )


def _session(data: bytes) -> Callable[[dict[str, Any]], NDArray[Any]]:
    """Return a function that runs a model and raises onnxruntime's errors as ExportError."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False  # it would not release the memory of the largest tensors
    options.intra_op_num_threads = 1  # starting threads takes longer than the trial

    def run(inputs: dict[str, Any]) -> NDArray[Any]:
        with _refused_by_runtime():
            output: NDArray[Any] = session.run(["calibrated"], inputs)[0]
        return output

    with _refused_by_runtime():
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return run


@contextmanager
def _refused_by_runtime() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime's errors have no common base class
        raise ExportError("not_equal", f"onnxruntime cannot run the export: {error}") from error


def trial_rows(fitted: CalibrationMap) -> NDArray[np.float32]:
    """Return rows of the map's kind: random ones on 10 scales, ties, margins of 1e4 and -inf.

    There are 16 rows per scale, or fewer if there are many classes, so that memory is bounded.
    """
    rng = np.random.default_rng(0)
    powers = 10.0 ** np.arange(-3, 7)
    each = max(1, min(16, TRIAL_VALUES // (len(powers) * fitted.k)))
    scales = np.repeat(powers, each)[:, np.newaxis]
    random = rng.normal(size=(len(scales), fitted.k)) * scales
    flat, tied, far, masked = np.zeros((4, fitted.k))
    tied[:2], far[-1], masked[1:] = 5.0, 1e4, -np.inf
    rows = np.vstack([random, flat, tied, far, -far, masked])
    if fitted.kind == "logits":
        return rows.astype(np.float32)
    weights = np.exp(rows - rows.max(axis=1, keepdims=True)) + 1e-30
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    step = fitted.rounding or 0.01
    rounded = np.rint(probabilities[: 5 * each] / step) * step
    rounded = rounded[np.abs(rounded.sum(axis=1) - 1) < 1e-6]
    cut = np.where(probabilities < np.sort(probabilities)[:, -2:-1], 0, probabilities)
    cut /= cut.sum(axis=1, keepdims=True)
    return np.vstack([probabilities, np.eye(min(3, fitted.k), fitted.k), rounded, cut]).astype(
        np.float32
    )
