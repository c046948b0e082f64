"""CalibrationSet: logits or probabilities with their labels, checked on creation."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrators.arrays import (
    Labels,
    as_floats,
    as_labels,
    check_labelled,
    check_rows,
    reject_rows,
    row_maxima,
)
from calibrators.cut_lists import find_cut
from calibrators.errors import (
    ClippedProbabilities,
    DataError,
    LooksLikeProbabilities,
    warn_user,
)
from calibrators.features import Features, Head, checked_features
from calibrators.numerics.parallel import Floats, row_blocks
from calibrators.rounding import Zeros, step_of
from calibrators.segments import Segments

Kind = Literal["logits", "probabilities"]
HeadLike = Head | tuple[ArrayLike, ArrayLike | None] | None

SUM_TOLERANCE = 1e-3
EXACT_TOLERANCE = 1e-5
# fewer rows of logits may look like probabilities by chance
ROWS_TO_JUDGE = 20
SINGLES_TO_JUDGE = 100
EXACT = Zeros()


class Source(NamedTuple):
    """The probabilities that a set was built from: some or all rows of an array, not copied."""

    array: Floats
    rows: NDArray[np.intp] | None = None

    def take(self, rows: NDArray[np.intp]) -> Source:
        """Return the source restricted to ``rows``."""
        return Source(self.array, rows if self.rows is None else self.rows[rows])

    def probabilities(self) -> Floats:
        """Return the probabilities (n, k)."""
        return self.array if self.rows is None else np.asarray(self.array[self.rows])


class Clipped(NamedTuple):
    """Summary of the changes to probabilities before their logarithms were taken.

    ``raised`` is the number of zeros that were raised, ``normalised`` the number of rows that did
    not sum to 1, and ``zeros`` the rule for replacing zeros.
    """

    raised: int
    normalised: int
    zeros: Zeros

    def __str__(self) -> str:
        parts = []
        if self.raised:
            parts.append(f"{self.raised} zeros were raised to {self._level()}")
        if self.normalised:
            parts.append(f"{self.normalised} rows that do not sum to 1 were normalised")
        if self.zeros.rounding:
            parts.append(
                f"all probabilities are multiples of {self.zeros.rounding:g}, so they are treated "
                "as rounded, even if they are vote shares, for example from a random forest"
            )
        if self.zeros.ratio:
            kept = self.zeros.kept
            parts.append(f"the rows are assumed to be lists truncated to at most {kept} classes")
        return ", ".join(parts)

    def _level(self) -> str:
        if self.zeros.ratio:
            return f"{self.zeros.ratio:.2g} times the smallest positive value in their row"
        return f"about {self.zeros.floor:.2g}"


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """Logits (n, k) and labels (n,) of one model on one sample of data.

    Logits are float32 or float64; float16 and integers are widened. The logits of a binary model
    may be a single column, (n,) or (n, 1): the logit of class 1, stored as the two columns
    ``[0, logit]``. Use ``from_probabilities`` for probabilities; the kind is never guessed. Logits
    may be ``-inf``, except at the row's label. They are shared, not copied, and never modified.
    ``segments`` (n,), if given, names the segment of each row. ``features`` (n, d), if given, are
    the inputs to the model's last layer, and ``head`` is that layer's (weight, bias).

    >>> data = CalibrationSet([[2.0, 0.5, -1.0], [0.1, 0.3, 0.2]], [0, 2])
    >>> data.n, data.k, data.kind
    (2, 3, 'logits')
    >>> CalibrationSet([[2.0, 0.5], [0.1, float("nan")]], [0, 1])
    Traceback (most recent call last):
    calibrators.errors.DataError: logits must not be NaN (1 invalid row, first row 1)
    """

    logits: Floats
    labels: Labels
    row_max: Floats = field(init=False, repr=False)
    kind: Kind = field(default="logits", init=False)
    segments: Segments | None = field(default=None, init=False)
    features: Features | None = field(default=None, init=False, repr=False)
    zeros: Zeros = field(default=EXACT, init=False, repr=False)
    clipped: Clipped | None = field(default=None, init=False, repr=False)
    source: Source | None = field(default=None, init=False, repr=False)

    def __init__(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        segments: ArrayLike | Segments | None = None,
        features: ArrayLike | Features | None = None,
        head: HeadLike = None,
    ) -> None:
        array = as_floats(logits, "logits")
        self._check_in(as_logits(array), labels, segments, "logits")
        self._check_features_in(features, head)
        warn_if_probabilities(array)

    @classmethod
    def from_probabilities(
        cls,
        probabilities: ArrayLike,
        labels: ArrayLike,
        segments: ArrayLike | Segments | None = None,
        features: ArrayLike | Features | None = None,
        head: HeadLike = None,
        *,
        rounding: float | None = None,
        warn: bool = True,
    ) -> CalibrationSet:
        """Create a set from probabilities: rows that sum to 1, or (n,) / (n, 1) for class 1.

        Their logarithms serve as logits. ``rounding`` is the step that the probabilities were
        rounded to, such as 0.01, or 0 if they were not rounded. If it is None and all values are
        multiples of a decimal step, that step is used.

        Zeros are replaced by positive values. A zero among rounded probabilities stands for a value
        below half a step (see ``calibrators.rounding.Zeros``); rounded rows need to sum to 1
        only up to rounding, and are normalised. The labels reveal whether zeros come from lists
        that were cut to their top classes and divided by their sum (see
        ``calibrators.cut_lists.find_cut``). Other zeros are raised to half of the smallest
        positive value. ``clipped`` counts the changes; if ``warn`` is True, a ClippedProbabilities
        warning reports them.

        >>> CalibrationSet.from_probabilities([0.9, 0.2], [1, 0]).k
        2
        """
        new = cls.__new__(cls)
        if rounding is not None and not 0 <= rounding <= 0.5:
            raise DataError("bad_rounding", f"rounding must lie in [0, 0.5], got {rounding}")
        values = as_floats(probabilities, "probabilities")
        array = two_columns(values)
        step = step_of(values) if rounding is None else float(rounding)
        off, checked = _check_probabilities(array, labels, step)
        zeros = find_cut(Zeros.of(array, step), array, checked)
        logits, clipped = _filled_logs(array, zeros, off)
        new._check_in(logits, checked, segments, "probabilities", clipped)
        object.__setattr__(new, "source", Source(array))
        new._check_features_in(features, head)
        if warn:
            warn_if_clipped(clipped)
        return new

    def _check_in(
        self,
        logits: Floats,
        labels: ArrayLike,
        segments: ArrayLike | Segments | None,
        kind: Kind,
        clipped: Clipped | None = None,
    ) -> None:
        checked = as_labels(labels, rows=len(logits), classes=logits.shape[1])
        maxima = row_maxima(logits)
        check_rows(maxima)
        check_labelled(logits[np.arange(len(checked)), checked])
        named = None if segments is None else Segments.of(segments, rows=len(logits))
        self._set(logits, checked, maxima, kind, named)
        if clipped is not None:
            object.__setattr__(self, "zeros", clipped.zeros)
            if clipped.raised or clipped.normalised:
                object.__setattr__(self, "clipped", clipped)

    def _check_features_in(self, features: ArrayLike | Features | None, head: HeadLike) -> None:
        checked = None
        if features is not None or head is not None:
            checked = checked_features(features, head, rows=self.n, classes=self.k)
        object.__setattr__(self, "features", checked)

    def _set(
        self,
        logits: Floats,
        labels: Labels,
        row_max: Floats,
        kind: Kind,
        segments: Segments | None,
        zeros: Zeros = EXACT,
    ) -> None:
        for name, array in (("logits", logits), ("labels", labels), ("row_max", row_max)):
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "segments", segments)
        object.__setattr__(self, "features", None)
        object.__setattr__(self, "zeros", zeros)
        object.__setattr__(self, "clipped", None)
        object.__setattr__(self, "source", None)

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
        """Largest logit of each row minus the logit of its label (n,)."""
        return np.asarray(self.row_max - self.logits[np.arange(self.n), self.labels])

    @property
    def is_surely_probabilities(self) -> bool:
        """True if the rows of logits sum to 1, and are too many for this to be chance."""
        return (
            self.n >= ROWS_TO_JUDGE and not self.is_single and self.probabilities_note is not None
        )

    @property
    def probabilities_note(self) -> str | None:
        """The warning that the logits look like probabilities; None if they do not."""
        if self.kind != "logits":
            return None
        return probabilities_note(self.logits[:, 1:] if self.is_single else self.logits)

    @property
    def is_single(self) -> bool:
        """True if the logits were given as a single column, the logit of class 1."""
        return is_single_column(self.logits)

    def with_logits(self, logits: Floats) -> CalibrationSet:
        """Return a set with the same labels and other logits (n, k), after checking them."""
        new = CalibrationSet.__new__(CalibrationSet)
        new._check_in(logits, self.labels, None, self.kind)
        return new

    def with_segments(self, segments: ArrayLike) -> CalibrationSet:
        """Return a set with the same rows and the given segments."""
        new = copy(self)
        object.__setattr__(new, "segments", Segments.of(segments, rows=self.n))
        return new

    def with_features(
        self, features: ArrayLike | Features | None, head: HeadLike = None
    ) -> CalibrationSet:
        """Return a set with the same rows and the given features; None removes the features."""
        new = copy(self)
        new._check_features_in(features, head)
        return new

    def take(self, rows: NDArray[np.intp]) -> CalibrationSet:
        """Return the chosen rows as a set, with ``clipped`` reset to None."""
        labels = self.labels[rows]
        if labels.ndim != 1 or not labels.size:
            raise DataError("empty", "rows must be a one-dimensional index of at least one row")
        taken = CalibrationSet.__new__(CalibrationSet)
        segments = None if self.segments is None else self.segments.take(rows)
        row_max = self.row_max[rows]
        taken._set(self.logits[rows], labels, row_max, self.kind, segments, self.zeros)
        if self.features is not None:
            object.__setattr__(taken, "features", self.features.take(rows))
        if self.source is not None:
            chosen = np.arange(self.n)[rows]
            object.__setattr__(taken, "source", self.source.take(chosen))
        return taken

    def split(self, fraction: float, *, seed: int = 0) -> tuple[CalibrationSet, CalibrationSet]:
        """Split into two parts, the second with ``fraction`` of the rows of every class.

        >>> data = CalibrationSet([[2.0, 0.0]] * 8 + [[0.0, 2.0]] * 2, [0] * 5 + [1] * 5)
        >>> first, second = data.split(0.4, seed=1)
        >>> second.labels.tolist()
        [0, 0, 1, 1]
        """
        first, second = self.split_rows(fraction, seed=seed)
        return self.take(first), self.take(second)

    def split_rows(
        self, fraction: float, *, seed: int = 0
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the row indices of both parts of ``split``, in ascending order."""
        if not 0.0 < fraction < 1.0:
            raise DataError("bad_fraction", f"fraction must lie between 0 and 1, got {fraction}")
        place = self._stratified_places(seed)
        held = round(fraction * self.n)
        if not 0 < held < self.n:
            raise DataError(
                "too_few_rows", f"{self.n} rows cannot be split with a fraction of {fraction}"
            )
        chosen = np.floor((place + 1) * held / self.n) > np.floor(place * held / self.n)
        return np.flatnonzero(~chosen), np.flatnonzero(chosen)

    def folds(self, count: int, *, seed: int = 0) -> NDArray[np.intp]:
        """Return each row's fold, 0..count-1, stratified by label; sizes differ by at most 1."""
        if not isinstance(count, int) or not 2 <= count <= self.n:
            raise DataError(
                "too_few_rows",
                f"count must lie between 2 and the number of rows ({self.n}), got {count}",
            )
        return self._stratified_places(seed) % count

    def _stratified_places(self, seed: int) -> NDArray[np.intp]:
        """Return a position 0..n-1 for every row: class by class, shuffled within each class.

        Classes are ordered by their first shuffled row, so renumbering the classes changes nothing.
        """
        shuffled = np.random.default_rng(seed).permutation(self.n)
        _, first, code = np.unique(self.labels[shuffled], return_index=True, return_inverse=True)
        order = shuffled[np.argsort(first[code], kind="stable")]
        place = np.empty(self.n, dtype=np.intp)
        place[order] = np.arange(self.n)
        return place


def as_logits(values: ArrayLike) -> Floats:
    """Return logits as a float array (n, k); a single column becomes ``[0, logit]``."""
    array = as_floats(values, "logits")
    if array.shape[1] == 1:
        return np.concatenate([np.zeros_like(array), array], axis=1)
    return array


def two_columns(probabilities: ArrayLike) -> Floats:
    """Return checked probabilities (n, k); a single column (class 1) becomes two."""
    array = as_floats(probabilities, "probabilities")
    inside = (array >= 0) & (array <= 1 + 1e-6)
    reject_rows(
        np.logical_not(inside.all(axis=1)), "not_a_probability", "probabilities must lie in [0, 1]"
    )
    if array.shape[1] == 1:
        clipped = np.minimum(array, 1)
        return np.concatenate([1 - clipped, clipped], axis=1)
    return array


def check_probabilities(values: ArrayLike, labels: ArrayLike, rounding: float) -> None:
    """Raise any error that ``from_probabilities`` raises for the same arguments."""
    _check_probabilities(two_columns(values), labels, rounding)


def _check_probabilities(
    array: Floats, labels: ArrayLike, rounding: float
) -> tuple[Floats, Labels]:
    off = _check_sums(array, Zeros(rounding=rounding))
    return off, as_labels(labels, rows=len(array), classes=array.shape[1])


def _check_sums(array: Floats, zeros: Zeros) -> Floats:
    """Return the distance of each row's sum from 1 (n,); raise if rounding cannot explain it."""
    k = array.shape[1]
    off = np.abs(array.sum(axis=1, dtype=np.float64) - 1)
    rule = "the probabilities of each row must sum to 1"
    if k > 2:
        rule += (
            "; if rows list only their top classes, spread the missing probability over the zeros"
        )
    reject_rows(off > zeros.sum_tolerance(k, SUM_TOLERANCE), "rows_do_not_sum_to_one", rule)
    return np.asarray(off)


def log_probabilities(array: Floats, zeros: Zeros) -> tuple[Floats, Clipped]:
    """Return the logarithms of probabilities (n, k) from ``two_columns``, and a summary of changes.

    ``zeros`` is the rule for replacing zeros. Rows are not divided by their sums, because adding a
    constant to a row of logits does not change its probabilities.
    """
    return _filled_logs(array, zeros, _check_sums(array, zeros))


def _filled_logs(array: Floats, zeros: Zeros, off: Floats) -> tuple[Floats, Clipped]:
    logs, raised = np.empty_like(array), 0
    for rows in row_blocks(*array.shape):  # a copy of all rows would take too much memory
        filled, here = zeros.filled(array[rows])
        np.log(np.minimum(filled, 1), out=logs[rows])
        raised += here
    return logs, Clipped(raised, int(np.count_nonzero(off > SUM_TOLERANCE)), zeros)


def warn_if_clipped(clipped: Clipped | None) -> None:
    """Warn if zeros were raised or rows were normalised."""
    if clipped is not None and (clipped.raised or clipped.normalised):
        warn_user(str(clipped), ClippedProbabilities)


def warn_if_probabilities(logits: Floats) -> None:
    """Warn if logits, (n, k) or (n, 1), look like probabilities."""
    if note := probabilities_note(logits):
        warn_user(note, LooksLikeProbabilities)


def warn_if_applied_to_probabilities(logits: Floats) -> None:
    """Warn if logits (n, k) that a map is applied to look like probabilities.

    A few rows can look like probabilities by chance: their sums must then be 1 almost exactly, and
    a few single logits never trigger the warning.
    """
    if logits[0].min() < 0 or logits[0].max() > 1:  # nearly all calls end here
        return
    with np.errstate(invalid="ignore"):  # NaN is rejected when the map is applied
        _warn_if_probabilities(logits)


def _warn_if_probabilities(logits: Floats) -> None:
    rows, is_single = len(logits), is_single_column(logits)
    if rows < (SINGLES_TO_JUDGE if is_single else ROWS_TO_JUDGE):
        if is_single or not ((logits > 0) & (logits < 1)).any():
            return
        if not (np.abs(logits.sum(axis=1, dtype=np.float64) - 1) <= EXACT_TOLERANCE).all():
            return
    if (rule := _broken_rule(logits[:, 1:] if is_single else logits)) is not None:
        warn_user(
            f"every row {rule}, but this map was fitted on logits: pass the model's outputs before "
            "the softmax, or fit a map on probabilities",
            LooksLikeProbabilities,
        )


def is_single_column(logits: Floats) -> bool:
    """Return whether logits (n, k) were created from a single column, the logit of class 1."""
    return bool(logits.shape[1] == 2 and not logits[:, 0].any() and logits[:, 1].any())


def probabilities_note(logits: Floats) -> str | None:
    """Return a warning if logits, (n, k) or (n, 1), look like probabilities, else None.

    Every value must lie in [0, 1], and rows must sum to 1 within rounding unless k is 1.
    """
    rule = _broken_rule(logits)
    if rule is None:
        return None
    return (
        f"every row of logits {rule}: if these are probabilities, "
        'pass kind="probabilities", use CalibrationSet.from_probabilities, or name the array '
        "in the file 'probabilities'"
    )


def _broken_rule(logits: Floats) -> str | None:
    """Return the reason why logits, (n, k) or (n, 1), look like probabilities, or None."""
    is_single = logits.shape[1] == 1
    step = 4096
    for start in range(0, len(logits), step):
        block = logits[start : start + step]
        if block.min() < 0 or block.max() > 1:
            return None
        sums = block.sum(axis=1, dtype=np.float64)
        if not is_single and not (np.abs(sums - 1) <= SUM_TOLERANCE).all():
            return None
    return f"lies in [0, 1] and {'is a single number' if is_single else 'sums to 1'}"
