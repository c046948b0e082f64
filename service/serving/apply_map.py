"""Apply a map to the arrays of a request, and evaluate the result if labels were sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from calibrators import CalibrationMap, CalibrationSet, evaluate
from calibrators.errors import ClippedProbabilities, MapError, UnknownSegments
from calibrators.numerics.parallel import row_blocks
from calibrators.segments import Segments, check_length
from service.access.permissions import Principal
from service.concurrency.thread_pools import FairExecutor
from service.datasets.formats import Arrays
from service.datasets.formats.npy import Array
from service.errors import Conflict, Invalid, TooLarge, Unusable
from service.serving.map_cache import Served

EVALUATED_ROWS = 100_000
EVALUATED_CLASSES = 20_000
EVALUATED_VALUES = 1 << 21
DRAWS = 200
SHOWN = 80


class Prediction(NamedTuple):
    """Probabilities (n, k), warnings, and the bounds (n,) of the credible band."""

    probabilities: Array
    warnings: tuple[str, ...] = ()
    band: tuple[Array, Array] | None = None


def predict(
    fitted: CalibrationMap,
    arrays: Arrays,
    dtype: type[np.floating[Any]] | None = None,
    level: float | None = None,
) -> Prediction:
    """Return the calibrated probabilities, computed in float64 if ``dtype`` is float64.

    - ``level`` adds the credible band of the confidence; maps without one raise an error.
    - With segments, each row is calibrated for its segment. A map without segments accepts them
      only with labels, for the evaluation.
    - Features are required by maps that need them and rejected by all others. A classification
      head is ignored.
    - A flat list of numbers (k,) is one row. Maps of two classes reject it as ambiguous, because
      they also accept rows of one number, the logit or probability of class 1.
    """
    if arrays.declared not in (None, fitted.kind):
        raise Invalid(
            "wrong_kind",
            f"this map was fitted on {fitted.kind}, got {arrays.declared}",
            expected=fitted.kind,
            got=arrays.declared,
        )
    values = _rows(arrays.values, fitted.k)
    is_for_evaluation = arrays.labels is not None and not fitted.has_segments
    segments = None
    if arrays.segments is not None:
        check_length(len(arrays.segments), len(values))
        segments = None if is_for_evaluation else Segments.of(arrays.segments)
    if dtype is np.float64 and values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
    try:
        prediction = _apply(fitted, values, segments, arrays.features, level)
    except MapError as error:
        raise Unusable(
            "map_not_finite",
            f"this version cannot be used ({error}): point its aliases at another version",
        ) from error
    note = None if segments is None else fitted.unknown_note(segments)
    if note is None:
        return prediction
    return prediction._replace(warnings=(*prediction.warnings, f"{UnknownSegments.code}; {note}"))


def top_classes(probabilities: Array, count: int) -> tuple[Array, Array]:
    """Return the ``count`` most probable classes per row and their probabilities, largest first.

    >>> classes, chosen = top_classes(np.array([[0.2, 0.5, 0.3]]), 2)
    >>> classes.tolist(), chosen.tolist()
    ([[1, 2]], [[0.5, 0.3]])
    """
    shape = (len(probabilities), min(count, probabilities.shape[1]))
    classes, shares = np.empty(shape, np.intp), np.empty(shape, probabilities.dtype)
    for rows in row_blocks(*probabilities.shape):
        classes[rows] = _top_classes(probabilities[rows], count)
        shares[rows] = np.take_along_axis(probabilities[rows], classes[rows], axis=1)
    return classes, shares


def _top_classes(probabilities: Array, count: int) -> Array:
    if count >= probabilities.shape[1]:
        return np.argsort(-probabilities, axis=1, kind="stable")
    if count == 1:
        best: Array = probabilities.argmax(axis=1)
        return best[:, np.newaxis]
    # ties go to the first classes: take all classes above the smallest probability, then fill up
    least = -np.partition(-probabilities, count - 1, axis=1)[:, count - 1 : count]
    is_above, is_equal = probabilities > least, probabilities == least
    left = count - is_above.sum(axis=1, keepdims=True)
    is_taken = is_above | (is_equal & (is_equal.cumsum(axis=1) <= left))
    found = np.nonzero(is_taken)[1].reshape(len(probabilities), count)
    shares = np.take_along_axis(probabilities, found, axis=1)
    order = np.argsort(-shares, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def check_evaluable(rows: int, classes: int) -> None:
    """Raise TooLarge if one call may not evaluate this many rows or classes."""
    if rows > EVALUATED_ROWS:
        raise TooLarge(
            "too_many_rows",
            f"at most {EVALUATED_ROWS} rows can be evaluated per call, got {rows}: "
            "send fewer rows, or omit the labels",
            limit=EVALUATED_ROWS,
        )
    if classes > EVALUATED_CLASSES:
        raise TooLarge(
            "too_many_classes",
            f"at most {EVALUATED_CLASSES} classes can be evaluated per call, got {classes}: "
            "omit the labels, and evaluate locally with calibrators.evaluate",
            limit=EVALUATED_CLASSES,
        )
    if rows * classes > EVALUATED_VALUES:
        raise TooLarge(
            "too_many_rows",
            f"at most {EVALUATED_VALUES} probabilities can be evaluated per call, got {rows} rows "
            f"of {classes} classes: send fewer rows, or omit the labels",
            limit=EVALUATED_VALUES // classes,
        )


def evaluation(
    probabilities: Array, labels: Array, segments: Array | Segments | None = None
) -> dict[str, Any]:
    """Return a report on the probabilities as plain JSON, by segment too if there are segments."""
    check_evaluable(*probabilities.shape)
    checked = CalibrationSet.from_probabilities(
        probabilities, labels, segments, rounding=0.0, warn=False
    )
    report = evaluate(probabilities, checked.labels, segments=checked.segments, draws=DRAWS)
    return report.to_dict()


def model_mismatch(served: Served, model: str) -> str | None:
    """Return an ASCII message if the map was fitted for another model, otherwise None."""
    if model == served.model:
        return None
    fitted_for = "an unknown model" if served.model is None else _shown(served.model)
    return (
        f"{served.calibrator}@{served.number} was fitted for {fitted_for}, "
        f"but the caller's model is {_shown(model)}"
    )


def _shown(text: str) -> str:
    return ascii(text[:SHOWN])


def _rows(values: Array, classes: int) -> Array:
    if not values.size:
        return values  # calibrators reports what is missing
    if values.ndim == 1:
        if classes == 2:
            raise Invalid(
                "ambiguous_row",
                "for a map of two classes, a flat list of numbers could be one row or many: "
                "send [[a, b]] for two columns, or [[a]] for one",
            )
        values = values[np.newaxis]
    width = values.shape[1]
    if width != classes and not (classes == 2 and width == 1):
        raise Invalid(
            "wrong_classes",
            f"this map was fitted on {classes} classes, got {width} columns",
            expected=classes,
            got=width,
        )
    return values


def _apply(
    fitted: CalibrationMap,
    values: Array,
    segments: Segments | None,
    features: Array | None,
    level: float | None,
) -> Prediction:
    """Apply a map; warnings about changed input are part of the result."""
    logits, clipped = fitted.read(values)
    warnings: tuple[str, ...] = ()
    if clipped is not None and (clipped.raised or clipped.normalised):
        warnings = (f"{ClippedProbabilities.code}; {clipped}",)
    band = None if level is None else fitted.interval_of_logits(logits, level)
    return Prediction(fitted.apply_logits(logits, segments, features), warnings, band)


MODEL_HEADER = "Calibrd-Model"

P = ParamSpec("P")
T = TypeVar("T")

Find = Callable[[Principal, str, str], Served | None]
Load = Callable[[Principal, str, str], Awaitable[Served]]

# more than this would block the event loop for milliseconds
INLINE_BYTES = 1 << 18
INLINE_JSON_BYTES = 1 << 14
INLINE_QUERY_BYTES = 1 << 12
INLINE_COST = 1 << 15
MAX_COST = 1 << 30  # several seconds
# costs per row and per number written; the unit is one number in a softmax, about 20 ns
ROW_COST = 8
JSON_COST = 4
TOP_ROW_COST = 64

# a float32 and a float64 as JSON: digits for an exact round trip, point, exponent, comma
JSON_BYTES = {4: 12, 8: 20}


def is_quick(served: Served, values: Array, *, writes_json: bool, top: int | None = None) -> bool:
    """Return whether the response is computed faster on the event loop than on another thread."""
    rows, numbers, cost = _cost(served, values)
    if top is not None:
        cost += numbers + rows * TOP_ROW_COST
    if writes_json:
        cost += JSON_COST * (numbers if top is None else rows * min(top, served.map.k))
    return cost <= INLINE_COST


def _cost(served: Served, values: Array) -> tuple[int, int, int]:
    """Return the number of rows, the number of probabilities, and the cost of computing them."""
    rows = len(values) if values.ndim > 1 else 1
    numbers = rows * served.map.k
    return rows, numbers, values.size + numbers + rows * (ROW_COST + served.map.row_cost)


def check_call_cost(served: Served, values: Array) -> None:
    """Raise TooLarge if applying the map to these rows would take many seconds."""
    rows, _, cost = _cost(served, values)
    if cost > MAX_COST:
        most = MAX_COST * rows // cost
        raise TooLarge(
            "too_many_rows",
            f"this map is slow, so a call may contain at most {most} rows, got {rows}: send fewer "
            "rows, or apply the map with the SDK",
            limit=most,
        )


@dataclass(frozen=True)
class LargeCalls:
    """Executor for calls that are too large for the event loop."""

    executor: FairExecutor

    async def run(
        self, principal: Principal, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a call off the event loop and return its result."""
        return await self.executor.run(principal.workspace, call, *args, **kwargs)


def check_answer(size: int, limit: int, advice: str) -> None:
    """Raise TooLarge if the response would take more than ``limit`` bytes."""
    if size > limit:
        raise TooLarge(
            "answer_too_large",
            f"the response would take about {size} bytes, but the limit is {limit}: {advice}",
            limit=limit,
        )


def check_calculation(size: int, limit: int) -> None:
    """Raise TooLarge if the probabilities of all classes would take more than ``limit`` bytes."""
    if size > limit:
        raise TooLarge(
            "answer_too_large",
            f"the probabilities of all classes would take about {size} bytes, but the limit is "
            f"{limit} per call: send fewer rows",
            limit=limit,
        )


def model_in_header(value: bytes) -> str:
    """Decode a fingerprint from a header: as UTF-8, which most clients send, or as Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def check_model(served: Served, stated: Collection[str], *, only_warn: bool) -> str | None:
    """Raise Conflict, or return a warning, if the map was fitted for another model.

    ``stated`` contains all fingerprints in the request, from the header and the parameter.
    """
    if not stated:
        return None
    model, *others = set(stated)
    if others:
        raise Invalid(
            "two_models",
            f"the request has two different model fingerprints ({MODEL_HEADER} and the parameter "
            "model): send only one",
        )
    if not model:
        raise Invalid(
            "bad_parameter", "the model fingerprint must not be empty: send one, or omit it"
        )
    mismatch = model_mismatch(served, model)
    if mismatch is None:
        return None
    if only_warn:
        return f"model_mismatch; {mismatch}"
    raise Conflict(
        "model_mismatch",
        f"{mismatch}: send values from that version's model, or use fingerprint=warn",
        expected=served.model,
        got=model[:SHOWN],
    )


def warning_header(warning: str) -> tuple[bytes, bytes]:
    """Return the header for a warning, which consists of a code and a message in ASCII."""
    return b"calibrd-warning", warning.encode("ascii")
