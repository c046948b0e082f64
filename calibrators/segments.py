"""Segments of a sample: a name for each row, such as its country, scanner or sales channel."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.errors import DataError

MAX_SEGMENTS = 1000
LONGEST_NAME = 200
BLOCK_BYTES = 1 << 20
BLOCK_CELLS = 1 << 12
SHOWN_NAME = 60
NO_VALUES = ("NAType", "NaTType")  # names of pandas types, so that pandas is not imported
NAME_RULE = f"a segment's name must be 1 to {LONGEST_NAME} printable characters, not all spaces"


@dataclass(frozen=True, eq=False)
class Segments:
    """The segment of each row, as its index in ``names``, which are sorted and all in use.

    >>> segments = Segments.of(["web", "app", "web"])
    >>> segments.names, segments.codes.tolist()
    (('app', 'web'), [1, 0, 1])
    """

    names: tuple[str, ...]
    codes: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        values: ArrayLike | Segments,
        *,
        rows: int | None = None,
        most: int | None = MAX_SEGMENTS,
    ) -> Segments:
        """Build checked segments (n,) from names, or from integers, whose digits become the names.

        ``most`` is the maximum number of names. None means no limit, as when applying a map.
        """
        array = values.codes if isinstance(values, Segments) else _as_column(values)
        if rows is not None:
            check_length(len(array), rows)
        if isinstance(values, Segments):
            return values
        if array.dtype.kind == "O":
            names, codes = _numbered_cells(array.tolist(), most)
        else:
            names, codes = _numbered(array, most)
        for place, name in enumerate(names):
            _check_name(name, place, codes)
        return cls._unchecked(names, codes)

    @classmethod
    def _unchecked(cls, names: tuple[str, ...], codes: NDArray[np.intp]) -> Segments:
        fixed = codes.astype(np.int64, copy=False)
        fixed.flags.writeable = False
        return cls(names, fixed)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.codes)

    @property
    def counts(self) -> NDArray[np.intp]:
        """Number of rows in each segment, in the order of ``names``."""
        return np.bincount(self.codes, minlength=len(self.names))

    def rows(self, place: int) -> NDArray[np.intp]:
        """Return the row indices of one segment."""
        return np.flatnonzero(self.codes == place)

    def take(self, rows: NDArray[np.intp]) -> Segments:
        """Return the segments of the chosen rows, without names that do not occur in them."""
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        return Segments._unchecked(tuple(self.names[place] for place in used), codes)


class SegmentCoder:
    """Segments of many rows, added block by block; each name is stored only once.

    >>> coder = SegmentCoder()
    >>> coder.add(np.array(["web", "app"]))
    >>> coder.add(np.array(["web"]))
    >>> segments = coder.segments()
    >>> segments.names, segments.codes.tolist()
    (('app', 'web'), [1, 0, 1])
    """

    def __init__(self) -> None:
        self._codes = array("i")
        self._numbers: dict[str, int] = {}

    def add(self, block: NDArray[Any]) -> None:
        """Add the names or integers (m,) of the next rows."""
        names, inverse = np.unique(block, return_inverse=True)
        numbers = [self._number(str(one)) for one in names.tolist()]
        self._codes.frombytes(np.array(numbers, np.intc)[inverse.reshape(-1)].tobytes())

    def add_names(self, names: Iterable[str]) -> None:
        """Add the names of the next rows."""
        self._codes.extend(map(self._number, names))

    def segments(self) -> Segments:
        """Return the segments of all rows; raise a DataError if a name is invalid."""
        names = sorted(self._numbers)
        places = np.empty(len(names), np.int64)
        places[[self._numbers[name] for name in names]] = np.arange(len(names))
        codes = places[np.frombuffer(self._codes, np.intc)]
        self._refuse([name for name in self._numbers if len(name) > LONGEST_NAME])
        self._refuse([name for name in self._numbers if "\0" in name])
        for place, name in enumerate(names):
            _check_name(name, place, codes)
        return Segments._unchecked(tuple(names), codes)

    def _refuse(self, names: list[str]) -> None:
        """Raise if there are invalid ``names``; the error counts all rows that have one."""
        if names:
            broken = np.isin(
                np.frombuffer(self._codes, np.intc), [self._numbers[name] for name in names]
            )
            rows, first = int(broken.sum()), int(broken.argmax())
            raise DataError("bad_segment_name", name_rule(names[0]), rows=rows, first=first)

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            _check_count(len(self._numbers), MAX_SEGMENTS)
        return number


def check_length(segments: int, rows: int) -> None:
    """Raise unless there are as many segments as rows."""
    if segments != rows:
        raise DataError("segments_length", f"there are {rows} rows but {segments} segments")


def check_cells(cells: Sequence[Any], name: str = "segments") -> type[str] | type[int]:
    """Return str if all cells are strings, int if all are integers; raise otherwise.

    >>> check_cells(["web", "app"]), check_cells([3, 12])
    (<class 'str'>, <class 'int'>)
    """
    kinds: set[type] = set()
    for start in range(0, len(cells), BLOCK_CELLS):  # other threads can run between blocks
        kinds.update(map(type, cells[start : start + BLOCK_CELLS]))
    texts = {kind for kind in kinds if issubclass(kind, str)}
    whole = {kind for kind in kinds if issubclass(kind, int | np.integer) and kind is not bool}
    if texts == kinds:
        return str
    if whole == kinds:
        return int
    rule = f"{name} must be all strings or all integers"
    wrong = np.array([_is_missing(one) for one in cells], dtype=bool)
    others = {type(one) for one, is_missing in zip(cells, wrong, strict=True) if not is_missing}
    if wrong.any() and (others <= texts or others <= whole):
        rule += ", with a name such as 'other' for rows that have no segment"
    else:
        wrong = np.array([type(one) not in (texts or whole) for one in cells], dtype=bool)
    raise DataError(
        "bad_segments",
        rule,
        rows=int(wrong.sum()),
        first=int(wrong.argmax()),
    )


def _is_missing(cell: Any) -> bool:
    """Return whether a cell is None, NaN, or pandas' NA or NaT."""
    if isinstance(cell, float | np.floating):
        return bool(np.isnan(cell))
    return cell is None or type(cell).__name__ in NO_VALUES


def _as_column(values: ArrayLike) -> NDArray[Any]:
    """Return names or integers as a column (n,)."""
    try:
        # numpy would convert a mixed list to strings
        array = np.asanyarray(values, None if hasattr(values, "__array__") else object)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError("bad_segments", f"segments cannot be read as an array: {error}") from error
    if np.ma.is_masked(array):
        raise DataError("masked", "segments must not be masked: drop the masked rows first")
    array = np.asarray(array)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError("bad_segments", f"segments must have shape (n,), got {array.shape}")
    if array.dtype.kind == "T":
        return array.astype(object)
    if array.dtype.kind not in "OUiu":
        raise DataError("bad_segments", f"segments must be strings or integers, got {array.dtype}")
    return array


def _numbered_cells(
    cells: list[Any], most: int | None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the sorted distinct names of Python cells, and the index (n,) of each row's name."""
    if check_cells(cells) is str:
        # numpy strings would drop a trailing NUL, and an enum member's str() is not its value
        cells = [str.__str__(one) for one in cells]
    distinct = set(cells)
    _check_count(len(distinct), most)
    text = {one: one if type(one) is str else str(int(one)) for one in distinct}
    names = tuple(sorted(set(text.values())))
    places = {name: place for place, name in enumerate(names)}
    found = {one: places[name] for one, name in text.items()}
    return names, np.fromiter(map(found.__getitem__, cells), np.int64, len(cells))


def _numbered(array: NDArray[Any], most: int | None) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the sorted distinct names of a numpy array, and the index (n,) of each row's name.

    Only the distinct values are converted to Python strings, and rows are sorted block by block.
    """
    step = max(1, BLOCK_BYTES // max(1, array.dtype.itemsize))
    distinct = array[:0]
    for start in range(0, len(array), step):
        distinct = np.union1d(distinct, array[start : start + step])
        _check_count(len(distinct), most)
    names = np.array([str(one) for one in distinct.tolist()], dtype=object)
    order = np.argsort(names)  # integers are sorted as strings
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    codes = np.empty(len(array), np.int64)
    for start in range(0, len(array), step):
        block = array[start : start + step]
        codes[start : start + step] = places[np.searchsorted(distinct, block)]
    return tuple(names[order].tolist()), codes


def _check_count(count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise DataError(
            "too_many_segments",
            f"at most {most} segments are allowed, got at least {count}: "
            "is this a column of identifiers?",
        )


def is_name(name: str) -> bool:
    """Return whether a segment name is valid."""
    return bool(name.strip()) and name.isprintable() and len(name) <= LONGEST_NAME


def name_rule(name: str) -> str:
    r"""Return the rule for segment names, and the invalid name.

    >>> name_rule("web\n").partition(", got ")[2]
    "'web\\n'"
    """
    more = f"... of {len(name)} characters" if len(name) > SHOWN_NAME else ""
    return f"{NAME_RULE}, got {name[:SHOWN_NAME]!r}{more}"


def _check_name(name: str, place: int, codes: NDArray[np.int64]) -> None:
    if is_name(name):
        return
    broken = codes == place
    raise DataError(
        "bad_segment_name",
        name_rule(name),
        rows=int(broken.sum()),
        first=int(broken.argmax()),
    )
