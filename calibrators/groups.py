"""Segments of a sample: a name for each row, such as its country, scanner or sales channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.errors import DataError

MOST_GROUPS = 1000
LONGEST_NAME = 200


@dataclass(frozen=True, eq=False)
class Groups:
    """The segment of every row: its place in ``names``, which are in order and all in use.

    >>> groups = Groups.of(["web", "app", "web"])
    >>> groups.names, groups.codes.tolist()
    (('app', 'web'), [1, 0, 1])
    """

    names: tuple[str, ...]
    codes: NDArray[np.int64]

    @classmethod
    def of(cls, values: ArrayLike, *, rows: int | None = None) -> Groups:
        """Checked groups (n,) from names, or from integers, whose names are their digits."""
        array = _as_names(values)
        if rows is not None and len(array) != rows:
            raise DataError(
                "groups_length", f"logits have {rows} rows but groups have {len(array)}"
            )
        names, codes = np.unique(array, return_inverse=True)
        if len(names) > MOST_GROUPS:
            raise DataError(
                "too_many_groups",
                f"groups must name at most {MOST_GROUPS} segments, got {len(names)}: "
                "is this a column of identifiers?",
            )
        for name in names:
            _check_name(str(name), array)
        return cls._made(tuple(map(str, names)), codes)

    @classmethod
    def _made(cls, names: tuple[str, ...], codes: NDArray[np.intp]) -> Groups:
        fixed = codes.astype(np.int64)
        fixed.flags.writeable = False
        return cls(names, fixed)

    @property
    def counts(self) -> NDArray[np.intp]:
        """Rows of each segment, in the order of ``names``."""
        return np.bincount(self.codes, minlength=len(self.names))

    def rows(self, place: int) -> NDArray[np.intp]:
        """The rows of one segment."""
        return np.flatnonzero(self.codes == place)

    def take(self, rows: NDArray[np.intp]) -> Groups:
        """The groups of the chosen rows; segments without any of them are gone."""
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        return Groups._made(tuple(self.names[place] for place in used), codes)


def _as_names(values: ArrayLike) -> NDArray[np.str_]:
    try:
        array = np.asanyarray(values)
    except (ValueError, TypeError) as error:
        raise DataError("bad_groups", f"groups cannot be read as an array: {error}") from error
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError("bad_groups", f"groups must have shape (n,), got {array.shape}")
    if array.dtype.kind == "O":
        odd = np.array([not isinstance(one, str) for one in array], dtype=bool)
        if odd.any():
            raise DataError(
                "bad_groups",
                "groups must be text, or all integers",
                rows=int(odd.sum()),
                first=int(odd.argmax()),
            )
    elif array.dtype.kind not in "Uiu":
        raise DataError("bad_groups", f"groups must be text or integers, got {array.dtype}")
    return array.astype(np.str_)


def _check_name(name: str, array: NDArray[np.str_]) -> None:
    if name.strip() and name.isprintable() and len(name) <= LONGEST_NAME:
        return
    broken = array == name
    raise DataError(
        "bad_group_name",
        f"the name of a group must be 1 to {LONGEST_NAME} printable characters, not all spaces",
        rows=int(broken.sum()),
        first=int(broken.argmax()),
    )
