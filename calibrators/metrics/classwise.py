"""Calibration errors of all classes, not only the predicted one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrators.metrics._inputs import Checked, Floats, Integers, at_least, checked
from calibrators.metrics._sorted import Ranked
from calibrators.metrics.bins import bin_index
from calibrators.metrics.catalogue import Metric
from calibrators.metrics.toplabel import of_checked
from calibrators.numerics.parallel import Scratch, map_blocks

__all__ = ["ClassTable", "class_table", "classwise_ece", "sce"]


def classwise_ece(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15, adaptive: bool = False
) -> float:
    """Return the calibration error of `p_c`, averaged over the classes.

    `(1/k) sum_c sum_b (n_bc / n) |freq_bc - mean p_c|`, where all n rows are binned by `p_c` and
    freq is the share of label c. Convention: equal-width bins (i/M, (i + 1)/M] or, with `adaptive`,
    equal-mass bins for each class; no threshold for small probabilities. Nixon et al. 2019 (who
    call these SCE and ACE); Kull et al. 2019.

    >>> round(classwise_ece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 6)
    0.3
    """
    if not adaptive:
        return class_table(probabilities, labels, bins=bins).mean_ece
    at_least("bins", bins, 1)
    return _equal_mass(checked(probabilities, labels), bins)


CLASSWISE_ECE = Metric(
    name="classwise_ece",
    title="class-wise ECE",
    meaning="The ECE of each class's probability, compared with how often that class is the label, "
    "in equal-width bins over all rows; averaged over the classes.",
    function=classwise_ece,
    measure=lambda scored: None if scored.classes is None else scored.classes.mean_ece,
    position=60,
)


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Calibration of each class; all arrays are (k,).

    `labelled` and `predicted` count the rows with that label and with that prediction; ties go to
    the first column. `mean_probability` is the mean of `p_c` over all rows, and `ece` is the
    calibration error of `p_c`.
    """

    labelled: Integers
    predicted: Integers
    mean_probability: Floats
    ece: Floats

    @property
    def mean_ece(self) -> float:
        """The class-wise ECE."""
        return float(self.ece.mean())


def class_table(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15
) -> ClassTable:
    """Return the calibration of each class, using equal-width bins; see `classwise_ece`.

    >>> table = class_table([[0.8, 0.2], [0.8, 0.2]], [0, 1])
    >>> table.labelled.tolist(), table.predicted.tolist(), table.ece.round(6).tolist()
    ([1, 1], [2, 0], [0.3, 0.3])
    """
    return class_table_of(checked(probabilities, labels), bins)


def class_table_of(data: Checked, bins: int) -> ClassTable:
    """Return the class table of checked input."""
    at_least("bins", bins, 1)
    n, k = data.probabilities.shape
    offset = np.arange(k) * bins

    def work(start: int, stop: int, scratch: Scratch) -> tuple[Floats, Floats, Integers]:
        block, truth = data.probabilities[start:stop], data.labels[start:stop]
        values = np.clip(block, 0.0, 1.0, out=scratch.take("clipped", block.shape, block.dtype))
        index = bin_index(values, bins, scratch)
        index += offset
        own = np.take_along_axis(index, truth[:, None], axis=1).ravel()
        gap: Floats = np.bincount(own, minlength=k * bins).astype(np.float64)
        gap -= np.bincount(index.ravel(), values.ravel(), k * bins)
        predicted = np.bincount(block.argmax(axis=1), minlength=k)
        return gap, values.sum(axis=0, dtype=np.float64), predicted

    gap, total, predicted = (sum(parts) for parts in zip(*map_blocks(work, n, k), strict=True))
    return ClassTable(
        labelled=np.bincount(data.labels, minlength=k),
        predicted=predicted,
        mean_probability=total / n,
        ece=np.abs(gap).reshape(k, bins).sum(axis=1) / n,
    )


def _equal_mass(data: Checked, bins: int) -> float:
    errors = []
    for index in range(data.classes):
        column = np.clip(data.probabilities[:, index].astype(np.float64), 0.0, 1.0)
        errors.append(Ranked.of(column, data.labels == index).equal_mass(bins).ece())
    return float(np.mean(errors))


def sce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """Return the static calibration error exactly as defined in Eq. 17 of the SECA paper.

    `(1/k) sum_c sum_b (n_bc / n_c) |acc_bc - conf_bc|`, where only the n_c rows *labelled* c are
    binned, by their top-label confidence, and acc is the share of these rows that are predicted
    correctly. Convention: classes without rows are left out of the mean. On balanced data, it is at
    least the ECE; it does not vanish for a calibrated model. For Nixon's SCE, see `classwise_ece`.

    >>> sce([[0.8, 0.2], [0.8, 0.2]], [0, 1])
    0.5
    """
    at_least("bins", bins, 1)
    data = checked(probabilities, labels)
    top = of_checked(data)
    index = bin_index(top.confidence, bins) + data.labels * bins
    gap = np.abs(np.bincount(index, top.residual, data.classes * bins))
    rows = np.bincount(data.labels, minlength=data.classes)
    present = rows > 0
    return float(np.mean(gap.reshape(data.classes, bins).sum(axis=1)[present] / rows[present]))
