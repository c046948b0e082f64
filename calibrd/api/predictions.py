"""Calibrated probabilities over HTTP."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import DataError, Report
from calibrators.data import Kind
from calibrators.errors import UnknownSegments
from calibrators.segments import Segments
from calibrd.api.base import Asking
from calibrd.api.references import Reference
from calibrd.errors import Invalid, NotCalibrd
from calibrd.io.arrays import as_array
from calibrd.io.calibration_sets import as_segments, names_of
from calibrd.io.payload import NPZ, Payload, npz, packed
from calibrd.models import Version
from calibrd.transport.connection import given
from calibrd.transport.flows import Answer, Flow, Together, Work, call, warn_user
from calibrd.transport.response_bodies import MEGABYTE, MOST_BYTES
from calibrd.transport.responses import array_of, document_of, header_of, member_of, report_of

Array = NDArray[Any]
NPY = "application/x-npy"
BLOCK_BYTES = 1 << 23
JSON_BYTES = 10  # a number as text, for each byte of it as float16 or more
WIDEST = 2  # the answer may be of float64, or of two columns for one


class SentRows(NamedTuple):
    """Rows to be calibrated, and the names of their segments if they are given."""

    values: Array
    segments: Array | None

    @property
    def row_bytes(self) -> int:
        """How many bytes a row takes, sent or answered."""
        width: int = self.values.itemsize * self.values.shape[1] * WIDEST
        return width if self.segments is None else width + self.segments.itemsize

    def some(self, rows: range) -> SentRows:
        """Some of them."""
        chosen = slice(rows.start, rows.stop)
        return SentRows(
            self.values[chosen], None if self.segments is None else self.segments[chosen]
        )

    def has_rows(self, count: int) -> bool:
        """Return whether so many rows can be the answer to these."""
        return self.values.ndim == 1 or count == len(self.values)

    def content(self) -> bytes:
        """The body of a request: npy, or with segments npz."""
        if self.segments is not None:
            payload = npz({"values": self.values, "segments": self.segments})
            return payload.read(0, payload.bytes)
        file = io.BytesIO()
        np.save(file, self.values, allow_pickle=False)
        return file.getvalue()


class Predicted(NamedTuple):
    """Probabilities, the version that gave them, and what it says of segments unknown to it."""

    probabilities: Array
    version: str
    note: str


class PredictCalls(Asking):
    """Calls that apply maps on the service."""

    @call
    def predict(
        self,
        ref: str | Version,
        values: Any,
        *,
        segments: Any = None,
        dtype: Literal["float32", "float64"] | None = None,
        model: str | None = None,
    ) -> Flow[Array]:
        """Calibrated probabilities (n, k) of logits, or of probabilities for maps fitted on those.

        Numbers without rows are one row; for a map of two classes they are the single logits (or
        probabilities) of as many rows, as for the maps of ``load``, and so are more than fit into
        one request. Many rows are sent in blocks, several at once. ``segments`` name the segment of
        each row, for a map that has segments, with an UnknownSegments warning if it does not know
        some. With ``model``, a version that was fitted for another model is refused with
        ``model_mismatch``. ``load`` does the same without a network.
        """
        found, notes = yield from self._in_blocks(
            ref, values, segments, given(dtype=dtype, model=model)
        )
        warn_of_unknown_segments(notes, len(found))
        return found

    @call
    def evaluate(
        self,
        ref: str | Version,
        values: Any,
        labels: Any,
        *,
        kind: Kind = "logits",
        segments: Any = None,
        model: str | None = None,
    ) -> Flow[Report]:
        """How well a version calibrates these rows, at most 100,000; calculated on the service.

        With ``segments`` the report tells of each segment, whether the map has them or not; one
        that has is applied as by ``predict``, with the same warning.
        """
        payload: Payload = yield Work(lambda: packed(values, labels, kind, segments))
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
            # which holds the probabilities as well
            most_bytes=MOST_BYTES + JSON_BYTES * payload.bytes,
        )
        report = report_of(member_of(document_of(answer), "evaluation"))
        warn_of_unknown_segments([unknown_segments(answer)], report.n)
        return report

    def _in_blocks(
        self, ref: str | Version, values: Any, segments: Any, query: Any
    ) -> Flow[tuple[Array, list[str]]]:
        """Probabilities of all rows, and what was said of segments that the map does not know."""
        array: Array = yield Work(lambda: as_array(values))
        names: Array | None = None
        if segments is not None:
            names = yield Work(lambda: names_of(Segments.of(as_segments(segments))))
        if array.ndim not in (1, 2) or not array.size:
            raise DataError(
                "bad_shape", f"predict takes rows of numbers (n, k), got shape {array.shape}"
            )
        name = str(Reference.of(ref))
        if array.ndim == 1:
            is_one_row = names is None or len(names) == 1
            if is_one_row and array.nbytes * WIDEST <= BLOCK_BYTES:
                try:
                    only = yield from self._predicted(name, SentRows(array, names), query)
                    return only.probabilities, [only.note]
                except Invalid as error:
                    if error.code != "ambiguous_row":
                        raise
            array = array[:, np.newaxis]
        if names is not None and len(names) != len(array):
            raise DataError(
                "segments_length", f"values have {len(array)} rows but segments have {len(names)}"
            )
        sent = SentRows(array, names)
        rows = max(1, BLOCK_BYTES // sent.row_bytes)
        starts = range(rows, len(array), rows)
        first = yield from self._block(name, sent, range(rows), query)

        def of(start: int) -> Callable[[], Flow[Predicted]]:
            # by the version that answered first: an alias may move meanwhile
            return lambda: self._block(first.version, sent, range(start, start + rows), query)

        others: list[Predicted] = yield Together([of(start) for start in starts])
        if not others:
            return first.probabilities, [first.note]
        blocks = [first, *others]
        return np.concatenate([one.probabilities for one in blocks]), [one.note for one in blocks]

    def _block(self, ref: str, sent: SentRows, rows: range, query: Any) -> Flow[Predicted]:
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

    def _predicted(self, ref: str, block: SentRows, query: Any) -> Flow[Predicted]:
        """What is predicted of a block as it is."""
        content: bytes = yield Work(block.content)
        answer = yield from self.ask(
            "POST",
            "calibrators",
            ref,
            "predict",
            content=content,
            headers={"Content-Type": NPY if block.segments is None else NPZ, "Accept": NPY},
            query=query,
            repeatable=True,
            most_bytes=MEGABYTE + 8 * 2 * block.values.size,
        )
        version = header_of(answer, "calibrd-version")
        found = array_of(answer)
        if found.dtype.kind != "f" or found.ndim != 2 or not block.has_rows(len(found)):
            raise NotCalibrd(
                f"the answer is npy, but not of {len(block.values)} rows of probabilities: "
                f"{found.dtype} of shape {found.shape}"
            )
        return Predicted(found, _checked(version), unknown_segments(answer))


def _checked(version: str) -> str:
    """Return what a header calls the version; NotCalibrd if that is none."""
    try:
        return str(Reference.of(version))
    except ValueError as error:
        raise NotCalibrd(f"the answer's header calibrd-version names none: {error}") from error


def unknown_segments(answer: Answer) -> str:
    """What the service says of rows of segments that a map does not know; empty if nothing."""
    return answer.headers.get("calibrd-warning", "").partition(f"{UnknownSegments.code}; ")[2]


def warn_of_unknown_segments(notes: Sequence[str], rows: int) -> None:
    """One warning, at the line of the user's code, for what was said of blocks of the rows."""
    said = [one for one in notes if one]
    if not said:
        return
    counts = [re.match(r"\d+", one) for one in said]
    if len(notes) > 1 and all(counts):
        total = sum(int(one[0]) for one in counts if one)
        said[0] = re.sub(r"\d+ of \d+", f"{total} of {rows}", said[0], count=1)
    warn_user(said[0], UnknownSegments)
