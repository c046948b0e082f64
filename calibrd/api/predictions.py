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
from calibrators.errors import UnknownSegments, warn_user
from calibrators.features import as_features
from calibrators.segments import Segments
from calibrd.api.base import ApiBase
from calibrd.api.references import Reference
from calibrd.errors import Invalid, NotCalibrd
from calibrd.io.arrays import as_array
from calibrd.io.calibration_sets import as_segments, names_of
from calibrd.io.payload import NPZ, Payload, npz, pack_dataset
from calibrd.models import Version
from calibrd.transport.connection import drop_none
from calibrd.transport.flows import Flow, Response, Together, Work, call
from calibrd.transport.response_bodies import MAX_BYTES, MEGABYTE
from calibrd.transport.responses import array_of, document_of, header_of, member_of, report_of

Array = NDArray[Any]
NPY = "application/x-npy"
BLOCK_BYTES = 1 << 23
JSON_BYTES = 10  # bytes of JSON text per byte of a number (float16 or wider)
WIDEST = 2  # the response may be twice as large: float64, or two columns instead of one


class SentRows(NamedTuple):
    """Rows to calibrate, with their segment names and features, if any."""

    values: Array
    segments: Array | None
    features: Array | None = None

    @property
    def row_bytes(self) -> int:
        """The number of bytes per row in the request or the response, whichever is larger."""
        width: int = self.values.itemsize * self.values.shape[1] * WIDEST
        if self.segments is not None:
            width += self.segments.itemsize
        if self.features is not None:
            width += self.features.itemsize * self.features.shape[1]
        return width

    def block(self, rows: range) -> SentRows:
        """Return the rows in a range."""
        part = slice(rows.start, rows.stop)
        segments, features = (
            None if one is None else one[part] for one in (self.segments, self.features)
        )
        return SentRows(self.values[part], segments, features)

    def has_rows(self, count: int) -> bool:
        """Return whether a response with ``count`` rows matches this request."""
        return self.values.ndim == 1 or count == len(self.values)

    @property
    def media_type(self) -> str:
        """The media type of ``content``."""
        return NPY if self.segments is None and self.features is None else NPZ

    def content(self) -> bytes:
        """Return the body of a request: npy, or npz with segments or features."""
        if self.media_type == NPZ:
            named = {"values": self.values, "segments": self.segments, "features": self.features}
            payload = npz({name: one for name, one in named.items() if one is not None})
            return payload.read(0, payload.bytes)
        file = io.BytesIO()
        np.save(file, self.values, allow_pickle=False)
        return file.getvalue()


class Predicted(NamedTuple):
    """Probabilities, the version that computed them, and a note on unknown segments."""

    probabilities: Array
    version: str
    note: str


class PredictCalls(ApiBase):
    """Calls that apply maps on the service."""

    @call
    def predict(
        self,
        ref: str | Version,
        values: Any,
        *,
        segments: Any = None,
        features: Any = None,
        dtype: Literal["float32", "float64"] | None = None,
        model: str | None = None,
    ) -> Flow[Array]:
        """Return calibrated probabilities (n, k) for ``values`` of the kind the map was fitted on.

        A one-dimensional array is a single row, unless the map has two classes or the array is too
        large for one request: then it holds one logit (or probability) per row, as for maps from
        ``load``. Many rows are sent in blocks, several at a time. ``segments`` holds the segment of
        each row, for a map that has segments; segments that the map does not know cause an
        UnknownSegments warning. ``features`` (n, d) holds the features of each row, for a map that
        needs them. ``model`` is a fingerprint: a version that was fitted for another model is
        rejected with ``model_mismatch``. To apply maps locally, use ``load``.
        """
        found, notes = yield from self._in_blocks(
            ref, values, segments, features, drop_none(dtype=dtype, model=model)
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
        features: Any = None,
        model: str | None = None,
    ) -> Flow[Report]:
        """Return a report on the calibration of a version on up to 100,000 labelled rows.

        With ``segments`` the report covers each segment, whether or not the map has segments.
        ``segments`` and ``features`` are passed to the map as in ``predict``, with the same
        warning for unknown segments.
        """
        payload: Payload = yield Work(
            lambda: pack_dataset(values, labels, kind, segments, features)
        )
        content: bytes = yield Work(lambda: payload.read(0, payload.bytes))
        response = yield from self.request(
            "POST",
            "calibrators",
            Reference.of(ref),
            "predict",
            content=content,
            headers={"Content-Type": payload.media_type, "Accept": "application/json"},
            query=drop_none(model=model),
            repeatable=True,
            # the response holds the probabilities as well
            max_bytes=MAX_BYTES + JSON_BYTES * payload.bytes,
        )
        report = report_of(member_of(document_of(response), "evaluation"))
        warn_of_unknown_segments([unknown_segments(response)], report.n)
        return report

    def _in_blocks(
        self, ref: str | Version, values: Any, segments: Any, features: Any, query: Any
    ) -> Flow[tuple[Array, list[str]]]:
        """Return the probabilities of all rows and the notes on unknown segments."""
        array: Array = yield Work(lambda: as_array(values))
        names: Array | None = None
        if segments is not None:
            names = yield Work(lambda: names_of(Segments.of(as_segments(segments))))
        vectors: Array | None = None
        if features is not None:
            vectors = yield Work(lambda: as_array(features, "features"))
        if array.ndim not in (1, 2) or not array.size:
            raise DataError(
                "bad_shape", f"values must be rows of numbers (n, k), got shape {array.shape}"
            )
        name = str(Reference.of(ref))
        if array.ndim == 1:
            is_one_row = all(one is None or len(one) == 1 for one in (names, vectors))
            if is_one_row and array.nbytes * WIDEST <= BLOCK_BYTES:
                try:
                    only = yield from self._predicted(name, SentRows(array, names, vectors), query)
                    return only.probabilities, [only.note]
                except Invalid as error:
                    if error.code != "ambiguous_row":
                        raise
            array = array[:, np.newaxis]
        if names is not None and len(names) != len(array):
            raise DataError(
                "segments_length", f"there are {len(array)} rows but {len(names)} segments"
            )
        if vectors is not None:
            vectors = as_features(vectors, rows=len(array))
        sent = SentRows(array, names, vectors)
        rows = max(1, BLOCK_BYTES // sent.row_bytes)
        starts = range(rows, len(array), rows)
        first = yield from self._block(name, sent, range(rows), query)

        def of(start: int) -> Callable[[], Flow[Predicted]]:
            # the alias may move, so all blocks use the version of the first one
            return lambda: self._block(first.version, sent, range(start, start + rows), query)

        others: list[Predicted] = yield Together([of(start) for start in starts])
        if not others:
            return first.probabilities, [first.note]
        blocks = [first, *others]
        return np.concatenate([one.probabilities for one in blocks]), [one.note for one in blocks]

    def _block(self, ref: str, sent: SentRows, rows: range, query: Any) -> Flow[Predicted]:
        """Return the predictions of a block; errors give row numbers in the whole array."""
        block = sent.block(rows)
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
                f"{sentence}; rows {rows.start} to {last} were checked",
                status=error.status,
                request_id=error.request_id,
                details={**error.details, "first": here},
            ) from error

    def _predicted(self, ref: str, block: SentRows, query: Any) -> Flow[Predicted]:
        """Send one request and return its predictions."""
        content: bytes = yield Work(block.content)
        response = yield from self.request(
            "POST",
            "calibrators",
            ref,
            "predict",
            content=content,
            headers={"Content-Type": block.media_type, "Accept": NPY},
            query=query,
            repeatable=True,
            max_bytes=MEGABYTE + 8 * 2 * block.values.size,
        )
        version = header_of(response, "calibrd-version")
        found = array_of(response)
        if found.dtype.kind != "f" or found.ndim != 2 or not block.has_rows(len(found)):
            raise NotCalibrd(
                f"the response is npy, but not {len(block.values)} rows of probabilities: "
                f"{found.dtype} of shape {found.shape}"
            )
        return Predicted(found, _checked(version), unknown_segments(response))


def _checked(version: str) -> str:
    """Return the version in a header; raise NotCalibrd if it is not a reference."""
    try:
        return str(Reference.of(version))
    except ValueError as error:
        raise NotCalibrd(f"the calibrd-version header is not a version: {error}") from error


def unknown_segments(response: Response) -> str:
    """Return the service's note on rows of unknown segments; empty if there is none."""
    return response.headers.get("calibrd-warning", "").partition(f"{UnknownSegments.code}; ")[2]


def warn_of_unknown_segments(notes: Sequence[str], rows: int) -> None:
    """Issue one warning for the notes of all blocks; the warning points at the user's code."""
    present = [one for one in notes if one]
    if not present:
        return
    counts = [re.match(r"\d+", one) for one in present]
    if len(notes) > 1 and all(counts):
        total = sum(int(one[0]) for one in counts if one)
        present[0] = re.sub(r"\d+ of \d+", f"{total} of {rows}", present[0], count=1)
    warn_user(present[0], UnknownSegments)
