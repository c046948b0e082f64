"""The temperatures of a map, by margin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from calibrators.base import CalibrationMap, TemperatureTypeMap
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.numerics.parallel import Floats
from calibrators.numerics.softmax import margins
from calibrators.report.json_form import rounded

CELLS = 60
SHOWN = 0.995
BAND = (0.1, 0.9)


@dataclass(frozen=True)
class TemperatureCell:
    """Rows whose margin lies between ``lower`` and ``upper``, and their temperatures.

    ``temperature`` is their mean; ``low`` and ``high`` span the middle 80 % of the rows.
    """

    lower: float
    upper: float
    rows: int
    temperature: float
    low: float
    high: float


def temperatures_of(
    fitted: CalibrationMap, data: CalibrationSet, margin: Floats | None = None
) -> tuple[TemperatureCell, ...]:
    """Return the temperatures of a map on a set, by margin; empty if it has no temperatures.

    ``margin`` (n,) is the logit margin of each row, if already known.

    >>> from calibrators.methods.temperature import TemperatureMap
    >>> data = CalibrationSet([[0.0, 1.0], [0.0, 3.0]], [1, 0])
    >>> [(cell.rows, cell.temperature) for cell in
    ...     temperatures_of(TemperatureMap(k=2, temperature=1.5), data)]
    [(1, 1.5)]
    """
    if not isinstance(fitted, TemperatureTypeMap):
        return ()
    margin = margins(data.logits) if margin is None else margin
    return cells_of(margin, fitted.temperatures_of_set(data))


def temperatures_at(fitted: CalibrationMap, values: ArrayLike) -> tuple[TemperatureCell, ...]:
    """Return the temperatures of a map by margin, for ``values`` of the kind that it takes."""
    if not isinstance(fitted, TemperatureTypeMap):
        raise ParameterError(
            "no_temperature",
            f"fitted must be a temperature-type map, got a {fitted.method!r} map",
        )
    temperatures = fitted.temperatures(values)
    return cells_of(margins(fitted.read(values)[0]), temperatures)


def cells_of(margin: Floats, temperature: Floats) -> tuple[TemperatureCell, ...]:
    """Return 60 cells of equal width from 0 to the 99.5 % quantile of the margins.

    Empty cells are left out, and so are rows with an infinite margin, where a probability is 0.
    """
    finite = np.isfinite(margin)
    if not finite.any():
        return ()
    inside = margin[finite].astype(np.float64)
    end = (float(np.quantile(inside, SHOWN)) or 1.0) * (1 + 1e-9)
    # cell number CELLS holds all rows beyond the end
    number = np.minimum(inside / end * CELLS, CELLS).astype(np.intp)
    order = np.argsort(number, kind="stable")
    places = np.searchsorted(number[order], np.arange(1, CELLS + 1))
    parts = np.split(np.asarray(temperature)[finite][order], places)[:CELLS]
    return tuple(_cell(place, here, end / CELLS) for place, here in enumerate(parts) if here.size)


def _cell(place: int, temperature: Floats, width: float) -> TemperatureCell:
    low = high = temperature[0]
    if temperature.min() < temperature.max():
        low, high = np.quantile(temperature, BAND)
    return TemperatureCell(
        lower=rounded(width * place),
        upper=rounded(width * (place + 1)),
        rows=len(temperature),
        temperature=rounded(temperature.mean()),
        low=rounded(low),
        high=rounded(high),
    )
