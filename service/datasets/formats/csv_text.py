"""Arrays as CSV: a header with the column names, then one line per row.

``label`` (or ``labels``) is required and ``segment`` (or ``segments``) optional. All other columns
are classes, and their names define the kind:

    logit_0, logit_1, ...                    logits; the number is the class, in any order
    p_0, ... or probability_0, ...           probabilities, likewise
    only logit, p or probability             two classes; the column is class 1
    any other names                          classes in column order; ``kind`` is required
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from calibrators.data import Kind
from calibrators.segments import SegmentCoder
from service.datasets.formats.bodies import Arrays, Codec, Format
from service.datasets.formats.npy import Bytes
from service.errors import Invalid, Malformed, TooLarge

LABELS = ("label", "labels")
SEGMENTS = ("segment", "segments")
KINDS: dict[str, Kind] = {"logit": "logits", "p": "probabilities", "probability": "probabilities"}
SHOWN = 40
MAX_COLUMNS = 200_000

_NUMBERED = re.compile(rf"({'|'.join(KINDS)})_(\d{{1,9}})")
_LARGEST = (1 << 63) - 1

Number = TypeVar("Number", int, float)


class CsvHeader(NamedTuple):
    """Column names, and the positions of the labels, segments (if any) and classes."""

    names: list[str]
    labels: int
    segments: int | None
    classes: list[int]
    declared: Kind | None


def decode(body: Bytes) -> Arrays:
    r"""Return the arrays in a CSV file: UTF-8, comma-separated, optionally quoted.

    >>> decode(b"logit_1,label,logit_0\n2.5,1,-1\n").values.tolist()
    [[-1.0, 2.5]]
    """
    _check_text(body)
    lines = _lines(body)
    header = _header(next(lines, (0, []))[1])
    values, labels = array("d"), array("q")
    coder = SegmentCoder()
    for line, row in lines:
        _check_width(line, row, header)
        for place in header.classes:
            values.append(_cell(line, header.names[place], row[place], float))
        labels.append(_cell(line, header.names[header.labels], row[header.labels], _label))
        if header.segments is not None:
            coder.add_names((row[header.segments].strip(),))
    return Arrays(
        np.frombuffer(values).reshape(len(labels), len(header.classes)),
        np.frombuffer(labels, np.int64),
        header.declared,
        None if header.segments is None else coder.segments(),
    )


def _check_text(body: Bytes) -> None:
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(
            "malformed_csv", f"the file is not valid UTF-8: cannot decode byte {error.start}"
        ) from error


def _lines(body: Bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank rows with their line numbers."""
    physical = _PhysicalLines(body)
    reader = csv.reader(physical, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            physical.commas = 0
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise Malformed("malformed_csv", f"line {reader.line_num}: {error}") from error


class _PhysicalLines:
    """Lines of a body, decoded lazily; ``commas`` counts the commas in the current row.

    The reader creates a string per cell, so a row with too many cells is rejected before it is
    split.
    """

    def __init__(self, body: Bytes) -> None:
        self.commas = 0
        self._file = io.TextIOWrapper(io.BytesIO(body), encoding="utf-8-sig", newline="")

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.commas += line.count(",")
            if self.commas >= MAX_COLUMNS:
                raise TooLarge("too_many_columns", f"a row may have at most {MAX_COLUMNS} columns")
            yield line


def _header(line: Sequence[str]) -> CsvHeader:
    names = [one.strip().lower() for one in line]
    _check_names(names)
    found = [place for place, name in enumerate(names) if name in LABELS]
    if len(found) != 1:
        raise Invalid(
            "no_labels",
            f"the header must contain exactly one column named label (or labels), got {len(found)}",
        )
    segment = [place for place, name in enumerate(names) if name in SEGMENTS]
    if len(segment) > 1:
        raise Invalid(
            "bad_columns", "both `segment` and `segments` are present: remove one of them"
        )
    others = [place for place in range(len(names)) if place not in (*found, *segment)]
    if not others:
        raise Invalid("bad_columns", "there are no class columns: add logit_0, logit_1, ...")
    return CsvHeader(names, found[0], segment[0] if segment else None, *_classes(names, others))


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise Malformed(
            "malformed_csv", "the header is missing: the first line must name the columns"
        )
    if len(names) == 1 and (found := re.search(r"[;\t|]", names[0])):
        raise Malformed("malformed_csv", f"columns must be separated by commas, got {found[0]!r}")
    if "" in names:
        raise Invalid(
            "bad_columns",
            f"column {names.index('') + 1} has no name: remove it (in pandas, use index=False)",
        )
    twice, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise Malformed("duplicate_names", f"two columns are named {twice[:SHOWN]!r}: remove one")


def _classes(names: Sequence[str], others: list[int]) -> tuple[list[int], Kind | None]:
    """Return the positions of the classes in order, and the kind that their names define."""
    if len(others) == 1 and names[others[0]] in KINDS:
        return others, KINDS[names[others[0]]]
    numbered = {place: _NUMBERED.fullmatch(names[place]) for place in others}
    if not any(numbered.values()):
        return others, None
    by_class: dict[int, int] = {}
    kinds = set()
    for place, found in numbered.items():
        if found is None:
            raise Invalid(
                "unknown_array",
                f"column {names[place][:SHOWN]!r} is not a class, label or segment: remove it",
            )
        by_class[int(found[2])] = place
        kinds.add(KINDS[found[1]])
    if len(kinds) != 1:
        raise Invalid("logits_or_probabilities", "send either logits or probabilities, not both")
    _check_classes(by_class, len(others))
    return [by_class[one] for one in sorted(by_class)], kinds.pop()


def _check_classes(numbers: Collection[int], columns: int) -> None:
    missing = next((one for one in range(columns) if one not in numbers), None)
    if missing is not None:
        raise Invalid(
            "bad_columns",
            f"the {columns} class columns must be numbered 0 to {columns - 1} without repeats: "
            f"class {missing} is missing",
        )


def _check_width(line: int, row: Sequence[str], header: CsvHeader) -> None:
    if len(row) != len(header.names):
        raise Invalid(
            "ragged",
            f"line {line} has {len(row)} columns, but the header has {len(header.names)}",
            line=line,
        )


def _cell(line: int, name: str, text: str, convert: Callable[[str], Number]) -> Number:
    try:
        if "_" in text:  # Python's digit separator, which no other reader accepts
            raise ValueError(text)
        return convert(text)
    except ValueError as error:
        what = "a number" if convert is float else "an integer (0 for the first class)"
        raise Invalid(
            "not_a_number",
            f"line {line}, column {name[:SHOWN]!r}: {text[:SHOWN]!r} is not {what}",
            line=line,
            column=name[:SHOWN],
        ) from error


def _label(text: str) -> int:
    """Return a label; values beyond 63 bits are clamped, as they are out of range anyway."""
    return max(-_LARGEST, min(int(text), _LARGEST))


CODEC = Codec(
    format=Format.CSV,
    media_types=("text/csv",),
    holds="small datasets, up to `max_json_bytes`; not for predict",
    decode=lambda body, limit: decode(body),
    is_text=True,
    example="logit_0,logit_1,logit_2,label\n2.1,0.3,-1.0,0\n0.2,1.7,0.4,1\n",
)
