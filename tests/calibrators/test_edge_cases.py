"""The table of edge cases: the result and the warnings of each method."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from helpers.samples import applied, draw, suited

from calibrators import CalibrationSet, CalibrationWarning, DataError, all_methods

DATA = draw(400, 4, temperature=2.0)
METHODS = sorted(all_methods())


def expected_of(name: str, code: str) -> list[str]:
    """Return a method's warnings on data for which temperature scaling warns with ``code``."""
    own = {"identity": [], "auto": [code], "temperature": [code], "segmented": [code]}
    own |= {name: [code] for name, one in all_methods().items() if one.needs_features}
    return own.get(name, [code, "fell_back"])


def fit(name: str, data: CalibrationSet) -> tuple[Any, list[str]]:
    """Return the map and the codes of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recipe = all_methods()[name]()
        fitted = recipe.fit(suited(data, recipe))
    issued = [one.category.code for one in caught if issubclass(one.category, CalibrationWarning)]
    assert issued == [one["code"] for one in fitted.fit_info["warnings"]]
    return fitted, issued


@pytest.mark.parametrize("name", METHODS)
def test_flat_logits(name: str) -> None:
    fitted, codes = fit(name, CalibrationSet(np.full((200, 4), 3.0), DATA.labels[:200]))
    np.testing.assert_allclose(applied(fitted, np.full((1, 4), 3.0)), 0.25)
    assert codes == expected_of(name, "flat_logits")


@pytest.mark.parametrize("name", METHODS)
def test_all_right(name: str) -> None:
    fitted, codes = fit(name, CalibrationSet(DATA.logits, DATA.logits.argmax(axis=1)))
    assert codes == expected_of(name, "boundary_solution")
    if name in ("temperature", "smart"):
        assert fitted.fit_info["at_bound"]
        margin = np.sort(DATA.logits, axis=1)
        clear = margin[:, -1] - margin[:, -2] > 0.1
        assert applied(fitted, DATA.logits)[clear].max(axis=1).min() > 0.999


@pytest.mark.parametrize("name", METHODS)
def test_all_wrong(name: str) -> None:
    fitted, codes = fit(name, CalibrationSet(DATA.logits, DATA.logits.argmin(axis=1)))
    assert codes == expected_of(name, "boundary_solution")
    if name in ("temperature", "smart"):
        assert fitted.fit_info["at_bound"]
        np.testing.assert_allclose(applied(fitted, DATA.logits), 0.25, atol=1e-2)


def test_fewer_than_two_classes() -> None:
    with pytest.raises(DataError, match="at least 2 classes"):
        CalibrationSet(np.empty((3, 0)), [0, 0, 0])


@pytest.mark.parametrize("name", METHODS)
def test_only_one_class_occurs(name: str) -> None:
    fitted, _ = fit(name, DATA.take(np.flatnonzero(DATA.labels == 2)))
    assert np.isfinite(applied(fitted, DATA.logits)).all()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("margin", [60.0, 1e4, 1e30])
def test_large_margins(name: str, margin: float) -> None:
    logits = DATA.logits.astype(np.float64).copy()
    logits[::7, 0] += margin
    fitted, _ = fit(name, CalibrationSet(logits, DATA.labels))
    p = applied(fitted, logits)
    assert np.isfinite(p).all()
    if fitted.keeps_class:
        assert (p[np.arange(len(p)), logits.argmax(axis=1)] == p.max(axis=1)).all()


@pytest.mark.parametrize("name", METHODS)
def test_every_row_the_same(name: str) -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    fitted, _ = fit(name, CalibrationSet(np.tile([2.0, 1.0, 0.0], (100, 1)), labels))
    p = applied(fitted, [[2.0, 1.0, 0.0]])[0]
    if name != "identity":
        assert p[0] == pytest.approx(0.6, abs=0.07)


@pytest.mark.parametrize("name", METHODS)
def test_a_fallback_is_recorded_with_its_reason(name: str) -> None:
    fitted, codes = fit(name, CalibrationSet(DATA.logits, DATA.logits.argmax(axis=1)))
    assert name in fitted.made_by
    assert (
        ("fallback" in fitted.fit_info)
        == ("fell_back" in codes)
        == (fitted.method != name and name != "auto")
    )
    if "fell_back" in codes:
        told = fitted.fit_info["fallback"]
        assert told["method"] == name
        assert "every prediction on the fit set is correct" in told["reason"]
        stranger = fitted.with_info(fallback={**told, "method": "another"})
        assert name not in stranger.made_by


def test_only_temperature_scaling_is_fallen_back_to() -> None:
    fitted, _ = fit("vector", DATA)
    assert fitted.with_info(fallback={"method": "smart", "reason": ""}).made_by == {"vector"}
    assert fitted.with_info(fallback=["smart"], chosen_by=7).made_by == {"vector"}
