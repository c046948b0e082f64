"""Scores of the rows that a fit was judged on, in a compact binary format.

    8 bytes   b"calibrj" and the format version
    32 bytes  sha256 of everything after it
    4 bytes   length of the header, little-endian
    header    JSON: data, fitted_on, classes, folds, judged, rows, segments (names or null)
    arrays    little-endian, one after the other, in the order of COLUMNS

A row takes 34 bytes, or 38 with segments; at most MAX_ROWS rows are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data import CalibrationSet, Kind
from calibrators.errors import ArchiveError
from calibrators.metrics import RowScores, TopLabel, row_scores
from calibrators.numerics.softmax import margins, softmax
from calibrators.segments import MAX_SEGMENTS, Segments, is_name

MAGIC = b"calibrj"
FORMAT = 2
PREFIX = struct.Struct("<8s32sI")
MAX_ROWS = 100_000
LONGEST_HEADER = 1 << 20
SHA256 = re.compile("[0-9a-f]{64}")
LARGEST_NLL = 88.0  # metrics.nll caps every row at this
COLUMNS = {
    "index": "<u4",
    "margin": "<f4",
    "confidence_before": "<f4",
    "nll_before": "<f4",
    "brier_before": "<f4",
    "correct_before": "|u1",
    "confidence_after": "<f4",
    "nll_after": "<f4",
    "brier_after": "<f4",
    "correct_after": "|u1",
}
SEGMENT = {"segment": "<i4"}
HEADER = {
    "data": str,
    "fitted_on": str,
    "classes": int,
    "folds": int,
    "judged": int,
    "rows": int,
}

Floats = NDArray[Any]
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Scores of rows held out from a fit: before (the model) and after (the fitted map).

    ``data`` is the fingerprint of the dataset that contains the rows, and ``index`` (n,) holds the
    positions of the rows in this dataset, in ascending order. ``fitted_on`` is the fingerprint of
    the dataset that the map was fitted on; it equals ``data`` unless a separate evaluation set was
    used. ``judged`` is the number of rows before the reduction to MAX_ROWS, and ``folds`` the
    number of fits that judged the rows.
    """

    data: str
    fitted_on: str
    classes: int
    folds: int
    judged: int
    index: Index
    margin: Floats
    before: RowScores
    after: RowScores
    segments: Segments | None = None

    @property
    def n(self) -> int:
        """Number of rows kept."""
        return len(self.index)

    @classmethod
    def of(
        cls,
        data: CalibrationSet,
        index: NDArray[np.intp],
        probabilities: Floats,
        *,
        fitted_on: CalibrationSet,
        folds: int = 1,
    ) -> JudgedRows:
        """Score the rows ``index`` of ``data``, given their calibrated probabilities."""
        kept = thinned(index, MAX_ROWS)
        rows = data.take(index[kept])
        return cls(
            fingerprint(data),
            fingerprint(fitted_on),
            data.k,
            folds,
            len(index),
            index[kept].astype(np.int64),
            np.asarray(margins(rows.logits), dtype=np.float64),
            row_scores(softmax(rows.logits), rows.labels),
            row_scores(probabilities[kept], rows.labels),
            rows.segments,
        )

    def take(self, places: NDArray[np.intp]) -> JudgedRows:
        """Return the rows at the given positions."""
        return JudgedRows(
            self.data,
            self.fitted_on,
            self.classes,
            self.folds,
            self.judged,
            self.index[places],
            self.margin[places],
            _taken(self.before, places),
            _taken(self.after, places),
            None if self.segments is None else self.segments.take(places),
        )

    def dump(self) -> bytes:
        """Serialise the rows; ``load`` is the inverse."""
        names = None if self.segments is None else list(self.segments.names)
        header: dict[str, Any] = {name: getattr(self, name) for name in HEADER if name != "rows"}
        text = json.dumps(
            {**header, "rows": self.n, "segments": names},
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,  # escaped names of 1,000 segments could exceed LONGEST_HEADER
        ).encode()
        columns = self._columns()
        with np.errstate(over="ignore"):  # a margin beyond float32 becomes infinite
            packed = [
                np.asarray(columns[name], kind).tobytes() for name, kind in _kinds(names).items()
            ]
        body = struct.pack("<I", len(text)) + text + b"".join(packed)
        return MAGIC + bytes([FORMAT]) + hashlib.sha256(body).digest() + body

    @classmethod
    def load(cls, content: bytes) -> JudgedRows:
        """Return the rows stored in ``content``; raise ArchiveError if it is invalid."""
        header, payload = _open(content)
        names = header["segments"]
        columns: dict[str, Floats] = {}
        offset, rows = 0, header["rows"]
        for name, kind in _kinds(names).items():
            columns[name] = np.frombuffer(payload, kind, rows, offset)
            offset += columns[name].nbytes
        _check(columns, names)
        segments = None
        if names is not None:
            # take() drops names without rows, which Segments must not have
            places = np.arange(rows)
            segments = Segments(tuple(names), columns["segment"].astype(np.int64)).take(places)
        return cls(
            header["data"],
            header["fitted_on"],
            header["classes"],
            header["folds"],
            header["judged"],
            columns["index"].astype(np.int64),
            columns["margin"].astype(np.float64),
            _scores(columns, "before"),
            _scores(columns, "after"),
            segments,
        )

    def _columns(self) -> dict[str, Floats]:
        columns: dict[str, Floats] = {"index": self.index, "margin": self.margin}
        for side in ("before", "after"):
            scores: RowScores = getattr(self, side)
            columns[f"confidence_{side}"] = scores.top.confidence
            columns[f"correct_{side}"] = scores.top.correct
            columns[f"nll_{side}"], columns[f"brier_{side}"] = scores.nll, scores.brier
        if self.segments is not None:
            columns["segment"] = self.segments.codes
        return columns


def fingerprint(data: CalibrationSet) -> str:
    """Return the sha256 of a dataset's labels and row maxima, independent of format and dtype.

    >>> data = CalibrationSet([[2.0, 0.5], [0.25, 1.0]], [0, 1])
    >>> fingerprint(data) == fingerprint(CalibrationSet(data.logits.astype("f4"), data.labels))
    True
    """
    return fingerprint_of((data.n, data.k), data.kind, [data.labels], [data.row_max])


def unordered_fingerprint(data: CalibrationSet) -> str:
    """Return a fingerprint that depends neither on row order nor on float32 versus float64.

    >>> data = CalibrationSet([[2.0, 0.5], [0.25, 1.0]], [0, 1])
    >>> unordered_fingerprint(data) == unordered_fingerprint(data.take(np.array([1, 0])))
    True
    """
    with np.errstate(over="ignore"):  # a logit beyond float32 becomes infinite
        row_max = data.row_max.astype("<f4")
        of_label = data.logits[np.arange(data.n), data.labels].astype("<f4")
    order = np.lexsort((of_label, row_max, data.labels))
    columns = [row_max[order], of_label[order]]
    return fingerprint_of((data.n, data.k), data.kind, [data.labels[order]], columns)


def fingerprint_of(
    shape: tuple[int, int], kind: Kind, labels: Iterable[Floats], row_max: Iterable[Floats]
) -> str:
    """Return the fingerprint of a dataset (n, k) from blocks of its labels and row maxima."""
    digest = hashlib.sha256(f"{shape[0]} {shape[1]} {kind}".encode())
    for block in labels:
        digest.update(np.ascontiguousarray(block, "<i8").data)
    for block in row_max:
        digest.update(np.ascontiguousarray(block, "<f8").data)
    return digest.hexdigest()


def thinned(index: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return the positions of at most ``most`` rows, chosen by a hash of their index.

    A row that occurs in two sets is kept in both or in neither, as far as possible.

    >>> thinned(np.array([3, 5, 9]), 5).tolist()
    [0, 1, 2]
    """
    if len(index) <= most:
        return np.arange(len(index))
    mixed = index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    return np.sort(np.argpartition(mixed, most)[:most])


def in_common(first: JudgedRows, second: JudgedRows) -> tuple[JudgedRows, JudgedRows] | None:
    """Return the rows that both fits were judged on; None if their datasets differ."""
    if (first.data, first.classes) != (second.data, second.classes):
        return None
    _, here, there = np.intersect1d(
        first.index, second.index, assume_unique=True, return_indices=True
    )
    return first.take(here), second.take(there)


def _taken(scores: RowScores, places: NDArray[np.intp]) -> RowScores:
    top = TopLabel.trusted(scores.top.confidence[places], scores.top.correct[places])
    return RowScores(top, scores.nll[places], scores.brier[places])


def _scores(columns: dict[str, Floats], side: str) -> RowScores:
    confidence, nll, brier = (
        columns[f"{name}_{side}"].astype(np.float64) for name in ("confidence", "nll", "brier")
    )
    return RowScores(TopLabel.trusted(confidence, columns[f"correct_{side}"] == 1), nll, brier)


def _kinds(names: list[str] | None) -> dict[str, str]:
    return COLUMNS if names is None else COLUMNS | SEGMENT


def _open(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the bytes of the arrays after checking the hash and all lengths."""
    if len(content) < PREFIX.size or content[: len(MAGIC)] != MAGIC:
        raise ArchiveError("not_judged_rows", "not calibrd judged rows (bad magic bytes)")
    magic, digest, length = PREFIX.unpack_from(content)
    if magic[-1] != FORMAT:
        raise ArchiveError(
            "unknown_format",
            f"these judged rows use format {magic[-1]}, but this library reads format {FORMAT}: "
            + ("upgrade calibrd" if magic[-1] > FORMAT else "fit again"),
        )
    if hashlib.sha256(content[40:]).digest() != digest:
        raise ArchiveError("wrong_hash", "the judged rows do not match their sha256")
    text = content[PREFIX.size : PREFIX.size + length]
    header = _parsed(text) if len(text) == length <= LONGEST_HEADER else None
    payload = content[PREFIX.size + length :]
    if header is None or len(payload) != header["rows"] * _width(header["segments"]):
        raise ArchiveError("wrong_length", "the judged rows do not match their header")
    return header, payload


def _width(names: list[str] | None) -> int:
    return sum(np.dtype(kind).itemsize for kind in _kinds(names).values())


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return the parsed header, or None if it is invalid.

    A matching hash does not prove that calibrd wrote the header, so every field is checked.
    """
    try:
        header = json.loads(text)
        names = header["segments"]
        good = (
            set(header) == {*HEADER, "segments"}
            and all(type(header[name]) is kind for name, kind in HEADER.items())
            and 1 <= header["rows"] <= MAX_ROWS
            and header["rows"] <= header["judged"] < 2**32
            and 2 <= header["classes"] < 2**31
            and 1 <= header["folds"] <= MAX_ROWS
            and all(SHA256.fullmatch(header[name]) for name in ("data", "fitted_on"))
            and (names is None or _are_names(names))
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return header if good else None


def _are_names(names: Any) -> bool:
    return (
        isinstance(names, list)
        and 1 <= len(names) <= MAX_SEGMENTS
        and all(isinstance(one, str) and is_name(one) for one in names)
        and names == sorted(set(names))
    )


def _check(columns: dict[str, Floats], names: list[str] | None) -> None:
    """Raise unless all values are within their ranges."""
    ranges = {"confidence": (0.0, 1.0), "nll": (0.0, LARGEST_NLL), "brier": (0.0, 2.001)}
    for name, values in columns.items():
        if name == "index":
            good = bool((np.diff(values.astype(np.int64)) > 0).all())
        elif name == "segment":
            good = bool(((values >= 0) & (values < len(names or ()))).all())
        elif name == "margin":
            good = bool((values >= 0).all())
        else:
            low, high = ranges.get(name.partition("_")[0], (0, 1))
            good = bool(((values >= low) & (values <= high)).all())
        if not good:
            raise ArchiveError("bad_values", f"{name} in the judged rows contains invalid values")
