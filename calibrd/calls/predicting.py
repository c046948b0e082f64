"""Calibrated probabilities over HTTP."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError, Report
from calibrators.data import Kind
from calibrators.groups import Groups
from calibrd.answers import array_of, document_of, header_of, member_of, report_of
from calibrd.arrays import as_array
from calibrd.calls.base import Asking
from calibrd.connection import given
from calibrd.errors import AmbiguousRow, Invalid
from calibrd.flows import Flow, Together, Work, call
from calibrd.payload import NPZ, Payload, npz, packed
from calibrd.references import Reference
from calibrd.results import Version
from calibrd.sets import as_groups, names_of

Array = NDArray[Any]
NPY = "application/x-npy"
BLOCK_BYTES = 1 << 23
WIDEST = 2  # the answer may be of float64, or of two columns for one


class Rows(NamedTuple):
    """Rows to be calibrated, and the names of their segments if they are given."""

    values: Array
    groups: Array | None

    @property
    def row_bytes(self) -> int:
        """How many bytes a row takes, sent or answered."""
        width: int = self.values.itemsize * self.values.shape[1] * WIDEST
        return width if self.groups is None else width + self.groups.itemsize

    def some(self, rows: range) -> Rows:
        """Some of them."""
        chosen = slice(rows.start, rows.stop)
        return Rows(self.values[chosen], None if self.groups is None else self.groups[chosen])

    def content(self) -> bytes:
        """The body of a request: npy, or with groups npz."""
        if self.groups is not None:
            payload = npz({"values": self.values, "groups": self.groups})
            return payload.read(0, payload.bytes)
        file = io.BytesIO()
        np.save(file, self.values, allow_pickle=False)
        return file.getvalue()


class PredictCalls(Asking):
    """Calls that apply maps on the service."""

    @call
    def predict(
        self,
        ref: str | Version,
        values: Any,
        *,
        groups: Any = None,
        dtype: Literal["float32", "float64"] | None = None,
        model: str | None = None,
    ) -> Flow[Array]:
        """Calibrated probabilities (n, k) of logits, or of probabilities for maps fitted on those.

        Numbers without rows are one row; for a map of two classes they are the single logits (or
        probabilities) of as many rows, as for the maps of ``load``, and so are more than fit into
        one request. Many rows are sent in blocks, several at once. ``groups`` name the segment of
        each row, for a map that has segments. With ``model``, a version that was fitted for another
        model is refused with ModelMismatch. ``load`` does the same without a network.
        """
        array: Array = yield Work(lambda: as_array(values))
        names: Array | None = None
        if groups is not None:
            names = yield Work(lambda: names_of(Groups.of(as_groups(groups))))
        if array.ndim not in (1, 2) or not array.size:
            raise DataError(
                "bad_shape", f"predict takes rows of numbers (n, k), got shape {array.shape}"
            )
        query = given(dtype=dtype, model=model)
        name = str(Reference.of(ref))
        if array.ndim == 1:
            is_one_row = names is None or len(names) == 1
            if is_one_row and array.nbytes * WIDEST <= BLOCK_BYTES:
                with contextlib.suppress(AmbiguousRow):
                    return (yield from self._predicted(name, Rows(array, names), query))[0]
            array = array[:, np.newaxis]
        if names is not None and len(names) != len(array):
            raise DataError(
                "groups_length", f"values have {len(array)} rows but groups have {len(names)}"
            )
        sent = Rows(array, names)
        rows = max(1, BLOCK_BYTES // sent.row_bytes)
        starts = range(rows, len(array), rows)
        found, version = yield from self._block(name, sent, range(rows), query)

        def of(start: int) -> Callable[[], Flow[tuple[Array, str]]]:
            # by the version that answered first: an alias may move meanwhile
            return lambda: self._block(version, sent, range(start, start + rows), query)

        others = yield Together([of(start) for start in starts])
        return np.concatenate([found, *(one for one, _ in others)]) if others else found

    @call
    def evaluate(
        self,
        ref: str | Version,
        values: Any,
        labels: Any,
        *,
        kind: Kind = "logits",
        groups: Any = None,
        model: str | None = None,
    ) -> Flow[Report]:
        """How well a version calibrates these rows, at most 100,000; calculated on the service.

        With ``groups`` the report tells of each segment, whether the map has segments or not.
        """
        payload: Payload = yield Work(lambda: packed(values, labels, kind, groups))
        content: bytes = yield Work(lambda: payload.read(0, payload.bytes))
        answer = yield from self.ask(
            "POST",
            "calibrators",
            Reference.of(ref),
            "predict",
            content=content,
            headers={"Content-Type": payload.media_type, "Accept": "application/json"},
            query=given(model=model),
            repeatable=True,
        )
        return report_of(member_of(document_of(answer), "evaluation"))

    def _block(self, ref: str, sent: Rows, rows: range, query: Any) -> Flow[tuple[Array, str]]:
        """What is predicted of some rows; errors name a row by its place in the whole array."""
        block = sent.some(rows)
        try:
            return (yield from self._predicted(ref, block, query))
        except Invalid as error:
            first, last = error.details.get("first"), rows.start + len(block.values) - 1
            if len(block.values) == len(sent.values) or not isinstance(first, int):
                raise
            here = rows.start + first
            sentence = error.detail.replace(f"first row {first}", f"first row {here}")
            raise type(error)(
                error.code,
                f"{sentence}; looked at rows {rows.start} to {last}",
                status=error.status,
                request_id=error.request_id,
                details={**error.details, "first": here},
            ) from error

    def _predicted(self, ref: str, block: Rows, query: Any) -> Flow[tuple[Array, str]]:
        """Probabilities of a block, and the version that gave them."""
        content: bytes = yield Work(block.content)
        answer = yield from self.ask(
            "POST",
            "calibrators",
            ref,
            "predict",
            content=content,
            headers={"Content-Type": NPY if block.groups is None else NPZ, "Accept": NPY},
            query=query,
            repeatable=True,
        )
        return array_of(answer), header_of(answer, "calibrd-version")
