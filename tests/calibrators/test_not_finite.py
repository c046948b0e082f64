"""Maps with finite parameters that are too large to compute with never return NaN."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from helpers.samples import applied, draw, suited

from calibrators import CalibrationError, CalibrationMap, DataError, all_methods, archive
from calibrators.base import TemperatureTypeMap
from calibrators.errors import MapError
from calibrators.fitting.map_check import FEATURE_SCALES, MIN_ROWS, prove
from calibrators.methods.grouping import GroupingMap
from calibrators.methods.segmented import SegmentedMap

METHODS = sorted(all_methods())
ROWS = draw(300, 5, seed=3).logits
QUICK: dict[str, dict[str, Any]] = {
    "smart": {"steps": 20},
}


def fit(name: str) -> CalibrationMap:
    recipe, data = all_methods()[name](**QUICK.get(name, {})), draw(1200, 5)
    return recipe.fit(suited(data, recipe))


@pytest.mark.parametrize("name", METHODS)
def test_fitted_maps_are_proved(name: str) -> None:
    prove(fit(name))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("factor", [1e300, -1e300, 1e160, 1e-300])
def test_no_map_returns_values_that_are_not_finite(name: str, factor: float) -> None:
    """Each array of a fitted map times a huge number is either refused or gives finite results."""
    fitted = fit(name)
    rng = np.random.default_rng(0)
    for field in fields(fitted):
        value = getattr(fitted, field.name)
        if not isinstance(value, np.ndarray):
            continue
        with np.errstate(all="ignore"):
            changed = np.nan_to_num(value * factor * rng.choice([1, -1], size=value.shape))
        try:
            forged = archive.load(archive.dump(replace(fitted, **{field.name: changed})))
            p = applied(forged, ROWS)
        except CalibrationError as error:
            assert not isinstance(error, DataError)  # noqa: PT017 - the input is sound
            continue
        assert np.isfinite(p).all()
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["pts", "smart"])
@pytest.mark.parametrize("rows", [1, 300])
def test_a_network_with_huge_weights_causes_a_warning(name: str, rows: int) -> None:
    forged = forged_network(name)
    with pytest.raises(MapError, match=r"not finite for \d+ rows?, first row 0") as caught:
        applied(forged, ROWS[:rows])
    assert caught.value.code == "not_finite_probabilities"
    with pytest.raises(MapError):
        prove(forged)
    inside = SegmentedMap(k=5, base=forged, segments=("a",), temperatures=np.ones(1))
    with pytest.raises(MapError):
        inside.apply(ROWS[:rows], ["a"] * rows)
    broken = ROWS[:rows].copy()
    broken[0, 1] = np.nan
    with pytest.raises(DataError, match="must not be NaN"):
        applied(forged, broken)


def forged_network(name: str) -> TemperatureTypeMap:
    """Return a network whose hidden units overflow and cancel each other."""
    fitted = fit(name)
    last = fitted.w3 if name == "pts" else fitted.w2  # type: ignore[attr-defined]
    signs = np.resize([1.0, -1.0], last.size)
    changes = {"w1": np.full_like(fitted.w1, 1e308), "b1": np.full_like(fitted.b1, 1e308)}  # type: ignore[attr-defined]
    if name == "pts":
        changes |= {"w2": np.full_like(fitted.w2, 1e308), "w3": signs}  # type: ignore[attr-defined]
    else:
        changes |= {"w2": signs}
    forged = replace(fitted, **changes)
    assert isinstance(forged, TemperatureTypeMap)
    return forged


def test_a_slow_map_is_proved_on_fewer_rows() -> None:
    """A map of 2 kB used to take a minute: 100 partitions of 100,000 classes on 376 rows."""
    applied_rows = 0

    class Counted(GroupingMap):
        def _transform_features(self, logits: Any, features: Any) -> Any:
            nonlocal applied_rows
            applied_rows += len(logits)
            return logits.copy()

    weights, temperatures = np.ones((100, 1)), np.full((100, 1), 1.5)
    prove(Counted(k=20_000, kind="logits", weights=weights, temperatures=temperatures))
    assert MIN_ROWS * 2 * len(FEATURE_SCALES) <= applied_rows < 150
    applied_rows = 0
    prove(Counted(k=20, kind="logits", weights=weights, temperatures=temperatures))
    assert applied_rows > 300
