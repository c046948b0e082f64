"""Auto: it chooses rightly where the truth is known, says why, and sees nothing but the fit set."""

from __future__ import annotations

import numpy as np
import pytest
from samples import draw
from test_smart import two_regimes

from calibrators import CalibrationSet, ParameterError
from calibrators.errors import SmallSample
from calibrators.methods.auto import Auto
from calibrators.methods.temperature import TemperatureScaling


def test_leaves_a_calibrated_model_alone() -> None:
    chosen = [Auto().fit(draw(1500, 4, temperature=1.0, seed=s)).method for s in range(3)]
    assert chosen.count("identity") >= 2


def test_takes_the_temperature_where_it_is_the_truth() -> None:
    chosen = [Auto().fit(draw(1500, 4, temperature=2.5, seed=s)).method for s in range(3)]
    assert chosen.count("temperature") >= 2
    assert "identity" not in chosen


def test_takes_smart_where_one_temperature_cannot_do() -> None:
    fitted = Auto().fit(two_regimes(6000, 0)[0])
    assert fitted.method == "smart"


def test_says_what_was_tried_and_why() -> None:
    fitted = Auto().fit(two_regimes(3000, 0)[0])
    tried = {one["method"]: one for one in fitted.fit_info["candidates"]}
    assert set(tried) == {"identity", "temperature", "smart"}
    assert fitted.fit_info["base"] == "temperature"
    assert tried["temperature"]["change"] is None
    for one in tried.values():
        for name in ("debiased_squared_error", "ece", "nll", "brier"):
            assert one[name]["low"] <= one[name]["value"] <= one[name]["high"]
    assert tried["smart"]["change"]["high"] < 0
    assert "out-of-fold calibration error is below that of temperature" in fitted.fit_info["why"]
    assert fitted.fit_info["chosen_by"] == "auto"


def test_few_rows_lean_on_the_prior() -> None:
    data = draw(40, 3, temperature=6.0)
    with pytest.warns(SmallSample, match="40 rows are too few"):
        fitted = Auto().fit(data)
    free = TemperatureScaling().fit(data).temperature
    assert 1 < fitted.temperature < free


def test_all_right_does_not_become_certainty() -> None:
    data = draw(300, 3, temperature=1.0)
    right = CalibrationSet(data.logits, data.logits.argmax(axis=1))
    with pytest.warns(SmallSample, match="every prediction on the fit set is right"):
        fitted = Auto().fit(right)
    assert 0.05 < fitted.temperature < 1


def test_candidates_can_be_named() -> None:
    data = draw(600, 3, temperature=2.0)
    fitted = Auto(candidates=("temperature",)).fit(data)
    tried = [one["method"] for one in fitted.fit_info["candidates"]]
    assert tried == ["identity", "temperature"]
    with pytest.raises(ParameterError, match="must not name 'auto'"):
        Auto(candidates=("auto",)).fit(data)
    with pytest.raises(ParameterError, match="did you mean 'smart'"):
        Auto(candidates=("smrt",)).fit(data)


def test_progress_counts_folds() -> None:
    seen: list[int] = []
    Auto().fit(draw(400, 3), progress=lambda step, total, loss: seen.append(total - step))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0
    assert np.unique(seen).size == len(seen) == 14


@pytest.mark.parametrize("factor", [1e-3, 1.0, 64.0])
def test_any_scale_of_many_classes(factor: float) -> None:
    data = draw(400, 200, temperature=2.0)
    scaled = CalibrationSet((data.logits * factor).astype(np.float32), data.labels)
    fitted = Auto(candidates=("temperature",)).fit(scaled)
    assert fitted.method == "temperature"
    assert fitted.fit_info["winner"] == "temperature"
    assert fitted.temperature == pytest.approx(2 * factor, rel=0.3)
