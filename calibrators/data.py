"""CalibrationSet: what a model said and what was true, checked once."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.blocks import Floats, Scratch, map_blocks, oriented
from calibrators.errors import ClippedProbabilities, DataError, LooksLikeProbabilities
from calibrators.groups import Groups

Kind = Literal["logits", "probabilities"]
Labels = NDArray[np.int64]

SUM_TOLERANCE = 1e-3
PLAIN = (np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """Logits (n, k) and labels (n,) of one model on one sample of data.

    Logits are float32 or float64 (float16 and integers are widened). Binary models may give one
    column, (n,) or (n, 1): the logit of class 1, stored as the two columns ``[0, logit]``. Use
    :meth:`from_probabilities` for probabilities; which of the two it is, is never guessed. ``-inf``
    logits are legal except on a label. The logits given are shared, not copied, and never modified.
    ``groups`` (n,), if given, name the segment each row belongs to.

    >>> data = CalibrationSet([[2.0, 0.5, -1.0], [0.1, 0.3, 0.2]], [0, 2])
    >>> data.n, data.k, data.kind
    (2, 3, 'logits')
    >>> CalibrationSet([[2.0, 0.5], [0.1, float("nan")]], [0, 1])
    Traceback (most recent call last):
    calibrators.errors.DataError: logits must not be NaN (1 row breaks this rule, first row 1)
    """

    logits: Floats
    labels: Labels
    row_max: Floats = field(init=False, repr=False)
    kind: Kind = field(default="logits", init=False)
    groups: Groups | None = field(default=None, init=False)

    def __init__(
        self, logits: ArrayLike, labels: ArrayLike, groups: ArrayLike | None = None
    ) -> None:
        given = _as_floats(logits, "logits")
        self._check_in(as_logits(given), labels, groups, "logits")
        warn_if_probabilities(given, stacklevel=3)

    @classmethod
    def from_probabilities(
        cls, probabilities: ArrayLike, labels: ArrayLike, groups: ArrayLike | None = None
    ) -> CalibrationSet:
        """A set from probabilities: rows in [0, 1] that sum to 1, or (n,) / (n, 1) for class 1.

        Their logarithms serve as logits. Zeros are raised to the smallest positive normal number of
        their type, with a warning that says how many.

        >>> CalibrationSet.from_probabilities([0.9, 0.2], [1, 0]).k
        2
        """
        made = cls.__new__(cls)
        logits = log_probabilities(probabilities, stacklevel=3)
        made._check_in(logits, labels, groups, "probabilities")
        return made

    def _check_in(
        self, logits: Floats, labels: ArrayLike, groups: ArrayLike | None, kind: Kind
    ) -> None:
        checked = _as_labels(labels, rows=len(logits), classes=logits.shape[1])
        maxima = row_maxima(logits)
        check_rows(maxima)
        check_labelled(logits[np.arange(len(checked)), checked])
        segments = None if groups is None else Groups.of(groups, rows=len(logits))
        self._set(logits, checked, maxima, kind, segments)

    def _set(
        self, logits: Floats, labels: Labels, row_max: Floats, kind: Kind, groups: Groups | None
    ) -> None:
        for name, array in (("logits", logits), ("labels", labels), ("row_max", row_max)):
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "groups", groups)

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.logits)

    @property
    def k(self) -> int:
        """Number of classes."""
        return int(self.logits.shape[1])

    @property
    def label_gaps(self) -> Floats:
        """How far the logit of each row's label is below the row's largest (n,)."""
        return np.asarray(self.row_max - self.logits[np.arange(self.n), self.labels])

    def with_groups(self, groups: ArrayLike) -> CalibrationSet:
        """The same rows, each in the segment that is named for it."""
        made = CalibrationSet.__new__(CalibrationSet)
        named = Groups.of(groups, rows=self.n)
        made._set(self.logits, self.labels, self.row_max, self.kind, named)
        return made

    def take(self, rows: NDArray[np.intp]) -> CalibrationSet:
        """The chosen rows as a set of their own."""
        labels = self.labels[rows]
        if labels.ndim != 1 or not labels.size:
            raise DataError("empty", "rows must choose at least one row, and be one list of them")
        taken = CalibrationSet.__new__(CalibrationSet)
        groups = None if self.groups is None else self.groups.take(rows)
        taken._set(self.logits[rows], labels, self.row_max[rows], self.kind, groups)
        return taken

    def split(self, fraction: float, *, seed: int = 0) -> tuple[CalibrationSet, CalibrationSet]:
        """Two parts, the second with ``fraction`` of the rows of every class (stratified).

        >>> data = CalibrationSet([[2.0, 0.0]] * 8 + [[0.0, 2.0]] * 2, [0] * 5 + [1] * 5)
        >>> first, second = data.split(0.4, seed=1)
        >>> second.labels.tolist()
        [0, 0, 1, 1]
        """
        if not 0.0 < fraction < 1.0:
            raise DataError("bad_fraction", f"fraction must lie between 0 and 1, got {fraction}")
        place = self._stratified_places(seed)
        held = round(fraction * self.n)
        if not 0 < held < self.n:
            raise DataError(
                "too_few_rows", f"{self.n} rows cannot be split with a fraction of {fraction}"
            )
        chosen = np.floor((place + 1) * held / self.n) > np.floor(place * held / self.n)
        return self.take(np.flatnonzero(~chosen)), self.take(np.flatnonzero(chosen))

    def folds(self, count: int, *, seed: int = 0) -> NDArray[np.intp]:
        """The fold 0..count-1 of every row, stratified by label, equal in size to one row."""
        if not isinstance(count, int) or not 2 <= count <= self.n:
            raise DataError(
                "too_few_rows", f"count must lie between 2 and the {self.n} rows, got {count}"
            )
        return self._stratified_places(seed) % count

    def _stratified_places(self, seed: int) -> NDArray[np.intp]:
        """A number 0..n-1 for every row: classes one after the other, shuffled inside each.

        Classes come in the order of their first shuffled row, so what they are called is of no
        account.
        """
        shuffled = np.random.default_rng(seed).permutation(self.n)
        _, first, code = np.unique(self.labels[shuffled], return_index=True, return_inverse=True)
        order = shuffled[np.argsort(first[code], kind="stable")]
        place = np.empty(self.n, dtype=np.intp)
        place[order] = np.arange(self.n)
        return place


def as_logits(values: ArrayLike) -> Floats:
    """Values as an (n, k) array of float32 or float64; one column becomes ``[0, logit]``."""
    array = _as_floats(values, "logits")
    if array.shape[1] == 1:
        return np.concatenate([np.zeros_like(array), array], axis=1)
    return array


def log_probabilities(probabilities: ArrayLike, *, stacklevel: int = 2) -> Floats:
    """Logarithms of checked probabilities; zeros are raised to the smallest positive number."""
    array = _as_floats(probabilities, "probabilities")
    inside = (array >= 0) & (array <= 1 + 1e-6)
    _reject_rows(
        np.logical_not(inside.all(axis=1)), "not_a_probability", "probabilities must lie in [0, 1]"
    )
    if array.shape[1] == 1:
        array = np.concatenate([1 - array, array], axis=1)
    off: NDArray[np.bool_] = np.abs(array.sum(axis=1, dtype=np.float64) - 1) > SUM_TOLERANCE
    _reject_rows(off, "rows_do_not_sum_to_one", "the probabilities of a row must sum to 1")
    smallest = np.finfo(array.dtype).tiny
    zeros = int(np.count_nonzero(array < smallest))
    if zeros:
        warnings.warn(
            f"{zeros} probabilities below {smallest:.3g} were raised to it",
            ClippedProbabilities,
            stacklevel=stacklevel,
        )
    logs: Floats = np.log(np.clip(array, smallest, 1))
    return logs


def row_maxima(logits: Floats) -> Floats:
    """The largest value of every row (n,); NaN where the row has one."""
    out = np.empty(len(logits), dtype=logits.dtype)

    def work(start: int, stop: int, scratch: Scratch) -> None:
        block, axis = oriented(logits[start:stop], scratch)
        np.max(block, axis=axis, out=out[start:stop])

    map_blocks(work, *logits.shape)
    return out


def check_rows(maxima: Floats) -> None:
    """Raise if a row has no softmax: its maximum is NaN, +inf or -inf."""
    if np.isfinite(maxima).all():
        return
    for broken, code, rule in (
        (np.isnan(maxima), "nan", "logits must not be NaN"),
        (np.isposinf(maxima), "infinite", "logits must not be +inf"),
        (np.isneginf(maxima), "no_finite_logit", "a row needs at least one finite logit"),
    ):
        _reject_rows(broken, code, rule)


def check_labelled(logits: Floats) -> None:
    """Raise if the logit of a row's label is -inf."""
    _reject_rows(
        np.isneginf(logits),
        "label_on_minus_infinity",
        "the logit of the label must not be -inf: the model calls what happened impossible",
    )


def _as_floats(values: ArrayLike, name: str) -> Floats:
    if type(values) is np.ndarray and values.ndim == 2 and values.size and values.dtype in PLAIN:
        return values
    try:
        array = np.asanyarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError("not_an_array", f"{name} cannot be read as an array: {error}") from error
    _refuse_masked(array, name)
    if array.ndim == 1:
        array = array[:, np.newaxis]
    if array.ndim != 2:
        raise DataError(
            "bad_shape", f"{name} must have shape (n, k), (n, 1) or (n,), got {array.shape}"
        )
    if array.shape[0] == 0:
        raise DataError("empty", f"{name} must hold at least one row, got shape {array.shape}")
    if array.shape[1] == 0:
        raise DataError("too_few_classes", f"{name} must have at least 2 classes, got none")
    if array.dtype.kind not in "fiu":
        raise DataError("bad_type", f"{name} must be float32 or float64, got {array.dtype}")
    if array.dtype == np.float16:
        return array.astype(np.float32)
    native = array.dtype.newbyteorder("=")
    kept = native if native in (np.float32, np.float64) else np.float64
    return np.asarray(array, dtype=kept)


def _refuse_masked(array: NDArray[Any], name: str) -> None:
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise DataError("masked", f"{name} must not be masked: drop those rows first")


def _as_labels(labels: ArrayLike, *, rows: int, classes: int) -> Labels:
    try:
        array = np.asanyarray(labels)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError("not_an_array", f"labels cannot be read as an array: {error}") from error
    _refuse_masked(array, "labels")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            "bad_label_shape",
            f"labels must have shape (n,), got {array.shape}; for one-hot rows pass argmax(axis=1)",
        )
    if len(array) != rows:
        raise DataError("length_mismatch", f"logits have {rows} rows but labels have {len(array)}")
    if array.dtype.kind not in "iub":
        raise DataError(
            "labels_not_integers",
            f"labels must be integers (class indices 0..{classes - 1}), got {array.dtype}",
        )
    _reject_rows(
        (array < 0) | (array >= classes),
        "label_out_of_range",
        f"labels must lie in 0..{classes - 1}",
    )
    return array.astype(np.int64)


def _reject_rows(broken: NDArray[np.bool_], code: str, rule: str) -> None:
    if broken.any():
        count, first = int(np.count_nonzero(broken)), int(np.argmax(broken))
        raise DataError(code, rule, rows=count, first=first)


def warn_if_probabilities(given: Floats, *, stacklevel: int) -> None:
    """Warn if what was given as logits, (n, k) or (n, 1), looks like probabilities."""
    step = 4096
    for start in range(0, len(given), step):
        block = given[start : start + step]
        if block.min() < 0 or block.max() > 1:
            return
        sums = block.sum(axis=1, dtype=np.float64)
        if given.shape[1] > 1 and (np.abs(sums - 1) > SUM_TOLERANCE).any():
            return
    rule = "sums to 1" if given.shape[1] > 1 else "is a single number"
    warnings.warn(
        f"every row of logits lies in [0, 1] and {rule}: if these are probabilities, "
        "call CalibrationSet.from_probabilities(probabilities, labels) instead",
        LooksLikeProbabilities,
        stacklevel=stacklevel,
    )
