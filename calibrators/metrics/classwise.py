"""Calibration errors of every class, not only of the predicted one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from calibrators.blocks import row_blocks
from calibrators.metrics._inputs import Checked, Floats, at_least, checked
from calibrators.metrics.bins import bin_index
from calibrators.metrics.ranked import Ranked
from calibrators.metrics.toplabel import of_checked


def classwise_ece(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15, adaptive: bool = False
) -> float:
    """Mean over classes of the calibration error of `p_c` as the probability of class c.

    `(1/k) sum_c sum_b (n_bc / n) |freq_bc - mean p_c|`, where all n rows are binned by `p_c` and
    freq is the share of label c. Convention: equally wide bins (i/M, (i + 1)/M], or equal-mass
    bins for each class with `adaptive`; no threshold on small probabilities. Nixon et al. 2019
    (there: SCE and ACE); Kull et al. 2019.

    >>> round(classwise_ece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 6)
    0.3
    """
    at_least("bins", bins, 1)
    data = checked(probabilities, labels)
    return _equal_mass(data, bins) if adaptive else _equal_width(data, bins)


def _equal_width(data: Checked, bins: int) -> float:
    gap: Floats = np.zeros(data.classes * bins)
    offset = np.arange(data.classes) * bins
    for block in row_blocks(data.labels.size, data.classes):
        values = np.clip(data.probabilities[block].astype(np.float64), 0.0, 1.0)
        index = bin_index(values, bins) + offset
        own = np.take_along_axis(index, data.labels[block, None], axis=1)
        gap -= np.bincount(index.ravel(), values.ravel(), gap.size)
        gap += np.bincount(own.ravel(), minlength=gap.size)
    return float(np.abs(gap).sum() / data.labels.size / data.classes)


def _equal_mass(data: Checked, bins: int) -> float:
    errors = []
    for index in range(data.classes):
        column = np.clip(data.probabilities[:, index].astype(np.float64), 0.0, 1.0)
        errors.append(Ranked.of(column, data.labels == index).equal_mass(bins).ece())
    return float(np.mean(errors))


def sce(probabilities: npt.ArrayLike, labels: npt.ArrayLike, *, bins: int = 15) -> float:
    """Static calibration error exactly as Eq. 17 of the SECA paper states it.

    `(1/k) sum_c sum_b (n_bc / n_c) |acc_bc - conf_bc|`, where only the n_c rows *labelled* c are
    binned, by their top-label confidence, and acc is the share of them predicted right.
    Convention: classes without rows are left out of the mean. On balanced data it is at least
    the ECE; it does not vanish for a calibrated model. For Nixon's SCE see `classwise_ece`.

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
